"""A flow with its groups on plain dictionaries instead of clusters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

from sparkmirror.control.groups.job import GroupClusters, GroupsJob
from sparkmirror.errors import ClusterError, Denied, MirrorError, TooFewBrokers, TopicError
from sparkmirror.internal_topics.mm2_records import decode_checkpoint, encode_offset_sync
from sparkmirror.internal_topics.run_map import Run
from sparkmirror.internal_topics.runs import encode_run
from sparkmirror.model import TopicPartition
from sparkmirror.settings import CheckpointSettings, ClusterClient, FlowSettings, TopicSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import (
    BrokerView,
    ClusterView,
    Committed,
    GroupMember,
    GroupView,
    NewTopic,
    TopicOutcome,
    TopicView,
)

A0, A1, X0 = TopicPartition("orders", 0), TopicPartition("orders", 1), TopicPartition("secret", 0)
R0, R1 = TopicPartition("A.orders", 0), TopicPartition("A.orders", 1)


def client_of(alias: str) -> ClusterClient:
    return ClusterClient(alias, ("x:1",), "c")


def flow_of(**changes: Any) -> FlowSettings:
    settings: dict[str, Any] = {
        "topics": TopicSettings(exclude=("secret",)),
        "checkpoints": CheckpointSettings(enabled=True, sync_enabled=True),
        **changes,
    }
    a, b = client_of("A"), client_of("B")
    return FlowSettings(source=a, target=b, source_admin=a, target_admin=b, **settings)


class FakeCluster:
    """The few calls of `Cluster` that groups need, on plain dictionaries."""

    def __init__(self) -> None:
        self.alias = "B"
        self.states: dict[str, str] = {}
        self.offsets: dict[str, dict[TopicPartition, Committed] | MirrorError] = {}
        self.refused: dict[str, MirrorError] = {}
        self.commits: dict[str, Mapping[TopicPartition, tuple[int, str]]] = {}
        self.logs: dict[str, list[tuple[bytes, bytes | None]]] = {}
        self.times: list[int | None] = []
        self.unreadable: set[str] = set()
        self.read_hooks: dict[str, Callable[[], None]] = {}
        self.created: list[NewTopic] = []
        self.trouble: MirrorError | None = None
        self.silent: ClusterError | None = None  # of one broker; the others tell ``states``

    def groups(self, missed: Callable[[ClusterError], None] | None = None) -> dict[str, GroupView]:
        if self.trouble is not None:
            raise self.trouble
        if self.silent is not None:
            if missed is None:
                raise self.silent
            missed(self.silent)
        return {name: GroupView(name, state) for name, state in self.states.items()}

    def group_members(self, group: str) -> tuple[GroupMember, ...]:
        return (GroupMember("c", "h"),) if group == "busy" else ()

    def topic_rights(self, names: Iterable[str]) -> dict[str, frozenset[str] | None]:
        return {}

    def committed_by_group(self, groups: Iterable[str], *, operation: str = "") -> Any:
        return {group: self.offsets.get(group, {}) for group in groups}

    def commit_offsets(self, group: str, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        if group in self.refused:
            raise self.refused[group]
        self.commits[group] = offsets

    def topics(self, names: Sequence[str]) -> dict[str, TopicView]:
        return {name: TopicView(name, "", 1, 1) for name in names if name in self.logs}

    def describe(self) -> ClusterView:
        return ClusterView("id", (BrokerView(1, "h", 1), BrokerView(2, "h", 2)), 1)

    def create_topics(
        self, topics: Sequence[NewTopic], *, validate_only: bool = False, **_: object
    ) -> dict[str, TopicOutcome]:
        found: dict[str, TopicOutcome] = {}
        for topic in topics:
            short = topic.replication_factor > 2
            found[topic.name] = TopicOutcome(topic.name, TooFewBrokers("no") if short else None)
            if not short and not validate_only:
                self.created.append(topic)
        return found

    def produce_many(
        self,
        topic: str,
        records: Iterable[tuple[int, bytes, bytes | None]],
        *,
        timestamp_ms: int | None = None,
    ) -> int:
        rows = list(records)
        self.logs[topic] += [(key, value) for _, key, value in rows]
        self.times.append(timestamp_ms)
        return len(rows)

    def tail(self, topic: str, *, partitions: Sequence[int]) -> Any:
        if topic in self.unreadable:
            raise Denied("no", where="cluster B")
        if topic not in self.logs:
            raise TopicError("it does not exist", where=topic)
        return FakeTail(self.logs[topic], self.read_hooks.get(topic, lambda: None))

    def end_offsets(self, partitions: Iterable[TopicPartition], isolation: str) -> Any:
        return dict.fromkeys(partitions, 0)


class FakeTail:
    def __init__(self, log: list[tuple[bytes, bytes | None]], hook: Callable[[], None]) -> None:
        self._log, self._hook = log, hook
        self._at = 0

    def read_to(self, ends: object) -> Any:
        self._hook()
        new, self._at = self._log[self._at :], len(self._log)
        return ((0, key, value) for key, value in new)

    def close(self) -> None:
        """Nothing to close."""


class World:
    """A flow A->B with one group, whose clock the test turns. ``flow``: other settings of it."""

    def __init__(self, flow: FlowSettings | None = None) -> None:
        self.flow = flow or flow_of()
        self.now = 1_000.0
        self.said: list[str] = []
        self.source, self.target = FakeCluster(), FakeCluster()
        self.source.states = {"g": "Stable"}
        self.source.logs["mm2-offset-syncs.B.internal"] = []
        self.target.logs = {"A.checkpoints.internal": [], "mm2-sparkmirror-runs.A.internal": []}

    def job(self) -> GroupsJob:
        source, target = cast(Cluster, self.source), cast(Cluster, self.target)
        clusters = GroupClusters(
            source_admin=source, target_admin=target, target=target, syncs=source,
            checkpoints=target,
        )  # fmt: skip
        return GroupsJob(
            self.flow,
            clusters,
            self.said.append,
            now_s=lambda: self.now,
            now_ms=lambda: int(self.now * 1000),
        )

    def mirror(self, run: Run) -> None:
        """What a slot writes of ``run``."""
        self.target.logs["mm2-sparkmirror-runs.A.internal"].append(encode_run(A0, run))
        for upstream, downstream in (
            (run.source, run.target),
            (run.source_end - 1, run.target_end - 1),
        ):
            sync = encode_offset_sync(A0, upstream, downstream)
            self.source.logs["mm2-offset-syncs.B.internal"].append(sync)

    def checkpoints(self) -> list[tuple[int, int]]:
        found = []
        for key, value in self.target.logs["A.checkpoints.internal"]:
            checkpoint = decode_checkpoint(key, value)
            assert checkpoint is not None
            assert (checkpoint.group, checkpoint.remote) == ("g", R0)
            found.append((checkpoint.upstream, checkpoint.downstream))
        return found
