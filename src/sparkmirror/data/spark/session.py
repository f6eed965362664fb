"""Spark itself: its settings, its JVM, the processes beside it, and how they end."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE
from sparkmirror.data.spark.class_archive import ClassArchive
from sparkmirror.data.spark.dependencies import python_archive
from sparkmirror.data.spark.extensions import pass_values_quickly, without_ml
from sparkmirror.data.spark.gateway import GATEWAY_PORT, GatewayProcess, spark_home
from sparkmirror.data.spark.page import SparkPage, check_page
from sparkmirror.data.spark.ports import (
    check_local,
    cluster_settings,
    driver_host,
    is_local,
    own_settings,
    secrets_of,
    withheld,
)
from sparkmirror.data.spark.temp_dir import TempDirectory
from sparkmirror.data.workers import prefork_client
from sparkmirror.data.workers.prefork_server import end_prefork_server, start_prefork_server
from sparkmirror.data.workers.spark_versions import (
    check_executors,
    check_installed,
    check_jvm,
    same_release,
)
from sparkmirror.directories import private_directory
from sparkmirror.errors import ConfigError, MachineError, MirrorError
from sparkmirror.java import JavaHome, find_java, java_environment, names_collector
from sparkmirror.names.transforms import needs_spark
from sparkmirror.observe.logs import SPARK_LOG_FILE_NAME, spark_log4j2_properties
from sparkmirror.settings import MirrorSettings

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

__all__ = ["Spark", "task_capacity"]

log = logging.getLogger(__name__)

_LOCAL = re.compile(r"local(?:\[(?:(\d+)|\*)(?:\s*,\s*(\d+))?\])?")
_TASK_ATTEMPTS = 8
_LOCAL_DIRS = ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS")
_JVM_ENDED = "its JVM ended"
_JVM_OPTIONS = "spark.driver.extraJavaOptions"
_JVM_DEFAULT_OPTIONS = "spark.driver.defaultJavaOptions"
# A line of Java's properties, or several of which each but the last ends with a backslash.
_JVM_DEFAULTS = re.compile(
    rf"^[ \t]*{re.escape(_JVM_DEFAULT_OPTIONS)}[ \t]*[=: \t]((?:.*\\\n)*.*)", re.MULTILINE
)
# What Spark's JVM lets Python run before it looks for data sources.
_VERSION_QUESTION = "import sys; print('%d.%d' % sys.version_info[:2])"


def _default_jvm_options() -> str:
    """The options in ``spark-defaults.conf`` that Spark's JVM gets besides ours."""
    home = spark_home() or Path()
    path = Path(os.environ.get("SPARK_CONF_DIR") or home / "conf", "spark-defaults.conf")
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return " ".join(_JVM_DEFAULTS.findall(text))


def _local_master(master: str, slots: int, cores: int) -> str:
    """``local[N,attempts]`` with a thread for every slot; other masters are not changed.

    A slot holds its thread for the whole epoch. With fewer threads than slots, some partitions
    would not be mirrored in that time.
    """
    match = _LOCAL.fullmatch(master.strip())
    if match is None:
        return master
    asked = int(match[1]) if match[1] else cores
    attempts = int(match[2]) if match[2] else _TASK_ATTEMPTS
    return f"local[{max(asked, slots, 1)},{attempts}]"


def _cores_needed(settings: MirrorSettings) -> int:
    """One for each slot, and one that reads static tables again while the slots hold theirs."""
    tables = any(one.tables for flow in settings.flows for one in flow.transforms)
    return sum(flow.tasks_max for flow in settings.flows) + tables


def _evaluates(settings: MirrorSettings) -> bool:
    """Whether Spark evaluates anything for a flow, and does not only carry its rows."""
    return any(needs_spark(flow) for flow in settings.flows)


def _foreign_code(settings: MirrorSettings) -> bool:
    """Whether workers run code of users, which may make arrays of pandas' objects."""
    return any(flow.transforms or flow.records.used for flow in settings.flows)


