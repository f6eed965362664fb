"""Kafka's error codes, and why a request to a broker failed. No I/O.

The codes, their names and which of them are retriable are those of Kafka 4.4's class
``org.apache.kafka.common.protocol.Errors``. What sparkmirror itself does at a code of its data path
is decided in `wire.cluster.error_codes`.
"""

from __future__ import annotations

__all__ = [
    "ApiUnsupported",
    "BrokerError",
    "NoBroker",
    "RequestError",
    "UnexpectedResponse",
    "UnreadableResponse",
    "code_of",
    "error_name",
    "is_retriable",
]

# Code, name, and ``retriable`` where Java's exception is a RetriableException.
_TABLE = """
-1 UNKNOWN_SERVER_ERROR
0 NONE
1 OFFSET_OUT_OF_RANGE
2 CORRUPT_MESSAGE retriable
3 UNKNOWN_TOPIC_OR_PARTITION retriable
4 INVALID_FETCH_SIZE
5 LEADER_NOT_AVAILABLE retriable
6 NOT_LEADER_OR_FOLLOWER retriable
7 REQUEST_TIMED_OUT retriable
8 BROKER_NOT_AVAILABLE
9 REPLICA_NOT_AVAILABLE retriable
10 MESSAGE_TOO_LARGE
11 STALE_CONTROLLER_EPOCH
12 OFFSET_METADATA_TOO_LARGE
13 NETWORK_EXCEPTION retriable
14 COORDINATOR_LOAD_IN_PROGRESS retriable
15 COORDINATOR_NOT_AVAILABLE retriable
16 NOT_COORDINATOR retriable
17 INVALID_TOPIC_EXCEPTION
18 RECORD_LIST_TOO_LARGE
19 NOT_ENOUGH_REPLICAS retriable
20 NOT_ENOUGH_REPLICAS_AFTER_APPEND retriable
21 INVALID_REQUIRED_ACKS
22 ILLEGAL_GENERATION
23 INCONSISTENT_GROUP_PROTOCOL
24 INVALID_GROUP_ID
25 UNKNOWN_MEMBER_ID
26 INVALID_SESSION_TIMEOUT
27 REBALANCE_IN_PROGRESS
28 INVALID_COMMIT_OFFSET_SIZE
29 TOPIC_AUTHORIZATION_FAILED
30 GROUP_AUTHORIZATION_FAILED
31 CLUSTER_AUTHORIZATION_FAILED
32 INVALID_TIMESTAMP
33 UNSUPPORTED_SASL_MECHANISM
34 ILLEGAL_SASL_STATE
35 UNSUPPORTED_VERSION
36 TOPIC_ALREADY_EXISTS
37 INVALID_PARTITIONS
38 INVALID_REPLICATION_FACTOR
39 INVALID_REPLICA_ASSIGNMENT
40 INVALID_CONFIG
41 NOT_CONTROLLER retriable
42 INVALID_REQUEST
43 UNSUPPORTED_FOR_MESSAGE_FORMAT
44 POLICY_VIOLATION
45 OUT_OF_ORDER_SEQUENCE_NUMBER
46 DUPLICATE_SEQUENCE_NUMBER
47 INVALID_PRODUCER_EPOCH
48 INVALID_TXN_STATE
49 INVALID_PRODUCER_ID_MAPPING
50 INVALID_TRANSACTION_TIMEOUT
51 CONCURRENT_TRANSACTIONS retriable
52 TRANSACTION_COORDINATOR_FENCED
53 TRANSACTIONAL_ID_AUTHORIZATION_FAILED
54 SECURITY_DISABLED
55 OPERATION_NOT_ATTEMPTED
56 KAFKA_STORAGE_ERROR retriable
57 LOG_DIR_NOT_FOUND
58 SASL_AUTHENTICATION_FAILED
59 UNKNOWN_PRODUCER_ID
60 REASSIGNMENT_IN_PROGRESS
61 DELEGATION_TOKEN_AUTH_DISABLED
62 DELEGATION_TOKEN_NOT_FOUND
63 DELEGATION_TOKEN_OWNER_MISMATCH
64 DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
65 DELEGATION_TOKEN_AUTHORIZATION_FAILED
66 DELEGATION_TOKEN_EXPIRED
67 INVALID_PRINCIPAL_TYPE
68 NON_EMPTY_GROUP
69 GROUP_ID_NOT_FOUND
70 FETCH_SESSION_ID_NOT_FOUND retriable
71 INVALID_FETCH_SESSION_EPOCH retriable
72 LISTENER_NOT_FOUND retriable
73 TOPIC_DELETION_DISABLED
74 FENCED_LEADER_EPOCH retriable
75 UNKNOWN_LEADER_EPOCH retriable
76 UNSUPPORTED_COMPRESSION_TYPE
77 STALE_BROKER_EPOCH
78 OFFSET_NOT_AVAILABLE retriable
79 MEMBER_ID_REQUIRED
80 PREFERRED_LEADER_NOT_AVAILABLE retriable
81 GROUP_MAX_SIZE_REACHED
82 FENCED_INSTANCE_ID
83 ELIGIBLE_LEADERS_NOT_AVAILABLE retriable
84 ELECTION_NOT_NEEDED retriable
85 NO_REASSIGNMENT_IN_PROGRESS
86 GROUP_SUBSCRIBED_TO_TOPIC
87 INVALID_RECORD
88 UNSTABLE_OFFSET_COMMIT retriable
89 THROTTLING_QUOTA_EXCEEDED retriable
90 PRODUCER_FENCED
91 RESOURCE_NOT_FOUND
92 DUPLICATE_RESOURCE
93 UNACCEPTABLE_CREDENTIAL
94 INCONSISTENT_VOTER_SET
95 INVALID_UPDATE_VERSION
96 FEATURE_UPDATE_FAILED
97 PRINCIPAL_DESERIALIZATION_FAILURE
98 SNAPSHOT_NOT_FOUND
99 POSITION_OUT_OF_RANGE
100 UNKNOWN_TOPIC_ID retriable
101 DUPLICATE_BROKER_REGISTRATION
102 BROKER_ID_NOT_REGISTERED
103 INCONSISTENT_TOPIC_ID retriable
104 INCONSISTENT_CLUSTER_ID
105 TRANSACTIONAL_ID_NOT_FOUND
106 FETCH_SESSION_TOPIC_ID_ERROR retriable
107 INELIGIBLE_REPLICA
108 NEW_LEADER_ELECTED
109 OFFSET_MOVED_TO_TIERED_STORAGE
110 FENCED_MEMBER_EPOCH
111 UNRELEASED_INSTANCE_ID
112 UNSUPPORTED_ASSIGNOR
113 STALE_MEMBER_EPOCH
114 MISMATCHED_ENDPOINT_TYPE
115 UNSUPPORTED_ENDPOINT_TYPE
116 UNKNOWN_CONTROLLER_ID
117 UNKNOWN_SUBSCRIPTION_ID
118 TELEMETRY_TOO_LARGE
119 INVALID_REGISTRATION
120 TRANSACTION_ABORTABLE
121 INVALID_RECORD_STATE
122 SHARE_SESSION_NOT_FOUND retriable
123 INVALID_SHARE_SESSION_EPOCH retriable
124 FENCED_STATE_EPOCH
125 INVALID_VOTER_KEY
126 DUPLICATE_VOTER
127 VOTER_NOT_FOUND
128 INVALID_REGULAR_EXPRESSION
129 REBOOTSTRAP_REQUIRED
130 STREAMS_INVALID_TOPOLOGY
131 STREAMS_INVALID_TOPOLOGY_EPOCH
132 STREAMS_TOPOLOGY_FENCED
133 SHARE_SESSION_LIMIT_REACHED retriable
134 GROUP_DELETION_FAILED
135 STREAMS_TOPOLOGY_DESCRIPTION_UPDATE_FAILED
136 CONTROLLER_ID_NOT_REGISTERED
"""
_NAMES: dict[int, str] = {}
_CODES: dict[str, int] = {}
_RETRIABLE: set[int] = set()
for _code, _name, *_more in map(str.split, _TABLE.split("\n")[1:-1]):
    _NAMES[int(_code)] = _name
    _CODES[_name] = int(_code)
    if _more:
        _RETRIABLE.add(int(_code))

