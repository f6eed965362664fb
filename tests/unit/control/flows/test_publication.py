"""Assignments under increasing versions, and epochs that end without a new one."""

from __future__ import annotations

import threading
from typing import Any

from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.assignments import SourcePartition
from sparkmirror.internal_topics.commands import AssignmentDocument, Command, CommandKind


class Writer:
    """``written``: version, partitions and command of each assignment."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int, CommandKind]] = []

    def assign(self, document: AssignmentDocument, command: Command) -> None:
        assert command.version == document.version
        self.written.append((document.version, len(document.partitions), command.kind))

    def command(self, _: Command) -> None:
        pass


def test_epochs_end_under_a_new_version_of_the_same_assignment() -> None:
    writer: Any = Writer()
    published = Publication(
        "A->B", writer, channel="A->B", run_id="r", term=lambda: 1, over=threading.Event(),
        now_ms=lambda: 5,
    )  # fmt: skip
    published.replan()
    assert writer.written == [], "no slot runs"
    found = Assignment("A->B", (SourcePartition("t", 0, "A.t"),))
    published.adopt(found, CommandKind.RUN)
    published.replan()
    assert writer.written == [(1, 1, CommandKind.RUN), (2, 1, CommandKind.REPLAN)]
    assert (published.version, published.assignment()) == (2, found)
    published.drain(again=False)
    published.replan()
    assert len(writer.written) == 2, "it would hide the drain from the slots"
