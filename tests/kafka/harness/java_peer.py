"""Java's own MirrorMaker 2: the running mirror, and its client library called from Python."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from sparkmirror.java import find_java
from sparkmirror.testing.jvm import QUICK_JVM
from sparkmirror.testing.maven import resolve
from tests.patience import patience

_MIRROR = ("org.apache.kafka:connect-mirror:4.3.0", "org.apache.kafka:connect-runtime:4.3.0")
_CLIENT = "org.apache.kafka:connect-mirror-client:4.3.0"


@contextlib.contextmanager
def java_mirror_maker(file: Path, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """``connect-mirror-maker.sh FILE`` for as long as the block runs; an orderly end."""
    classpath = os.pathsep.join(map(str, resolve(*_MIRROR)))
    command = [str(find_java().java), *QUICK_JVM, "-Xmx512m", "-cp", classpath,
               "org.apache.kafka.connect.mirror.MirrorMaker", str(file)]  # fmt: skip
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd=log.parent
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(patience())
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(10)


class JavaMirrorClient:
    """RemoteClusterUtils, with its results as plain Python values."""

    def __init__(self, gateway: JavaGateway) -> None:
        self._jvm = gateway.jvm
        self._utils = gateway.jvm.org.apache.kafka.connect.mirror.RemoteClusterUtils

    def _map(self, properties: Mapping[str, str]) -> Any:
        result = self._jvm.java.util.HashMap()
        for key, value in properties.items():
            result.put(key, value)
        return result

    def hops(self, properties: Mapping[str, str], alias: str) -> int:
        return int(self._utils.replicationHops(self._map(properties), alias))

    def heartbeat_topics(self, properties: Mapping[str, str]) -> set[str]:
        return _strings(self._utils.heartbeatTopics(self._map(properties)))

    def checkpoint_topics(self, properties: Mapping[str, str]) -> set[str]:
        return _strings(self._utils.checkpointTopics(self._map(properties)))

    def upstream_clusters(self, properties: Mapping[str, str]) -> set[str]:
        return _strings(self._utils.upstreamClusters(self._map(properties)))

    def remote_topics(self, properties: Mapping[str, str], source: str | None = None) -> set[str]:
        client = self._jvm.org.apache.kafka.connect.mirror.MirrorClient(self._map(properties))
        try:
            return _strings(
                client.remoteTopics() if source is None else client.remoteTopics(source)
            )
        finally:
            client.close()

    def offsets(
        self, properties: Mapping[str, str], alias: str, group: str
    ) -> dict[tuple[str, int], tuple[int, str]]:
        found = self._utils.translateOffsets(
            self._map(properties), alias, group, self._jvm.java.time.Duration.ofSeconds(20)
        )
        return _offsets(found)

    def offsets_matching(
        self, properties: Mapping[str, str], alias: str, regex: str
    ) -> dict[str, dict[tuple[str, int], tuple[int, str]]]:
        pattern = self._jvm.java.util.regex.Pattern.compile(regex)
        found = self._utils.translateOffsets(
            self._map(properties), alias, pattern, self._jvm.java.time.Duration.ofSeconds(20)
        )
        return {str(e.getKey()): _offsets(e.getValue()) for e in found.entrySet().toArray()}

    def member(self, servers: str, group: str) -> JavaMember:
        """A consumer of ``group``; close it when done."""
        return JavaMember(self._jvm, servers, group)

    def translated(self, properties: Mapping[str, str], alias: str, group: str) -> Any:
        """What `offsets` reads, as Java's own map."""
        return self._utils.translateOffsets(
            self._map(properties), alias, group, self._jvm.java.time.Duration.ofSeconds(20)
        )


