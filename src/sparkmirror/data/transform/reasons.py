"""The sink asks the driver why a transform failed on a record; only the driver can run SQL.

Both are on one machine: with a local master. The question goes through a Unix socket in the run's
temporary directory, which is this user's alone. The first line says of which transform it is, and
the records follow as an Arrow stream. The reply is a JSON list, one text per record. On a Spark
cluster nobody is asked.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import socket
import socketserver
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from sparkmirror.data.transform.spark_errors import reason_of, table_of
from sparkmirror.records.records import Record

if TYPE_CHECKING:
    from sparkmirror.data.transform.plan import TransformPlan

__all__ = ["ReasonServer", "Reasons"]

log = logging.getLogger(__name__)

_NAME = "reasons"
_INTERVAL_S = 1.0
# Of the time that the last question took: a sink waits for a fifth of its time at most.
_PAUSE_TIMES = 4
_RECORDS_MAX = 20
_BYTES_MAX = 8 << 20
_QUESTION_BYTES_MAX = 4 * _BYTES_MAX
# The sink waits for the reply, for less than the time after which another process takes the flow.
# A busy machine takes seconds for the first one.
_REPLY_S = 6.0
_TIMEOUT_S = 8.0


class Reasons:
    """Asks for one task of flow ``flow``. ``path``: of the socket; empty: there is none.

    At most one question per second and transform, about `_RECORDS_MAX` records, and fewer where
    replies take long: where everything fails, the reasons of some records must not stop the mirror.
    """

    def __init__(self, path: str, flow: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._path = path
        self._flow = flow
        self._clock = clock
        self._next_s: dict[int, float] = {}

    def of(
        self, number: int, topic: str, partition: int, records: Sequence[Record]
    ) -> dict[int, str]:
        """Reasons by source offset, for some of ``records``, on which transform ``number`` failed.

        Empty if none can be had now.
        """
        now = self._clock()
        if not self._path or now < self._next_s.get(number, now):
            return {}
        some = _first(records)
        try:
            found = self._ask(number, table_of(topic, partition, some)) if some else []
        except (OSError, ValueError) as error:
            log.warning("flow %s: why a transform failed is unknown: %s", self._flow, error)
            found = []
        ended = self._clock()
        self._next_s[number] = ended + max(_INTERVAL_S, _PAUSE_TIMES * (ended - now))
        return {one.offset: text for one, text in zip(some, found, strict=False) if text}

    def _ask(self, number: int, table: pa.Table) -> list[str]:
        with socket.socket(socket.AF_UNIX) as asked:
            asked.settimeout(_TIMEOUT_S)
            asked.connect(self._path)
            head = json.dumps({"flow": self._flow, "transform": number})
            asked.sendall(head.encode() + b"\n" + _encoded(table))
            asked.shutdown(socket.SHUT_WR)
            with asked.makefile("rb") as reply:
                return list(map(str, json.loads(reply.read())))


class ReasonServer:
    """Answers the tasks of this run, in a thread of its own. ``plans``: by flow.

    ``directory``: where the socket is created. Close it after Spark, which ends a job that it waits
    for.
    """

    def __init__(self, directory: Path, plans: Mapping[str, TransformPlan]) -> None:
        self.path = str(directory / _NAME)
        self._plans = plans

        class Handler(socketserver.StreamRequestHandler):
            timeout = _TIMEOUT_S

            def handle(handler) -> None:  # noqa: N805
                with contextlib.suppress(OSError):  # the task may be gone
                    handler.wfile.write(self._reply(handler.rfile))

        self._server = socketserver.UnixStreamServer(self.path, Handler)
        os.chmod(self.path, 0o600)
        self._thread = threading.Thread(
            target=self._server.serve_forever, name="sparkmirror-reasons", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Answer no more questions."""
        self._server.shutdown()
        self._server.server_close()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path)

    def _reply(self, question: Any) -> bytes:
        found: list[str] = []
        try:
            head = json.loads(question.readline(_QUESTION_BYTES_MAX))
            plan, number = self._plans[head["flow"]], int(head["transform"])
            table = _decoded(question.read(_QUESTION_BYTES_MAX))
            until = time.monotonic() + _REPLY_S
            for row in range(table.num_rows):
                if time.monotonic() > until:
                    break
                found.append(_bounded(plan, number, table.slice(row, 1)))
        except Exception:  # the records are reported, if without this
            log.debug("a question about a failed record has no answer", exc_info=True)
        return json.dumps(found).encode()


def _bounded(plan: TransformPlan, number: int, record: pa.Table) -> str:
    """`reason_of`, or nothing if it takes too long.

    Python functions need a task of Spark, and the slots may occupy all of its cores.
    """
    spark, name = plan.session.sparkContext, plan.planned[number].settings.name
    group, over = f"sparkmirror-reason-{threading.get_ident()}", threading.Event()

    def cancel() -> None:
        over.set()
        spark.cancelJobGroup(group)

    spark.setJobGroup(group, f"transform {name}: why it failed on a record", True)
    timer = threading.Timer(_REPLY_S, cancel)
    timer.start()
    try:
        reason = reason_of(plan, number, record)
    finally:
        timer.cancel()
    return "" if over.is_set() else reason


def _first(records: Sequence[Record]) -> list[Record]:
    """The first of ``records``, as many as one question may have."""
    some: list[Record] = []
    size = 0
    for one in records[:_RECORDS_MAX]:
        size += len(one.key or b"") + len(one.value or b"")
        size += sum(len(name) + len(value or b"") for name, value in one.headers)
        if size > _BYTES_MAX:
            break
        some.append(one)
    return some


def _encoded(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _decoded(data: bytes) -> pa.Table:
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
