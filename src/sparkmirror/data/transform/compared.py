"""A comparison's view of transformed topics: what a mirror makes of a range of the source.

It implements `control.verify.scope.TransformedTopics`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from typing import Any

from sparkmirror.data.transform.columns import COLUMNS
from sparkmirror.data.transform.pack import Packed
from sparkmirror.data.transform.replay import GROUP_BYTES, Replay, groups, read_parts
from sparkmirror.internal_topics.assignments import SourcePartition
from sparkmirror.model import TopicPartition
from sparkmirror.names.replication_policy import FaultPolicy, FlowTopics
from sparkmirror.names.transforms import Transformed
from sparkmirror.records.header import split
from sparkmirror.records.records import Carried, carry
from sparkmirror.settings import FlowSettings

__all__ = ["ReplayedTopics"]

# Classes of expressions that give the time at which the SQL runs.
_OF_THE_TIME = frozenset(
    {
        "CurrentBatchTimestamp", "CurrentDate", "CurrentTime", "CurrentTimestamp", "LocalTimestamp",
        "Now",
    }
)  # fmt: skip


class ReplayedTopics:
    """Transformed topics of ``flow``. ``open_replay`` starts Spark, when it is needed first."""

    def __init__(self, flow: FlowSettings, open_replay: Callable[[], Replay]) -> None:
        self._flow = flow
        self._open = open_replay
        self._opened: Replay | None = None
        self._opening = threading.Lock()
        self._transformed = Transformed(flow)
        self._policy = FaultPolicy(flow.faults)
        self._names = FlowTopics(flow)
        self._failed: set[TopicPartition] = set()
        self._stopped: dict[TopicPartition, tuple[int, str]] = {}

    def has(self, topic: str) -> bool:
        """Whether a transform processes source topic ``topic``."""
        return self._transformed.number(topic) >= 0

    def unrepeatable(self, topic: str) -> str:
        """Why the same records may become others when the SQL runs again; empty if they cannot.

        The same for records that are routed: nobody knows where to look for them. Raises
        ConfigError for SQL that is refused.
        """
        number = self._transformed.number(topic)
        if self._transformed.routes(topic):
            name = self._flow.transforms[number].name
            return f"the transform {name} routes each record by its content"
        if self._flow.transforms[number].handler:
            return ""  # what it does to a record is expected to be the same each time
        plan = self._replay().plan
        one = plan.planned[number].settings
        schema = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
        empty = plan.session.createDataFrame([], schema)
        tree: Any = plan.untried(empty, number)._jdf.queryExecution().analyzed()
        # A Python function has projections below the last one.
        expressions = [each for node in _nodes(tree) for each in _expressions(node)]
        what = "function" if one.python else "SQL"
        if not all(each.deterministic() for each in expressions):
            return f"the {what} of the transform {one.name} is not deterministic"
        if any(_OF_THE_TIME & set(_classes(each)) for each in expressions):
            return f"the {what} of the transform {one.name} depends on the time"
        return ""

    def read(self, tp: TopicPartition, start: int, end: int) -> Generator[Carried, None, None]:
        """The records that a mirror makes of a source range, with their source offsets.

        They end before a record on which the SQL fails, if that pauses the partition. Raises
        `MirrorError`.
        """
        replay = self._replay()
        source = SourcePartition(tp.topic, tp.partition, self._names.remote(tp.topic))
        pauses = self._policy.bad_record(tp.topic) == "pause"
        for group in groups(read_parts(self._flow, source, start, end), GROUP_BYTES):
            for packed in replay.packed(group, reasons=1 if pauses else 0):
                carried = _carried(packed)
                if packed.failed:
                    self._failed.add(tp)
                if packed.failed and pauses:
                    each = packed.failed[0]
                    first = each.records[0].offset
                    self._stopped[tp] = first, each.said(first)
                    kept = sum(offset < first for offset in carried.offsets)
                    carried = _first(carried, kept)
                yield carried  # also without records, so that the reader may give up
                if packed.failed and pauses:
                    return

    def stopped(self, tp: TopicPartition) -> tuple[int, str] | None:
        """Source offset of the record that pauses the partition, and why; None without one."""
        return self._stopped.get(tp)

    def remark(self, tp: TopicPartition) -> str:
        """What was compared, in words."""
        one = self._flow.transforms[self._transformed.number(tp.topic)]
        text = f"source records after the transform {one.name}"
        if any(each.tables for each in self._flow.transforms):
            text += ", with its tables as they are now"
        if tp in self._failed and tp not in self._stopped:
            text += ", without those on which it fails"
        return text

    def _replay(self) -> Replay:
        with self._opening:
            if self._opened is None:
                self._opened = self._open()
            return self._opened


def _carried(packed: Packed) -> Carried:
    """The records of new batches, with their source offsets."""
    carried, data = Carried(), packed.records
    for start, end in split(data):
        carry(data[start:end], carried)
    carried.offsets = [] if packed.sources is None else packed.sources.tolist()
    carried.rests = [bytes(rest) for rest in carried.rests]
    return carried


def _first(carried: Carried, count: int) -> Carried:
    return Carried(
        carried.offsets[:count],
        carried.timestamps[:count],
        carried.attributes[:count],
        carried.rests[:count],
    )


def _nodes(tree: Any) -> Iterator[Any]:
    """The operators of a plan without branches, from the last one down."""
    yield tree
    children = tree.children()
    for index in range(children.size()):
        yield from _nodes(children.apply(index))


def _expressions(node: Any) -> Iterator[Any]:
    found = node.expressions()
    for index in range(found.size()):
        yield found.apply(index)


def _classes(expression: Any) -> Iterator[str]:
    """The classes of a Spark expression and of all below it."""
    waiting = [expression]
    while waiting:
        one = waiting.pop()
        yield one.getClass().getSimpleName()
        children = one.children()
        waiting += [children.apply(index) for index in range(children.size())]
