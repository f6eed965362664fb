"""Settings rows: properties of Kafka's Java clients (consumer, producer, admin; 4.3 and 4.4).

In a MirrorMaker 2 file they are written ``A.consumer.key``, ``B.producer.key``, ``A.admin.key``; in
MirrorMaker 1's consumer and producer files they have no prefix.
"""

from __future__ import annotations

from sparkmirror.config.table.mirrormaker1 import GROUP_ROWS, RECORD_ROWS
from sparkmirror.config.table.setting import Scope, Setting, Status, Type
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings

_CONSUMER = (Scope.CONSUMER,)
_PRODUCER = (Scope.PRODUCER,)
_ADMIN = (Scope.ADMIN,)
_CP = (Scope.CONSUMER, Scope.PRODUCER)
_CA = (Scope.CONSUMER, Scope.ADMIN)
_ALL = (Scope.CONSUMER, Scope.PRODUCER, Scope.ADMIN)
_I = Status.IGNORED
_R = Status.REFUSED
_F = FetchSettings()
_P = ProduceSettings()
_RAW = "raw batches keep the source's"
_NO_JMX = "there are no JMX metrics; see sparkmirror.metrics.listen"
_NO_GROUP = "the mirror assigns partitions to slots, not a consumer group"
_BYTES = "records are copied as bytes"
_ONE_POLICY = "sparkmirror starts over from the bootstrap list when no known broker responds"

_CLIENT = ClusterClient("", (), "")
COMMON_ROWS = (
    Setting("client.id", Type.STRING, None, "Client id, or its first part, at the brokers.", _ALL),
    Setting(
        "request.timeout.ms", Type.INT, str(_CLIENT.request_timeout_ms),
        "Time limit of one request.", _ALL, low=0,
    ),
    Setting(
        "reconnect.backoff.ms", Type.LONG, str(_CLIENT.reconnect_backoff_ms),
        "First pause before reconnecting.", _ALL, low=0,
    ),
    Setting(
        "reconnect.backoff.max.ms", Type.LONG, str(_CLIENT.reconnect_backoff_ms_max),
        "Longest pause before reconnecting.", _ALL, low=0,
    ),
    Setting(
        "retry.backoff.ms", Type.LONG, str(_CLIENT.retry_backoff_ms),
        "First pause before a retry.", _ALL, low=0,
    ),
    Setting(
        "retry.backoff.max.ms", Type.LONG, str(_CLIENT.retry_backoff_ms_max),
        "Longest pause before a retry.", _ALL, low=0,
    ),
    Setting(
        "metadata.max.age.ms", Type.LONG, str(_CLIENT.metadata_age_ms_max),
        "Age at which metadata is refreshed.", _ALL, low=0,
    ),
    Setting(
        "socket.connection.setup.timeout.ms", Type.LONG, str(_CLIENT.connect_timeout_ms),
        "First time limit of connecting.", _ALL, low=0,
    ),
    Setting(
        "socket.connection.setup.timeout.max.ms", Type.LONG, str(_CLIENT.connect_timeout_ms_max),
        "Longest time limit of connecting.", _ALL, low=0,
    ),
)  # fmt: skip

FETCH_ROWS = (
    Setting(
        "fetch.max.wait.ms", Type.INT, str(_F.fetch_max_wait_ms),
        "How long the source may delay a Fetch response until there is enough data.", _CONSUMER,
        low=0,
        mm1=("fetch.wait.max.ms",),
    ),
    Setting(
        "fetch.min.bytes", Type.INT, str(_F.fetch_min_bytes),
        "How many bytes are enough for a Fetch response.", _CONSUMER, low=0,
    ),
    Setting(
        "fetch.max.bytes", Type.INT, str(_F.fetch_max_bytes),
        "Maximum bytes of one Fetch response. More than 4 MiB means 4 MiB: it brings no benefit.",
        _CONSUMER, low=0, java_default="52428800",
    ),
    Setting(
        "max.partition.fetch.bytes", Type.INT, str(_F.partition_fetch_bytes_max),
        "Maximum bytes of one partition in a Fetch response.", _CONSUMER, low=0,
        java_default="1048576",
        mm1=("fetch.message.max.bytes",),
    ),
    Setting(
        "isolation.level", Type.STRING, _F.isolation_level,
        "Whether aborted and open transactions are excluded. Java's default mirrors them.",
        _CONSUMER, choices=("read_committed", "read_uncommitted"), java_default="read_uncommitted",
    ),
    Setting(
        "auto.offset.reset", Type.STRING, _F.auto_offset_reset,
        "Where to start without a position: earliest, latest, by_duration:PT12H (so long before "
        "the start) or none (MirrorMaker 1: latest).",
        _CONSUMER, java_default="latest",
    ),
    Setting(
        "check.crcs", Type.BOOLEAN, "true", "Check each batch's checksum on arrival.", _CONSUMER
    ),
    Setting("client.rack", Type.STRING, "", "Rack of the mirror, to read from near replicas.",
            _CONSUMER),
    Setting(
        "receive.buffer.bytes", Type.INT, str(_F.receive_buffer_bytes),
        "TCP receive buffer of the source connections; -1 = the system's.", _CONSUMER, low=-1,
        java_default="65536", mm1=("socket.receive.buffer.bytes",),
    ),
    Setting(
        "exclude.internal.topics", Type.BOOLEAN, "true",
        "MirrorMaker 1: leave out Kafka's own topics even if the include list matches them.",
        _CONSUMER,
    ),
)  # fmt: skip

