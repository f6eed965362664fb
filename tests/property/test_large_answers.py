"""Our decoders of large answers say what kafka-python's say, and refuse what makes no sense."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.admin import (
    DescribeAclsRequest,
    DescribeAclsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
)
from kafka.protocol.metadata import MetadataRequest

from sparkmirror.wire.admin.acl_answers import AclRows, all_topic_acls, read_acls
from sparkmirror.wire.admin.config_decoder import (
    ConfigReader,
    TopicConfigs,
    describe_configs_request,
)
from sparkmirror.wire.admin.raw_responses import DecodeCache, RawResponse, undecoded
from sparkmirror.wire.cluster.views import AclBinding
from sparkmirror.wire.net.kafka_python_limits import UNREADABLE

TEXTS = st.text(max_size=12) | st.sampled_from(["", "käse", "retention.ms", "x" * 200])
SOURCES = {
    1: "DYNAMIC_TOPIC_CONFIG",
    2: "DYNAMIC_BROKER_CONFIG",
    3: "DYNAMIC_DEFAULT_BROKER_CONFIG",
    4: "STATIC_BROKER_CONFIG",
    5: "DEFAULT_CONFIG",
}

_Result = DescribeConfigsResponse.DescribeConfigsResult
_Config = _Result.DescribeConfigsResourceResult
_Resource = DescribeAclsResponse.DescribeAclsResource

SYNONYMS = st.builds(_Config.DescribeConfigsSynonym, name=TEXTS, value=TEXTS, source=st.just(5))


@st.composite
def configs(draw: st.DrawFn) -> object:
    """One setting; few different ones, so that topics have some in common."""
    return _Config(
        name=draw(st.sampled_from(["retention.ms", "cleanup.policy", "a", "ab"])),
        value=draw(st.none() | st.sampled_from(["1", "12", "delete", ""])),
        read_only=draw(st.booleans()),
        config_source=draw(st.sampled_from([1, 4, 5, 77])),
        is_default=draw(st.booleans()),
        is_sensitive=draw(st.booleans()),
        synonyms=draw(st.lists(SYNONYMS, max_size=2)),
        config_type=2,
        documentation=draw(st.none() | TEXTS),
    )


RESULTS = st.lists(
    st.builds(
        _Result,
        error_code=st.sampled_from([0, 0, 3, 29]),
        error_message=st.none() | TEXTS,
        resource_type=st.just(2),
        resource_name=TEXTS,
        configs=st.lists(configs(), max_size=4),
    ),
    max_size=6,
)
RESOURCES = st.lists(
    st.builds(
        _Resource,
        resource_type=st.just(2),
        resource_name=TEXTS,
        pattern_type=st.sampled_from([3, 4, 99]),
        acls=st.lists(
            st.builds(
                _Resource.AclDescription,
                principal=TEXTS,
                host=TEXTS,
                operation=st.sampled_from([2, 3, 4, 99]),
                permission_type=st.sampled_from([2, 3]),
            ),
            max_size=3,
        ),
    ),
    max_size=4,
)


def config_answer(rows: list[object], version: int) -> RawResponse:
    """What a broker says."""
    response = DescribeConfigsResponse(throttle_time_ms=7, results=rows)
    return RawResponse(version, bytes(response.encode(version=version)))


def acl_answer(rows: list[object], version: int, code: int = 0) -> RawResponse:
    """What a broker says."""
    response = DescribeAclsResponse(
        throttle_time_ms=7, error_code=code, error_message=None, resources=rows
    )
    return RawResponse(version, bytes(response.encode(version=version)))


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(0, marks=pytest.mark.more),
        pytest.param(1, marks=pytest.mark.more),
        pytest.param(2, marks=pytest.mark.more),
        pytest.param(3, marks=pytest.mark.more),
        4,
    ],
)
@settings(deadline=None)
@given(several=st.lists(RESULTS, min_size=1, max_size=3))
def test_configs_are_read_as_kafka_python_reads_them(version: int, several: list[list]) -> None:
    reader = ConfigReader()  # one for all answers, as in a cluster
    for rows in several:
        answer = config_answer(rows, version)
        expected = DescribeConfigsResponse[version].decode(answer.data)
        found = reader.read(answer)
        assert answer.throttle_time_ms == 7
        assert [(one.topic, one.error_code, one.error_message) for one in found] == [
            (row.resource_name, row.error_code, row.error_message) for row in expected.results
        ]
        for one, row in zip(found, expected.results, strict=True):
            assert {
                name: (entry.value, entry.source, entry.read_only, entry.sensitive)
                for name, entry in one.configs.items()
            } == {
                config.name: (
                    config.value,
                    SOURCES.get(
                        config.config_source if version else 5 if config.is_default else 1,
                        "UNKNOWN",
                    ),
                    config.read_only,
                    config.is_sensitive,
                )
                for config in row.configs
            }


@pytest.mark.parametrize(
    "version", [*(pytest.param(version, marks=pytest.mark.more) for version in range(3)), 3]
)
@settings(deadline=None)
@given(rows=RESOURCES)
def test_acls_are_read_as_kafka_python_reads_them(version: int, rows: list) -> None:
    answer = acl_answer(rows, version)
    expected = DescribeAclsResponse[version].decode(answer.data)
    patterns, permissions = {3: "LITERAL", 4: "PREFIXED"}, {2: "DENY", 3: "ALLOW"}
    operations = {2: "ALL", 3: "READ", 4: "WRITE"}
    assert read_acls(answer).bindings == tuple(
        sorted(
            AclBinding(
                "TOPIC",
                resource.resource_name,
                patterns.get(resource.pattern_type, "UNKNOWN"),
                acl.principal,
                acl.host,
                operations.get(acl.operation, "UNKNOWN"),
                permissions[acl.permission_type],
            )
            for resource in expected.resources
            for acl in resource.acls
        )
    )


@settings(deadline=None)
@given(results=RESULTS, resources=RESOURCES, data=st.data())
def test_a_broken_answer_is_read_or_refused(results: list, resources: list, data: st.DataObject):
    for answer, read in (
        (config_answer(results, data.draw(st.integers(0, 4))), ConfigReader().read),
        (acl_answer(resources, data.draw(st.integers(0, 3))), read_acls),
    ):
        raw = bytearray(answer.data)
        for _ in range(data.draw(st.integers(0, 3))):
            raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
        cut = bytes(raw[: data.draw(st.integers(4, len(raw)))])
        try:
            read(RawResponse(answer.version, cut))
        except UNREADABLE:
            continue


def test_an_answer_that_ends_early_or_counts_too_much_is_refused() -> None:
    row = _Result(error_code=0, error_message=None, resource_type=2, resource_name="t", configs=[])
    whole = config_answer([row], 4)
    for size in range(4, len(whole.data)):
        with pytest.raises(UNREADABLE):
            ConfigReader().read(RawResponse(4, whole.data[:size]))
    for data in (
        b"\0\0\0\0\xff\xff\xff\xff\x0f",  # 4 billion topics
        b"\0\0\0\0\xff\xff\xff\xff\xff\xff",  # a number without end
    ):
        with pytest.raises(UNREADABLE):
            ConfigReader().read(RawResponse(4, data))


def test_topics_with_the_same_configs_share_them_from_answer_to_answer() -> None:
    def rows(value: str) -> list[TopicConfigs]:
        config = _Config(
            name="retention.ms", value=value, read_only=False, config_source=1,
            is_sensitive=False, synonyms=[], config_type=5, documentation=None,
        )  # fmt: skip
        results = [
            _Result(error_code=0, error_message=None, resource_type=2, resource_name=name,
                    configs=[config])
            for name in ("a", "b")
        ]  # fmt: skip
        return reader.read(config_answer(results, 4))

    reader = ConfigReader()
    first, changed, again = rows("1"), rows("2"), rows("1")
    assert first[0].configs is first[1].configs is again[1].configs
    assert changed[0].configs["retention.ms"].value == "2"


def test_an_answer_like_the_last_ones_is_not_read_again() -> None:
    reader = DecodeCache(read_acls, responses_max=2)
    one, two, three = (acl_answer([], 3, code) for code in (0, 54, 31))
    first = reader.read(one)
    assert first == AclRows(0, None, ())
    assert reader.read(two).error_code == 54
    assert reader.read(acl_answer([], 3)) is first
    reader.read(three)
    assert reader.read(two) is not None
    assert reader.read(one) is not first, "it had been forgotten"
    assert reader.read(RawResponse(2, one.data)) is not reader.read(one), (
        "other versions, other bytes"
    )


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda: describe_configs_request(["t"]), DescribeConfigsRequest),
        (all_topic_acls, DescribeAclsRequest),
        (lambda: undecoded(MetadataRequest, throttles_from=3)(topics=None), MetadataRequest),
    ],
)
def test_a_request_without_decoding_is_the_same_request(ours, theirs) -> None:
    message = ours()
    assert isinstance(message, theirs)
    message.API_VERSION = 1
    message.with_header(correlation_id=5, client_id="c")
    known = theirs(**{name: getattr(message, name) for name in message.to_dict()})
    known.API_VERSION = 1
    known.with_header(correlation_id=5, client_id="c")
    assert message.encode(header=True, framed=True) == known.encode(header=True, framed=True)
    raw = message.raw_response(1, b"\0\0\0\7rest")
    assert (raw.version, raw.data) == (1, b"\0\0\0\7rest")


def test_only_versions_with_a_throttle_time_have_one() -> None:
    assert RawResponse(2, b"\0\0\0\1", throttles_from=3).throttle_time_ms == 0
    assert RawResponse(3, b"\0\0\0\1", throttles_from=3).throttle_time_ms == 1
