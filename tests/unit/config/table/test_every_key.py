"""Every key of Kafka 4.3 or of clients of 4.4, in a file: it works, or the file's owner is told."""

import re
from pathlib import Path

import pytest

from sparkmirror.config.explain import explain
from sparkmirror.config.mm2.keys import OF_CONNECTOR
from sparkmirror.config.table.setting import Scope, Setting, Status, Type
from sparkmirror.config.table.settings import CLIENT_SET, find
from sparkmirror.errors import ConfigError
from tests.rows import named
from tests.unit.config_files import write
from tests.vectors import table

_BASE = "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"
# Section of the vector -> (scope in the settings table, what stands before the key in a file).
_PLACES = {
    "MirrorMakerConfig": (Scope.DRIVER, ""),
    "Consumer": (Scope.CONSUMER, "A.consumer."),
    "Producer": (Scope.PRODUCER, "B.producer."),
    "Admin": (Scope.ADMIN, "A.admin."),
    "WorkerDistributed": (Scope.WORKER, "B."),
}
_FLOW = (Scope.CONNECTOR, "A->B.")
_ROWS = [
    (section, row)
    for name in ("config_keys_4.3.0", "client_keys_4.3.0", "client_keys_new_in_4.4.0")
    for section, rows in table(name).items()
    for row in rows
]
# The file above has these already, and they need what no sample can be.
_OWN_TESTS = {"clusters", "bootstrap.servers"}
_VALUES = {
    "auto.offset.reset": "latest",
    "config.providers": "",
    "exactly.once.source.support": "preparing",
    "exactly.once.support": "requested",
    "security.protocol": "SSL",
}
_INT_MAX = 2**31 - 1
_CHECKED_ELSEWHERE = {"auto.offset.reset"}  # its durations are more than a choice
_SAMPLES = {
    Type.BOOLEAN: "true",
    Type.INT: "7",
    Type.LONG: "7",
    Type.SHORT: "1",
    Type.DOUBLE: "0.5",
    Type.LIST: "x",
}


def sample(setting: Setting) -> str:
    """A value that Java would take; not the default where that is easy."""
    if setting.name in _VALUES:
        return _VALUES[setting.name]
    if setting.choices:
        return setting.choices[-1]
    if setting.high is not None:
        return f"{setting.high:g}"
    if setting.low is not None:
        return f"{max(setting.low, 1):g}"
    return _SAMPLES.get(setting.type, "x")


@pytest.mark.parametrize("section", dict.fromkeys(section for section, _ in _ROWS))
def test_a_key_works_or_is_named(section: str, tmp_path: Path) -> None:
    for row in (row for one, row in _ROWS if one == section):
        with named(row):
            _works_or_is_named(section, row[0], tmp_path)


def _works_or_is_named(section: str, name: str, directory: Path) -> None:
    scope, prefix = _PLACES.get(section, _FLOW)
    setting = find(name, scope)
    assert setting is not None
    if name in _OWN_TESTS or name in OF_CONNECTOR:  # their elements have settings of their own
        return
    if name in CLIENT_SET and prefix == "A->B.":
        prefix = "A."  # a flow has no security of its own, its clusters have
    key = prefix + name
    lines = [line for line in _BASE.splitlines() if line.partition("=")[0] != name]
    path = write(directory, "\n".join([*lines, f"{key}={sample(setting)}\n"]))
    if setting.status is Status.REFUSED:
        with pytest.raises(ConfigError, match=re.escape(key)):
            explain(path)
        return
    setup = explain(path)
    warnings = "\n".join(setup.settings.warnings)
    settings = [one for flow in setup.flows for one in flow.settings]
    mine = [one for one in settings if one.place is not None and one.place.spelling == key]
    if setting.status is Status.IGNORED:
        assert name in warnings
        assert all(one.ignored for one in mine)
    elif all(one.ignored for one in mine):
        assert key in warnings or scope is Scope.DRIVER
    else:
        assert mine[0].value is not None
        assert f"{key} (line" not in warnings


def test_ranges_and_choices_are_javas() -> None:
    compared = 0
    for section, row in _ROWS:
        with named((section, *row)):
            compared += "[" in row[4] and _is_javas(section, row)
    assert compared > 150


def _is_javas(section: str, row: list[str]) -> bool:
    """Whether there is a rule: some have an explanation instead."""
    setting = find(row[0], _PLACES.get(section, _FLOW)[0])
    assert setting is not None
    bounds = re.fullmatch(r"\[([-0-9.]+)?,\.\.\.,?([-0-9.]+)?\]", row[4])
    choices = re.fullmatch(r"(\(case insensitive\) )?\[([^\[\].]+)\]", row[4])
    if bounds:
        low, high = (None if text is None else float(text) for text in bounds.groups())
        assert setting.low == low
        assert (setting.high or _INT_MAX) == (high or _INT_MAX)
    elif choices and row[0] not in _CHECKED_ELSEWHERE:
        theirs = {text.lower() for text in choices[2].split(", ")}
        assert theirs <= {text.lower() for text in setting.choices}
        assert setting.fold_case or not choices[1] or setting.status is Status.IGNORED
    else:
        return False
    return True
