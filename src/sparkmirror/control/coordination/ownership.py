"""Which of several processes of one file mirrors a flow: this one, or it stands by.

`contest` decides; here are the reads and writes. A process that finds the flow free claims it,
waits a moment and looks again: of two that claim at once the later one has it, and the other one
has not begun.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from collections.abc import Callable
from datetime import datetime

from sparkmirror.control.coordination.claim import claim_flow, other_secret
from sparkmirror.control.coordination.contest import REPORTS_PER_SESSION, Contest, Verdict
from sparkmirror.control.coordination.place import own_host
from sparkmirror.errors import ClusterError, Fenced, MirrorError, TopicError
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    control_topic,
)
from sparkmirror.internal_topics.flow_claims import Standby, encode_standby, standby_key, taken_over
from sparkmirror.model import FlowSettings, TopicPartition
from sparkmirror.ticks import ticks_s
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.topic_reader import TopicTail

_SETTLE_S = 0.3
# So that processes that stand by do not all claim in the same moment.
_SPREAD_S = 0.3
_LOOK_S_MAX = 1.0


def content_of(flow: FlowSettings, release: str) -> str:
    """What decides about the records of ``flow``, as a digest that one release makes. Pure.

    Not how its clusters are reached: two hosts may have addresses, logins and racks of their own.
    """
    read = flow.fetch.isolation_level, flow.fetch.auto_offset_reset
    told = repr((flow.policy, flow.topics, flow.faults, flow.exactly_once, *read))
    return f"{release}:{hashlib.sha256(told.encode()).hexdigest()[:16]}"


class Ownership:
    """One process's part in the contest for one flow. ``say`` takes one-line notices.

    `look` is for one thread at a time (its lock sees to that), the rest for any. ``file`` is the
    configuration file, ``release`` our version.
    """

    def __init__(
        self,
        target: Cluster,
        flow: FlowSettings,
        run_id: str,
        say: Callable[[str], None],
        *,
        file: str = "",
        release: str = "",
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
        now_s: Callable[[], float] = ticks_s,
    ) -> None:
        self.contest = Contest(flow, run_id)
        self._target = target
        self._flow = flow
        self._run_id = run_id
        self._say = say
        self._told = ""
        self._file = file
        self._release = release
        self._content = content_of(flow, release)
        self._now_ms = now_ms
        self._now_s = now_s
        self._lock = threading.Lock()
        self._elsewhere = threading.Event()
        self._tail: TopicTail | None = None
        self._partitions = [COMMAND_PARTITION, PROGRESS_PARTITION]
        self._told_s = float("-inf")
        self.stands_by = False
        self.taken = ""
        """From whom this process took the flow over, and why; empty where nobody had it."""
        self.term = 0
        """Of our own claim; 0 without a secret."""

    @property
    def look_interval_s(self) -> float:
        """How often to look."""
        return min(_LOOK_S_MAX, self._flow.session_ms / 10_000)

    @property
    def report_interval_s(self) -> float:
        """How often an owner reports, and whoever stands by."""
        return self._flow.session_ms / 1000 / REPORTS_PER_SESSION

    # -- looking ---------------------------------------------------------------------------

    def look(self) -> Verdict:
        """Read the control topic to its present end. Raises `MirrorError`."""
        with self._lock:
            began_s = self._now_s()
            try:
                for record in self._read():
                    self.contest.hear(*record, began_s)
            except MirrorError:
                self.contest.missed()
                self._forget()
                raise
            self.contest.looked(began_s)
            return self.contest.verdict(began_s)

    def _read(self) -> list[tuple[int, bytes | None, bytes | None]]:
        topic = control_topic(self._flow)
        if self._tail is None:
            self._tail = self._target.tail(topic, partitions=self._partitions, passes=True)
            return list(self._tail.read_to_end())
        wanted = [TopicPartition(topic, number) for number in self._partitions]
        ends = self._target.end_offsets(wanted)  # asked for, so that silence is not an absence
        if len(ends) < len(wanted):
            raise TopicError(
                f"{topic} cannot be read: no live leader.",
                where=f"cluster {self._target.alias}",
                do="Bring the broker back that holds it.",
            )
        return list(self._tail.read_to(ends))

    def _forget(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            with contextlib.suppress(MirrorError):
                tail.close()

    def holds(self) -> bool:
        """Whether the flow is ours, and that was seen a moment ago."""
        now_s = self._now_s()
        return self.contest.fresh(now_s) and self.contest.verdict(now_s) is Verdict.OURS

    def as_owner(self, job: Callable[[], object]) -> None:
        """Do ``job`` only while the flow certainly is ours: who was frozen looks before.

        Raises `MirrorError` when there is no telling.
        """
        if self.holds() or self.look() is Verdict.OURS:
            job()

    def keep_alive(self, report: Callable[[], None]) -> None:
        """Call ``report`` four times in a session from now on, until `reported_elsewhere`.

        Before a flow's threads start, its topics are looked at, which may take minutes: others
        would take the flow over meanwhile.
        """

        def body() -> None:
            while not self._elsewhere.is_set():
                with contextlib.suppress(MirrorError):  # the flow's own work tells what is wrong
                    self.as_owner(report)
                self._elsewhere.wait(self.report_interval_s)

        self._elsewhere.clear()
        name = f"alive-{self._flow.name}"
        threading.Thread(target=body, name=name, daemon=True).start()

    def reported_elsewhere(self) -> None:
        """The flow's own threads report, or nobody does any more."""
        self._elsewhere.set()

    def watch(self) -> None:
        """One look of the owner; `lost` says what came of it. Raises `MirrorError`."""
        self.look()
        stranger = self.contest.stranger
        if stranger and stranger != self._told:
            self._told = stranger
            self._say(
                f"{self._flow.name}: the run {stranger} has begun to mirror this flow, too, and "
                "has made no claim: its release knows none. Stop it, or records arrive twice"
            )

    def lost(self) -> Fenced | None:
        """Why an owner has to end; None while it has not to."""
        claim = self.contest.claim
        if self.stands_by or claim is None or claim.run_id == self._run_id:
            return None
        return taken_over(self._flow, claim, self._run_id)

    # -- claiming --------------------------------------------------------------------------

    def at_start(self, *, once: bool, take_over: bool) -> bool:
        """Claim the flow if it is free (or to be taken over); False: this process stands by.

        A run with ``once`` waits until it knows whether the owner lives, and does not start beside
        one that does. Raises `ClusterError` then, and other `MirrorError`.
        """
        verdict = self.look()
        while True:
            before = self.contest.told_owner() if verdict is Verdict.HELD else ""
            if (take_over or verdict is not Verdict.HELD) and self._claim(anyway=take_over):
                self.taken = f"from {before}, as --take-over asked" if before else ""
                return True
            take_over = False
            self._refuse_other_secret()
            if not once:
                break
            self._refuse_second_copy()
            time.sleep(self.look_interval_s)
            verdict = self.look()
        self.stand_by()
        self._tell()
        self._say_who()
        return False

    def stand_by(self) -> None:
        """Wait for the flow from here on: the reports of whoever has it count."""
        with self._lock:
            self.stands_by = True
            self._forget()
            self._partitions = [COMMAND_PARTITION, PROGRESS_PARTITION]
            self.contest.missed()

    def _refuse_second_copy(self) -> None:
        if self.contest.reports(self._now_s()):
            raise ClusterError(
                f"another sparkmirror ({self.contest.told_owner()}) mirrors this flow: a run with "
                "--once would copy every record a second time.",
                where=f"flow {self._flow.name}",
                do="Leave --once out to have this process stand by, stop the other one, or take "
                "the flow over from it: --take-over.",
            )

    def _refuse_other_secret(self) -> None:
        if self.contest.sealed and self.contest.claim is not None:
            raise other_secret(self._flow, self.contest.claim)

    def wait_turn(self) -> bool:
        """One look of a process that stands by; True once it has claimed the flow.

        Raises `MirrorError`; the process goes on standing by.
        """
        if self.look() is Verdict.HELD:
            self._say_who()
            if self._now_s() - self._told_s >= self.report_interval_s:
                self._tell()
            return False
        before, driver = self.contest.told_owner(), self.contest.driver
        heard = f"of which nothing was heard for {self.contest.silent_s(self._now_s()):.1f} s"
        if driver is not None and driver.ended:
            heard = "which had ended"
        time.sleep(random.uniform(0, _SPREAD_S))  # noqa: S311 (no secret)
        if self.look() is Verdict.HELD or not self._claim():
            return False
        self._write(standby_key(self._flow.name, self._run_id), None)
        self.stands_by = False
        self.taken = f"from {before}, {heard}"
        self._say(f"{self._flow.name}: taken over {self.taken}")
        return True

    def _claim(self, *, anyway: bool = False) -> bool:
        """Claim the flow; whether nobody else has done so in the same moment.

        Unless ``anyway``, nothing is claimed if another process did so since the last look: on a
        far target that is long ago, and a process that has begun would lose the flow at once.
        """
        known = self.contest.claim
        term = claim_flow(
            self._target,
            self._flow,
            self._run_id,
            self._now_ms(),
            file=self._file,
            content=self._content,
            newest=None if anyway else "" if known is None else known.run_id,
        )
        if term is None:
            self.look()
            return False
        self.term = term
        time.sleep(_SETTLE_S)
        if self.look() is not Verdict.OURS:
            return False
        with self._lock:  # from here on only claims of others count
            self._forget()
            self._partitions = [COMMAND_PARTITION]
        return True

    def _tell(self) -> None:
        """Say in the control topic that this process stands by."""
        standby = Standby(
            self._flow.name,
            self._run_id,
            own_host(),
            self._release,
            self._file,
            self._now_ms(),
        )
        self._write(*encode_standby(standby))
        self._told_s = self._now_s()

    def _write(self, key: bytes, value: bytes | None) -> None:
        record = (PROGRESS_PARTITION, key, value)
        self._target.produce_many(control_topic(self._flow), [record])

    # -- words -----------------------------------------------------------------------------

    @property
    def standing_by(self) -> str:
        """Who mirrors the flow while this process stands by; empty when the flow is its own."""
        if not self.stands_by:
            return ""
        since_ms, since = self.contest.since_ms(), ""
        if since_ms:
            moment = datetime.fromtimestamp(since_ms / 1000).astimezone()
            since = f", since {moment:%Y-%m-%d %H:%M:%S} by its clock"
        return f"standing by: {self.contest.told_owner()}{since} mirrors this flow"

    def _say_who(self) -> None:
        """Say once of each owner that it mirrors, and whether its file differs from ours."""
        if self._told == self.contest.owner:
            return
        self._told = self.contest.owner
        name, claim = self._flow.name, self.contest.claim
        self._say(
            f"{name}: {self.standing_by}. This process takes over when that one ends, or does not "
            f"report for {self.contest.session_s:g} s"
        )
        if claim is not None and self.contest.other_content(self._content):
            self._say(
                f"{name}: the owner's file ({claim.host}: {claim.file or 'unknown'}) says "
                f"something else of this flow than ours ({self._file}): whoever has the flow "
                "mirrors by its own. Give both processes the same file, or stop one"
            )

    def close(self) -> None:
        """Stand by no longer. Raises `MirrorError`."""
        self._elsewhere.set()
        # A look that is under way ends with the cluster's connections: they are all that it has.
        if self.stands_by:
            self.stands_by = False
            self._write(standby_key(self._flow.name, self._run_id), None)
