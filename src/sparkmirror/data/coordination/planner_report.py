"""What the planner reports to the driver: which assignment all slots follow now.

The driver rejoins its consumer group only after this report about the assignment without the
partitions that it gives up. Then none of their records are in flight any more, and everything that
was copied is committed.
"""

from __future__ import annotations

import logging
import time

from sparkmirror.errors import ClusterError, MirrorError
from sparkmirror.internal_topics.commands import (
    PROGRESS_PARTITION,
    Planned,
    channel,
    control_topic,
    encode_planned,
)
from sparkmirror.model import TopicPartition
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.settings import FlowSettings, ProduceSettings
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.net.connection import ConnectionLost
from sparkmirror.wire.produce.producer import Producer

__all__ = ["PlannerReporter"]

log = logging.getLogger(__name__)

_TIMEOUT_S = 2.0
# Repeated now and then: the driver may have lost its connection at the first report.
_AGAIN_S = 5.0
# Spark asks the planner ten times a second, and each attempt opens connections.
_RETRY_S = 1.0


class PlannerReporter:
    """Writes `Planned` records; owned by the planner of one query."""

    def __init__(self, flow: FlowSettings, run_id: str) -> None:
        self._flow = flow
        self._run_id = run_id
        self._channel = channel(flow, run_id)
        self._producer: Producer | None = None
        self._reported = (-1, float("-inf"))
        self._retry_at = float("-inf")

    def report(self, version: int) -> None:
        """Report that every slot of an assignment older than ``version`` has ended.

        If the target does not accept the report, a call a second later retries.
        """
        now = time.monotonic()
        if self._reported[0] == version and now - self._reported[1] < _AGAIN_S:
            return
        if now < self._retry_at:
            return
        tp = TopicPartition(control_topic(self._flow), PROGRESS_PARTITION)
        key, value = encode_planned(Planned(self._channel, self._run_id, version))
        record = Record(0, int(time.time() * 1000), key, value)
        try:
            if self._producer is None:
                connections = ClusterConnections(self._flow.target, [tp.topic])
                self._producer = Producer(connections, ProduceSettings(enable_idempotence=False))
            self._producer.backlog.append(tp, memoryview(encode_batch([record])))
            while not self._producer.backlog.idle:
                if time.monotonic() - now > _TIMEOUT_S:
                    raise ConnectionLost("no response in time")
                self._producer.pump(0.05)
            refused = self._producer.backlog.halts.get(tp)
            if refused is not None:
                raise ClusterError(refused.reason)
        except (MirrorError, ConnectionLost) as error:
            log.warning("flow %s: the planner's report failed: %s", self._flow.name, error)
            self.close()
            self._retry_at = time.monotonic() + _RETRY_S
            return
        self._reported = (version, time.monotonic())

    def close(self) -> None:
        """Close the connections."""
        if self._producer is not None:
            self._producer.close()
            self._producer = None
