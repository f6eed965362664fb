"""Static tables in a whole mirror: enriched records, and tables that are read again meanwhile."""

from __future__ import annotations

import json
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, asked, wait_until, write_mm2
from tests.kafka.harness.support import Sent, consume_all, create_topic, produce

_KEY = "A->B.sparkmirror.transform.named"
_NAME = "lookup('customers', 'id', CAST(CAST(key AS STRING) AS INT)).name"
_OLD, _NEW = ("id,name\n" + "".join(f"{n},{age}-{n}\n" for n in range(5)) for age in ("old", "new"))


def naming(topic: str, directory: Path) -> dict[str, str]:
    """Settings of a transform of ``topic``, whose table is then in ``directory``."""
    (directory / "customers.csv").write_text(_OLD)
    return {
        "A->B.sparkmirror.transforms": "named",
        f"{_KEY}.topics": topic,
        f"{_KEY}.tables": f"customers = csv:file:{directory}/customers.csv",
        f"{_KEY}.select": f"{_NAME} AS value",
    }


def fill_keyed(cluster: KafkaCluster, topic: str) -> None:
    """The records that `check_named` knows."""
    create_topic(cluster, topic)
    produce(cluster, topic, [Sent(b"%d" % n, b"%d" % n) for n in range(6)])


def check_named(target: KafkaCluster, topic: str) -> None:
    """The records are as `naming` makes them."""
    names = [one.value for one in consume_all(target, f"A.{topic}")]
    assert names == [*(b"old-%d" % n for n in range(5)), None]


def _sent(first: int, count: int) -> list[Sent]:
    """Keys 0 to 4 are in the table, 5 is not."""
    return [Sent(b"%d" % n, b"%d" % (n % 6), partition=n % 2) for n in range(first, first + count)]


def _told(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    capsys.readouterr()
    assert main([*arguments]) == code, capsys.readouterr().err
    return capsys.readouterr().out


class _Feeder:
    """Produces until it is stopped. ``sent``: how many records there are."""

    def __init__(self, cluster: KafkaCluster, topic: str, sent: int) -> None:
        self.sent = sent
        self._produce: Callable[[list[Sent]], object] = lambda some: produce(cluster, topic, some)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            self._produce(_sent(self.sent, 20))
            self.sent += 20

    def stop(self) -> int:
        self._over.set()
        self._thread.join()
        return self.sent


@pytest.mark.more
@pytest.mark.parametrize("mode", [("--exactly-once",), pytest.param((), marks=pytest.mark.long)])
def test_a_table_is_read_again_while_the_mirror_runs(
    mode: tuple[str, ...],
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Each record comes once and in order: first with the old rows, and from some moment on with
    the new ones; with these in any case, if it was sent after the command had ended.
    """
    topic = f"tables-{uuid.uuid4().hex[:8]}"
    remote = f"A.{topic}"
    create_topic(cluster_a, topic, 2)
    table = tmp_path / "customers.csv"
    table.write_text(_OLD)
    extra = {
        "A->B.sparkmirror.transforms": "named",
        f"{_KEY}.topics": topic,
        f"{_KEY}.tables": f"customers = csv:{table}",
        f"{_KEY}.select": f"concat_ws(' ', CAST(value AS STRING), {_NAME}) AS value",
    }
    path = write_mm2(tmp_path / "mm2.properties", cluster_a, cluster_b, topic, extra)
    produce(cluster_a, topic, _sent(0, 400))
    mirror = MirrorProcess(
        tmp_path, ["run", str(path), *mode, "--work-dir", str(tmp_path / "work")]
    )

    def found() -> list[Any]:
        assert mirror.process.poll() is None, mirror.text()
        return consume_all(cluster_b, remote)

    try:
        wait_until(lambda: "mirroring" in mirror.text(), "the start")
        wait_until(lambda: len(found()) == 400, "the first records")
        table.write_text(_NEW)
        feeder = _Feeder(cluster_a, topic, 400)
        try:
            said = _told(capsys, "transform", "reload", str(path), "--table", "customers")
        finally:
            reloaded = feeder.stop()
        assert said.startswith("A->B: customers: 5 rows, read in ")
        produce(cluster_a, topic, _sent(reloaded, 100))
        count = reloaded + 100

        # Bad rows are not taken, and the mirror goes on with what it has.
        wait_until(lambda: len(found()) >= count, "the records after the order")
        table.write_text(f"{_OLD}1,again\n")
        said = _told(capsys, "transform", "reload", str(path), code=1)
        assert said.startswith("A->B: customers keeps its 5 rows of ")
        assert "its column id is no key: 1 row(s) repeat the value of another row" in said
        produce(cluster_a, topic, _sent(count, 20))
        count += 20
        wait_until(lambda: len(found()) >= count, "the records after the bad order")
        (flow,) = json.loads(_told(capsys, "status", str(path), "--format", "json"))["flows"]
        (shown,) = flow["tables"]
        assert (shown["table"], shown["rows"]) == ("customers", 5)
        assert "is no key" in shown["fault"]
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()
    assert _told(capsys, "transform", "reload", str(path)).startswith("A->B: no mirror runs now")
    table.write_text(_NEW)
    tried, _ = asked(tmp_path, "transform", "try", str(path), "--limit", "4", "--format", "json")
    assert "new-" in json.dumps(json.loads(tried))
    # What was mirrored with these rows; each partition has every second record.
    command = ("verify", str(path), "--wait", "1", "--from", f"{reloaded // 2}", "--format", "json")
    compared, _ = asked(tmp_path, *command)
    for one in json.loads(compared)["flows"][0]["partitions"]:
        assert one["source"]["records"] == one["target"]["records"] == (count - reloaded) // 2
        assert one["remark"].endswith("transform named, with its tables as they are now")

    got = consume_all(cluster_b, remote)
    for partition in range(2):
        words = [one.value.decode().split() for one in got if one.partition == partition]
        assert [int(one[0]) for one in words] == list(range(partition, count, 2))
        ages = []
        for number, *name in words:
            key = int(number) % 6
            if key == 5:
                assert name == []
                continue
            age, _, of = name[0].partition("-")
            assert int(of) == key
            ages.append((age, int(number)))
        assert [age for age, _ in ages] == sorted((age for age, _ in ages), reverse=True)
        assert {age for age, number in ages if number < 400} == {"old"}
        assert {age for age, number in ages if number >= reloaded} == {"new"}
