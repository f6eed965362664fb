"""A mirror whose target loses something again and again: is each loss told, and mirrored again?

usage: python -m tests.faults.elections [--losses 30] [--seconds N] [--seed 1] [--exactly-once]
       [--only NAME ...] [--report FILE] [--keep DIRECTORY]

``--seconds``: no loss begins later than that; for a run in pieces.

The target has three brokers. Unclean elections, and a remote topic that is deleted and made anew,
at random places, while the mirror runs or is stopped; a load writes to the source meanwhile, or
has just ended. After each loss all of the remote topic is read by librdkafka and compared with the
source. The exit code is 1 when a record is missing, came twice or stands out of order, when a loss
was not told with its kind for each partition, or one that was none, or when the mirror ended by
itself. What at-least-once wrote before it saw a loss may stand in front of what is mirrored again
(docs/guarantees.md); it is counted.
"""

from __future__ import annotations

import argparse
import contextlib
import random
import sys
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from sparkmirror.internal_topics.gaps import Gap, GapAction, GapKind, decode_gap
from sparkmirror.testing.clusters import KafkaCluster, start_all
from tests.faults.fragile import LOSSES, PARTITIONS, Election, FragileTopic, Loss, Stroke
from tests.faults.harness import Mirror, run_directory, write_config
from tests.faults.kinds import draw
from tests.faults.wholeness import Compared, Outcome, Summary, compare, render
from tests.kafka.clusters.faults import Load, by_partition
from tests.kafka.harness.support import consume_all, create_topic

TOPIC, REMOTE, GAPS = "numbers", "A.numbers", "mm2-sparkmirror-gaps.A.internal"
_PER_S = 60.0
# Two looks at idle partitions (30 s each), a start of Spark, and as much again on a busy machine.
_WHOLE_S_MAX = 180.0
_LOOK_AGAIN_S = 0.3
_BEFORE_S = 0.5, 4.0
_HEALED_S = 0.0, 8.0
_BEHIND = 5, 60
"""How many offsets more a wounded partition gets before it loses them."""
_IDLE = 0.25
"""How often nothing more is written after a loss: then only a look can see it."""
_BY_MIRROR = 0.5
"""How often it is the mirror that makes the topic again which lost it while it was stopped."""
_BROKER = {
    "min.insync.replicas": "2",  # no loss for what a mirror keeps for itself
    "replica.lag.time.max.ms": "5000",
}
_SETTINGS = {
    "replication.factor": "2",
    "B.offset.storage.replication.factor": "3",
    "offset-syncs.topic.replication.factor": "3",
    "offset-syncs.topic.location": "target",
    "checkpoints.topic.replication.factor": "3",
    "emit.heartbeats.enabled": "false",
    "refresh.topics.interval.seconds": "2",
    # What a frozen broker does not answer is asked anew soon.
    "B.producer.request.timeout.ms": "6000",
    "B.admin.request.timeout.ms": "6000",
}


