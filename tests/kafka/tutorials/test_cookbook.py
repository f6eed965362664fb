"""The recipes of the cookbook as the page has them, and the records that it shows."""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.harness.mirror_process import MirrorProcess
from tests.kafka.harness.pages import DOCS, NEW, OLD
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Headers,
    Sent,
    admin,
    consume_all,
    create_topic,
    produce,
    topic_names,
)
from tests.murmur2 import murmur2
from tests.registries import SchemaRegistry, serving

_HOUR_MS = 3_600_000
_HOURS = ("2026-11-25T10:00:00Z", "2026-11-25T11:00:00Z")
_PARTITIONS = 2
_SYNCS = "mm2-offset-syncs.B.internal"
_DEAD = ".dead-letter"
_SMTS = "S"
"""The source's second name, for what cannot stand in one flow with the rest of the page."""
_ONE_BROKER = """
tasks.max = 1
replication.factor = 1
offset.storage.replication.factor = 1
"""
_OWN_TOPICS = """
offset-syncs.topic.replication.factor = 1
checkpoints.topic.replication.factor = 1
emit.heartbeats.enabled = false
"""
_NOWHERE, _SAME = "–", ": the same"
_CASE = re.compile(
    r"^```properties\n(?P<lines>.*?)^```\n.*?"
    r"^\| sent on A \| arrives on B \|\n\|---\|---\|\n(?P<rows>(?:\|[^\n]*\n)+)",
    re.MULTILINE | re.DOTALL,
)
_REGISTRY = "https://registry.example.com:8081"
_SCHEMA = re.compile(r"^```(json|proto)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_FILE = re.compile(r"^`/etc/mirror/([^`]+)`.*\n```csv\n((?:.*\n)*?)```$", re.MULTILINE)
_PART = re.compile(r"(?:(key|header|bytes|at) )?`([^`]+)`|(no|empty) value")


@dataclass(frozen=True)
class Shown:
    """A record of a table. ``time``: of the page's day, as in 10:30; empty for any."""

    topic: str
    key: bytes | None
    value: bytes | None
    headers: Headers
    time: str


@dataclass(frozen=True)
class Case:
    """Lines of a file, and what its table shows: what is sent, and what arrives, or None."""

    lines: str
    rows: tuple[tuple[Shown, Shown | None], ...]

    @property
    def topics(self) -> set[str]:
        return {sent.topic for sent, _ in self.rows}

    def of(self, source: str) -> Case:
        """The same as a flow of its own from the cluster ``source``, with topics of its own."""

        def named(one: Shown) -> Shown:
            prefix, name = one.topic.rpartition("A.")[1:]
            return replace(one, topic=f"{source}.{source}-{name}" if prefix else f"{source}-{name}")

        return Case(
            self.lines.replace("A->B", f"{source}->B"),
            tuple((named(sent), found and named(found)) for sent, found in self.rows),
        )


def _shown(cell: str) -> Shown:
    topic, *parts = _PART.findall(cell)
    key: bytes | None = None
    value: bytes | None = None
    headers: list[tuple[str, bytes | None]] = []
    at = ""
    for kind, text, which in parts:
        if kind == "key":
            key = text.encode()
        elif kind == "header":
            name, _, content = text.partition("=")
            headers.append((name, content.encode()))
        elif kind == "bytes":
            value = bytes.fromhex(text)
        elif kind == "at":
            at = text
        elif which != "no":
            value = text.encode()
    return Shown(topic[1], key, value, tuple(headers), at)


def _row(line: str) -> tuple[Shown, Shown | None]:
    left, right = (cell.strip() for cell in line.strip("|").split(" | "))
    sent = _shown(left)
    if right == _NOWHERE:
        return sent, None
    found = _shown(right)
    return sent, replace(sent, topic=found.topic) if right.endswith(_SAME) else found


def _page() -> tuple[str, dict[str, list[Case]]]:
    """How the file begins, and the cases of each recipe by its heading."""
    beginning, *sections = re.split(r"^## ", (DOCS / "cookbook.md").read_text(), flags=re.MULTILINE)
    recipes = {}
    for section in sections:
        title, _, text = section.partition("\n")
        recipes[title] = [
            Case(one["lines"], tuple(_row(line) for line in one["rows"].splitlines()))
            for one in _CASE.finditer(text)
        ]
        assert len(recipes[title]) == text.count("```properties") > 0, title
    (block,) = re.findall(r"^```properties\n(.*?)^```", beginning, re.MULTILINE | re.DOTALL)
    return block, recipes


@pytest.fixture
def clusters(
    cluster_a: KafkaCluster, cluster_b: KafkaCluster
) -> Iterator[tuple[KafkaCluster, ...]]:
    """Both, without the page's topics before and after: their names may be anybody's."""
    pair = cluster_a, cluster_b
    before = [topic_names(cluster) for cluster in pair]
    yield pair
    for cluster, known in zip(pair, before, strict=True):
        client = admin(cluster)
        own = [one for one in topic_names(cluster) - known if not one.startswith(("__", "mm2-"))]
        for deleted in client.delete_topics(own).values():
            deleted.result(TIMEOUT_S)


def _smt_flow(cases: Sequence[Case]) -> str:
    """One flow with the single message transforms of all ``cases``."""
    flow, lines = f"{_SMTS}->B", "".join(case.lines for case in cases)
    for key in ("transforms", "predicates"):
        names = re.findall(rf"^{flow}[.]{key} = (.+)$", lines, re.MULTILINE)
        lines = re.sub(rf"^{flow}[.]{key} = .+\n", "", lines, flags=re.MULTILINE)
        lines += f"{flow}.{key} = {', '.join(names)}\n"
    topics = ", ".join(sorted(topic for case in cases for topic in case.topics))
    lines += f"{flow}.topics = {topics}\n{flow}.enabled = true\n"
    return f"{lines}{_SMTS}.bootstrap.servers = {OLD}\n"


def _etc(directory: Path) -> None:
    """Write the files that the page shows, which are in ``/etc/mirror`` there."""
    shown = _FILE.findall((DOCS / "cookbook.md").read_text())
    assert shown
    for name, content in shown:
        (directory / name).write_text(content)


def _file(path: Path, text: str, clusters: Iterable[KafkaCluster]) -> Path:
    text = text.replace("/etc/mirror", str(path.parent)) + _ONE_BROKER
    for there, cluster in zip((OLD, NEW), clusters, strict=True):
        assert there in text
        text = text.replace(there, cluster.bootstrap_servers)
    path.write_text(text)
    return path


def _once(directory: Path, path: Path) -> None:
    mirror = MirrorProcess(directory, ["run", str(path), "--once"])
    assert mirror.wait() == 0, mirror.text()


def _send(cluster: KafkaCluster, case: Case, ten_ms: int) -> list[int]:
    """Send the case's records to the last partitions; the timestamp of each row's record.

    ``ten_ms``: when it is 10 o'clock on the page's day.
    """
    times = [ten_ms + number for number in range(len(case.rows))]
    records = defaultdict(list)
    for number, (one, _) in enumerate(case.rows):
        if one.time:
            hours, minutes = map(int, one.time.split(":"))
            times[number] = ten_ms + (hours - 10) * _HOUR_MS + minutes * 60_000
        sent = Sent(one.value, one.key, one.headers, times[number], _PARTITIONS - 1)
        records[one.topic].append(sent)
    for topic, some in records.items():
        create_topic(cluster, topic, _PARTITIONS)
        produce(cluster, topic, some)
    return times


def _wanted(case: Case, times: list[int], source: str) -> dict[str, list[list[object]]]:
    """What must be in each topic of the target, by partition."""
    found: dict[str, list[list[object]]] = {
        f"{source}.{topic}": [[] for _ in range(_PARTITIONS)] for topic in case.topics
    }
    for (_, one), time_ms in zip(case.rows, times, strict=True):
        if one is None:
            continue
        at, said = _PARTITIONS - 1, [one.key, one.value, one.headers, time_ms]
        if "NULL AS partition" in case.lines:
            at = (murmur2(one.key or b"") & 0x7FFFFFFF) % _PARTITIONS
        if one.topic.endswith(_DEAD):
            at, said = 0, said[:-1]  # with the time when it is written
        found.setdefault(one.topic, [[] for _ in range(_PARTITIONS)])[at].append(said)
    return found


def _arrived(cluster: KafkaCluster, topic: str, case: Case) -> list[list[object]]:
    """What is there, of a dead letter's own headers those that the page shows."""
    named = {name for _, one in case.rows if one is not None for name, _ in one.headers}
    found: list[list[object]] = [[] for _ in range(_PARTITIONS)]
    for one in consume_all(cluster, topic):
        said: list[object] = [one.key, one.value, one.headers, one.timestamp_ms]
        if topic.endswith(_DEAD):
            own = [each for each in one.headers if each[0] in named]
            said = [one.key, one.value, tuple(own)]
            assert len(own) < len(one.headers)
        found[one.partition].append(said)
    return found


def _check(cluster: KafkaCluster, case: Case, times: list[int], source: str) -> None:
    """Raises AssertionError if other records arrived, or in another order."""
    for topic, records in _wanted(case, times, source).items():
        arrived = _arrived(cluster, topic, case)
        if len(case.topics) > 1:  # there is no order between the records of two
            for one in (*arrived, *records):
                one.sort(key=str)
        assert arrived == records, topic


@pytest.mark.more
def test_every_recipe_of_the_page(clusters: tuple[KafkaCluster, ...], tmp_path: Path) -> None:
    """One mirror runs all of them, and a second one the hour that is mirrored again.

    Single message transforms are a flow of their own in the same file.
    """
    source, target = clusters
    text, recipes = _page()
    (again,) = recipes.pop("An hour again")
    cases: list[tuple[Case, str]] = []
    for case in (one for recipe in recipes.values() for one in recipe):
        smts = "A->B.transforms = " in case.lines
        cases.append((case.of(_SMTS), _SMTS) if smts else (case, "A"))
    text = text.replace("clusters = A, B", f"clusters = A, B, {_SMTS}", 1)
    text += _OWN_TOPICS + "".join(case.lines for case, alias in cases if alias == "A")
    text += _smt_flow([case for case, alias in cases if alias == _SMTS])
    ten_ms = (int(time.time() * 1000) // _HOUR_MS - 3) * _HOUR_MS
    times = [_send(source, case, ten_ms) for case, _ in cases]
    times_again = _send(source, again, ten_ms)

    _etc(tmp_path)
    registry = SchemaRegistry()
    avro, proto = _SCHEMA.findall((DOCS / "cookbook.md").read_text())
    assert registry.add("accounts-value", avro[1]) == 1
    assert registry.add("parcels-value", proto[1], "PROTOBUF") == 2
    with serving(registry) as url:
        assert _REGISTRY in text
        text = text.replace(_REGISTRY, url)
        _once(tmp_path, _file(tmp_path / "mm2.properties", text, clusters))
    for (case, alias), when in zip(cases, times, strict=True):
        _check(target, case, when, alias)
    syncs = consume_all(source, _SYNCS)

    lines = again.lines
    for hour, name in enumerate(_HOURS):
        assert name in lines
        there = time.gmtime(ten_ms // 1000 + hour * 3600)
        lines = lines.replace(name, time.strftime("%Y-%m-%dT%H:%M:%SZ", there))
    _once(tmp_path, _file(tmp_path / "replay.properties", lines, clusters))
    _check(target, again, times_again, "replay")
    # The running mirror's offset syncs stay as they were.
    assert consume_all(source, _SYNCS) == syncs
    assert any(one.key is not None and b"invoices" in one.key for one in syncs)
