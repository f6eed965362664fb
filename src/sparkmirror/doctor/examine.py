"""Runs all checks of one flow, in parallel and within a time limit.

The order is: the networks of both clusters; checks that need only a connection, and the source's
topics; the remote topics; checks that need both. A check that exceeds the limit is reported as
timed out; its thread is abandoned.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import TypeVar

from sparkmirror.control.coordination.status import observe_status
from sparkmirror.control.positions.lag import observe_flow
from sparkmirror.doctor import rights
from sparkmirror.doctor.clocks import check_clock
from sparkmirror.doctor.compare import (
    CopyTimes,
    compare_topics,
    judge_retention,
    judge_timestamps,
)
from sparkmirror.doctor.facts import (
    SourceFacts,
    TargetFacts,
    observe_source,
    observe_target,
    pairs,
)
from sparkmirror.doctor.finding import Finding, Level, at_work, gathered, ok
from sparkmirror.doctor.jobs import at_once
from sparkmirror.doctor.network import Network, check_round_trip, explore, path_key
from sparkmirror.doctor.remote_names import judge_names, look_at_names
from sparkmirror.doctor.rights import Side
from sparkmirror.errors import MirrorError
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.topic_ways import copied_again
from sparkmirror.settings import ClusterClient, FlowSettings, HeartbeatSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.probe.broker_path import Resolver, resolve

__all__ = ["LIMIT_S", "Examination", "check_heartbeats", "examine"]

LIMIT_S = 13.0
RATE_BYTES_S = 50e6
_NETWORK_S = 6.0
_REQUEST_MS_MAX = 4_000

T = TypeVar("T")
Check = Callable[[], list[Finding]]


@dataclass(frozen=True, slots=True)
class Examination:
    """Parameters of an examination.

    ``limit_s``: time limit for all checks. ``rate_bytes_s``: assumed rate of a copy. ``now_s``: our
    clock (epoch seconds).
    """

    limit_s: float = LIMIT_S
    rate_bytes_s: float = RATE_BYTES_S
    resolver: Resolver = resolve
    now_s: Callable[[], float] = time.time


def examine(flow: FlowSettings, how: Examination | None = None) -> list[Finding]:
    """Run all checks on ``flow``. Changes nothing, and does not raise `MirrorError`."""
    return _FlowExamination(flow, how or Examination()).examined()


def check_heartbeats(flow: FlowSettings, heartbeats: Iterable[HeartbeatSettings]) -> list[Finding]:
    """Check whether heartbeats will show that the flow works. Pure.

    Heartbeats are written to the source, and the flow mirrors them to the target.
    """
    if flow.mode is MirrorMode.MM1:
        return []
    source, target = flow.source.alias, flow.target.alias
    written = any(one.target.alias == source for one in heartbeats)
    off = [] if written else [f"none are written to {source} (emit.heartbeats.enabled)"]
    if not flow.topics.heartbeats_replication_enabled:
        off.append("they are not mirrored (heartbeats.replication.enabled)")
    if off:
        found = (
            f"{' and '.join(off)}, so sparkmirror clusters and MirrorClient cannot tell that "
            f"{source} is upstream of {target}"
        )
    else:
        found = f"written to {source} and mirrored: they show that {source} is upstream of {target}"
    return [ok("heartbeats", f"flow {flow.name}", "read the file", found)]


class _FlowExamination:
    def __init__(self, flow: FlowSettings, how: Examination) -> None:
        self.flow = flow
        source, target = flow.source, flow.target
        reader = flow.checkpoints.client if flow.checkpoints.enabled else None
        # Admin, data, syncs and checkpoints, as in `Side`.
        self.clients = {
            "source": (flow.source_admin, source, self._syncs("source", source), source),
            "target": (
                flow.target_admin,
                target,
                self._syncs("target", target),
                reader or target,
            ),
        }
        self.how = how
        self.deadline = time.monotonic() + how.limit_s
        self.findings: list[Finding] = []

    def examined(self) -> list[Finding]:
        networks = self._networks()
        usable = {way: network.usable for way, network in networks.items()}
        source, target = self._side("source", usable), self._side("target", usable)
        try:
            self._check_clusters(source, target)
        finally:
            for side in filter(None, (source, target)):
                inspectors = {side.admin, side.data, side.syncs, side.checkpoints}
                for one in filter(None, inspectors):
                    # Closed on a thread, because an abandoned check may hold its lock.
                    threading.Thread(target=one.cluster.close, daemon=True).start()
        return self.findings

    def _syncs(self, side: str, otherwise: ClusterClient) -> ClusterClient:
        syncs = self.flow.offset_syncs
        return self.flow.syncs_writer if syncs.enabled and syncs.location == side else otherwise

    # -- steps -----------------------------------------------------------------------------

    def _networks(self) -> dict[str, Network]:
        """The result of `explore` for each distinct way to a cluster."""
        clients: dict[str, ClusterClient] = {}
        for client in chain.from_iterable(self.clients.values()):
            clients.setdefault(path_key(client), client)
        found = at_once(
            {
                way: partial(explore, client, timeout_s=_NETWORK_S, resolver=self.how.resolver)
                for way, client in clients.items()
            },
            self.deadline,
        )
        networks = {way: one for way, one in found.items() if isinstance(one, Network)}
        for way, client in clients.items():
            if way not in networks:
                self._late("network", f"cluster {client.alias}")
        for network in networks.values():
            self.findings += gathered(network.findings)
        self._clusters(networks)
        return networks

    def _clusters(self, networks: Mapping[str, Network]) -> None:
        views = [
            networks[way].view
            for way in (path_key(self.flow.source), path_key(self.flow.target))
            if way in networks
        ]
        ids = [view.cluster_id for view in views if view is not None and view.cluster_id]
        if len(ids) < 2:
            return
        tried, subject = "compare the cluster ids", f"flow {self.flow.name}"
        if ids[0] != ids[1]:
            self.findings.append(ok("clusters", subject, tried, "two clusters"))
            return
        what = f"both sides are one cluster ({ids[0]})"
        do = "Check both bootstrap.servers."
        level = Level.WARN
        again = copied_again(self.flow.naming) if self.flow.topics.renamed else None
        if again is not None:
            level = Level.FAIL
            what += f", and remote topics would be mirrored again: {' becomes '.join(again)}"
            do = "Exclude the names that sparkmirror.topics.map or RegexRouter gives."
        elif not self.flow.topics.renamed and FlowTopics(self.flow).remote("topic") == "topic":
            level = Level.FAIL
            what += ", and topics keep their names: they would be mirrored into themselves"
        self.findings.append(Finding("clusters", level, subject, tried, what, do))

    def _side(self, side: str, usable: Mapping[str, bool]) -> Side | None:
        """The inspectors of a cluster; None, and a finding, unless its clients can use it.

        Records are mirrored without the one that reads checkpoints, so it alone may be missing.
        """
        clients = self.clients[side]
        admin, data, syncs, checkpoints = map(path_key, clients)
        if all(usable.get(way, False) for way in (admin, data, syncs)):
            inspectors: dict[str, Inspector] = {}
            for client in clients:
                way = path_key(client)
                if usable.get(way, False) and way not in inspectors:
                    bounded = min(_REQUEST_MS_MAX, client.request_timeout_ms)
                    cluster = Cluster(replace(client, request_timeout_ms=bounded))
                    inspectors[way] = Inspector(cluster)
            vital = inspectors[admin], inspectors[data], inspectors[syncs]
            return Side(*vital, inspectors.get(checkpoints))
        what = "no other check was run, because no advertised broker can be used from here"
        do = "Repair the network or the login first, then run the command again."
        subject = f"cluster {clients[0].alias}"
        self.findings.append(Finding("cluster", Level.SKIP, subject, "check it", what, do))
        return None

    def _check_clusters(self, source: Side | None, target: Side | None) -> None:
        flow = self.flow
        keeper = source if flow.mode is MirrorMode.MM1 else target
        first: dict[str, Check] = {}
        for side, one in (("source", source), ("target", target)):
            if one is not None:
                first[f"clock {side}"] = partial(check_clock, one.admin, self.how.now_s)
                first[f"round-trip {side}"] = partial(check_round_trip, one.admin, flow, side)
                first[f"group-topics {side}"] = partial(rights.check_group_topics, one, flow, side)
        if keeper is not None:
            first["group"] = partial(rights.check_group, keeper.data, flow)
        if target is not None:
            first["internal-topics"] = partial(
                rights.check_internal, target.admin, target.data, flow
            )
            first["transactions"] = partial(rights.check_transactions, target.data, flow)
            first["auto-create"] = partial(_auto_create, target.admin)
            now_ms = int(self.how.now_s() * 1000)
            first["mirrors"] = partial(_mirrors, target.data.cluster, flow, now_ms)
        topics: SourceFacts | None = None
        if source is not None:
            observe = partial(observe_source, source.admin.cluster, flow)
            topics = self._fact("topics", observe, first)
        else:
            self._fact("", None, first)
        if source is None or topics is None:
            return
        then: dict[str, Check] = {
            "topics": partial(rights.check_topics, source.admin, flow, topics),
            "read": partial(rights.check_read, source.data, flow, topics),
            "java": partial(rights.check_java, source.data, flow, topics),
        }
        if target is None:
            self._fact("", None, then)
            return
        if flow.keeps_names:
            look = partial(look_at_names, target.admin.cluster, flow, topics)
            found = self._fact("topics-map", look, {})
            if found is None:
                self._fact("", None, then)
                return
            self.findings += judge_names(flow, topics, found)
            topics = topics.without(found)
        then["write"] = partial(rights.check_write, target.data, flow, topics)
        then["commit"] = partial(rights.check_group_offsets, target.admin, flow, topics)
        there = partial(observe_target, target.admin, flow, topics)
        remote = self._fact("remote topics", there, then)
        if remote is not None:
            self._fact("", None, {
                "create": partial(rights.check_create, target.admin, flow, remote),
                "topics and settings": partial(self._compare, topics, remote),
                "times": partial(self._times, source, target, topics, remote),
            })  # fmt: skip

    def _fact(
        self, name: str, observe: Callable[[], T] | None, checks: Mapping[str, Check]
    ) -> T | None:
        """Run ``checks`` and ``observe`` in parallel; returns the result of ``observe``, or None.

        A failure of ``observe`` becomes a FAIL finding, because other checks need its result.
        """
        jobs: dict[str, Callable[[], object]] = dict(checks)
        if observe is not None:
            jobs[name] = observe
        results = at_once(jobs, self.deadline)
        fact: T | None = None
        for job in jobs:
            check = job.partition(" ")[0]
            subject = f"flow {self.flow.name}"
            if job not in results:
                self._late(check, subject)
                continue
            result = results[job]
            if isinstance(result, MirrorError):
                vital = job == name
                tried = "send requests to the cluster"
                level = at_work(check, result.where or subject, tried, result)
                self.findings.append(replace(level, level=Level.FAIL) if vital else level)
            elif job == name and observe is not None:
                fact = result  # type: ignore[assignment]
            else:
                self.findings += result  # type: ignore[arg-type]
        return fact

    def _late(self, check: str, subject: str) -> None:
        what = f"timed out: all checks together may take {self.how.limit_s:.0f} s"
        do = "Check the other findings first, then the brokers' load."
        self.findings.append(Finding(check, Level.FAIL, subject, "wait for the result", what, do))

    # -- checks ----------------------------------------------------------------------------

    def _compare(self, source: SourceFacts, target: TargetFacts) -> list[Finding]:
        both = list(pairs(self.flow, source, target))
        return compare_topics(self.flow, both, len(target.cluster.brokers))

    def _times(
        self, source: Side, target: Side, topics: SourceFacts, remote: TargetFacts
    ) -> list[Finding]:
        both = list(pairs(self.flow, topics, remote))
        now_ms = time.time() * 1000
        reader, writer = source.data, target.data
        keeper = reader if self.flow.mode is MirrorMode.MM1 else writer
        started = keeper.has_groups()
        rows = observe_flow(reader.cluster, writer.cluster, self.flow, started=started).partitions
        oldest: dict[str, float] = {}
        for row in rows:
            if row.records and row.seconds is not None:
                oldest[row.topic] = max(oldest.get(row.topic, 0.0), row.seconds)
        partitions = topics.partitions()
        newest: dict[str, int] = {}
        with contextlib.suppress(MirrorError):  # brokers before Kafka 3.0 (KIP-734)
            for tp, time_ms in reader.newest_times_ms(partitions).items():
                newest[tp.topic] = max(newest.get(tp.topic, 0), time_ms)
        times = {
            name: CopyTimes(
                int(now_ms - oldest[name] * 1000) if name in oldest else None, newest.get(name)
            )
            for name in topics.topics
        }
        sizes: dict[TopicPartition, int] | None = None
        with contextlib.suppress(MirrorError):
            sizes = source.admin.sizes(partitions)
        left = None
        if sizes is not None:
            starts = reader.cluster.earliest_offsets(partitions)
            left = {}
            for row in rows:
                tp = TopicPartition(row.topic, row.partition)
                held = (row.end or 0) - starts.get(tp, 0)
                part = (row.records or 0) / held if held > 0 else 0.0
                left[tp] = int(sizes.get(tp, 0) * min(1.0, part))
        return [
            *judge_timestamps(both, times, now_ms),
            *judge_retention(both, times, left, rate_bytes_s=self.how.rate_bytes_s, now_ms=now_ms),
        ]


def _mirrors(target: Cluster, flow: FlowSettings, now_ms: int) -> list[Finding]:
    """Report which process mirrors the flow now, and which are standbys."""
    check, subject = "mirrors", f"flow {flow.name}"
    tried = "read the reports in the control topic"
    try:
        status = observe_status(target, flow, now_ms)
    except MirrorError as error:
        return [at_work(check, subject, tried, error)]
    found = f"{status.host or 'a starting process'} mirrors it" if status.state.alive else "nobody"
    if status.standbys:
        found += "; standing by: " + ", ".join(one.host for one in status.standbys)
    return [ok(check, subject, tried, found)]


def _auto_create(target: Inspector) -> list[Finding]:
    check, subject = "auto-create", f"cluster {target.alias}"
    tried = "read auto.create.topics.enable of the brokers"
    try:
        configs = target.broker_configs()
    except MirrorError as error:
        return [at_work(check, subject, tried, error)]
    on = [node for node, one in configs.items() if one.get("auto.create.topics.enable") == "true"]
    if not on:
        return [ok(check, subject, tried, "it is false")]
    found = f"it is true on {len(on)} of {len(configs)} brokers"
    do = (
        "Set auto.create.topics.enable=false: a consumer or producer that asks for a remote topic "
        "before the mirror has created it would get one with the broker's defaults."
    )
    return [Finding(check, Level.WARN, subject, tried, found, do)]
