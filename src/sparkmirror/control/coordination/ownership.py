"""Ownership of a flow: this process mirrors it, or is a standby.

`contest` decides; this module reads and writes the control topic. A process that finds the flow
free writes a claim, waits briefly and reads the topic again. If two processes claim at the same
time, the later claim wins, and the other process has not started to mirror.
"""

from __future__ import annotations

import contextlib
import hashlib
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from datetime import datetime

from sparkmirror.control.coordination.claim import claim_flow, other_secret
from sparkmirror.control.coordination.contest import REPORTS_PER_SESSION, ClaimState, Contest
from sparkmirror.control.coordination.place import own_host
from sparkmirror.errors import ClusterError, Fenced, MirrorError, TopicError
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    control_topic,
)
from sparkmirror.internal_topics.flow_claims import (
    Claim,
    Standby,
    claim_signer,
    encode_claim,
    encode_standby,
    standby_key,
    taken_over,
)
from sparkmirror.model import TopicPartition
from sparkmirror.settings import FlowSettings
from sparkmirror.ticks import ticks_s
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.topic_reader import TopicTail

_SETTLE_S = 0.3
# Random delay, so that standbys do not all claim at the same moment.
_SPREAD_S = 0.3
_LOOK_S_MAX = 1.0
_RIVALS_KEPT = 100


def content_of(flow: FlowSettings, release: str) -> str:
    """Digest of the settings that decide which records ``flow`` mirrors, and how. Pure.

    Format ``release:digest``; only digests of one release can be compared. Connection settings are
    left out, because two hosts may use different addresses, logins and racks.
    """
    read = flow.fetch.isolation_level, flow.fetch.auto_offset_reset
    told = repr((flow.policy, flow.topics, flow.faults, flow.exactly_once, *read))
    return f"{release}:{hashlib.sha256(told.encode()).hexdigest()[:16]}"


