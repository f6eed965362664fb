"""Exactly-once in a MirrorMaker 2 file: who gets it, and what contradicts it."""

from pathlib import Path

import pytest

from sparkmirror.config.mm2 import load_mm2
from sparkmirror.model import FlowSettings
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
