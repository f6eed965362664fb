"""The doctor without brokers: comparisons, what is printed."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.verbs.doctor import report
from sparkmirror.config.mm1.load import Extras, load_mm1
from sparkmirror.control.coordination.status import FlowState, FlowStatus
from sparkmirror.doctor import examine as examination
from sparkmirror.doctor.compare import CopyTimes, compare_topics, judge_retention, judge_timestamps
from sparkmirror.doctor.examine import check_heartbeats
from sparkmirror.doctor.facts import Pair, SourceFacts
from sparkmirror.doctor.finding import Finding, Level, counts, gathered, listed
from sparkmirror.doctor.network import check_round_trip, explore
from sparkmirror.doctor.quick_check import in_step
from sparkmirror.doctor.rights import _alternatives, check_topics
from sparkmirror.errors import Denied, MirrorError, TooFewBrokers, Unreachable
from sparkmirror.internal_topics.flow_claims import Standby
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.cluster.views import BrokerView, ClusterView, ConfigEntry, TopicView
from sparkmirror.wire.probe import advertised
from sparkmirror.wire.probe.advertised import ClusterPaths
from sparkmirror.wire.probe.broker_path import DNS, LOGIN, TCP, BrokerPath, Step
from tests.unit.config_files import BASE, load, load_flow, write

HOST = "127.0.0.1"


@pytest.mark.parametrize(
    ("state", "host", "standbys", "found"),
    [
        (FlowState.RUNNING, "h1:1", ("h2:2", "h3:3"), "h1:1 mirrors it; standing by: h2:2, h3:3"),
        (FlowState.STARTING, "", (), "a starting process mirrors it"),
        (FlowState.DEAD, "h1:1", ("h2:2",), "nobody; standing by: h2:2"),
        (FlowState.NEVER_RAN, "", (), "nobody"),
    ],
)
def test_all_hosts_of_a_flow_are_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    state: FlowState,
    host: str,
    standbys: tuple[str, ...],
    found: str,
) -> None:
    flow = load_flow(tmp_path, BASE)
    waiting = tuple(Standby(flow.name, one, one, "1", "/mm2.properties", 0) for one in standbys)
    status = FlowStatus(flow.name, state, host=host, standbys=waiting)
    monkeypatch.setattr(examination, "observe_status", lambda *_: status)
    (told,) = examination._mirrors(cast(Cluster, None), flow, 0)
    assert (told.level, told.subject, told.found) == (Level.OK, "flow A->B", found)


def test_a_name_that_only_a_fake_resolver_knows(tmp_path: Path) -> None:
    def fake(host: str, port: int) -> list[tuple[int, str]]:
        if host == "b1":
            return [(int(socket.AF_INET), HOST)]
        raise socket.gaierror(-2, "Name or service not known")

    client = ClusterClient("A", ("b1:1", "b2:1"), "test")
    network = explore(client, timeout_s=2, resolver=fake)
    assert not network.usable
    told = {(one.check, one.level.value): one for one in network.findings}
    assert "Name or service not known" in told["dns", "fail"].found
    assert "b2:1" in told["dns", "fail"].subject
    assert "refused" in told["tcp", "fail"].found


_NO_NAME = Step(DNS, "fail", "does not resolve here (no such name)", "Check the DNS.")
_THERE = BrokerPath("b", 1, (Step(TCP, "ok", "connects"),), ClusterView("id", (), 1))
_NAMELESS = BrokerPath("w1", 9092, (_NO_NAME,))
_NO_LOGIN = BrokerPath("w1", 9092, (Step(TCP, "ok", "connects"), Step(LOGIN, "fail", "refused")))


@pytest.mark.parametrize(
    ("ways", "told"),
    [
        (ClusterPaths((_NAMELESS,), None, ()), None),  # no bootstrap server answers: that may pass
        (ClusterPaths((_THERE,), _THERE, ((1, _NAMELESS), (2, _THERE))), None),
        (ClusterPaths((_THERE,), _THERE, ((1, _NAMELESS), (2, _NO_LOGIN))), None),
        (
            ClusterPaths((_THERE,), _THERE, ((1, _NAMELESS),)),
            "broker 1 advertises w1:9092, which does not",
        ),
        (
            ClusterPaths((_THERE,), _THERE, tuple((node, _NAMELESS) for node in range(1, 6))),
            "; and 2 more.",
        ),
    ],
)
def test_a_cluster_is_no_use_when_none_of_its_brokers_is(
    monkeypatch: pytest.MonkeyPatch, ways: ClusterPaths, told: str | None
) -> None:
    monkeypatch.setattr(advertised, "check_paths", lambda *_, **__: ways)
    reason = advertised.why_unusable(ClusterClient("A", ("b:1",), "test"), 1.0)
    assert (reason is None) is (told is None)
    if told is not None:
        assert told in str(reason)
        assert "advertised.listeners" in str(reason)


# -- comparisons -----------------------------------------------------------------------------------


def configs(values: Mapping[str, str]) -> dict[str, ConfigEntry]:
    return {name: ConfigEntry(value, "DYNAMIC_TOPIC_CONFIG") for name, value in values.items()}


def pair(
    source: Mapping[str, str] | None = None,
    target: Mapping[str, str] | None = None,
    *,
    partitions: int = 2,
    replication: int = 3,
    present: bool = True,
    short: str = "",
    taken: bool = False,
) -> Pair:
    view = TopicView("t", "", 2, 3)
    return Pair(
        "t",
        "A.t",
        view,
        partitions,
        replication,
        present,
        configs(source or {}),
        configs(target or {}),
        TooFewBrokers(short) if short else None,
        taken,
    )


@pytest.mark.parametrize(
    ("one", "brokers", "check", "level", "found"),
    [
        (pair(partitions=1), 3, "partitions", "warn", "1 partition, the source has 2"),
        (pair(partitions=3), 3, "partitions", "warn", "3 partitions, the source has 2"),
        (pair(present=False, short="failed (INVALID_REPLICATION_FACTOR: only 1.)."), 1,
         "replication", "fail",
         "replication.factor is 3, the target has 1 live broker (only 1)"),
        (pair(present=False, short="no brokers.", replication=-1), 1, "replication", "fail",
         "no brokers"),
        (pair(present=False), 2, "replication", "fail",
         "2 live brokers, and whether it takes more could not be asked"),
        (pair(present=False, taken=True), 2, "replication", "warn",
         "replication.factor is 3, 2 brokers respond"),
        (pair(), 2, "replication", "warn", "2 brokers respond"),
        (pair(replication=1), 3, "replication", "warn", "one replica only"),
        (pair(target={"min.insync.replicas": "4"}), 3, "replication", "warn",
         "with 3 replicas: brokers from Kafka 3.7 on treat it as 3"),
        (pair(target={"min.insync.replicas": "2"}), 1, "replication", "fail", "1 replica in sync"),
        (pair({"max.message.bytes": "9"}, {"max.message.bytes": "8"}), 3, "message-size", "warn",
         "is 8 on the target and 9"),
        (pair({"max.message.bytes": "99999999"}), 3, "message-size", "warn", "max.request.size"),
        (pair({"cleanup.policy": "delete"}, {"cleanup.policy": "compact"}), 3, "settings", "warn",
         "cleanup.policy=compact"),
        (pair({"cleanup.policy": "compact, delete"}, {"cleanup.policy": "delete,compact"}), 3,
         "settings", "ok", "no problem"),
        (pair(target={"compression.type": "zstd"}), 3, "settings", "warn", "zstd"),
        (pair({"compression.type": "zstd"}, {"compression.type": "zstd"}), 3, "settings", "ok", ""),
        (pair(target={"message.timestamp.type": "LogAppendTime"}), 3, "settings", "warn",
         "sets its own timestamps"),
    ],
)  # fmt: skip
def test_topics_beside_their_remote_topics(
    tmp_path: Path, one: Pair, brokers: int, check: str, level: str, found: str
) -> None:
    flow = load_flow(tmp_path, "")
    told = {each.check: each for each in compare_topics(flow, [one], brokers)}
    assert told[check].level.value == level
    assert found in told[check].found
    others = {each.level for name, each in told.items() if name != check}
    assert others == {Level.OK}


@pytest.mark.parametrize(("keep", "level"), [(False, "warn"), (True, "fail")])
def test_fewer_partitions_matter_only_to_who_keeps_their_numbers(
    tmp_path: Path, keep: bool, level: str
) -> None:
    consumer = write(tmp_path, "bootstrap.servers=a:1\ngroup.id=g\n", "c")
    producer = write(tmp_path, "bootstrap.servers=b:1\n", "p")
    extras = Extras(keep_partitions=keep)
    (flow,) = load_mm1(consumer, producer, include="t", extras=extras).flows
    told = {each.check: each for each in compare_topics(flow, [pair(partitions=1)], 3)}
    assert told["partitions"].level.value == level
    assert "--keep.partitions" in told["partitions"].do


def test_retention_and_timestamps() -> None:
    now_ms = 10_000_000_000.0
    hour_ms = 3_600_000
    times = {"t": CopyTimes(int(now_ms - hour_ms), int(now_ms))}
    left = {TopicPartition("t", 0): 3_600_000_000}

    def kept(retention_ms: str, rate: float) -> list[str]:
        one = pair({"retention.ms": retention_ms, "cleanup.policy": "delete"})
        found = judge_retention([one], times, left, rate_bytes_s=rate, now_ms=now_ms)
        return [each.level.value for each in found]

    assert kept(str(2 * hour_ms), 1e9) == ["ok"]  # 3.6 s
    assert kept(str(2 * hour_ms), 0.9e6) == ["warn"]  # 67 min: the first records expire meanwhile
    assert kept(str(2 * hour_ms), 0.4e6) == ["fail"]  # 2.5 h: never done
    assert kept("-1", 1.0) == ["ok"]
    unknown = judge_retention([pair()], times, None, rate_bytes_s=1e6, now_ms=now_ms)
    assert [each.level for each in unknown] == [Level.SKIP]
    limits = pair(target={"message.timestamp.before.max.ms": str(hour_ms - 1)})
    (old,) = judge_timestamps([limits], times, now_ms)
    assert old.level is Level.FAIL
    stamped = pair(target={"message.timestamp.before.max.ms": "1",
                           "message.timestamp.type": "LogAppendTime"})  # fmt: skip
    assert [each.level for each in judge_timestamps([stamped], times, now_ms)] == [Level.OK]


def test_partitions_without_a_leader(tmp_path: Path) -> None:
    """What is left of a broker that is down."""

    class Nobody:
        def literal_errors(self, names: list[str]) -> dict[str, MirrorError]:
            raise AssertionError(names)  # what can be seen is not asked for

    topics = {"t": TopicView("t", "", 4, 1, leaderless=(1, 3)), "u": TopicView("u", "", 1, 1)}
    facts = SourceFacts(ClusterView("id", (), 1), topics, {})
    flow = load_flow(tmp_path, "A->B.topics = t, u\n")
    told = {
        one.check: one
        for one in check_topics(
            cast("Inspector", SimpleNamespace(alias="A", cluster=Nobody())), flow, facts
        )
    }
    assert told["leaders"].level is Level.WARN
    assert told["leaders"].found == "no leader: t-1, t-3"
    assert "brokers back" in told["leaders"].do
    assert told["topics"].level is Level.OK


# -- what is printed -------------------------------------------------------------------------------


def test_findings_are_gathered_by_cluster_and_kind() -> None:
    fine = [Finding("tcp", Level.OK, f"cluster A, b{n}", "connect", f"in {n} ms") for n in range(9)]
    bad = [Finding("tcp", Level.FAIL, f"cluster {a}, b", "connect", "no", "x") for a in "AB"]
    joined = gathered([*fine, *bad])
    assert [one.level.value for one in joined] == ["ok", "fail", "fail"]
    assert joined[0].subject.endswith("b5 and 3 more")
    assert joined[0].found == "9 of 9 are fine"
    assert counts(joined) == {"ok": 1, "warn": 0, "fail": 2, "skip": 0}
    assert listed("abc") == "a, b, c"
    found = report({"A->B": joined})
    shown = "\n".join(found.lines())
    assert "✗ FAIL  tcp" in shown
    assert "do: x" in shown
    assert "2 failed, 0 warnings, 0 skipped, 1 ok" in shown
    (flow,) = json.loads(json.dumps(found.document))["flows"]
    assert flow["findings"][1]["do"] == "x"


def test_topics_with_the_same_trouble_are_one_finding() -> None:
    same = [Finding("s", Level.WARN, f"topic t{n}", "look", "small", "grow it") for n in range(9)]
    other = Finding("s", Level.WARN, "topic u", "look", "smaller", "grow it")
    joined = gathered([*same, other])
    assert [one.found for one in joined] == ["small", "smaller"]
    assert (
        joined[0].subject == "topic t0, topic t1, topic t2, topic t3, topic t4, topic t5 and 3 more"
    )


@pytest.mark.parametrize(
    ("lines", "source", "target", "wanted"),
    [
        ("", 3_000, 2_000, 3_000),  # the mirror sets it
        ("sync.topic.configs.enabled = false\n", 3_000, 2_000, 2_000),
        ("config.properties.exclude = max.*\n", 3_000, 2_000, 2_000),
        ("", None, 2_000, None),  # it goes back to a default that nobody has told
    ],
)
def test_a_size_limit_that_the_mirror_keeps_in_step_is_no_trouble(
    tmp_path: Path, lines: str, source: int | None, target: int, wanted: int | None
) -> None:
    name = "max.message.bytes"
    flow = load_flow(tmp_path, f"A->B.topics = t\n{lines}")
    before = pair({name: str(source or 1_000)}, {name: str(target)})
    if source is None:
        default = {name: ConfigEntry("1000", "DEFAULT_CONFIG", is_default=True)}
        before = replace(before, source_configs=default)
    after = in_step(flow, before).target_configs
    assert after.get(name, ConfigEntry(None, "")).value == (str(wanted) if wanted else None)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["mm2.properties", "--include", "t"],
        ["--consumer.config", "c"],
        ["mm2.properties", "--executors"],
        ["mm2.properties", "--master", "spark://h:7077"],
    ],
)
def test_wrong_usage(
    arguments: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "clusters=A,B\n")
    assert main(["doctor", *(str(path) if a == path.name else a for a in arguments)]) == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("", "written to A and mirrored: they show that A is upstream of B"),
        ("emit.heartbeats.enabled=false\n", "none are written to A (emit.heartbeats.enabled), so"),
        ("heartbeats.replication.enabled=false\n", "they are not mirrored (heartbeats.replication"),
    ],
)
def test_heartbeats_are_mentioned(lines: str, told: str, tmp_path: Path) -> None:
    settings = load(tmp_path, BASE + lines)
    (flow,) = settings.flows
    (finding,) = check_heartbeats(flow, settings.heartbeats)
    assert (finding.check, finding.level) == ("heartbeats", Level.OK)
    assert told in finding.found


# --- how far away -------------------------------------------------------------------------------


def _far(trip_ms: float, *configs: dict[str, str]) -> Inspector:
    """A cluster with a broker for each of ``configs``."""
    return cast(
        Inspector,
        SimpleNamespace(
            alias="B",
            round_trips_ms=lambda: {3: trip_ms},
            broker_configs=lambda: dict(enumerate(configs)),
        ),
    )


@pytest.mark.parametrize(
    ("side", "settings", "words"),
    [
        ("source", "A->B.tasks.max=3\n", "at most 84 MB/s from a partition, and"),
        ("target", "", "1.6 MB/s with batches of 16 KiB for each partition, and"),
        ("target", "", "up to 100 MB/s while it is behind: batches that wait are joined"),
        (
            "target",
            "A->B.sparkmirror.link.joining=off\n",
            "at most 1.6 MB/s with batches of 16 KiB for each partition: sparkmirror.link.joining",
        ),
        # Without idempotence one request at a time is in flight.
        ("target", "B.producer.acks=1\nB.producer.enable.idempotence=false\n", "Expect 0.3 MB/s"),
    ],
)
def test_a_cluster_that_is_far_away_is_told_with_what_it_means(
    tmp_path: Path, side: str, settings: str, words: str
) -> None:
    flow = load_flow(tmp_path, BASE + settings)
    (near,) = check_round_trip(_far(4.9), flow, side)
    assert (near.level, near.found, near.do) == (Level.OK, "a round trip takes 4.9 ms", "")
    far, _ = check_round_trip(_far(50.0), flow, side)
    assert (far.level, far.found) == (Level.OK, "a round trip takes 50.0 ms")
    assert far.subject == f"cluster B, the {side}"
    assert words in far.do


SEND, RECEIVE = "socket.send.buffer.bytes", "socket.receive.buffer.bytes"


@pytest.mark.parametrize(
    ("side", "name", "carried"), [("source", SEND, "4.9 MB/s"), ("target", RECEIVE, "2.5 MB/s")]
)
def test_fixed_socket_buffers_of_brokers_that_are_far_away_are_warned_about(
    tmp_path: Path, side: str, name: str, carried: str
) -> None:
    flow = load_flow(tmp_path, BASE + "A->B.tasks.max=3\n")
    free = {SEND: "-1", RECEIVE: "-1"}
    brokers = _far(50.0, free, {**free, name: "102400"}, {**free, name: "204800"})
    _, found = check_round_trip(brokers, flow, side)
    assert (found.check, found.level) == ("socket-buffers", Level.WARN)
    assert found.found.startswith("it is 102,400 bytes on 2 of 3 brokers")
    assert f"some {carried} for each of 3 slots" in found.do
    assert f"Set {name}=-1 on the {side}'s brokers" in found.do


@pytest.mark.parametrize("side", ["source", "target"])
def test_socket_buffers_that_the_kernel_sizes_are_fine(tmp_path: Path, side: str) -> None:
    flow = load_flow(tmp_path, BASE)
    other = {"source": RECEIVE, "target": SEND}[side]
    both = {SEND: "-1", RECEIVE: "-1", other: "102400"}
    _, found = check_round_trip(_far(50.0, both), flow, side)
    assert (found.level, found.do) == (Level.OK, "")


@pytest.mark.parametrize(
    ("side", "key"),
    [("source", "A.consumer.receive.buffer.bytes"), ("target", "B.producer.send.buffer.bytes")],
)
def test_a_socket_buffer_in_the_file_that_is_too_small_for_the_way_is_warned_about(
    tmp_path: Path, side: str, key: str
) -> None:
    """As files have it that were tuned for a cluster nearby."""
    free = {SEND: "-1", RECEIVE: "-1"}
    flow = load_flow(tmp_path, f"{BASE}{key}=65536\n")
    *_, found = check_round_trip(_far(50.0, free), flow, side)
    assert (found.check, found.level) == ("socket-buffers", Level.WARN)
    assert key.split(".", 2)[2] in found.tried
    assert found.found.startswith("it is 65,536 bytes")
    assert "some 1.3 MB/s for each connection" in found.do
    large = load_flow(tmp_path, f"{BASE}{key}=8388608\n")
    assert len(check_round_trip(_far(50.0, free), large, side)) == 2


def test_brokers_that_hide_their_settings_cannot_be_checked(tmp_path: Path) -> None:
    def denied() -> dict[int, dict[str, str]]:
        raise Denied("DescribeConfigs on Cluster is missing")

    cluster = _far(50.0, {})
    cluster.broker_configs = denied  # type: ignore[method-assign]
    _, found = check_round_trip(cluster, load_flow(tmp_path, BASE), "source")
    assert (found.check, found.level) == ("socket-buffers", Level.SKIP)


def test_a_cluster_that_does_not_answer_has_no_round_trip(tmp_path: Path) -> None:
    def silent() -> dict[int, float | None]:
        raise Unreachable("no answer")

    cluster = cast(Inspector, SimpleNamespace(alias="B", round_trips_ms=silent))
    (found,) = check_round_trip(cluster, load_flow(tmp_path, BASE), "target")
    assert (found.level, found.found) == (Level.SKIP, "no answer")


def test_one_broker_that_is_far_away_counts(tmp_path: Path) -> None:
    """Whichever of a cluster's brokers answers first is the nearest one."""
    cluster = _far(0.0, {}, {}, {})
    cluster.round_trips_ms = lambda: {1: 0.4, 2: 50.0, 3: 0.5}  # type: ignore[method-assign]
    found, _ = check_round_trip(cluster, load_flow(tmp_path, BASE), "target")
    assert found.found == "a round trip takes 0.4 to 50.0 ms, the longest one to broker 2"
    assert "1.6 MB/s with batches of 16 KiB" in found.do
    cluster.round_trips_ms = lambda: {1: 0.4, 2: None, 3: None}  # type: ignore[method-assign]
    (found,) = check_round_trip(cluster, load_flow(tmp_path, BASE), "target")
    assert found.found == "a round trip takes 0.4 ms; 2 of 3 brokers do not respond"


