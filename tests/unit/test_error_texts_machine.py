"""More errors that the user meets: this machine, its files, the demo, brokers for tests."""

from __future__ import annotations

import errno
import importlib.util
import subprocess
import tempfile
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror import java
from sparkmirror.cache import cache_directory
from sparkmirror.cli.run import run as run_module
from sparkmirror.cli.run.parts import RunOptions
from sparkmirror.config import connectors, strimzi
from sparkmirror.config.clients.jaas import java_system_properties
from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.table.settings import REMOVED_KEYS
from sparkmirror.data.spark import session
from sparkmirror.data.spark.dependencies import _places
from sparkmirror.demo import mirror, run, verify
from sparkmirror.demo.traffic import Traffic
from sparkmirror.demo.transactions import send_payments
from sparkmirror.doctor import executors
from sparkmirror.errors import ClusterError, ConfigError, MachineError, MirrorError
from sparkmirror.settings import MirrorSettings
from sparkmirror.testing import maven, zookeeper
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.jvm import KafkaRuntime
from sparkmirror.testing.probe import free_ports
from tests.unit.config_files import BASE, LINE, QUIET, refused, write
from tests.unit.test_error_texts import FLOW, check

XDG = "Set XDG_CACHE_HOME"


def as_self(**fields: Any) -> Any:
    """An object with what a method needs of its own."""
    return SimpleNamespace(**fields)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that does."""

    def call(*_: object, **__: object) -> Any:
        raise error

    return call


FULL = OSError(errno.ENOSPC, "No space left on device")


# --- the machine --------------------------------------------------------------------------------


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", raising(RuntimeError("no home")))
    check(lambda: cache_directory("x"), MachineError, "no home directory", "", XDG)


def test_a_cache_below_a_file_cannot_be_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = write(tmp_path, "", "file") / "below"
    monkeypatch.setenv("XDG_CACHE_HOME", str(base))
    where = str(base / "sparkmirror" / "x")
    check(lambda: cache_directory("x"), MachineError, "(Not a directory)", where, XDG)


def test_what_the_cache_has_no_room_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(tempfile, "mkstemp", raising(FULL))
    home: Any = SimpleNamespace(java=Path("/opt/java/bin/java"))
    check(
        lambda: java._home_without_module(home), MachineError, "(No space left on device)",
        "bin/java", XDG,
    )  # fmt: skip

    archive = write(tmp_path, "", "file") / "kafka.jsa"
    runtime = as_self(archive=archive, further=())
    check(
        lambda: KafkaRuntime.archive_to_record(runtime), MachineError, "class archive cannot be",
        str(archive.with_suffix(".part")), XDG,
    )  # fmt: skip

    monkeypatch.setattr(maven, "_fetch", raising(FULL))
    check(
        lambda: maven.resolve("a:b:1", java=home), MachineError, "(No space left on device)",
        "maven", "Free some disk space",
    )  # fmt: skip


def test_a_pyspark_without_ivy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    with monkeypatch.context() as patch:
        patch.setattr(importlib.util, "find_spec", lambda _: place)
        check(
            maven._ivy_jar, MachineError, "Ivy jar is missing", str(tmp_path / "jars"),
            "Install PySpark again",
        )  # fmt: skip


def test_a_package_that_is_not_here_cannot_be_shipped() -> None:
    what = "the package none_such cannot be shipped"
    check(lambda: _places("none_such"), MachineError, what, "", "Install sparkmirror with pip")


def test_a_log_file_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_file = write(tmp_path, "", "file") / "mirror.log"
    settings = MirrorSettings((FLOW,), ())
    options = RunOptions(log_file=log_file, work_dir=tmp_path / "work", live=False)
    check(
        lambda: run_module._run_shown(settings, options, None), MachineError,
        f"{log_file} cannot be written", "--log-file", "a directory that exists",
    )  # fmt: skip
    monkeypatch.setattr(run_module, "open_logs", raising(FULL))
    options = RunOptions(work_dir=tmp_path / "work", live=False)
    check(
        lambda: run_module._run_shown(settings, options, None), MachineError,
        "sparkmirror.log cannot be written", str(tmp_path / "work"), "Free some disk space",
    )  # fmt: skip


# --- settings -----------------------------------------------------------------------------------


def test_kafka_opts_with_an_open_quote() -> None:
    check(
        lambda: java_system_properties({"KAFKA_OPTS": "-Da='x"}), ConfigError,
        "KAFKA_OPTS cannot be read", "environment", "Close the quotes",
    )  # fmt: skip


PROVIDER = "org.apache.kafka.common.config.provider."


def test_placeholders_of_files_that_do_not_hold_them(tmp_path: Path) -> None:
    write(tmp_path, "user=u\n", "secrets.properties")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for kind, placeholder, what, do in (
        ("File", f"{tmp_path}/secrets.properties:pass", "no such key", "Add the key to "),
        ("Directory", f"{tmp_path}:binary", "(UnicodeDecodeError)", "a UTF-8 text"),
    ):
        lines = (
            f"config.providers=p\nconfig.providers.p.class={PROVIDER}{kind}ConfigProvider\n"
            f"A.client.id=${{p:{placeholder}}}\n"
        )
        error = refused(tmp_path, BASE + QUIET + lines)
        assert what in error.what
        assert error.where.endswith(f":{LINE + QUIET.count(chr(10)) + 2}")
        assert do in error.do


@pytest.mark.parametrize("value", ["skip", "dead-letter"])
def test_a_flow_by_key_leaves_no_record_out(tmp_path: Path, value: str) -> None:
    consumer = write(
        tmp_path,
        f"bootstrap.servers=a:1\ngroup.id=g\nsparkmirror.on.bad.record={value}\n",
        "consumer.properties",
    )
    producer = write(tmp_path, "bootstrap.servers=b:1\n", "producer.properties")
    check(
        lambda: load_mm1(consumer, producer, include="t"), ConfigError,
        f"sparkmirror.on.bad.record={value} contradicts", f"{consumer}:3", "Remove the key",
    )  # fmt: skip


def test_keys_that_mirrormaker_no_longer_has_are_named_as_they_stand() -> None:
    """In a connector's JSON, and in a Strimzi resource."""
    name, instead = next(item for item in REMOVED_KEYS.items() if item[1])
    what, do = f"B.{name} is not a key of MirrorMaker", f"Write B.{instead}."
    entry = Entry(f"target.cluster.{name}", "x", Origin.in_file("c.json:3"))
    check(
        lambda: connectors._check(entry, f"B.{name}", ("B",)), ConfigError,
        f"target.cluster.{name}: {what}", "c.json:3", do,
    )  # fmt: skip
    path = f"spec.clusters[0].config.{name}"
    node: Any = SimpleNamespace(value="x", text=lambda: "x", path=path, where="m.yaml:4")
    check(
        lambda: strimzi._Reader._cluster_key(as_self(), "B", name, node), ConfigError,
        f"{path}: {what}", "m.yaml:4", do,
    )  # fmt: skip