def _spark_settings(
    settings: MirrorSettings,
    *,
    master: str,
    work_dir: Path,
    scratch: Path,
    cores: int,
    evaluates: bool = False,
    collector: bool = True,
) -> dict[str, str]:
    """Spark's configuration for the pipeline; each value was measured or has its reason here.

    ``evaluates``: whether Spark evaluates expressions, even if no flow of ``settings`` does.
    ``collector``: whether to choose the JVM's garbage collector.
    """
    # Without SQL, the JVM carries a few hundred rows per second. The second compiler would take
    # minutes until it compiles their code, and processor time from the start. SQL is evaluated for
    # each record.
    computes = _evaluates(settings)
    conf = {
        "spark.master": _local_master(master, _cores_needed(settings), cores),
        "spark.app.name": "sparkmirror",
        "spark.ui.enabled": "false",
        # PySpark starts the JVM as a shell, and for shells Spark draws a bar of progress: into our
        # log.
        "spark.ui.showConsoleProgress": "false",
        "spark.ui.killEnabled": "false",  # the UI has no login: others may look, but not end jobs
        # Rows must not wait in buffers between Python and the JVM: with the defaults (64 KiB)
        # they waited for seconds.
        "spark.buffer.size": "256",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "2",
        # Kryo would not take what tasks return, if spark-defaults.conf wants classes registered.
        "spark.serializer": "org.apache.spark.serializer.JavaSerializer",
        "spark.python.worker.reuse": "true",
        "spark.python.daemon.module": "sparkmirror.data.workers.daemon",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.task.maxFailures": str(_TASK_ATTEMPTS),
        # A slot that waits for data is idle, not stuck.
        "spark.speculation": "false",
        "spark.sql.streaming.minBatchesToRetain": "2",
        "spark.sql.streaming.pollingDelay": "100ms",
        # A stopped query need not finish its work: everything that counts is in Kafka.
        "spark.sql.streaming.stopTimeout": "1000",
        "spark.sql.streaming.numRecentProgressUpdates": "2",
        "spark.sql.adaptive.enabled": "false",
        # Several flows run side by side; the tasks of one must not queue behind those of another.
        "spark.scheduler.mode": "FAIR",
        "spark.driver.memory": "1g",
        "spark.sql.warehouse.dir": f"file://{(work_dir / 'warehouse').absolute()}",
        _JVM_OPTIONS: " ".join(
            [
                f"-Dlog4j2.configurationFile={(scratch / 'log4j2.properties').as_uri()}",
                # The JVM only moves bytes. A simple collector is enough, which uses no processor
                # time while it does not collect.
                *(["-XX:+UseParallelGC"] if collector else []),
                *([] if computes else ["-XX:TieredStopAtLevel=1"]),
                # Spark's threads that plan end without memory, and a query without them stands
                # still, but is active. The supervisor starts a run again.
                "-XX:+ExitOnOutOfMemoryError",
                # Spark's analysis goes down into each nested expression: a condition with some
                # hundred parts would overflow the usual 1 MB.
                "-Xss4m",
                "-Dio.netty.tryReflectionSetAccessible=true",
            ]
        ),
    }
    if not (evaluates or computes):
        # Spark would write, compile and load classes that copy rows, for the first epoch.
        conf["spark.sql.codegen.wholeStage"] = "false"
        conf["spark.sql.codegen.factoryMode"] = "NO_CODEGEN"
    if any(flow.records.used for flow in settings.flows):
        # Otherwise Spark would write rows to the transform until a pipe is full, before it reads
        # the results of the first ones: with rows of a few hundred bytes, for minutes.
        conf["spark.python.udf.pipelined.enabled"] = "true"
    return conf | own_settings(master)


