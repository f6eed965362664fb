"""A producer before brokers that hang, hold back or go away: nothing is lost, nothing twice."""

from __future__ import annotations

import contextlib
import struct
import threading
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from sparkmirror.errors import Fenced, TransactionError
from sparkmirror.model import TopicPartition
from sparkmirror.wire.cluster.error_codes import UNSUPPORTED_COMPRESSION_TYPE, error_name
from sparkmirror.wire.produce.transactions import Transactions
from tests.property import simulated_target
from tests.property.simulated_target import SimConnection, SimTarget, Waiting
from tests.property.test_producer_properties import NODES, PARTITIONS, Run
from tests.property.test_refusals import Open, Taken

A, B, C = PARTITIONS  # on brokers 0, 1 and 2
CORRUPT_MESSAGE, STORAGE_ERROR, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT = 2, 56, 19, 7
INVALID_PRODUCER_EPOCH, INVALID_TXN_STATE, UNKNOWN_PRODUCER_ID, PRODUCER_FENCED = 47, 48, 59, 90


@pytest.fixture
def run() -> Iterator[Run]:
    found = Run()
    yield found
    found.target.close()


def _serve(target: SimTarget, *nodes: int) -> None:
    for node in nodes:
        while target.take(node):
            pass
    for tp, one in target.partitions.items():
        if one.leader in nodes:
            target.replicate(tp)


def _complete(run: Run) -> None:
    run.settle()
    for tp in PARTITIONS:
        assert run.target.partitions[tp].values == run.appended[tp]
        assert run.acknowledged[tp] == len(run.appended[tp])