class Scenario:
    """One mirror, its load and its fragile target."""

    def __init__(
        self,
        directory: Path,
        source: KafkaCluster,
        target: KafkaCluster,
        chooser: random.Random,
        *,
        exactly_once: bool,
    ) -> None:
        self._source, self._target, self._chooser = source, target, chooser
        self._exactly_once = exactly_once
        create_topic(source, TOPIC, PARTITIONS)
        self._remote = FragileTopic(target, REMOTE)
        self._remote.make()
        self._load = Load(source, TOPIC, PARTITIONS, per_s=_PER_S)
        self._repaired: dict[int, set[tuple[int, int]]] = defaultdict(set)
        self._early = 0
        config = write_config(directory / "mm2.properties", source, target, TOPIC, **_SETTINGS)
        self.mirror = Mirror(directory, config, *(["--exactly-once"] if exactly_once else []))
        self._running = True

    @property
    def records(self) -> int:
        """How many were written to the source."""
        return self._load.count

    def begin(self) -> Compared:
        """Wait until the mirror mirrors."""
        with self._load:
            self._load.wait_for(10 * PARTITIONS)
        return self._compared()

    def end(self) -> Compared:
        """Drain the mirror; what is at the target then."""
        self._drain()
        return self._compared()

    def lose(self, name: str) -> Outcome:
        """One loss of that kind, and the way back."""
        loss = LOSSES[name]
        since = self._gaps_end()
        with contextlib.ExitStack() as healing:
            if loss.told is GapKind.TARGET_RECREATED:
                stroke = self._made_anew(loss)
            else:
                election = Election(
                    self._remote,
                    self._chooser.randrange(PARTITIONS),
                    frozen=loss.frozen,
                    meanwhile=self._meanwhile,
                )
                stroke = self._unclean(healing.enter_context(election), loss)
            outcome = self._suffer(name, loss, stroke, since)
        # What was told only while the brokers came back counts as well.
        gaps = self._gaps(since)
        return replace(
            outcome,
            told_as=frozenset(gap.kind.value for gap in gaps),
            invented=sum(not _is_of(gap, loss, stroke.wounded) for gap in gaps),
        )

    def _unclean(self, election: Election, loss: Loss) -> Stroke:
        behind = self._chooser.randint(*_BEHIND)
        healed_s = self._chooser.uniform(*_HEALED_S)

        def strike() -> None:
            election.elect()
            election.heal(healed_s)

        return Stroke(
            election.wounded,
            strike,
            prepare=lambda: election.cut_off(behind),
            # Who reads would ask a frozen broker, too, and wait for its answer.
            healed=election.wait_healed if loss.frozen else lambda: None,
        )

    def _made_anew(self, loss: Loss) -> Stroke:
        by_us = not loss.by_mirror and not (loss.stopped and self._chooser.random() < _BY_MIRROR)

        def strike() -> None:
            self._repaired.clear()  # with the log they are gone
            self._early = 0
            self._remote.delete()
            if by_us:
                self._remote.make()

        return Stroke(frozenset(range(PARTITIONS)), strike, after=self._remote.wait_for_mirror)

    def _suffer(self, name: str, loss: Loss, stroke: Stroke, since: int) -> Outcome:
        """The loss, until all is told and the target is whole, or the time is up."""
        idle = self._chooser.random() < _IDLE
        with self._load:
            self._rest(self._chooser.uniform(*_BEFORE_S))
            stroke.prepare()
            if not idle:
                began = self._strike(loss, stroke, since)
        if idle:
            began = self._strike(loss, stroke, since)
        stroke.healed()
        compared = self._compared(since)
        whole_s = time.time() - began if compared.equal else float("inf")
        told = self._told(loss, stroke.wounded, since)
        untold = len(stroke.wounded - told.keys())
        told_s = float("inf") if untold else max(0.0, max(told.values()) - began)
        early, self._early = compared.early - self._early, compared.early
        return Outcome(
            *(name, idle), told_s=told_s, whole_s=whole_s, untold=untold, early=early,
            compared=compared,
        )  # fmt: skip

    def _strike(self, loss: Loss, stroke: Stroke, since: int) -> float:
        """The loss, until it is told or the time is up; when the target, or mirror, was back."""
        if loss.stopped:
            self._stop()
        stroke.strike()
        if loss.stopped:
            self.mirror.start()
            self._running = True
        began = time.time()
        stroke.after()
        self._until(lambda: self._told(loss, stroke.wounded, since).keys() >= stroke.wounded)
        return began

    # -- the mirror ----------------------------------------------------------------------------

    def _meanwhile(self) -> None:
        if self._running:
            self.mirror.keep_running()

    def _until(self, condition: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + _WHOLE_S_MAX
        while not (met := condition()) and time.monotonic() < deadline:
            self._meanwhile()
            time.sleep(_LOOK_AGAIN_S)
        return met

    def _rest(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            self._meanwhile()
            time.sleep(_LOOK_AGAIN_S)

    def _stop(self) -> None:
        """Drain it; where nothing may come twice, whatever becomes of it, kill it half the time."""
        if self._exactly_once and self._chooser.random() < 0.5:
            self._running = False
            self.mirror.kill()
        else:
            self._drain()

    def _drain(self) -> None:
        self._running = False
        code = self.mirror.drain(_WHOLE_S_MAX)
        assert code == 0, f"the mirror drained with code {code}: {self.mirror.output()}"

    # -- what is told --------------------------------------------------------------------------

    def _gaps_end(self) -> int:
        """Offset after the last gap record."""
        return max((record.offset + 1 for record in consume_all(self._target, GAPS)), default=0)

    def _gaps(self, since: int) -> list[Gap]:
        """What was told from that offset on."""
        records = [one for one in consume_all(self._target, GAPS) if one.offset >= since]
        gaps = [gap for one in records if (gap := decode_gap(one.value)) is not None]
        assert len(gaps) == len(records), "a gap record cannot be read"
        return gaps

    def _told(self, loss: Loss, wounded: frozenset[int], since: int) -> dict[int, float]:
        """When, by the wounded partition, its loss was told first."""
        found: dict[int, float] = {}
        for gap in self._gaps(since):
            if _is_of(gap, loss, wounded):
                found.setdefault(gap.source.partition, gap.time_ms / 1000)
        return found

    # -- what is there -------------------------------------------------------------------------

    def _compared(self, since: int | None = None) -> Compared:
        """The remote topic beside the source's, which nobody writes to now, once it holds all.

        ``since``: where the gap records of the last loss begin.
        """
        wanted = by_partition(consume_all(self._source, TOPIC))
        assert wanted == dict(self._load.acknowledged), "the source lost something itself"
        found = Compared()

        def complete() -> bool:
            nonlocal found
            # With transactions, there are more offsets than records.
            ends = self._remote.ends()
            if any(ends[number] < len(values) for number, values in wanted.items()):
                return False
            there = by_partition(consume_all(self._target, REMOTE))
            if since is not None and not self._exactly_once:
                for gap in self._gaps(since):
                    if gap.action is GapAction.REPAIRED and gap.last is not None:
                        self._repaired[gap.source.partition].add((gap.first, gap.last))
            found = Compared.total(
                compare(values, there.get(number, ()), self._repaired[number])
                for number, values in wanted.items()
            )
            return not found.missing or found.spoilt

        if not self._until(complete) and found == Compared():
            ends = self._remote.ends()
            lacking = sum(max(0, len(values) - ends[n]) for n, values in wanted.items())
            found = Compared(missing=lacking)
        return found


def _is_of(gap: Gap, loss: Loss, wounded: frozenset[int]) -> bool:
    """Whether a gap record tells of that loss."""
    return (
        gap.kind is loss.told
        and gap.action is GapAction.REPAIRED
        and (gap.source.topic, gap.remote_topic) == (TOPIC, REMOTE)
        and gap.source.partition in wounded
    )


def main() -> int:
    """Run; the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.faults.elections",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--losses", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--exactly-once", action="store_true")
    parser.add_argument("--only", nargs="+", metavar="NAME", choices=sorted(LOSSES))
    parser.add_argument("--report", type=Path)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    source = KafkaCluster("A")
    target = KafkaCluster("B", nodes=3, heap="256m", config=_BROKER)
    start_all(source, target)
    try:
        with run_directory(options.keep) as directory:
            summary = _run(options, directory, source, target)
    finally:
        for cluster in (source, target):
            cluster.stop()
    page = render(summary)
    print(page)
    if options.report is not None:
        options.report.write_text(page)
    return int(bool(summary.wrong))


def _run(
    options: argparse.Namespace, directory: Path, source: KafkaCluster, target: KafkaCluster
) -> Summary:
    chooser = random.Random(options.seed)
    scenario = Scenario(directory, source, target, chooser, exactly_once=options.exactly_once)
    began = time.monotonic()
    outcomes: list[Outcome] = []
    complaints: list[str] = []
    try:
        first = scenario.begin()
        assert first.equal, f"the mirror does not begin: {first}\n{scenario.mirror.output()}"
        chosen = options.only or LOSSES
        names = draw(chooser, {name: LOSSES[name].weight for name in chosen})
        while len(outcomes) < options.losses and time.monotonic() - began < options.seconds:
            outcome = scenario.lose(next(names))
            outcomes.append(outcome)
            at = time.strftime("%H:%M:%S", time.gmtime())
            print(f"{len(outcomes):3d} {at} {outcome}; {scenario.records:,} written", flush=True)
            if outcome.wrong:
                break
        else:
            last = scenario.end()
            if not last.equal:
                complaints.append(f"after the drain: {last}")
    finally:
        if any(outcome.wrong for outcome in outcomes) or complaints or sys.exc_info()[0]:
            print(scenario.mirror.output())
        scenario.mirror.kill()
    complaints += [
        f"the mirror ended by itself with code {code}: {output.strip().splitlines()[-3:]}"
        for code, output in scenario.mirror.exits
    ]
    head = f"Seed {options.seed}, {PARTITIONS} partitions, {time.monotonic() - began:.0f} s"
    mode = "exactly-once" if options.exactly_once else "at-least-once"
    return Summary(mode, head, scenario.records, outcomes, complaints)


if __name__ == "__main__":
    sys.exit(main())
