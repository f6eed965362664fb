"""ConsumerGroupDescribe (KIP-848) and StreamsGroupDescribe (KIP-1071): members of newer groups.

kafka-python has neither of them. Their fields are in ``wire/admin/schemas``.
"""

from __future__ import annotations

from kafka.protocol.api_message import ApiMessage

__all__ = [
    "ConsumerGroupDescribeRequest",
    "ConsumerGroupDescribeResponse",
    "StreamsGroupDescribeRequest",
    "StreamsGroupDescribeResponse",
]

_SCHEMAS = "sparkmirror.wire.admin.schemas"


class ConsumerGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """Describes groups of the consumer protocol; sent to their coordinator."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """The members of the groups, each with its partitions."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """Describes groups of the streams protocol; sent to their coordinator."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """The members of the groups, each with its tasks, and the topics of each subtopology."""
