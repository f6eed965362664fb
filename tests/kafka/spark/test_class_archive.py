"""``sparkmirror prepare`` with the real Spark and the real Java; needs no broker."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

# As outside of a virtual environment: the archive goes into the cache directory of this test.
_ELSEWHERE = "import sys; sys.prefix = sys.base_prefix\n"
_COMMAND = f"{_ELSEWHERE}from sparkmirror.cli.main import main\nsys.exit(main(sys.argv[1:]))"
_START = f"""{_ELSEWHERE}
import logging
from pathlib import Path
from sparkmirror.data.spark.session import Spark
from sparkmirror.settings import MirrorSettings

logging.basicConfig(level=logging.INFO)
spark = Spark(
    MirrorSettings(flows=(), clusters=()),
    master="local",
    spark_conf={{}},
    work_dir=Path(sys.argv[1]),
    key="key",
)
session = spark.open()
assert session.version
spark.close()
"""


def _run(code: str, *arguments: str, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_starts_map_what_prepare_has_made(tmp_path: Path) -> None:
    cache = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    log = f"-Xlog:class+load:file={tmp_path}/loaded-%p.txt"
    said = _run(_START, str(tmp_path / "before"), **cache)
    assert "has no class archive" in said
    assert "Java writes the archive" in _run(_COMMAND, "prepare", **cache)
    (archive,) = (tmp_path / "cache" / "sparkmirror" / "classes").glob("*.jsa")
    assert "Java writes" not in _run(_COMMAND, "prepare", **cache)
    said = _run(_START, str(tmp_path / "after"), JAVA_TOOL_OPTIONS=log, **cache)
    assert f"takes its classes from the archive {archive}" in said
    loaded = max((path.read_text() for path in tmp_path.glob("loaded-*.txt")), key=len)
    # Java archives no lambda that can be serialized, as all of Scala's can: it makes them anew.
    found = re.findall(r" ((?:org\.apache\.spark|scala)\.\S+) source: (\S+)", loaded)
    sources = [source for name, source in found if "$$Lambda" not in name]
    assert len(sources) > 3_000
    assert sources.count("shared") > 0.9 * len(sources)
