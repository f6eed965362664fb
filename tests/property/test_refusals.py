"""Whatever brokers do: what the target refuses is taken over once, all else arrives in order."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.errors import TransactionError
from sparkmirror.records.records import Record
from sparkmirror.wire.produce.transactions import Transactions
from tests.property.test_producer_properties import JOINED, PARTITIONS, Open, Run, Step, steps

_MODULUS = 4
_UNCERTAIN = {"cut", "move"}


class Taken:
    """Takes over everything."""

    def __init__(self) -> None:
        self.values: list[int] = []
        self.tokens: set[object] = set()

    def wanted(self, token: object) -> bool:
        return token is not None

    def take(self, token: object, records: Sequence[Record], code: str, reason: str) -> None:
        assert code == "INVALID_RECORD"
        self.tokens.add(token)
        self.values += [int(record.value or b"") for record in records]


@pytest.mark.parametrize("joining", JOINED)
@settings(max_examples=300, deadline=None)
@given(st.lists(steps, max_size=40), st.sets(st.integers(0, _MODULUS - 1), max_size=_MODULUS))
def test_refused_records_are_taken_over_and_the_rest_arrives(
    joining: str, script: list[Step], residues: set[int]
) -> None:
    run, taken = Run(joining=joining), Taken()
    refused = frozenset(n for n in range(1_000) if n % _MODULUS in residues)
    run.target.refused = refused
    run.producer.backlog.refusals = taken
    try:
        for step in script:
            run.step(step)
        run.settle()
        for tp in PARTITIONS:
            good = [value for value in run.appended[tp] if value not in refused]
            assert run.target.partitions[tp].values == good
        appended = {value for values in run.appended.values() for value in values}
        assert sorted(taken.values) == sorted(appended & refused)
        assert run.producer.backlog.bytes_waiting == 0
        assert not run.producer.backlog.halts
    finally:
        run.target.close()


@pytest.mark.parametrize("joining", JOINED)
@settings(max_examples=400, deadline=None)
@given(st.lists(steps, max_size=40), st.sets(st.integers(0, _MODULUS - 1), max_size=_MODULUS))
def test_a_transaction_goes_on_without_refused_records_or_ends(
    joining: str, script: list[Step], residues: set[int]
) -> None:
    """It ends only where a batch that is refused might be there all the same."""
    run, taken = Run(cast(Transactions, Open()), joining=joining), Taken()
    refused = frozenset(n for n in range(1_000) if n % _MODULUS in residues)
    run.target.refused = refused
    run.producer.backlog.refusals = taken
    try:
        try:
            for step in script:
                run.step(step)
            run.settle()
        except TransactionError:
            assert _UNCERTAIN & {step[0] for step in script}
            return
        for tp in PARTITIONS:
            good = [value for value in run.appended[tp] if value not in refused]
            assert run.target.partitions[tp].values == good
            assert {batch.producer_id for batch in run.target.partitions[tp].log} <= {7}
        appended = {value for values in run.appended.values() for value in values}
        assert sorted(taken.values) == sorted(appended & refused)
        assert run.producer.backlog.bytes_waiting == 0
    finally:
        run.target.close()
