"""The planner writes which of its plans counts (`internal_topics.epochs.record`)."""

from __future__ import annotations

import logging
import secrets
import time

from sparkmirror.data.coordination.control_reader import ControlWatch
from sparkmirror.data.coordination.sealed_options import run_key
from sparkmirror.errors import MirrorError, TopicError
from sparkmirror.internal_topics.commands import COMMAND_PARTITION, channel, control_topic
from sparkmirror.internal_topics.epochs.record import EpochRecord, encode_epoch
from sparkmirror.internal_topics.signing import Signer
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FlowSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.producer import Producer

__all__ = ["begin_epoch"]

log = logging.getLogger(__name__)

_POLL_S = 0.05
_AGAIN_S = 0.5
_WAITS_S = 10.0


def begin_epoch(flow: FlowSettings, run_id: str, watch: ControlWatch) -> EpochRecord:
    """Write the record of a new plan; returns it once it is the newest in the control topic.

    ``watch``: the planner's; it has read the topic to the end then. Waits for a target that does
    not respond, or takes nothing now. Raises `TopicError` if the topic refuses the record.
    """
    while True:
        known = 0 if watch.epoch is None else watch.epoch.number
        record = EpochRecord(channel(flow, run_id), run_id, known + 1, secrets.token_hex(8))
        _write(flow, record)
        while not _read_to_end(watch):
            time.sleep(_AGAIN_S)
        if watch.epoch == record:
            return record
        # Another planner of this run was faster, or the topic has lost the record.
        log.warning("flow %s: the record of an epoch is written again", flow.name)


def _read_to_end(watch: ControlWatch) -> bool:
    try:
        watch.catch_up()
    except TimeoutError as error:
        log.warning("flow %s: an epoch cannot begin yet: %s", watch.flow.name, error)
        return False
    return True


def _write(flow: FlowSettings, record: EpochRecord) -> None:
    tp = TopicPartition(control_topic(flow), COMMAND_PARTITION)
    signer = Signer(run_key()) if flow.signed else None
    batch = encode_batch([Record(0, int(time.time() * 1000), *encode_epoch(record, signer))])
    while not _written(flow, tp, memoryview(batch)):
        time.sleep(_AGAIN_S)


def _written(flow: FlowSettings, tp: TopicPartition, batch: memoryview) -> bool:
    """Whether ``batch`` is acknowledged. Raises `TopicError`."""
    connections = ClusterConnections(flow.target, [tp.topic])
    # A record that arrives twice says the same. So it needs no producer id.
    producer = Producer(connections, ProduceSettings(enable_idempotence=False))
    warn_at = time.monotonic() + _WAITS_S
    try:
        producer.backlog.append(tp, batch)
        while not producer.backlog.idle:
            producer.pump(_POLL_S)
            if time.monotonic() > warn_at:
                warn_at += _WAITS_S
                log.warning("flow %s: an epoch cannot begin yet: no response", flow.name)
    except (MirrorError, ConnectionLost) as error:
        log.warning("flow %s: an epoch cannot begin yet: %s", flow.name, error)
        return False
    finally:
        producer.close()
        connections.close()
    halt = producer.backlog.halts.get(tp)
    if halt is not None and halt.retriable:
        # For example too few replicas, or no leader: a query that fails for it is not restarted.
        log.warning("flow %s: an epoch cannot begin yet: %s", flow.name, halt.reason)
        return False
    if halt is not None:
        raise TopicError(
            f"no epoch can begin: {halt.reason}", where=f"cluster {flow.target.alias}, topic {tp}"
        )
    return True
