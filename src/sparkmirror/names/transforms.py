"""Which transform of a flow processes a topic, and whether it routes the records."""

from __future__ import annotations

import re
from collections.abc import Iterable

from sparkmirror.errors import ConfigError, TopicError
from sparkmirror.names.java_regex import compile_list
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.smts import TIME_ROUTER
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import SmtSettings

__all__ = [
    "Transformed",
    "constant_topic",
    "names_topics",
    "needs_spark",
    "routes",
    "smts_on_bytes",
    "unclear_topics",
]

_ALIAS = re.compile(r"(?is)\S.*(?<![\w.`])as\s+`?(topic|partition)`?\s*$")
_CONSTANT = re.compile(r"""(?is)\s*(?:'([\w.-]+)'|"([\w.-]+)")\s+as\s+`?topic`?\s*""")
_QUOTED = re.compile(r"""(?s)('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|--[^\n]*|/\*.*?\*/""")


def routes(select: str) -> bool:
    """Whether ``select`` names a column ``topic`` or ``partition``: ``… AS topic``.

    The control plane must know it, and has no Spark. Spark checks it when it starts
    (`data.transform.plan`).
    """
    return bool(_aliases(select))


def smts_on_bytes(flow: FlowSettings) -> list[tuple[SmtSettings, ...]]:
    """By transform of ``flow``: the SMTs that the sink applies to raw batches.

    Empty for SQL, functions and handlers, and with TimestampRouter, which is SQL: Java's formats of
    times are translated into it.
    """
    smts = flow.topics.smts
    found = []
    for one in flow.transforms:
        steps = tuple(smts[number] for number in one.steps) if smts else ()
        found.append(() if any(each.kind == TIME_ROUTER for each in steps) else steps)
    return found


def needs_spark(flow: FlowSettings) -> bool:
    """Whether Spark computes any of the flow's transforms: handlers and SMTs are the sink's."""
    return any(
        not one.handler and not smts
        for one, smts in zip(flow.transforms, smts_on_bytes(flow), strict=True)
    )


def names_topics(select: str) -> bool:
    """Whether ``select`` names the topic of each record: ``… AS topic``."""
    return "topic" in _aliases(select)


def _aliases(select: str) -> set[str]:
    plain = _QUOTED.sub(lambda match: "''" if match[1] else " ", select)
    found = map(_ALIAS.search, _columns(plain))
    return {one[1].lower() for one in found if one is not None}


def constant_topic(select: str) -> str:
    """The topic that ``select`` names for all records: ``'name' AS topic``; empty if it does not.

    It may miss some: those are topics like any other that a record names.
    """
    if not names_topics(select):
        return ""
    hidden = _QUOTED.sub(lambda match: "x" * len(match[0]), select)
    found = filter(None, map(_CONSTANT.fullmatch, _columns(select, hidden)))
    return next((one[1] or one[2] for one in found), "")


def _columns(select: str, plain: str = "") -> list[str]:
    """The columns of a list in SQL. ``plain``: it without text and comments, if it has any."""
    found, depth = [""], 0
    for char, shown in zip(select, plain or select, strict=True):
        depth += (shown in "([{") - (shown in ")]}")
        if shown == "," and not depth:
            found.append("")
        else:
            found[-1] += char
    return found


class Transformed:
    """The transforms of one flow by source topic."""

    def __init__(self, flow: FlowSettings) -> None:
        self._lists = [compile_list(one.topics) for one in flow.transforms]
        self._names = [one.name for one in flow.transforms]
        self._routes = [one.routes for one in flow.transforms]
        self._flow = flow.name
        self._smts = FlowTopics(flow) if flow.topics.smts else None
        self._steps = [one.steps for one in flow.transforms]
        self._known: dict[str, int] = {}

    def number(self, topic: str) -> int:
        """The number of the transform that processes source topic ``topic``, -1 for none.

        Raises ConfigError if several match: the file's regexes were too complex to compare.
        """
        found = self._known.get(topic)
        if found is None:
            found = self._known[topic] = self._search(topic)
        return found

    def routes(self, topic: str) -> bool:
        """Whether records of source topic ``topic`` may go to any topic and partition.

        Raises as `number`.
        """
        number = self.number(topic)
        return number >= 0 and self._routes[number]

    def _search(self, topic: str) -> int:
        steps = () if self._smts is None else self._smts.smts(topic)
        if steps:
            return self._steps.index(steps)
        matching = [
            number
            for number, regex in enumerate(self._lists)
            if regex is not None and regex.fullmatch(topic)
        ]
        if len(matching) > 1:
            names = " and ".join(self._names[number] for number in matching)
            raise ConfigError(
                f"topic {topic} matches the transforms {names}.",
                where=f"flow {self._flow}",
                do="Write lists that have no topic in common.",
            )
        return matching[0] if matching else -1


def unclear_topics(flow: FlowSettings, topics: Iterable[str]) -> dict[str, TopicError]:
    """Those of the source's ``topics`` that several transforms match, and the error of each.

    Which transform applies would be a guess, and without one, data could pass that must not.
    """
    if len(flow.transforms) < 2:
        return {}
    transformed, found = Transformed(flow), {}
    for topic in topics:
        try:
            transformed.number(topic)
        except ConfigError as error:
            found[topic] = TopicError(
                error.what, where=f"cluster {flow.source.alias}, topic {topic}", do=error.do
            )
    return found
