"""Records that choose their topic and partition on the target: ``… AS topic``, ``… AS partition``.

Without ``AS topic``, or if it is null, a record goes to the remote topic of its source topic.
Without ``AS partition``, it keeps the number of its source partition. If the partition is null, the
record goes where Java's producer would send it: by murmur2 of its key.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from sparkmirror.data.rows.rows import Chunk
from sparkmirror.errors import ClusterError, Denied, MirrorError, Unreachable
from sparkmirror.model import Partitioner, TopicPartition
from sparkmirror.names.routed_names import RoutedNames
from sparkmirror.records.header_columns import Int64s
from sparkmirror.records.key_columns import Scan
from sparkmirror.records.partitioner import RecordPartitioner
from sparkmirror.records.record_fields import Varbin, chosen
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.cluster.acl_advice import Right, grant
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.cluster.error_codes import (
    TOPIC_AUTHORIZATION_FAILED,
    UNKNOWN_TOPIC_OR_PARTITION,
    error_name,
)
from sparkmirror.wire.net.connection import ConnectionLost

__all__ = ["Create", "Fault", "Router", "TargetTopics", "with_keys"]

Create = Callable[[str, Sequence[str]], Mapping[str, str]]
"""Has topics created for records of a source topic; returns by name why some are not.

It may raise `Denied` and `Unreachable`; all other errors are not about the topics.
"""

_PATIENCE_S = 5.0
# A topic that was just created may be unknown to some brokers.
_VISIBLE_S = 2.0
# A topic that the target did not have is asked for again after this time.
_ASK_AGAIN_S = 1.0
_SHOWN_CHARS_MAX = 80
_TOPICS_REMEMBERED = 65_536


class TargetTopics:
    """How many partitions the target's topics have. One owner, no threads.

    Unlike the producer's metadata, it forgets topics that are not there: their names come from
    records. ``planned``: how many partitions at least a mirror gives a topic that it creates.
    ``missing``: how many any other topic would have that is not there.
    """

    def __init__(
        self,
        flow: FlowSettings,
        planned: Mapping[str, int] = MappingProxyType({}),
        missing: int = 0,
    ) -> None:
        self._connections = ClusterConnections(flow.target)
        self._planned = planned
        self._missing = missing
        self._counts: dict[str, tuple[int, float]] = {}

    def partitions(self, topic: str, *, again: bool = False) -> int:
        """The number of partitions; ``missing`` if the target has no such topic.

        ``again``: there may be more by now. Raises `Denied`, and `Unreachable` if the target does
        not respond in time.
        """
        now = time.monotonic()
        count, asked_at = self._counts.get(topic, (0, float("-inf")))
        age_s = _ASK_AGAIN_S
        if count and not again:
            age_s = self._connections.client.metadata_age_ms_max / 1000
        if now - asked_at >= age_s:
            count = max(self._ask(topic, now + _PATIENCE_S), self._planned.get(topic, 0))
            if len(self._counts) >= _TOPICS_REMEMBERED:
                self._counts.clear()
            self._counts[topic] = count, time.monotonic()
        return count or self._missing

    def await_new(self, topics: Sequence[str]) -> None:
        """Ask for ``topics``, which were just created, until all are there; not for long.

        Raises as `partitions`.
        """
        deadline = time.monotonic() + _VISIBLE_S
        for topic in topics:
            while True:
                self._counts.pop(topic, None)
                if self.partitions(topic) or time.monotonic() > deadline:
                    break
                time.sleep(self._connections.client.retry_backoff_ms / 1000)

    def _ask(self, topic: str, deadline: float) -> int:
        connections = self._connections
        while True:
            try:
                connections.refresh({topic})
            except (ClusterError, ConnectionLost) as error:
                reason = str(error)
            else:
                code = connections.topic_errors.get(topic, 0)
                if code == TOPIC_AUTHORIZATION_FAILED:
                    raise Denied(
                        f"topic {topic} may not be read or written.",
                        where=f"cluster {connections.client.alias}",
                        do=grant(connections.client, Right("Write", "Topic", topic)),
                    )
                if code in (0, UNKNOWN_TOPIC_OR_PARTITION):
                    known = (*connections.leaders, *connections.leaderless)
                    return 1 + max((tp.partition for tp in known if tp.topic == topic), default=-1)
                reason = error_name(code)
            if time.monotonic() > deadline:
                raise Unreachable(
                    f"the number of partitions of {topic} is unknown ({reason}).",
                    where=f"cluster {connections.client.alias}",
                )
            time.sleep(connections.client.retry_backoff_ms / 1000)

    def close(self) -> None:
        """Close the connections."""
        self._connections.close()


@dataclass(frozen=True, slots=True)
class Fault:
    """Why records cannot go where the SQL sends them. ``rows``: their numbers, in order."""

    reason: str
    rows: Int64s


@dataclass(slots=True)
class Routed:
    """Where records go: ``destination`` is the number of the place in ``targets``, -1 for none.

    ``error``: why the places cannot be found now; then there are none.
    """

    destination: Int64s
    targets: list[TopicPartition] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    error: MirrorError | None = None


class Router:
    """Chooses the target partitions of records. One owner, no threads.

    ``create``: who creates topics that the target lacks; None: nobody does.
    """

    def __init__(
        self,
        flow: FlowSettings,
        topics: TargetTopics | None = None,
        create: Create | None = None,
    ) -> None:
        self._names = RoutedNames(flow)
        self._target = flow.target.alias
        self._topics = topics or TargetTopics(flow)
        self._create = create
        self._refused: Mapping[str, str] = {}
        self._partitioners: dict[str, RecordPartitioner] = {}

    def route(
        self, chunk: Chunk, records: Scan, topics: pa.Array | None, partitions: pa.Array | None
    ) -> Routed:
        """Where ``records`` of ``chunk`` go; they must have the positions of their keys.

        ``topics``, ``partitions``: what the SQL gives for each record; None: it names no such
        column.
        """
        count = len(records.columns.offset)
        routed = Routed(np.full(count, -1, np.int64))
        names, codes = [chunk.remote_topic], np.zeros(count, np.int64)
        if topics is not None:
            encoded = topics.fill_null(chunk.remote_topic).dictionary_encode()
            # SQL can make strings of any bytes.
            names = [
                one.decode("utf-8", "replace")
                for one in encoded.dictionary.cast(pa.binary()).to_pylist()
            ]
            codes = encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        by_key = np.zeros(count, np.bool_)
        wanted = np.full(count, chunk.partition, np.int64)
        needed = 1 if partitions is not None else chunk.partition + 1
        if partitions is not None:
            by_key = ~partitions.is_valid().to_numpy(zero_copy_only=False)
            numbers = partitions.fill_null(-1).to_numpy(zero_copy_only=False)
            wanted = numbers.astype(np.int64)
        try:
            self._refused = self._created(chunk, names)
            for code, name in enumerate(names):
                rows = np.flatnonzero(codes == code)
                if len(rows):
                    self._topic(routed, chunk, records, name, rows, wanted, by_key, needed)
        except (Denied, Unreachable) as error:
            routed.error = error  # all others end the task: `create` comes round meanwhile
        routed.faults.sort(key=lambda one: int(one.rows[0]))
        return routed

    def _created(self, chunk: Chunk, names: Sequence[str]) -> Mapping[str, str]:
        """Have missing topics of ``names`` created; returns by name why some are not."""
        if self._create is None:
            return {}
        missing = []
        for name in names:
            if name != chunk.remote_topic and not self._names.fault(name):
                with contextlib.suppress(Denied):  # `_topic` meets it again
                    if not self._topics.partitions(name):
                        missing.append(name)
        refused = self._create(chunk.topic, missing) if missing else {}
        self._topics.await_new([name for name in missing if name not in refused])
        return refused

    def _topic(
        self,
        routed: Routed,
        chunk: Chunk,
        records: Scan,
        name: str,
        rows: Int64s,
        wanted: Int64s,
        by_key: npt.NDArray[np.bool_],
        needed: int,
    ) -> None:
        """Route the records ``rows``, which go to topic ``name``.

        ``needed``: how many partitions the mirror itself gives the chunk's remote topic, as far as
        these records want them.
        """
        fault = "" if name == chunk.remote_topic else self._names.fault(name)
        if fault:
            shown = name if len(name) <= _SHOWN_CHARS_MAX else name[:_SHOWN_CHARS_MAX] + "…"
            routed.faults.append(Fault(f"they cannot go to topic {shown!r}: {fault}", rows))
            return
        try:
            count = self._topics.partitions(name)
        except Denied as error:
            if name == chunk.remote_topic:
                raise
            # The record chose the name.
            routed.faults.append(Fault(f"they cannot go to topic {name!r}: {error}", rows))
            return
        numbers = wanted[rows]
        keyed = by_key[rows]
        if count and bool((~keyed & (numbers >= count)).any()):
            count = self._topics.partitions(name, again=True)
        if name == chunk.remote_topic and count < needed:  # no fault of the records
            lacks = f"has {count} partitions, and no partition {chunk.partition}"
            raise Unreachable(
                f"the remote topic {name!r} {lacks if count else 'is not there'} yet.",
                where=f"cluster {self._target}",
                do="The mirror creates and grows its remote topics, and tries again.",
            )
        if not count:
            do = f"create it with at least {chunk.partition + 1} partitions"
            if self._create is not None:
                do = self._refused.get(name, "")
                if not do:  # no fault of the records
                    raise Unreachable(f"topic {name!r} is being created and is not there yet.")
            routed.faults.append(Fault(f"the target has no topic {name!r}: {do}", rows))
            return
        if keyed.any():
            mask = np.zeros(len(by_key), np.bool_)
            mask[rows[keyed]] = True
            numbers[keyed] = self._partitioner(name).choose(chosen(records, mask), count)
        outside = (numbers < 0) | (numbers >= count)
        if outside.any():
            text = f"topic {name!r} has {count} partitions, and no partition "
            text += str(int(numbers[outside][0]))
            routed.faults.append(Fault(text, rows[outside]))
        first = len(routed.targets)
        routed.targets += [TopicPartition(name, number) for number in range(count)]
        routed.destination[rows] = np.where(outside, -1, first + numbers)

    def _partitioner(self, topic: str) -> RecordPartitioner:
        found = self._partitioners.get(topic)
        if found is None:
            found = self._partitioners[topic] = RecordPartitioner(Partitioner.KEY)
        return found

    def close(self) -> None:
        """Close the connections."""
        self._topics.close()


def with_keys(records: Scan, key: Varbin | None) -> Scan:
    """``records`` with the positions of other keys, for a partitioner; None keeps the keys."""
    if key is None:
        return records
    full = np.maximum(key.sizes, 0)
    columns = replace(records.columns, flat=key.data)
    return replace(records, columns=columns, key_at=np.cumsum(full) - full, key_bytes=key.sizes)
