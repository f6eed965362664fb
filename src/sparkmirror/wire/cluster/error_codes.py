"""Kafka's numeric error codes: their names, and which ones a retry may cure."""

from __future__ import annotations

from functools import cache

__all__ = ["FENCED", "LEADERSHIP", "REFUSED", "RETRIABLE", "error_name"]

OFFSET_OUT_OF_RANGE = 1
CORRUPT_MESSAGE = 2
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
MESSAGE_TOO_LARGE = 10
NETWORK_EXCEPTION = 13
COORDINATOR_LOAD_IN_PROGRESS = 14
TOPIC_AUTHORIZATION_FAILED = 29
OUT_OF_ORDER_SEQUENCE_NUMBER = 45
DUPLICATE_SEQUENCE_NUMBER = 46
INVALID_PRODUCER_EPOCH = 47
CONCURRENT_TRANSACTIONS = 51
UNKNOWN_PRODUCER_ID = 59
RECORD_LIST_TOO_LARGE = 18
INVALID_TIMESTAMP = 32
INVALID_RECORD = 87
UNKNOWN_SERVER_ERROR = -1

# Counted with the errors: a response with a throttle time, because of a quota.
THROTTLED = "THROTTLED"
# Counted with the errors: records that were dropped, by the name of MirrorMaker 1's metric.
DROPPED = "numDroppedMessages"

# Errors of some records in a batch: a retry of the same batch fails again.
TOO_LARGE = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE})
REFUSED = TOO_LARGE | {INVALID_TIMESTAMP, INVALID_RECORD}

# The broker does not lead the partition, or not yet: look the leader up again.
LEADERSHIP = frozenset(
    {
        3,  # UNKNOWN_TOPIC_OR_PARTITION: metadata may not have reached this broker yet
        5,  # LEADER_NOT_AVAILABLE
        6,  # NOT_LEADER_OR_FOLLOWER
        9,  # REPLICA_NOT_AVAILABLE
        56,  # KAFKA_STORAGE_ERROR
        74,  # FENCED_LEADER_EPOCH
        75,  # UNKNOWN_LEADER_EPOCH
        78,  # OFFSET_NOT_AVAILABLE
        100,  # UNKNOWN_TOPIC_ID
        103,  # INCONSISTENT_TOPIC_ID
    }
)

RETRIABLE = LEADERSHIP | {
    -1,  # UNKNOWN_SERVER_ERROR: Java's producer does not retry it; a retry does no harm here
    2,  # CORRUPT_MESSAGE
    7,  # REQUEST_TIMED_OUT
    13,  # NETWORK_EXCEPTION
    COORDINATOR_LOAD_IN_PROGRESS,
    15,  # COORDINATOR_NOT_AVAILABLE
    16,  # NOT_COORDINATOR
    19,  # NOT_ENOUGH_REPLICAS
    20,  # NOT_ENOUGH_REPLICAS_AFTER_APPEND
    51,  # CONCURRENT_TRANSACTIONS
    88,  # UNSTABLE_OFFSET_COMMIT: a transaction that has not ended yet may change the offset
    89,  # THROTTLING_QUOTA_EXCEEDED
}

# Errors of a transactional producer that another one has fenced, or whose transaction timed out and
# was aborted: the target accepts nothing more from it.
FENCED = frozenset(
    {
        47,  # INVALID_PRODUCER_EPOCH
        48,  # INVALID_TXN_STATE
        49,  # INVALID_PRODUCER_ID_MAPPING
        52,  # TRANSACTION_COORDINATOR_FENCED
        90,  # PRODUCER_FENCED
    }
)

# Kafka's names (org.apache.kafka.common.protocol.Errors) where kafka-python has another one.
_KAFKA_NAMES = {
    -1: "UNKNOWN_SERVER_ERROR",
    6: "NOT_LEADER_OR_FOLLOWER",
    10: "MESSAGE_TOO_LARGE",
    17: "INVALID_TOPIC_EXCEPTION",
}


@cache
def _names() -> dict[int, str]:
    import kafka.errors as kafka_errors  # noqa: PLC0415  (slow to import, needed for messages only)

    named: dict[int, str] = {}
    for value in vars(kafka_errors).values():
        code, name = getattr(value, "errno", None), getattr(value, "message", None)
        if isinstance(code, int) and isinstance(name, str):
            named[code] = name
    return named | _KAFKA_NAMES


def error_name(code: int) -> str:
    """Kafka's name of an error code, e.g. ``NOT_LEADER_OR_FOLLOWER``."""
    return _names().get(code) or f"error code {code}"