class JavaMember:
    """KafkaConsumer of Java's client library, on the partitions that it is sent to."""

    def __init__(self, jvm: Any, servers: str, group: str) -> None:
        self._jvm = jvm
        properties = jvm.java.util.HashMap()
        text = "org.apache.kafka.common.serialization.StringDeserializer"
        for key, value in (
            ("bootstrap.servers", servers), ("group.id", group), ("enable.auto.commit", "false"),
            ("key.deserializer", text), ("value.deserializer", text),
        ):  # fmt: skip
            properties.put(key, value)
        self._consumer = jvm.org.apache.kafka.clients.consumer.KafkaConsumer(properties)

    def commit(self, offsets: Mapping[tuple[str, int], int], metadata: str = "") -> None:
        """Commit for the group."""
        places = self._jvm.java.util.HashMap()
        for (topic, partition), offset in offsets.items():
            tp = self._jvm.org.apache.kafka.common.TopicPartition(topic, partition)
            at = self._jvm.org.apache.kafka.clients.consumer.OffsetAndMetadata(offset, metadata)
            places.put(tp, at)
        self._consumer.commitSync(places)

    def committed(self, places: Any) -> dict[tuple[str, int], int]:
        """What the group has committed for the keys of Java's map ``places``."""
        found = self._consumer.committed(places.keySet())
        entries = [e for e in found.entrySet().toArray() if e.getValue() is not None]
        return {(e.getKey().topic(), e.getKey().partition()): e.getValue().offset()
                for e in entries}  # fmt: skip

    def go_to(self, places: Any) -> None:
        """Be assigned the keys of Java's map ``places``, and seek to its values."""
        self._consumer.assign(places.keySet())
        for entry in places.entrySet().toArray():
            self._consumer.seek(entry.getKey(), entry.getValue())

    def read(self, count: int, timeout_s: float | None = None) -> dict[tuple[str, int], list[str]]:
        """At least ``count`` records' values, by partition; the assertion is in the time."""
        found: dict[tuple[str, int], list[str]] = {}
        deadline = time.monotonic() + (timeout_s or patience())
        while sum(map(len, found.values())) < count:
            assert time.monotonic() < deadline, found
            records = self._consumer.poll(self._jvm.java.time.Duration.ofMillis(500))
            for tp in records.partitions().toArray():
                values = [record.value() for record in records.records(tp).toArray()]
                found.setdefault((tp.topic(), tp.partition()), []).extend(values)
        return found

    def close(self) -> None:
        """Leave."""
        self._consumer.close()


def _offsets(found: Any) -> dict[tuple[str, int], tuple[int, str]]:
    return {
        (entry.getKey().topic(), entry.getKey().partition()): (
            entry.getValue().offset(),
            entry.getValue().metadata(),
        )
        for entry in found.entrySet().toArray()
    }


def _strings(found: Any) -> set[str]:
    """Through an array, whose end py4j knows beforehand.

    The end of a Java iterator is an exception to it, and PySpark, where another test of this
    process has loaded it, takes over py4j's exceptions and asks for its own JVM.
    """
    return {str(each) for each in found.toArray()}


@contextlib.contextmanager
def java_mirror_client() -> Iterator[JavaMirrorClient]:
    """A JVM with Kafka's client library; needs no compiler, so that any Java runtime will do."""
    py4j = next((Path(sys.prefix) / "share" / "py4j").glob("py4j*.jar"))
    classpath = os.pathsep.join([*map(str, resolve(_CLIENT)), str(py4j)])
    port, token, process = launch_gateway(
        jarpath=str(py4j),
        classpath=classpath,
        javaopts=["-Xmx128m", *QUICK_JVM],
        java_path=str(find_java().java),
        die_on_exit=True,
        enable_auth=True,
        redirect_stdout=subprocess.DEVNULL,
        redirect_stderr=subprocess.DEVNULL,
        return_proc=True,
    )
    # No object is given back one by one: a collector in mid-call would connect anew for that, and
    # the connection would outlive the test.
    gateway = JavaGateway(
        gateway_parameters=GatewayParameters(
            port=port, auth_token=token, auto_convert=True, enable_memory_management=False
        )
    )
    try:
        yield JavaMirrorClient(gateway)
    finally:
        gateway.shutdown()
        process.stdin.close()
        process.wait(60)
        process.stdout.close()
