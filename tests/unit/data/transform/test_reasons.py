"""The question of a sink why a transform failed, and the driver's reply."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from sparkmirror.data.transform import reasons
from sparkmirror.data.transform.reasons import Reasons, ReasonServer
from sparkmirror.records.records import Record

RECORDS = [Record(n, 1_000 + n, None, b"v%d" % n, ((b"h", None),)) for n in range(7, 10)]


class _Spark:
    def __init__(self) -> None:
        self.groups: list[str] = []
        self.cancelled = threading.Event()

    def setJobGroup(self, _group: str, said: str, _interrupt: bool) -> None:
        self.groups.append(said)

    def cancelJobGroup(self, _group: str) -> None:
        self.cancelled.set()


@pytest.fixture
def spark() -> _Spark:
    return _Spark()


@pytest.fixture
def server(
    tmp_path: Path, spark: _Spark, monkeypatch: pytest.MonkeyPatch
) -> Iterator[ReasonServer]:
    def reason(_plan: Any, number: int, record: pa.Table) -> str:
        (row,) = record.to_pylist()
        if row["offset"] == 9:
            raise ValueError("cannot be found out")
        return f"{number} {row['topic']}-{row['partition']} {row['value'].decode()}"

    monkeypatch.setattr(reasons, "reason_of", reason)
    clean = SimpleNamespace(settings=SimpleNamespace(name="clean"))
    plan: Any = SimpleNamespace(session=SimpleNamespace(sparkContext=spark), planned=[clean, clean])
    made = ReasonServer(tmp_path, {"A->B": plan})
    yield made
    made.close()


def test_reasons_come_back_by_source_offset(server: ReasonServer, spark: _Spark) -> None:
    found = Reasons(server.path, "A->B").of(1, "orders", 3, RECORDS[:2])
    assert found == {7: "1 orders-3 v7", 8: "1 orders-3 v8"}
    assert spark.groups == ["transform clean: why it failed on a record"] * 2


def test_what_is_known_before_an_error_is_told(server: ReasonServer) -> None:
    assert list(Reasons(server.path, "A->B").of(0, "orders", 0, RECORDS)) == [7, 8]


def test_a_transform_is_asked_about_once_a_second(server: ReasonServer) -> None:
    """Where every record fails, the mirror must still go on."""
    now = [100.0]
    asked = Reasons(server.path, "A->B", lambda: now[0])
    assert asked.of(0, "orders", 0, RECORDS[:1])
    now[0] += 0.9
    assert asked.of(0, "orders", 0, RECORDS[:1]) == {}
    assert asked.of(1, "orders", 0, RECORDS[:1])
    now[0] += 0.2
    assert asked.of(0, "orders", 0, RECORDS[:1])


def test_questions_that_take_long_are_asked_less_often(server: ReasonServer) -> None:
    now, took = [100.0], [0.0]

    def clock() -> float:
        now[0], took[0] = now[0] + took[0], 0.0
        return now[0]

    asked = Reasons(server.path, "A->B", clock)
    assert asked.of(0, "orders", 0, RECORDS[:1])
    now[0] += 1.1
    asked._ask = lambda *_: took.__setitem__(0, 3.0) or ["late"]  # type: ignore[method-assign]
    assert asked.of(0, "orders", 0, RECORDS[:1]) == {7: "late"}
    now[0] += 11.0
    assert asked.of(0, "orders", 0, RECORDS[:1]) == {}
    now[0] += 1.1
    assert asked.of(0, "orders", 0, RECORDS[:1]) == {7: "late"}


def test_a_question_is_bounded(server: ReasonServer, monkeypatch: pytest.MonkeyPatch) -> None:
    many = [Record(n, 0, None, b"v", ()) for n in range(100, 200)]
    assert list(Reasons(server.path, "A->B").of(0, "t", 0, many)) == list(range(100, 120))
    monkeypatch.setattr(reasons, "_BYTES_MAX", 3)
    assert list(Reasons(server.path, "A->B").of(0, "t", 0, many)) == [100, 101, 102]
    monkeypatch.setattr(reasons, "_BYTES_MAX", 0)
    assert Reasons(server.path, "A->B").of(0, "t", 0, many) == {}


def test_without_a_driver_there_are_no_reasons(
    server: ReasonServer, caplog: pytest.LogCaptureFixture
) -> None:
    assert Reasons("", "A->B").of(0, "t", 0, RECORDS) == {}
    assert not caplog.records
    assert Reasons(server.path, "A->C").of(0, "t", 0, RECORDS) == {}
    server.close()
    assert not Path(server.path).exists()
    assert Reasons(server.path, "A->B").of(0, "t", 0, RECORDS) == {}
    assert "why a transform failed is unknown" in caplog.text


def test_a_question_that_makes_no_sense_does_not_end_the_server(server: ReasonServer) -> None:
    for said in (b"", b"\n", b"{}\nx", b'{"flow": "A->B", "transform": 0}\nnonsense'):
        with socket.socket(socket.AF_UNIX) as asked:
            asked.connect(server.path)
            asked.sendall(said)
            asked.shutdown(socket.SHUT_WR)
            assert asked.recv(100) == b"[]"
    assert Reasons(server.path, "A->B").of(0, "orders", 3, RECORDS[:1])


def test_a_record_that_takes_too_long_is_cancelled(
    server: ReasonServer, spark: _Spark, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python function waits for a core that the slots do not give back."""

    def stuck(*_: Any) -> str:
        assert spark.cancelled.wait(60)
        return "[SPARK_JOB_CANCELLED]"

    monkeypatch.setattr(reasons, "reason_of", stuck)
    monkeypatch.setattr(reasons, "_REPLY_S", 0.1)
    began = time.monotonic()
    assert Reasons(server.path, "A->B").of(0, "orders", 3, RECORDS) == {}
    assert time.monotonic() - began < 30
