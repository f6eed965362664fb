"""The first cases of what `make fuzz` does for ten minutes: hostile answers to every parser."""

from __future__ import annotations

import pytest

from tests.fuzz.run import run_case
from tests.fuzz.targets import TARGETS

# About half a second of processor time each; a bomb unpacks to as much as it may.
CASES = dict.fromkeys(TARGETS, 200) | {
    "admin": 60,
    "bombs": 2,
    "dealt": 6,
    "fetch": 100,
    "internal": 60,
}
SEED = 1


@pytest.mark.parametrize("target", CASES)
def test_hostile_input_raises_nothing_unforeseen(target: str) -> None:
    for case in range(CASES[target]):
        try:
            run_case(target, SEED, case)
        except BaseException as error:
            error.add_note(f"run it again with: make fuzz FUZZ='--seed {SEED} {target}:{case}'")
            raise
