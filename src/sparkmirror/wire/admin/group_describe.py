"""ConsumerGroupDescribe (KIP-848) and StreamsGroupDescribe (KIP-1071): members of newer groups.

kafka-python has neither message. Their fields are in ``wire/admin/schemas``.
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
    """Asks a coordinator for groups of the consumer protocol."""


class ConsumerGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """Their members, each with the partitions that it has."""


class StreamsGroupDescribeRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """Asks a coordinator for groups of the streams protocol."""


class StreamsGroupDescribeResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg,misc]
    """Their members, each with its tasks, and the topics that a subtopology's tasks read."""
