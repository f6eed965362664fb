"""A short run of what `make fuzz` does for ten minutes: hostile answers to every parser."""

from __future__ import annotations

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tests.fuzz.run import run_case

TARGETS = ("fetch", "records", "codecs", "produce", "answers", "large", "topics")


@pytest.mark.parametrize("target", TARGETS)
@settings(max_examples=150, deadline=None)
@given(seed=st.integers(0, 2**32), case=st.integers(0, 2**32))
@example(seed=1, case=0)
def test_hostile_input_raises_nothing_unforeseen(target: str, seed: int, case: int) -> None:
    run_case(target, seed, case)
