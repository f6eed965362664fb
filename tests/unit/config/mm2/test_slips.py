"""What a file most likely does not mean is remarked; files of another kind say what they are."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.errors import ConfigError
from tests.unit.config_files import BASE, LINE, load, refused, write

GLOB = "a regex in which * repeats the character before it. To match any text there, write "


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("tasks.max=2\ntasks.max=3\n", f":{LINE + 1}: tasks.max is set again here; the value in "
         f"line {LINE} has no effect."),
        ("replication.factor=0\n", "replication.factor=0: brokers cannot create a topic without a "
         "replica"),
        ("A->B.topics=\n", "A->B.topics is empty, so no topic is mirrored"),
        ("topics=orders.*\ntopics.exclude=x,orders.*\n",
         f"topics.exclude (line {LINE + 1}) excludes all topics of topics, so no topic"),
        ("topics=orders-.*\nA->B.topics.exclude=.*\n", "so no topic is mirrored"),
        ("topics=orders-*\n", f"topics contains orders-*, {GLOB}orders-.*."),
        ("topics=a,(x|orders*)-eu\n", f"{GLOB}(x|orders.*)-eu."),
        ("topics.exclude=tmp_*\n", f"topics.exclude contains tmp_*, {GLOB}tmp_.*."),
        ('topics="a.*,b.*"\n', f":{LINE}: topics contains quotes, which are part of the names, as "
         "in MirrorMaker. Write the list without quotes."),
        ("A->B.topics.exclude='x'\n", "A->B.topics.exclude contains quotes, which"),
        ("groups=a, 'b.*'\n", "groups contains quotes, which"),
        ("groups=app-*\n", f"groups contains app-*, {GLOB}app-.*."),
        ("A.admin.client.id=${file:/secrets:x}\n", "which config.providers does not name"),
    ],
)  # fmt: skip
def test_slips_are_remarked(lines: str, told: str, tmp_path: Path) -> None:
    found = load(tmp_path, BASE + lines).warnings
    assert len([line for line in found if told in line]) == 1, found


@pytest.mark.parametrize(
    ("scope", "alias"),
    [
        ("A->B.source.admin", "A"),
        ("A->B.source.producer", "A"),  # writes offset syncs
        ("A->B.target.consumer", "B"),  # reads checkpoints
        ("B->A.producer.override", "A"),  # writes heartbeats
    ],
)
def test_clients_that_do_not_check_host_names_are_remarked(
    scope: str, alias: str, tmp_path: Path
) -> None:
    lines = f"{scope}.security.protocol=SSL\n{scope}.ssl.endpoint.identification.algorithm=\n"
    found = load(tmp_path, BASE + lines).warnings
    told = f"cluster {alias}: ssl.endpoint.identification.algorithm is empty, so anybody"
    assert len([line for line in found if told in line]) == 1, found


def test_two_aliases_at_one_address(tmp_path: Path) -> None:
    text = BASE.replace("b:9092", "other:1, A:9092")
    told = "B.bootstrap.servers names a:9092, as cluster 'A' does"
    assert any(told in line for line in load(tmp_path, text).warnings)


@pytest.mark.parametrize(
    "lines",
    [
        "topics=orders.*,a\\\\d*,[ab]*,(ab)*,(x{2})*,\\\\w*\n",
        "topics=.*\ntopics.exclude=orders.*\n",
        "topics=orders.*,payments\ntopics.exclude=orders.*\n",
        "groups=it's\n",
        "replication.factor=-1\n",
    ],
)
def test_what_is_meant_so_is_not_remarked(lines: str, tmp_path: Path) -> None:
    quiet = load(tmp_path, BASE).warnings
    assert load(tmp_path, BASE + lines).warnings == quiet


def test_files_of_mirrormaker_1(tmp_path: Path) -> None:
    consumer = "bootstrap.servers=a:1\ngroup.id=g\nfetch.min.bytes=1\nfetch.min.bytes=2\n"
    found = load_mm1(
        write(tmp_path, consumer, "consumer.properties"),
        write(tmp_path, "bootstrap.servers=b:1\n", "producer.properties"),
        include="orders-*,x",
    ).warnings
    assert any("--include: the list contains orders-*" in line for line in found)
    assert any("fetch.min.bytes is set again here" in line for line in found)


JSON = '{"name": "mm2", "config": {"clusters": "A,B"}}'
YAML = "# mirror\nclusters:\n  - alias: A\n    bootstrap: a:9092\n"
STRIMZI = "apiVersion: kafka.strimzi.io/v1beta2\nkind: KafkaMirrorMaker2\n"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (JSON.encode(), "looks like JSON"),
        (f"[\n{JSON}]".encode(), "looks like JSON"),
        (YAML.encode(), "looks like YAML"),
        (STRIMZI.encode(), "looks like YAML"),
        (b"---\nclusters: A\n", "looks like YAML"),
        (b"<?xml version='1.0'?>\n", "looks like XML"),
        (BASE.encode("utf-16"), "is UTF-16 text"),
        (BASE.encode("utf-16-be"), "is UTF-16 text"),
        (BASE.encode("utf-16-le"), "is UTF-16 text"),
        (gzip.compress(BASE.encode(), mtime=0), "is binary"),
        (b"PK\x03\x04" + BASE.encode(), "is binary"),
        (bytes(range(256)) * 4, "is binary"),
        (BASE.encode() + b"tasks.max=\x001\n", f"line {LINE} contains a zero byte"),
    ],
)
def test_files_of_another_kind_say_what_they_are(data: bytes, told: str, tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=told) as caught:
        load_mm2(path)
    assert caught.value.where.startswith(str(path))


@pytest.mark.parametrize(
    "text",
    [
        BASE.replace("=", ": "),
        "clusters = A,\\\n   B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n"
        "A->B.enabled = true\n",
        BASE,
    ],
)
def test_properties_of_every_spelling_are_none_of_these(text: str, tmp_path: Path) -> None:
    assert load(tmp_path, text).clusters == ("A", "B")


def test_of_many_unknown_keys_ten_are_named(tmp_path: Path) -> None:
    error = refused(tmp_path, BASE + "".join(f"slip.{n}=1\n" for n in range(20_000)))
    assert error.what.startswith("20,000 keys are unknown: ")
    assert error.what.count(" is unknown") == 10
    assert error.what.endswith("; and 19,990 more.")


def test_of_many_errors_twenty_are_named(tmp_path: Path) -> None:
    lines = "".join(f"A->C{n}.enabled=true\n" for n in range(300))
    error = refused(tmp_path, BASE + lines)
    assert error.what.startswith("300 settings are wrong. (1) ")
    assert error.what.endswith(" And 280 more.")
    assert "(20) " in error.what
    assert "(21) " not in error.what
