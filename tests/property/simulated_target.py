"""A target cluster in one thread whose every step a test decides.

It keeps the rules that an idempotent producer meets on real brokers: the sequences of one producer
id, the last five batches as the measure of a repeat, acknowledgement after replication, followers
that may lack the newest batches when they become leader, requests that still arrive after their
connection broke. What a broker does at a moment of its own choosing is a method here; `Brokers`
says what brokers of one version answer where those of another answer something else.
"""

from __future__ import annotations

import itertools
import socket
import struct
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from sparkmirror.model import TopicPartition
from sparkmirror.records.header import HEADER_BYTES
from sparkmirror.records.split import decode_batches
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.net.poller import Poller
from sparkmirror.wire.produce.in_doubt import InDoubtBatch, WasWritten

VERSION = 8
OK, TOO_LARGE, NOT_LEADER, OUT_OF_ORDER, INVALID_RECORD = 0, 10, 6, 45, 87
DUPLICATE, INVALID_EPOCH, UNKNOWN_ID = 46, 47, 59
_LAST_BATCHES = 5


@dataclass(frozen=True)
class Brokers:
    """What brokers answer that depends on their version; as given, those from 2.5 on.

    ``refuse_unknown``: an id that a partition knows nothing of has to begin with sequence 0, else
    UNKNOWN_PRODUCER_ID. So did brokers before 2.5; later ones take any sequence (KIP-360).
    ``name_repeats``: a repeat that all replicas have is DUPLICATE_SEQUENCE_NUMBER, without an
    offset, as in the protocol's first version (0.11); later brokers acknowledge it like the first.
    """

    refuse_unknown: bool = False
    name_repeats: bool = False


@dataclass(frozen=True)
class Stored:
    """One batch of a log."""

    producer_id: int
    epoch: int
    sequence: int
    values: tuple[int, ...]


@dataclass(eq=False)
class Waiting:
    """A request that a broker has taken: outcomes per partition, None until it is decided."""

    connection: SimConnection
    correlation: int
    outcomes: dict[TopicPartition, tuple[int, int] | None]
    bad: dict[TopicPartition, list[int]] = field(default_factory=dict)


@dataclass(eq=False)
class SimPartition:
    """The log of a partition's leader; the first ``replicated`` batches are with all replicas.

    ``forgotten``: of how many batches at its begin nothing is known but their records.
    ``epochs``: epochs of producer ids that another writer has begun.
    """

    leader: int
    log: list[Stored] = field(default_factory=list)
    replicated: int = 0
    waiting: list[tuple[int, Waiting]] = field(default_factory=list)
    forgotten: int = 0
    epochs: dict[int, int] = field(default_factory=dict)

    def known(self, producer_id: int) -> list[tuple[int, Stored]]:
        """The batches of a producer id that are remembered as its, with their index."""
        return [
            (index, batch)
            for index, batch in enumerate(self.log)
            if index >= self.forgotten and batch.producer_id == producer_id
        ]

    @property
    def values(self) -> list[int]:
        return [value for batch in self.log for value in batch.values]


