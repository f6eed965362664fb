"""Spark's ports: who reaches them, what they answer to strangers, what crosses the network."""

from __future__ import annotations

import os
import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from py4j.java_gateway import GatewayParameters, JavaGateway

import sparkmirror
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.control.coordination.status import read_signals
from sparkmirror.data.coordination.slot_plan import encode_flow
from sparkmirror.data.query import FlowRunner
from sparkmirror.data.spark import session as spark_settings
from sparkmirror.doctor import executors
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.testing.probe import free_ports
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.clusters.spark_cluster import SparkCluster, closed_network, plain_python
from tests.kafka.harness.capture import Capture
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.spark_frames import (
    ANSWER,
    FAILURE,
    Answer,
    ask,
    instance,
    message,
    serialized,
    tell,
)
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce
from tests.kafka.harness.warm_spark import WarmJvm, take_jvm
from tests.lacking import lacks

_VERIFIER = "org.apache.spark.rpc.netty.RpcEndpointVerifier$CheckExistence"
_STOP = "org.apache.spark.scheduler.local.StopExecutor$"
_PROPERTIES = (
    "org.apache.spark.scheduler.cluster.CoarseGrainedClusterMessages$RetrieveSparkAppConfig"
)


def _listening(root: int) -> dict[tuple[str, int], list[str]]:
    """Addresses at which a process and those below it listen (UDP: receive), and which do."""
    found: dict[tuple[str, int], list[str]] = {}
    process = psutil.Process(root)
    for each in (process, *process.children(recursive=True)):
        try:
            line, connections = each.cmdline(), each.net_connections("inet")
        except psutil.NoSuchProcess:
            continue
        for one in connections:
            if one.status in (psutil.CONN_LISTEN, psutil.CONN_NONE) and not one.raddr:
                found.setdefault((one.laddr.ip, one.laddr.port), []).append(" ".join(line)[:80])
    return found


@contextmanager
def _jvm(warm: WarmJvm) -> Iterator[Any]:
    """py4j's view of it. No object is given back one by one: that would connect anew at the end."""
    port, secret, _ = (warm._directory / "connection").read_text().split()
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(
            port=int(port), auth_token=secret, auto_convert=True, enable_memory_management=False
        )
    )
    try:
        yield gateway.jvm
    finally:
        gateway.close()


# What takes a mirror's login for its own Spark away, as if the product did not ask for one.
_WITHOUT_LOGIN = """#!{python}
import sys
from sparkmirror.cli.main import main
from sparkmirror.data.spark import ports
ports._LOCAL_ONLY["spark.authenticate"] = "false"
sys.exit(main())
"""


def test_a_mirror_listens_on_loopback_alone_and_hears_no_stranger(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, tmp_path: Path
) -> None:
    """A frame that would stop its executor is refused, and the mirror goes on to the next epochs.

    The same request is answered by an endpoint of Spark's that asks for no login.
    """
    with _short_epochs(cluster_a, cluster_b, topic_name, tmp_path) as (mirror, jvm, epoch):
        listening = _listening(mirror.process.pid)
        assert listening, "Spark has ports"
        assert {host for host, _ in listening} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        answers = _tell_stop(jvm, listening)
        assert ANSWER not in answers.values(), answers
        assert len(answers) >= 2, "the driver's port and that for blocks"
        heard = epoch()
        produce(cluster_a, topic_name, [Sent(b"after")])
        wait_until(
            lambda: _values(cluster_b, topic_name) == [b"before", b"after"], "the next record"
        )
        wait_until(lambda: epoch() > heard + 1, "the next epochs")
        code, _ = mirror.drain()
        assert code == 0, mirror.text()
        verify = serialized(jvm, instance(jvm, _VERIFIER, "endpoint-verifier"))
        assert _open_endpoint_answers(jvm, verify)