class Spark:
    """One Spark application and what it needs. `open` starts it, `close` ends all of it.

    ``key``: the key that seals client properties. ``work_dir`` holds logs and the disposable
    checkpoints. ``ui``: whether Spark's page is on the loopback address; `open` sets ``page``, how
    to reach it. ``record_classes``: write there which classes the JVM loads, and use no archive.
    The constructor raises ConfigError if ``ui`` is impossible.
    """

    def __init__(
        self,
        settings: MirrorSettings,
        *,
        master: str,
        spark_conf: Mapping[str, str],
        work_dir: Path,
        key: str,
        ui: bool = False,
        record_classes: Path | None = None,
    ) -> None:
        self._settings = settings
        self._user_conf = dict(spark_conf)
        # Who may reach Spark's ports depends on the master, so there is one value for it.
        self._master = self._user_conf.pop("spark.master", master)
        self._work_dir = work_dir
        self._key = key
        if ui:
            check_page(self._master, self._user_conf)
        self._page = SparkPage() if ui else None
        self.page = ""
        self._session: SparkSession | None = None
        self._scratch: TempDirectory | None = None
        self._record_classes = record_classes
        # The archive of classes is also for mirrors with transforms.
        self._evaluates = record_classes is not None or _evaluates(settings)
        self._jvm: GatewayProcess | None = None
        self._prefork_server: subprocess.Popen[bytes] | None = None
        self._environment: dict[str, str] | None = None

    @property
    def log_path(self) -> Path:
        """The file with Spark's own log."""
        return self._work_dir / SPARK_LOG_FILE_NAME

    @property
    def sockets(self) -> Path | None:
        """The directory for sockets that Spark's workers reach; None if they are elsewhere."""
        return self._scratch.path if self._scratch and is_local(self._master) else None

    @property
    def ended(self) -> bool:
        """Whether the JVM that `open` started has ended. Asks the kernel, not the JVM."""
        return self._jvm is not None and self._jvm.process.poll() is not None

    def open(self) -> SparkSession:
        """Start the application. Raises `MirrorError`."""
        try:
            self._session = session = self._start()
        except OSError as error:  # no such program, or no space
            raise MachineError(
                f"Spark cannot be started: {error.strerror or error}.",
                where=str(error.filename or self._work_dir),
                do="Check SPARK_HOME, and the space below TMPDIR and the work directory.",
            ) from error
        if self._page is not None:
            header = self._page.write_header(self._work_dir)
            self.page = f"{session.sparkContext.uiWebUrl} (curl -LH @{header} …)"
        return session

    def close(self) -> None:
        """End the application, the JVM and the processes beside it, as far as they still run."""
        if self._session is not None:
            with contextlib.suppress(Exception):  # a JVM that is gone has stopped
                self._session.stop()
            _end_gateway(self._session.sparkContext._gateway)
            self._session = None
        if self._jvm is not None:
            self._jvm.end()
            self._jvm = None
        if self._prefork_server is not None:
            end_prefork_server(self._prefork_server)
            self._prefork_server = None
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None
        if self._environment is not None:
            # The next application of this process must not start the Python of this one, whose
            # directory is gone.
            for name in os.environ.keys() - self._environment.keys():
                del os.environ[name]
            os.environ.update(self._environment)
            self._environment = None

    def _archive_options(self, java: JavaHome) -> list[str]:
        """JVM options of the class archive."""
        if self._record_classes is not None:
            return ClassArchive.recording(self._record_classes)
        archive = ClassArchive.find(java)
        if archive is not None and archive.made:
            log.info("Spark's JVM takes its classes from the archive %s", archive.path)
            return archive.options()
        log.info(
            "Spark's JVM has no class archive, so this start takes some seconds longer."
            " `sparkmirror prepare` makes one, once for each version of Java and PySpark"
        )
        return []

    def _start(self) -> SparkSession:
        local = is_local(self._master)
        if local:
            check_local(self._user_conf)
        rewritten = (flow.name for flow in self._settings.flows if flow.records.used)
        check_installed(os.environ, records=next(rewritten, ""))
        java = find_java()
        self._environment = dict(os.environ)
        os.environ.update(java_environment(java))
        # Slots load our modules at every start. With a machine-wide "write no bytecode", each of
        # them would compile these again.
        os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
        # Spark would prefer them to spark.local.dir, and a JVM that is killed would leave its files
        # there.
        for name in _LOCAL_DIRS:
            os.environ.pop(name, None)
        # Spark runs files of the first directory and trusts those of the other one: both must be
        # this user's alone.
        private_directory(self._work_dir.parent, (self._work_dir.name,))
        self._scratch = TempDirectory.make()
        (self._scratch.path / "log4j2.properties").write_text(
            spark_log4j2_properties(self.log_path), encoding="utf-8"
        )
        conf = _spark_settings(
            self._settings,
            master=self._master,
            work_dir=self._work_dir,
            scratch=self._scratch.path,
            cores=os.cpu_count() or 1,
            evaluates=self._evaluates,
            collector=not names_collector(os.environ, self._given_jvm_options()),
        )
        conf["spark.local.dir"] = str(self._scratch.path / "local")
        for option in (f"-Djava.io.tmpdir={self._scratch.path}", *self._archive_options(java)):
            conf[_JVM_OPTIONS] += f' "{option}"'
        if not local:
            conf |= python_archive(self._scratch.path)
            brokers = (one.source.bootstrap_servers for one in self._settings.flows)
            host = driver_host(self._master, chain.from_iterable(brokers))
            if host and not os.environ.get("SPARK_LOCAL_IP"):
                conf["spark.driver.host"] = host
            # Nothing is imported from a current directory: Python's -P, as a variable.
            os.environ["PYTHONSAFEPATH"] = conf["spark.executorEnv.PYTHONSAFEPATH"] = "1"
        launcher = _python_launcher(self._work_dir, self._scratch.path) if local else None
        os.environ["PYSPARK_PYTHON"] = launcher or _cluster_python(self._user_conf)
        # The one with which the JVM looks for data sources, before the first query.
        os.environ["PYSPARK_DRIVER_PYTHON"] = launcher or sys.executable
        if _JVM_OPTIONS in self._user_conf:  # after ours: of two values, a JVM takes the last
            given = f"{conf[_JVM_OPTIONS]} {self._user_conf[_JVM_OPTIONS]}"
            conf |= {**self._user_conf, _JVM_OPTIONS: given}
        else:
            conf |= self._user_conf
        if self._page is not None:
            conf |= self._page.settings()
            os.environ |= self._page.environment()
        os.environ[KEY_VARIABLE] = self._key  # Spark's processes on this machine inherit it
        with self.log_path.open("ab") as output:
            if GATEWAY_PORT not in os.environ:
                # Everything that the JVM gets now is visible on its command line.
                shown = {key: conf[key] for key in conf.keys() - withheld(conf)}
                # Elsewhere, Spark's planner is a process of the JVM that only SIGTERM ends at once.
                self._jvm = GatewayProcess(shown, self._scratch.path, output, outlasts=local)
            if local:
                jvm = 0 if self._jvm is None else self._jvm.process.pid
                self._prefork_server = start_prefork_server(
                    self._scratch.path, output, jvm, pandas=_foreign_code(self._settings)
                )
        return self._launch(conf)

    def _given_jvm_options(self) -> str:
        """What the user gives Spark's JVM, besides the variables that every JVM reads."""
        given = self._user_conf.get(_JVM_DEFAULT_OPTIONS)
        return " ".join(
            (
                _default_jvm_options() if given is None else given,
                self._user_conf.get(_JVM_OPTIONS, ""),
                os.environ.get("SPARK_SUBMIT_OPTS", ""),
            )
        )

    def _launch(self, conf: Mapping[str, str]) -> SparkSession:
        # Takes a third of a second, in which the JVM starts.
        from pyspark import SparkConf, SparkContext  # noqa: PLC0415
        from pyspark.java_gateway import launch_gateway  # noqa: PLC0415
        from pyspark.sql import SparkSession  # noqa: PLC0415

        pass_values_quickly()
        spark_conf = SparkConf(loadDefaults=False)
        gateway: Any = None
        spark: SparkSession | None = None
        try:
            # Without a process of ours, the environment names a JVM that runs already.
            connect: Callable[[], Any] = launch_gateway if self._jvm is None else self._jvm.connect
            gateway = connect()
            for key, value in conf.items():
                spark_conf.set(key, value)
            if not is_local(self._master):
                self._close_ports(spark_conf, gateway)
            context = SparkContext(conf=spark_conf, gateway=gateway)
            with contextlib.nullcontext() if self._evaluates else without_ml(context):
                spark = SparkSession(context)
            _log_server_errors(spark)
            check_jvm(spark.version)
            self._check_slots(spark)
            if not is_local(self._master):
                check_executors(spark.sparkContext)
        except Exception as error:
            why = _reason(error)
            if spark is not None:
                # PySpark allows one application per process, and still counts this one.
                with contextlib.suppress(Exception):  # a JVM that is gone has stopped
                    spark.stop()
            _end_gateway(gateway)
            if self._jvm is not None:
                self._jvm.end()
                said = self._jvm.last_words() if why == _JVM_ENDED else ""
                why += f": {said}" if said else ""
            if isinstance(error, MirrorError):
                raise
            raise MachineError(
                f"Spark does not start ({why}).",
                where=f"master {conf['spark.master']}",
                do=f"Its log is in {self.log_path}."
                + ("" if is_local(self._master) else f" {same_release()}"),
            ) from error
        return spark

    def _close_ports(self, spark_conf: SparkConf, gateway: Any) -> None:
        """Add the settings that protect a cluster's network; then the key. Raises `ConfigError`."""
        defaults = gateway.jvm.org.apache.spark.SparkConf()  # with those of spark-defaults.conf
        found = {each._1(): each._2() for each in defaults.getAll()} | dict(spark_conf.getAll())
        for key, value in cluster_settings(self._master, found, secrets_of(self._settings)).items():
            spark_conf.set(key, value)
        spark_conf.set(f"spark.executorEnv.{KEY_VARIABLE}", self._key)

    def _check_slots(self, spark: SparkSession) -> None:
        """Raise `ConfigError` if Spark runs fewer tasks at a time than there are slots.

        Some partitions would not be mirrored.
        """
        local = is_local(str(spark.sparkContext.master))
        slots = sum(flow.tasks_max for flow in self._settings.flows)
        needed = _cores_needed(self._settings)
        deadline = time.monotonic() + (0 if local else 60)  # until the executors are there
        while (cores := task_capacity(spark.sparkContext)) < needed:
            if time.monotonic() >= deadline:
                break
            time.sleep(0.5)
        else:
            return
        also = " and one core to read tables" if needed > slots else ""
        where = f"master {spark.sparkContext.master}"
        if local:
            raise ConfigError(
                f"tasks.max asks for {slots} slots in all flows{also}, Spark runs {cores} tasks at "
                "a time.",
                where=where,
                do="Give each task one core: --conf spark.task.cpus=1.",
            )
        raise ConfigError(
            f"tasks.max asks for {slots} slots in all flows{also}, the cluster offers {cores} "
            "cores.",
            where=where,
            do="Lower tasks.max, or give the cluster more cores.",
        )


