"""The rows that say which remote topic comes from which topic."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.internal_topics.connect_offsets import (
    SOURCE_CONNECTOR,
    encode_mapped_offset,
    encode_source_offset,
    read_source_positions,
)
from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind, encode_gap
from sparkmirror.internal_topics.remote_names import (
    REMOTE_NAMES_TOPIC,
    RemoteName,
    collect_remote_names,
    decode_remote_name,
    encode_remote_name,
    origins,
)
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import decode_run, encode_forgotten_run, encode_run
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import TopicFilter, make_policy
from sparkmirror.settings import PolicySettings, TopicSettings

ROW = RemoteName("tenant-eu.t", "A", "A", "eu.t")


def test_no_mirror_carries_the_topic_on() -> None:
    assert make_policy(PolicySettings(), "A").is_internal_topic(REMOTE_NAMES_TOPIC)
    assert not TopicFilter((".*",), TopicSettings().exclude).accepts(REMOTE_NAMES_TOPIC)


def test_a_row_as_it_is_written() -> None:
    assert encode_remote_name(ROW) == (
        b'["tenant-eu.t","A"]',
        b'{"v":1,"cluster":"A","topic":"eu.t"}',
    )


texts = st.text(min_size=1, max_size=8)


@given(st.builds(RemoteName, texts, texts, texts, texts, st.booleans()))
def test_rows_come_back_as_they_went(row: RemoteName) -> None:
    assert decode_remote_name(*encode_remote_name(row)) == row


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (None, b"{}"),
        (b"x", b'{"v":1,"cluster":"A","topic":"t"}'),
        (b'["r"]', b'{"v":1,"cluster":"A","topic":"t"}'),
        (b'["r","m","x"]', b'{"v":1,"cluster":"A","topic":"t"}'),
        (b'["r",1]', b'{"v":1,"cluster":"A","topic":"t"}'),
        (b'["","m"]', b'{"v":1,"cluster":"A","topic":"t"}'),
        (b'["r","m"]', b'{"v":2,"cluster":"A","topic":"t"}'),
        (b'["r","m"]', b'{"cluster":"A","topic":"t"}'),
        (b'["r","m"]', b'{"v":1,"cluster":"A"}'),
        (b'["r","m"]', b'{"v":1,"cluster":["A"],"topic":"t"}'),
        (b'["r","m"]', b"null"),
        (b'["r","m"]', b""),
        (b'["r","m"]', None),
        (b"[" * 100_000, b"{}"),
        (b"\xff", b"{}"),
        (b"[1e400,2]", b"{}"),
    ],
)
def test_what_is_no_row(key: bytes | None, value: bytes | None) -> None:
    assert decode_remote_name(key, value) is None


@given(st.binary(max_size=40), st.binary(max_size=40))
def test_garbage_is_no_row_and_no_error(key: bytes, value: bytes) -> None:
    assert decode_remote_name(key, value) is None


def test_unknown_fields_do_no_harm() -> None:
    key, value = encode_remote_name(ROW)
    assert decode_remote_name(key, json.dumps({**json.loads(value), "new": [1]}).encode()) == ROW


def test_the_newest_row_of_a_key_counts_and_stands_where_it_was_written() -> None:
    other = RemoteName("tenant-eu.t", "B", "B", "t")
    past = RemoteName("tenant-eu.t", "A", "A", "eu.t", past=True)
    key, value = encode_remote_name(ROW)
    records: list[tuple[bytes | None, bytes | None]] = [(key, value), encode_remote_name(other)]
    assert collect_remote_names(records) == (ROW, other)
    assert collect_remote_names([*records, (key, b"garbage"), (None, value)]) == (ROW, other)
    assert collect_remote_names([*records, encode_remote_name(past)]) == (other, past)
    assert collect_remote_names([*records, (key, None)]) == (other,)


def test_what_a_topic_is_a_copy_of() -> None:
    other = RemoteName("tenant-eu.t", "B", "B", "t")
    past = RemoteName("tenant-eu.t", "A", "A", "eu.t", past=True)
    assert origins([ROW, other]) == {"tenant-eu.t": ROW}
    assert origins([past, other]) == {"tenant-eu.t": other}
    assert origins([other, past]) == {"tenant-eu.t": other}
    assert origins([past]) == {"tenant-eu.t": past}


# --- beside it: what else is told by the name at the target -------------------------------------

T = TopicPartition("eu.t", 3)


def test_runs_of_a_topic_under_another_name_are_rows_of_their_own() -> None:
    run = Run(5, 7, 2)
    plain, mapped = encode_run(T, run, topic_id="id"), encode_run(
        T, run, topic_id="id", remote="x"
    )  # fmt: skip
    assert plain == (b'["eu.t",3,5,"id"]', b"[7,2]")
    assert mapped == (b'["eu.t",3,5,"id","x"]', b"[7,2]")
    row = decode_run(*mapped)
    assert row is not None
    assert (row.run, row.topic_id, row.remote) == (run, "id", "x")
    assert encode_run(T, run, remote="x")[0] == b'["eu.t",3,5,"","x"]'
    gone = decode_run(*encode_forgotten_run(T, 5, topic_id="id", remote="x"))
    assert gone is not None
    assert (gone.run, gone.topic_id, gone.remote) == (None, "id", "x")
    assert decode_run(b'["eu.t",3,5,"id","x","y"]', b"[7,2]") is None
    assert decode_run(b'["eu.t",3,5,"id",1]', b"[7,2]") is None


def test_connects_positions_are_those_of_the_copy_under_the_policys_name() -> None:
    records = [
        (0, *encode_source_offset("A", T, 10)),
        (0, *encode_mapped_offset("A", T, "x", 4)),
        (0, *encode_mapped_offset("A", T, "y", 6)),
        (0, *encode_mapped_offset("C", T, "x", 9)),
    ]
    found = read_source_positions(records, "A")
    assert found.positions == {T: 10}
    assert found.mapped == {(T, "x"): 4, (T, "y"): 6}
    assert found.skipped == 0
    later = read_source_positions([*records, (0, *encode_mapped_offset("A", T, "x", 0))], "A")
    assert later.mapped == {(T, "y"): 6}


def test_a_mapped_position_is_no_entry_of_javas_connector() -> None:
    key, value = encode_mapped_offset("A", T, "x", 4)
    name, fields = json.loads(key)
    assert name != SOURCE_CONNECTOR
    assert fields == {"cluster": "A", "partition": 3, "remote": "x", "source": "eu.t"}
    assert value == b'{"offset":3}'


@pytest.mark.parametrize(
    "fields",
    [
        {"cluster": "A", "partition": 3, "source": "t"},
        {"cluster": "A", "partition": -1, "source": "t", "remote": "x"},
        {"cluster": 1, "partition": 3, "source": "t", "remote": "x"},
    ],
)
def test_broken_mapped_positions_are_counted(fields: dict[str, object]) -> None:
    name = json.loads(encode_mapped_offset("A", T, "x", 4)[0])[0]
    key = json.dumps([name, fields]).encode()
    found = read_source_positions([(0, key, b'{"offset":3}')], "A")
    assert (found.mapped, found.positions, found.skipped) == ({}, {}, 1)
    good = encode_mapped_offset("A", T, "x", 4)[0]
    assert read_source_positions([(0, good, b'{"offset":"3"}')], "A").skipped == 1


def test_gaps_of_two_copies_of_a_topic_are_two_records() -> None:
    gap = Gap(
        *("A->B", T, "x", GapKind.DELETED, GapAction.CONTINUED),
        *(0, 4, 5, 5, "OFFSETS_DELETED", "gone", 1),
    )
    assert encode_gap(gap)[0] == b'["A->B","eu.t",3,"deleted",0]'
    assert encode_gap(gap, mapped=True)[0] == b'["A->B","eu.t",3,"deleted",0,"x"]'
    assert encode_gap(gap)[1] == encode_gap(gap, mapped=True)[1]
