"""The scope of a comparison: topics, and frozen offsets.

The source's end offsets are frozen first. Then the target gets time to catch up, and its end
offsets are frozen. Source records beyond the frozen ends are read only to recognise records that
the target already has.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sparkmirror.control.topics.remote_names import refused_names
from sparkmirror.errors import ConfigError, MirrorError, TopicError
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.names.java_regex import compile_list
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.records.records import Carried
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = [
    "STRETCH",
    "Bound",
    "NothingToCompare",
    "Progress",
    "Scope",
    "ScopeOffsets",
    "TransformedTopics",
]

_POLL_S = 0.5
STRETCH = 1_000
"""Largest number of records in one stretch of a sample."""


@dataclass(frozen=True, slots=True)
class Bound:
    """The start or end of a comparison: a source offset, or a record timestamp (epoch ms)."""

    offset: int | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Scope:
    """What to compare.

    ``topics``: Java regexes on source topics; empty: all topics of the flow except heartbeats.
    ``partitions``: partition numbers; empty: all. ``sample``: number of stretches of up to
    1,000 records per partition; 0: everything. ``wait_s``: time for the target to reach the frozen
    ends of the source.
    """

    topics: tuple[str, ...] = ()
    partitions: tuple[int, ...] = ()
    start: Bound | None = None
    end: Bound | None = None
    sample: int = 0
    wait_s: float = 10.0


@dataclass
class Progress:
    """Progress of a comparison: source records read, of about ``total``. Thread-safe.

    ``partitions``, ``done``: partitions in all, and those that are compared.
    """

    total: int = 0
    taken: int = 0
    partitions: int = 0
    done: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def take(self, count: int) -> None:
        """Count ``count`` more records."""
        with self._lock:
            self.taken += count

    def finish(self) -> None:
        """Count one more partition as compared."""
        with self._lock:
            self.done += 1


class NothingToCompare(ConfigError):
    """A flow has no such topic or partition; another flow of the file may have."""


class TransformedTopics(Protocol):
    """Topics that a transform changes on the way; `data.transform.compared` implements it."""

    def has(self, topic: str) -> bool:
        """Whether a transform processes source topic ``topic``."""

    def unrepeatable(self, topic: str) -> str:
        """Why the same records may become others when the SQL runs again; empty if they cannot."""

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Carried, None, None]:
        """The records that a mirror makes of a source range, with their source offsets."""

    def stopped(self, tp: TopicPartition) -> tuple[int, str] | None:
        """Source offset of a record on which the SQL fails, which pauses the partition; and why."""

    def remark(self, tp: TopicPartition) -> str:
        """What was compared, in words."""


class ScopeOffsets:
    """Both clusters' offsets for the partitions of a scope. The constructor reads them.

    ``ends``: frozen end offsets of the source; missing: partitions of which an offset is not known,
    because no leader responds. ``later_ends``: end offsets of the source after those of the target
    were frozen. ``remote_ends``: these; missing as in ``ends``. ``left_out``: partitions of topics
    that cannot have their remote names, or that a transform changes in a way that cannot be
    repeated, and why. ``surplus``: partitions that remote topics have on top, by the names that
    their source partitions would have. ``unknown``: source topics of which a config could not be
    read, here or there. The constructor raises `ConfigError` if no topic is selected, and other
    `MirrorError`.
    """

    def __init__(
        self,
        source: Cluster,
        target: Cluster,
        flow: FlowSettings,
        scope: Scope,
        transformed: TransformedTopics | None = None,
    ) -> None:
        self.transformed = transformed
        self.source, self.target, self.flow, self.scope = source, target, flow, scope
        wanted = FlowTopics(flow)
        listed = compile_list(scope.topics)

        def chosen(name: str) -> bool:
            if listed is not None:
                return listed.fullmatch(name) is not None
            # The mirror itself writes heartbeats all the time, so some are always behind.
            mm1 = flow.mode is MirrorMode.MM1
            return mm1 or not wanted.policy.is_heartbeats_topic(name)

        accepted = {
            name: view
            for name, view in source.topics().items()
            if wanted.mirrors(name, internal=view.internal)
        }
        topics = {name: view for name, view in accepted.items() if chosen(name)}
        if not topics:
            raise NothingToCompare(
                "no topic of the flow has such a name.",
                where=f"flow {flow.name}",
                do="Check --topic and the topics of the file.",
            )
        every = {
            TopicPartition(name, number): TopicPartition(wanted.remote(name), number)
            for name, view in topics.items()
            for number in range(view.partitions)
            if not scope.partitions or number in scope.partitions
        }
        if not every:
            raise NothingToCompare(
                "no topic has such a partition.",
                where=f"flow {flow.name}",
                do="Check --partition: numbers begin with 0.",
            )
        refused = dict(refused_names(target, flow, wanted, accepted))
        refused |= _unrepeatable(flow, topics.keys() - refused.keys(), transformed)
        self.left_out = {tp: refused[tp.topic] for tp in every if tp.topic in refused}
        self.pairs = {tp: remote for tp, remote in every.items() if tp not in self.left_out}
        partitions = list(self.pairs)
        self.earliest = source.earliest_offsets(partitions)
        isolation = flow.fetch.isolation_level
        # A leader that is elected meanwhile may respond to one of the two requests only.
        ends = source.end_offsets(partitions, isolation)
        self.ends = {tp: end for tp, end in ends.items() if tp in self.earliest}
        self.starts = dict(self.earliest)
        self._apply_bounds()
        remote = {name: view.partitions for name, view in target.topics(
            {tp.topic for tp in self.pairs.values()}
        ).items()}  # fmt: skip
        self.there = {tp for tp in self.pairs.values() if tp.partition < remote.get(tp.topic, 0)}
        self.surplus = self._surplus({name: topics[name].partitions for name in topics}, remote)
        self.positions = self._wait()
        looked_at = {*self.there, *self.surplus.values()}
        self.remote_starts = target.earliest_offsets(looked_at)
        remote_ends = target.end_offsets(looked_at, "read_committed")
        self.remote_ends = {tp: end for tp, end in remote_ends.items() if tp in self.remote_starts}
        self.unknown: set[str] = set()
        self.compacted, self.stamped = self._policies(topics, remote)
        self.later_ends = self._later_ends(self.ends)
        self.ends = {tp: end for tp, end in self.ends.items() if tp in self.later_ends}

    def expected(self) -> int:
        """Estimate of the number of source records to read, by offsets."""
        most = self.scope.sample * STRETCH or 1 << 62
        return sum(
            min(most, max(0, end - self.starts.get(tp, end))) for tp, end in self.ends.items()
        )

    def _apply_bounds(self) -> None:
        for bound in (self.scope.start, self.scope.end):
            if bound is None:
                continue
            given = dict.fromkeys(self.ends, bound.offset or 0)
            if bound.time_ms is not None:
                at = self.source.offsets_at(self.ends, bound.time_ms)
                given = {tp: self.ends[tp] if one < 0 else one for tp, one in at.items()}
            if bound is self.scope.start:
                self.starts |= {tp: max(self.starts[tp], one) for tp, one in given.items()}
                self.ends = {tp: self.ends[tp] for tp in given}
            else:
                self.ends = {tp: min(self.ends[tp], one) for tp, one in given.items()}

    def _surplus(
        self, counts: Mapping[str, int], remote: Mapping[str, int]
    ) -> dict[TopicPartition, TopicPartition]:
        """`surplus`, of the numbers of partitions; empty if only a part is compared.

        Empty, too, if records do not keep their partition numbers: they may be anywhere.
        """
        scope = self.scope
        if scope.partitions or scope.start or scope.end or self.flow.records.used:
            return {}
        names = {tp.topic: copy.topic for tp, copy in self.pairs.items()}
        larger = {name for name, copy in names.items() if remote.get(copy, 0) > counts[name]}
        if not larger:
            return {}
        # A source topic may have grown since it was described, and its copy with it.
        return {
            TopicPartition(name, number): TopicPartition(names[name], number)
            for name, view in self.source.topics(larger).items()
            for number in range(max(counts[name], view.partitions), remote[names[name]])
        }

    def renew(self, tp: TopicPartition) -> bool:
        """Read anew where both logs of ``tp`` begin; False if neither begins later than before.

        False, too, if a leader does not respond. The source's frozen end stays. Raises
        `MirrorError`. Threads may renew different partitions.
        """
        if tp in self.surplus:
            return False
        remote = self.pairs[tp]
        begun = self.earliest.get(tp, 0), self.remote_starts.get(remote, 0)
        here = max(begun[0], self.source.earliest_offsets([tp]).get(tp, 0))
        there = max(begun[1], self.target.earliest_offsets([remote]).get(remote, 0))
        if (here, there) == begun:
            return False
        remote_ends = self.target.end_offsets([remote], "read_committed")
        later_ends = self._later_ends([tp])
        if not (remote_ends and later_ends):
            return False
        self.earliest[tp] = here
        self.starts[tp] = max(here, self.starts.get(tp, 0))
        self.remote_starts[remote] = there
        self.positions.update(self._positions({tp: remote}))
        self.remote_ends.update(remote_ends)
        self.later_ends.update(later_ends)
        return True

    def _later_ends(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        """The source's ends by now, where records behind ``ends`` count; else these.

        If an end was given, they count in compacted topics only: there, the target's last value of
        a key may be a later one. Partitions whose leader does not respond are missing: what the
        target has on top may be what the source got since the freeze.
        """
        counts = {tp: self.scope.end is None or tp.topic in self.compacted for tp in partitions}
        wanted = [tp for tp, count in counts.items() if count]
        ends = self.source.end_offsets(wanted, self.flow.fetch.isolation_level)
        return ends | {tp: self.ends[tp] for tp, count in counts.items() if not count}

    def _positions(
        self, pairs: Mapping[TopicPartition, TopicPartition]
    ) -> dict[TopicPartition, int]:
        """The flow's positions in ``pairs``."""
        mm1 = self.flow.mode is MirrorMode.MM1
        keeper = self.source if mm1 else self.target
        named = {tp if mm1 else remote: tp for tp, remote in pairs.items()}
        committed = keeper.committed_offsets(self.flow.position_group, named)
        return {named[tp]: one.offset for tp, one in committed.items()}

    def _wait(self) -> dict[TopicPartition, int]:
        """The flow's positions, once they have reached the frozen ends or ``wait_s`` is over."""
        deadline = time.monotonic() + self.scope.wait_s
        while True:
            found = self._positions(self.pairs)
            late = [tp for tp, position in found.items() if position < self.ends.get(tp, 0)]
            if not late or time.monotonic() > deadline:
                return found
            time.sleep(_POLL_S)

    def _policies(
        self, topics: Mapping[str, object], remote: Mapping[str, object]
    ) -> tuple[set[str], set[str]]:
        """Topics that are compacted on either side, and those whose remote topic has
        ``LogAppendTime``; by source topic.
        """
        names = {tp.topic: there.topic for tp, there in self.pairs.items()}
        compacted, stamped = set(), set()
        here = self.source.topic_configs(topics)
        there = self.target.topic_configs(remote) if remote else {}
        for name, remote_name in names.items():
            for configs in (here.get(name), there.get(remote_name)):
                if isinstance(configs, MirrorError):
                    self.unknown.add(name)
                if configs is None or isinstance(configs, MirrorError):
                    continue  # treated as not compacted
                policy = configs.get("cleanup.policy")
                if policy is not None and "compact" in (policy.value or ""):
                    compacted.add(name)
            configs = there.get(remote_name)
            if configs is not None and not isinstance(configs, MirrorError):
                kind = configs.get("message.timestamp.type")
                if kind is not None and kind.value == "LogAppendTime":
                    stamped.add(name)
        return compacted, stamped


def _unrepeatable(
    flow: FlowSettings, topics: Iterable[str], transformed: TransformedTopics | None
) -> dict[str, TopicError]:
    """The topics that a transform may change otherwise when it runs again: nothing is known."""
    found = {}
    for name in topics:
        if transformed is not None and transformed.has(name):
            why = transformed.unrepeatable(name)
            if why:
                found[name] = TopicError(
                    f"topic {name} is not compared: {why}.", where=f"flow {flow.name}"
                )
    return found
