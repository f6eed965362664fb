"""One flow is one streaming query: read this first.

::

    readStream.format("sparkmirror")        data/source.py  plans epochs, deals slots
      └─ slot (a task)                      data/slot.py    Fetch → rows of raw batches
    [.mapInArrow, on the record path]       data/route.py   records → partitions, handler
    writeStream.format("sparkmirror")
      └─ the same task's sink               data/sink.py    rows → Produce, then positions

`FlowRunner` starts Spark, one query per flow, and ends them. It holds no data and no positions.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmirror.data import knock
from sparkmirror.data.failures import failure, own_words
from sparkmirror.data.jvm_classes import ClassArchive, Recorder, class_path
from sparkmirror.data.nursery import end_nursery, start_nursery
from sparkmirror.data.plan import encode_flow
from sparkmirror.data.rest import Rest
from sparkmirror.data.revival import Revival, Revivals
from sparkmirror.data.schema import SCHEMA
from sparkmirror.data.scratch import Scratch
from sparkmirror.data.seal import KEY_VARIABLE, new_key
from sparkmirror.data.ship import python_archive
from sparkmirror.errors import ConfigError, MachineError, MirrorError
from sparkmirror.java import find_java, java_environment
from sparkmirror.model import FlowSettings, MirrorSettings
from sparkmirror.observe.logs import SPARK_LOG_FILE_NAME, spark_log4j2_properties

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

__all__ = ["FlowRunner", "local_master", "spark_settings"]

log = logging.getLogger(__name__)

_LOCAL = re.compile(r"local(?:\[(?:(\d+)|\*)(?:\s*,\s*(\d+))?\])?")
_TASK_ATTEMPTS = 8
_POLL_S = 0.05


def local_master(master: str, slots: int, cores: int) -> str:
    """``local[N,attempts]`` with a thread for every slot; other masters stay as they are.

    A slot holds its thread for the whole epoch, so fewer threads than slots would leave some
    partitions unmirrored for as long.
    """
    match = _LOCAL.fullmatch(master.strip())
    if match is None:
        return master
    asked = int(match[1]) if match[1] else cores
    attempts = int(match[2]) if match[2] else _TASK_ATTEMPTS
    return f"local[{max(asked, slots, 1)},{attempts}]"


def spark_settings(
    settings: MirrorSettings, *, master: str, work_dir: Path, cores: int
) -> dict[str, str]:
    """Spark's configuration for the pipeline; each value was measured or has its reason here."""
    slots = sum(flow.tasks_max for flow in settings.flows)
    conf = {
        "spark.master": local_master(master, slots, cores),
        "spark.app.name": "sparkmirror",
        "spark.ui.enabled": "false",
        # Rows must not wait in buffers between Python and the JVM: with the defaults (64 KiB)
        # they did, for seconds.
        "spark.buffer.size": "256",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "sparkmirror.data.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.task.maxFailures": str(_TASK_ATTEMPTS),
        # A slot that waits for data is idle, not stuck.
        "spark.speculation": "false",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.pollingDelay": "100ms",
        # What a stopped query still does is of no use: all that counts is in Kafka.
        "spark.sql.streaming.stopTimeout": "1000",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.adaptive.enabled": "false",
        # Several flows run side by side; their tasks must not queue behind one another.
        "spark.scheduler.mode": "FAIR",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": str(work_dir / "warehouse"),
        "spark.driver.extraJavaOptions": " ".join(
            [
                f"-Dlog4j2.configurationFile={(work_dir / 'log4j2.properties').as_uri()}",
                # The JVM only moves bytes: a small young generation and a serial-like pause are
                # worth more than throughput of the collector.
                "-XX:+UseParallelGC",
                # It carries a few hundred rows a second: the second compiler would take minutes
                # to come to them, and processor time from the start.
                "-XX:TieredStopAtLevel=1",
                "-Dio.netty.tryReflectionSetAccessible=true",
            ]
        ),
    }
    if any(flow.records.used for flow in settings.flows):
        # Else Spark would write rows to the transform until a pipe is full before it reads what
        # came of the first: with rows of a few hundred bytes, for minutes.
        conf["spark.python.udf.pipelined.enabled"] = "true"
    if not conf["spark.master"].startswith("local"):
        conf["spark.driver.host"] = "127.0.0.1" if "127.0.0.1" in master else _own_host()
    return conf


