"""Heartbeats of ``source->target``: records that show that the mirror is alive.

They are written to the target, even if no flow goes there. A flow A->B mirrors the heartbeats of
B->A, which are on A, to ``A.heartbeats``; MirrorMaker 2's clients use that topic to find upstream
clusters and to count hops (``MirrorClient``, KIP-382).
"""

from __future__ import annotations

import time
from collections.abc import Callable

from sparkmirror.control.topics.compacted import CompactedTopic, create_compacted
from sparkmirror.errors import MirrorError
from sparkmirror.internal_topics.mm2_records import Heartbeat, encode_heartbeat
from sparkmirror.settings import HeartbeatSettings
from sparkmirror.wire.admin.cluster import Cluster


def heartbeats_topic(settings: HeartbeatSettings) -> CompactedTopic:
    """The topic of heartbeats, on the target. Pure."""
    key = "heartbeats.topic.replication.factor"
    return CompactedTopic(settings.topic, settings.replication_factor, key, own_times=True)


class HeartbeatJob:
    """Writes heartbeats. For one thread. ``notify`` takes one-line notices for the user."""

    def __init__(
        self,
        settings: HeartbeatSettings,
        notify: Callable[[str], None],
        *,
        now_ms: Callable[[], int] = lambda: int(time.time() * 1000),
    ) -> None:
        self.settings = settings
        self._notify = notify
        self._now_ms = now_ms
        self._target = Cluster(settings.target)
        self._topic_is_there = False

    def beat(self) -> None:
        """Write one heartbeat; the first call creates the topic. Raises `MirrorError`."""
        settings = self.settings
        if not self._topic_is_there:
            self._make_topic()
            self._topic_is_there = True
        now_ms = self._now_ms()
        key, value = encode_heartbeat(Heartbeat(settings.source, settings.target.alias, now_ms))
        try:
            self._target.produce_many(settings.topic, [(0, key, value)], timestamp_ms=now_ms)
        except MirrorError:
            self._topic_is_there = False  # it may have been deleted
            raise

    def _make_topic(self) -> None:
        settings = self.settings
        admin = Cluster(settings.target_admin)
        try:
            told = create_compacted(admin, heartbeats_topic(settings))
        finally:
            admin.close()
        if told:
            self._notify(told)

    def close(self) -> None:
        """Close the connection for good."""
        self._target.close(for_good=True)
