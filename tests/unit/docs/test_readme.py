"""What the README says of versions is what the project is built and tested with."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from sparkmirror.data.workers.spark_versions import SUPPORTED
from sparkmirror.testing.jvm import KAFKA_VERSIONS

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def versions(name: str) -> str:
    """The bullet that says which versions of ``name`` there are."""
    (found,) = re.findall(rf"^\* {name}: (.*(?:\n  .*)*)", README, re.MULTILINE)
    return " ".join(str(found).split())


def test_the_releases_of_kafka_are_those_that_tests_start() -> None:
    started = set(
        KAFKA_VERSIONS
    )  # tests/kafka/mirrors/test_newest_release.py starts the last of them
    for path in (ROOT / "tests" / "kafka").rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for call in re.findall(r'version="(\d[\d.]+)"|"version", (\[[^\]]*\])', text):
            started |= set(re.findall(r"\d+\.\d+\.\d+", " ".join(call)))
    named = versions("Kafka").partition("Tests run on ")[2]
    assert set(re.findall(r"\d+\.\d+\.\d+", named)) == started
    assert f"to {KAFKA_VERSIONS[-1].rpartition('.')[0]}." in versions("Kafka")


def test_spark_and_python_are_those_of_the_project() -> None:
    locked = re.search(r"^pyspark==(\S+)", (ROOT / "requirements.lock").read_text(), re.MULTILINE)
    assert locked is not None
    assert f"PySpark {' or '.join(reversed(SUPPORTED))}." in versions("Spark")
    assert f"Tests run on {locked[1]}," in versions("Spark")
    classified = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert re.findall(r"3\.\d+", versions("Python")) == classified
    assert PROJECT["requires-python"] == f">={classified[0]}"
    assert f"Python {classified[0]} to {classified[-1]}" in README
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    oldest, untested = re.findall(r"sys\.version_info [<>]=? \(3, (\d+)\)", makefile)
    assert f"3.{oldest}" == classified[0]
    assert f"3.{int(untested) - 1}" == classified[-1]


def test_the_package_says_that_it_has_types_and_has_the_file_that_lets_others_see_them() -> None:
    marker = ROOT / "src" / "sparkmirror" / "py.typed"
    assert ("Typing :: Typed" in PROJECT["classifiers"]) is marker.is_file()
