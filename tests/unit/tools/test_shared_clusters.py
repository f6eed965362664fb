"""What becomes of the clusters that files share after a test that broke them."""

from __future__ import annotations

from importlib import import_module
from typing import Any, cast

import pytest

from sparkmirror.errors import MachineError
from sparkmirror.testing.clusters import KafkaCluster
from tests.kafka.clusters.shared import make_whole


class FakeCluster:
    """Brokers by number, and what is done to them."""

    def __init__(self, *states: str, refuses: int = 0) -> None:
        self.name, self.states, self.refuses = "A", dict(enumerate(states, 1)), refuses
        self.done: list[str] = []

    @property
    def node_ids(self) -> tuple[int, ...]:
        return tuple(self.states)

    @property
    def alive(self) -> frozenset[int]:
        return frozenset(number for number, state in self.states.items() if state != "killed")

    def thaw(self, number: int) -> None:
        self.states[number] = "runs"

    def start(self) -> None:
        self.done.append("start")
        if self.refuses:
            self.refuses -= 1
            self.states = {}  # as a failed start leaves it
            raise MachineError("Broker 1 ended while it was starting.")
        self.states = dict.fromkeys(self.states or (1,), "runs")


@pytest.mark.parametrize(
    ("cluster", "done"),
    [
        (FakeCluster("runs"), []),
        (FakeCluster("frozen"), []),
        (FakeCluster("killed"), ["start"]),
        (FakeCluster("frozen", "killed", "runs"), ["start"]),
        (FakeCluster(), ["start"]),
        (FakeCluster("killed", refuses=1), ["start", "start"]),
    ],
    ids=["whole", "frozen", "killed", "both", "stopped", "does not come back"],
)
def test_each_broker_runs_again(cluster: FakeCluster, done: list[str]) -> None:
    make_whole([cast(KafkaCluster, cluster)])
    assert set(cluster.states.values()) == {"runs"}
    assert cluster.done == done


def test_a_cluster_that_nobody_can_start_is_told() -> None:
    with pytest.raises(MachineError):
        make_whole([cast(KafkaCluster, FakeCluster("killed", refuses=2))])


@pytest.mark.parametrize("folder", ["kafka", "faults"])
def test_every_folder_of_tests_with_brokers_has_the_guards(folder: str) -> None:
    names = vars(import_module(f"tests.{folder}.conftest"))
    for name in ("no_leaks", "shared_clusters_whole"):
        marker: Any = names[name]._fixture_function_marker
        assert (marker.autouse, marker.scope) == (True, "function"), name
    assert {"pytest_fixture_setup", "pytest_runtest_call"} <= names.keys()
