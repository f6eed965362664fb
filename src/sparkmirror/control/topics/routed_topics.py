"""Creates topics that records are routed to and that the target lacks.

A slot that meets such a name asks (`internal_topics.routed_topics`). Each topic is created like the
remote topic of the source topic whose records go there. Names come from records, so their number is
limited, and each is checked again (`names.routed_names`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from sparkmirror.control.topics.config_sync import known_configs
from sparkmirror.control.topics.sync import (
    Action,
    ObservedTopics,
    RefuseTopic,
    apply_topics,
    passing,
    plan_creation,
)
from sparkmirror.errors import MirrorError, TooFewBrokers, TopicError
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, control_topic
from sparkmirror.internal_topics.routed_topics import RoutedTopics, TopicRequest, decode_routed
from sparkmirror.names.routed_names import RoutedNames
from sparkmirror.names.transforms import Transformed, constant_topic
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster

# An answer is one record: some 40 KB of reasons.
_REFUSED_KEPT = 200
_TOLD_MAX = 100
_WAIT_S = 0.5


def constant_topics(flow: FlowSettings, topics: Iterable[str]) -> dict[str, str]:
    """The topics that the transforms of ``topics`` name for all records: a source topic by name.

    Pure. Raises ConfigError if several transforms match a topic.
    """
    transformed = Transformed(flow)
    found: dict[str, str] = {}
    for topic in topics:
        number = transformed.number(topic)
        name = constant_topic(flow.transforms[number].select) if number >= 0 else ""
        if name:
            found.setdefault(name, topic)
    return found


def observe_routed(
    source: Cluster, target: Cluster, flow: FlowSettings, wanted: Mapping[str, str]
) -> ObservedTopics:
    """What is needed to create those of ``wanted`` that are missing. Raises `MirrorError`.

    ``wanted``: source topic by name on the target.
    """
    there = target.topics(wanted)
    missing = {topic for name, topic in wanted.items() if name not in there}
    if not missing:
        return ObservedTopics({}, there)
    return ObservedTopics(
        source.topics(missing),
        there,
        source.topic_configs(missing),
        known_configs(target, [control_topic(flow), *there]),
    )


def plan_routed(
    observed: ObservedTopics, flow: FlowSettings, wanted: Mapping[str, str]
) -> list[Action]:
    """Actions for ``wanted``, each with the name on the target as its topic. Pure."""
    actions: list[Action] = []
    for name, topic in wanted.items():
        if name in observed.target:
            continue
        view = observed.source.get(topic)
        if view is None:
            where = f"cluster {flow.source.alias}, topic {topic}"
            actions.append(RefuseTopic(name, TopicError("the topic does not exist.", where=where)))
        else:
            actions.append(replace(plan_creation(view, name, observed, flow), topic=name))
    return actions


class RoutedTopicsJob:
    """Creates topics of one flow on request. `take` may be called by any thread.

    ``publish`` writes the answer to the slots and may raise `MirrorError`. ``channel``: see
    `internal_topics.commands.channel`.
    """

    def __init__(
        self,
        flow: FlowSettings,
        run_id: str,
        channel: str,
        source: Cluster,
        target: Cluster,
        *,
        publish: Callable[[RoutedTopics], None],
        notify: Callable[[str], None],
    ) -> None:
        self._flow = flow
        self._run_id = run_id
        self._channel = channel
        self._source, self._target = source, target
        self._publish = publish
        self._notify = notify
        self._names = RoutedNames(flow)
        self._transformed = Transformed(flow)
        self._lock = threading.Lock()
        self._woken = threading.Event()
        self._asked: list[TopicRequest] = []
        self._answer = RoutedTopics(channel, run_id)
        self._said: set[str] = set()

    @property
    def used(self) -> bool:
        """Whether the flow routes records and may create topics for them."""
        return bool(self._flow.routed_topics_max) and any(
            one.routes for one in self._flow.transforms
        )

    def begin(self, reader: Cluster, topics: Iterable[str]) -> None:
        """Create the topics that SQL names for all records of ``topics``.

        ``reader`` reads the control topic, which has the names that earlier runs have created.
        Raises `MirrorError`.
        """
        if not self.used:
            return
        records = reader.read_compacted(
            control_topic(self._flow), partitions=[COMMAND_PARTITION], passes=True
        )
        for _, key, value in records:
            before = decode_routed(self._channel, key, value)
            if before is not None:
                self._answer = replace(self._answer, created=before.created)
        wanted = constant_topics(self._flow, topics)
        self._create({name: one for name, one in wanted.items() if not self._names.fault(name)})

    def take(self, requests: Iterable[TopicRequest]) -> None:
        """Take requests of this run's slots."""
        with self._lock:
            self._asked += requests
        self._woken.set()

    def wait(self, _failed: bool) -> None:
        """Wait for a request, for a moment."""
        self._woken.wait(_WAIT_S)
        self._woken.clear()

    def step(self) -> None:
        """Create what was asked for, and answer. Raises `MirrorError`; slots then ask again."""
        with self._lock:
            asked, self._asked = self._asked, []
        if not asked:
            return
        faults: dict[str, str] = {}
        wanted: dict[str, str] = {}
        for name, topic in ((name, one.topic) for one in asked for name in one.names):
            fault = self._names.fault(name)
            if fault:
                faults[name] = fault
            elif self._transformed.routes(topic):
                wanted.setdefault(name, topic)
        there = self._target.topics(wanted)
        missing = {name: topic for name, topic in wanted.items() if name not in there}
        allowed = self._allowed(missing)
        errors = self._create(allowed)
        before = self._answer
        made = [name for name in allowed if name not in errors and name not in before.created]
        created = (*before.created, *made)
        refused = {name: why for name, why in before.refused.items() if name not in wanted}
        # What may succeed soon is no fault of the records: slots wait, and ask again.
        # Too few brokers may be too few for good.
        lasting = {
            name: str(one)
            for name, one in errors.items()
            if not passing(one) or isinstance(one, TooFewBrokers)
        }
        refused |= faults | lasting
        self._answer = replace(
            before,
            created=created,
            full=len(created) >= self._flow.routed_topics_max,
            refused=dict(list(refused.items())[-_REFUSED_KEPT:]),
            answered={**before.answered, **{one.slot: one.number for one in asked}},
        )
        self._publish(self._answer)
        if self._answer.full:
            self._tell(
                f"{self._flow.name}: {len(created)} topics were created for routed records; "
                "sparkmirror.routing.create.topics.max allows no more"
            )

    def _allowed(self, missing: Mapping[str, str]) -> dict[str, str]:
        """Those of ``missing`` that may be created; forgets created topics that are gone."""
        created = self._answer.created
        room = self._flow.routed_topics_max - len(created)
        if sum(name not in created for name in missing) > room:
            there = self._target.topics(created)
            created = tuple(name for name in created if name in there)
            self._answer = replace(self._answer, created=created)
            room = self._flow.routed_topics_max - len(created)
        new = [name for name in missing if name not in created][: max(0, room)]
        return {name: topic for name, topic in missing.items() if name in created or name in new}

    def _create(self, wanted: Mapping[str, str]) -> Mapping[str, MirrorError]:
        """Create those of ``wanted`` that are missing; returns errors by name."""
        if not wanted:
            return {}
        observed = observe_routed(self._source, self._target, self._flow, wanted)
        # Slots wait for the answer, all of them, and ask again after a refusal that may pass.
        actions = plan_routed(observed, self._flow, wanted)
        errors, done = apply_topics(self._target, actions, patience_s=0)
        for line in done:
            self._notify(line)
        for name, error in errors.items():
            self._tell(f"{self._flow.name}: no topic {name} for routed records: {error}")
        return errors

    def _tell(self, line: str) -> None:
        """Report a problem once; not as many as records have names."""
        if line not in self._said and len(self._said) < _TOLD_MAX:
            self._said.add(line)
            self._notify(line)
