"""A pytest plugin of `tests.covered`: what a file's tests ran is saved when the file is done.

pytest-xdist kills a worker that takes longer than ten seconds to end, and with it would go all
that the worker ran.
"""

from __future__ import annotations

import coverage
import pytest


def save() -> None:
    """Write what this process has run since the last time, if it is measured."""
    current = coverage.Coverage.current()
    if current is not None:
        current.save()


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """After the last test of each file."""
    if nextitem is None or nextitem.path != item.path:
        save()
