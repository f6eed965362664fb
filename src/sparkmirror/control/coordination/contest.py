"""Who may mirror a flow: decided from its control topic and this process's own clock. Pure.

The owner is the run of the newest claim. It has lost the flow when it reports its end, when its
process on this machine has ended, or when no report of it arrives for a session. The time of a
report is the time of its arrival here, so clocks of machines are never compared. Only time in which
the target responded counts. So neither an unavailable target nor a freeze of this process costs the
owner its flow.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from sparkmirror.control.coordination.place import is_gone, own_place
from sparkmirror.internal_topics.commands import (
    COMMAND_PARTITION,
    PROGRESS_PARTITION,
    CommandKind,
    decode_command,
)
from sparkmirror.internal_topics.driver_report import DriverReport, decode_driver_report
from sparkmirror.internal_topics.flow_claims import (
    Claim,
    claim_key,
    claim_signer,
    decode_claim,
    is_believed,
    is_signed,
)
from sparkmirror.settings import FlowSettings

REPORTS_PER_SESSION = 4
"""Reports per session, of an owner and of a standby."""
# For claims of releases that give no session; those report every ten seconds.
_OLD_SESSION_S = 30.0


class ClaimState(Enum):
    """``OURS``: this run has the newest claim. ``FREE``: no owner. ``HELD``: another run has it."""

    OURS = "ours"
    FREE = "free"
    HELD = "held"


class Contest:
    """What one process knows of a flow's owner, from records of the control topic.

    The caller reports each record (`apply`), each finished read (`read_finished`) and each failed
    read (`read_failed`). ``run_id`` is our own. Times are seconds of `ticks.ticks_s`, given by the
    caller.
    """

    def __init__(
        self, flow: FlowSettings, run_id: str, *, gone: Callable[[str], bool] = is_gone
    ) -> None:
        self._flow = flow
        self._run_id = run_id
        self._signer = claim_signer(flow)
        self._gone = gone
        self._place = own_place()
        self.claim: Claim | None = None
        """The newest valid claim."""
        self.stranger = ""
        """A run that started after the newest claim without one: its release has no claims.

        Always empty with a secret, because a run command is not signed.
        """
        self.sealed = False
        """Whether the newest claim is signed and we have no secret to check it with."""
        self.buried = False
        """Whether a later record, which counts for nothing, has the key of the newest claim.

        Compaction leaves only that record. Never without a secret: there the last claim counts.
        """
        self.rival: Claim | None = None
        """The claim in that record, if another run has signed it with another secret."""
        self._drivers: dict[str, DriverReport] = {}
        self._reported_s: dict[str, float] = {}
        self._since_s: float | None = None
        self._read_s: float | None = None

    # -- input -----------------------------------------------------------------------------

    def apply(self, partition: int, key: bytes | None, value: bytes | None, now_s: float) -> None:
        """Take one record of the control topic."""
        if partition == COMMAND_PARTITION:
            self._apply_command(key, value, now_s)
        elif partition == PROGRESS_PARTITION:
            self._apply_report(key, value, now_s)

    def _apply_command(self, key: bytes | None, value: bytes | None, now_s: float) -> None:
        if key == claim_key(self._flow.name):
            self._apply_claim(key, value, now_s)
            return
        command = decode_command(key, value) if self._signer is None else None
        if command is None or (command.flow, command.kind) != (self._flow.name, CommandKind.RUN):
            return
        claimed = self.claim is not None and self.claim.run_id == command.run_id
        self.stranger = "" if claimed else command.run_id

    def _apply_claim(self, key: bytes, value: bytes | None, now_s: float) -> None:
        claim = decode_claim(key, value)
        signed = self._signer is not None
        older = claim is not None and self.claim is not None and claim.term < self.claim.term
        believed = is_believed(key, value, self._signer)
        if claim is None or not believed or (signed and older):
            self.buried = signed and self.claim is not None
            # A copy of our own claim is no other run's, whoever has changed it.
            others = claim is not None and claim.run_id != self._run_id
            self.rival = claim if others and not believed and is_signed(value) else None
            return
        self.claim, self.stranger, self.buried, self.rival = claim, "", False, None
        # A claim is a sign of life: its first report comes a moment later.
        self._reported_s[claim.run_id] = now_s
        self.sealed = not signed and is_signed(value)

    def _apply_report(self, key: bytes | None, value: bytes | None, now_s: float) -> None:
        report = decode_driver_report(key, value)
        if report is not None and report.flow == self._flow.name:
            self._drivers[report.run_id] = report
            self._reported_s[report.run_id] = now_s

    def read_finished(self, now_s: float) -> None:
        """Note that the topic has been read up to its end at ``now_s``."""
        before = self._read_s
        if self._since_s is None or (before is not None and now_s - before > self.session_s / 2):
            self._since_s = now_s  # too long without a read: silence counts from now
        self._read_s = now_s

    def read_failed(self) -> None:
        """Note that the target did not respond. The owner could not report then either."""
        self._since_s = self._read_s = None

    # -- output ----------------------------------------------------------------------------

    @property
    def owner(self) -> str:
        """The run that mirrors, or did so last; empty if none is known."""
        return self.stranger or ("" if self.claim is None else self.claim.run_id)

    @property
    def driver(self) -> DriverReport | None:
        """The owner's newest report."""
        return self._drivers.get(self.owner)

    @property
    def session_s(self) -> float:
        """Seconds without a report after which the owner has lost the flow.

        It is the longer of our session and the one in the owner's claim.
        """
        ours = self._flow.session_ms / 1000
        theirs = 0 if self.claim is None or self.stranger else self.claim.session_ms
        return max(ours, theirs / 1000 if theirs else _OLD_SESSION_S)

    def silent_s(self, now_s: float) -> float:
        """Seconds for which no report of the owner has arrived while this process read."""
        if self._since_s is None:
            return 0.0
        return now_s - max(self._since_s, self._reported_s.get(self.owner, self._since_s))

    def fresh(self, now_s: float) -> bool:
        """Whether the last read is recent enough to act on: less than half a session old."""
        return self._read_s is not None and now_s - self._read_s < self.session_s / 2

    def reports(self, now_s: float) -> bool:
        """Whether a report of the owner has arrived since reading began: it is alive."""
        return self._since_s is not None and self._reported_s.get(self.owner, 0.0) > self._since_s

    def claim_state(self, now_s: float) -> ClaimState:
        """Who may mirror the flow now."""
        claim, owner = self.claim, self.owner
        if claim is not None and claim.run_id == self._run_id:
            return ClaimState.OURS
        if not owner:
            return ClaimState.FREE
        driver = self.driver
        ended = driver is not None and driver.ended
        if claim is not None and not self.stranger and claim.place:
            ended = ended or claim.place == self._place or self._gone(claim.place)
        return (
            ClaimState.FREE if ended or self.silent_s(now_s) >= self.session_s else ClaimState.HELD
        )

    def describe_owner(self) -> str:
        """The owner as text for people: run, host, file."""
        driver, claim = self.driver, self.claim
        host = driver.host if driver is not None else ""
        file = ""
        if claim is not None and not self.stranger:
            host = host or claim.host
            file = f", file {claim.file}" if claim.file else ""
        return f"run {self.owner}, host {host or 'unknown'}{file}"

    def since_ms(self) -> int:
        """When the owner started (epoch ms, by its own clock); 0 if unknown."""
        if self.claim is not None and not self.stranger and self.claim.time_ms:
            return self.claim.time_ms
        return self.driver.started_ms if self.driver is not None else 0

    def other_content(self, content: str) -> bool:
        """Whether the owner's file certainly configures the flow differently from ``content``.

        False if the owner's release is another one: then digests cannot be compared.
        """
        theirs = "" if self.claim is None or self.stranger else self.claim.content
        release, _, digest = content.partition(":")
        other_release, _, other = theirs.partition(":")
        return bool(other) and release == other_release and digest != other
