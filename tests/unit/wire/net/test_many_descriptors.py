"""Descriptors from 1,024 on, where ``select.select`` raises ValueError, without a broker."""

from __future__ import annotations

import ast
import os
import pty
import signal
import socket
import time
from pathlib import Path

import pytest

import sparkmirror
from sparkmirror.cli.run.os_signals import Signals
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import ProduceSettings
from sparkmirror.wire.produce.producer import Producer
from tests.descriptors import BEYOND_SELECT
from tests.property.simulated_target import SimTarget
from tests.unit.wire.net.test_framing import ANSWERS, SENT, Framed

pytestmark = pytest.mark.usefixtures("many_descriptors")

TP = TopicPartition("t", 0)
SOURCE = Path(sparkmirror.__file__).parent


def _selects(text: str) -> bool:
    """Whether it waits with ``select.select``, also through `selectors`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Attribute):
            found = ast.unparse(node) in ("select.select", "selectors.SelectSelector")
        else:
            found = (
                isinstance(node, ast.ImportFrom)
                and node.module in ("select", "selectors")
                and bool({"select", "SelectSelector", "*"} & {one.name for one in node.names})
            )
        if found:
            return True
    return False


def test_nothing_in_the_product_waits_with_select() -> None:
    assert _selects("import select\nselect.select([], [], [])")
    assert _selects("from select import select")
    assert not _selects("import select\nfrom sparkmirror.records.selection import select")
    files = [path for path in SOURCE.rglob("*.py") if "select" in path.read_text("utf-8")]
    assert files
    assert [path for path in files if _selects(path.read_text("utf-8"))] == []


def test_an_answer_is_waited_for() -> None:
    ours, broker = socket.socketpair()
    with ours, broker:
        assert ours.fileno() >= BEYOND_SELECT
        framed = Framed(ours)
        assert not framed.readable(0.01)
        broker.sendall(SENT)
        assert framed.readable(10.0)
        assert bytes(framed.receive_ahead()) == ANSWERS[0]


def test_signals_and_keys_of_a_terminal_are_waited_for() -> None:
    keyboard, terminal = pty.openpty()
    try:
        with Signals() as signals:
            assert terminal >= BEYOND_SELECT
            assert signals.wait(0.01, terminal) == ([], False)
            os.write(keyboard, b"q\n")
            assert signals.wait(10.0, terminal) == ([], True)
            os.kill(os.getpid(), signal.SIGTERM)
            assert signals.wait(10.0) == ([signal.SIGTERM], False)
    finally:
        os.close(keyboard)
        os.close(terminal)


@pytest.mark.parametrize("also", [False, True])
def test_batches_are_produced(also: bool) -> None:
    target = SimTarget(1, [TP])
    producer = Producer(target, ProduceSettings())  # type: ignore[arg-type]
    reader, writer = os.pipe()
    try:
        producer.backlog.append(TP, memoryview(encode_batch([Record(0, 0, None, b"1")])))
        waits = reader if also else -1
        assert producer.pump(0.0, waits) == []
        assert target.connection(0).socket.fileno() >= BEYOND_SELECT
        if also:
            os.write(writer, b"x")
            producer.pump(10.0, reader)
            assert producer.woken
        assert target.take(0)
        target.replicate(TP)
        deadline_s = time.monotonic() + 10
        while not (done := producer.pump(0.1)):
            assert time.monotonic() < deadline_s
        assert [one.tp for one in done] == [TP]
    finally:
        target.close()
        os.close(reader)
        os.close(writer)
