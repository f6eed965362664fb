"""Single message transforms (SMTs) of MirrorMaker 2 files, as far as topic names decide about them.

In MirrorMaker 2, the source task names the remote topic, and the chain of SMTs processes the record
after that. So RegexRouter and TopicNameMatches see the remote name, and each of them the name that
those before it gave. All this depends on the topic alone: a topic of which no SMT changes or leaves
out records stays raw batches, under its new name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.topics_map import parse_name
from sparkmirror.transform_settings import SmtSettings

__all__ = [
    "BY_NAME",
    "FILTER",
    "ROUTER",
    "TIME_ROUTER",
    "Passage",
    "SmtChain",
    "by_topic",
    "conditions",
    "variants",
]

FILTER, ROUTER, TIME_ROUTER = "Filter", "RegexRouter", "TimestampRouter"
BY_NAME = "TopicNameMatches"


@dataclass(frozen=True, slots=True)
class Passage:
    """What a chain does to one topic.

    ``name``: the topic to which records go. ``steps``: numbers of the SMTs that apply to its
    records, in order; some of these have predicates that each record decides. RegexRouter is not
    among them. After a Filter that leaves out all records, there are none.
    """

    name: str
    steps: tuple[int, ...]


def by_topic(one: SmtSettings) -> bool:
    """Whether the topic's name alone decides if ``one`` applies."""
    return one.predicate in ("", BY_NAME)


class SmtChain:
    """The compiled SMTs of one flow. Raises ConfigError for regexes that cannot be compiled."""

    def __init__(self, smts: Iterable[SmtSettings]) -> None:
        self._smts = tuple(smts)
        self._routers = {
            number: _Router(one) for number, one in enumerate(self._smts) if one.kind == ROUTER
        }
        self._patterns = {
            number: compile_regex(one.argument)
            for number, one in enumerate(self._smts)
            if one.predicate == BY_NAME
        }

    def passage(self, name: str, *, heartbeats: bool = False) -> Passage:
        """What the chain does to the topic with the remote name ``name``.

        ``heartbeats``: TimestampRouter does not apply. Heartbeats keep their names.
        """
        steps: list[int] = []
        for number, one in enumerate(self._smts):
            if heartbeats and one.kind == TIME_ROUTER:
                continue
            pattern = self._patterns.get(number)
            if pattern is not None and (pattern.fullmatch(name) is None) is not one.negate:
                continue
            router = self._routers.get(number)
            if router is not None:
                name = router.name(name)
                continue
            steps.append(number)
            if one.kind == FILTER and by_topic(one):
                break
        return Passage(name, tuple(steps))


class _Router:
    """RegexRouter: if its regex matches the whole name, Java's ``Matcher.replaceFirst``.

    That searches again and takes the first match, which may be a part of the name: ``A|A.t`` turns
    ``A.t`` into ``x.t``, not into ``x``.
    """

    def __init__(self, one: SmtSettings) -> None:
        self._pattern = compile_regex(one.regex)
        self._parts = parse_name(one.replacement, self._pattern.groups, self._pattern.groupindex)

    def name(self, topic: str) -> str:
        if self._pattern.fullmatch(topic) is None:
            return topic
        match = self._pattern.search(topic)
        if match is None:
            return topic
        given = (one if isinstance(one, str) else match[one] or "" for one in self._parts)
        return topic[: match.start()] + "".join(given) + topic[match.end() :]


def variants(smts: Sequence[SmtSettings]) -> list[tuple[int, ...]]:
    """Every `Passage.steps` that a topic may have, without the empty one; shortest first.

    Their number doubles with each condition on topic names (`conditions`), and if there is a
    TimestampRouter, which does not apply to heartbeats.
    """
    found = set()
    known = conditions(smts)
    by_time = any(one.kind == TIME_ROUTER for one in smts)
    for heartbeats, *truths in product((False, True), repeat=1 + len(known)):
        if heartbeats and not by_time:
            continue
        true = dict(zip(known, truths, strict=True))
        steps: list[int] = []
        for number, one in enumerate(smts):
            if one.kind == ROUTER or (heartbeats and one.kind == TIME_ROUTER):
                continue
            if one.predicate == BY_NAME and true[_condition(smts, number)] is one.negate:
                continue
            steps.append(number)
            if one.kind == FILTER and by_topic(one):
                break
        found.add(tuple(steps))
    return sorted(found - {()}, key=lambda steps: (len(steps), steps))


def conditions(smts: Sequence[SmtSettings]) -> list[tuple[str, int]]:
    """The conditions on topic names on which it depends what happens to records.

    Each is a pattern and the number of RegexRouters before it: two with the same pattern differ if
    the name changes between them.
    """
    found = (
        _condition(smts, number)
        for number, one in enumerate(smts)
        if one.predicate == BY_NAME and one.kind != ROUTER
    )
    return list(dict.fromkeys(found))


def _condition(smts: Sequence[SmtSettings], number: int) -> tuple[str, int]:
    return smts[number].argument, sum(one.kind == ROUTER for one in smts[:number])
