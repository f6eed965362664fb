"""What an assignment may request: partitions that the flow selects, under the policy's names.

The assignment comes from the control topic, and others may be able to write there. They cannot
write the settings, so the settings decide: nobody can make a mirror copy what its file leaves out,
or copy it to another topic.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sparkmirror.internal_topics.commands import SourcePartition
from sparkmirror.names.replication_policy import FlowTopics
from sparkmirror.settings import FlowSettings

__all__ = ["TopicSelection"]

log = logging.getLogger(__name__)

# Brokers mark these as internal, and no flow mirrors them; but a regex such as .* matches them.
_BROKERS_OWN = {
    "__cluster_metadata",
    "__consumer_offsets",
    "__share_group_state",
    "__transaction_state",
}
_NAMED_MAX = 5


class TopicSelection:
    """The topics of one flow according to its settings; checks assignments."""

    def __init__(self, flow: FlowSettings) -> None:
        self._flow = flow
        self._topics: FlowTopics | None = None
        self._seen: dict[tuple[str, str], bool] = {}

    def keep(self, partitions: Sequence[SourcePartition]) -> tuple[SourcePartition, ...]:
        """``partitions`` without those that the flow does not mirror this way; these are logged."""
        kept = tuple(one for one in partitions if self._carries(one))
        if len(kept) < len(partitions):
            dropped = [one for one in partitions if not self._carries(one)]
            # The names are a stranger's: escape them, so that they cannot look like a log line.
            named = ", ".join(
                f"{one.topic!a}-{one.partition} to {one.remote_topic!a}"
                for one in dropped[:_NAMED_MAX]
            )
            more = f" and {len(dropped) - _NAMED_MAX} more" if len(dropped) > _NAMED_MAX else ""
            log.warning(
                "flow %s: an assignment in the control topic requests partitions that the settings"
                " of the flow do not select or would give another name; they are not mirrored:"
                " %s%s. Check who may write to the control topic",
                *(self._flow.name, named, more),
            )
        return kept

    def _carries(self, one: SourcePartition) -> bool:
        pair = (one.topic, one.remote_topic)
        known = self._seen.get(pair)
        if known is None:
            topics = self._topics = self._topics or FlowTopics(self._flow)
            known = self._seen[pair] = (
                one.topic not in _BROKERS_OWN
                and topics.accepts(one.topic)
                and not topics.fault(one.topic)
                and topics.remote(one.topic) == one.remote_topic
            )
        return known and one.partition >= 0