class SimConnection:
    """What `Producer` uses of a `Connection`."""

    host, port = "simulated", 9092

    def __init__(self, node: int) -> None:
        self.node = node
        self.socket, self._far_end = socket.socketpair()
        self.inbox: deque[tuple[int, dict[TopicPartition, bytes]]] = deque()
        self.due: deque[Waiting] = deque()
        self.lost = False
        self._pollers: list[Poller[Any]] = []
        self._responses: deque[bytes] = deque()
        self._unsent: deque[bytes] = deque()
        self.clogged = False
        self.delivered = 0
        self._correlation = itertools.count()

    def api_version(self, _key: int, _lowest: int, _highest: int, _name: str) -> int:
        return VERSION

    def header(self, _key: int, _version: int) -> tuple[int, bytes]:
        correlation = next(self._correlation)
        return correlation, struct.pack(">i", correlation)

    def ready_to_send(self, *, idle: bool) -> bool:
        return True

    def begin_frame(self, parts: Sequence[bytes | memoryview], _size: int) -> None:
        """While it is ``clogged``, the socket takes nothing."""
        if self.lost:
            raise ConnectionLost("broken")
        assert not self.unsent, "the rest of a frame goes first"
        self._unsent.append(b"".join(parts))
        self.go_on_sending()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def go_on_sending(self) -> bool:
        if self.lost:
            raise ConnectionLost("broken")
        while self._unsent and not self.clogged:
            self.delivered += len(self._unsent[0])
            self.inbox.append(parse_request(self._unsent.popleft()))
        for poller in self._pollers:
            poller.also_writable(self, self.unsent and not self.clogged)
        return not self._unsent

    def unclog(self) -> None:
        """The socket takes what it gets again, which a poller tells."""
        self.clogged = False
        for poller in self._pollers:
            poller.also_writable(self, self.unsent)

    def delivery(self) -> tuple[int, int]:
        return self.delivered, sum(map(len, self._unsent))

    def copy_unsent(self) -> None:
        self._unsent = deque(bytes(part) for part in self._unsent)

    def has_ahead(self) -> bool:
        return self.lost or bool(self._responses)

    def readable(self, _timeout_s: float = 0.0) -> bool:
        return self.lost or bool(self._responses)

    def ended_idle(self) -> bool:
        return False

    def watched_by(self, poller: Poller[Any]) -> None:
        self._pollers.append(poller)
        poller.add(self, self.socket.fileno())

    def hung_up(self) -> bool:
        return self.lost

    def receive_ahead(self) -> memoryview:
        if not self._responses:
            raise ConnectionLost("broken")
        self.socket.recv(1)
        return memoryview(self._responses.popleft())

    def answer(self, frame: bytes) -> None:
        if not self.lost:
            self._responses.append(frame)
            self._far_end.send(b".")

    def break_off(self) -> None:
        """Answers that have not been read are gone; what was sent may still arrive."""
        self.lost = True
        self._responses.clear()
        self._far_end.send(b"!")

    def drop(self) -> None:
        """The producer has closed it; what it sent may still arrive."""
        self.lost = True
        for poller in self._pollers:
            poller.remove(self)

    def close(self) -> None:
        self.drop()
        self.socket.close()
        self._far_end.close()


