"""Which transform of a flow processes a topic."""

from __future__ import annotations

from sparkmirror.errors import ConfigError
from sparkmirror.model import FlowSettings
from sparkmirror.names.java_regex import compile_list
from sparkmirror.names.replication_policy import FlowTopics

__all__ = ["Transformed"]


class Transformed:
    """The transforms of one flow by source topic."""

    def __init__(self, flow: FlowSettings) -> None:
        self._lists = [compile_list(one.topics) for one in flow.transforms]
        self._names = [one.name for one in flow.transforms]
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
