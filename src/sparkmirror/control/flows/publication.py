"""The assignment of one flow as its slots know it, and the drain that ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from sparkmirror.control.coordination.control_topic import ControlTopicWriter
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.commands import AssignmentDocument, Command, CommandKind
from sparkmirror.model import Member, TopicPartition


class Publication:
    """Publishes assignments under rising versions. ``frozen``: the ends of a bounded run.

    ``term`` gives the term of the run's claim. Once ``over`` is set, nothing is said to the slots
    any more. Each method may be called from any thread.
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
    ) -> None:
        self.frozen: Mapping[TopicPartition, int] | None = None
        self.version = 0
        self.member: Member | None = None
        self.draining = False
        """Whether the slots were told to finish, from here or elsewhere."""
        self.told = threading.Event()
        """Set once this process has told them."""
        self._writer = writer
        self._channel = channel
        self._run_id = run_id
        self._term = term
        self._over = over
        self._now_ms = now_ms
        self._lock = threading.Lock()
        self._publishing = threading.Lock()
        self._assignment = Assignment(flow)

    def assignment(self) -> Assignment:
        """The assignment published last."""
        with self._lock:
            return self._assignment

    def adopt(
        self, assignment: Assignment, kind: CommandKind, member: Member | None = None
    ) -> None:
        """Publish ``assignment`` under the next version, then the command that makes it known.

        Nothing is published after `drain`. Raises `MirrorError`.
        """
        version = self.version + 1
        document = AssignmentDocument(
            self._channel,
            self._run_id,
            version,
            assignment.partitions,
            self.frozen,
            member,
            self._term(),
        )
        with self._publishing:
            if self.draining:  # a later command would hide the drain from the slots
                return
            self._writer.assign(document, self._command(kind, version))
        with self._lock:
            self.version, self._assignment, self.member = version, assignment, member

    def note_halts(self, assignment: Assignment) -> None:
        """Keep ``assignment``, which differs from the published one in its halts only."""
        with self._lock:
            self._assignment = assignment

    def publish_share(self, wanted: Assignment, member: Member | None) -> int:
        """What the group gave us becomes the assignment; its version. Raises `MirrorError`.

        Nothing is published when nothing has changed, or after `drain`.
        """
        if (self.assignment().partitions, self.member) == (wanted.partitions, member):
            self.note_halts(wanted)
        else:
            self.adopt(wanted, CommandKind.REPLAN, member)
        return self.version

    def drain(self, *, again: bool) -> None:
        """Tell the slots of this run to finish; no assignment is published afterwards.

        ``again``: also when they have been told. Raises `MirrorError`.
        """
        with self._publishing:
            self.draining = True
            if self._over.is_set() or (self.told.is_set() and not again):
                return  # nobody is left to be told, or another thread has done it meanwhile
            self._writer.command(self._command(CommandKind.DRAIN, self.version))
            self.told.set()

    def _command(self, kind: CommandKind, version: int) -> Command:
        return Command(self._channel, kind, self._run_id, self._now_ms(), version=version)