@pytest.mark.matrix
def test_without_a_login_the_same_frame_stops_a_mirror(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, topic_name: str, tmp_path: Path
) -> None:
    """So the test before can fail."""
    script = tmp_path / "without-login"
    script.write_text(_WITHOUT_LOGIN.format(python=sys.executable))
    script.chmod(0o700)
    ends = cluster_a, cluster_b, topic_name, tmp_path
    with _short_epochs(*ends, command=str(script)) as (mirror, jvm, epoch):
        answers = _tell_stop(jvm, _listening(mirror.process.pid))
        assert ANSWER in answers.values(), answers
        # Its executor takes no task any more, so Spark tries for ever and nothing is mirrored.
        log = tmp_path / "work" / "spark.log"
        wait_until(lambda: " rejected from " in log.read_text("utf-8"), "the next epoch's tasks")
        heard = epoch()
        produce(cluster_a, topic_name, [Sent(b"after")])
        before = log.stat().st_mtime_ns
        wait_until(lambda: log.stat().st_mtime_ns > before, "further tries")
        assert epoch() == heard
        assert _values(cluster_b, topic_name) == [b"before"]


@contextmanager
def _short_epochs(
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    topic: str,
    directory: Path,
    command: str = "sparkmirror",
) -> Iterator[tuple[MirrorProcess, Any, Callable[[], int]]]:
    """A mirror that has mirrored a record, py4j's view of another JVM, and the mirror's epoch.

    A stopped executor ends what runs, but takes no task of the next epoch.
    """
    create_topic(cluster_a, topic, 1)
    produce(cluster_a, topic, [Sent(b"before")])
    path = write_mm2(
        directory / "mm2.properties", cluster_a, cluster_b, topic,
        {"sparkmirror.epoch.seconds": "1"},
    )  # fmt: skip
    (flow,) = load_mm2(path).flows
    began_ms = int(time.time() * 1000)
    work = ["--work-dir", str(directory / "work")]
    mirror = MirrorProcess(directory, ["run", str(path), *work], command=command, cold=True)

    def epoch() -> int:
        with closing(Cluster(flow.target)) as target:
            signals = read_signals(target, flow)
        epochs = [one.epoch for one in signals.progress if one.time_ms >= began_ms]
        return max(epochs, default=-1)

    try:
        with _jvm(take_jvm()) as jvm:
            wait_until(lambda: _values(cluster_b, topic) == [b"before"], "the first record")
            wait_until(lambda: epoch() >= 0, "the first report of an epoch")
            yield mirror, jvm, epoch
    finally:
        mirror.kill()


def _tell_stop(jvm: Any, listening: dict[tuple[str, int], list[str]]) -> dict[int, int]:
    """Tell every port that speaks Spark's protocol to stop the executor; kinds of answers."""
    verify = serialized(jvm, instance(jvm, _VERIFIER, "endpoint-verifier"))
    stop = serialized(jvm, instance(jvm, _STOP))
    answers = {}
    for host, port in listening:
        place = host.removeprefix("::ffff:")
        try:
            answer = ask(place, port, message(place, port, "endpoint-verifier", verify))
        except (TimeoutError, ConnectionRefusedError):
            continue  # py4j's gateway may wait for its own secret; a port may be closed by now
        if answer.kind == ANSWER or (answer.kind == FAILURE and b"SASL" in answer.body):
            answers[port] = answer.kind
            tell(place, port, message(place, port, "LocalSchedulerBackendEndpoint", stop))
    return answers


def _open_endpoint_answers(jvm: Any, verify: bytes) -> bool:
    """Whether Spark without ``spark.authenticate`` answers the same request."""
    spark = jvm.org.apache.spark
    conf = spark.SparkConf(False).set("spark.rpc.io.serverThreads", "1")
    entry = instance(jvm, "org.apache.spark.internal.config.package$").AUTH_SECRET_FILE()
    login = spark.SecurityManager(conf, jvm.scala.Option.empty(), entry)
    environment = spark.rpc.RpcEnv.create("open", "127.0.0.1", 0, conf, login, False)
    try:
        port = environment.address().port()
        answer = ask("127.0.0.1", port, message("127.0.0.1", port, "endpoint-verifier", verify))
        return answer.kind == ANSWER
    finally:
        environment.shutdown()


def _values(cluster: KafkaCluster, topic: str) -> list[bytes | None]:
    return [record.value for record in consume_all(cluster, f"A.{topic}")]


