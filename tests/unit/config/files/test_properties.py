"""Java properties files: the same keys and values as java.util.Properties, and better errors."""

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from sparkmirror.config.files.origin import TABLE
from sparkmirror.config.files.properties import Entry, load_properties, parse_properties
from sparkmirror.errors import ConfigError
from tests.unit.config_files import pipe, without_root
from tests.vectors import load

FILE = Path("mm2.properties")


def _values(text: str) -> dict[str, str]:
    return {key: entry.value for key, entry in parse_properties(text.encode(), FILE).items()}


VECTORS: list[tuple[str, dict[str, str] | None]] = load("java_properties")["cases"]


@pytest.mark.parametrize(("text", "expected"), [case for case in VECTORS if case[1] is not None])
def test_reads_what_java_reads(text: str, expected: dict[str, str]) -> None:
    assert _values(text) == expected


@pytest.mark.parametrize("text", [text for text, expected in VECTORS if expected is None])
def test_refuses_what_java_refuses(text: str) -> None:
    with pytest.raises(ConfigError, match=r"malformed|has no key"):
        _values(text)


@pytest.mark.parametrize(
    ("line", "key", "value"),
    [
        ("a=b", "a", "b"),
        ("a: b", "a", "b"),
        ("a b", "a", "b"),
        ("  a\t=\t b ", "a", "b "),
        ("a=", "a", ""),
        ("a:", "a", ""),
        ("A->B.topics = x", "A->B.topics", "x"),
        ("topics=a # not a comment", "topics", "a # not a comment"),
        (r"t=mm2.*\\.internal", "t", r"mm2.*\.internal"),
        (r"t=mm2.*\.internal", "t", "mm2.*.internal"),
        (r"t=\u0041\t\n", "t", "A\t\n"),
        (r"a\ b\=c=d", "a b=c", "d"),
        ("a==b", "a", "=b"),
        ("t=x,\\\n   y", "t", "x,y"),
        (r"e=\ud83d\ude00", "e", "\U0001f600"),
    ],
)
def test_one_property(line: str, key: str, value: str) -> None:
    assert _values(line) == {key: value}


def test_comments_and_blank_lines_are_skipped() -> None:
    assert _values("# a=b\n  ! c=d\n\n \t\nk=v\n") == {"k": "v"}


def test_the_last_of_repeated_keys_counts_with_its_line() -> None:
    properties = parse_properties(b"a=1\nb=2\na=3\n", FILE)
    assert properties["a"].value == "3"
    assert properties.where("a") == "mm2.properties:3"
    assert list(properties) == ["b", "a"]


def test_every_key_has_the_line_it_starts_on() -> None:
    text = b"# head\r\nk1 = a,\\\r\n  b\r\n\r\nk2: c\rk3 d"
    lines = {key: entry.line for key, entry in parse_properties(text, FILE).items()}
    assert lines == {"k1": 2, "k2": 5, "k3": 6}


def test_an_absent_key_is_at_the_file() -> None:
    assert parse_properties(b"a=b", FILE).where("x") == "mm2.properties"
    assert Entry("a", "b", TABLE).line == 0


def test_values_stay_out_of_repr() -> None:
    properties = parse_properties(b"ssl.key.password=hunter2", FILE)
    assert "hunter2" not in repr(properties)
    assert "hunter2" not in repr(properties["ssl.key.password"])


@pytest.mark.parametrize(
    ("text", "line", "what"),
    [
        ("=b", 1, "no key before the '='"),
        ("# c\n\n a=\\u12", 3, "malformed \\uXXXX"),
    ],
)
def test_a_line_that_is_no_property_is_named(text: str, line: int, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_properties(text.encode(), FILE)
    assert caught.value.where == f"mm2.properties:{line}"
    assert what in caught.value.what
    assert caught.value.do


def test_lines_that_java_reads_otherwise_than_they_seem_are_told() -> None:
    found = parse_properties("a=1\nclusters  \nb=caf\u00e9\n# caf\u00e9\n".encode(), FILE)
    assert {key: entry.value for key, entry in found.items()} == {
        "a": "1", "clusters": "", "b": "caf\u00c3\u00a9",
    }  # fmt: skip
    without, byte = found.remarks
    assert without.startswith("mm2.properties:2: no '=' follows 'clusters', so it is a key with")
    assert "mm2.properties:3: the line contains the byte 0xC3, which is not ASCII" in byte
    assert "caf" not in byte  # it may be a password


@pytest.mark.parametrize(
    "data", ["\ufeffa=b".encode(), "a=b".encode("utf-16"), b"a=b\n\0\0"], ids=["bom", "16", "zero"]
)
def test_what_is_no_plain_text_is_refused(data: bytes) -> None:
    with pytest.raises(ConfigError, match="byte") as caught:
        parse_properties(data, FILE)
    assert caught.value.where == "mm2.properties"


def test_comments_may_hold_any_characters() -> None:
    assert _values("# caf\u00e9 \u2013 \u2713\nk=v") == {"k": "v"}


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file") as caught:
        load_properties(tmp_path / "none.properties")
    assert caught.value.where == str(tmp_path / "none.properties")
    assert caught.value.exit_code == 2


def test_a_directory(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="directory"):
        load_properties(tmp_path)


def test_a_path_through_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("a=b")
    with pytest.raises(ConfigError, match="cannot be read: Not a directory"):
        load_properties(tmp_path / "file" / "x")


def test_a_file_without_permission() -> None:
    with tempfile.TemporaryDirectory() as directory:
        Path(directory).chmod(0o755)
        path = Path(directory) / "locked.properties"
        path.write_text("a=b")
        path.chmod(0)
        with without_root(), pytest.raises(ConfigError, match="permission denied") as caught:
            load_properties(path)
    assert caught.value.where == str(path)


def test_a_file_too_large_to_be_a_configuration(tmp_path: Path) -> None:
    path = tmp_path / "huge.properties"
    with path.open("wb") as file:
        file.truncate(17 * 1024 * 1024)
    with pytest.raises(ConfigError, match="larger than 16 MiB"):
        load_properties(path)


def test_a_file_without_an_end() -> None:
    for _ in range(2):
        with pytest.raises(ConfigError, match="larger than 16 MiB"):
            load_properties(Path("/dev/zero"))


@pytest.mark.parametrize("text", ["a=1", ""])
def test_a_pipe_is_the_same_file_each_time(text: str) -> None:
    with pipe(text) as path:
        read = [list(load_properties(Path(path))) for _ in range(3)]
    assert read == [["a"] if text else []] * 3


def test_pipes_are_not_mistaken_for_each_other() -> None:
    with pipe("a=1") as one, pipe("b=2") as other:
        for _ in range(2):
            assert [*load_properties(Path(one)), *load_properties(Path(other))] == ["a", "b"]
    with pipe("c=3") as again:
        assert list(load_properties(Path(again))) == ["c"]


def test_a_fifo_waits_for_its_writer_once(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    with ThreadPoolExecutor(1) as writers:
        first = writers.submit(path.write_text, "a=1")
        assert list(load_properties(path)) == ["a"]
        first.result()
        second = writers.submit(path.write_text, "b=2")  # waits until somebody opens the FIFO
        assert list(load_properties(path)) == ["a"]
        assert path.read_text() == "b=2"
        second.result()


def test_a_file_that_changes_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "regular"
    for text in ("a=1", "b=2"):
        path.write_text(text)
        assert list(load_properties(path)) == [text[0]]