PRODUCE_ROWS = (
    Setting(
        "acks", Type.STRING, "all",
        "Which replicas must have a batch before it counts. `0` is refused: a position is "
        "committed only after the target has acknowledged the records.", _PRODUCER,
        choices=("all", "-1", "0", "1"), mm1=("request.required.acks",),
    ),
    Setting(
        "enable.idempotence", Type.BOOLEAN, "true",
        "Have the target drop duplicates of retried batches. Disabled if acks is not all or more "
        "than 5 requests may be in flight; that is an error if it is set to true.", _PRODUCER,
        java_default="false",
    ),
    Setting(
        "max.in.flight.requests.per.connection", Type.INT, str(_P.in_flight_requests_max),
        "Maximum number of Produce requests in flight per broker.", _PRODUCER, low=1,
        java_default="1",
    ),
    Setting(
        "delivery.timeout.ms", Type.INT, str(_P.delivery_timeout_ms),
        "How long a batch is retried before its partition is halted.", _PRODUCER, low=0,
    ),
    Setting(
        "transaction.timeout.ms", Type.INT, "60000",
        "Exactly-once: time after which the target aborts a transaction that was not ended.",
        _PRODUCER, low=1,
    ),
    Setting(
        "max.request.size", Type.INT, str(_P.request_bytes_max),
        "Maximum bytes of one Produce request.", _PRODUCER, low=0, java_default="1048576",
    ),
    Setting(
        "send.buffer.bytes", Type.INT, str(_P.send_buffer_bytes),
        "TCP send buffer of the target connections; -1 = the system's.", _PRODUCER, low=-1,
        java_default="131072",
    ),
    Setting(
        "linger.ms", Type.LONG, str(_P.linger_ms),
        "How long records wait for more, so that joined and re-encoded batches get larger. The "
        "source's broker waits, at most fetch.max.wait.ms; the first record after a pause does not "
        "wait.", _PRODUCER, low=0, java_default="5",
    ),
)  # fmt: skip


def _ignored(
    scopes: tuple[Scope, ...],
    *rows: tuple[str, Type, str | None, float | None, tuple[str, ...], str, str],
) -> tuple[Setting, ...]:
    return tuple(
        Setting(
            name, kind, default, doc, scopes, low=low, choices=choices, fold_case=True,
            status=_I, reason=reason,
        )
        for name, kind, default, low, choices, doc, reason in rows
    )  # fmt: skip


