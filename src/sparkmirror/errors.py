"""Every error that sparkmirror raises on purpose.

::

    MirrorError                      what, where, what to do; exit_code 1
    ├── ConfigError                  a file, a key or an option is wrong; exit_code 2
    ├── MachineError                 Java, ports, disk: the machine lacks something
    ├── ClusterError                 a Kafka cluster cannot be reached or used
    │   ├── Unreachable              no broker of the bootstrap list answers
    │   ├── NotKafka                 something answers that does not speak Kafka
    │   ├── Unsupported              the broker lacks an API or the client a security setting
    │   ├── Denied                   the principal lacks a permission
    │   ├── GroupRefused             the consumer group does not take this member
    │   ├── Fenced                   another writer has taken over what this one wrote
    │   └── TransactionError         a transaction cannot be ended: it is aborted and written anew
    │       └── TooSlow              it was open for longer than its time limit
    ├── BatchError                   bytes that are no valid record batch
    │   ├── CorruptBatch             checksum or structure is broken: never produced
    │   └── UnknownCodec             a compression codec that nobody knows
    ├── TopicError                   one topic cannot be mirrored as asked
    └── PartitionError               one partition stopped; the others go on
        └── TargetLost               the target has lost records: the next attempt repairs that

Each class has a stable ``code`` (UPPER_SNAKE) that logs, metrics and exit messages share.
`Defect` stands beside the tree: it is nobody's mistake but ours.
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
    "TargetLost",
    "TooSlow",
    "TopicError",
    "TransactionError",
    "UnknownCodec",
    "Unreachable",
    "Unsupported",
]


class MirrorError(Exception):
    """Base of all errors here.

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
        # Exceptions with keyword-only arguments do not pickle by themselves, and these travel
        # from Spark's workers to the driver.
        return _rebuild, (type(self), self.what, self.where, self.do)


def _rebuild(cls: type[MirrorError], what: str, where: str, do: str) -> MirrorError:
    return cls(what, where=where, do=do)


class ConfigError(MirrorError):
    """A file, a key or an option is wrong; nothing has been started."""

    code = "CONFIG"
    exit_code = 2


class MachineError(MirrorError):
    """The machine lacks something: Java, a free port, disk, a readable file."""

    code = "MACHINE"


class ClusterError(MirrorError):
    """A Kafka cluster cannot be reached or used."""

    code = "CLUSTER"


class Unreachable(ClusterError):
    """No broker of the list answers: name resolution, refusal or silence."""

    code = "UNREACHABLE"


class NotKafka(ClusterError):
    """Something answers on that port, but it does not speak Kafka's protocol."""

    code = "NOT_KAFKA"


class Unsupported(ClusterError):
    """The broker lacks an API version, or this client lacks a security setting."""

    code = "UNSUPPORTED"


class Denied(ClusterError):
    """The principal lacks a permission; ``do`` names the ACL."""

    code = "DENIED"


class Fenced(ClusterError):
    """Another writer has taken over what this one wrote; nothing more of it will be accepted."""

    code = "FENCED"


class GroupRefused(ClusterError):
    """The consumer group does not take this member, and trying again would not help."""

    code = "GROUP_REFUSED"


class TransactionError(ClusterError):
    """A transaction cannot be ended; its records are aborted and written anew."""

    code = "TRANSACTION"


class TooSlow(TransactionError):
    """A transaction was open for longer than its time limit: the cluster has aborted it."""

    code = "TRANSACTION_TOO_SLOW"


class BatchError(MirrorError):
    """Bytes that are no valid record batch."""

    code = "BATCH"


class CorruptBatch(BatchError):
    """A checksum or a structure is broken. Such bytes are never produced."""

    code = "CORRUPT_BATCH"


class UnknownCodec(BatchError):
    """The batch names a compression codec that Kafka does not define."""

    code = "UNKNOWN_CODEC"


class TopicError(MirrorError):
    """One topic cannot be mirrored as asked; the others go on."""

    code = "TOPIC"


class PartitionError(MirrorError):
    """One partition stopped; the others go on."""

    code = "PARTITION"


class TargetLost(PartitionError):
    """The target has lost records that it had acknowledged; the next attempt repairs that."""

    code = "TARGET_LOST"


class Defect(RuntimeError):
    """What has to hold in this program does not, whoever runs it: a run ends with its traceback.

    Unlike ``assert`` it also says so under ``python -O``.
    """
