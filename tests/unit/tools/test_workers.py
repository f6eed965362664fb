"""How many tests run side by side, and which worker gets which of them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from tests.conftest import (
    LAST_ON,
    pytest_collection_modifyitems,
    pytest_configure_node,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

GIB = 1 << 30
TESTS = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("cores", "free_gib", "workers"),
    [(2, 24, 4), (2, 11, 3), (2, 3, 1), (1, 64, 3), (4, 24, 5), (16, 256, 7), (None, 24, 3)],
)
def test_workers_are_as_many_as_cores_and_memory_allow(
    cores: int | None, free_gib: int, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    memory = SimpleNamespace(available=free_gib * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    config = Config()
    assert pytest_xdist_auto_num_workers(config) == workers  # type: ignore[arg-type]
    node = Node(config, "gw1" if workers == 2 else f"gw{workers - 1}")
    pytest_configure_node(node)
    assert node.workerinput == {"without_brokers": workers > 1}


@dataclass
class Config:
    """As much of pytest's as the scheduler asks for."""

    stash: pytest.Stash = field(default_factory=pytest.Stash)
    option: SimpleNamespace = field(default_factory=lambda: SimpleNamespace(loadscopereorder=False))

    def getoption(self, name: str) -> str:
        return {"dist": "loadfile"}[name]

    def getvalue(self, _name: str) -> list[str]:
        return ["popen"] * 3


class Node:
    """As much of a worker as the scheduler asks for; it runs nothing."""

    def __init__(self, config: Config, name: str) -> None:
        self.config, self.gateway = config, SimpleNamespace(id=name)
        self.workerinput: dict[str, bool] = {}
        self.taken: list[int] = []
        self.shutting_down = False

    def send_runtest_some(self, indices: list[int]) -> None:
        self.taken += indices

    def shutdown(self) -> None:
        self.shutting_down = True


def _log(*_: object) -> None:
    """Nobody reads it."""


def _run(tests: list[str], monkeypatch: pytest.MonkeyPatch, *, cores: int = 1) -> list[list[str]]:
    """The tests of each worker, in order, when each takes as long as every other one."""
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=64 * GIB))
    config = Config()
    count = pytest_xdist_auto_num_workers(config)  # type: ignore[arg-type]
    log = SimpleNamespace(loadscopesched=_log, loadfilesched=_log)
    scheduler = pytest_xdist_make_scheduler(config, log)  # type: ignore[arg-type]
    nodes = [Node(config, f"gw{number}") for number in range(count)]
    for node in nodes:
        scheduler.add_node(node)
    for node in nodes:
        scheduler.add_node_collection(node, tests)
    scheduler.schedule()
    done = [0] * count
    while any(done[number] < len(node.taken) for number, node in enumerate(nodes)):
        for number, node in enumerate(nodes):
            if done[number] < len(node.taken):
                scheduler.mark_test_complete(node, node.taken[done[number]])
                done[number] += 1
    assert all(node.shutting_down for node in nodes)
    assert sorted(index for node in nodes for index in node.taken) == [*range(len(tests))]
    return [[tests[index] for index in node.taken] for node in nodes]


def test_one_worker_has_the_tests_without_brokers_and_is_helped_with_the_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = [f"tests/kafka/mirrors/test_{n}.py::test_{m}" for n in "abcd" for m in range(4)]
    unit = [f"tests/unit/records/test_{n}.py::test_{m}" for n in "efghijkl" for m in range(4)]
    *others, last = _run(kafka + unit, monkeypatch)
    assert last[0] == "tests/unit/records/test_l.py::test_0"
    assert not [test for test in last if test in kafka]
    for taken in others:
        assert taken[0] in kafka
        assert taken[-1] in unit, "they would wait for the last worker"
        assert taken == sorted(taken)


def test_without_such_tests_that_worker_ends_and_the_others_run_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    kafka = [f"tests/kafka/mirrors/test_{n}.py::test_{m}" for n in "abcdef" for m in range(4)]
    *others, last = _run(kafka, monkeypatch)
    assert last == []
    assert all(others)


def test_files_that_share_clusters_are_run_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not one that has the name of such a file and no brokers."""
    shared = [f"tests/kafka/{one}::test_{m}" for one in (
        "security/test_acls.py", "security/test_acl_lock.py", "control/test_topic_sync.py",
    ) for m in range(4)]  # fmt: skip
    kafka = [f"tests/kafka/mirrors/test_{n}.py::test_{m}" for n in "abcd" for m in range(4)]
    same = [f"tests/unit/wire/test_acls.py::test_{m}" for m in range(4)]
    workers = _run(shared + kafka + same, monkeypatch)
    assert [one for one in workers[0] if one in shared] == shared
    assert workers[-1] == same


def test_files_that_share_spark_are_run_by_one_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    kafka = [f"tests/kafka/mirrors/test_{n}.py::test_{m}" for n in "abcd" for m in range(4)]
    spark = [f"tests/unit/data/transform/test_{n}.py::test_{m}" for n in "mno" for m in range(4)]
    unit = [f"tests/unit/records/test_{n}.py::test_{m}" for n in "efghijkl" for m in range(4)]
    workers = _run(kafka + spark + unit, monkeypatch)
    assert [found for taken in workers if (found := [one for one in taken if one in spark])] == [
        spark
    ]


class Item:
    """As much of a test as is looked at to order it."""

    def __init__(self, file: str, name: str, *fixtures: str) -> None:
        self.path = TESTS / file
        self.nodeid = f"tests/{file}::{name}"
        of_the_folder = [SimpleNamespace(baseid="tests/kafka")]
        self._fixtureinfo = SimpleNamespace(name2fixturedefs=dict.fromkeys(fixtures, of_the_folder))


def test_tests_on_shared_clusters_stand_together_and_the_last_one_is_known() -> None:
    six, source_loss, between, brokers = (
        "faulty_clusters",
        "kafka/broker_faults/test_source_loss.py",
        "kafka/data/test_exactly_once.py",
        "kafka/testing/test_shared_brokers.py",
    )
    items = [
        Item("unit/records/test_header.py", "u"),
        Item(brokers, "without"), Item(brokers, "with", six),
        Item(between, "with", six), Item(between, "without"),
        Item(source_loss, "with", six), Item(source_loss, "without"),
    ]  # fmt: skip
    config = Config()
    pytest_collection_modifyitems(config, items)  # type: ignore[arg-type]
    assert [one.nodeid for one in items] == [
        f"tests/{source_loss}::without", f"tests/{source_loss}::with",
        f"tests/{between}::with", f"tests/{between}::without",
        f"tests/{brokers}::with", f"tests/{brokers}::without",
        "tests/unit/records/test_header.py::u",
    ]  # fmt: skip
    assert config.stash[LAST_ON] == {six: f"tests/{brokers}::with"}
