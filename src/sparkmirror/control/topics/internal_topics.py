"""Creates internal topics on the target: control, orders, gap records, names, Connect's offsets."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from sparkmirror.control.coordination.orders_topic import ORDERS_PARTITIONS, orders_topic
from sparkmirror.control.topics.compacted import COMPACTED
from sparkmirror.control.topics.replicas import (
    alive,
    ask_for,
    fewer_told,
    too_few_brokers,
)
from sparkmirror.errors import Denied, MirrorError, TooFewBrokers, TopicError
from sparkmirror.internal_topics.commands import CONTROL_PARTITIONS, control_topic
from sparkmirror.internal_topics.connect_offsets import offsets_topic
from sparkmirror.internal_topics.gaps import GAPS_PARTITIONS, gaps_topic
from sparkmirror.internal_topics.remote_names import REMOTE_NAMES_TOPIC
from sparkmirror.model import MirrorMode
from sparkmirror.settings import FlowSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import NewTopic, TopicView

__all__ = [
    "create_internal_topics",
    "factor_key",
    "internal_names",
    "may_be_smaller",
    "offset_storage_topic",
    "plan_internal_topics",
]

# The controller reports a topic as created before the brokers know it, and they know it before it
# has a leader. Either may take a busy broker seconds. A topic that stays invisible may be one that
# this client may not describe; that is reported elsewhere (`control.permissions.missing`).
_UNSEEN_S_MAX = 8.0
_LEADERLESS_S_MAX = 30.0
_ASK_AGAIN_S = 0.05


def offset_storage_topic(flow: FlowSettings) -> str:
    """MirrorMaker 2's offset storage topic of ``flow``, on its target."""
    return flow.offset_storage_topic or offsets_topic(flow.source.alias)


def plan_internal_topics(flow: FlowSettings, present: dict[str, TopicView]) -> list[NewTopic]:
    """The internal topics of ``flow`` that are missing on its target. Pure."""
    factor = flow.offset_storage_replication_factor
    missing = []
    if control_topic(flow) not in present:
        configs = {
            **COMPACTED,
            # Progress is written every second; only small segments are compacted soon.
            "segment.bytes": str(16 * 1024 * 1024),
            "segment.ms": str(10 * 60 * 1000),
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": str(60 * 60 * 1000),
        }
        missing.append(NewTopic(control_topic(flow), CONTROL_PARTITIONS, factor, configs))
    if orders_topic(flow) not in present:
        missing.append(NewTopic(orders_topic(flow), ORDERS_PARTITIONS, factor, COMPACTED))
    if gaps_topic(flow) not in present:
        missing.append(NewTopic(gaps_topic(flow), GAPS_PARTITIONS, factor, COMPACTED))
    if flow.keeps_names and REMOTE_NAMES_TOPIC not in present:
        missing.append(NewTopic(REMOTE_NAMES_TOPIC, 1, factor, COMPACTED))
    storage = offset_storage_topic(flow)
    if flow.mode is MirrorMode.MM2 and storage not in present:
        missing.append(NewTopic(storage, flow.offset_storage_partitions, factor, COMPACTED))
    return missing


def factor_key(flow: FlowSettings) -> str:
    """The setting with the number of replicas of the internal topics."""
    return f"{flow.target.alias}.offset.storage.replication.factor"


def may_be_smaller(flow: FlowSettings) -> frozenset[str]:
    """The topics that get fewer replicas than configured if there are too few brokers.

    Those of control and orders hold little that outlives a run, and those of gap records and names
    must not keep a mirror from starting. The offset storage topic is not among them.
    """
    return frozenset(internal_names(flow)) - {offset_storage_topic(flow)}


def internal_names(flow: FlowSettings) -> list[str]:
    """The names of all topics that `plan_internal_topics` may create."""
    return [
        *(control_topic(flow), orders_topic(flow)),
        *(gaps_topic(flow), offset_storage_topic(flow)),
        *([REMOTE_NAMES_TOPIC] if flow.keeps_names else []),
    ]


def create_internal_topics(
    target: Cluster, flow: FlowSettings, *, wait: Callable[[float], None] = time.sleep
) -> list[str]:
    """Create the missing internal topics; returns a notice per topic created.

    Existing topics are not changed, except that a control topic with too few partitions (created by
    the broker's auto-creation) is grown. New topics can normally be read on return; ``wait``
    (seconds) is called between two checks. If the orders topic may not be created, a notice says
    so. Raises `TooFewBrokers` if the offset storage topic cannot have its replicas, and another
    `MirrorError` for any other failure: the mirror cannot work without these topics.
    """
    names = internal_names(flow)
    present = target.topics(names)
    done, made = [], []
    missing = plan_internal_topics(flow, present)
    outcomes, asked = ask_for(target, missing, target.create_topics, may_be_smaller(flow))
    for new in missing:
        topic, outcome = new.name, outcomes[new.name]
        if isinstance(outcome.error, Denied) and topic == orders_topic(flow):
            done.append(
                f"{flow.name}: pause, resume and drain need Write on {control_topic(flow)}, as the "
                f"topic of orders cannot be created: {outcome.error}"
            )
            continue
        if isinstance(outcome.error, TooFewBrokers):
            key, brokers, said = factor_key(flow), alive(target), outcome.error
            raise too_few_brokers(target.alias, new, key, brokers, said) from said
        if outcome.error is not None:
            raise outcome.error
        made.append(topic)
        told = fewer_told(new, asked[topic])
        done.append(f"{target.alias}: created internal topic {topic}{told}")
    _wait_until_known(target, made, wait)
    control = present.get(control_topic(flow))
    if control is not None and control.partitions < CONTROL_PARTITIONS:
        error = target.grow_topics({control.name: CONTROL_PARTITIONS})[control.name].error
        if error is not None:
            raise _too_few(control, error) from error
    return done


def _wait_until_known(
    target: Cluster, made: Collection[str], wait: Callable[[float], None]
) -> None:
    waited_s = 0.0
    while True:
        seen = target.topics(made)
        hidden = seen.keys() < set(made)
        if not hidden and not any(view.leaderless for view in seen.values()):
            return
        if waited_s >= (_UNSEEN_S_MAX if hidden else _LEADERLESS_S_MAX):
            return
        wait(_ASK_AGAIN_S)
        waited_s += _ASK_AGAIN_S


def _too_few(control: TopicView, error: MirrorError) -> TopicError:
    return TopicError(
        f"the control topic has {control.partitions} of {CONTROL_PARTITIONS} partitions and cannot "
        f"grow: {error.what}",
        where=f"{error.where}, topic {control.name}",
        do=error.do,
    )
