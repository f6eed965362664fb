"""The errors that sparkmirror raises on purpose.

::

    MirrorError                      what, where, what to do; exit_code 1
    ├── ConfigError                  a file, a key or an option is wrong; exit_code 2
    ├── MachineError                 Java, a port, disk or the like is missing on this machine
    ├── ClusterError                 a Kafka cluster cannot be reached or used
    │   ├── Unreachable              no broker of the bootstrap list responds
    │   ├── NotKafka                 something responds that does not speak Kafka
    │   ├── QuotaExceeded            a quota of the cluster allows no more at present
    │   ├── Unsupported              the broker lacks an API, or the client a security setting
    │   ├── Denied                   the principal lacks a permission
    │   ├── GroupRefused             the consumer group refuses this member for good
    │   ├── Fenced                   another writer has taken over
    │   └── TransactionError         a transaction cannot be ended; its records are written again
    │       └── TooSlow              it was open for longer than its timeout
    ├── BatchError                   bytes that are not a valid record batch
    │   ├── CorruptBatch             checksum or structure is wrong: never produced
    │   └── UnknownCodec             a compression codec that Kafka does not define
    ├── TopicError                   one topic cannot be mirrored as configured
    │   └── TooFewBrokers            the cluster has too few brokers for its replicas
    └── PartitionError               one partition stopped; the others continue
        └── TargetLost               the target lost records; the task's next attempt repairs that

Each class has a stable ``code`` (UPPER_SNAKE) that logs, metrics and exit messages share.
`Defect` is not in the tree: it reports a fault of sparkmirror itself.
"""

from __future__ import annotations

__all__ = [
    "BatchError",
    "ClusterError",
    "ConfigError",
    "CorruptBatch",
    "Defect",
    "Denied",
    "Fenced",
    "GroupRefused",
    "MachineError",
    "MirrorError",
    "NotKafka",
    "PartitionError",
    "QuotaExceeded",
    "TargetLost",
    "TooFewBrokers",
    "TooSlow",
    "TopicError",
    "TransactionError",
    "UnknownCodec",
    "Unreachable",
    "Unsupported",
]


class MirrorError(Exception):
    """Base of all errors in this module.

    ``what`` states the fact, ``where`` the place (file:line, cluster alias, topic-partition),
    ``do`` the next step for the user. ``str()`` joins them into one paragraph.
    """

    code = "MIRROR_ERROR"
    exit_code = 1

    def __init__(self, what: str, *, where: str = "", do: str = "") -> None:
        super().__init__(what, where, do)
        self.what = what
        self.where = where
        self.do = do

    def __str__(self) -> str:
        place = f"{self.where}: " if self.where else ""
        advice = f" {self.do}" if self.do else ""
        return f"{place}{self.what}{advice}"

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions with keyword-only arguments do not pickle without help, and these travel
        # from Spark's workers to the driver.
        return _rebuild, (type(self), self.what, self.where, self.do)


def _rebuild(cls: type[MirrorError], what: str, where: str, do: str) -> MirrorError:
    return cls(what, where=where, do=do)


class ConfigError(MirrorError):
    """A file, a key or an option is wrong; nothing was started."""

    code = "CONFIG"
    exit_code = 2


class MachineError(MirrorError):
    """Something is missing on this machine: Java, a free port, disk, a readable file."""

    code = "MACHINE"


class ClusterError(MirrorError):
    """A Kafka cluster cannot be reached or used."""

    code = "CLUSTER"


class Unreachable(ClusterError):
    """No broker of the list responds: the name is unknown, or connections fail or time out."""

    code = "UNREACHABLE"


class NotKafka(ClusterError):
    """Something responds on that port, but it does not speak Kafka's protocol."""

    code = "NOT_KAFKA"


class QuotaExceeded(ClusterError):
    """A quota of the cluster allows no more at present; the same request may succeed later."""

    code = "QUOTA_EXCEEDED"


class Unsupported(ClusterError):
    """The broker lacks an API version, or this client lacks a security setting."""

    code = "UNSUPPORTED"


class Denied(ClusterError):
    """The principal lacks a permission; ``do`` names the ACL."""

    code = "DENIED"


class Fenced(ClusterError):
    """Another writer has taken over; the target accepts nothing more from this one."""

    code = "FENCED"


class GroupRefused(ClusterError):
    """The consumer group refuses this member, and a retry would not help."""

    code = "GROUP_REFUSED"


class TransactionError(ClusterError):
    """A transaction cannot be ended. It is aborted, and its records are written again."""

    code = "TRANSACTION"


class TooSlow(TransactionError):
    """A transaction was open for longer than its timeout; the cluster has aborted it."""

    code = "TRANSACTION_TOO_SLOW"


class BatchError(MirrorError):
    """The bytes are not a valid record batch."""

    code = "BATCH"


class CorruptBatch(BatchError):
    """A checksum or a structure is wrong. Such bytes are never produced."""

    code = "CORRUPT_BATCH"


class UnknownCodec(BatchError):
    """The batch names a compression codec that Kafka does not define."""

    code = "UNKNOWN_CODEC"


class TopicError(MirrorError):
    """One topic cannot be mirrored as configured; the others continue."""

    code = "TOPIC"


class TooFewBrokers(TopicError):
    """The cluster has too few brokers for the replicas of a topic; one may only be down."""

    code = "TOO_FEW_BROKERS"


class PartitionError(MirrorError):
    """One partition stopped; the others continue."""

    code = "PARTITION"


class TargetLost(PartitionError):
    """The target has lost records that it had acknowledged; the next attempt repairs that."""

    code = "TARGET_LOST"


class Defect(RuntimeError):
    """Something that must always hold in this program does not hold.

    It is a fault of sparkmirror, so the run ends with a traceback. Unlike ``assert``, it is also
    raised under ``python -O``.
    """
