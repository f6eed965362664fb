"""Configs of remote topics, kept equal to those of their source topics: observe, plan, apply.

Which config is set and which goes back to its default is MirrorMaker 2's decision (4.3), made by
`wanted_changes`; `plan_configs` leaves out what is so already and what the target does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparkmirror.control.topics.notices import Notices, first_few
from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.model import FlowSettings
from sparkmirror.names.replication_policy import TopicFilter
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import ConfigEntry

__all__ = [
    "AlterConfigs",
    "ConfigChange",
    "ConfigPlan",
    "ConfigSync",
    "ObservedConfigs",
    "apply_configs",
    "config_to_create_with",
    "known_configs",
    "observe_configs",
    "plan_configs",
    "wanted_changes",
]

log = logging.getLogger(__name__)

Configs = Mapping[str, ConfigEntry]

_OWN = "DYNAMIC_TOPIC_CONFIG"
# Kafka 4 removed these; only asked where a target does not show what it knows.
_REMOVED_IN_KAFKA_4 = frozenset({"message.format.version", "message.downconversion.enable"})


@dataclass(frozen=True, slots=True)
class ObservedConfigs:
    """Configs of the source topics and of the remote topics, or why they could not be read.

    Both by source topic. ``remote``: the remote topic of each.
    """

    remote: Mapping[str, str]
    source: Mapping[str, Configs | MirrorError]
    target: Mapping[str, Configs | MirrorError]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One config of a remote topic. ``value`` None: back to the target's default.

    ``present``: its value now, None where the target does not tell.
    """

    name: str
    value: str | None
    present: str | None = None

    def __str__(self) -> str:
        value = "back to the default" if self.value is None else f"= {self.value}"
        was = "" if self.present is None else f" (was {self.present})"
        return f"{self.name} {value}{was}"


@dataclass(frozen=True, slots=True)
class AlterConfigs:
    """What is to change on the remote topic of ``topic``."""

    topic: str
    remote_topic: str
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """Changes in topic order; ``errors`` by source topic; ``unknown``: configs that the target does
    not have, with the source topics that set them.
    """

    actions: tuple[AlterConfigs, ...] = ()
    errors: Mapping[str, MirrorError] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# --- observe ------------------------------------------------------------------------------------


def observe_configs(source: Cluster, target: Cluster, remote: Mapping[str, str]) -> ObservedConfigs:
    """Describe the topics on both sides, in batches; ``remote``: remote topic by source topic.

    Raises `MirrorError` when a cluster does not answer. Topics that are gone meanwhile are errors
    of these topics.
    """
    with ThreadPoolExecutor(1, "configs") as pool:
        here = pool.submit(source.topic_configs, remote)
        there = target.topic_configs(remote.values(), operation="AlterConfigs")
        return ObservedConfigs(
            remote,
            here.result(),
            {topic: there[name] for topic, name in remote.items() if name in there},
        )


def known_configs(target: Cluster, topics: Sequence[str]) -> frozenset[str] | None:
    """The topic configs that the target's brokers know, told by the first of ``topics`` that may
    be described; None when none may be.
    """
    for described in target.topic_configs(topics[:1]).values():
        if not isinstance(described, MirrorError):
            return frozenset(described)
    return None


# --- plan ---------------------------------------------------------------------------------------


def wanted_changes(configs: Configs, flow: FlowSettings) -> dict[str, str | None]:
    """What MirrorMaker 2 sends for a topic with these source configs: value, or None for "delete".

    Left alone: what is read-only or sensitive, what the source broker's own file sets, and what
    ``config.properties.exclude`` names. A config at Kafka's default is deleted, or set where
    ``use.defaults.from=source``; all others are set. Pure.
    """
    copied = TopicFilter((".*",), flow.topics.config_properties_exclude)
    from_source = flow.topics.use_defaults_from == "source"
    return {
        name: None if entry.is_default and not from_source else entry.value
        for name, entry in sorted(configs.items())
        if entry.value is not None
        and not entry.read_only
        and not entry.sensitive
        and entry.source != "STATIC_BROKER_CONFIG"
        and copied.accepts(name)
    }


