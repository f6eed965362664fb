"""JSON and YAML of strangers: what they say, the lines of it, and nothing but ConfigErrors."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sparkmirror.config.files.documents import Node, load_json, load_yaml
from sparkmirror.errors import ConfigError
from tests.unit.config_files import write

# PyYAML's writer does not keep YAML 1.1's further line breaks as they are.
KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x00\x85\u2028\u2029"), max_size=8)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
SHARED = settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    deadline=None,
)


def plain(node: Node) -> Any:
    if isinstance(node.value, dict):
        return {key: plain(one) for key, one in node.value.items()}
    if isinstance(node.value, list):
        return [plain(one) for one in node.value]
    return node.value


def spelled(value: Any) -> Any:
    """As Java spells numbers and booleans in a text."""
    if isinstance(value, dict):
        return {key: spelled(one) for key, one in value.items()}
    if isinstance(value, list):
        return [spelled(one) for one in value]
    return value if value is None or isinstance(value, str) else json.dumps(value)


@SHARED
@given(VALUES, st.sampled_from([None, 1, "\t"]), st.booleans())
def test_json_says_what_it_says(
    tmp_path: Path, value: Any, indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert plain(load_json(write(tmp_path, text))) == spelled(value)


def scalars(value: Any) -> Any:
    """YAML has its own numbers: only texts, booleans and nothing are compared."""
    if isinstance(value, dict):
        return {key: scalars(one) for key, one in value.items()}
    if isinstance(value, list):
        return [scalars(one) for one in value]
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


@SHARED
@given(VALUES.map(scalars), st.booleans())
def test_yaml_says_what_it_says(tmp_path: Path, value: Any, flow: bool) -> None:
    text = yaml.safe_dump(value, default_flow_style=flow, allow_unicode=True)
    (found,) = load_yaml(write(tmp_path, text)) or [Node(None, "")]
    assert plain(found) == spelled(value)


@SHARED
@given(st.text("{}[]\":, \n\t-&*!|>#%@`'\\au0\x85\ufeff\x01", max_size=60))
def test_whatever_it_is_there_is_no_other_error(tmp_path: Path, text: str) -> None:
    for load in (load_json, load_yaml):
        with suppress(ConfigError):
            load(write(tmp_path, text))  # type: ignore[operator]


def test_lines_are_those_of_the_keys(tmp_path: Path) -> None:
    text = '{\n "a": {\n\n  "b": [\n   1,\n   "x\\ny"]},\n "c":\n\n  2}'
    found = load_json(write(tmp_path, text, "x.json"))
    table = found.table()
    b = table["a"].table()["b"]
    assert [one.where.rpartition(":")[2] for one in (table["a"], b, *b.items(), table["c"])] == [
        *("2", "4", "5", "6"),
        "9",
    ]
    assert b.items()[1].path == "a.b[1]"
    (one,) = load_yaml(write(tmp_path, "a:\n  b:\n    - 1\n    - x\nc:\n\n  2\n", "x.yaml"))
    b = one.table()["a"].table()["b"]
    shown = [each.where.rpartition(":")[2] for each in (b, *b.items(), one.table()["c"])]
    assert shown == ["2", "3", "4", "5"]


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('{"a": 1,\n}', 2, "this is not JSON"),
        ('{"a":\n 1 "b"}', 2, "this is not JSON"),
        ('{"a": 1,\n "a": 2}', 2, "a is defined twice"),
        ('{"x": {"a": 1,\n\n"a": 2}}', 3, "x.a is defined twice"),
        ("[" * 100_000, 0, "too deeply"),
        ("[" + "0," * 100_001 + "0]", 0, "more than 100,000 parts"),
    ],
)
def test_json_errors_name_the_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = write(tmp_path, text, "x.json")
    with pytest.raises(ConfigError, match=words) as caught:
        load_json(path)
    assert caught.value.where == f"{path}:{line}" if line else str(path)


MERGED = """\
one: &one
  a: 1
  b: {c: 2}
two: &two
  <<: *one
  a: 3
three:
  a: own
  <<: [*two, {d: 4, b: later}]
"<<": text
"""


def test_merge_keys_are_merged(tmp_path: Path) -> None:
    """As PyYAML merges them: own keys win, then the first of a list; lines are the origins'."""
    (found,) = load_yaml(write(tmp_path, MERGED, "x.yaml"))
    assert plain(found) == {
        "one": {"a": "1", "b": {"c": "2"}},
        "two": {"a": "3", "b": {"c": "2"}},
        "three": {"a": "own", "b": {"c": "2"}, "d": "4"},
        "<<": "text",
    }
    three = found.table()["three"].table()
    lines = {key: one.where.rpartition(":")[2] for key, one in three.items()}
    assert lines == {"a": "8", "b": "3", "d": "9"}
    assert three["b"].table()["c"].path == "three.b.c"
    merged = yaml.safe_load(MERGED)
    assert plain(found) == json.loads(json.dumps(merged), parse_int=str)


BOMB = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)} [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n" for n in range(9)
)
MERGE_BOMB = "a: &a {}\n" + "".join(
    f"{chr(98 + n)}: &{chr(98 + n)}\n  <<: [{', '.join([f'*{chr(97 + n)}'] * 10)}]\n"
    for n in range(9)
)


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("a: b: c\n", 1, "this is not YAML"),
        ("a:\n\t- b\n", 2, "this is not YAML"),
        ("a: 1\nb: *c\n", 2, "this is not YAML"),
        ("a: 1\nb: 2\na: 3\n", 3, "a is defined twice"),
        ("? [1]\n: 2\n", 1, "a key is not a text"),
        ("a: \x01\n", 0, "characters that YAML does not allow"),
        (BOMB, 0, "more than 100,000 parts"),
        (MERGE_BOMB, 0, "more than 100,000 parts"),
        ("a: &a\n  <<: *a\n", 0, "too deeply"),
        ("a: 1\nb:\n  <<: 5\n", 3, "b.<< is not a table of keys and values, nor a list of them"),
        ("b:\n  <<:\n    - {}\n    - [1]\n", 2, "b.<< is not a table"),
        ("a: {}\nb:\n  <<: {}\n  <<: {}\n", 4, "b.<< is defined twice"),
        ("a: {}\nb:\n  <<: {}\n  c: 1\n  c: 2\n", 5, "b.c is defined twice"),
    ],
)
def test_yaml_errors_name_the_line(tmp_path: Path, text: str, line: int, words: str) -> None:
    path = write(tmp_path, text, "x.yaml")
    with pytest.raises(ConfigError, match=words) as caught:
        load_yaml(path)
    assert caught.value.where == (f"{path}:{line}" if line else str(path))


def test_tags_make_no_objects(tmp_path: Path) -> None:
    text = "a: !!python/object/apply:os.system ['touch made']\n"
    (found,) = load_yaml(write(tmp_path, text))
    assert plain(found) == {"a": ["touch made"]}


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(b'{"a": "\xff"}')
    for load in (load_json, load_yaml):
        with pytest.raises(ConfigError, match="not UTF-8"):
            load(path)  # type: ignore[operator]


def test_a_value_is_not_shown() -> None:
    assert "hunter2" not in repr(Node("hunter2", "f:1"))