class SimTarget:
    """Brokers, partitions, and the producer's metadata of them, as `ClusterConnections`."""

    idle = SimpleNamespace(using=lambda _: nullcontext(), close_old=lambda *_: None)

    def __init__(
        self, nodes: int, partitions: Iterable[TopicPartition], brokers: Brokers | None = None
    ) -> None:
        self.brokers = brokers or Brokers()
        self.partitions = {tp: SimPartition(n % nodes) for n, tp in enumerate(partitions)}
        self.client = ClusterClient("T", ("t:9092",), "test", retry_backoff_ms=1)
        self.reachable = True
        self.leaders: dict[TopicPartition, Leader] = {}
        self.leaderless: dict[TopicPartition, int] = {}
        self.topic_errors: dict[str, int] = {}
        self.batches_max_records = 1_000
        self.refused: frozenset[int] = frozenset()
        """Values that no batch may contain; the answer says where they are."""
        self._stale = True
        self._connections: dict[int, SimConnection] = {}
        self._broken: list[SimConnection] = []
        self._producer_ids = itertools.count(1_000)
        self.refresh()

    # -- ClusterConnections -----------------------------------------------------------------

    def connection(self, node: int) -> SimConnection:
        return self._connections.setdefault(node, SimConnection(node))

    def any_connection(self) -> SimpleNamespace:
        def request(_message: object, *, highest: int) -> SimpleNamespace:
            number = next(self._producer_ids)
            return SimpleNamespace(error_code=0, producer_id=number, producer_epoch=0)

        return SimpleNamespace(request=request, close=lambda: None)

    def refresh_if_due(self) -> bool:
        if self._stale:
            self.refresh()
        return True

    def refresh(self) -> None:
        self.leaders = {tp: Leader(one.leader, 0) for tp, one in self.partitions.items()}
        self._stale = False

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        self._stale = True

    def add_topics(self, _topics: Iterable[str]) -> None:
        self._stale = True

    def drop(self, connection: SimConnection) -> None:
        connection.drop()
        if self._connections.get(connection.node) is connection:
            del self._connections[connection.node]
        self._broken.append(connection)

    def close(self) -> None:
        for connection in [*self._connections.values(), *self._broken]:
            connection.close()

    def arrival(self, _connections: object, doubt: InDoubtBatch) -> WasWritten:
        """What the broker that is taken for the leader knows of a batch in doubt."""
        one = self.partitions[doubt.tp]
        if self.leaders[doubt.tp].node != one.leader:
            return WasWritten.LATER
        known = one.known(doubt.producer_id)
        if not known:
            return WasWritten.NO if doubt.first else WasWritten.UNKNOWN
        last = known[-1][1]
        if last.sequence + len(last.values) - 1 < doubt.last_sequence:
            return WasWritten.NO
        return WasWritten.YES if one.replicated == len(one.log) else WasWritten.LATER

    # -- what brokers do -------------------------------------------------------------------

    def take(self, node: int) -> bool:
        """Broker ``node`` takes the next request off its connections; False when there is none."""
        connections = [one for one in self._broken if one.node == node]
        if node in self._connections:
            connections.append(self._connections[node])
        for connection in connections:
            if connection.inbox:
                correlation, batches = connection.inbox.popleft()
                waiting = Waiting(connection, correlation, dict.fromkeys(batches))
                connection.due.append(waiting)
                for tp, batch in batches.items():
                    self._append(node, tp, batch, waiting)
                self._answer(connection)
                return True
        return False

    def _append(self, node: int, tp: TopicPartition, batch: bytes, waiting: Waiting) -> None:
        one = self.partitions[tp]
        stored = _read(batch)
        if one.leader != node:
            waiting.outcomes[tp] = (NOT_LEADER, -1)
        elif len(stored.values) > self.batches_max_records:
            waiting.outcomes[tp] = (TOO_LARGE, -1)
        elif self.refused & set(stored.values):
            waiting.outcomes[tp] = (INVALID_RECORD, -1)
            waiting.bad[tp] = [n for n, v in enumerate(stored.values) if v in self.refused]
        else:
            self._take_batch(one, tp, stored, waiting)

    def _take_batch(
        self, one: SimPartition, tp: TopicPartition, stored: Stored, waiting: Waiting
    ) -> None:
        """What the sequence makes of a batch that is good in itself."""
        if stored.epoch < one.epochs.get(stored.producer_id, stored.epoch):
            waiting.outcomes[tp] = (INVALID_EPOCH, -1)
            return
        known = one.known(stored.producer_id)
        repeat = [index for index, old in known[-_LAST_BATCHES:] if old == stored]
        if repeat:
            index = repeat[0]
            if self.brokers.name_repeats and index < one.replicated:
                waiting.outcomes[tp] = (DUPLICATE, -1)
                return
        elif known and known[-1][1].sequence + len(known[-1][1].values) != stored.sequence:
            waiting.outcomes[tp] = (OUT_OF_ORDER, -1)
            return
        elif not known and stored.sequence and self.brokers.refuse_unknown:
            waiting.outcomes[tp] = (UNKNOWN_ID, -1)
            return
        else:
            index = len(one.log)
            one.log.append(stored)
        one.waiting.append((index, waiting))

    def replicate(self, tp: TopicPartition) -> None:
        """The followers have caught up: what waits is acknowledged."""
        one = self.partitions[tp]
        one.replicated = len(one.log)
        for index, waiting in one.waiting:
            before = sum(len(batch.values) for batch in one.log[:index])
            waiting.outcomes[tp] = (OK, before)
        self._decided(one)

    def move(self, tp: TopicPartition, node: int, keep: int) -> None:
        """Another leader, which has ``keep`` of the batches that are not acknowledged yet."""
        one = self.partitions[tp]
        if node == one.leader:
            return
        one.leader = node
        del one.log[one.replicated + keep :]
        one.replicated = len(one.log)
        one.forgotten = min(one.forgotten, len(one.log))
        for _, waiting in one.waiting:
            waiting.outcomes[tp] = (NOT_LEADER, -1)
        self._decided(one)

    def forget(self, tp: TopicPartition) -> None:
        """What the partition knew of its producers is gone; the records are there.

        Brokers do so when a producer id wrote nothing for ``producer.id.expiration.ms``; before
        2.5 also when the last of its records was deleted, however young it was.
        """
        one = self.partitions[tp]
        one.forgotten = len(one.log)

    def outdate(self, tp: TopicPartition) -> None:
        """Another writer has begun an epoch of the partition's newest producer id.

        In a transaction: a successor, or the coordinator itself after ``transaction.timeout.ms``.
        Without: a cluster whose metadata is from a backup, and which gives ids out again.
        """
        one = self.partitions[tp]
        for batch in one.log[-1:]:
            one.epochs[batch.producer_id] = batch.epoch + 1

    def cut(self, node: int) -> None:
        """The connection to a broker breaks."""
        if node in self._connections and not self._connections[node].lost:
            self._connections[node].break_off()

    def _decided(self, one: SimPartition) -> None:
        waiting, one.waiting = one.waiting, []
        for connection in {id(each.connection): each.connection for _, each in waiting}.values():
            self._answer(connection)

    def _answer(self, connection: SimConnection) -> None:
        """Answers leave in the order of the requests, as soon as everything in them is decided."""
        while connection.due and None not in connection.due[0].outcomes.values():
            waiting = connection.due.popleft()
            connection.answer(answer_frame(waiting))