def plan_configs(observed: ObservedConfigs, flow: FlowSettings) -> ConfigPlan:
    """The changes that `wanted_changes` asks for and that are not so yet. Pure.

    A deletion is left out where ``sync.topic.configs.keep`` names the config.
    """
    actions: list[AlterConfigs] = []
    errors: dict[str, MirrorError] = {}
    unknown: dict[str, list[str]] = {}
    # Topics with the same configs share a mapping (`wire.admin.config_decoder`): one look at a pair
    # of them is enough for all topics that have it.
    compared: dict[tuple[int, int], tuple[tuple[ConfigChange, ...], tuple[str, ...]]] = {}
    for topic in sorted(observed.remote):
        source, target = observed.source.get(topic, {}), observed.target.get(topic, {})
        # A topic that is gone, or not there yet, is the next discovery's business.
        if isinstance(source, TopicError) or isinstance(target, TopicError):
            continue
        if isinstance(source, MirrorError):
            errors[topic] = source
            continue
        if isinstance(target, MirrorError):
            errors[topic] = target
            continue
        pair = id(source), id(target)
        if pair not in compared:
            compared[pair] = _compare(source, target, flow)
        changes, lacking = compared[pair]
        for name in lacking:
            unknown.setdefault(name, []).append(topic)
        if changes:
            actions.append(AlterConfigs(topic, observed.remote[topic], changes))
    return ConfigPlan(
        tuple(actions), errors, {name: tuple(topics) for name, topics in sorted(unknown.items())}
    )


def _compare(
    source: Configs, target: Configs, flow: FlowSettings
) -> tuple[tuple[ConfigChange, ...], tuple[str, ...]]:
    """What is to change on one topic, and the configs that its target does not know."""
    kept = TopicFilter(flow.topics.sync_configs_keep)
    changes, lacking = [], []
    for name, value in wanted_changes(source, flow).items():
        present = target.get(name)
        if present is None:
            if target and value is not None and not source[name].is_default:
                lacking.append(name)
        elif not _is_so(present, value) and not (value is None and kept.accepts(name)):
            changes.append(ConfigChange(name, value, present.value))
    return tuple(changes), tuple(lacking)


def _is_so(present: ConfigEntry, value: str | None) -> bool:
    """Whether the target has the topic's own value ``value``, or none of its own for None."""
    own = present.source == _OWN
    return not own if value is None else own and present.value == value


def config_to_create_with(
    configs: Configs, flow: FlowSettings, known: frozenset[str] | None = None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The configs a remote topic is created with, and those that the target does not know. Pure.

    As `wanted_changes` sets them. ``known``: the target's configs; None: all but those that Kafka 4
    removed, since a current broker would refuse the whole topic for one of them.
    """
    wanted = {
        name: value for name, value in wanted_changes(configs, flow).items() if value is not None
    }
    unknown = wanted.keys() & _REMOVED_IN_KAFKA_4 if known is None else wanted.keys() - known
    told = tuple(sorted(name for name in unknown if not configs[name].is_default))
    return {name: value for name, value in wanted.items() if name not in unknown}, told


# --- apply --------------------------------------------------------------------------------------


def apply_configs(target: Cluster, actions: Iterable[AlterConfigs]) -> dict[str, MirrorError]:
    """Carry out ``actions``; errors by source topic. Raises `MirrorError` without any answer."""
    by_remote = {action.remote_topic: action for action in actions}
    outcomes = target.alter_topic_configs(
        {
            name: {change.name: change.value for change in action.changes}
            for name, action in by_remote.items()
        }
    )
    return {
        by_remote[name].topic: outcome.error
        for name, outcome in outcomes.items()
        if outcome.error is not None
    }


class ConfigSync:
    """The job of one flow: each `round` compares the configs of the topics that are mirrored.

    ``remote`` gives the remote topic of each mirrored topic; ``say`` takes notices for the user.
    """

    def __init__(
        self,
        flow: FlowSettings,
        source: Cluster,
        target: Cluster,
        remote: Callable[[], Mapping[str, str]],
        say: Callable[[str], None],
    ) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._remote = remote
        self._say = say
        self._notices = Notices(say)

    def round(self) -> None:
        """One comparison. Raises `MirrorError` when a cluster does not answer."""
        remote = self._remote()
        if not remote:
            return
        plan = plan_configs(observe_configs(self._source, self._target, remote), self._flow)
        failed = apply_configs(self._target, plan.actions)
        alias = self._target.alias
        done = [action for action in plan.actions if action.topic not in failed]
        for action in done:
            log.info(
                "%s: configs of %s: %s", alias, action.remote_topic,
                ", ".join(map(str, action.changes)),
            )  # fmt: skip
        if done:
            names = first_few([action.remote_topic for action in done])
            self._say(f"{alias}: configs brought in step: {names}")
        self._notices.replace(self._complaints(plan, failed))

    def _complaints(
        self, plan: ConfigPlan, failed: Mapping[str, MirrorError]
    ) -> Iterable[tuple[str, str]]:
        alias = self._target.alias
        for name, topics in plan.unknown.items():
            line = f"{alias} does not know the config {name}; not synchronised: {first_few(topics)}"
            yield f"unknown {name}", f"{self._flow.name}: {line}"
        for topic, error in sorted({**plan.errors, **failed}.items()):
            yield topic, f"{self._flow.name}: configs of topic {topic} are not in step: {error}"
