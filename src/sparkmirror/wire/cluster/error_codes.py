"""What sparkmirror does at which of Kafka's error codes (`wire.protocol_errors` has all codes)."""

from __future__ import annotations

from sparkmirror.wire.protocol_errors import code_of, error_name

__all__ = ["FENCED", "LEADERSHIP", "REFUSED", "RETRIABLE", "error_name"]

OFFSET_OUT_OF_RANGE = code_of("OFFSET_OUT_OF_RANGE")
CORRUPT_MESSAGE = code_of("CORRUPT_MESSAGE")
UNKNOWN_TOPIC_OR_PARTITION = code_of("UNKNOWN_TOPIC_OR_PARTITION")
UNKNOWN_LEADER_EPOCH = code_of("UNKNOWN_LEADER_EPOCH")
LEADER_NOT_AVAILABLE = code_of("LEADER_NOT_AVAILABLE")
BROKER_NOT_AVAILABLE = code_of("BROKER_NOT_AVAILABLE")
MESSAGE_TOO_LARGE = code_of("MESSAGE_TOO_LARGE")
NETWORK_EXCEPTION = code_of("NETWORK_EXCEPTION")
COORDINATOR_LOAD_IN_PROGRESS = code_of("COORDINATOR_LOAD_IN_PROGRESS")
TOPIC_AUTHORIZATION_FAILED = code_of("TOPIC_AUTHORIZATION_FAILED")
OUT_OF_ORDER_SEQUENCE_NUMBER = code_of("OUT_OF_ORDER_SEQUENCE_NUMBER")
DUPLICATE_SEQUENCE_NUMBER = code_of("DUPLICATE_SEQUENCE_NUMBER")
INVALID_PRODUCER_EPOCH = code_of("INVALID_PRODUCER_EPOCH")
CONCURRENT_TRANSACTIONS = code_of("CONCURRENT_TRANSACTIONS")
UNKNOWN_PRODUCER_ID = code_of("UNKNOWN_PRODUCER_ID")
RECORD_LIST_TOO_LARGE = code_of("RECORD_LIST_TOO_LARGE")
INVALID_TIMESTAMP = code_of("INVALID_TIMESTAMP")
INVALID_RECORD = code_of("INVALID_RECORD")
UNKNOWN_SERVER_ERROR = code_of("UNKNOWN_SERVER_ERROR")
UNSUPPORTED_COMPRESSION_TYPE = code_of("UNSUPPORTED_COMPRESSION_TYPE")
OFFSET_NOT_AVAILABLE = code_of("OFFSET_NOT_AVAILABLE")

# Counted with the errors: a response with a throttle time, because of a quota.
THROTTLED = "THROTTLED"
# Counted with the errors: records that were dropped, by the name of MirrorMaker 1's metric.
DROPPED = "numDroppedMessages"

# Errors of some records in a batch: a retry of the same batch fails again.
TOO_LARGE = frozenset({MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE})
REFUSED = TOO_LARGE | {INVALID_TIMESTAMP, INVALID_RECORD}

# The broker does not lead the partition, or not yet: look the leader up again.
LEADERSHIP = frozenset(
    map(
        code_of,
        (
            "UNKNOWN_TOPIC_OR_PARTITION",  # metadata may not have reached this broker yet
            "LEADER_NOT_AVAILABLE",
            "NOT_LEADER_OR_FOLLOWER",
            "REPLICA_NOT_AVAILABLE",
            "KAFKA_STORAGE_ERROR",
            "FENCED_LEADER_EPOCH",
            "UNKNOWN_LEADER_EPOCH",
            "OFFSET_NOT_AVAILABLE",
            "UNKNOWN_TOPIC_ID",
            "INCONSISTENT_TOPIC_ID",
        ),
    )
)

RETRIABLE = LEADERSHIP | set(
    map(
        code_of,
        (
            "UNKNOWN_SERVER_ERROR",  # Java's producer does not retry it; a retry does no harm here
            "CORRUPT_MESSAGE",
            "REQUEST_TIMED_OUT",
            "NETWORK_EXCEPTION",
            "COORDINATOR_LOAD_IN_PROGRESS",
            "COORDINATOR_NOT_AVAILABLE",
            "NOT_COORDINATOR",
            "NOT_ENOUGH_REPLICAS",
            "NOT_ENOUGH_REPLICAS_AFTER_APPEND",
            "CONCURRENT_TRANSACTIONS",
            "UNSTABLE_OFFSET_COMMIT",  # a transaction that has not ended may change the offset
            "THROTTLING_QUOTA_EXCEEDED",
        ),
    )
)

# Errors of a transactional producer that another one has fenced, or whose transaction timed out and
# was aborted: the target accepts nothing more from it.
FENCED = frozenset(
    map(
        code_of,
        (
            "INVALID_PRODUCER_EPOCH",
            "INVALID_TXN_STATE",
            "INVALID_PRODUCER_ID_MAPPING",
            "TRANSACTION_COORDINATOR_FENCED",
            "PRODUCER_FENCED",
        ),
    )
)
