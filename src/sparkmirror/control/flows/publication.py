"""Publishes the assignment of one flow to its slots, and the drain that ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.commands import AssignmentDocument, Command, CommandKind
from sparkmirror.internal_topics.epochs.shares import Growth
from sparkmirror.model import TopicPartition
from sparkmirror.settings import Member


class Publication:
    """Publishes assignments under increasing versions. Any thread may call any method.

    ``frozen``: end offsets of a ``--once`` run. ``term`` returns the term of the run's claim. Once
    ``over`` is set, no drain is written. ``extends_slots``: the most slots of an epoch that may get
    further partitions while it runs, or those of others; 0: none may.
    """

    def __init__(
        self,
        flow: str,
        writer: ControlTopicWriter,
        *,
        channel: str,
        run_id: str,
        term: Callable[[], int],
        over: threading.Event,
        now_ms: Callable[[], int],
        extends_slots: int = 0,
    ) -> None:
        self.frozen: Mapping[TopicPartition, int] | None = None
        self.version = 0
        self.member: Member | None = None
        self.draining = False
        """Whether the slots were commanded to drain, by this process or another."""
        self.drain_sent = threading.Event()
        """Set once this process has written the drain command."""
        self._writer = writer
        self._channel = channel
        self._run_id = run_id
        self._term = term
        self._over = over
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._assignment = Assignment(flow)
        self._numbered = 0  # also versions whose writing failed: slots may have read them
        self._growth: Growth | None = None
        self._extends_slots = extends_slots

    @property
    def unsure(self) -> bool:
        """Whether slots may have another assignment: the writing of a later one failed.

        Waits for a writing that is under way.
        """
        with self._publishing:
            return self._numbered > self.version > 0

    @property
    def base(self) -> int:
        """The newest version for which an epoch had to begin; -1 if the next one needs one, too.

        Waits for a writing that is under way.
        """
        with self._publishing:
            growth = self._growth
        return -1 if growth is None else growth.base

    def assignment(self) -> Assignment:
        """The assignment that was published last."""
        with self._lock:
            return self._assignment

    def adopt(
        self, assignment: Assignment, kind: CommandKind, member: Member | None = None
    ) -> None:
        """Publish ``assignment`` under the next version, then the command that announces it.

        ``EXTEND`` becomes ``REPLAN`` if a new epoch must begin for it
        (`internal_topics.epochs.shares`). Nothing is published after `drain`. Raises `MirrorError`.
        """
        with self._publishing:
            self._publish(assignment, kind, member)

    def replan(self) -> None:
        """End the slots' epochs; the next ones have the same assignment. Raises `MirrorError`."""
        with self._publishing:
            if self.version:  # else nothing runs
                self._publish(self.assignment(), CommandKind.REPLAN, self.member)

    def move(self, to: Mapping[TopicPartition, int]) -> tuple[int, int] | None:
        """Order that partitions move to other slots within the epoch; returns version and `base`.

        None if that needs a new epoch (`replan`). Raises `MirrorError`.
        """
        with self._publishing:
            version = self._numbered + 1
            growth = self._growth if self._extends_slots and self.frozen is None else None
            moved = None if growth is None else growth.move(to, version)
            if moved is None or self.draining:
                return None
            self._write(self.assignment(), moved, CommandKind.EXTEND, self.member)
            return version, moved.base

    def release(self, released: Iterable[TopicPartition], base: int) -> bool:
        """Give ``released`` to the slots that the newest `move` of each names.

        False if a new epoch began since ``base``, or must begin. Raises `MirrorError`.
        """
        with self._publishing:
            growth = self._growth
            if growth is None or growth.base != base or self.draining:
                return False
            moved = growth.release(released)
            self._write(self.assignment(), moved, CommandKind.EXTEND, self.member)
            return True

    def _publish(self, assignment: Assignment, kind: CommandKind, member: Member | None) -> None:
        if self.draining:  # a later command would hide the drain from the slots
            return
        growth = None
        if kind is CommandKind.EXTEND:
            growth = self._extended(assignment)
            kind = CommandKind.REPLAN if growth is None else kind
        if growth is None:
            growth = Growth.begin(assignment.partitions, self._numbered + 1)
        self._write(assignment, growth, kind, member)

    def _write(
        self, assignment: Assignment, growth: Growth, kind: CommandKind, member: Member | None
    ) -> None:
        """Write the next version. If it fails, nobody knows which assignment slots have.

        Only a new epoch follows then.
        """
        version = self._numbered = self._numbered + 1
        self._growth = None
        document = AssignmentDocument(
            self._channel,
            self._run_id,
            version,
            assignment.partitions,
            self.frozen,
            member,
            self._term(),
            growth.since,
            growth.base,
            growth.moves,
        )
        base = growth.base if kind is CommandKind.EXTEND else 0
        self._writer.assign(document, replace(self._command(kind, version), base=base))
        with self._lock:
            self.version, self._assignment, self.member = version, assignment, member
            self._growth = growth

    def _extended(self, assignment: Assignment) -> Growth | None:
        known = self._growth
        if known is None or not self._extends_slots or self.frozen is not None:
            return None
        before, version = self.assignment().partitions, self._numbered + 1
        return known.follow(before, assignment.partitions, version, self._extends_slots)

    def note_halts(self, assignment: Assignment) -> None:
        """Keep ``assignment``, which differs from the published one only in its halts."""
        with self._lock:
            self._assignment = assignment

    def publish_share(self, wanted: Assignment, member: Member | None) -> int:
        """Publish what the group assigned to this member; returns its version.

        Nothing is published if partitions and member are unchanged, or after `drain`. Raises
        `MirrorError`.
        """
        same = (self.assignment().partitions, self.member) == (wanted.partitions, member)
        if same and not self.unsure:
            self.note_halts(wanted)
        else:
            self.adopt(wanted, CommandKind.REPLAN, member)
        return self.version

    def drain(self, *, again: bool) -> None:
        """Command the slots of this run to drain; no assignment is published afterwards.

        ``again``: write the command even if this process has written it before. Raises
        `MirrorError`.
        """
        with self._publishing:
            self.draining = True
            if self._over.is_set() or (self.drain_sent.is_set() and not again):
                return  # the slots have ended, or another thread has written the command
            self._writer.command(self._command(CommandKind.DRAIN, self.version))
            self.drain_sent.set()

    def _command(self, kind: CommandKind, version: int) -> Command:
        return Command(self._channel, kind, self._run_id, self._now_ms(), version=version)