def _own_host() -> str:
    import socket  # noqa: PLC0415  (only for a remote master)

    return socket.gethostbyname(socket.gethostname())


class FlowRunner:
    """Spark and one streaming query per flow.

    ``run_id`` names this run in the control topic; ``work_dir`` takes logs and the disposable
    checkpoints. Raises `MirrorError` from `start`.
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
    ) -> None:
        self._settings = settings
        self._master = master
        self._once = once
        self._user_conf = dict(spark_conf)
        self._work_dir = work_dir
        self._run_id = run_id
        self._key = new_key()
        self._spark: SparkSession | None = None
        self._queries: dict[str, StreamingQuery] = {}
        self._scratch: Scratch | None = None
        self._classes: ClassArchive | None = None
        self._recorder: Recorder | None = None
        self._nursery: subprocess.Popen[bytes] | None = None
        self._revivals = Revivals()
        self._reviving: dict[str, Revival] = {}
        self._stopping = False
        self._rests: dict[StreamingQuery, Rest] = {}
        self._failures: tuple[MirrorError, ...] = ()
        self.at_rest = False

    # -- start -----------------------------------------------------------------------------

    def start(self) -> None:
        """Start Spark if `open` has not, then the queries. Raises `MirrorError`."""
        if self._spark is None:
            self.open()
        assert self._spark is not None
        for flow in self._settings.flows:
            try:
                self._queries[flow.name] = self._start_query(self._spark, flow)
            except Exception as error:
                raise failure(error, flow.name, self._spark_log) from error

    def open(self) -> SparkSession:
        """Start Spark alone: ahead of the queries, or for a job without. Raises `MirrorError`."""
        self._spark = spark = self._session()
        if self._classes is not None and self._class_list.exists():
            self._recorder = Recorder(self._classes, self._class_list, partial(class_path, spark))
        return spark

    @property
    def key(self) -> str:
        """What client properties are sealed with on their way to this run's executors."""
        return self._key

    @property
    def _class_list(self) -> Path:
        return self._work_dir / "classes.list"

    @property
    def _spark_log(self) -> Path:
        return self._work_dir / SPARK_LOG_FILE_NAME

    def _session(self) -> SparkSession:
        java = find_java()
        os.environ.update(java_environment(java))
        os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
        # Slots load our modules at every start; a machine-wide "write no bytecode" would make
        # each of them compile again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        self._work_dir.mkdir(parents=True, exist_ok=True)
        (self._work_dir / "log4j2.properties").write_text(
            spark_log4j2_properties(self._spark_log), encoding="utf-8"
        )
        conf = spark_settings(
            self._settings,
            master=self._master,
            work_dir=self._work_dir,
            cores=os.cpu_count() or 1,
        )
        self._scratch = Scratch.make()
        conf["spark.local.dir"] = str(self._scratch.path / "local")
        self._classes = ClassArchive.find(java)
        conf["spark.driver.extraJavaOptions"] += f' "-Djava.io.tmpdir={self._scratch.path}"'
        if self._classes is not None:
            options = self._classes.options(self._class_list)
            conf["spark.driver.extraJavaOptions"] += "".join(f' "{each}"' for each in options)
        local = conf["spark.master"].startswith("local")
        if not local:
            conf |= python_archive(self._work_dir)
        os.environ["PYSPARK_PYTHON"] = (
            _python_launcher(self._work_dir, self._scratch.path)
            if local
            else _cluster_python(self._user_conf)
        )
        if local:
            with self._spark_log.open("ab") as output:
                self._nursery = start_nursery(self._scratch.path, output)
        conf |= self._user_conf
        os.environ[KEY_VARIABLE] = self._key  # Spark's processes on this machine inherit it
        return self._launch(conf)

    def _launch(self, conf: Mapping[str, str]) -> SparkSession:
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (takes a second)
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        spark_conf = SparkConf(loadDefaults=False)
        for key, value in conf.items():
            spark_conf.set(key, value)
        try:
            with self._spark_log.open("ab") as output:
                # A session of its own: the terminal's Ctrl+C is for us, Spark is told to drain.
                gateway = launch_gateway(  # type: ignore[no-untyped-call]
                    conf=spark_conf,
                    popen_kwargs={
                        "stdout": output,
                        "stderr": output,
                        "start_new_session": True,
                    },
                )
            if not conf["spark.master"].startswith("local"):
                # Only now: what the gateway is given stands on its command line.
                spark_conf.set(f"spark.executorEnv.{KEY_VARIABLE}", self._key)
            spark = SparkSession(SparkContext(conf=spark_conf, gateway=gateway))
        except Exception as error:
            raise MachineError(
                f"Spark does not start ({error}).",
                where=f"master {conf['spark.master']}",
                do=f"Its own words are in {self._spark_log}.",
            ) from error
        _log_server_errors(spark)
        self._check_slots(spark)
        return spark

    def _check_slots(self, spark: SparkSession) -> None:
        """A cluster with fewer cores than slots would leave partitions unmirrored."""
        if str(spark.sparkContext.master).startswith("local"):
            return
        slots = sum(flow.tasks_max for flow in self._settings.flows)
        deadline = time.monotonic() + 60
        cores = 0
        while time.monotonic() < deadline:
            cores = spark.sparkContext.defaultParallelism
            if cores >= slots:
                return
            time.sleep(0.5)
        raise ConfigError(
            f"tasks.max asks for {slots} slots in all flows, the cluster offers {cores} cores.",
            where=f"master {spark.sparkContext.master}",
            do="Lower tasks.max, or give the cluster more cores.",
        )

    def _start_query(
        self, spark: SparkSession, flow: FlowSettings, *, again: bool = False
    ) -> StreamingQuery:
        from sparkmirror.data.source import FORMAT, MirrorDataSource  # noqa: PLC0415

        # For a sink, Spark looks for Python's data sources in the session of the calling thread.
        spark._get_j_spark_session_class(spark._jvm).setActiveSession(spark._jsparkSession)
        spark.dataSource.register(MirrorDataSource)
        options = {
            "flow": encode_flow(flow, self._key),
            "run_id": self._run_id,
            "once": "true" if self._once else "false",
        }
        rows = spark.readStream.format(FORMAT).options(**options).load()
        if flow.records.used:
            from sparkmirror.data.route import record_path  # noqa: PLC0415

            rows = rows.mapInArrow(partial(record_path, options["flow"]), SCHEMA)
        checkpoint = self._work_dir / "checkpoints" / _directory_name(flow.name)
        if not again:
            # Positions live in Kafka; what an earlier run left here would only be replayed.
            shutil.rmtree(checkpoint, ignore_errors=True)
        writer = (
            rows.writeStream.format(FORMAT)
            .queryName(flow.name)
            .options(**options)
            .option("checkpointLocation", str(checkpoint))
        )
        if self._once:
            writer = writer.trigger(availableNow=True)
        return writer.start()

    # -- while it runs ---------------------------------------------------------------------

    def active(self) -> bool:
        """Whether any query still runs (one that waits after a drain does not)."""
        for name in self._queries:
            self._ended(name)  # a query may have ended since `errors` looked
        reviving = any(not revival.done for revival in self._reviving.values())
        if reviving and not self._stopping:
            return True
        return any(self._busy(query) for query in self._queries.values())

    def _busy(self, query: StreamingQuery) -> bool:
        if not self._stopping or self._spark is None:
            return bool(query.isActive)
        if query not in self._rests:
            self._rests[query] = Rest(self._spark, query)
        return self._rests[query].busy()

    def errors(self) -> tuple[MirrorError, ...]:
        """Why queries failed; empty while all is well."""
        if self._spark is None or self.at_rest:
            return self._failures
        found = []
        for name in self._queries:
            error = self._ended(name)
            if error is not None:
                found.append(failure(error, name, self._spark_log))
        return tuple(found)

    def _ended(self, name: str) -> Exception | None:
        """Why a query has ended for good; one that only lost a process is started again."""
        revival = self._reviving.get(name)
        if revival is not None:
            if not revival.done or revival.query is None:
                return revival.error
            self._queries[name] = revival.query
            del self._reviving[name]
        query, spark = self._queries[name], self._spark
        if query.isActive:
            return None
        error = query.exception()
        if error is None or spark is None or self._stopping or own_words(error):
            return error
        if not self._revivals.allow(name, failure(error, name, self._spark_log)):
            return error
        flow = next(flow for flow in self._settings.flows if flow.name == name)
        self._reviving[name] = Revival(partial(self._start_query, spark, flow, again=True))
        return None

    def stop(self, *, grace_s: float) -> None:
        """Wait up to ``grace_s`` for drained queries to come to rest, then stop Spark."""
        self._stopping = True
        deadline = time.monotonic() + grace_s
        with contextlib.suppress(Exception):  # a JVM that was killed cannot say why queries ended
            while (busy := self.active()) and time.monotonic() < deadline:
                time.sleep(_POLL_S)
            self._failures = self.errors()
            self.at_rest = not busy
        if self._recorder is not None:
            self._recorder.close()
        for query in self._queries.values():
            with contextlib.suppress(Exception):  # a query that is gone is stopped
                query.stop()
        if self._spark is not None:
            with contextlib.suppress(Exception):  # so is a JVM that is gone
                self._spark.stop()
            self._end_gateway(self._spark)
            self._spark = None
        if self._nursery is not None:
            end_nursery(self._nursery)
            self._nursery = None
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None

    def _end_gateway(self, spark: SparkSession) -> None:
        from pyspark import SparkContext  # noqa: PLC0415

        gateway = spark.sparkContext._gateway
        if gateway is None:
            return
        with contextlib.suppress(Exception):
            gateway.shutdown()
        process = getattr(gateway, "proc", None)
        if process is not None:
            process.stdin.close()
            with contextlib.suppress(Exception):
                process.wait(5)
            if process.poll() is None:
                process.kill()
        SparkContext._gateway = None
        SparkContext._jvm = None