def task_capacity(context: Any) -> int:
    """How many tasks the executors that are there can run at the same time.

    Not Spark's default parallelism, which is a setting, and 2 at least.
    """
    scala = context._jsc.sc()
    return int(scala.maxNumConcurrentTasks(scala.resourceProfileManager().defaultResourceProfile()))


def _reason(error: Exception) -> str:
    """What an error says, without Java's stack; only the JVM has the text of its exceptions."""
    if isinstance(error, ConnectionError):
        return _JVM_ENDED
    try:
        said = str(error)
    except Exception:  # a Java exception whose JVM is gone
        return _JVM_ENDED
    java = re.search(r"^: (.+)$", said, re.MULTILINE)
    return java[1] if java else said


def _end_gateway(gateway: Any) -> None:
    from pyspark import SparkContext  # noqa: PLC0415

    if gateway is None:
        return
    process = getattr(gateway, "proc", None)
    with contextlib.suppress(Exception):
        # A JVM that was there before us (PYSPARK_GATEWAY_PORT) continues after us.
        gateway.close() if process is None else gateway.shutdown()
    if process is not None:
        process.stdin.close()
        with contextlib.suppress(Exception):
            process.wait(5)
        if process.poll() is None:
            process.kill()
    SparkContext._gateway = None
    SparkContext._jvm = None


