"""Tests that need what not every machine has, or allows."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["ALL_IS_THERE", "lacks"]

ALL_IS_THERE = "SPARKMIRROR_NO_SKIPS"
"""Where this variable is set, as by ``.ci/run`` for root, nothing that a test needs is missing."""


def lacks(what: str) -> NoReturn:
    """Skip the test because this machine lacks something; where all is there, fail."""
    if os.environ.get(ALL_IS_THERE):
        pytest.fail(f"{what}; {ALL_IS_THERE} says that nothing is missing")
    pytest.skip(what)