def _log_server_errors(spark: SparkSession) -> None:
    """PySpark's server for accumulators prints a stack trace when the JVM dies: log it instead."""
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda _request, _address: log.debug(
            "the connection for Spark's accumulators ended", exc_info=True
        )


def _python_launcher(directory: Path, nursery: Path) -> str:
    """A script that starts this Python without ``pyspark.zip`` on the path.

    Modules from a zip are compiled anew by each of the dozen processes that Spark starts before
    the first record; the installed package has its bytecode. Modules that Spark runs are forked
    by the `nursery`.
    """
    python, knocking = (shlex.quote(str(each)) for each in (sys.executable, knock.__file__))
    path = directory / "python"
    path.write_text(
        "#!/bin/sh\n"
        "kept=\n"
        "IFS=:\n"
        "for entry in $PYTHONPATH; do\n"
        '  case "$entry" in\n'
        "    */pyspark.zip|*/py4j-*-src.zip) ;;\n"
        '    *) kept="${kept:+$kept:}$entry" ;;\n'
        "  esac\n"
        "done\n"
        'PYTHONPATH="$kept"\n'
        "export PYTHONPATH\n"
        f'[ "$1" = -m ] && exec {python} -I -S {knocking} {shlex.quote(str(nursery))} "$@"\n'
        f'exec {python} "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o700)
    return str(path)


def _cluster_python(conf: Mapping[str, str]) -> str:
    """The executors' Python: what the user says, else the path of this one."""
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable


def _directory_name(flow: str) -> str:
    return re.sub(r"[^\w.-]", "_", flow)
