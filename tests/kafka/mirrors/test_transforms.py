"""Transforms in whole mirrors: what arrives, how often, in which order, and what is refused."""

from __future__ import annotations

import json
import re
import threading
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess, stored, wait_until, write_mm2
from tests.kafka.harness.support import (
    Content,
    Sent,
    consume_all,
    contents,
    create_topic,
    produce,
    produce_transaction,
    topic_names,
)
from tests.patience import patience

NAMES = "A->B.sparkmirror.transforms"
EXACTLY_ONCE = ("--exactly-once",)
_FIRST_MS = int(time.time() * 1000) - 3_600_000  # what is older than a week, brokers delete
CLEAN = "A->B.sparkmirror.transform.clean"
WHERE = "value IS NULL OR get_json_object(CAST(value AS STRING), '$.region') <> 'EU'"
SELECT = (
    "key, regexp_replace(CAST(value AS STRING), 'card-[0-9]+', 'card-X') AS value, topic, "
    "filter(headers, one -> one.key <> 'secret') AS headers"
)


@pytest.fixture
def name() -> str:
    return f"clean-{uuid.uuid4().hex[:8]}"


def _sent(first: int, count: int, partitions: int = 2) -> list[Sent]:
    made = []
    for n in range(first, first + count):
        region = "EU" if n % 3 == 0 else "US"
        value = b'{"n":%d,"region":"%s","card":"card-%d"}' % (n, region.encode(), n)
        made.append(
            Sent(
                None if n % 10 == 7 else value,
                b"k%d" % (n % 5) if n % 4 else None,
                (("secret", b"s"), ("kept", None)) if n % 2 else (),
                _FIRST_MS + n,
                n % partitions,
            )
        )
    return made


def _expected(sent: list[Sent]) -> list[Content]:
    """What the transform must make of ``sent``, computed without Spark."""
    found = []
    for one in sent:
        value = one.value
        if value is not None:
            document = json.loads(value)
            if document["region"] == "EU":
                continue
            value = value.replace(b"card-%d" % document["n"], b"card-X")
        headers = tuple(each for each in one.headers if each[0] != "secret")
        found.append(Content(one.partition or 0, one.timestamp_ms, one.key, value, headers))
    return sorted(found, key=lambda one: one.partition)


def _file(directory: Path, a: KafkaCluster, b: KafkaCluster, name: str, **options: str) -> Path:
    extra = {NAMES: "clean", f"{CLEAN}.topics": f"{name}[.]orders"}
    extra |= {f"{CLEAN}.{option}": value for option, value in options.items()}
    return write_mm2(directory / "mm2.properties", a, b, f"{name}.*", extra)


def _run(directory: Path, *arguments: str) -> MirrorProcess:
    return MirrorProcess(directory, ["run", *arguments, "--work-dir", str(directory / "work")])


def _once(directory: Path, *arguments: str, code: int = 0) -> str:
    mirror = _run(directory, *arguments, "--once")
    assert mirror.wait() == code, mirror.text()
    return mirror.text()