_IGNORED = (
    *_ignored(
        _ALL,
        ("client.dns.lookup", Type.STRING, "use_all_dns_ips", None,
         ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only", "default"),
         "How host names are resolved; `default` is 2.x's.",
         "all addresses of a host are tried, and certificates and Kerberos principals must be for "
         "the name in the file: instead of an alias that resolves to brokers, name the brokers"),
        ("bootstrap.resolve.timeout.ms", Type.LONG, "0", 0, (),
         "How long the names of the bootstrap servers may not resolve.",
         "names are resolved for each connection, within request.timeout.ms"),
        ("metadata.cluster.check.enable", Type.BOOLEAN, "true", None, (),
         "Have brokers refuse a client that expects another cluster.",
         "positions contain the cluster's id, which the mirror compares"),
        ("connections.max.idle.ms", Type.LONG, "540000", None, (), "Closes idle connections.",
         "connections live as long as the flow"),
        ("metadata.recovery.strategy", Type.STRING, "rebootstrap", None, ("rebootstrap", "none"),
         "What to do when no known broker responds.", _ONE_POLICY),
        ("metadata.recovery.rebootstrap.trigger.ms", Type.LONG, "300000", 0, (),
         "When to start over from the bootstrap list.", _ONE_POLICY),
        ("enable.metrics.push", Type.BOOLEAN, "true", None, (), "Send client metrics to brokers.",
         "client metrics are not pushed"),
        ("metric.reporters", Type.LIST, "org.apache.kafka.common.metrics.JmxReporter", None, (),
         "Java classes that metrics are reported to.", _NO_JMX),
        ("metrics.num.samples", Type.INT, "2", 1, (), "Samples per metric.", _NO_JMX),
        ("metrics.recording.level", Type.STRING, "INFO", None, ("INFO", "DEBUG", "TRACE"),
         "How much is measured.", _NO_JMX),
        ("metrics.sample.window.ms", Type.LONG, "30000", 0, (), "Window of a sample.", _NO_JMX),
        ("config.providers", Type.LIST, "", None, (), "Names of config providers.",
         "a MirrorMaker 2 file declares them at its top level"),
        ("security.providers", Type.STRING, None, None, (), "Java security providers.",
         "no Java security is used"),
    ),
    *_ignored(
        _CA,
        ("default.api.timeout.ms", Type.INT, "60000", 0, (), "Time limit of a client call.",
         "each request has its own limit (request.timeout.ms)"),
        ("send.buffer.bytes", Type.INT, "131072", -1, (), "TCP send buffer.",
         "only small requests are sent on these connections"),
    ),
    *_ignored(
        (Scope.PRODUCER, Scope.ADMIN),
        ("receive.buffer.bytes", Type.INT, "32768", -1, (), "TCP receive buffer.",
         "only small responses are received on these connections"),
        ("retries", Type.INT, "2147483647", 0, (), "How often to retry.",
         "retries are limited by time, not by count"),
    ),
    *_ignored(
        _CONSUMER,
        ("allow.auto.create.topics", Type.BOOLEAN, "true", None, (),
         "Let the source create topics that are requested.", "source topics are never created"),
        ("auto.commit.interval.ms", Type.INT, "5000", 0, (), "How often offsets are committed.",
         "positions are committed after the target has acknowledged"),
        ("enable.auto.commit", Type.BOOLEAN, "false", None, (), "Commit offsets when polled.",
         "positions are committed after the target has acknowledged"),
        ("max.poll.records", Type.INT, "500", 1, (), "Maximum number of records of one poll.",
         "whole batches are copied (fetch.max.bytes limits them)"),
        ("key.deserializer", Type.CLASS, None, None, (), "How keys are decoded.", _BYTES),
        ("value.deserializer", Type.CLASS, None, None, (), "How values are decoded.", _BYTES),
        ("share.acknowledgement.mode", Type.STRING, "implicit", None, ("implicit", "explicit"),
         "For share groups.", _NO_GROUP),
        ("share.acquire.mode", Type.STRING, "batch_optimized", None,
         ("batch_optimized", "record_limit"), "For share groups.", _NO_GROUP),
        ("internal.throw.on.fetch.stable.offset.unsupported", Type.BOOLEAN, "false", None, (),
         "Internal switch of Java's consumer.", "it is only for Java programs"),
    ),
    *_ignored(
        _PRODUCER,
        ("buffer.memory", Type.LONG, "33554432", 0, (), "Memory for records to be sent.",
         "fetch.max.bytes limits memory"),
        ("max.block.ms", Type.LONG, "9223372036854775807", 0, (), "How long a send may block.",
         "the flow waits without a time limit"),
        ("metadata.max.idle.ms", Type.LONG, "300000", 5000, (), "When unused topics are forgotten.",
         "every topic of a flow is in use"),
        ("partitioner.adaptive.partitioning.enable", Type.BOOLEAN, "true", None, (),
         "Prefer quick brokers.", "records keep their partition number"),
        ("partitioner.availability.timeout.ms", Type.LONG, "0", 0, (), "Avoid slow brokers.",
         "records keep their partition number"),
        ("partitioner.rack.aware", Type.BOOLEAN, "false", None, (),
         "Prefer partitions with a leader in client.rack.", "records keep their partition number"),
        ("client.rack", Type.STRING, "", None, (), "Rack of the producer.",
         "it belongs to partitioner.rack.aware"),
        ("buffer.memory.allocation.strategy", Type.STRING, "full", None, ("full", "incremental"),
         "How batches' memory is allocated.", "fetch.max.bytes limits memory"),
        ("key.serializer", Type.CLASS, None, None, (), "How keys are encoded.", _BYTES),
        ("value.serializer", Type.CLASS, None, None, (), "How values are encoded.", _BYTES),
        ("transaction.two.phase.commit.enable", Type.BOOLEAN, "false", None, (),
         "Two-phase commit.", "the mirror ends its transactions itself"),
        # MirrorMaker 1 removes this key before it creates its producer.
        ("producer.type", Type.STRING, "async", None, ("sync", "async"),
         "MirrorMaker 1: wait for each record's acknowledgement.",
         "every batch is acknowledged before its position is committed"),
    ),
    *_ignored(
        _ADMIN,
        ("bootstrap.controllers", Type.LIST, "", None, (), "Controllers to connect to directly.",
         "brokers are used (bootstrap.servers)"),
    ),
)  # fmt: skip

_REFUSED = (
    Setting(
        "interceptor.classes", Type.LIST, "", "Java classes that see each record.", _CP,
        status=_R, reason="records are never decoded, and Java classes cannot be loaded",
    ),
    Setting(
        "transactional.id", Type.STRING, None, "Transactional id of the producer.", _PRODUCER,
        status=_R, reason="the mirror sets it itself when exactly-once is enabled",
    ),
)  # fmt: skip

CLIENT_ROWS = (
    COMMON_ROWS + FETCH_ROWS + GROUP_ROWS + PRODUCE_ROWS + RECORD_ROWS + _IGNORED + _REFUSED
)
