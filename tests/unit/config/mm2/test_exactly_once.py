"""Exactly-once in a MirrorMaker 2 file: who gets it, and what contradicts it."""

from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.settings import FlowSettings
from tests.unit.config_files import BASE, QUIET, load, refused

ENABLED = "B.exactly.once.source.support=enabled\n"


def _flow(directory: Path, text: str) -> FlowSettings:
    (flow,) = load(directory, BASE + QUIET + text).flows
    return flow


@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("", False),
        (ENABLED, True),
        ("B.exactly.once.source.support=ENABLED", True),
        ("B.exactly.once.source.support=preparing", False),
        ("B.exactly.once.source.support=disabled", False),
        ("exactly.once.source.support=enabled", False),  # Java drops it there
        (ENABLED + "A->B.exactly.once.support=required", True),
        (ENABLED + "A.consumer.isolation.level=read_committed", True),
    ],
)
def test_the_targets_worker_switches_it_on(tmp_path: Path, line: str, wanted: bool) -> None:
    assert _flow(tmp_path, line).exactly_once is wanted


def test_the_command_line_switches_it_on_in_all_flows(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    path.write_text(BASE + "B->A.enabled=true\n" + QUIET)
    flows = load_mm2(path, exactly_once=True).flows
    assert [flow.exactly_once for flow in flows] == [True, True]


def test_times_of_a_transaction(tmp_path: Path) -> None:
    flow = _flow(tmp_path, ENABLED)
    assert (flow.transaction_interval_ms, flow.transaction_timeout_ms) == (100, 60_000)
    text = "sparkmirror.transaction.interval.ms=20\nB.producer.transaction.timeout.ms=9000\n"
    flow = _flow(tmp_path, ENABLED + text)
    assert (flow.transaction_interval_ms, flow.transaction_timeout_ms) == (20, 9_000)


def test_share_of_early_commits(tmp_path: Path) -> None:
    assert _flow(tmp_path, ENABLED).transaction_commit_percent == 25
    key = "sparkmirror.transaction.commit.percent"
    assert _flow(tmp_path, f"{ENABLED}{key}=0\n").transaction_commit_percent == 0
    for value in ("-1", "101", "half"):
        error = refused(tmp_path, f"{BASE}{QUIET}{ENABLED}{key}={value}\n")
        assert key in error.what
        assert "mm2.properties:" in error.where


def test_size_of_a_transaction(tmp_path: Path) -> None:
    assert _flow(tmp_path, ENABLED).transaction_bytes == 32 * 1024 * 1024
    line = "A->B.sparkmirror.transaction.bytes=1000000\n"
    assert _flow(tmp_path, ENABLED + line).transaction_bytes == 1_000_000
    key = "sparkmirror.transaction.bytes"
    for value in (0, 64 * 1024 * 1024):
        error = refused(tmp_path, f"{BASE}{QUIET}{ENABLED}{key}={value}\n")
        assert key in error.what
        assert "mm2.properties:" in error.where


@pytest.mark.parametrize(
    "lines",
    [
        "sparkmirror.transaction.interval.ms=10000\nB.producer.transaction.timeout.ms=10000\n",
        "B.producer.transaction.timeout.ms=100\n",
    ],
)
def test_transactions_end_before_the_target_aborts_them(tmp_path: Path, lines: str) -> None:
    error = refused(tmp_path, f"{BASE}{QUIET}{ENABLED}{lines}")
    assert "sparkmirror.transaction.interval.ms=" in error.what
    assert "transaction.timeout.ms=" in error.what
    assert "mm2.properties:" in error.where
    assert "B.producer.transaction.timeout.ms" in error.do
    load(tmp_path, f"{BASE}{QUIET}{lines}")  # without exactly-once it may stand there


@pytest.mark.parametrize(
    ("line", "what", "do"),
    [
        (
            "A.consumer.isolation.level=read_uncommitted",
            "A.consumer.isolation.level=read_uncommitted contradicts exactly-once",
            "A.consumer.isolation.level=read_committed",
        ),
        ("B.producer.acks=1", "B.producer.acks=1 contradicts exactly-once", "Remove it"),
        (
            "B.producer.enable.idempotence=false",
            "B.producer.enable.idempotence=false contradicts exactly-once",
            "Remove it",
        ),
        (
            "B.producer.max.in.flight.requests.per.connection=6",
            "at most 5 requests in flight",
            "Remove it",
        ),
    ],
)
def test_what_contradicts_it_is_refused_by_name(
    tmp_path: Path, line: str, what: str, do: str
) -> None:
    error = refused(tmp_path, f"{BASE}{QUIET}{ENABLED}{line}\n")
    assert what in error.what
    assert do in error.do
    assert "mm2.properties:" in error.where
    load(tmp_path, f"{BASE}{QUIET}{line}\n")  # without exactly-once it may stand there


def test_more_slots_than_a_start_can_fence(tmp_path: Path) -> None:
    assert _flow(tmp_path, ENABLED + "tasks.max=1000\n").tasks_max == 1_000
    assert _flow(tmp_path, "tasks.max=1001\n").tasks_max == 1_001  # nothing is fenced
    error = refused(tmp_path, f"{BASE}{QUIET}{ENABLED}A->B.tasks.max=1001\n")
    assert "A->B.tasks.max=1001" in error.what
    assert "1000 or less" in error.do
    assert "mm2.properties:" in error.where
