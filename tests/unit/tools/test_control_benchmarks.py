"""In which order the benchmarks of groups and of the control plane take their mirrors."""

from __future__ import annotations

from benchmarks.control import failover
from benchmarks.control.control_plane import STARTS, order


def test_nobody_is_first_in_all_turns() -> None:
    found = list(order(STARTS, ["sparkmirror", "mm2"], 2))
    assert [(key, made) for _, key, made in found] == [
        *(("sparkmirror", False), ("mm2", False), ("mm2", False), ("sparkmirror", False)),
        *(("sparkmirror", True), ("mm2", True), ("mm2", True), ("sparkmirror", True)),
    ]
    names = [name for name, _, _ in found]
    assert names[2] == "mm2, turn 2"
    assert names[4] == "sparkmirror, topics made before, turn 1"
    assert len(set(names)) == len(names)


def test_groups_that_move_over_have_the_partitions_of_all_turns() -> None:
    asked: list[str] = []

    def measured(key: str) -> dict[str, list[int]]:
        asked.append(key)
        return {f"lag-{lag}": [len(asked), 10 * len(asked)] for lag in failover.LAGS}

    found = failover.in_turns(measured)
    assert asked == ["sparkmirror", "mm2", "mm2", "sparkmirror"]
    text = failover.table(found, 1_000)
    assert "| group lags by | sparkmirror | MirrorMaker 2 |" in text
    assert "| 100 | 1 to 40 | 2 to 30 |" in text