def _log_server_errors(spark: SparkSession) -> None:
    """Log one line where PySpark's accumulator server prints a stack trace when the JVM ends."""
    server: Any = getattr(spark.sparkContext, "_accumulatorServer", None)
    if server is not None:
        server.handle_error = lambda _request, _address: log.debug(
            "the connection for Spark's accumulators ended: %r", sys.exception()
        )


def _python_launcher(directory: Path, prefork_dir: Path) -> str:
    """Write a script that starts this Python without ``pyspark.zip`` on the path.

    Modules from a zip are compiled again by each of the dozen processes that Spark starts before
    the first record; the installed package has its bytecode. Modules that Spark runs are forked
    by the `prefork_server`, and its question for Python's version needs no Python. Nothing is
    imported from a current directory (-P). The script is not in the temporary directory, because
    some machines forbid to run programs there.
    """
    python, knocking = (
        shlex.quote(str(each)) for each in (sys.executable, prefork_client.__file__)
    )
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    path = directory / "python"
    path.write_text(
        "#!/bin/sh\n"
        f'[ "$*" = {shlex.quote(f"-c {_VERSION_QUESTION}")} ] && echo {version} && exit\n'
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
        f'[ "$1" = -m ] && exec {python} -I -S {knocking} {shlex.quote(str(prefork_dir))} "$@"\n'
        f'exec {python} -P "$@"\n',
        encoding="utf-8",
    )
    path.chmod(0o700)
    return str(path)


def _cluster_python(conf: Mapping[str, str]) -> str:
    """The executors' Python: the one that the user names, else the path of this one."""
    return conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON") or sys.executable
