"""A member of a streams group (KIP-1071), spoken by hand: what Kafka Streams does to be in one."""

from __future__ import annotations

import threading
import uuid
from types import SimpleNamespace
from typing import Any, Self

from kafka.protocol.api_message import ApiMessage
from kafka.protocol.consumer import OffsetCommitRequest

from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from sparkmirror.wire.admin.messages import commit_error, error_code
from sparkmirror.wire.admin.requester import Requester
from tests.kafka.harness.mirror_process import wait_until

_SCHEMAS = "tests.kafka.harness.schemas"
_LEAVE = -1


class StreamsGroupHeartbeatRequest(ApiMessage, load_json=_SCHEMAS):
    """Joins, stays and leaves."""


class StreamsGroupHeartbeatResponse(ApiMessage, load_json=_SCHEMAS):
    """The tasks of the member, where they changed."""


class StreamsMember:
    """The only member of ``group``, with one subtopology that reads ``topic``.

    ``tasks``: partitions of the topic that it has. Leaves at the end of the block.
    """

    def __init__(self, cluster: KafkaCluster, group: str, topic: str) -> None:
        servers = tuple(cluster.bootstrap_servers.split(","))
        self._requester = Requester(ClusterClient("S", servers, "streams-app"))
        self._group, self._topic = group, topic
        self._id = str(uuid.uuid4())
        self._epoch = 0
        self.tasks: list[int] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._stay, daemon=True)

    def __enter__(self) -> Self:
        self._beat(topology=self._topology())
        self._thread.start()
        wait_until(lambda: self.tasks != [], "the member's tasks")
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._epoch = _LEAVE
        self._beat()
        self._requester.close()

    def commit(self, offsets: dict[int, int]) -> None:
        """Commit as the member that it is."""
        rows = OffsetCommitRequest.OffsetCommitRequestTopic
        part = rows.OffsetCommitRequestPartition

        def request() -> Any:
            return OffsetCommitRequest(
                group_id=self._group,
                generation_id_or_member_epoch=self._epoch,
                member_id=self._id,
                topics=[
                    rows(
                        name=self._topic,
                        partitions=[
                            part(
                                partition_index=number,
                                committed_offset=offset,
                                committed_leader_epoch=-1,
                                committed_metadata="",
                            )
                            for number, offset in offsets.items()
                        ],
                    )
                ],
                min_version=9,
                max_version=9,
            )

        answer = self._requester.request(
            request, "committing", group=self._group, check=commit_error
        )
        assert [row.error_code for topic in answer.topics for row in topic.partitions] == [
            0 for _ in offsets
        ]

    def _stay(self) -> None:
        while not self._ended.wait(0.5):
            self._beat()

    def _beat(self, topology: Any = None) -> None:
        mine = [_row(subtopology_id="0", partitions=self.tasks)] if self.tasks else []
        joins = topology is not None

        def request() -> Any:
            return StreamsGroupHeartbeatRequest(
                group_id=self._group,
                member_id=self._id,
                member_epoch=self._epoch,
                endpoint_information_epoch=0,
                instance_id=None,
                rack_id=None,
                rebalance_timeout_ms=60_000 if joins else -1,
                topology=topology,
                active_tasks=mine,
                standby_tasks=[],
                warmup_tasks=[],
                process_id="process" if joins else None,
                user_endpoint=None,
                client_tags=[] if joins else None,
                task_offsets=None,
                task_end_offsets=None,
                shutdown_application=False,
            )

        answer = self._requester.request(request, "heartbeat", group=self._group, check=error_code)
        if self._epoch != _LEAVE:
            self._epoch = answer.member_epoch
        if answer.active_tasks is not None:
            self.tasks = [number for task in answer.active_tasks for number in task.partitions]

    def _topology(self) -> Any:
        part = _row(
            subtopology_id="0",
            source_topics=[self._topic],
            source_topic_regex=[],
            state_changelog_topics=[],
            repartition_sink_topics=[],
            repartition_source_topics=[],
            copartition_groups=[],
        )
        return _row(epoch=0, subtopologies=[part])


def _row(**fields: Any) -> Any:
    """A structure within a message, without tags."""
    return SimpleNamespace(tags=None, **fields)
