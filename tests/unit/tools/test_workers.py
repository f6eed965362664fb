"""How many tests run side by side: by cores and by free memory, and never more than the cap."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest

from tests.conftest import pytest_xdist_auto_num_workers

GIB = 1 << 30


@pytest.mark.parametrize(
    ("cores", "free_gib", "workers"),
    [(2, 24, 3), (2, 11, 2), (2, 3, 1), (1, 64, 2), (4, 24, 4), (16, 256, 6), (None, 24, 2)],
)
def test_workers_are_as_many_as_cores_and_memory_allow(
    cores: int | None, free_gib: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    memory = SimpleNamespace(available=free_gib * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    assert pytest_xdist_auto_num_workers() == workers
