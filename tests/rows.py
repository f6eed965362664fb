"""Tests that go through the rows of a table: thousands of tests would take longer to collect."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def named(row: object) -> Iterator[None]:
    """What fails within says at which row."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"at the row {row}")
        raise