def test_all_replicas_in_sync_acknowledge(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that acknowledges alone may lose what the mirror takes for copied."""
    said: list[int] = []
    begin_frame = SimConnection.begin_frame

    def look(connection: SimConnection, parts: Sequence[bytes | memoryview], size: int) -> None:
        said.append(struct.unpack_from(">h", b"".join(parts), 6)[0])  # behind no writer's name
        begin_frame(connection, parts, size)

    monkeypatch.setattr(SimConnection, "begin_frame", look)
    run.append(A, 1)
    _complete(run)
    assert set(said) == {-1}


def test_a_broker_that_takes_nothing_keeps_the_others_from_nothing(run: Run) -> None:
    """Its socket is full: the rest of the frame goes when it takes more, and only then others."""
    for tp in (A, B):  # they have connections, and producer ids that the brokers know
        run.append(tp, 1)
    run.settle()
    far = run.target.connection(0)
    assert far is not None
    far.clogged = True
    for _ in range(3):
        run.append(A, 1)
        run.append(B, 1)
        run.pump()
    assert far.unsent
    assert not far.inbox
    _serve(run.target, 1)
    run.pump()
    assert run.acknowledged[B] == len(run.appended[B])
    assert run.acknowledged[A] == 1
    far.unclog()
    run.pump()
    assert not far.unsent
    _complete(run)


def test_who_may_not_send_sends_no_rest_either(run: Run) -> None:
    """A request of which the broker has a part has not reached it."""

    def fenced() -> None:
        raise Fenced("another run has the flow")

    run.append(A, 1)
    run.settle()
    far = run.target.connection(0)
    far.clogged = True
    run.append(A, 1)
    run.pump()
    assert far.unsent
    run.producer.before_send = fenced
    far.unclog()
    with pytest.raises(Fenced):
        run.pump()
    assert far.unsent
    assert not far.inbox
    run.producer.before_send = lambda: None
    _complete(run)


def test_who_gives_up_sends_no_rest_and_hears_of_what_was_sent_before(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it may still send is not looked at: that lasts while the target is away."""
    run.append(A, 1)
    run.settle()
    far, looked, polled = run.target.connection(0), [], []
    run.append(A, 1)
    run.pump()
    far.clogged = True
    run.append(A, 1)
    run.pump()
    assert far.unsent
    far.unclog()
    run.producer.before_send = lambda: looked.append(1)
    poll = run.producer._responses.wait
    monkeypatch.setattr(
        run.producer._responses, "wait", lambda seconds: (polled.append(1), poll(seconds))[1]
    )
    run.producer._clock = time.monotonic
    broker = threading.Timer(0.2, _serve, [run.target, 0])
    broker.start()
    began_s = time.monotonic()
    run.producer.await_responses(60.0)
    broker.join()
    assert time.monotonic() - began_s < 30
    assert run.target.partitions[A].values == run.appended[A][:2]
    assert far.unsent
    assert not far.inbox
    assert looked == []
    assert len(polled) < 5, "a socket that takes more wakes nobody"
    run.producer._clock = lambda: run.now
    _complete(run)


def test_under_a_new_producer_id_sequences_begin_at_nought(run: Run) -> None:
    run.append(A, 3)
    run.settle()
    run.append(A, 2)
    run.append(A, 2)
    with _answering(UNKNOWN_PRODUCER_ID):
        run.pump()
        _serve(run.target, 0)
        run.pump()
    _complete(run)
    found = [(batch.producer_id, batch.sequence) for batch in run.target.partitions[A].log]
    (first, _), *rest = found
    assert found == [(first, 0), (rest[0][0], 0), (rest[0][0], 2)]
    assert rest[0][0] != first


def test_a_broker_that_hangs_delays_its_own_partitions_only(run: Run) -> None:
    for _ in range(4):
        for tp in PARTITIONS:
            run.append(tp, 2)
        run.pump()
        _serve(run.target, 1, 2)
    run.pump()
    assert run.acknowledged[A] == 0
    assert (run.acknowledged[B], run.acknowledged[C]) == (8, 8)
    _complete(run)


def test_a_connection_without_an_answer_is_given_up_and_its_batches_go_again(run: Run) -> None:
    run.append(A, 2)
    run.pump()
    run.append(A, 1)
    connection = run.target.connection(0)
    run.now += run.producer.connections.client.request_timeout_ms / 1000
    run.pump()
    assert connection.lost
    assert run.producer.backlog.errors["CONNECTION_LOST"] == 1
    assert run.acknowledged[A] == 0
    # What was sent over the connection that is gone arrives all the same, and once.
    _complete(run)


def test_a_request_that_still_arrives_at_the_broker_does_not_time_out(run: Run) -> None:
    """A slow link is not a dead one: sent anew, the request would take as long again, for ever."""
    run.append(A, 1)
    run.settle()
    far = run.target.connection(0)
    assert far is not None
    far.clogged = True
    run.append(A, 1)
    run.pump()
    timeout_s = run.producer.connections.client.request_timeout_ms / 1000
    for _ in range(30):  # some bytes in each tenth of the timeout
        far.delivered += 100
        run.now += timeout_s / 10
        run.pump()
    assert not far.lost
    assert run.producer.backlog.errors == {}
    # From here on nothing more gets through.
    for _ in range(12):
        run.now += timeout_s / 10
        run.pump()
    assert far.lost
    assert run.producer.backlog.errors["CONNECTION_LOST"] == 1
    _complete(run)


def test_on_a_slow_link_a_request_of_many_partitions_is_small_too(run: Run) -> None:
    """What is in flight must arrive before a mirror can end."""
    for tp in PARTITIONS:  # they have producer ids that the brokers know
        run.append(tp, 1)
    run.settle()
    on_one = [tp for tp in PARTITIONS if run.target.partitions[tp].leader == 0]
    others = [tp for tp in PARTITIONS if tp not in on_one]
    for tp in others:
        run.target.partitions[tp].leader = 0
    run.settle()
    trip = run.producer._round_trips[0]
    trip.request_bytes = 100
    for tp in PARTITIONS:
        run.append(tp, 1)
    run.pump()
    connection = run.target.connection(0)
    assert connection is not None
    assert all(len(batches) == 1 for _, batches in connection.inbox)
    _complete(run)


def test_partitions_of_one_broker_take_turns(run: Run) -> None:
    """One that always has batches in flight does not keep the others waiting."""
    run.target.partitions[B].leader = 0
    run.target.refresh()
    for tp in (A, B):  # they have producer ids that the broker knows
        run.append(tp, 1)
    run.settle()
    run.producer.settings = replace(run.producer.settings, request_bytes_max=1)
    for _ in range(10):
        run.append(A, 1)
    run.pump()
    run.append(B, 1)
    for _ in range(15):
        run.target.take(0)
        run.target.replicate(A)
        run.target.replicate(B)
        run.append(A, 1)
        run.pump()
    assert run.acknowledged[B] == 2
    assert run.acknowledged[A] > 5
    _complete(run)


@pytest.mark.parametrize("how", ["answers", "is older"])
def test_a_codec_that_the_target_does_not_take_is_used_no_more(
    how: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(joining="always", compression="zstd")
    if how == "is older":
        monkeypatch.setattr(run.producer, "_version", lambda _: 6)
    for _ in range(3):
        run.append(A, 1)
    with _answering(UNSUPPORTED_COMPRESSION_TYPE) if how == "answers" else contextlib.nullcontext():
        run.pump()
        _serve(run.target, 0)
        run.pump()
    for _ in range(3):
        run.append(A, 1)
    _complete(run)
    errors = {"UNSUPPORTED_COMPRESSION_TYPE": 1} if how == "answers" else {}
    assert run.producer.backlog.errors == errors
    assert caplog.text.count("sparkmirror.link.compression=zstd is not used") == 1
    assert not run.producer.joining.has_codec
    run.target.close()


def test_a_quotas_waiting_time_is_kept(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    answer = simulated_target.answer_frame
    with monkeypatch.context() as patched:
        patched.setattr(
            simulated_target,
            "answer_frame",
            lambda waiting: answer(waiting)[:-4] + struct.pack(">i", 5_000),
        )
        run.append(A, 1)
        run.pump()
        _serve(run.target, 0)
        run.pump()
    assert run.acknowledged[A] == 1
    assert run.producer.backlog.errors["THROTTLED"] == 1
    run.append(A, 1)
    run.pump()
    assert not run.target.take(0), "it was sent before its time"
    run.now += 5.0
    run.pump()
    assert run.target.take(0)
    _complete(run)


@contextlib.contextmanager
def _answering(code: int) -> Iterator[None]:
    """Every batch for A is refused with ``code``."""
    append = SimTarget._append

    def refuse(
        target: SimTarget, node: int, tp: TopicPartition, batch: bytes, waiting: Waiting
    ) -> None:
        if tp == A:
            waiting.outcomes[tp] = (code, -1)
        else:
            append(target, node, tp, batch, waiting)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(SimTarget, "_append", refuse)
        yield


@pytest.mark.parametrize(
    "code", [CORRUPT_MESSAGE, STORAGE_ERROR, NOT_ENOUGH_REPLICAS, REQUEST_TIMED_OUT]
)
def test_what_passes_by_itself_is_tried_again_for_as_long_as_it_takes(run: Run, code: int) -> None:
    with _answering(code):
        for tp in PARTITIONS:
            run.append(tp, 3)
        for _ in range(30):
            run.pump()
            _serve(run.target, *range(NODES))
    assert run.producer.backlog.halts == {}
    assert run.producer.backlog.errors[error_name(code)] > 1
    assert (run.acknowledged[B], run.acknowledged[C]) == (3, 3)
    _complete(run)


def test_a_partition_that_fails_for_long_stops_only_where_others_wait_for_it(run: Run) -> None:
    run.append(A, 1)
    run.target.leaders.pop(A)
    run.target.refresh = lambda: None  # type: ignore[method-assign]
    for _ in range(400):  # two minutes
        run.pump()
    assert run.producer.backlog.halts == {}
    assert run.producer.backlog.failing.keys() == {A}
    assert run.producer.backlog.failing[A].code == "UNKNOWN_TOPIC_OR_PARTITION"
    run.target.topic_errors[A.topic] = 29
    assert run.producer.backlog.failing[A].code == "TOPIC_AUTHORIZATION_FAILED", "as metadata says"
    run.target.leaderless[A] = 5
    assert run.producer.backlog.failing[A].code == "LEADER_NOT_AVAILABLE"
    run.producer.backlog.impatient = True
    for _ in range(4):
        run.pump()
    assert run.producer.backlog.halts.keys() == {A}
    assert run.producer.backlog.halts[A].retriable


class Held(SimpleNamespace):
    """A gate that lets nothing through to A, unless it is ``open``."""

    open = False

    def may_send(self, _connections: object, tp: TopicPartition) -> bool:
        return self.open or tp != A

    def recheck(self, _tp: TopicPartition) -> None:
        pass


def test_time_in_which_the_gate_was_open_or_nobody_looked_does_not_count(run: Run) -> None:
    backlog, gate = run.producer.backlog, Held()
    backlog.gate, backlog.impatient = gate, True
    run.append(A, 1)
    run.pump()
    run.now += 60  # the thread was frozen
    run.pump()
    assert backlog.halts == {}
    gate.open = True
    run.pump()
    assert backlog.under_way(A)
    for _ in range(31):
        run.now += 1
        run.pump()
    gate.open = False
    run.target.connection(0).break_off()
    run.pump()
    run.pump()
    assert backlog.halts == {}
    assert not backlog.under_way(A)


def test_a_partition_whose_log_cannot_be_checked_stops_only_where_others_wait(run: Run) -> None:
    """The check may need a broker of the source that is away."""
    backlog = run.producer.backlog
    backlog.gate = Held()
    for tp in (A, B):
        run.append(tp, 1)
    for _ in range(400):  # two minutes
        run.pump()
        _serve(run.target, *range(NODES))
    assert backlog.halts == {}
    assert run.acknowledged[B] == 1
    assert backlog.failing.keys() == {A}
    assert "could not be checked" in backlog.failing[A].reason
    run.target.reachable = False
    backlog.impatient = True
    for _ in range(400):
        run.pump()
    assert backlog.halts == {}, "the cluster is unavailable, not just this partition"
    run.target.reachable = True
    for _ in range(80):
        run.pump()
    assert backlog.halts == {}
    for _ in range(40):
        run.pump()
    assert backlog.halts.keys() == {A}
    assert backlog.halts[A].retriable
    assert backlog.idle
    # When it is tried again, it has as much time as before.
    backlog.forget_halts([A])
    run.append(A, 1)
    for _ in range(80):
        run.pump()
    assert backlog.halts == {}
    backlog.gate = None
    run.settle()
    assert run.acknowledged[A] == 1


def test_a_leader_that_cannot_be_reached_stops_its_partition_only_where_others_wait(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cluster's other brokers say that it leads, and the mirror gets no connection to it."""
    backlog, away = run.producer.backlog, [True]
    connection = run.target.connection
    monkeypatch.setattr(
        run.target, "connection", lambda node: None if away[0] and not node else connection(node)
    )
    for tp in (A, B):
        run.append(tp, 1)
    backlog.impatient = True
    for _ in range(60):  # 18 s: so long a broker that has died leads
        run.pump()
        _serve(run.target, 1, 2)
    assert backlog.halts == {}
    assert run.acknowledged[B] == 1
    assert backlog.failing.keys() == {A}
    assert "its leader could not be reached" in backlog.failing[A].reason
    away[0] = False
    run.pump()
    assert backlog.failing == {}
    run.target.cut(0)
    run.pump()
    away[0], backlog.impatient = True, False
    for _ in range(400):  # two minutes
        run.pump()
    assert (backlog.halts, backlog.failing.keys()) == ({}, {A})
    run.target.reachable = False
    backlog.impatient = True
    run.pump()
    assert backlog.halts == {}, "the cluster is unavailable, not just this broker"
    run.target.reachable = True
    for _ in range(95):
        run.pump()
        assert backlog.halts == {}
    for _ in range(10):
        run.pump()
    assert backlog.halts.keys() == {A}
    assert (backlog.halts[A].code, backlog.halts[A].retriable) == ("LEADER_NOT_AVAILABLE", True)
    assert backlog.idle
    away[0] = False
    backlog.forget_halts([A])
    run.append(A, 1)
    run.settle()
    assert run.target.partitions[A].values[-1] == run.appended[A][-1]


def test_a_partition_is_not_given_up_while_it_may_be_written(run: Run) -> None:
    """Who finds out what was lost there has to know what was written."""
    backlog = run.producer.backlog
    run.append(A, 1)
    run.pump()
    backlog.gate, backlog.impatient = Held(), True
    run.append(A, 1)
    timeout_s = run.producer.connections.client.request_timeout_ms / 1000
    backlog.busy[A].held_since = run.now - timeout_s
    run.pump()
    assert backlog.halts == {}
    backlog.busy[A].held_since = run.now - 2 * timeout_s
    connection = run.target.connection(0)
    connection.break_off()
    run.pump()
    run.pump()
    assert backlog.halts.keys() == {A}


def test_who_gives_up_hears_of_what_is_under_way_first(run: Run) -> None:
    """Else it could be appended after the next writer has looked where the log ends."""
    run.append(A, 1)
    run.pump()
    run.append(A, 1)  # not sent any more
    run.producer._clock = time.monotonic
    brokers = threading.Timer(0.2, _serve, [run.target, *range(NODES)])
    brokers.start()
    run.producer.await_responses(60.0)
    assert run.target.partitions[A].values == run.appended[A][:1]
    brokers.join()
    began_s = time.monotonic()
    run.producer.await_responses(60.0)  # nothing is under way
    assert time.monotonic() - began_s < 30


def test_who_gives_up_does_not_wait_for_ever(run: Run) -> None:
    run.append(A, 1)
    run.pump()
    run.producer._clock = time.monotonic
    run.producer.await_responses(0.05)
    assert not run.producer.backlog.idle
    assert run.target.partitions[A].values == []


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (INVALID_PRODUCER_EPOCH, Fenced),
        (INVALID_TXN_STATE, Fenced),
        (PRODUCER_FENCED, Fenced),
        (UNKNOWN_PRODUCER_ID, TransactionError),
    ],
)
def test_a_transaction_that_the_target_has_ended_is_not_written_on(
    code: int, error: type[Exception]
) -> None:
    """Under another producer id, or another sequence, half of it would count."""
    run = Run(cast(Transactions, Open()))
    try:
        run.append(A, 1)
        run.append(B, 1)
        run.pump()
        with _answering(code):
            _serve(run.target, *range(NODES))
            with pytest.raises(error, match="no longer accepted"):
                run.pump()
        assert run.acknowledged[A] == 0
    finally:
        run.target.close()


def test_a_batch_waits_for_its_partition_to_join_even_without_a_pause() -> None:
    class Later(Open):
        def add(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
            return dict.fromkeys(partitions, 3)

    run = Run(cast(Transactions, Later()))
    try:
        run.target.client = replace(run.target.client, retry_backoff_ms=0)
        run.append(A, 1)
        run.pump()
        assert not run.target.take(0), "it was sent outside of the transaction"
    finally:
        run.target.close()


def test_a_refused_record_that_the_batch_does_not_have_stops_the_partition(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_t: SimTarget, _n: int, tp: TopicPartition, _b: bytes, waiting: Waiting) -> None:
        waiting.outcomes[tp], waiting.bad[tp] = (simulated_target.INVALID_RECORD, -1), [9]

    run.producer.backlog.refusals = Taken()  # type: ignore[assignment]
    monkeypatch.setattr(SimTarget, "_append", refuse)
    run.append(A, 2)
    for _ in range(20):
        run.pump()
        _serve(run.target, 0)
    assert run.producer.backlog.halts.keys() == {A}