def _asked(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> Any:
    capsys.readouterr()
    assert main([*arguments, "--format", "json"]) == code, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("codec", "mode"),
    [
        ("lz4", EXACTLY_ONCE),
        pytest.param("none", (), marks=pytest.mark.long),
        pytest.param("none", EXACTLY_ONCE, marks=pytest.mark.long),
        pytest.param("lz4", (), marks=pytest.mark.long),
    ],
)
def test_filtered_and_masked_beside_an_untouched_topic(
    mode: tuple[str, ...],
    codec: str,
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Keys, tombstones, headers, timestamps, order; batches of other topics stay as they are."""
    orders, plain = f"{name}.orders", f"{name}.plain"
    create_topic(cluster_a, orders, 2)
    create_topic(cluster_a, plain, 1)
    sent, rest = _sent(0, 2_000), [Sent(b"%d" % n) for n in range(500)]
    linger = {"linger.ms": 100}
    produce(cluster_a, orders, sent[:1_000], compression=codec, config=linger)
    produce_transaction(cluster_a, orders, _sent(90_000, 50), commit=False)
    produce(cluster_a, orders, sent[1_000:], compression=codec, config=linger)
    produce(cluster_a, plain, rest, compression="lz4", config=linger)
    # The marker of an aborted transaction follows its end; a bounded run ends before an open one.
    wait_until(lambda: len(consume_all(cluster_a, orders)) == len(sent), "the marker")
    path = _file(tmp_path, cluster_a, cluster_b, name, where=WHERE, select=SELECT)
    with path.open("a") as file:
        file.write("A->B.source.consumer.isolation.level = read_committed\n")
        file.write("A->B.sparkmirror.join.bytes = 0\n")
    _once(tmp_path, str(path), *mode)
    assert contents(consume_all(cluster_b, f"A.{orders}")) == _expected(sent)
    assert contents(consume_all(cluster_b, f"A.{plain}")) == contents(consume_all(cluster_a, plain))
    sizes = [
        [(one.count, one.size) for one in stored(cluster, topic) if not one.has(0x20)]
        for cluster, topic in ((cluster_a, plain), (cluster_b, f"A.{plain}"))
    ]
    assert sizes[0] == sizes[1]
    codecs = {one.attributes & 7 for one in stored(cluster_b, f"A.{orders}") if not one.has(0x20)}
    assert codecs == {0 if codec == "none" else 3}

    # The next run continues behind what was filtered.
    more = _sent(2_000, 100)
    produce(cluster_a, orders, more)
    _once(tmp_path, str(path), *mode)
    assert contents(consume_all(cluster_b, f"A.{orders}")) == _expected(sent + more)
    (flow,) = _asked(capsys, "lag", str(path))["flows"]
    assert {one["records"] for one in flow["partitions"]} == {0}


@pytest.mark.more
@pytest.mark.parametrize("mode", [pytest.param((), marks=pytest.mark.long), EXACTLY_ONCE])
def test_a_mirror_that_is_killed_in_the_middle(
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    """Nothing is lost, and the order holds; with exactly-once nothing comes twice."""
    orders, remote = f"{name}.orders", f"A.{name}.orders"
    create_topic(cluster_a, orders, 2)
    sent, over = _sent(0, 1_000), threading.Event()

    def feed() -> None:
        while not over.is_set():
            more = _sent(len(sent), 100)
            produce(cluster_a, orders, more)
            sent.extend(more)
            time.sleep(0.05)

    path = _file(tmp_path, cluster_a, cluster_b, name, where=WHERE, select=SELECT)
    produce(cluster_a, orders, sent)
    mirror = _run(tmp_path, str(path), *mode)
    feeding = threading.Thread(target=feed)
    try:
        wait_until(lambda: remote in topic_names(cluster_b), "the remote topic")
        wait_until(lambda: len(consume_all(cluster_b, remote)) > 0, "first records")
        feeding.start()
        wait_until(
            lambda: len(consume_all(cluster_b, remote)) > len(_expected(sent[:1_000])),
            "more records",
        )
    finally:
        mirror.kill()
        over.set()
        if feeding.ident is not None:
            feeding.join()
    _once(tmp_path, str(path), *mode)
    wanted, got = _expected(sent), contents(consume_all(cluster_b, remote))
    if mode:
        assert got == wanted
        return
    assert set(got) == set(wanted)
    # What comes twice is a stretch that begins again: without it, the order is the source's.
    first = list(dict.fromkeys(got))
    assert first == wanted


@pytest.mark.more
@pytest.mark.parametrize("mode", [pytest.param((), marks=pytest.mark.long), EXACTLY_ONCE])
def test_positions_move_when_everything_is_filtered(
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    orders = f"{name}.orders"
    create_topic(cluster_a, orders, 2)
    produce(cluster_a, orders, _sent(0, 700))
    path = _file(tmp_path, cluster_a, cluster_b, name, where="offset < 0")
    _once(tmp_path, str(path), *mode)
    assert consume_all(cluster_b, f"A.{orders}") == []
    (flow,) = _asked(capsys, "lag", str(path))["flows"]
    assert [one["records"] for one in flow["partitions"]] == [0, 0]


@pytest.mark.more
@pytest.mark.parametrize(
    ("choice", "mode"),
    [
        ("dead-letter", EXACTLY_ONCE),
        ("pause", ()),
        pytest.param("skip", (), marks=pytest.mark.long),
        pytest.param("skip", EXACTLY_ONCE, marks=pytest.mark.long),
        pytest.param("dead-letter", (), marks=pytest.mark.long),
        pytest.param("pause", EXACTLY_ONCE, marks=pytest.mark.long),
    ],
)
def test_records_on_which_the_sql_fails(
    choice: str,
    mode: tuple[str, ...],
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """They follow ``on.bad.record``; the other records and partitions go on."""
    orders, remote = f"{name}.orders", f"A.{name}.orders"
    create_topic(cluster_a, orders, 2)
    values = [b"%d" % n if n not in (40, 42) else b"x%d" % n for n in range(100)]
    produce(cluster_a, orders, [Sent(one, b"k", partition=n % 2) for n, one in enumerate(values)])
    path = _file(
        tmp_path, cluster_a, cluster_b, name, where="CAST(CAST(value AS STRING) AS INT) >= 10"
    )
    with path.open("a") as file:
        file.write(f"A->B.sparkmirror.on.bad.record = {choice}\n")
    said = _once(tmp_path, str(path), *mode, code=1 if choice == "pause" else 0)
    got = consume_all(cluster_b, remote)
    odd = [values[n] for n in range(11, 100, 2)]
    even = [values[n] for n in range(10, 100, 2) if n not in (40, 42)]
    if choice == "pause":
        even = even[:15]
        assert "the SQL of the transform clean failed on these records" in said
        assert "first at source offset 20: [CAST_INVALID_INPUT] The value … of the type" in said
        assert "x40" not in said
    assert [one.value for one in got if one.partition == 0] == even
    assert [one.value for one in got if one.partition == 1] == odd
    if choice == "pause":
        return
    found = [one for one in _asked(capsys, "gaps", str(path))["gaps"] if one["topic"] == orders]
    spans = [(one["first_offset"], one["last_offset"]) for one in found]
    assert spans == [(20, 21)]
    assert "[CAST_INVALID_INPUT]" in found[0]["reason"]
    assert "x40" not in str(found)
    if choice == "dead-letter":
        letters = consume_all(cluster_b, f"{remote}.dead-letter")
        assert [one.value for one in letters] == [b"x40", b"x42"]
        for letter in letters:
            headers = dict(letter.headers)
            assert headers["sparkmirror.error.code"] == b"TRANSFORM_FAILED"
            assert b"[CAST_INVALID_INPUT]" in (headers["sparkmirror.error.reason"] or b"")


@pytest.mark.more
def test_what_a_transform_does_is_in_the_metrics(
    name: str, cluster_a: KafkaCluster, cluster_b: KafkaCluster, tmp_path: Path
) -> None:
    """Records in, out, filtered and failed; those that are only filtered count, too."""
    orders = f"{name}.orders"
    create_topic(cluster_a, orders, 2)
    where = "CAST(CAST(value AS STRING) AS INT) >= 10"
    path = _file(tmp_path, cluster_a, cluster_b, name, where=where)
    with path.open("a") as file:
        file.write("A->B.sparkmirror.on.bad.record = skip\n")
        file.write("sparkmirror.metrics.listen = 127.0.0.1:0\n")
    values = [b"%d" % n if n not in (40, 42) else b"x%d" % n for n in range(100)]
    produce(cluster_a, orders, [Sent(one, partition=n % 2) for n, one in enumerate(values)])
    mirror = _run(tmp_path, str(path))

    def values(pattern: str) -> dict[str, float]:
        found = re.search(r"metrics on (http://127[.]0[.]0[.]1:[0-9]+/metrics)", mirror.text())
        if found is None:
            return {}
        with urllib.request.urlopen(found[1], timeout=patience()) as answer:
            text = answer.read().decode()
        return {one[1]: float(one[2]) for one in re.finditer(pattern, text)}

    def shown() -> dict[str, float]:
        return values(r'sparkmirror_transform_(\w+)_records_total[{].*transform="clean".*[}] (.*)')

    def stages() -> dict[str, float]:
        return values(r'sparkmirror_transform_seconds_total[{].*stage="(\w+)".*[}] (.*)')

    try:
        counts = {"in": 100, "out": 88, "filtered": 10, "failed": 2}
        wait_until(lambda: shown() == counts, "the counts")
        produce(cluster_a, orders, [Sent(b"1", partition=0) for _ in range(5)])
        counts |= {"in": 105, "filtered": 15}
        wait_until(lambda: shown() == counts, "the counts of records that are all filtered")
        wait_until(lambda: stages().get("unpack", 0) > 0, "the source worker's time")
        assert stages().keys() == {"unpack", "sql", "pack"}
        assert all(0 < seconds < 300 for seconds in stages().values()), stages()  # not ms
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"where": "valu = 1"}, "`valu` cannot be resolved"),
        pytest.param({"where": "value >"}, "Syntax error", marks=pytest.mark.long),
        pytest.param({"where": "count(1) > 3"}, "operator Aggregate", marks=pytest.mark.long),
        pytest.param(
            {"select": "length(value) AS value"},
            "value is of type int, not binary",
            marks=pytest.mark.long,
        ),
        pytest.param(
            {"select": "'a b' AS topic"}, "topic names have only letters", marks=pytest.mark.long
        ),
    ],
)
def test_bad_sql_is_refused_at_the_start_with_its_line(
    options: dict[str, str],
    said: str,
    name: str,
    cluster_a: KafkaCluster,
    cluster_b: KafkaCluster,
    tmp_path: Path,
) -> None:
    create_topic(cluster_a, f"{name}.orders", 1)
    path = _file(tmp_path, cluster_a, cluster_b, name, **options)
    ((option, _),) = options.items()
    number = 1 + [line.split(" = ")[0] for line in path.read_text().splitlines()].index(
        f"{CLEAN}.{option}"
    )
    told = _once(tmp_path, str(path), code=2)
    assert said in told
    assert f"mm2.properties:{number}: {CLEAN}.{option}: the transform clean" in told
    # Topics are created while Spark starts.
    remote = f"A.{name}.orders"
    assert remote not in topic_names(cluster_b) or not consume_all(cluster_b, remote)
