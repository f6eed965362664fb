"""One flow is one streaming query: start reading here.

::

    readStream.format("sparkmirror")    data/spark_source.py          plans epochs, assigns slots
      └─ slot (a task)                  data/read/slot_reader.py      Fetch → rows of raw batches
    [.mapInArrow, on the record path]   data/transform/record_path.py records → partitions, handler
    [.select, with transforms]          data/transform/plan.py        the user's SQL
    writeStream.format("sparkmirror")
      └─ the same task's sink           data/write/slot_sink.py       rows → Produce, positions

`FlowRunner` starts Spark, one query per flow, and ends them. It holds no data and no positions.
"""

from __future__ import annotations

import contextlib
import logging
import math
import re
import shutil
import threading
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from sparkmirror.data.coordination.sealed_options import new_key
from sparkmirror.data.coordination.slot_plan import encode_flow
from sparkmirror.data.rows.schema import SCHEMA
from sparkmirror.data.spark.failures import ended_for_repair, failure, own_words, silent
from sparkmirror.data.spark.rest import DrainCheck
from sparkmirror.data.spark.restarts import QueryRestart, RestartLimit
from sparkmirror.data.spark.session import Spark
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.names.transforms import needs_spark
from sparkmirror.observe.figures.queries import QueryFigures
from sparkmirror.settings import FlowSettings, MirrorSettings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from sparkmirror.data.transform.plan import TransformPlan
    from sparkmirror.data.transform.reasons import ReasonServer

__all__ = ["FlowRunner", "query_name"]

log = logging.getLogger(__name__)

_POLL_S = 0.05
_READY_POLL_S = 0.25
# Spark reports a query only when an epoch ends.
_FIGURES_S = 10.0