def parse_request(frame: bytes) -> tuple[int, dict[TopicPartition, bytes]]:
    (correlation,) = struct.unpack_from(">i", frame)
    batches: dict[TopicPartition, bytes] = {}
    (writer,) = struct.unpack_from(">h", frame, 4)
    position = 16 + max(0, writer)
    (topics,) = struct.unpack_from(">i", frame, position - 4)
    for _ in range(topics):
        (size,) = struct.unpack_from(">h", frame, position)
        topic = frame[position + 2 : position + 2 + size].decode()
        (count,) = struct.unpack_from(">i", frame, position + 2 + size)
        position += 6 + size
        for _ in range(count):
            number, length = struct.unpack_from(">ii", frame, position)
            tp = TopicPartition(topic, number)
            assert tp not in batches, "brokers take one batch per partition and request"
            batches[tp] = frame[position + 8 : position + 8 + length]
            position += 8 + length
    assert position == len(frame)
    return correlation, batches


def _read(batch: bytes) -> Stored:
    producer_id, epoch, sequence = struct.unpack_from(">qhi", batch, HEADER_BYTES - 18)
    values = tuple(int(record.value or b"") for record in decode_batches(memoryview(batch)))
    return Stored(producer_id, epoch, sequence, values)


def answer_frame(waiting: Waiting) -> bytes:
    topics: dict[str, list[tuple[int, int, int]]] = defaultdict(list)
    for tp, outcome in waiting.outcomes.items():
        assert outcome is not None
        topics[tp.topic].append((tp.partition, *outcome))
    frame = struct.pack(">ii", waiting.correlation, len(topics))
    for topic, parts in topics.items():
        name = topic.encode()
        frame += struct.pack(">h", len(name)) + name + struct.pack(">i", len(parts))
        for number, code, offset in parts:
            frame += struct.pack(">ihqqq", number, code, offset, -1, 0)
            bad = waiting.bad.get(TopicPartition(topic, number), [])
            frame += struct.pack(">i", len(bad))
            frame += b"".join(struct.pack(">ih", index, -1) for index in bad)
            frame += struct.pack(">h", -1)
    return frame + struct.pack(">i", 0)
