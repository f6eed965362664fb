"""Files that are wrong, given to the real commands: one paragraph, exit code 2, no stack trace."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

_TWO = "clusters = A, B\nA.bootstrap.servers = a:1\nB.bootstrap.servers = b:1\n"
_FLOW = "A->B.enabled = true\n"

WRONG = {
    "a line that is no property": (_TWO + _FLOW + "tasks.max = \\u12\n", ":5: "),
    "an unknown cluster in a flow": (_TWO + _FLOW + "A->C.enabled = true\n", "A->C.enabled"),
    "a flow onto itself": (_TWO + _FLOW + "A->A.enabled = true\n", "A->A"),
    "a bad regex": (_TWO + _FLOW + "A->B.topics = orders(\n", "A->B.topics"),
    "no flow": (_TWO, "A->B.enabled"),
    "a number that is none": (_TWO + _FLOW + "tasks.max = many\n", "tasks.max"),
}


def _end(command: str, *arguments: str, home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(Path(sys.executable).parent / command), *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "XDG_STATE_HOME": str(home)},
    )


def _paragraph(done: subprocess.CompletedProcess[str], code: int) -> str:
    assert done.returncode == code, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert done.stderr.startswith("error: "), done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    return done.stderr


# What is said of each of them is tested without a process in test_bad_input.py and test_dropin.py.
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.more if number else ())
        for number, kind in enumerate(WRONG)
    ],
)
def test_what_stands_in_a_file(kind: str, tmp_path: Path) -> None:
    text, named = WRONG[kind]
    path = tmp_path / "mm2.properties"
    path.write_text(text)
    told = _paragraph(_end("sparkmirror", "run", str(path), home=tmp_path / "state"), 2)
    assert str(path) in told
    assert named in told
    assert not (tmp_path / "state").exists(), "nothing was started"


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("missing", "sparkmirror"),
        ("binary", "connect-mirror-maker"),
        *(
            pytest.param(*each, marks=pytest.mark.more)
            for each in (
                ("a directory", "sparkmirror"),
                ("below a file", "sparkmirror"),
                ("binary", "sparkmirror"),
                ("missing", "connect-mirror-maker"),
                ("a directory", "connect-mirror-maker"),
                ("below a file", "connect-mirror-maker"),
            )
        ),
    ],
)
def test_a_file_that_cannot_be_read(kind: str, command: str, tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    if kind == "a directory":
        path.mkdir()
    elif kind == "binary":
        path.write_bytes(b"\x00\xff\xfe" * 100)
    elif kind == "below a file":
        path.write_text("")
        path /= "mm2.properties"
    arguments = ["run", str(path)] if command == "sparkmirror" else [str(path)]
    done = _end(command, *arguments, home=tmp_path / "state")
    code = done.returncode
    assert code != 0
    assert str(path) in _paragraph(done, code)


def test_debug_adds_the_stack_trace_and_json_has_it_as_a_field(tmp_path: Path) -> None:
    path = tmp_path / "none.properties"
    done = _end("sparkmirror", "run", str(path), "--debug", home=tmp_path / "state")
    assert done.returncode == 2
    assert "Traceback" in done.stderr
    done = _end("sparkmirror", "run", str(path), "--log-format", "json", home=tmp_path / "state")
    assert done.returncode == 2
    (document,) = [json.loads(line) for line in (done.stdout + done.stderr).splitlines()]
    assert document["type"] == "error"
    assert str(path) in json.dumps(document)
