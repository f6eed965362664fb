"""Several processes of one file: one mirrors a flow at a time, the others stand by for it."""

from __future__ import annotations

import contextlib
import json
import socket
import uuid
from pathlib import Path

import psutil
import pytest

from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.cluster import Cluster
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce

RECORDS = 3_000
_AGED = "concat_ws(' ', CAST(value AS STRING), lookup('ages', 'id', 1).age) AS value"


class Pair:
    """A flow of its own, and processes of its file."""

    def __init__(self, a: KafkaCluster, b: KafkaCluster, directory: Path, **extra: str) -> None:
        self.a, self.b, self.directory = a, b, directory
        self.alias = f"S{uuid.uuid4().hex[:6]}"
        self.topic = f"orders-{self.alias}"
        self.remote = f"{self.alias}.{self.topic}"
        self.file = write_mm2(
            directory / "mm2.properties", a, b, self.topic, source=self.alias, extra=extra
        )
        create_topic(a, self.topic, 2)
        self.target = Cluster(ClusterClient("B", tuple(b.bootstrap_servers.split(",")), "test"))
        self.count = 0
        self.running: list[MirrorProcess] = []

    def start(self, *options: str, file: Path | None = None, cold: bool = False) -> MirrorProcess:
        name = f"process-{len(self.running)}"
        options = ("--log-format", "json", *options)
        mirror = MirrorProcess(
            self.directory / name, ["run", str(file or self.file), *options], cold=cold
        )
        self.running.append(mirror)
        return mirror

    def table(self, age: str) -> None:
        """Write the table in which `_AGED` looks."""
        new = self.directory / "new.csv"
        new.write_text(f"id,age\n1,{age}\n")
        new.rename(self.directory / "ages.csv")

    def write(self, count: int = RECORDS) -> None:
        numbers = range(self.count, self.count + count)
        produce(self.a, self.topic, [Sent(b"%d" % n, b"%d" % n) for n in numbers])
        self.count += count

    def there(self) -> int:
        """Records at the target; a transaction's markers would count, too."""
        wanted = [TopicPartition(self.remote, number) for number in range(2)]
        return sum(self.target.end_offsets(wanted).values())

    def arrived(self) -> None:
        def all_there() -> bool:
            assert any(one.process.poll() is None for one in self.running), self.told()
            return self.there() >= self.count

        wait_until(all_there, "all records")

    def arrived_once(self) -> None:
        """Wait for all records, whatever markers stand between them, and see that none is twice."""
        wanted = {b"%d" % number for number in range(self.count)}

        def values() -> list[bytes | None]:
            return [record.value for record in consume_all(self.b, self.remote)]

        wait_until(lambda: set(values()) == wanted, "all records")
        assert len(values()) == self.count, self.told()

    def history(self) -> list[dict[str, str]]:
        """What `sparkmirror history` tells of the flow."""
        told = MirrorProcess(
            self.directory / f"history-{uuid.uuid4().hex[:6]}",
            ["history", str(self.file), "--format", "json"],
        )
        assert told.wait() == 0, told.text()
        events: list[dict[str, str]] = json.loads(told.text())["events"]
        return events

    def told(self) -> str:
        return "\n".join(mirror.text()[-2_000:] for mirror in self.running)

    def kill(self) -> None:
        for mirror in self.running:
            mirror.kill()
        self.target.close()


