"""Config sync: keeps configs of remote topics equal to those of their source topics.

`wanted_changes` decides, by the rules of MirrorMaker 2 4.3, which config is set and which is reset
to its default. `plan_configs` leaves out changes that are already in effect, and configs that the
target does not know.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

from sparkmirror.control.topics.notices import Notices, first_few
from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.names.replication_policy import TopicFilter
from sparkmirror.settings import FlowSettings
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

_TOPICS_ASKED = 3
_OWN = "DYNAMIC_TOPIC_CONFIG"
# Removed in Kafka 4. Only used if the target does not show which configs it knows.
_REMOVED_IN_KAFKA_4 = frozenset({"message.format.version", "message.downconversion.enable"})


@dataclass(frozen=True, slots=True)
class ObservedConfigs:
    """Configs of source topics and remote topics, or the error of reading them.

    All mappings are by source topic. ``remote``: name of the remote topic.
    """

    remote: Mapping[str, str]
    source: Mapping[str, Configs | MirrorError]
    target: Mapping[str, Configs | MirrorError]


@dataclass(frozen=True, slots=True)
class ConfigChange:
    """One config of a remote topic. ``value`` None: reset to the target's default.

    ``present``: the current value; None if the target does not return it.
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
    """The config changes on the remote topic of source topic ``topic``."""

    topic: str
    remote_topic: str
    changes: tuple[ConfigChange, ...]


@dataclass(frozen=True, slots=True)
class ConfigPlan:
    """Changes in topic order, and what cannot be synced.

    ``errors``: by source topic. ``unknown``: configs that the target does not know, with the source
    topics that set them.
    """

    actions: tuple[AlterConfigs, ...] = ()
    errors: Mapping[str, MirrorError] = field(default_factory=dict)
    unknown: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


# --- observe ------------------------------------------------------------------------------------


def observe_configs(source: Cluster, target: Cluster, remote: Mapping[str, str]) -> ObservedConfigs:
    """Describe the topics on both sides, in batches. ``remote``: remote topic by source topic.

    A topic that was deleted meanwhile is an error of that topic. Raises `MirrorError` if a cluster
    does not respond.
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
    """The topic configs that the target's brokers know, read from one of the first ``topics``.

    None if ``topics`` is empty or none of these may be described. Raises `MirrorError`.
    """
    for described in target.topic_configs(topics[:_TOPICS_ASKED]).values():
        if not isinstance(described, MirrorError):
            return frozenset(described)
    return None


# --- plan ---------------------------------------------------------------------------------------


def wanted_changes(configs: Configs, flow: FlowSettings) -> dict[str, str | None]:
    """The changes that MirrorMaker 2 sends for these source configs: a value, or None to reset.

    Left out are configs that are read-only, sensitive, or set in the source broker's own file, and
    those named by ``config.properties.exclude``. A config at Kafka's default is reset, or set with
    ``use.defaults.from=source``. All others are set. Pure.
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
    """The changes of `wanted_changes` that are not in effect yet. Pure.

    A config named by ``sync.topic.configs.keep`` is never reset.
    """
    actions: list[AlterConfigs] = []
    errors: dict[str, MirrorError] = {}
    unknown: dict[str, list[str]] = {}
    # Topics with equal configs share one mapping object (`wire.admin.config_decoder`), so each
    # pair of mappings is compared only once.
    compared: dict[tuple[int, int], tuple[tuple[ConfigChange, ...], tuple[str, ...]]] = {}
    for topic in sorted(observed.remote):
        source, target = observed.source.get(topic, {}), observed.target.get(topic, {})
        # A topic that was deleted, or does not exist yet, is left to the next discovery.
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
    """The changes on one topic, and the configs that the target does not know."""
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
    """Whether the topic's own config is ``value``; None: whether it has no own config."""
    own = present.source == _OWN
    return not own if value is None else own and present.value == value


def config_to_create_with(
    configs: Configs, flow: FlowSettings, known: frozenset[str] | None = None
) -> tuple[dict[str, str], tuple[str, ...]]:
    """The configs to create a remote topic with, and non-default ones that the target lacks. Pure.

    The values are those of `wanted_changes`. ``known``: the configs that the target knows. None:
    all except those removed in Kafka 4, because one of them would make a current broker reject the
    creation.
    """
    wanted = {
        name: value for name, value in wanted_changes(configs, flow).items() if value is not None
    }
    unknown = wanted.keys() & _REMOVED_IN_KAFKA_4 if known is None else wanted.keys() - known
    told = tuple(sorted(name for name in unknown if not configs[name].is_default))
    return {name: value for name, value in wanted.items() if name not in unknown}, told


# --- apply --------------------------------------------------------------------------------------


def apply_configs(target: Cluster, actions: Iterable[AlterConfigs]) -> dict[str, MirrorError]:
    """Apply ``actions``; returns errors by source topic.

    Raises `MirrorError` if the target does not respond.
    """
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
    """The config sync of one flow.

    ``remote`` returns the remote topic of each mirrored topic. ``notify`` takes notices for the
    user.
    """

    def __init__(
        self,
        flow: FlowSettings,
        source: Cluster,
        target: Cluster,
        remote: Callable[[], Mapping[str, str]],
        notify: Callable[[str], None],
    ) -> None:
        self._flow = flow
        self._source = source
        self._target = target
        self._remote = remote
        self._notify = notify
        self._notices = Notices(notify)

    def round(self) -> None:
        """Compare once, and apply changes. Errors of single topics become notices.

        Raises `MirrorError` if a cluster does not respond.
        """
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
            self._notify(f"{alias}: configs brought in step: {names}")
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
