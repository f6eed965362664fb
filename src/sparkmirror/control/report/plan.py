"""Plan of a flow: what a run would change on the clusters. Changes nothing.

Each planner observes and plans with the functions of a running mirror, and returns their actions as
`Change`. `PLANNERS` has them in the order in which a run starts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from sparkmirror.control.report.plan_groups import groups, offset_topics
from sparkmirror.control.topics.acl_sync import observe_acls, plan_acls, unknown_acls
from sparkmirror.control.topics.config_sync import observe_configs, plan_configs
from sparkmirror.control.topics.dead_letters import plan_dead_letter_topics
from sparkmirror.control.topics.internal_topics import (
    factor_key,
    internal_names,
    may_be_smaller,
    plan_internal_topics,
)
from sparkmirror.control.topics.observation import (
    Change,
    FlowPlan,
    Observation,
    PassThrough,
    TransformTopics,
    creation,
)
from sparkmirror.control.topics.replicas import planned
from sparkmirror.control.topics.routed_topics import (
    constant_topics,
    observe_routed,
    plan_routed,
)
from sparkmirror.control.topics.sync import (
    FACTOR_KEY,
    Action,
    CreateTopic,
    GrowTopic,
    RefuseTopic,
    plan_topics,
)
from sparkmirror.errors import MirrorError
from sparkmirror.model import MirrorMode
from sparkmirror.names.routed_names import RoutedNames
from sparkmirror.names.smts import FILTER
from sparkmirror.names.transforms import (
    Transformed,
    constant_topic,
    names_topics,
    smts_on_bytes,
)
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import SmtSettings, TransformSettings
from sparkmirror.wire.admin.cluster import Cluster

__all__ = ["PLANNERS", "Planner", "plan_flow"]

Planner = Callable[[Observation], Iterator[Change]]


def plan_flow(observed: Observation) -> FlowPlan:
    """All changes of one flow. The errors of planners that fail are in ``failures``."""
    changes: list[Change] = []
    failures: list[MirrorError] = []
    passing: PassThrough | None = None
    for planner in PLANNERS:
        try:
            changes += planner(observed)
        except MirrorError as error:
            _add(failures, error)
    try:
        passing = pass_through(observed)
    except MirrorError as error:
        _add(failures, error)
    return FlowPlan(observed.flow.name, tuple(changes), tuple(failures), passing)


def _add(failures: list[MirrorError], error: MirrorError) -> None:
    if str(error) not in map(str, failures):
        failures.append(error)


def pass_through(observed: Observation) -> PassThrough | None:
    """Which of the flow's topics keep raw batches; None without transforms.

    Raises `MirrorError`.
    """
    transforms = observed.flow.transforms
    if not transforms:
        return None
    transformed, on_bytes = Transformed(observed.flow), smts_on_bytes(observed.flow)
    numbers = {topic: transformed.number(topic) for topic in observed.mirrored}
    return PassThrough(
        tuple(
            TransformTopics(
                one.name,
                tuple(topic for topic, found in numbers.items() if found == number),
                _effect_of_smts(smts) if smts else _effect(one, observed.flow),
                tuple((table.name, table.place) for table in one.tables),
            )
            for number, (one, smts) in enumerate(zip(transforms, on_bytes, strict=True))
        ),
        tuple(topic for topic, found in numbers.items() if found < 0),
    )


def _effect(one: TransformSettings, flow: FlowSettings) -> str:
    """What a transform does that raw batches do not allow, with the option that says so."""
    select = "routes records" if one.routes else "changes records"
    if flow.routed_topics_max and names_topics(one.select) and not constant_topic(one.select):
        select += f" and creates up to {flow.routed_topics_max} topics for them"
    effects = {
        "where": "leaves out records",
        "select": select,
        "python": "leaves out or changes records",
        "handler": "leaves out or changes records",
    }
    return ", ".join(f"{text} ({name})" for name, text in effects.items() if getattr(one, name))


def _effect_of_smts(smts: Sequence[SmtSettings]) -> str:
    """The same of single message transforms on bytes, with their classes."""
    effects = {"leaves out records": {FILTER}, "changes headers": {"DropHeaders", "InsertHeader"}}
    used = dict.fromkeys(one.kind for one in smts)
    told = [
        f"{text} ({', '.join(kind for kind in used if kind in kinds)})"
        for text, kinds in effects.items()
        if kinds & used.keys()
    ]
    return f"{', '.join(told)}; batches without changes stay raw, and Spark reads no records"


def internal_topics(observed: Observation) -> Iterator[Change]:
    """Internal topics to create on the target (`control.topics.internal_topics`)."""
    flow, target = observed.flow, observed.target
    missing = plan_internal_topics(flow, target.topics(internal_names(flow)))
    made, refused = planned(target, missing, factor_key(flow), may_be_smaller(flow))
    yield from (creation(target.alias, new) for new in made)
    for name, error in refused.items():
        yield Change(target.alias, "refuse", name, details={"reason": str(error)})


def dead_letters(observed: Observation) -> Iterator[Change]:
    """Dead-letter topics to create (`control.topics.dead_letters`)."""
    remote = {topic: observed.wanted.remote(topic) for topic in observed.mirrored}
    wanted = plan_dead_letter_topics(remote, observed.flow)
    present = observed.target.topics([new.name for new in wanted])
    missing = [new for new in wanted if new.name not in present]
    made, refused = planned(observed.target, missing, FACTOR_KEY)
    yield from (creation(observed.target.alias, new) for new in made)
    for name, error in refused.items():
        yield Change(observed.target.alias, "refuse", name, details={"reason": str(error)})


def topics(observed: Observation) -> Iterator[Change]:
    """Remote topics to create or grow (`control.topics.sync`)."""
    alias = observed.target.alias
    actions = plan_topics(observed.topics, observed.flow, observed.wanted)
    for action in _with_brokers(observed.target, actions):
        if isinstance(action, CreateTopic):
            left_out = {"left_out": list(action.left_out)} if action.left_out else {}
            yield creation(alias, action.new, action.topic, left_out)
        elif isinstance(action, GrowTopic):
            yield Change(
                alias,
                "grow-topic",
                action.remote_topic,
                action.topic,
                {"partitions": action.partitions, "was": action.present},
            )
        else:
            remote = observed.wanted.remote(action.topic)
            yield Change(alias, "refuse", remote, action.topic, {"reason": str(action.error)})


def _with_brokers(target: Cluster, actions: Sequence[Action]) -> Iterator[Action]:
    """``actions``; topics for which the target has too few brokers are refused."""
    new = [action.new for action in actions if isinstance(action, CreateTopic)]
    _, refused = planned(target, new, FACTOR_KEY)
    for action in actions:
        if isinstance(action, CreateTopic) and action.new.name in refused:
            yield RefuseTopic(action.topic, refused[action.new.name])
        else:
            yield action


def routed_topics(observed: Observation) -> Iterator[Change]:
    """Topics to create that SQL names for all records (`control.topics.routed_topics`)."""
    flow, alias = observed.flow, observed.target.alias
    if not flow.routed_topics_max:
        return
    names = RoutedNames(flow)
    wanted = {
        name: topic
        for name, topic in constant_topics(flow, observed.mirrored).items()
        if not names.fault(name)
    }
    if not wanted:
        return
    found = observe_routed(observed.source, observed.target, flow, wanted)
    for action in _with_brokers(observed.target, plan_routed(found, flow, wanted)):
        topic = wanted[action.topic]
        if isinstance(action, CreateTopic):
            left_out = {"left_out": list(action.left_out)} if action.left_out else {}
            yield creation(alias, action.new, topic, left_out)
        elif isinstance(action, RefuseTopic):
            yield Change(alias, "refuse", action.topic, topic, {"reason": str(action.error)})


def configs(observed: Observation) -> Iterator[Change]:
    """Configs to set or reset on existing remote topics (`control.topics.config_sync`)."""
    if observed.flow.mode is not MirrorMode.MM2 or not observed.flow.topics.sync_configs_enabled:
        return
    if not observed.remote:
        return
    alias = observed.target.alias
    found = plan_configs(
        observe_configs(observed.source, observed.target, observed.remote), observed.flow
    )
    for action in found.actions:
        for change in action.changes:
            verb = "reset-config" if change.value is None else "set-config"
            details: dict[str, object] = {"config": change.name, "was": change.present}
            if change.value is not None:
                details["value"] = change.value
            yield Change(alias, verb, action.remote_topic, action.topic, details)
    for topic, error in sorted(found.errors.items()):
        yield Change(alias, "refuse", observed.remote[topic], topic, {"reason": str(error)})


def acls(observed: Observation) -> Iterator[Change]:
    """ACLs to add to remote topics (`control.topics.acl_sync`)."""
    if observed.flow.mode is not MirrorMode.MM2 or not observed.flow.topics.sync_acls_enabled:
        return
    mirrored = observed.mirrored if observed.flow.keeps_names else None
    found, alias = observe_acls(observed.source, observed.target), observed.target.alias
    for binding in plan_acls(found, observed.wanted, mirrored):
        yield Change(alias, "add-acl", binding.name, details={"acl": str(binding)})
    for binding in unknown_acls(found.source or (), observed.wanted, mirrored):
        reason = f"{binding}: its operation or type is not known here."
        remote = observed.wanted.remote(binding.name)
        yield Change(alias, "refuse", remote, binding.name, {"reason": reason})


PLANNERS: tuple[Planner, ...] = (
    internal_topics,
    offset_topics,
    topics,
    routed_topics,
    dead_letters,
    configs,
    acls,
    groups,
)
