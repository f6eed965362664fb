"""Current equivalents of properties of Kafka 0.7 to 0.11: the table behind `config.mm1.legacy`.

Sources: the configuration pages of Kafka 0.7.2, 0.8.0, 0.8.2, 0.9.0, 0.10.2 and 0.11.0 (consumer
and producer), and MirrorMaker's page of 0.7. Keys that current clients still have are in the
settings table instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from sparkmirror.config.table.setting import java_int


class Fate(Enum):
    """How an old key is handled.

    ``RENAMED``: it has another name now, and maybe other values. ``DROPPED``: what it tuned no
    longer exists; ``why`` says what happens instead. ``REFUSED``: it requests something that is not
    possible. ``ZOOKEEPER``: brokers are looked up there. ``INCLUDE``, ``EXCLUDE``, ``STREAMS``: it
    is a command line option now.
    """

    RENAMED = "renamed"
    DROPPED = "dropped"
    REFUSED = "refused"
    ZOOKEEPER = "zookeeper"
    INCLUDE = "include"
    EXCLUDE = "exclude"
    STREAMS = "streams"


@dataclass(frozen=True, slots=True)
class OldKey:
    """One row.

    ``now``: the current key (``RENAMED``). ``convert``: converts an old value to its current form;
    raises ValueError with the fault, returns "" for a value without effect. ``why``: the reason;
    for a renamed key an optional remark. ``era``: "0.7" for a key that only 0.7 has.
    """

    fate: Fate
    now: str = ""
    why: str = ""
    convert: Callable[[str], str] | None = None
    era: str = ""


def _number(low: int) -> Callable[[str], str]:
    def convert(value: str) -> str:
        number = java_int(value)
        if number < low:
            raise ValueError(f"is less than {low}")
        return str(number)

    return convert


def _offset_reset(value: str) -> str:
    # Both old consumers raised an exception for any other value.
    return {"smallest": "earliest", "largest": "latest"}.get(value.lower(), value)


def _acks(value: str) -> str:
    """Map 0 (the old default) and values from 2 to "all", which is never less safe."""
    number = java_int(value, 16)
    if number < -1:
        raise ValueError("is less than -1")
    return "1" if number == 1 else "all"


_CODECS = {
    "gzip": "gzip", "snappy": "snappy", "lz4": "lz4", "1": "gzip", "2": "snappy", "3": "lz4",
    "none": "none", "uncompressed": "none", "0": "none",
}  # fmt: skip


def _codec(value: str) -> str:
    """The current name of a codec given by name or number."""
    if value.lower() not in _CODECS:
        raise ValueError("has a value that was never valid")
    return _CODECS[value.lower()]


def _brokers_07(value: str) -> str:
    """Convert ``id:host:port`` (0.7) to ``host:port``, which 0.8 already has."""
    servers = []
    for part in value.split(","):
        pieces = part.strip().split(":")
        if len(pieces) == 3 and pieces[0].strip().isdigit():
            pieces = pieces[1:]
        servers.append(":".join(pieces))
    return ",".join(servers)


def _renamed(
    now: str, convert: Callable[[str], str] | None = None, why: str = "", era: str = ""
) -> OldKey:
    return OldKey(Fate.RENAMED, now=now, convert=convert, why=why, era=era)


def _dropped(why: str, era: str = "") -> OldKey:
    return OldKey(Fate.DROPPED, why=why, era=era)


_NO_QUEUE = "there is no queue between consumer and producer; fetch.max.bytes limits memory"
_NO_BALANCE = "the mirror assigns partitions to slots, without rebalancing in ZooKeeper"
_ACKNOWLEDGED = "positions are committed after the target has acknowledged"
_SHALLOW = "--keep.partitions copies batches unchanged, without decompressing them"
_SOURCE_CODEC = "without the key, and with --keep.partitions, the source's compression is kept"
_ALIKE = "all topics use one compression: that of compression.type, else the source's"
_BYTES = "records are copied as bytes"
_TIME_BOUND = "retries are limited by time, not by count (delivery.timeout.ms)"
_NO_ZK = "nothing is kept in ZooKeeper"
_JAVA = "it names a Java class, which cannot be loaded"
_POSITIVE, _ANY = _number(1), _number(0)

# Keys of 0.9 to 0.11, whose clients shared setting classes with the brokers; and one of 3.4 to 3.9.
_CLIENTS_KEYS: Mapping[str, OldKey] = {
    name: _dropped("it is a setting of brokers, which clients never read")
    for name in (
        "principal.builder.class",
        "sasl.enabled.mechanisms",
        "sasl.kerberos.principal.to.local.rules",
        "ssl.client.auth",
    )
} | {
    "auto.include.jmx.reporter": _dropped("there is no JMX; sparkmirror.metrics.listen has metrics")
}

CONSUMER_KEYS: Mapping[str, OldKey] = {
    # Addresses of the source.
    "zk.connect": OldKey(Fate.ZOOKEEPER, era="0.7"),
    "zookeeper.connect": OldKey(Fate.ZOOKEEPER),
    "zk.sessiontimeout.ms": _dropped(_NO_ZK, "0.7"),
    "zk.connectiontimeout.ms": _dropped("ZooKeeper is only used to find brokers", "0.7"),
    "zk.synctime.ms": _dropped(_NO_ZK, "0.7"),
    "zookeeper.session.timeout.ms": _dropped(_NO_ZK),
    "zookeeper.connection.timeout.ms": _dropped("ZooKeeper is only used to find brokers"),
    "zookeeper.sync.time.ms": _dropped(_NO_ZK),
    "broker.list": _renamed("bootstrap.servers", _brokers_07),
    "metadata.broker.list": _renamed("bootstrap.servers", _brokers_07),
    # Group and positions.
    "groupid": _renamed("group.id", era="0.7"),
    "consumerid": _dropped("the client id is derived from the group id", "0.7"),
    "consumer.id": _dropped("the client id is derived from the group id"),
    "autocommit.enable": _dropped(_ACKNOWLEDGED, "0.7"),
    "autocommit.interval.ms": _dropped("--offset.commit.interval.ms sets the interval", "0.7"),
    "auto.commit.enable": _dropped(_ACKNOWLEDGED),
    # No version had this key, but many guides use it.
    "auto.commit.enabled": _dropped(_ACKNOWLEDGED),
    "autooffset.reset": _renamed("auto.offset.reset", _offset_reset, era="0.7"),
    "auto.offset.reset": _renamed("auto.offset.reset", _offset_reset),
    "offsets.storage": _dropped(
        "positions are kept in Kafka; those in ZooKeeper are taken over at the first start"
    ),
    "dual.commit.enabled": _dropped("positions are only kept in Kafka"),
    "offsets.channel.backoff.ms": _dropped("retry.backoff.ms applies to all requests"),
    "offsets.channel.socket.timeout.ms": _dropped("request.timeout.ms applies to all requests"),
    "offsets.commit.max.retries": _dropped("a commit is retried until it succeeds"),
    # Fetching.
    "fetch.size": _renamed("max.partition.fetch.bytes", _POSITIVE, era="0.7"),
    "fetch.message.max.bytes": _renamed("max.partition.fetch.bytes", _POSITIVE),
    "max.fetch.size": _renamed("max.partition.fetch.bytes", _POSITIVE, era="0.7"),
    "fetch.wait.max.ms": _renamed("fetch.max.wait.ms", _ANY),
    "socket.timeout.ms": _renamed("request.timeout.ms", _POSITIVE),
    "socket.buffersize": _renamed("receive.buffer.bytes", _POSITIVE, era="0.7"),
    "socket.buffer.size": _renamed("receive.buffer.bytes", _POSITIVE, era="0.7"),
    "socket.receive.buffer.bytes": _renamed("receive.buffer.bytes", _POSITIVE),
    "backoff.increment.ms": _dropped("the source delays a Fetch until there is data", "0.7"),
    "fetcher.backoff.ms": _dropped("the source delays a Fetch until there is data", "0.7"),
    "refresh.leader.backoff.ms": _renamed("retry.backoff.ms", _ANY),
    "num.consumer.fetchers": _dropped("each slot has a connection to each broker it reads from"),
    "queuedchunks.max": _dropped(_NO_QUEUE, "0.7"),
    "queued.max.message.chunks": _dropped(_NO_QUEUE),
    "consumer.timeout.ms": _dropped("the mirror waits for records without a time limit"),
    "shallow.iterator.enable": _dropped(_SHALLOW),
    "shallowiterator.enable": _dropped(_SHALLOW),
    # Keys in 0.8.2 of the consumer that was released with 0.9.
    "fetch.buffer.bytes": _renamed("max.partition.fetch.bytes", _POSITIVE),
    "heartbeat.frequency": _dropped("heartbeat.interval.ms sets the interval"),
    "metadata.fetch.timeout.ms": _dropped("the flow waits without a time limit"),
    "total.memory.bytes": _dropped(_NO_QUEUE),
    # Rebalancing.
    "internal.leave.group.on.close": _dropped("a member that ends normally leaves the group"),
    "rebalance.retries.max": _dropped(_NO_BALANCE, "0.7"),
    "rebalance.max.retries": _dropped(_NO_BALANCE),
    "rebalance.backoff.ms": _dropped(_NO_BALANCE),
    # Mirroring inside the broker (up to 0.7.0).
    "mirror.topics.whitelist": OldKey(Fate.INCLUDE, era="0.7"),
    "mirror.topics.blacklist": OldKey(Fate.EXCLUDE, era="0.7"),
    "mirror.consumer.numthreads": OldKey(Fate.STREAMS, convert=_POSITIVE, era="0.7"),
    **_CLIENTS_KEYS,
}

PRODUCER_KEYS: Mapping[str, OldKey] = {
    # Addresses of the target.
    "zk.connect": OldKey(Fate.ZOOKEEPER, era="0.7"),
    "zookeeper.connect": OldKey(Fate.ZOOKEEPER),
    "zk.read.num.retries": _dropped("ZooKeeper is only used to find brokers", "0.7"),
    "zk.sessiontimeout.ms": _dropped(_NO_ZK, "0.7"),
    "zk.connectiontimeout.ms": _dropped("ZooKeeper is only used to find brokers", "0.7"),
    "zk.synctime.ms": _dropped(_NO_ZK, "0.7"),
    "broker.list": _renamed("bootstrap.servers", _brokers_07),
    "metadata.broker.list": _renamed("bootstrap.servers", _brokers_07),
    # Acknowledgements and time limits.
    "request.required.acks": _renamed(
        "acks", _acks, "positions need acknowledgements, so 0, 2 and more mean all"
    ),
    "timeout.ms": _renamed("request.timeout.ms", _POSITIVE),
    "socket.timeout.ms": _renamed("request.timeout.ms", _POSITIVE, era="0.7"),
    "connect.timeout.ms": _renamed("socket.connection.setup.timeout.ms", _POSITIVE, era="0.7"),
    "message.send.max.retries": _dropped(_TIME_BOUND),
    "num.retries": _dropped(_TIME_BOUND),
    "block.on.buffer.full": _dropped("the mirror always waits for space and drops nothing"),
    "metadata.fetch.timeout.ms": _dropped("the flow waits without a time limit"),
    "metadata.fetch.backoff.ms": _renamed("retry.backoff.ms", _ANY),
    "topic.metadata.refresh.interval.ms": _dropped(
        "metadata is refreshed when a leader moves, and every metadata.max.age.ms"
    ),
    # Sockets.
    "buffer.size": _renamed("send.buffer.bytes", _POSITIVE, era="0.7"),
    "reconnect.interval": _dropped("connections are kept", "0.7"),
    "reconnect.time.interval.ms": _dropped("connections are kept", "0.7"),
    # Queues and batches.
    "queue.time": _dropped(_NO_QUEUE, "0.7"),
    "queue.size": _dropped(_NO_QUEUE, "0.7"),
    "queue.enqueueTimeout.ms": _dropped(_NO_QUEUE, "0.7"),
    "queue.enqueue.timeout.ms": _dropped(_NO_QUEUE),
    "queue.buffering.max.ms": _dropped(_NO_QUEUE),
    "queue.buffering.max.messages": _dropped(_NO_QUEUE),
    "batch.num.messages": _dropped("raw batches keep the source's size"),
    "max.message.size": _dropped("the target topic's max.message.bytes is the limit"),
    "compression.codec": _renamed("compression.type", _codec, _SOURCE_CODEC),
    "compressed.topics": _dropped(_ALIKE),
    "compression.topics": _dropped(_ALIKE),
    "serializer.class": _dropped(_BYTES),
    "key.serializer.class": _dropped(_BYTES),
    "send.buffer.size": _renamed("send.buffer.bytes", _POSITIVE),
    # Java classes.
    "event.handler": OldKey(Fate.REFUSED, why=_JAVA, era="0.7"),
    "event.handler.props": OldKey(Fate.REFUSED, why="there is no event handler", era="0.7"),
    "callback.handler": OldKey(Fate.REFUSED, why=_JAVA, era="0.7"),
    "callback.handler.props": OldKey(Fate.REFUSED, why="there is no callback handler", era="0.7"),
    **_CLIENTS_KEYS,
}

# The current key for an old key ("" for none), for files that are not translated.
OLD_CLIENT_KEYS: Mapping[str, str] = {
    name: "bootstrap.servers" if row.fate is Fate.ZOOKEEPER else row.now
    for table in (CONSUMER_KEYS, PRODUCER_KEYS)
    for name, row in table.items()
    if name != row.now
}

# Values that old versions accepted; checked before a key is dropped, so that a typo is reported.
_BOOLEAN = ("true", "false")
VALUES: Mapping[str, tuple[str, ...]] = {
    "auto.commit.enable": _BOOLEAN,
    "auto.commit.enabled": _BOOLEAN,
    "autocommit.enable": _BOOLEAN,
    "block.on.buffer.full": _BOOLEAN,
    "dual.commit.enabled": _BOOLEAN,
    "offsets.storage": ("zookeeper", "kafka"),
    "shallow.iterator.enable": _BOOLEAN,
    "shallowiterator.enable": _BOOLEAN,
}