@pytest.mark.long
def test_a_cluster_gives_the_key_to_its_executors_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Driver, master, workers and executors talk; what is captured holds no key and no password.

    The executors have the key: they unseal the properties, and look for the cluster in them.
    """
    agreed = closed_network()
    seen = _cluster_run(tmp_path, monkeypatch, agreed)
    assert "connection refused" in "".join(seen.documents), seen.documents
    assert seen.answer.kind != ANSWER, "whoever asks gets all settings"
    assert seen.key.encode() not in seen.answer.body
    assert seen.capture.holds(b"CoarseGrainedScheduler"), "what is not encrypted is seen"
    assert seen.capture.holds(b"sparkSaslUser"), "the logins are seen"
    for secret in (seen.key, seen.word, agreed["spark.authenticate.secret"]):
        assert not seen.capture.holds(secret.encode())
    for file in (tmp_path / "work").rglob("*"):
        if file.is_file():
            assert agreed["spark.authenticate.secret"].encode() not in file.read_bytes()


@pytest.mark.matrix
def test_an_open_cluster_gives_the_key_to_whoever_asks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the test before can fail: the product would not start there with secrets."""
    monkeypatch.setattr(spark_settings, "secrets_of", lambda _: [])
    seen = _cluster_run(tmp_path, monkeypatch, {})
    assert "connection refused" in "".join(seen.documents), seen.documents
    assert seen.answer.kind == ANSWER
    assert seen.key.encode() in seen.answer.body
    assert seen.capture.holds(seen.key.encode())


@dataclass(frozen=True)
class _Seen:
    documents: list[str]
    answer: Answer
    capture: Capture
    key: str
    word: str


def _cluster_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agreed: dict[str, str]) -> _Seen:
    """A job on a Spark cluster with the settings ``agreed``, what it said, and what was seen."""
    (broker,) = free_ports(1)  # nobody listens
    word = secrets.token_hex(16)
    path = tmp_path / "mm2.properties"
    path.write_text(
        "clusters = A, B\nA->B.enabled = true\nA->B.topics = t\n"
        f"A.bootstrap.servers = 127.0.0.1:{broker}\nB.bootstrap.servers = 127.0.0.1:{broker}\n"
        "B.security.protocol = SASL_PLAINTEXT\nB.sasl.mechanism = PLAIN\n"
        "B.sasl.jaas.config = org.apache.kafka.common.security.plain.PlainLoginModule required"
        f' username="u" password="{word}";\n'
    )
    driver_port, block_port = free_ports(2)
    interpreter, lacking = plain_python(tmp_path / "python")
    monkeypatch.setenv("PYSPARK_PYTHON", str(interpreter))
    source = Path(sparkmirror.__file__).parent.parent
    monkeypatch.setenv("PYTHONPATH", f"{source}{os.pathsep}{lacking}")
    monkeypatch.setenv("SPARK_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("PYTHONSAFEPATH", "1")  # put back what a start changes
    with SparkCluster(tmp_path, workers=1, settings=agreed) as spark:
        settings = load_mm2(path)
        runner = FlowRunner(
            settings,
            master=spark.master,
            once=True,
            spark_conf={
                "spark.driver.port": str(driver_port),
                "spark.blockManager.port": str(block_port),
            },
            work_dir=tmp_path / "work",
            run_id="run",
        )
        try:
            capture = Capture([*spark.ports, driver_port, *range(block_port, block_port + 3)])
        except PermissionError:
            lacks("only root may capture packets")
        try:
            with capture:
                context = runner.open().sparkContext
                flows = {flow.name: encode_flow(flow, runner.key) for flow in settings.flows}
                documents = executors._run(context, 1, flows)
                jvm = context._jvm
                body = message(
                    "127.0.0.1",
                    driver_port,
                    "CoarseGrainedScheduler",
                    serialized(jvm, instance(jvm, _PROPERTIES, 0)),
                )
                answer = ask("127.0.0.1", driver_port, body)
        finally:
            runner.stop(grace_s=0.0)
    return _Seen(documents, answer, capture, runner.key, word)
