"""Which topics of the target records may be routed to by their content (`names.transforms`).

The names come from records, so each of them is checked when it is first seen.
"""

from __future__ import annotations

from functools import lru_cache

from sparkmirror.names.regex_overlap import Names, Undecided, common_name
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.names.smts import BY_NAME, ROUTER, TIME_ROUTER
from sparkmirror.names.topic_ways import quoted, renamed_origin, ways_of
from sparkmirror.names.topics_map import name_fault
from sparkmirror.settings import FlowSettings

__all__ = ["RoutedNames"]

_NAMES_REMEMBERED = 65_536


class RoutedNames:
    """The names that one flow may route records to."""

    def __init__(self, flow: FlowSettings) -> None:
        self._flow = flow
        self._topics = FlowTopics(flow)
        self._own = {flow.offset_storage_topic} - {""}
        self._routing = tuple(
            regex for one in flow.transforms if one.routes for regex in one.topics
        )
        self._by_time = {
            number for number, one in enumerate(flow.topics.smts) if one.kind == TIME_ROUTER
        }
        # Heartbeats are not, but no record may have their names.
        self._all_routed = any(flow.topics.smts[one].predicate != BY_NAME for one in self._by_time)
        self._renames = any(one.kind == ROUTER for one in flow.topics.smts)
        self.fault = lru_cache(_NAMES_REMEMBERED)(self._fault)
        """Returns why records cannot go to a topic of this name; empty if they can."""

    def _fault(self, name: str) -> str:
        fault = name_fault(name) or self._topics.reserved(name)
        if not fault and name in self._own:
            fault = "it is the topic of the mirror's positions"
        return fault or self._loop(name) or self._mirrored(name)

    def _loop(self, name: str) -> str:
        """Whether other flows lead from this topic back to the flow."""
        for way in self._flow.returns:
            names = [name]
            for naming in way:
                topics = FlowTopics(naming)
                if not topics.accepts(names[-1]) or topics.fault(names[-1]):
                    break
                names.append(topics.remote(names[-1]))
            else:
                if self._topics.accepts(names[-1]):
                    flows = ", ".join(naming.name for naming in way)
                    return (
                        f"{flows} would mirror it back to {self._flow.source.alias} as "
                        f"'{names[-1]}', which {self._flow.name} mirrors again"
                    )
        return ""

    def _mirrored(self, name: str) -> str:
        """Whether the flow also mirrors a topic under this name without routing its records.

        Positions, offset syncs and repairs of such a topic count its records at the target.
        """
        try:
            topic = None if self._all_routed else self._origin(name)
        except Undecided:
            return (
                f"the lists and the map of {self._flow.name} are too complex to decide whether it "
                "also mirrors a topic under this name"
            )
        if topic is None:
            return ""
        return (
            f"{self._flow.name} also mirrors source topic '{topic}' under this name; "
            "exclude that topic, or choose another name"
        )

    def _origin(self, name: str) -> str | None:
        """A topic that is mirrored as ``name`` and not routed. Raises `Undecided`."""
        if self._renames:
            topic = renamed_origin(self._flow.naming, name)
            return topic if topic is not None and self._gives(topic, name) else None
        wanted = Names((quoted(name),))
        routing = Names((".*",), self._routing)
        for way in ways_of(self._flow.naming):
            if common_name((way.image, wanted)) is None:
                continue
            origin = way.origin(name)
            if origin is None:
                if common_name((*way.domain, routing)) is None:
                    continue
                raise Undecided("unknown origin")
            topic = common_name((*way.domain, origin, routing))
            if topic is not None and self._gives(topic, name):
                return topic
        return None

    def _gives(self, topic: str, name: str) -> bool:
        topics = self._topics
        if not topics.accepts(topic) or topics.fault(topic) or topics.remote(topic) != name:
            return False
        return not self._by_time or self._by_time.isdisjoint(topics.smts(topic))
