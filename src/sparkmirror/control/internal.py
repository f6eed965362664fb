"""The mirror's own topics on the target: control topic, gap records, Connect's offsets."""

from __future__ import annotations

from sparkmirror.control.compacted import COMPACTED
from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.model import FlowSettings, MirrorMode
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.connect_offsets import offsets_topic
from sparkmirror.wire.gaps import GAPS_PARTITIONS, gaps_topic
from sparkmirror.wire.signals import CONTROL_PARTITIONS, control_topic
from sparkmirror.wire.views import NewTopic, TopicView

__all__ = ["create_internal_topics", "offset_storage_topic", "plan_internal_topics"]

_FACTOR_KEY = "offset.storage.replication.factor"


def offset_storage_topic(flow: FlowSettings) -> str:
    """MirrorMaker 2's offset storage topic of ``flow``, on its target."""
    return flow.offset_storage_topic or offsets_topic(flow.source.alias)


def plan_internal_topics(
    flow: FlowSettings, present: dict[str, TopicView], brokers: int
) -> list[NewTopic]:
    """The internal topics of ``flow`` that are missing on its target. Pure.

    The control topic holds nothing that outlives a run, and gap records stop no mirror: they make
    do with the brokers there are. The offset storage topic gets exactly the replication factor
    asked for.
    """
    factor = flow.offset_storage_replication_factor
    missing = []
    if control_topic(flow) not in present:
        configs = {
            **COMPACTED,
            # Progress comes every second: without small segments nothing would be compacted soon.
            "segment.bytes": str(16 * 1024 * 1024),
            "segment.ms": str(10 * 60 * 1000),
            "min.cleanable.dirty.ratio": "0.1",
            "delete.retention.ms": str(60 * 60 * 1000),
        }
        replicas = min(factor, brokers)
        missing.append(NewTopic(control_topic(flow), CONTROL_PARTITIONS, replicas, configs))
    if gaps_topic(flow) not in present:
        replicas = min(factor, brokers)
        missing.append(NewTopic(gaps_topic(flow), GAPS_PARTITIONS, replicas, COMPACTED))
    storage = offset_storage_topic(flow)
    if flow.mode is MirrorMode.MM2 and storage not in present:
        if factor > brokers:
            raise TopicError(
                f"the topic cannot be created: {_FACTOR_KEY} is {factor}, but the cluster has "
                f"{brokers} broker{'s' if brokers != 1 else ''}.",
                where=f"cluster {flow.target.alias}, topic {storage}",
                do=f"Set {flow.target.alias}.{_FACTOR_KEY} to {brokers} or less.",
            )
        missing.append(NewTopic(storage, flow.offset_storage_partitions, factor, COMPACTED))
    return missing


def create_internal_topics(target: Cluster, flow: FlowSettings) -> list[str]:
    """Create what is missing; one line per topic made. Existing topics are left as they are.

    Raises `MirrorError`: nothing works without these topics. A control topic with too few
    partitions (made by the broker's auto-creation) is grown.
    """
    names = [control_topic(flow), gaps_topic(flow), offset_storage_topic(flow)]
    present = target.topics(names)
    brokers = len(target.describe().brokers)
    done = []
    for topic, outcome in target.create_topics(
        plan_internal_topics(flow, present, brokers)
    ).items():
        if outcome.error is not None:
            raise outcome.error
        done.append(f"{target.alias}: created internal topic {topic}")
    control = present.get(control_topic(flow))
    if control is not None and control.partitions < CONTROL_PARTITIONS:
        error = target.grow_topics({control.name: CONTROL_PARTITIONS})[control.name].error
        if error is not None:
            raise _too_few(control, error) from error
    return done


def _too_few(control: TopicView, error: MirrorError) -> TopicError:
    return TopicError(
        f"the control topic has {control.partitions} of {CONTROL_PARTITIONS} partitions and cannot "
        f"grow: {error.what}",
        where=f"{error.where}, topic {control.name}",
        do=error.do,
    )
