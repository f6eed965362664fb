"""The model of docs/scaling.md follows from its own assumptions and from measured figures."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "scaling.md").read_text("utf-8")
_RESULT = re.compile(r"\]\(\.\./(benchmarks/results/[^)]+)\)")


def _section(heading: str) -> str:
    return PAGE.partition(f"## {heading}\n")[2].partition("\n## ")[0]


def _rows(section: str) -> list[list[str]]:
    """Cells of the rows whose second or first cell is a number; headings have none."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells if re.fullmatch(r"[\d.,]+", row[1]) or row[0].isdigit()]


MEASURED = _rows(_section("Measured"))
MODEL = _rows(_section("The model"))
RATE = {row[0]: float(row[1]) for row in MEASURED}
COST = {row[0]: float(row[2]) for row in MEASURED}
SLOTS = 4
HEADROOM, EXECUTOR_SLOTS, MIRROR_SLOTS, BROKER_MB = 0.5, 8, 100, 250


@pytest.mark.parametrize("row", MEASURED, ids=lambda row: row[0])
def test_what_was_measured_is_in_its_result(row: list[str]) -> None:
    found = _RESULT.search(row[3])
    assert found is not None
    text = (ROOT / found[1]).read_text("utf-8")
    ours = [line for line in text.splitlines() if "| sparkmirror |" in line]
    cells = [[cell.strip() for cell in line.split("|")] for line in ours]
    assert any(row[1] in line and row[2] in line for line in cells), ours


@pytest.mark.parametrize("row", MODEL, ids=lambda row: f"{row[0]} GB/s, {row[1]}")
def test_the_model_is_its_formulas(row: list[str]) -> None:
    wanted_mb = float(row[0]) * 1000
    slot_mb, slots, busy, executors, mirrors, brokers = (
        float(cell.replace(",", "")) for cell in row[2:]
    )
    far = row[1].startswith("50 ms")
    rate = 1000 / COST[row[1]] if far else RATE[row[1]] / SLOTS
    assert slot_mb == math.floor(rate)
    assert slots == math.ceil(wanted_mb / (HEADROOM * slot_mb))
    assert busy == pytest.approx(wanted_mb / 1000 * COST[row[1]])
    assert executors == math.ceil(slots / EXECUTOR_SLOTS)
    assert mirrors == math.ceil(slots / MIRROR_SLOTS)
    assert brokers == math.ceil(wanted_mb / BROKER_MB)
    # 10 Gbit/s in each direction: half of it or less, which the assumption says.
    assert EXECUTOR_SLOTS * HEADROOM * slot_mb <= 1250 / 2


def test_all_sizes_are_there_and_called_a_model() -> None:
    assert [row[0] for row in MODEL] == [size for size in ("1", "10", "100") for _ in range(4)]
    assert "**This table is a model, not a measurement.**" in _section("The model")
    assumptions = _section("Assumptions")
    for named in ("headroom 0.5", "8 cores", "100 slots", "250 MB/s"):
        assert named in assumptions


def test_executors_have_the_memory_of_the_capacity_page() -> None:
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8")
    found = re.search(r"GiB \+ slots x \((\d+) MiB \+ (\d+) x the largest", page)
    assert found is not None
    slot, batches = (int(one) for one in found.groups())
    needed = 1.5 * 1024 + EXECUTOR_SLOTS * (slot + batches)
    overheads = {int(one) for one in re.findall(r"(?:memoryOverhead=|\| `)(\d+)m\b", PAGE)}
    assert overheads == {2400}
    assert needed <= 2400 < needed + 100
    assert f"8 x ({slot} MiB + {batches} x 1 MiB)" in PAGE