def _inspector(
    monkeypatch: pytest.MonkeyPatch, nodes: Iterable[int], answer: Callable[[int], object]
) -> Inspector:
    """``answer`` is called with the node that each request is for."""
    inspector = Inspector(Cluster(ClusterClient("B", ("b:1",), "t")))
    view = ClusterView("", tuple(BrokerView(node, "b", 1, "") for node in nodes), 1)
    monkeypatch.setattr(inspector.cluster, "describe", lambda: view)
    requester = inspector.cluster.requester
    monkeypatch.setattr(requester, "request", lambda *_, node, **__: answer(node))
    return inspector


def test_the_quickest_answer_of_a_few_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first one may have to connect, and a broker may be busy for a moment."""
    took = iter([1.0, 0.5, 0.02, 1.0])
    inspector = _inspector(monkeypatch, [1], lambda _: time.sleep(next(took)))
    assert 20 <= (inspector.round_trips_ms()[1] or 0) < 500


def test_brokers_are_measured_side_by_side_and_silent_ones_have_no_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    meeting = threading.Barrier(3)
    met: set[int] = set()

    def answer(node: int) -> None:
        if node not in met:
            met.add(node)
            meeting.wait(60)
        if node == 2:
            raise Unreachable("no answer")

    found = _inspector(monkeypatch, [1, 2, 3], answer).round_trips_ms()
    assert [node for node, trip_ms in found.items() if trip_ms is None] == [2]
    with pytest.raises(Unreachable, match="no answer"):
        _inspector(monkeypatch, [2], answer).round_trips_ms()
    with pytest.raises(Unreachable, match="no brokers"):
        _inspector(monkeypatch, [], answer).round_trips_ms()


def test_entries_of_a_list_that_are_a_regex_only_together() -> None:
    assert _alternatives(("orders[.](eu", "us)")) == ["orders[.](eu|us)"]
    assert _alternatives(("a|b", "c.*", "")) == ["a", "b", "c.*"]
