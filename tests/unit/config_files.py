"""Small MirrorMaker files for tests."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FlowSettings, MirrorSettings

BASE = """\
clusters=A,B
A.bootstrap.servers=a:9092
B.bootstrap.servers=b:9092
A->B.enabled=true
"""
# Number of the first line after BASE.
LINE = BASE.count("\n") + 1
# Without the remarks on what Java does by default.
QUIET = """\
emit.heartbeats.enabled=false
emit.checkpoints.enabled=false
emit.offset-syncs.enabled=false
sync.topic.configs.enabled=false
sync.topic.acls.enabled=false
"""


def write(directory: Path, text: str, name: str = "mm2.properties") -> Path:
    """Write a file and return its path."""
    path = directory / name
    path.write_text(text, encoding="utf-8")
    return path


def load(directory: Path, text: str, clusters: Sequence[str] = ()) -> MirrorSettings:
    """Load ``text`` as a MirrorMaker 2 file."""
    return load_mm2(write(directory, text), clusters=clusters)


def load_flow(directory: Path, extra: str) -> FlowSettings:
    """The flow A->B of BASE with ``extra`` lines."""
    return load(directory, BASE + extra).flows[0]


def refused(directory: Path, text: str, clusters: Sequence[str] = ()) -> ConfigError:
    """The error that ``text`` is refused with; it always names the file and what to do."""
    with pytest.raises(ConfigError) as caught:
        load(directory, text, clusters)
    error = caught.value
    assert error.where.startswith(str(directory / "mm2.properties"))
    assert error.exit_code == 2
    return error


@contextmanager
def pipe(text: str) -> Iterator[str]:
    """The path of a pipe with ``text``, as Bash gives it for ``<(sops -d mm2.properties)``."""
    reader, writer = os.pipe()
    with open(reader, "rb") as held:
        with open(writer, "w", encoding="utf-8") as file:
            file.write(text)
        yield f"/dev/fd/{held.fileno()}"


@contextmanager
def without_root() -> Iterator[None]:
    """Root's rights dropped for as long as the block runs: no file is locked to root."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)
