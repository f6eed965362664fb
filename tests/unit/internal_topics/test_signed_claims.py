"""Claims that are signed: who writes to the control topic takes no flow over without the secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE, new_key
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow, plan_slots
from sparkmirror.data.spark.ports import secrets_of
from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.internal_topics.commands import (
    AssignmentCollector,
    AssignmentDocument,
    SourcePartition,
    encode_assignment,
)
from sparkmirror.internal_topics.flow_claims import (
    Claim,
    claim_signer,
    encode_claim,
    is_believed,
    is_signed,
)
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings
from tests.unit.config_files import BASE, write

EXACT = f"{BASE}B.exactly.once.source.support = enabled\n"

A, B = ClusterClient("A", ("a:1",), "c"), ClusterClient("B", ("b:1",), "c")
SECRET = "0123456789abcdef" * 2
FLOW = FlowSettings(A, B, A, B, exactly_once=True, control_secret=SECRET)
OURS, OTHER = Signer(SECRET), Signer("x" * 32)
MINE, OLD = Claim("A->B", "mine", 1, "h", 200), Claim("A->B", "before", 1, "h", 100)
THEIRS = Claim("A->B", "theirs", 1, "h2", 300)
KEY_LINE = "sparkmirror.control.secret"


@pytest.fixture
def watch() -> Iterator[ControlWatch]:
    made = ControlWatch(FLOW, "mine", offset=0)
    yield made
    made.close()


def hear(watch: ControlWatch, claim: Claim, signer: Signer | None) -> Claim | None:
    watch._apply(watch._commands, *encode_claim(claim, signer))
    return watch.claim


def test_only_the_secret_makes_a_claim(
    watch: ControlWatch, caplog: pytest.LogCaptureFixture
) -> None:
    assert hear(watch, MINE, OURS) == MINE
    with caplog.at_level(logging.WARNING):
        assert hear(watch, replace(THEIRS, host="a\nb"), None) == MINE
        assert hear(watch, THEIRS, OTHER) == MINE
        assert hear(watch, replace(THEIRS, run_id="more"), None) == MINE
    (line,) = (record.getMessage() for record in caplog.records)
    assert "(run 'theirs', host 'a\\nb') is not signed with" in line
    assert "\n" not in line
    assert hear(watch, THEIRS, OURS) == THEIRS, "a mirror with the same secret takes it over"


def test_without_a_secret_the_newest_claim_counts() -> None:
    watch = ControlWatch(replace(FLOW, control_secret=""), "mine", offset=0)
    for claim, signer in (
        (THEIRS, OTHER),
        (MINE, None),
        (OLD, OURS),
        (replace(MINE, term=0), None),
    ):
        assert hear(watch, claim, signer) == claim
    watch.close()


CHANGES = {"run_id": "x", "slots": 2, "host": "x", "term": 400, "mac": "", "more": 1}


@pytest.mark.parametrize("change", [{name: value} for name, value in CHANGES.items()])
def test_a_claim_that_was_changed_is_none(change: dict[str, object]) -> None:
    key, value = encode_claim(MINE, OURS)
    assert is_believed(key, value, OURS)
    changed = json.dumps({**json.loads(value), **change}).encode()
    assert not is_believed(key, changed, OURS)
    assert not is_believed(b"A->C/claim", value, OURS)
    assert is_believed(key, changed, None)
    assert is_signed(value)
    assert not is_signed(encode_claim(MINE)[1])
    deep = b'{"mac":"' + b"0" * 64 + b'","a":' + b"[" * 900 + b"]" * 900 + b"}"
    assert not is_believed(key, deep, OURS)


def test_a_claim_of_an_earlier_run_that_is_written_again_takes_nothing_back(
    watch: ControlWatch,
) -> None:
    assert hear(watch, OLD, OURS) == OLD
    assert hear(watch, MINE, OURS) == MINE
    assert hear(watch, OLD, OURS) == MINE


def test_not_even_where_it_is_the_only_one_left(watch: ControlWatch) -> None:
    """Compaction has taken our own; the run's signed assignment and the plans know its term."""
    assert hear(watch, OLD, OURS) == OLD
    partitions = (SourcePartition("t", 0, "A.t"),)
    document = AssignmentDocument("A->B", "mine", 1, partitions, claim_term=200)
    for record in encode_assignment(document):
        watch._apply(watch._commands, *record)
    assert watch.claim is None
    assert hear(watch, OLD, OURS) is None
    (plan,) = plan_slots(
        partitions, slots_max=1, epoch=1, run_id="mine", ends=None, control_offset=0, claim_term=200
    )
    slot = ControlWatch(FLOW, "mine", slot=0, offset=0, claim_term=plan.claim_term)
    assert hear(slot, OLD, OURS) is None
    assert hear(slot, THEIRS, OURS) == THEIRS
    slot.close()


def test_the_term_is_a_part_of_the_assignment() -> None:
    signer = Signer("k" * 44)
    document = AssignmentDocument("A->B", "mine", 1, (), claim_term=2**41)
    ((key, value),) = encode_assignment(document, signer=signer)
    assert AssignmentCollector("A->B", signer).feed(key, value) == document
    changed = json.dumps({**json.loads(value), "claim_term": 1}).encode()
    assert AssignmentCollector("A->B", signer).feed(key, changed) is None


def test_the_secret_reaches_workers_sealed(monkeypatch: pytest.MonkeyPatch) -> None:
    key = new_key()
    text = encode_flow(FLOW, key)
    assert SECRET not in text
    assert SECRET not in repr(FLOW)
    monkeypatch.setenv(KEY_VARIABLE, key)
    assert decode_flow(text) == FLOW
    assert claim_signer(decode_flow(text)) is not None
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    with pytest.raises(MachineError):
        decode_flow(text)
    assert decode_flow(encode_flow(FLOW)).control_secret == ""
    # Executors get it, so the network between has to be a safe one.
    assert secrets_of(MirrorSettings((FLOW,), ())) == ["B"]
    assert secrets_of(MirrorSettings((replace(FLOW, control_secret=""),), ())) == []


def test_the_secret_is_read_from_the_file_or_beside_it(tmp_path: Path) -> None:
    aside = tmp_path / "secrets.properties"
    aside.write_text(f"control = {SECRET}\n")
    provider = (
        "config.providers = file\n"
        "config.providers.file.class = org.apache.kafka.common.config.provider.FileConfigProvider\n"
    )
    elsewhere = f"{provider}{KEY_LINE} = ${{file:{aside}:control}}\n"
    for lines, secret in ((f"{KEY_LINE} = {SECRET}\n", SECRET), (elsewhere, SECRET), ("", "")):
        (flow,) = load_mm2(write(tmp_path, EXACT + lines)).flows
        assert flow.control_secret == secret


@pytest.mark.parametrize("line", [KEY_LINE, f"A->B.{KEY_LINE}"])
def test_a_short_secret_is_refused_and_not_shown(tmp_path: Path, line: str) -> None:
    path = write(tmp_path, f"{EXACT}{line} = {SECRET[:31]}\n")
    with pytest.raises(ConfigError) as refused:
        load_mm2(path)
    text = str(refused.value)
    assert f"{line} has 31 characters" in text
    assert "it needs at least 32" in text
    assert "openssl rand -hex 32" in text
    assert SECRET[:31] not in text


def test_claims_are_signed_in_every_mode(tmp_path: Path) -> None:
    settings = load_mm2(write(tmp_path, f"{BASE}{KEY_LINE} = {SECRET}\n"))
    assert settings.flows[0].control_secret == SECRET
    assert not [each for each in settings.warnings if KEY_LINE in each]