@pytest.mark.parametrize("table", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_second_process_of_a_file_stands_by(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, *, table: bool
) -> None:
    """No record comes twice, it says who mirrors, and it goes on when that one ends in order.

    A static table that has changed while it stood by is read again.
    """
    key = "sparkmirror.transform.aged"
    settings = {f"{key}.topics": "orders-.*", f"{key}.select": _AGED}
    settings |= {"sparkmirror.transforms": "aged"}
    settings |= {f"{key}.tables": f"ages = csv:{tmp_path}/ages.csv"}
    settings = settings if table else {}
    pair = Pair(cluster_a, cluster_b, tmp_path, **settings)
    pair.table("old")
    try:
        first = pair.start()
        pair.write()
        pair.arrived()
        second = pair.start()
        wait_until(lambda: "standing by: run" in second.text(), second.text())
        assert f"host {socket.gethostname()}:{first.process.pid}" in second.text()
        pair.table("new")
        pair.write()
        pair.arrived()
        assert pair.there() == pair.count
        old = pair.count
        assert first.drain()[0] == 0, first.text()
        pair.write()
        pair.arrived()
        assert "taken over from" in second.text()
        assert pair.there() == pair.count
        words = (b" old", b" new") if table else (b"", b"")
        assert sorted(one.value or b"" for one in consume_all(cluster_b, pair.remote)) == sorted(
            b"%d%s" % (number, words[number >= old]) for number in range(pair.count)
        )
        assert second.drain()[0] == 0, second.text()
        here = [f"{socket.gethostname()}:{one.process.pid}" for one in (first, second)]
        told = [(one["kind"], one["host"]) for one in pair.history()]
        wanted = [("start", 0), ("stop", 0), ("takeover", 1), ("start", 1), ("stop", 1)]
        assert told == [(kind, here[number]) for kind, number in wanted]
    finally:
        pair.kill()


def _resume(frozen: list[psutil.Process]) -> None:
    while frozen:
        with contextlib.suppress(psutil.Error):
            frozen.pop().resume()


def _tree(mirror: MirrorProcess) -> list[psutil.Process]:
    """The driver, its JVM and all workers."""
    driver = psutil.Process(mirror.process.pid)
    return [driver, *driver.children(recursive=True)]


@pytest.mark.more
def test_a_frozen_owner_writes_nothing_when_it_comes_back(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """It is missed after the session time; woken, it finds the newer claim and ends with 1."""
    # Longer than a driver may pause while the other one's Spark starts.
    pair = Pair(cluster_a, cluster_b, tmp_path, **{"sparkmirror.session.timeout.ms": "10000"})
    frozen: list[psutil.Process] = []
    try:
        first = pair.start(cold=True)
        pair.write()
        pair.arrived()
        second = pair.start()
        wait_until(lambda: "standing by: run" in second.text(), second.text())
        for process in _tree(first):
            process.suspend()
            frozen.append(process)
        wait_until(lambda: "taken over from" in second.text(), second.text())
        pair.write()
        pair.arrived()
        _resume(frozen)
        assert first.wait() == 1, first.text()
        assert "has taken this flow over" in first.text()
        again = pair.start()  # as whoever supervises it does
        pair.write()
        pair.arrived()
        assert pair.there() == pair.count, pair.told()
        wait_until(lambda: "standing by: run" in again.text(), pair.told())
        for mirror in (again, second):  # in order, so that the next test uses their JVMs again
            assert mirror.drain()[0] == 0, mirror.text()
    finally:
        _resume(frozen)
        pair.kill()


@pytest.mark.long
def test_processes_with_and_without_clusters_share_the_flows_of_a_file(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """One serves the flows into B, the other all of them: it has the rest, and stands by."""
    pair = Pair(cluster_a, cluster_b, tmp_path)
    back, into_a, into_b = f"back-{pair.alias}", f"B->{pair.alias}", f"{pair.alias}->B"
    file = write_mm2(
        tmp_path / "both.properties", cluster_a, cluster_b, pair.topic, source=pair.alias,
        extra={f"{into_a}.enabled": "true", f"{into_a}.topics": back},
    )  # fmt: skip
    create_topic(cluster_b, back, 1)
    try:
        first = pair.start("--clusters", "B", file=file)
        pair.write()
        pair.arrived()
        second = pair.start(file=file)
        wait_until(lambda: f"{into_b}: standing by: run" in second.text(), pair.told())
        produce(cluster_b, back, [Sent(b"%d" % number) for number in range(10)])
        wait_until(lambda: len(consume_all(cluster_a, f"B.{back}")) == 10, pair.told())
        assert f"{into_a}: standing by" not in second.text()
        third = pair.start("--clusters", pair.alias, file=file)
        wait_until(lambda: f"{into_a}: standing by: run" in third.text(), pair.told())
        first.kill()
        wait_until(lambda: f"{into_b}: taken over from" in second.text(), pair.told())
        pair.write()
        pair.arrived_once()
        assert second.drain()[0] == 0, second.text()
        wait_until(lambda: f"{into_a}: taken over from" in third.text(), pair.told())
        produce(cluster_b, back, [Sent(b"%d" % number) for number in range(10, 20)])
        wait_until(lambda: len(consume_all(cluster_a, f"B.{back}")) == 20, pair.told())
        assert third.drain()[0] == 0, third.text()
    finally:
        pair.kill()


@pytest.mark.long
@pytest.mark.parametrize("mode", ["at-least-once", "exactly-once"])
def test_a_flow_that_is_drained_alone_goes_to_who_stands_by(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path, mode: str
) -> None:
    """The process that had it goes on with its other flow, and says what became of this one."""
    flags = ["--exactly-once"] if mode == "exactly-once" else []
    pair = Pair(cluster_a, cluster_b, tmp_path)
    other = f"{pair.alias}-too"
    both = write_mm2(
        tmp_path / "both.properties", cluster_a, cluster_b, pair.topic, source=pair.alias,
        extra={
            "clusters": f"{pair.alias}, {other}, B",
            f"{other}.bootstrap.servers": cluster_a.bootstrap_servers,
            f"{other}.offset.storage.replication.factor": "1",
            f"{other}->B.enabled": "true",
            f"{other}->B.topics": pair.topic,
            f"{pair.alias}->{other}.emit.heartbeats.enabled": "false",
        },
    )  # fmt: skip
    moved, stays = f"{pair.alias}->B", f"{other}->B"

    def owners() -> dict[str, str]:
        told = MirrorProcess(tmp_path / "status", ["status", str(both), "--format", "json"])
        told.wait()
        flows = json.loads(told.text())["flows"]
        return {flow["flow"]: flow["host"].rpartition(":")[2] for flow in flows}

    try:
        first = pair.start(*flags, file=both)
        pair.write()
        pair.arrived()
        second = pair.start(*flags, file=both)
        wait_until(lambda: second.text().count("takes over when") == 2, "both flows' standby")
        order = MirrorProcess(tmp_path / "drain", ["drain", str(both), moved])
        assert order.wait() == 0, order.text()
        assert f"{moved}: drained" in order.text()
        wait_until(lambda: f"{moved}: taken over from" in second.text(), moved)
        pair.write()
        pair.arrived_once()
        assert owners() == {moved: str(second.process.pid), stays: str(first.process.pid)}
        copied = [TopicPartition(f"{other}.{pair.topic}", number) for number in range(2)]
        wait_until(
            lambda: sum(pair.target.end_offsets(copied).values()) >= pair.count, "the other flow"
        )
        wanted = {moved: "drained", stays: "mirroring"}
        wait_until(lambda: _states(first) == wanted, f"{wanted} in the first process")
        for mirror in (first, second):
            assert mirror.drain()[0] == 0, mirror.text()
    finally:
        pair.kill()


def _states(mirror: MirrorProcess) -> dict[str, str]:
    """What each flow did when it was told last."""
    told = [one for one in mirror.documents() if one["type"] == "progress"]
    return {one["flow"]: one["state"] for one in told}


@pytest.mark.long
def test_once_refuses_status_tells_and_take_over_takes(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    pair = Pair(cluster_a, cluster_b, tmp_path)
    try:
        first = pair.start()
        pair.write()
        pair.arrived()
        once = pair.start("--once")
        assert once.wait() == 3, once.text()
        assert f"host {socket.gethostname()}:{first.process.pid}" in once.text()
        assert "would copy every record a second time" in once.text()
        second = pair.start()
        wait_until(lambda: "standing by: run" in second.text(), second.text())
        told = MirrorProcess(tmp_path / "status", ["status", str(pair.file), "--format", "json"])
        told.wait()
        (flow,) = json.loads(told.text())["flows"]
        assert flow["host"] == f"{socket.gethostname()}:{first.process.pid}"
        (standby,) = flow["standbys"]
        assert standby["host"] == f"{socket.gethostname()}:{second.process.pid}"
        assert standby["file"] == str(pair.file)
        third = pair.start("--take-over")
        assert first.wait() == 1, first.text()
        wait_until(lambda: "takeover" in [one["kind"] for one in pair.history()], "its history")
        takeovers = [one for one in pair.history() if one["kind"] == "takeover"]
        assert len(takeovers) == 1, (takeovers, second.text(), third.text())
        (takeover,) = takeovers
        assert takeover["host"] == f"{socket.gethostname()}:{third.process.pid}"
        assert f":{first.process.pid}, file {pair.file}, as --take-over" in takeover["text"]
        (stop,) = [one for one in pair.history() if one["kind"] == "stop"]
        assert "has taken this flow over" in stop["text"]
        assert "has taken this flow over" in first.text()
        pair.write()
        pair.arrived()
        wait_until(lambda: f":{third.process.pid}" in second.text(), second.text())
        # What the first wrote in its last second may come twice; it had nothing to write.
        assert pair.there() == pair.count, pair.told()
        for mirror in (second, third):
            assert mirror.drain()[0] == 0, mirror.text()
    finally:
        pair.kill()
