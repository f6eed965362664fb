"""What `benchmarks.control.leaderless` reads from the requests that a mirror sends."""

from __future__ import annotations

from benchmarks.control.leaderless import Asked, Turn, metadata_requests, table
from kafka.protocol.metadata import ApiVersionsRequest, MetadataRequest

OURS = "A->B|MirrorSourceConnector|replication-consumer"


def _sent(request: object, version: int, client: str = OURS) -> bytes:
    request.with_header(correlation_id=1, client_id=client)  # type: ignore[attr-defined]
    return bytes(request.encode(version=version, header=True, framed=True))  # type: ignore[attr-defined]


def _metadata(*names: str) -> MetadataRequest:
    row = MetadataRequest.MetadataRequestTopic
    topics = [row(name=name) for name in names] or None
    return MetadataRequest(topics=topics, allow_auto_topic_creation=False)


def test_each_metadata_request_of_the_mirror_counts_with_its_topics() -> None:
    stream = _sent(ApiVersionsRequest(), 0)
    for version, names in ((12, ["lost"]), (9, ["a", "b", "c"]), (13, ["a"]), (13, [])):
        stream += _sent(_metadata(*names), version)
    assert list(metadata_requests(stream, b"A->B|")) == [
        Asked(True, ("lost",)),
        Asked(True, ("a", "b", "c")),
        Asked(False, ("a",)),
        Asked(False, None),
    ]


def test_other_clients_and_a_cut_request_count_as_nothing() -> None:
    assert not list(metadata_requests(_sent(_metadata("lost"), 12, "rdkafka"), b"A->B|"))
    whole = _sent(_metadata("lost"), 12)
    for end in (9, -1):
        assert list(metadata_requests(whole + whole[:end], b"A->B|")) == [Asked(True, ("lost",))]
    assert not list(metadata_requests(b"\0\0\0\4abcd" + whole, b"A->B|"))


def test_the_table_has_requests_by_minute_and_slot() -> None:
    asked = [Asked(True, ("lost",))] * 48 + [Asked(True, ("a", "lost"))] * 3
    asked += [Asked(True, ("a",)), *[Asked(False, ("lost",))] * 6]
    quantiles = {"p50": 5.04, "p90": 7.0, "p99": 18.0, "max": 40.0, "count": 6000}
    page = table([Turn("one topic has none", quantiles, asked, 2.0), Turn("nothing", {}, [], 1.0)])
    assert page.splitlines()[2:] == [
        "| one topic has none | 5.0 | 7.0 | 18.0 | 40.0 | 6,000 | 13.0 | 12.0 | 3.0 |",
        "| nothing | nan | nan | nan | nan | 0 | 0.0 | 0.0 | 0.0 |",
    ]
