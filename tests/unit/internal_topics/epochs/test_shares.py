"""When an epoch goes on with another assignment, and when a new one must begin."""

from __future__ import annotations

import pytest

from sparkmirror.internal_topics.commands import Command, CommandKind, SourcePartition
from sparkmirror.internal_topics.epochs.shares import Growth, outdated
from sparkmirror.model import TopicPartition


def _topic(name: str, count: int, topic_id: str = "") -> tuple[SourcePartition, ...]:
    return tuple(SourcePartition(name, n, f"A.{name}", topic_id) for n in range(count))


FOUR = _topic("t", 4)


def test_a_new_topic_is_added_to_the_epoch() -> None:
    grown = Growth.begin(FOUR, 1).follow(FOUR, FOUR + _topic("u", 2), 2, slots_max=2)
    assert grown is not None
    assert (grown.base, grown.since) == (1, {TopicPartition("u", n): 2 for n in range(2)})


def test_a_topic_that_is_gone_leaves_the_epoch() -> None:
    before = FOUR + _topic("u", 1)
    grown = Growth.begin(before, 1).follow(before, FOUR, 2, slots_max=2)
    assert grown is not None
    assert grown.gone == {TopicPartition("u", 0)}


@pytest.mark.parametrize(
    ("before", "after", "why"),
    [
        ((), FOUR, "no slot runs"),
        (_topic("t", 1), _topic("t", 2), "another number of slots"),
        (FOUR, _topic("t", 1), "another number of slots"),
        (FOUR, _topic("t", 4, "new"), "the topic was made anew"),
        (FOUR, FOUR + _topic("u", 5), "uneven slots"),
    ],
)
def test_a_new_epoch_begins_for(
    before: tuple[SourcePartition, ...], after: tuple[SourcePartition, ...], why: str
) -> None:
    assert Growth.begin(before, 1).follow(before, after, 2, slots_max=2) is None, why


def test_a_new_epoch_begins_for_a_partition_that_comes_back() -> None:
    both = FOUR + _topic("u", 1)
    without = Growth.begin(both, 1).follow(both, FOUR, 2, slots_max=2)
    assert without is not None
    assert without.follow(FOUR, both, 3, slots_max=2) is None


def _command(kind: CommandKind, version: int = 0, base: int = 0) -> Command:
    return Command("A->B", kind, "r", 0, version=version, base=base)


@pytest.mark.parametrize(
    ("command", "ends"),
    [
        (None, False),
        (_command(CommandKind.RUN, 1), False),
        (_command(CommandKind.RUN, 6), True),
        (_command(CommandKind.DRAIN), True),
        (_command(CommandKind.REPLAN, 6), True),
        (_command(CommandKind.REPLAN, 5), False),
        (_command(CommandKind.REPLAN), True),
        (_command(CommandKind.EXTEND, 6, base=5), False),
        (_command(CommandKind.EXTEND, 7, base=6), True),
    ],
)
def test_which_commands_end_an_epoch_of_version_5(command: Command | None, ends: bool) -> None:
    assert outdated(command, "r", 5) is ends
    assert not outdated(command, "another run", 5)
