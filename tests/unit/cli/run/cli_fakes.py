"""The run loop with a pipeline and a control plane made of values, as a process of its own.

Signals, exit codes and terminals are properties of processes, so the tests start this file:
``python cli_fakes.py SCENARIO`` (a JSON object with the fields of `Scenario`).
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkmirror.cli.run import loop, query_watch
from sparkmirror.cli.run.parts import Parts, RunOptions
from sparkmirror.cli.run.run import run_mirror
from sparkmirror.errors import ConfigError, MirrorError, Unreachable
from sparkmirror.internal_topics.tables import TableState
from sparkmirror.model import TopicPartition
from sparkmirror.observe.figures.checkpoints import CheckpointKey, CheckpointTimes, GroupRow
from sparkmirror.observe.figures.dealing import DealFigures
from sparkmirror.observe.figures.queries import QueryFigures
from sparkmirror.observe.figures.throttling import ThrottleFigures
from sparkmirror.progress import Halt, PartitionProgress, SlotProgress
from sparkmirror.settings import ClusterClient, FlowSettings, MirrorSettings


@dataclass
class Scenario:
    work_dir: str = ""
    once: bool = False
    debug: bool = False
    log_format: str = "text"
    live: bool | None = None
    interval_s: float = 0.2
    refresh_s: float = 0.25
    sigterm_exit_code: int = 0
    drain_s: float = 6.0
    records: int = 1_000  # per second and slot, what the fake pipeline mirrors
    once_s: float = 0.5  # how long a --once takes
    prepare_s: float = 0.0
    prepares_until: str = ""  # a file that ends it
    prepare_fails: str = ""  # unreachable, config, defect
    loads_s: float = 0.0  # how long the control plane takes to be loaded and made
    opens_slowly: bool = False  # until its process is killed; then it cleans up for a moment
    open_fails_s: float = 0.0  # when Spark turns out not to start
    take_over: bool = False
    start_fails: bool = False
    query_fails_s: float = 0.0
    query_ends_s: float = 0.0
    query_fails_late: bool = False  # after its errors were asked for
    spark_dies_s: float = 0.0
    spark_hangs_s: float = 0.0  # its JVM is stopped: no call returns
    silent_s_max: float = 60.0  # how long that may last
    drain_fails: bool = False
    rest_s: float = 0.3  # how long drained queries take to come to rest
    stop_hangs: bool = False
    spark_ends_s: float = 0.0  # how long Spark itself takes to stop, once queries are at rest
    halted: bool = False
    refused: bool = False  # a partition that the control plane gave to no slot
    paused: bool = False
    away: str = ""  # the cluster that cannot be reached
    drain_asked_s: float = 0.0  # somebody elsewhere tells the flow to drain
    metrics: str = ""
    child: bool = False  # a process that only a kill ends, standing for the JVM
    warning: str = ""
    flows: bool = True  # else heartbeats alone
    stands_by_s: float = 0.0  # how long another process has the flow
    takes_in_vain_s: float = 0.0  # when it takes over a second flow, whose query does not start
    leaves_s: float = 0.0  # somebody tells one flow to drain, others go on
    echo_s: float = 0.3  # within which two signals are one
    looked: str = ""  # what the quick look finds once the topics are there


class World:
    """What both fakes share."""

    def __init__(self, scenario: Scenario) -> None:
        self.scenario = scenario
        self.began_s = 0.0
        self.stood_by_s = 0.0  # since when it stands by
        self.drained = False
        self.calls: list[str] = []
        self.reasons: list[str] = []

    def say(self, call: str) -> None:
        """Into a file too: the standard streams of some runs go away."""
        self.calls.append(call)
        with Path(f"{self.scenario.work_dir}.calls").open("a", encoding="utf-8") as file:
            file.write(f"{call}\n")
        with contextlib.suppress(OSError):
            # One write: two threads stop at once, and print() writes its line end apart.
            sys.stderr.write(f"[{call}]\n")
            sys.stderr.flush()

    def run_s(self) -> float:
        return time.monotonic() - self.began_s if self.began_s else 0.0

    def standing_s(self) -> float:
        """How long it has stood by."""
        return time.monotonic() - self.stood_by_s if self.stood_by_s else 0.0


class FakeControl:
    def __init__(self, world: World, settings: MirrorSettings) -> None:
        time.sleep(world.scenario.loads_s)
        self._world = world
        self.told_to_go: dict[str, float | None] = {}
        self._times = CheckpointTimes()
        self._times.record(CheckpointKey("billing", "A.orders", 0), 12.0)
        self._events = ["topic orders: created A.orders with 1 partition"]

    def prepare(self) -> None:
        self._world.say("prepare")
        time.sleep(self._world.scenario.prepare_s)
        file = self._world.scenario.prepares_until
        while file and not Path(file).exists():
            time.sleep(0.02)
        kind = self._world.scenario.prepare_fails
        if kind == "unreachable":
            raise Unreachable("No broker answers.", where="cluster B", do="Start it.")
        if kind == "config":
            raise ConfigError("The factor is too large.", where="mm2.properties:3", do="Lower it.")
        if kind == "defect":
            raise ZeroDivisionError("division by zero")

    def start(self) -> None:
        self._world.say("control.start")

    def drain(self) -> None:
        self._world.say("drain")
        if self._world.scenario.drain_fails:
            raise Unreachable("No broker answers.", where="cluster B", do="Start it.")
        self._world.drained = True

    def note_reason(self, reason: str) -> None:
        self._world.reasons.append(reason)

    def refresh(self) -> None:
        self._world.say("refresh")
        self._events.append("topic new: created A.new with 1 partition")

    def progress(self) -> tuple[SlotProgress, ...]:
        world = self._world
        if not world.began_s or world.run_s() < 0.1:
            return ()
        records = int(world.run_s()) * world.scenario.records + world.scenario.records
        halt = (
            Halt("CORRUPT_BATCH", "checksum wrong at offset 7") if world.scenario.halted else None
        )
        now_ms = int(time.time() * 1_000)
        partition = PartitionProgress("orders", 0, records, now_ms, records, 100 * records, halt)
        return (
            SlotProgress(
                "A->B", 0, "w1", 0, now_ms, records, 100 * records, 1, partitions=(partition,)
            ),
        )

    def take_reports(self) -> tuple[SlotProgress, ...]:
        return self.progress()

    def end_offsets(self, flow: str) -> Mapping[TopicPartition, int]:
        return {TopicPartition("orders", 0): 0}

    def ends_age_s(self, flow: str) -> float | None:
        return 1.5

    def oldest_ms(self, flow: str) -> Mapping[TopicPartition, int]:
        return {}

    def assignment(self, flow: str) -> FakeControl:
        return self

    @property
    def sources(self) -> frozenset[TopicPartition]:
        return frozenset(self.end_offsets(""))

    @property
    def halted(self) -> Mapping[TopicPartition, Halt]:
        if not self._world.scenario.refused:
            return {}
        return {TopicPartition("secret", 0): Halt("DENIED", "no permission to create")}

    @property
    def remote_topics(self) -> Mapping[str, str]:
        return {"orders": "A.orders"}

    def to_go(self, flow: str, seconds: float | None) -> None:
        self.told_to_go[flow] = seconds

    @property
    def owned(self) -> frozenset[str]:
        waits_s = self._world.scenario.stands_by_s
        takes_s = self._world.scenario.takes_in_vain_s
        second = {"B->A"} if takes_s and self._world.run_s() > takes_s else frozenset()
        return frozenset() if self._world.standing_s() < waits_s else frozenset({"A->B"} | second)

    def standing_by(self, flow: str) -> str:
        waits_s = self._world.scenario.stands_by_s
        begins = self._world.standing_s() > waits_s / 2  # claimed, and not mirrored yet
        return "" if self.owned or begins else "standing by: run r, host h:1 mirrors this flow"

    def paused(self, flow: str) -> bool:
        return self._world.scenario.paused

    def deals(self, flow: str) -> DealFigures:
        return DealFigures()

    def throttle(self, flow: str) -> ThrottleFigures:
        return ThrottleFigures()

    def tables(self, flow: str) -> tuple[TableState, ...]:
        return ()

    def unreachable_cluster(self, flow: str) -> str:
        return self._world.scenario.away

    def draining(self, flow: str) -> bool:
        after_s = self._world.scenario.drain_asked_s
        return self._world.drained or bool(after_s and self._world.run_s() > after_s)

    @property
    def leaving(self) -> frozenset[str]:
        after_s = self._world.scenario.leaves_s
        return frozenset({"A->B"} if after_s and self._world.run_s() > after_s else ())

    def hand_over(self, name: str) -> None:
        self._world.say(f"hand_over {name}")

    def drained(self, flow: str) -> bool:
        return False

    def checkpoint_times(self, flow: str) -> CheckpointTimes:
        return self._times

    def group_rows(self, flow: str) -> tuple[GroupRow, ...]:
        return ()

    def events(self) -> list[str]:
        events, self._events = self._events, []
        return events

    def failures(self) -> tuple[MirrorError, ...]:
        return ()

    def finish(self, *, timeout_s: float) -> None:
        self._world.say("control.finish")

    def stop(self) -> None:
        self._world.say("control.stop")


class FakeLook:
    def __init__(self, world: World) -> None:
        self._world = world
        self._lines: list[str] = []

    def begin(self) -> None:
        pass

    def topics_made(self) -> None:
        self._lines += filter(None, [self._world.scenario.looked])

    def lines(self) -> list[str]:
        lines, self._lines = self._lines, []
        return lines

    def end(self) -> None:
        pass


class FakeFlow:
    key = "key of a run"
    page = ""

    def __init__(self, world: World, settings: MirrorSettings) -> None:
        self._world = world
        self.at_rest = False
        self._ended = False

    def figures(self) -> dict[str, QueryFigures]:
        return {}

    def open(self) -> None:
        """Beside `prepare`: its place among the calls would differ from run to run."""
        if self._world.scenario.open_fails_s:
            time.sleep(self._world.scenario.open_fails_s)
            raise MirrorError("There is no Java.", do="Install it.")
        if self._world.scenario.opens_slowly:
            subprocess.run(["sleep", "300"], start_new_session=True, check=False)
            time.sleep(0.3)
            self._world.say("flow.open ended")

    def start(self, flows: Iterable[str]) -> None:
        self._world.say("flow.start")
        if not flows and self._world.scenario.flows:
            return
        if self._world.scenario.start_fails or "B->A" in flows:
            raise MirrorError("Spark does not start.", where="master x", do="Look into spark.log.")
        if self._world.scenario.child:
            child = subprocess.Popen(["sleep", "300"], start_new_session=True)
            print(f"child={child.pid}", file=sys.stderr, flush=True)
        self._world.began_s = time.monotonic()

    def stand_by(self, flows: Iterable[str]) -> None:
        self._world.say(f"flow.stand_by {','.join(flows)}")
        self._world.stood_by_s = self._world.stood_by_s or time.monotonic()

    def tables(self, flow: str) -> tuple[TableState, ...]:
        return ()

    def reload_tables(self, flow: str, table: str = "") -> tuple[TableState, ...]:
        return ()

    def active(self) -> bool:
        scenario, run_s = self._world.scenario, self._world.run_s()
        if scenario.spark_dies_s and run_s > scenario.spark_dies_s:
            raise ConnectionError("the JVM is gone")
        if scenario.spark_hangs_s and run_s > scenario.spark_hangs_s:
            self._world.say("flow.active")
            time.sleep(300)
        if scenario.once and run_s > scenario.once_s:
            self._ended = True
            return False
        if scenario.stands_by_s and not self._world.began_s:
            return False  # no query has been started
        ends_s = scenario.query_ends_s or scenario.query_fails_s
        return not (ends_s and run_s > ends_s)

    def errors(self) -> tuple[MirrorError, ...]:
        fails_s = self._world.scenario.query_fails_s
        late = self._world.scenario.query_fails_late and self._ended
        if late or (fails_s and self._world.run_s() > fails_s):
            return (MirrorError("the query failed: boom", where="flow A->B", do="Look."),)
        return ()

    def end(self, flow: str, *, grace_s: float) -> bool:
        self._world.say(f"flow.end {flow} grace={grace_s > 0}")
        return True

    def stop(self, *, grace_s: float) -> None:
        self._world.say(f"flow.stop grace={grace_s > 0}")
        if self._world.scenario.stop_hangs:
            time.sleep(300)
        time.sleep(min(grace_s, self._world.scenario.rest_s))
        self.at_rest = self._world.scenario.rest_s <= grace_s
        time.sleep(self._world.scenario.spark_ends_s)


def main() -> int:
    scenario = Scenario(**json.loads(sys.argv[1]))
    loop.ECHO_S = scenario.echo_s
    loop.REFRESH_S = scenario.refresh_s
    query_watch.SILENT_S_MAX = scenario.silent_s_max
    world = World(scenario)

    def client(alias: str) -> ClusterClient:
        return ClusterClient(alias, ("127.0.0.1:1",), f"{alias}-client")

    flow = FlowSettings(client("A"), client("B"), client("A"), client("B"))
    warnings = (scenario.warning,) if scenario.warning else ()
    flows = (flow,) if scenario.flows else ()
    settings = MirrorSettings(flows, ("A", "B"), warnings=warnings)
    options = RunOptions(
        once=scenario.once,
        debug=scenario.debug,
        log_format=scenario.log_format,
        live=scenario.live,
        interval_s=scenario.interval_s,
        work_dir=Path(scenario.work_dir),
        sigterm_exit_code=scenario.sigterm_exit_code,
        drain_s=scenario.drain_s,
        metrics=scenario.metrics,
        take_over=scenario.take_over,
    )
    parts = Parts(
        control=lambda settings, **_: FakeControl(world, settings),
        flow=lambda settings, **_: FakeFlow(world, settings),
        quick_check=lambda _: FakeLook(world),
    )
    return run_mirror(settings, options, parts=parts)


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)