# Of Java's AuthenticationException: the broker refuses the login, not one request.
_AUTHENTICATION = frozenset(
    ("UNSUPPORTED_SASL_MECHANISM", "ILLEGAL_SASL_STATE", "SASL_AUTHENTICATION_FAILED")
)


def error_name(code: int) -> str:
    """Kafka's name of an error code, e.g. ``NOT_LEADER_OR_FOLLOWER``."""
    return _NAMES.get(code) or f"error code {code}"


def code_of(name: str) -> int:
    """The error code with this name. Raises ``KeyError`` if Kafka has none."""
    return _CODES[name]


def is_retriable(code: int) -> bool:
    """Whether Java's clients retry a request that fails with this code."""
    return code in _RETRIABLE


# --- exceptions -----------------------------------------------------------------------------------


class RequestError(Exception):
    """A request failed. ``retriable``: whether the same request may succeed soon.

    The text is for the user. `wire.admin.error_translation` adds what was requested.
    """

    retriable = False


class BrokerError(RequestError):
    """The broker returned the error ``code``; ``name``: Kafka's name. ``message``: the broker's."""

    def __init__(self, code: int, message: str | None = None) -> None:
        self.code = code
        self.name = error_name(code)
        self.message = message or ""
        self.retriable = is_retriable(code)
        super().__init__(f"{self.name}: {self.message}" if self.message else self.name)

    @property
    def is_authorization(self) -> bool:
        """Whether the principal lacks a permission."""
        return self.name.endswith("_AUTHORIZATION_FAILED")

    @property
    def is_authentication(self) -> bool:
        """Whether the broker refuses the login."""
        return self.name in _AUTHENTICATION


class ApiUnsupported(RequestError):
    """The broker has no version of an API that the request could use."""


class NoBroker(RequestError):
    """The cluster has no broker for the request at present."""

    retriable = True


class UnreadableResponse(RequestError):
    """The broker sent bytes that are not a response."""


class UnexpectedResponse(UnreadableResponse):
    """The broker sent a response to another request; a new connection may cure that."""

    retriable = True