class Ownership:
    """One process's part in the contest for one flow.

    ``notify`` takes one-line notices for the user. ``file`` is the configuration file, ``release``
    our version. Any thread may call `check`; a lock lets one thread read at a time.
    """

    def __init__(
        self,
        target: Cluster,
        flow: FlowSettings,
        run_id: str,
        notify: Callable[[str], None],
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
        self._notify = notify
        self._reported_run = ""
        self._rivals: deque[str] = deque(maxlen=_RIVALS_KEPT)
        self._file = file
        self._release = release
        self._content = content_of(flow, release)
        self._now_ms = now_ms
        self._now_s = now_s
        self._lock = threading.Lock()
        self._elsewhere = threading.Event()
        self._tail: TopicTail | None = None
        self._partitions = [COMMAND_PARTITION, PROGRESS_PARTITION]
        self._reported_s = float("-inf")
        self.stands_by = False
        self.taken = ""
        """From which owner this process took the flow over, and why; empty if there was none."""
        self.term = 0
        """Term of our own claim; 0 without a secret."""

    @property
    def check_interval_s(self) -> float:
        """Seconds between two reads of the control topic."""
        return min(_LOOK_S_MAX, self._flow.session_ms / 10_000)

    @property
    def report_interval_s(self) -> float:
        """Seconds between two reports, of an owner or of a standby."""
        return self._flow.session_ms / 1000 / REPORTS_PER_SESSION

    # -- reading ---------------------------------------------------------------------------

    def check(self) -> ClaimState:
        """Read the control topic to its current end, then decide. Raises `MirrorError`."""
        with self._lock:
            began_s = self._now_s()
            try:
                for record in self._read():
                    self.contest.apply(*record, began_s)
            except MirrorError:
                self.contest.read_failed()
                self._forget()
                raise
            self.contest.read_finished(began_s)
            return self.contest.claim_state(began_s)

    def _read(self) -> list[tuple[int, bytes | None, bytes | None]]:
        topic = control_topic(self._flow)
        if self._tail is None:
            self._tail = self._target.tail(topic, partitions=self._partitions, passes=True)
            return list(self._tail.read_to_end())
        wanted = [TopicPartition(topic, number) for number in self._partitions]
        # The end offsets prove that the target responds: an empty poll alone would not.
        ends = self._target.end_offsets(wanted)
        if len(ends) < len(wanted):
            raise TopicError(
                f"{topic} cannot be read: no live leader.",
                where=f"cluster {self._target.alias}",
                do="Start a broker that has an in-sync replica of it.",
            )
        return list(self._tail.read_to(ends))

    def _forget(self) -> None:
        tail, self._tail = self._tail, None
        if tail is not None:
            with contextlib.suppress(MirrorError):
                tail.close()

    def holds(self) -> bool:
        """Whether the flow is ours by a read that is recent enough (`Contest.fresh`)."""
        now_s = self._now_s()
        return self.contest.fresh(now_s) and self.contest.claim_state(now_s) is ClaimState.OURS

    def as_owner(self, job: Callable[[], object]) -> None:
        """Run ``job`` only if this process certainly owns the flow.

        If the last read is too old, for example after a freeze of the process, the control topic is
        read first. Raises `MirrorError` if that fails.
        """
        if self.holds() or self.check() is ClaimState.OURS:
            job()

    def keep_alive(self, report: Callable[[], None]) -> None:
        """Call ``report`` four times per session on a thread, until `reported_elsewhere`.

        A flow's threads start only after its topics have been discovered. That may take minutes;
        without reports, other processes would take the flow over.
        """

        def body() -> None:
            while not self._elsewhere.is_set():
                with contextlib.suppress(MirrorError):  # the start of the flow reports it
                    self.as_owner(report)
                self._elsewhere.wait(self.report_interval_s)

        self._elsewhere.clear()
        name = f"alive-{self._flow.name}"
        threading.Thread(target=body, name=name, daemon=True).start()

    def reported_elsewhere(self) -> None:
        """Stop the reports of `keep_alive`: the flow's own threads report now, or it has ended."""
        self._elsewhere.set()

    def watch(self) -> None:
        """One check by the owner; `lost` has the result. Raises `MirrorError`.

        Warns once of a run that mirrors the flow without a claim, and of one whose claim is signed
        with another secret. If a later record would take the place of our claim at the next
        compaction, the claim is written again: processes that start then would take the flow for
        free.
        """
        claim_state, claim = self.check(), self.contest.claim
        if claim_state is ClaimState.OURS and claim is not None and self.contest.buried:
            self._restore(claim)
        stranger = self.contest.stranger
        if stranger and stranger != self._reported_run:
            self._reported_run = stranger
            self._notify(
                f"{self._flow.name}: run {stranger} has started to mirror this flow too, without a "
                "claim: its release makes none. Stop it, or records arrive twice"
            )

    def _restore(self, claim: Claim) -> None:
        """Write our claim again; after that of a run with another secret, once per run.

        That run does the same with its own claim: neither believes the other's.
        """
        rival = self.contest.rival
        if rival is not None and rival.run_id in self._rivals:
            return
        record = (COMMAND_PARTITION, *encode_claim(claim, claim_signer(self._flow)))
        self._target.produce_many(control_topic(self._flow), [record])
        if rival is not None:
            self._rivals.append(rival.run_id)
            self._notify(str(other_secret(self._flow, rival)))

    def lost(self) -> Fenced | None:
        """Why this owner must end: another process has claimed the flow. None otherwise."""
        claim = self.contest.claim
        if self.stands_by or claim is None or claim.run_id == self._run_id:
            return None
        return taken_over(self._flow, claim, self._run_id)

    # -- claiming --------------------------------------------------------------------------

    def at_start(self, *, once: bool, take_over: bool) -> bool:
        """Claim the flow if it is free, or if ``take_over``; False: this process is a standby.

        A run with ``once`` never becomes a standby. It waits until the flow is free, or until a
        report shows that the owner is alive: then it raises `ClusterError`. It raises that too if
        the claim is signed with another secret. Raises other `MirrorError`.
        """
        claim_state = self.check()
        while True:
            before = self.contest.describe_owner() if claim_state is ClaimState.HELD else ""
            if (take_over or claim_state is not ClaimState.HELD) and self._claim(anyway=take_over):
                self.taken = f"from {before}, as --take-over asked" if before else ""
                return True
            take_over = False
            self._refuse_other_secret()
            if not once:
                break
            self._refuse_second_copy()
            time.sleep(self.check_interval_s)
            claim_state = self.check()
        self.stand_by()
        self._report_standby()
        self._report_owner()
        return False

    def stand_by(self) -> None:
        """Become a standby: from now on the owner's reports are read too."""
        with self._lock:
            self.stands_by = True
            self._forget()
            self._partitions = [COMMAND_PARTITION, PROGRESS_PARTITION]
            self.contest.read_failed()

    def _refuse_second_copy(self) -> None:
        if self.contest.reports(self._now_s()):
            raise ClusterError(
                f"another sparkmirror ({self.contest.describe_owner()}) mirrors this flow: a run "
                "with --once would copy every record a second time.",
                where=f"flow {self._flow.name}",
                do="Leave --once out to have this process stand by, stop the other one, or take "
                "the flow over from it: sparkmirror run --take-over.",
            )

    def _refuse_other_secret(self) -> None:
        if self.contest.sealed and self.contest.claim is not None:
            raise other_secret(self._flow, self.contest.claim)

    def wait_turn(self) -> bool:
        """One check by a standby; True once it has claimed the flow.

        Raises `MirrorError`; the process is then still a standby.
        """
        if self.check() is ClaimState.HELD:
            self._report_owner()
            if self._now_s() - self._reported_s >= self.report_interval_s:
                self._report_standby()
            return False
        before, driver = self.contest.describe_owner(), self.contest.driver
        reason = f"which has not reported for {self.contest.silent_s(self._now_s()):.1f} s"
        if driver is not None and driver.ended:
            reason = "which had ended"
        time.sleep(random.uniform(0, _SPREAD_S))  # noqa: S311 (no secret)
        if self.check() is ClaimState.HELD or not self._claim():
            return False
        self._write(standby_key(self._flow.name, self._run_id), None)
        self.stands_by = False
        self.taken = f"from {before}, {reason}"
        self._notify(f"{self._flow.name}: taken over {self.taken}")
        return True

    def _claim(self, *, anyway: bool = False) -> bool:
        """Claim the flow; False if another process claimed it at the same time and won.

        Unless ``anyway``, nothing is claimed if another process did so since the last check. On a
        far target that check is long ago, and a process that began would lose the flow at once.
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
            self.check()
            return False
        self.term = term
        time.sleep(_SETTLE_S)
        if self.check() is not ClaimState.OURS:
            return False
        with self._lock:  # an owner needs the claims of others only, not their reports
            self._forget()
            self._partitions = [COMMAND_PARTITION]
        return True

    def _report_standby(self) -> None:
        """Write to the control topic that this process is a standby."""
        standby = Standby(
            self._flow.name,
            self._run_id,
            own_host(),
            self._release,
            self._file,
            self._now_ms(),
        )
        self._write(*encode_standby(standby))
        self._reported_s = self._now_s()

    def _write(self, key: bytes, value: bytes | None) -> None:
        record = (PROGRESS_PARTITION, key, value)
        self._target.produce_many(control_topic(self._flow), [record])

    # -- texts for people ------------------------------------------------------------------

    @property
    def standing_by(self) -> str:
        """Who mirrors the flow, while this process is a standby; empty if it is not."""
        if not self.stands_by:
            return ""
        since = _since(self.contest.since_ms())
        return f"standing by: {self.contest.describe_owner()}{since} mirrors this flow"

    def _report_owner(self) -> None:
        """Report each new owner once, and whether its file configures the flow differently."""
        if self._reported_run == self.contest.owner:
            return
        self._reported_run = self.contest.owner
        name, claim = self._flow.name, self.contest.claim
        self._notify(
            f"{name}: {self.standing_by}. This process takes over when that one ends, or does not "
            f"report for {self.contest.session_s:g} s"
        )
        if claim is not None and self.contest.other_content(self._content):
            self._notify(
                f"{name}: the owner's file ({claim.host}: {claim.file or 'unknown'}) configures "
                f"this flow differently from ours ({self._file}): the owner mirrors by its own "
                "file. Give both processes the same file, or stop one"
            )

    def close(self) -> None:
        """Stop being a standby, and remove its record. Raises `MirrorError`."""
        self._elsewhere.set()
        # A read that is in progress ends when the cluster's connections are closed.
        if self.stands_by:
            self.stands_by = False
            self._write(standby_key(self._flow.name, self._run_id), None)


def _since(time_ms: int) -> str:
    """Since when the owner has the flow, in our time zone; empty if it is unknown, or no date."""
    if not time_ms:
        return ""
    try:
        moment = datetime.fromtimestamp(time_ms / 1000).astimezone()
    except (ValueError, OverflowError, OSError):  # a claim may have any number
        return ""
    return f", since {moment:%Y-%m-%d %H:%M:%S} by its clock"
