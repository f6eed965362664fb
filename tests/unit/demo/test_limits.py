"""How many of Kafka's programs the demo runs at once, and that it never runs more."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.demo import limits, traffic, verify
from sparkmirror.demo.limits import programs_at_once
from sparkmirror.demo.scenario import TOPICS
from sparkmirror.demo.traffic import Traffic
from sparkmirror.demo.verify import read_topics
from sparkmirror.errors import ClusterError
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.comparison_result import EMPTY, Reading

MIB = 1 << 20


@pytest.mark.parametrize(
    ("cores", "free_mib", "programs"),
    [(1, 64_000, 2), (2, 64_000, 4), (64, 2_048, 8), (64, 100, 2), (None, 64_000, 2)],
)
def test_cores_and_free_memory_bound_the_programs(
    monkeypatch: pytest.MonkeyPatch, cores: int | None, free_mib: int, programs: int
) -> None:
    monkeypatch.setattr(limits.os, "cpu_count", lambda: cores)
    memory = SimpleNamespace(available=free_mib * MIB)
    monkeypatch.setattr(limits.psutil, "virtual_memory", lambda: memory)
    assert programs_at_once() == programs


class _Reader:
    """A console consumer that is at its end at its third look."""

    running = most = 0
    dead = False

    def __init__(self, _runtime: object, _servers: str, topic: str) -> None:
        self.topic = self.group = topic
        self.looks = 0
        self.deadline = 1e12
        self.readings = {0: Reading(5, topic)}
        _Reader.running += 1
        _Reader.most = max(_Reader.most, _Reader.running)

    @property
    def runs(self) -> bool:
        return not self.dead

    def finish(self) -> None:
        self.close()

    def close(self) -> None:
        _Reader.running -= 1


class _Cluster:
    """Topics of two partitions; the second one is empty, as is all of `empty`."""

    alias = "A"
    client = SimpleNamespace(bootstrap_servers=("here:1",))

    def __init__(self) -> None:
        self.looks: dict[str, int] = {}

    def topics(self, names: Sequence[str]) -> dict[str, Any]:
        return {name: SimpleNamespace(partitions=2) for name in names if name != "gone"}

    def end_offsets(self, every: Sequence[TopicPartition], _: str) -> dict[TopicPartition, int]:
        return {at: 0 if at.partition or at.topic == "empty" else 5 for at in every}

    def earliest_offsets(self, every: Sequence[TopicPartition]) -> dict[TopicPartition, int]:
        return dict.fromkeys(every, 0)

    def committed_offsets(self, group: str, wanted: Sequence[TopicPartition]) -> dict[Any, Any]:
        self.looks[group] = self.looks.get(group, 0) + 1
        offset = 5 if self.looks[group] > 2 else 4
        return {at: SimpleNamespace(offset=offset) for at in wanted}


@pytest.mark.parametrize("at_once", [1, 2, 9])
def test_no_more_topics_are_read_at_once_than_wanted(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    monkeypatch.setattr(verify, "_TopicReader", _Reader)
    monkeypatch.setattr(verify, "_POLL_S", 0.0)
    _Reader.running = _Reader.most = 0
    names = ["t1", "t2", "empty", "t3", "gone", "t4"]
    cluster: Any = _Cluster()
    runtime: Any = None
    found = read_topics(runtime, cluster, names, at_once=at_once)
    assert _Reader.most == min(at_once, 4)
    assert _Reader.running == 0
    assert found == {
        **{TopicPartition(f"t{n}", 0): Reading(5, f"t{n}") for n in (1, 2, 3, 4)},
        **{TopicPartition(f"t{n}", 1): EMPTY for n in (1, 2, 3, 4)},
        **{TopicPartition("empty", n): EMPTY for n in (0, 1)},
    }


@pytest.mark.parametrize("fault", ["dead", "late"])
def test_a_consumer_that_ends_early_or_never_ends_all(
    monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    monkeypatch.setattr(verify, "_TopicReader", _Reader)
    monkeypatch.setattr(verify, "_POLL_S", 0.0)
    monkeypatch.setattr(_Reader, "dead", fault == "dead")
    if fault == "late":
        monkeypatch.setattr(verify.time, "monotonic", lambda: 1e13)
    _Reader.running = 0
    cluster: Any = _Cluster()
    runtime: Any = None
    with pytest.raises(ClusterError, match="did not read t1 to its end"):
        read_topics(runtime, cluster, ["t1", "t2"], at_once=2)
    assert _Reader.running == 0


class _Tools:
    """A cluster whose tools sleep for a moment; ``most``: how many of them ran at once."""

    name, bootstrap_servers = "A", "here:1"

    def __init__(self) -> None:
        self.processes: list[subprocess.Popen[bytes]] = []
        self.most = 0

    def tool_command(self, *_: str) -> list[str]:
        self.most = max(self.most, 1 + sum(one.poll() is None for one in self.processes))
        return [sys.executable, "-c", "import sys, time; time.sleep(0.3); sys.stdin.read()"]


@pytest.mark.parametrize("at_once", [2, 3])
def test_the_history_has_no_more_producers_at_once_than_the_machine_bears(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    tools: Any = _Tools()
    spawn = traffic.spawn

    def remembered(command: list[str], **options: Any) -> subprocess.Popen[bytes]:
        tools.processes.append(spawn(command, **options))
        return tools.processes[-1]

    monkeypatch.setattr(traffic, "spawn", remembered)
    monkeypatch.setattr(traffic, "send_payments", lambda *_, **__: (1, 1))
    monkeypatch.setattr(traffic, "programs_at_once", lambda: at_once)
    made = Traffic(tools, tmp_path, records=20, seed=1)
    made.preload()
    assert len(tools.processes) == sum(one.tool != "transactions" for one in TOPICS)
    assert tools.most == at_once
    assert not made.busy
