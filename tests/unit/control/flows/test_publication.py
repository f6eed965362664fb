"""Assignments under increasing versions, and epochs that end without a new one."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from sparkmirror.control.flows.publication import Publication
from sparkmirror.control.topics.sync import Assignment
from sparkmirror.internal_topics.assignments import SourcePartition
from sparkmirror.internal_topics.commands import AssignmentDocument, Command, CommandKind
from sparkmirror.model import TopicPartition
from sparkmirror.settings import Member


class Writer:
    """``written``: version, partitions and command of each assignment."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int, CommandKind]] = []
        self.documents: list[AssignmentDocument] = []
        self.commands: list[Command] = []

    def assign(self, document: AssignmentDocument, command: Command) -> None:
        assert command.version == document.version
        self.written.append((document.version, len(document.partitions), command.kind))
        self.documents.append(document)
        self.commands.append(command)

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


def _published(writer: Any, slots: int) -> Publication:
    return Publication(
        "A->B", writer, channel="A->B", run_id="r", term=lambda: 1, over=threading.Event(),
        now_ms=lambda: 5, extends_slots=slots,
    )  # fmt: skip


def _topics(**counts: int) -> Assignment:
    return Assignment(
        "A->B",
        tuple(SourcePartition(t, n, f"A.{t}") for t, count in counts.items() for n in range(count)),
    )


def test_new_topics_are_added_to_the_epoch_that_runs() -> None:
    writer: Any = Writer()
    published = _published(writer, 2)
    published.adopt(_topics(t=4), CommandKind.RUN)
    published.adopt(_topics(t=4, u=1), CommandKind.EXTEND)
    published.adopt(_topics(t=4, u=1, v=1), CommandKind.EXTEND)
    assert [kind for _, _, kind in writer.written[1:]] == [CommandKind.EXTEND] * 2
    assert [one.base for one in writer.commands] == [0, 1, 1]
    newest = writer.documents[-1]
    assert newest.base == 1
    assert newest.since == {TopicPartition("u", 0): 2, TopicPartition("v", 0): 3}
    published.replan()
    assert (writer.commands[-1].kind, writer.commands[-1].base) == (CommandKind.REPLAN, 0)
    assert (writer.documents[-1].base, writer.documents[-1].since) == (4, {})


def test_epochs_end_for_what_cannot_be_added() -> None:
    writer: Any = Writer()
    published = _published(writer, 2)
    published.adopt(_topics(t=4, u=1), CommandKind.RUN)
    published.adopt(_topics(t=4), CommandKind.EXTEND)
    published.adopt(_topics(t=4, u=1), CommandKind.EXTEND)
    kinds = [kind for _, _, kind in writer.written[1:]]
    assert kinds == [CommandKind.EXTEND, CommandKind.REPLAN]
    apart = _published(writer, 0)
    apart.adopt(_topics(t=4), CommandKind.RUN)
    apart.adopt(_topics(t=4, u=1), CommandKind.EXTEND)
    assert writer.written[-1][2] is CommandKind.REPLAN


def test_a_bounded_run_has_the_partitions_that_it_began_with() -> None:
    writer: Any = Writer()
    published = _published(writer, 2)
    published.frozen = {}
    published.adopt(_topics(t=4), CommandKind.RUN)
    published.adopt(_topics(t=4, u=1), CommandKind.EXTEND)
    assert writer.written[-1][2] is CommandKind.REPLAN


def test_after_a_failure_only_a_new_epoch_is_sure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The assignment may have been written all the same, and an epoch planned from it."""
    writer: Any = Writer()
    published = _published(writer, 2)
    published.adopt(_topics(t=4), CommandKind.RUN)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "assign", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            published.adopt(_topics(t=4, u=1), CommandKind.EXTEND)
    assert (published.version, published.assignment()) == (1, _topics(t=4))
    assert published.unsure
    published.adopt(_topics(t=4, v=1), CommandKind.EXTEND)
    assert writer.written[-1] == (3, 5, CommandKind.REPLAN)
    assert not published.unsure
    published.adopt(_topics(t=4, v=1, w=1), CommandKind.EXTEND)
    assert writer.written[-1] == (4, 6, CommandKind.EXTEND)


def test_a_share_is_published_again_after_one_whose_writing_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Slots may have read it: they have no partitions then."""
    writer: Any = Writer()
    published, member = _published(writer, 0), Member("m", 1, None, False)
    published.publish_share(_topics(t=2), member)
    with monkeypatch.context() as patch:
        patch.setattr(writer, "assign", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            published.publish_share(_topics(), None)
    assert published.publish_share(_topics(t=2), member) == 3
    assert writer.written[-1] == (3, 2, CommandKind.REPLAN)


def test_while_an_assignment_is_written_its_epoch_is_waited_for() -> None:
    """Otherwise an order that is under way seems to be over, and nobody carries it on."""
    writing, written = threading.Event(), threading.Event()

    class Slow(Writer):
        def assign(self, document: AssignmentDocument, command: Command) -> None:
            super().assign(document, command)
            if document.version > 1:
                writing.set()
                assert written.wait(10)

    writer: Any = Slow()
    published = _published(writer, 2)
    published.adopt(_topics(t=4), CommandKind.RUN)
    adds = threading.Thread(target=published.adopt, args=(_topics(t=4, u=1), CommandKind.EXTEND))
    adds.start()
    assert writing.wait(10)
    threading.Timer(0.1, written.set).start()
    assert published.base == 1
    adds.join()
