"""The guard of the tests with brokers: what it fails, and what it lets pass."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

_CONFTEST = """
from tests.kafka.harness import leaks
from tests.kafka.harness.leaks import no_leaks, pytest_fixture_setup, pytest_runtest_call

def pytest_runtest_setup(item):
    leaks._PATIENCE_S = 1.5 if "leaks" in item.name else 60.0
"""

_TESTS = """
import os, socket, threading, time
import pytest
from confluent_kafka import Producer

kept = []

@pytest.fixture(scope="module")
def wide():
    ends = socket.socketpair()
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait, name="of the module", daemon=True)
    thread.start()
    yield ends
    stop.set()
    thread.join()
    for end in ends:
        end.close()

@pytest.fixture
def narrow():
    with socket.socket() as one:
        yield one

def test_wide_ones_may_start_in_a_test(request, narrow):
    request.getfixturevalue("wide")

def test_threads_may_take_a_moment():
    threading.Thread(target=time.sleep, args=(0.5,), name="ends soon").start()

def test_what_librdkafka_had_goes_with_its_client():
    Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0})

def test_leaks_a_connection():
    kept.append(socket.create_server(("127.0.0.1", 0)))
    kept.append(socket.create_connection(kept[-1].getsockname()))

def test_leaks_a_file(tmp_path):
    kept.append((tmp_path / "left.txt").open("w"))

def test_leaks_a_thread():
    threading.Thread(target=threading.Event().wait, name="sleeper-7", daemon=True).start()

def test_leaks_a_client_of_librdkafka():
    kept.append(Producer({"bootstrap.servers": "127.0.0.1:1", "log_level": 0}))

def test_leaks_beside_a_wide_fixture(request):
    request.getfixturevalue("late")
    kept.append(socket.socket())

@pytest.fixture(scope="session")
def late():
    with socket.socket() as one:
        yield one

def test_fails_and_leaks():
    kept.append(socket.socket())
    raise AssertionError("the test's own")
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What pytest says of the tests above."""
    directory = tmp_path_factory.mktemp("guarded")
    (directory / "conftest.py").write_text(_CONFTEST)
    (directory / "test_leaking.py").write_text(_TESTS)
    script = "import sys, pytest\nsys.exit(pytest.main(sys.argv[1:]))\n"
    options = ["-q", "-rA", "--tb=short", "-p", "no:cacheprovider", "-c", os.devnull]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, *options, str(directory)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stdout


def said(report: str, outcome: str, name: str) -> bool:
    """Whether the summary has a line with this outcome of a test."""
    return re.search(rf"^{outcome} \S+::test_{name}\b", report, re.MULTILINE) is not None


@pytest.mark.parametrize(
    "name",
    [
        "wide_ones_may_start_in_a_test",
        "threads_may_take_a_moment",
        "what_librdkafka_had_goes_with_its_client",
    ],
)
def test_what_is_gone_again_passes(report: str, name: str) -> None:
    assert said(report, "PASSED", name), report
    assert not said(report, "ERROR", name), report


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("leaks_a_connection", "to 127.0.0.1:"),
        ("leaks_a_file", "left.txt"),
        ("leaks_a_thread", "sleeper-7"),
        ("leaks_a_client_of_librdkafka", "rdk:main"),
        ("leaks_beside_a_wide_fixture", "socket:["),
    ],
)
def test_what_is_left_fails_and_is_named(report: str, name: str, what: str) -> None:
    assert said(report, "ERROR", name), report
    told = report.split(f"ERROR at teardown of test_{name} ", 1)[1].split("\n____", 1)[0]
    assert what in told
    assert "the test leaves behind" in told


def test_a_test_that_failed_is_not_told_of_twice(report: str) -> None:
    assert said(report, "FAILED", "fails_and_leaks"), report
    assert not said(report, "ERROR", "fails_and_leaks"), report