# --- Spark --------------------------------------------------------------------------------------


def test_a_spark_that_runs_fewer_tasks_than_there_are_slots(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = count(0, 30)
    clock = SimpleNamespace(monotonic=lambda: next(seconds), sleep=lambda _: None)
    monkeypatch.setattr(session, "time", clock)
    room = {"default": 3}
    manager = SimpleNamespace(defaultResourceProfile=lambda: "default")
    scala = SimpleNamespace(
        resourceProfileManager=lambda: manager, maxNumConcurrentTasks=room.__getitem__
    )
    context = SimpleNamespace(
        master="spark://host:7077",
        defaultParallelism=200,  # as spark.default.parallelism says
        _jsc=SimpleNamespace(sc=lambda: scala),
    )
    spark: Any = SimpleNamespace(sparkContext=context)
    ours = as_self(
        _settings=SimpleNamespace(flows=[SimpleNamespace(tasks_max=2, transforms=())] * 2)
    )
    check(
        lambda: session.Spark._check_slots(ours, spark), ConfigError,
        "4 slots in all flows, the cluster offers 3 cores", "master spark://host:7077",
        "Lower tasks.max",
    )  # fmt: skip
    reads = SimpleNamespace(tables=("customers",))
    ours._settings.flows[0] = SimpleNamespace(tasks_max=2, transforms=(reads,))
    room["default"] = 4
    check(
        lambda: session.Spark._check_slots(ours, spark), ConfigError,
        "4 slots in all flows and one core to read tables, the cluster offers 4 cores",
        "master spark://host:7077", "Lower tasks.max",
    )  # fmt: skip
    context.master = "local[5,8]"
    check(
        lambda: session.Spark._check_slots(ours, spark), ConfigError,
        "4 slots in all flows and one core to read tables, Spark runs 4 tasks at a time",
        "master local[5,8]", "--conf spark.task.cpus=1",
    )  # fmt: skip
    room["default"] = 5
    session.Spark._check_slots(ours, spark)


@pytest.mark.parametrize(
    ("failed", "where"),
    [
        (FileNotFoundError(2, "No such file or directory", "/gone/bin/spark-submit"), "/gone/bin"),
        (OSError(28, "No space left on device"), "/work"),
    ],
    ids=["spark-home", "disk-full"],
)
def test_a_spark_that_cannot_be_started(failed: OSError, where: str) -> None:
    ours = as_self(_start=raising(failed), _work_dir="/work")
    check(
        lambda: session.Spark.open(ours), MachineError, failed.strerror or "", where, "SPARK_HOME"
    )


def test_a_job_on_the_executors_that_fails() -> None:
    said = RuntimeError("Job aborted:\nnot enough slots for the barrier\n")
    context: Any = SimpleNamespace(master="spark://host:7077", parallelize=raising(said))
    check(
        lambda: executors._run(context, 2, {}), MachineError,
        "(not enough slots for the barrier)", "master spark://host:7077", "free cores",
    )  # fmt: skip


# --- the demo -----------------------------------------------------------------------------------


def test_a_directory_for_the_demo(tmp_path: Path) -> None:
    used, file = tmp_path / "used", write(tmp_path, "", "file")
    (used / "below").mkdir(parents=True)
    for path, what, do in (
        (used, "The directory is not empty.", "Name a new directory"),
        (file, "The directory cannot be used (", "that you may write to"),
    ):
        demo = as_self(_options=SimpleNamespace(directory=path))
        check(
            lambda demo=demo: run.Demo._own_directory(demo), MachineError, what, f"--dir {path}",
            do,
        )  # type: ignore[misc]  # fmt: skip


def test_records_of_the_demo_that_did_not_arrive(tmp_path: Path) -> None:
    source = SimpleNamespace(records=1_999)
    demo = as_self(traffic=SimpleNamespace(expected={"orders": 2_000}), directory=tmp_path)
    results: Any = [SimpleNamespace(topic="orders", source=source)]
    check(
        lambda: run.Demo._check_sent(demo, results), ClusterError,
        "2,000 records were sent, but 1,999 were found.", "cluster A, topic orders",
        "produce-orders.log",
    )  # fmt: skip


def test_topics_of_the_demo_without_leaders(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "PATIENCE_S", -1.0)
    demo = as_self(
        names=["orders"],
        source=SimpleNamespace(
            create_topics=lambda _: {},
            topics=lambda _: {"orders": SimpleNamespace(leaderless=[0])},
        ),
    )
    check(
        lambda: run.Demo._create_topics(demo), ClusterError, "have no leaders", "cluster A",
        "Check free memory",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("lines", "said"), [("x\nnot enough memory\n", "not enough memory"), ("", "it printed nothing")]
)
def test_a_producer_of_the_demo_that_fails(tmp_path: Path, lines: str, said: str) -> None:
    log = write(tmp_path, lines, "produce-orders.log")
    traffic = as_self(_log=lambda _: log, _cluster=SimpleNamespace(name="A"))
    topic: Any = SimpleNamespace(name="orders")

    def call() -> None:
        raise Traffic._failed(traffic, topic, "ended with exit code 1")

    what = f"Kafka's producer ended with exit code 1: {said}"
    check(call, ClusterError, what, "cluster A, topic orders", str(log))


def test_a_transaction_of_the_demo_that_fails() -> None:
    server = f"127.0.0.1:{free_ports(1)[0]}"
    check(
        lambda: send_payments(server, "payments", [], transactional_id="t", timeout_s=0.1),
        ClusterError, "A transaction failed: cluster demo", f"{server}, topic payments",
        "broker's log",
    )  # fmt: skip


def test_a_console_consumer_that_ends_too_soon() -> None:
    cluster: Any = SimpleNamespace(alias="B", committed_offsets=lambda *_: {})
    reader: Any = SimpleNamespace(topic="A.orders", group="g", runs=False)
    partitions: Any = {"A.orders": ["A.orders-0"]}
    ends: Any = {"A.orders-0": 5}
    check(
        lambda: verify._at_end(cluster, reader, partitions, ends), ClusterError,
        "did not read A.orders to its end", "cluster B", "run the check again",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("code", "said", "drained"),
    [
        (3, "ended with exit code 3", "exit code 3 when it was"),
        (None, "timed out", "did not end 120 s"),
    ],
)
def test_a_mirror_of_the_demo_that_does_not_do_its_work(
    code: int | None, said: str, drained: str
) -> None:
    process = SimpleNamespace(
        poll=lambda: code,
        send_signal=lambda _: None,
        wait=raising(subprocess.TimeoutExpired("x", 1)) if code is None else lambda _: code,
    )
    child = as_self(_process=process, _work_dir=Path("/w"), close=lambda: None)
    check(
        lambda: mirror.MirrorProcess.wait_for(
            child, lambda: False, timeout_s=-1.0, what="it mirrored"
        ),
        MirrorError, f"The mirror {said} before it mirrored", "/w", "log files",
    )  # fmt: skip
    check(lambda: mirror.MirrorProcess.drain(child), MirrorError, drained, "/w", "log files")


# --- brokers for tests --------------------------------------------------------------------------


def test_a_tool_that_does_not_end() -> None:
    cluster = as_self(tool_command=lambda *_: ["sleep", "30"], _home="/home-of-it")
    check(
        lambda: KafkaCluster.tool(cluster, "kafka.Tool", timeout_s=0.05), MachineError,
        "did not end within 0 s", "kafka.Tool", "/home-of-it",
    )  # fmt: skip


def test_a_zookeeper_that_does_not_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "START_TIMEOUT_S", -1.0)
    server = as_self(
        _directory=tmp_path,
        _port=1,
        _runtime=SimpleNamespace(command=lambda *_, **__: ["true"]),
        _answers=lambda: False,
        _process=None,
    )
    server.stop = lambda: zookeeper.ZooKeeper.stop(server)
    check(
        lambda: zookeeper.ZooKeeper.start(server), MachineError, "ZooKeeper did not start: ",
        str(tmp_path / "zookeeper.log"), "Check free memory",
    )  # fmt: skip
    assert server._process is None


def test_a_broker_that_zookeeper_does_not_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    client = SimpleNamespace(
        start=lambda timeout: None,
        exists=lambda path: path == "/west/brokers/ids/2" or None,
        stop=lambda: None,
        close=lambda: None,
    )
    monkeypatch.setattr(zookeeper, "KazooClient", lambda **_: client)
    monkeypatch.setattr(zookeeper, "START_TIMEOUT_S", -1.0)
    server = as_self(connect="z:2181")
    check(
        lambda: zookeeper.ZooKeeper.wait_until_forgotten(server, 2, "/west"), MachineError,
        "Broker 2 is still registered", "ZooKeeper z:2181", "another process",
    )  # fmt: skip
    zookeeper.ZooKeeper.wait_until_forgotten(server, 3, "/west")
