"""Records of Connect's offset storage topic, against what Java wrote."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.internal_topics.connect_offsets import (
    SOURCE_CONNECTOR,
    decode_source_offset,
    encode_key,
    encode_source_offset,
    encode_value,
    murmur2,
    offsets_topic,
    partition_for_key,
    read_source_positions,
)
from sparkmirror.model import TopicPartition

# Keys, values and partitions that a Java MirrorMaker 2 (4.3.0) wrote; 25 partitions.
JAVA = [
    (
        "MirrorSourceConnector",
        {"topic": "t1", "cluster": "A", "partition": 3},
        100,
        b'["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"t1"}]',
        b'{"offset":100}',
        20,
    ),
    (
        "MirrorCheckpointConnector",
        {"group": "g1", "partition": 3, "topic": "A.t1"},
        0,
        b'["MirrorCheckpointConnector",{"partition":3,"topic":"A.t1","group":"g1"}]',
        b'{"offset":0}',
        20,
    ),
    (
        "MirrorHeartbeatConnector",
        {"targetClusterAlias": "B", "sourceClusterAlias": "A"},
        0,
        b'["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]',
        b'{"offset":0}',
        0,
    ),
]

T1 = TopicPartition("t1", 3)
KEY = JAVA[0][3]


@pytest.mark.parametrize("written", JAVA, ids=lambda written: written[0])
def test_bytes_and_partition_are_those_of_java(written):
    connector, fields, offset, key, value, partition = written
    assert encode_key(connector, fields) == key
    assert encode_value(offset) == value
    assert partition_for_key(key, 25) == partition


# Computed with Java's Utils.murmur2; the tails of 1, 2 and 3 bytes take different ways.
@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"21", -973932308),
        (b"foobar", -790332482),
        (b"a-little-bit-long-string", -985981536),
        (b"a-little-bit-longer-string", -1486304829),
        (b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971),
        (b"abc", 479470107),
    ],
)
def test_murmur2_is_javas(data, expected):
    assert murmur2(data) == expected & 0xFFFFFFFF


def test_position_is_one_past_the_last_replicated_offset():
    key, value = encode_source_offset("A", T1, 101)
    assert (key, value) == (KEY, b'{"offset":100}')
    assert read_source_positions([(0, key, value)], "A").positions == {T1: 101}


def test_position_zero_is_a_reset():
    assert encode_source_offset("A", T1, 0) == (KEY, None)


def test_key_is_compared_as_json_not_as_bytes():
    other = b'[ "MirrorSourceConnector" , {"topic":"t1","partition":3,"cluster":"A","more":1} ]'
    assert decode_source_offset(other, b'{"offset":7,"x":null}') == ("A", T1, 7)


@pytest.mark.parametrize("value", [None, b"null"])
def test_newest_record_wins_and_null_resets(value):
    records = [(0, KEY, b'{"offset":1}'), (0, KEY, b'{"offset":5}')]
    assert read_source_positions(records, "A").positions == {T1: 6}
    assert read_source_positions([*records, (0, KEY, value)], "A").positions == {}


def test_other_clusters_and_other_connectors_are_passed_over_in_silence():
    records = [(0, JAVA[1][3], JAVA[1][4]), (0, JAVA[2][3], JAVA[2][4]), (0, KEY, b'{"offset":1}')]
    result = read_source_positions(records, "Z")
    assert (result.positions, result.skipped) == ({}, 0)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b'{"offset":1}'),
        (b"", b'{"offset":1}'),
        (b"\xff\xfe", b'{"offset":1}'),
        (b"[]", b'{"offset":1}'),
        (b'["MirrorSourceConnector",[]]', b'{"offset":1}'),
        (b'["MirrorSourceConnector",{"cluster":"A","topic":"t1"}]', b'{"offset":1}'),
        (b'["MirrorSourceConnector",{"cluster":"A","topic":1,"partition":3}]', b'{"offset":1}'),
        (KEY.replace(b":3", b":-1"), b'{"offset":1}'),
        (KEY.replace(b":3", b":true"), b'{"offset":1}'),
        (KEY.replace(b":3", b":2147483648"), b'{"offset":1}'),
        (KEY, b'{"offset":-1}'),
        (KEY, b'{"offset":"1"}'),
        (KEY, b'{"offset":1.5}'),
        (KEY, b'{"offset":9223372036854775807}'),
        (KEY, b"{}"),
        (KEY, b"7"),
        (KEY, b"{"),
        (KEY, b""),
    ],
)
def test_garbage_is_skipped_and_counted(key, value):
    assert decode_source_offset(key, value) is None
    result = read_source_positions([(0, key, value), (0, KEY, b'{"offset":1}')], "A")
    assert (result.positions, result.skipped) == ({T1: 2}, 1)


def entry(name: str, offset: int | None) -> tuple[int, bytes, bytes | None]:
    return 0, KEY.replace(b"MirrorSourceConnector", name.encode()), encode_value(offset)


def test_a_connector_of_kafka_connect_has_a_name_of_its_own():
    """And shares the topic with connectors that have nothing to do with mirrors."""
    others = [
        (0, b'["jdbc",{"table":"orders"}]', b'{"incrementing":7}'),
        (0, b'["files",{"cluster":"A","topic":"t1"}]', b'{"offset":1}'),
        (0, b'["files",{}]', b'{"position":3}'),
    ]
    result = read_source_positions([*others, entry("A->B.MirrorSourceConnector", 100)], "A")
    assert (result.positions, result.skipped) == ({T1: 101}, 0)


def test_of_several_connectors_none_is_overtaken():
    records = [entry("new", 100), entry("old", 7)]
    assert read_source_positions(records, "A").positions == {T1: 8}
    assert read_source_positions([*records, entry("old", None)], "A").positions == {T1: 101}
    ours = [*records, entry("MirrorSourceConnector", 200)]
    assert read_source_positions(ours, "A").positions == {T1: 201}


@given(st.binary() | st.none(), st.binary() | st.none())
def test_no_bytes_at_all_raise(key, value):
    decode_source_offset(key, value)


@given(
    st.text(min_size=1),
    st.text(min_size=1),
    st.integers(0, 2**31 - 1),
    st.integers(1, 2**63 - 1),
)
def test_round_trip(alias, topic, partition, position):
    source = TopicPartition(topic, partition)
    key, value = encode_source_offset(alias, source, position)
    assert value is not None
    assert json.loads(key)[0] == SOURCE_CONNECTOR
    assert read_source_positions([(0, key, value)], alias).positions == {source: position}


def test_topic_name_has_dots_whatever_the_separator():
    assert offsets_topic("A") == "mm2-offsets.A.internal"
