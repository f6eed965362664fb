"""`python -m tests.faults.elections` notices whatever a mirror may do wrong after a loss."""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any, Self

import pytest

from sparkmirror.internal_topics.gaps import TARGET_LOSS_CODES, Gap, GapAction, GapKind, encode_gap
from sparkmirror.model import TopicPartition
from tests.faults import elections
from tests.faults.fragile import LOSSES, PARTITIONS
from tests.faults.wholeness import Outcome
from tests.kafka.harness.support import Received

_LOST = 3
_WOUNDED = 2


class _World:
    """Both topics and the gap records in memory, and a mirror with a ``fault`` of its own."""

    def __init__(self, fault: str = "") -> None:
        self.fault = fault
        self.source: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}
        self.remote: dict[int, list[bytes]] = {n: [] for n in range(PARTITIONS)}
        self.gaps: list[bytes] = []
        self.exists = self.runs = True
        self.positions = dict.fromkeys(range(PARTITIONS), 0)
        self.kind: GapKind | None = None

    def write(self) -> None:
        for number, values in self.source.items():
            values += [b"%d of %d" % (len(values) + more, number) for more in range(5)]

    def tell(self, number: int, first: int, last: int, kind: GapKind | None = None) -> None:
        kind = kind or self.kind
        assert kind is not None
        gap = Gap(
            "A->B", TopicPartition(elections.TOPIC, number), elections.REMOTE, kind,
            GapAction.REPAIRED, first, last, last - first + 1, first, TARGET_LOSS_CODES[kind], "",
            int(time.time() * 1000),
        )  # fmt: skip
        self.gaps.append(encode_gap(gap)[1])

    def mirror(self) -> None:
        """One round of the mirror: repair what is lost, then go on."""
        if not (self.runs and self.exists):
            return
        for number, values in self.source.items():
            log, position = self.remote[number], self.positions[number]
            lost, begin = len(log) < position, len(log)
            if lost and self.fault == "forgets":
                begin += 1
            again = values[begin:]
            if lost and self.fault == "shuffles":
                again.reverse()
            if lost and self.fault == "writes first":
                again = values[position:] + values[begin:position]
            if lost and self.fault == "repeats":
                again.insert(0, again[0])
            if lost and self.fault != "is silent":
                other = GapKind.TARGET_REPLACED if self.fault == "misnames" else None
                self.tell(number, begin, position - 1, other)
            log += again
            self.positions[number] = len(values)
        if self.fault == "invents" and self.kind is GapKind.TARGET_TRUNCATED:
            self.tell(_WOUNDED + 1, 0, 1)

    def read(self, _cluster: object, topic: str) -> list[Received]:
        if topic == elections.GAPS:
            return [_received(0, at, value) for at, value in enumerate(self.gaps)]
        log = self.source if topic == elections.TOPIC else self.remote
        return [_received(n, at, one) for n, some in log.items() for at, one in enumerate(some)]


def _received(partition: int, offset: int, value: bytes) -> Received:
    return Received(partition, offset, "create", 0, None, value, ())


def _lose(monkeypatch: pytest.MonkeyPatch, world: _World, name: str, seed: int = 1) -> Outcome:
    class Load:
        def __init__(self, *_: object, **__: object) -> None:
            self.acknowledged = world.source

        def __enter__(self) -> Self:
            world.write()
            world.mirror()
            return self

        def __exit__(self, *_: object) -> None:
            world.write()
            world.mirror()

    class Mirror:
        def __init__(self, *_: object) -> None: ...

        def keep_running(self) -> None:
            world.mirror()

        def drain(self, _timeout_s: float) -> int:
            world.mirror()
            world.runs = False
            return 0

        def start(self) -> None:
            world.runs = True

    class Remote:
        def __init__(self, *_: object) -> None: ...

        def make(self) -> None:
            world.exists = True

        wait_for_mirror = make

        def delete(self) -> None:
            world.exists, world.kind = False, GapKind.TARGET_RECREATED
            for log in world.remote.values():
                log.clear()

        def ends(self) -> dict[int, int]:
            return {number: len(log) for number, log in world.remote.items()}

    class Election:
        wounded = frozenset({_WOUNDED})

        def __init__(self, *_: object, **__: object) -> None: ...

        def __enter__(self) -> Self:
            return self

        def __exit__(self, *_: object) -> None: ...

        def cut_off(self, _records: int) -> None:
            world.mirror()

        def elect(self) -> None:
            world.kind = GapKind.TARGET_TRUNCATED
            del world.remote[_WOUNDED][-_LOST:]
            if world.fault == "writes first":
                for values in world.source.values():
                    values.append(b"while nobody looks")

        def heal(self, _after_s: float) -> None: ...

        def wait_healed(self) -> None: ...

    fakes: dict[str, Any] = {
        "Load": Load, "Mirror": Mirror, "FragileTopic": Remote, "Election": Election,
        "consume_all": world.read, "create_topic": lambda *_: None,
        "write_config": lambda *_, **__: None,
        "_BEFORE_S": (0.0, 0.0), "_LOOK_AGAIN_S": 0.001, "_WHOLE_S_MAX": 0.2,
    }  # fmt: skip
    for fake, value in fakes.items():
        monkeypatch.setattr(elections, fake, value)
    chooser, nothing = random.Random(seed), Any
    scenario = elections.Scenario(Path(), nothing, nothing, chooser, exactly_once=False)
    return scenario.lose(name)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    "seed", [*range(2), *(pytest.param(seed, marks=pytest.mark.more) for seed in range(2, 4))]
)
def test_a_mirror_that_does_what_it_should(monkeypatch, name: str, seed: int) -> None:
    found = _lose(monkeypatch, _World(), name, seed)
    assert not found.wrong, found
    assert found.told_as == {LOSSES[name].told.value}
    assert found.told_s < 1
    assert found.whole_s < 1


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(
    ("fault", "noticed"),
    [
        ("forgets", lambda one: one.compared.missing > 0),
        ("shuffles", lambda one: one.compared.out_of_order > 0),
        ("repeats", lambda one: one.compared.twice > 0),
        ("is silent", lambda one: one.untold > 0),
        ("misnames", lambda one: one.untold > 0 and one.invented > 0),
    ],
)
def test_a_mirror_that_does_something_wrong(monkeypatch, name: str, fault: str, noticed) -> None:
    found = _lose(monkeypatch, _World(fault), name)
    assert found.wrong
    assert noticed(found), found


def test_a_loss_that_was_none_is_noticed(monkeypatch) -> None:
    found = _lose(monkeypatch, _World("invents"), "unclean election, leader killed")
    assert found.invented > 0
    assert found.wrong


def test_what_was_written_before_the_loss_was_seen_is_counted(monkeypatch) -> None:
    found = _lose(monkeypatch, _World("writes first"), "unclean election, leader killed")
    assert found.early == 1, found
    assert not found.wrong
