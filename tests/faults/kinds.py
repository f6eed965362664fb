"""What ``make faults`` lets go wrong, and how often beside the others."""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

import psutil

from sparkmirror.testing.clusters import KafkaCluster
from tests.faults.harness import PLANNER, SINK, SOURCE, Mirror

__all__ = ["FAULTS", "Fault", "Kind", "Scene", "draw", "kill_driver", "kill_worker"]


_TAKEN_OVER_S_MAX = 120.0


@dataclass
class Scene:
    """What a fault may hit. ``meant``: which of the mirror's exits a fault has brought about."""

    mirror: Mirror
    source: KafkaCluster
    target: KafkaCluster
    random: random.Random
    after: list[Callable[[], None]] = field(default_factory=list)
    meant: set[int] = field(default_factory=set)


Fault = Callable[[Scene], None]


def _kill(process: psutil.Process) -> None:
    process.send_signal(signal.SIGKILL)


def kill_worker(role: str) -> Fault:
    """kill -9 of one of Spark's Python workers in this role."""

    def kill(scene: Scene) -> None:
        _kill(scene.random.choice(scene.mirror.workers_as(role)))

    return kill


def kill_jvm(scene: Scene) -> None:
    """kill -9 of Spark's JVM: on ``local[*]`` it is driver and executor at once."""
    _kill(scene.mirror.jvm())


def kill_driver(scene: Scene) -> None:
    """kill -9 of the driver; its workers live on until they notice."""
    scene.mirror.process.kill()
    scene.mirror.process.wait(20)


def freeze_sink(scene: Scene) -> None:
    """A sink stands still for seconds, in whatever it was doing."""
    process = scene.random.choice(scene.mirror.workers_as(SINK))
    process.suspend()
    time.sleep(scene.random.uniform(1.0, 4.0))
    with contextlib.suppress(psutil.Error):
        process.resume()


def two_drivers(scene: Scene) -> None:
    """A second driver takes the flow from the first, which ends."""
    first = scene.mirror.process
    scene.mirror.start("--take-over")
    with contextlib.suppress(subprocess.TimeoutExpired):
        first.wait(_TAKEN_OVER_S_MAX)
    scene.after.append(lambda: scene.mirror.kill(first))


def zombie(scene: Scene) -> None:
    """All of a mirror stands still, another takes over, then the first one wakes up."""
    first = scene.mirror.process
    frozen = [scene.mirror.driver(), *scene.mirror.driver().children(recursive=True)]
    for process in frozen:
        with contextlib.suppress(psutil.Error):
            process.suspend()
    scene.mirror.start()

    def wake() -> None:
        for process in frozen:
            with contextlib.suppress(psutil.Error):
                process.resume()

    scene.after.append(wake)
    scene.after.append(lambda: scene.mirror.kill(first))


def kill_broker(scene: Scene) -> None:
    """kill -9 of the target's broker, which leads everything and is every coordinator."""
    scene.target.kill()
    scene.target.restart()


def kill_source_broker(scene: Scene) -> None:
    """kill -9 of the source's broker; who writes there waits for it, too."""
    scene.source.kill()
    scene.source.restart()


@dataclass(frozen=True)
class Kind:
    """A fault; how often it comes beside the others; whether only exactly-once can stand it.

    ``late``: it is felt only when an epoch ends, so the longest silence until then counts.
    ``restarts``: the run ends with it, and a new one has to mirror; ``ends``: which is started
    because the process has ended.
    """

    fault: Fault
    weight: int
    exactly_once: bool = False
    late: bool = False
    restarts: bool = False
    ends: bool = False


FAULTS: dict[str, Kind] = {
    "sink worker killed": Kind(kill_worker(SINK), 6),
    "source worker killed": Kind(kill_worker(SOURCE), 5),
    "planner killed": Kind(kill_worker(PLANNER), 2, late=True),
    "JVM killed": Kind(kill_jvm, 2, restarts=True, ends=True),
    "driver killed": Kind(kill_driver, 2, restarts=True, ends=True),
    "sink frozen": Kind(freeze_sink, 3),
    "two drivers": Kind(two_drivers, 1, exactly_once=True, restarts=True),
    "zombie mirror": Kind(zombie, 1, exactly_once=True, restarts=True),
    "target broker killed": Kind(kill_broker, 2),
    "source broker killed": Kind(kill_source_broker, 2),
}


def draw(chooser: random.Random, weights: Mapping[str, int]) -> Iterator[str]:
    """The names of ``weights`` without end, as often as their weights say and in random order.

    Each round has all of them, so that a run of a few dozen misses none.
    """
    while True:
        round_ = [name for name, weight in weights.items() for _ in range(weight)]
        chooser.shuffle(round_)
        yield from round_