class FlowRunner:
    """Spark and one streaming query per flow.

    ``run_id`` names this run in the control topic. ``work_dir`` holds logs and the disposable
    checkpoints. ``ui``: whether to show Spark's page. The constructor and `start` raise
    `MirrorError`.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        *,
        master: str,
        once: bool,
        spark_conf: Mapping[str, str],
        work_dir: Path,
        run_id: str,
        ui: bool = False,
    ) -> None:
        self._settings = settings
        self._once = once
        self._work_dir = work_dir
        self._run_id = run_id
        self._key = new_key()
        self._spark = Spark(
            settings, master=master, spark_conf=spark_conf, work_dir=work_dir, key=self._key, ui=ui
        )
        self._session: SparkSession | None = None
        self._plans: dict[str, TransformPlan] = {}
        self._reasons: ReasonServer | None = None
        self._queries: dict[str, StreamingQuery] = {}
        self._wanted: frozenset[str] = frozenset()
        self._starting = threading.Lock()
        self._changing = threading.Lock()  # of _queries and _wanted
        self._looking = threading.Lock()  # a stop looks at the queries, too
        self._revivals = RestartLimit()
        self._reviving: dict[str, QueryRestart] = {}
        self._restarts: Counter[str] = Counter()
        self._figures: Mapping[str, QueryFigures] = {}
        self._figures_at_s = -math.inf
        self._stopping = False
        self._rests: dict[StreamingQuery, DrainCheck] = {}
        self._failures: tuple[MirrorError, ...] = ()
        self.at_rest = False

    # -- start -----------------------------------------------------------------------------

    def start(self, flows: Iterable[str]) -> None:
        """Start Spark if `open` has not, then those queries of ``flows`` that do not run yet.

        Raises `MirrorError`.
        """
        spark, wanted = self._session or self.open(), frozenset(flows)
        for flow in self._settings.flows:
            if flow.name not in wanted or flow.name in self._wanted:
                continue
            with self._starting:
                query = self._queries.get(flow.name)
                try:
                    if query is None or not query.isActive:
                        query = self._start_query(spark, flow)
                except Exception as error:
                    raise failure(error, flow.name, self._spark.log_path) from error
                self._keep(flow.name, query)
                with self._changing:
                    self._wanted |= {flow.name}

    def stand_by(self, flows: Iterable[str]) -> None:
        """Prepare the queries of ``flows``, which other processes mirror.

        When this process takes over a flow, nothing has to be loaded any more. Until then, its
        query mirrors nothing. Returns when the queries are ready, or cannot be. Errors are only
        logged: the query is started again when it is needed.
        """
        spark, waiting = self._session, frozenset(flows)
        for flow in self._settings.flows:
            with self._starting:
                if spark is None or self._stopping:
                    return
                if flow.name not in waiting or flow.name in self._queries:
                    continue
                try:
                    query = self._start_query(spark, flow)
                except Exception as error:
                    log.warning("flow %s: its query is not ready: %s", flow.name, error)
                    continue
                self._keep(flow.name, query)
            self._await_rehearsal(query)

    def _keep(self, name: str, query: StreamingQuery) -> None:
        with self._changing:
            # Another thread may be reading them.
            self._queries = {**self._queries, name: query}

    def _await_rehearsal(self, query: StreamingQuery) -> None:
        with contextlib.suppress(Exception):  # the JVM may end meanwhile
            while query.isActive and not self._stopping and query.lastProgress is None:
                time.sleep(_READY_POLL_S)

    def open(self) -> SparkSession:
        """Start Spark alone: before the queries, or for a job without any. Raises `MirrorError`.

        The SQL of transforms is checked, and their handlers.
        """
        self._session = self._spark.open()
        for flow in self._settings.flows:
            if needs_spark(flow):
                from sparkmirror.data.transform.plan import TransformPlan  # noqa: PLC0415

                self._plans[flow.name] = TransformPlan(self._session, flow)
            else:
                _check_handlers(flow)
        if self._plans and self._spark.sockets is not None:
            from sparkmirror.data.transform.reasons import ReasonServer  # noqa: PLC0415

            self._reasons = ReasonServer(self._spark.sockets, self._plans)
        return self._session

    def tables(self, flow: str) -> tuple[TableState, ...]:
        """The static tables of ``flow``; empty before `open`."""
        plan = self._plans.get(flow)
        return () if plan is None else plan.tables.states()

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        """Read ``table`` of ``flow`` again, or all its tables; epochs that begin later have them.

        Empty before `open`. A table that cannot be read keeps its rows, and has a fault.
        """
        plan = self._plans.get(flow)
        return () if plan is None else plan.tables.reload(table)

    @property
    def page(self) -> str:
        """How to reach Spark's page; empty without one, and before `open`."""
        return self._spark.page

    @property
    def key(self) -> str:
        """The key of this run: it seals client properties and signs assignments."""
        return self._key

    def _start_query(
        self, spark: SparkSession, flow: FlowSettings, *, again: bool = False
    ) -> StreamingQuery:
        from sparkmirror.data.spark_source import FORMAT, MirrorDataSource  # noqa: PLC0415

        plan = self._plans.get(flow.name)
        if plan is not None:
            spark = plan.session
        # For a sink, Spark looks for Python's data sources in the session of the calling thread.
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        spark.dataSource.register(MirrorDataSource)
        options = {
            "flow": encode_flow(replace(flow, signed=True), self._key),
            "run_id": self._run_id,
            "once": "true" if self._once else "false",
        }
        if plan is not None:
            options["columns"] = plan.columns
            options["reasons"] = "" if self._reasons is None else self._reasons.path
        rows = spark.readStream.format(FORMAT).options(**options).load()
        if flow.records.used:
            from sparkmirror.data.transform.record_path import record_path  # noqa: PLC0415

            rows = rows.mapInArrow(partial(record_path, options["flow"]), SCHEMA)
        if plan is not None:
            rows = plan.transformed(rows)
        checkpoint = self._work_dir / "checkpoints" / _directory_name(flow.name)
        if not again:
            # Positions live in Kafka; what an earlier run left here would only be replayed.
            shutil.rmtree(checkpoint, ignore_errors=True)
        writer = (
            rows.writeStream.format(FORMAT)
            .queryName(query_name(flow))
            .options(**options)
            # With a scheme, because Hadoop's settings may name another file system. Not encoded
            # like a URI, because Spark would keep the percent signs.
            .option("checkpointLocation", f"file://{checkpoint.absolute()}")
        )
        if self._once:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    # -- while it runs ---------------------------------------------------------------------

    def active(self) -> bool:
        """Whether any query still runs; one that is idle after a drain does not count.

        If none does, `errors` says afterwards whether any has failed. Raises ``ConnectionError``
        if Spark's JVM has ended.
        """
        if self._spark.ended:  # a standby wants no query, and would never learn of it
            raise ConnectionError("the JVM has ended")
        with self._looking:
            wanted = self._wanted
            # First, because `_ended` does not see the error of a query that ends later.
            busy = any(self._returns(name) or self._busy(self._queries[name]) for name in wanted)
            for name in wanted:
                self._ended(name)
            return busy or any(self._returns(name) for name in wanted)

    def _returns(self, name: str) -> bool:
        """Whether a query is being restarted, or was and is not yet one of ``_queries``."""
        revival = self._reviving.get(name)
        if revival is None or self._stopping:
            return False
        return not revival.done or revival.query is not None

    def _busy(self, query: StreamingQuery) -> bool:
        if not self._stopping or self._session is None:
            return bool(query.isActive)
        if query not in self._rests:
            self._rests[query] = DrainCheck(self._session, query)
        return self._rests[query].busy()

    def errors(self) -> tuple[MirrorError, ...]:
        """Why queries failed; empty if none has."""
        if self._session is None or self.at_rest:
            return self._failures
        found = []
        with self._looking:
            for name in self._wanted:
                error = self._ended(name)
                if error is not None:
                    found.append(failure(error, name, self._spark.log_path))
        return tuple(found)

    def _ended(self, name: str) -> Exception | None:
        """Why a query has ended for good, or None.

        A query that only lost a process is restarted, and so is one whose tasks ended for a repair
        more often than Spark allows in one epoch.
        """
        revival = self._reviving.get(name)
        if revival is not None:
            if revival.done and revival.query is not None:
                self._keep(name, revival.query)
                del self._reviving[name]
            elif revival.error is not None or not self._stopping:
                return revival.error
            # Else a stop came before the restart: what its slots had read may not be written.
        query, spark = self._queries[name], self._session
        if query.isActive:
            return None
        error = query.exception()
        if error is None or spark is None:
            return error
        if self._stopping:
            lost = not own_words(error) and DrainCheck(spark, query).drained()
            return None if lost else error  # only a process beside the slots was lost
        if own_words(error) and not ended_for_repair(error):
            return error
        pause_s = self._revivals.allow(name, failure(error, name, self._spark.log_path))
        if pause_s is None:
            return error
        flow = next(flow for flow in self._settings.flows if flow.name == name)
        start = partial(self._start_query, spark, flow, again=True)
        self._reviving[name] = QueryRestart(start, pause_s)
        self._restarts[name] += 1
        return None

    def figures(self) -> Mapping[str, QueryFigures]:
        """What Spark reports about each query, by flow; at most some seconds old."""
        now_s = time.monotonic()
        if now_s - self._figures_at_s >= _FIGURES_S:
            self._figures_at_s = now_s
            with contextlib.suppress(Exception):  # the JVM may have ended
                self._figures = {
                    name: _figures(query, self._restarts[name], self._figures.get(name))
                    for name, query in self._queries.items()
                }
        return self._figures

    def end(self, flow: str, *, grace_s: float) -> bool:
        """Wait for ``grace_s`` until a query that was told to drain is idle, then end it.

        Returns False if `stop` was called meanwhile and ends it, if the query failed before its
        slots had drained (that one stays, for `errors`), or if it is just being started again.
        """
        query, session = self._queries[flow], self._session
        if session is None:
            return False
        rest, deadline = DrainCheck(session, query), time.monotonic() + grace_s
        while rest.busy():
            if self._stopping:
                return False
            if time.monotonic() > deadline:
                log.warning(
                    "flow %s: its drain took longer than %g s and was cut short", flow, grace_s
                )
                break
            time.sleep(_POLL_S)
        failed = not query.isActive and query.exception() is not None
        if self._stopping or (failed and not rest.drained()):
            return False
        with self._looking:  # which may be about to start it again
            revival = self._reviving.get(flow)
            if self._queries[flow] is not query or (revival and not revival.cancel()):
                return False
            self._reviving.pop(flow, None)
            with self._changing:
                self._wanted -= {flow}
        with contextlib.suppress(Exception):  # Spark waits a second for its thread
            query.stop()
        return True

    def stop(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` until drained queries are idle, then stop Spark.

        A JVM that has ended cannot say whether they drained: that is one of `errors`.
        """
        self._stopping = True
        for revival in list(self._reviving.values()):
            revival.cancel()
        deadline = time.monotonic() + grace_s
        try:
            while (busy := self.active()) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            self._failures = self.errors()
            self.at_rest = not busy
        except Exception as error:
            self._failures = (silent(type(error).__name__),)
            self.at_rest = True  # nothing runs any more
        for query in self._queries.values():
            with contextlib.suppress(Exception):  # a query that is gone is stopped
                query.stop()
        self._spark.close()
        self._session = None
        if self._reasons is not None:
            self._reasons.close()
            self._reasons = None


def _figures(query: StreamingQuery, restarts: int, before: QueryFigures | None) -> QueryFigures:
    progress = query.lastProgress
    if progress is None:  # a query that was restarted goes on counting its epochs
        return replace(before or QueryFigures(), restarts=restarts)
    rows_s = float(progress["processedRowsPerSecond"])
    return QueryFigures(
        int(progress["batchId"]) + 1,
        restarts,
        rows_s if math.isfinite(rows_s) else 0.0,
        {str(phase): int(ms) for phase, ms in progress["durationMs"].items()},
    )


def _check_handlers(flow: FlowSettings) -> None:
    """Load the handlers of a flow without SQL, as each sink does. Raises ConfigError."""
    for one in flow.transforms:
        if one.handler:
            from sparkmirror.data.transform.record_handler import RecordHandler  # noqa: PLC0415

            RecordHandler(one, lambda: None)


def query_name(flow: FlowSettings) -> str:
    """The query's name in Spark, which also begins the descriptions of its jobs and stages."""
    if not flow.transforms:
        return flow.name
    return f"{flow.name}, transform {', '.join(one.name for one in flow.transforms)}"


def _directory_name(flow: str) -> str:
    return re.sub(r"[^\w.-]", "_", flow)
