"""Every known key at every place of a file: it has an effect, or is named, or refused by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

import pytest

from sparkmirror.config.files.origin import Origin
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.mm2.keys import KeyUse, classify
from sparkmirror.config.table.setting import Scope, Setting, Status, Type
from sparkmirror.config.table.settings import CLIENT_SET, SETTINGS
from sparkmirror.errors import ConfigError
from sparkmirror.settings import MirrorSettings
from tests.unit.config_files import BASE, load, write

_CLIENTS = ("consumer.", "producer.", "admin.")
_SIDES = ("", "A.", "B.", "A->B.", "A->B.source.", "A->B.target.", "source.", "target.")
_PLACES = [
    *("", "A.", "B.", "A->B.", "A->B.source.cluster.", "A->B.target.cluster."),
    *(side + client for side in _SIDES for client in _CLIENTS),
    *("producer.override.", "A->B.producer.override."),
]
_NUMBERS = (Type.SHORT, Type.INT, Type.LONG)
_VALUES = {
    "auto.offset.reset": "none",
    "bootstrap.servers": "z:9",
    "clusters": "A,B,C",
    "partitioner.class": "RoundRobinPartitioner",
    "use.defaults.from": "source",
}
# Files in which a key can have an effect, by the beginning of the key; for all others BASE.
_FILES = {
    "A->B.enabled": BASE.replace("A->B.enabled", "B->A.enabled"),
    # A cluster's own address comes before that of all clusters.
    "bootstrap.servers": "clusters=A,B\nbootstrap.servers=y:1\nA->B.enabled=true\n",
    "sparkmirror.metrics.": BASE + "sparkmirror.metrics.listen=127.0.0.1:1\n",
}


def _sample(row: Setting) -> str | None:
    """A value of ``row`` that is not its default; None where there is no other."""
    if row.name in _VALUES:
        return _VALUES[row.name]
    if row.type is Type.BOOLEAN:
        return "false" if row.default == "true" else "true"
    if row.choices:
        return next((one for one in reversed(row.choices) if one != row.default), None)
    if row.type in _NUMBERS:
        low, high = int(row.low or 0), int(row.high or 10_000)
        return next(str(n) for n in (7, 8, low + 1, 250, high) if low <= n <= high)
    if row.type is Type.DOUBLE:
        return f"{row.high or 0.6:g}"
    return "x"


Read = Callable[[str], MirrorSettings]


def _silent(row: Setting, key: str, text: str, read: Read, unchanged: Read) -> str:
    """Why nobody learns that ``key`` does nothing in the file ``text``; ``""`` if it does something
    there, or is named. ``unchanged``: as ``read``, and remembers what it has read.
    """
    value = _sample(row)
    if value is None:
        return ""
    lines = [line for line in text.splitlines() if line.partition("=")[0] != key]
    try:
        settings = read("\n".join([*lines, f"{key}={value}\n"]))
    except ConfigError as error:
        return "" if row.name in str(error) else f"{key}={value}: {error}"
    named = any(key in line for line in settings.warnings)
    if named or replace(settings, warnings=()) != replace(unchanged(text), warnings=()):
        return ""
    return f"{key}={value} changes nothing, and nothing says so"


def _rows(scopes: tuple[Scope, ...] = tuple(Scope)) -> Iterator[Setting]:
    return (row for row in SETTINGS if set(row.scopes) & set(scopes))


@pytest.mark.parametrize("place", _PLACES)
def test_a_known_key_of_mirrormaker_2_is_used_or_named(place: str, tmp_path: Path) -> None:
    silent: list[str] = []
    ignored: list[Entry] = []
    read = partial(load, tmp_path)
    unchanged = cache(read)
    for row in _rows():
        key = place + row.name
        outcome = classify(Entry(key, "", Origin.in_file("file:5")), ("A", "B"))
        if not isinstance(outcome, KeyUse) or outcome.setting is not row:
            continue  # unknown, refused, or named as lost
        if row.status is Status.REFUSED:
            continue
        secure = row.name in CLIENT_SET and row.name.startswith(("ssl.", "sasl."))
        if secure or outcome.ignored or row.status is Status.IGNORED:
            ignored.append(Entry(key, _sample(row) or row.choices[0]))
            continue
        text = next((text for start, text in _FILES.items() if key.startswith(start)), BASE)
        silent.append(_silent(row, key, text, read, unchanged))
    assert list(filter(None, silent)) == []
    # Thirty keys that are ignored to a file, as many as a warning names: the rules for these look
    # at nothing else.
    untold: list[str] = []
    for first in range(0, len(ignored), 30):
        some = ignored[first : first + 30]
        lines = "".join(f"{entry.key}={entry.value}\n" for entry in some)
        warnings = "\n".join(load(tmp_path, BASE + lines).warnings)
        untold += [entry.key for entry in some if f"{entry.key} (line" not in warnings]
    assert untold == []


@pytest.mark.parametrize(
    ("file", "scope"), [("consumer", Scope.CONSUMER), ("producer", Scope.PRODUCER)]
)
def test_a_known_key_of_mirrormaker_1_is_used_or_named(
    file: str, scope: Scope, tmp_path: Path
) -> None:
    texts = {
        "consumer": "bootstrap.servers=a:1\ngroup.id=g\n",
        "producer": "bootstrap.servers=b:1\n",
    }

    def read(text: str) -> MirrorSettings:
        both = {**texts, file: text}
        paths = [write(tmp_path, both[one], f"{one}.properties") for one in texts]
        return load_mm1(*paths, include=".*")

    rows = [row for row in _rows((scope,)) if row.status is not Status.REFUSED]
    unchanged = cache(read)
    silent = [_silent(row, row.name, texts[file], read, unchanged) for row in rows]
    assert list(filter(None, silent)) == []
