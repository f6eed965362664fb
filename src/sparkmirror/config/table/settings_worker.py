"""Settings rows: keys of the Connect worker that Java's MirrorMaker 2 runs inside.

They are written ``B.key`` with the alias of the target.
"""

from __future__ import annotations

from sparkmirror.config.table.setting import Scope, Setting, Status, Type

_W = (Scope.WORKER,)
_I = Status.IGNORED
_NO_CONNECT = "no Kafka Connect runs here"
_NO_REST = "there is no REST server: nodes communicate through Kafka"
_NO_JAVA = "no Java plugins are loaded"
_OWN_CLIENTS = "it is for the Connect worker's own clients; write B.producer.KEY or B.admin.KEY"

_SUPPORTED = (
    Setting(
        "offset.storage.topic", Type.STRING, None,
        "Topic on the target with positions in Connect's format; mm2-offsets.A.internal.", _W,
    ),
    Setting(
        "offset.storage.partitions", Type.INT, "25",
        "Partitions of that topic if it has to be created; -1 = the broker's default.", _W, low=-1,
    ),
    Setting(
        "offset.storage.replication.factor", Type.SHORT, "3",
        "Replication factor of that topic if it has to be created; -1 = the broker's default.",
        _W, low=-1,
    ),
    Setting(
        "offset.flush.interval.ms", Type.LONG, "60000",
        "Upper limit of sparkmirror.position.interval.ms (which is at least 100 ms).", _W,
        low=1, mm1=("--offset.commit.interval.ms",),
    ),
    Setting(
        "exactly.once.source.support", Type.STRING, "disabled",
        "`enabled`: records and positions are written in one transaction. `preparing` means the "
        "same as `disabled`, because no mirror has to be prepared.", _W,
        choices=("disabled", "preparing", "enabled"), fold_case=True,
    ),
)  # fmt: skip

_IGNORED = tuple(
    Setting(
        name, kind, default, doc, _W, low=low, choices=choices, fold_case=True,
        status=_I, reason=reason,
    )
    for name, kind, default, low, choices, doc, reason in (
        ("group.id", Type.STRING, None, None, (), "Connect group of the workers.", _NO_CONNECT),
        ("connect.protocol", Type.STRING, "sessioned", None, ("eager", "compatible", "sessioned"),
         "Version of Connect's group protocol.", _NO_CONNECT),
        ("session.timeout.ms", Type.INT, "10000", None, (), "Time until a worker is removed.",
         _NO_CONNECT),
        ("heartbeat.interval.ms", Type.INT, "3000", None, (), "Heartbeats of workers.",
         _NO_CONNECT),
        ("rebalance.timeout.ms", Type.INT, "60000", None, (), "Time to join a rebalance.",
         _NO_CONNECT),
        ("scheduled.rebalance.max.delay.ms", Type.INT, "300000", 0, (),
         "Wait for workers that left.", _NO_CONNECT),
        ("worker.sync.timeout.ms", Type.INT, "3000", None, (), "Time to catch up with configs.",
         _NO_CONNECT),
        ("worker.unsync.backoff.ms", Type.INT, "300000", None, (),
         "Pause of a worker that cannot catch up.", _NO_CONNECT),
        ("offset.flush.timeout.ms", Type.LONG, "5000", None, (), "Time limit of an offset commit.",
         "positions are committed without stopping the flow"),
        ("task.shutdown.graceful.timeout.ms", Type.LONG, "5000", None, (),
         "Time for tasks to stop.", "a drain always ends within ten seconds"),
        ("topic.creation.enable", Type.BOOLEAN, "true", None, (), "Let Connect create topics.",
         "remote topics are created by the mirror itself"),
        ("topic.tracking.enable", Type.BOOLEAN, "true", None, (), "Record topics in use.",
         _NO_CONNECT),
        ("topic.tracking.allow.reset", Type.BOOLEAN, "true", None, (), "Allow a reset of these.",
         _NO_CONNECT),
        ("connector.client.config.override.policy", Type.STRING, "All", None, (),
         "Which client settings connectors may override.", "producer.override.* always works"),
        ("config.storage.topic", Type.STRING, None, None, (), "Topic of connector configs.",
         _NO_CONNECT),
        ("config.storage.replication.factor", Type.SHORT, "3", -1, (), "Its replication factor.",
         _NO_CONNECT),
        ("status.storage.topic", Type.STRING, None, None, (), "Topic of connector states.",
         _NO_CONNECT),
        ("status.storage.partitions", Type.INT, "5", -1, (), "Its partitions.", _NO_CONNECT),
        ("status.storage.replication.factor", Type.SHORT, "3", -1, (), "Its replication factor.",
         _NO_CONNECT),
        ("admin.listeners", Type.LIST, None, None, (), "Addresses of the admin REST API.",
         _NO_REST),
        ("rest.extension.classes", Type.LIST, "", None, (), "Extensions of the REST API.",
         _NO_REST),
        ("inter.worker.key.generation.algorithm", Type.STRING, "HmacSHA256", None, (),
         "Makes keys that sign REST requests.", _NO_REST),
        ("inter.worker.key.size", Type.INT, None, None, (), "Bits of these keys.", _NO_REST),
        ("inter.worker.key.ttl.ms", Type.INT, "3600000", 0, (), "Lifetime of these keys.",
         _NO_REST),
        ("inter.worker.signature.algorithm", Type.STRING, "HmacSHA256", None, (),
         "Signs REST requests.", _NO_REST),
        ("inter.worker.verification.algorithms", Type.LIST, "HmacSHA256", None, (),
         "Accepted signatures of REST requests.", _NO_REST),
        ("plugin.path", Type.LIST, None, None, (), "Directories of Java plugins.", _NO_JAVA),
        ("plugin.discovery", Type.STRING, "hybrid_warn", None,
         ("only_scan", "service_load", "hybrid_warn", "hybrid_fail"),
         "How Java plugins are found.", _NO_JAVA),
        # Keys of the worker's own clients.
        ("client.id", Type.STRING, "", None, (), "Client id of the worker.", _OWN_CLIENTS),
        ("client.dns.lookup", Type.STRING, "use_all_dns_ips", None,
         ("use_all_dns_ips", "resolve_canonical_bootstrap_servers_only", "default"),
         "How host names are resolved; `default` is 2.x's.", _OWN_CLIENTS),
        ("connections.max.idle.ms", Type.LONG, "540000", None, (), "Closes idle connections.",
         _OWN_CLIENTS),
        ("metadata.max.age.ms", Type.LONG, "300000", 0, (), "Age at which metadata is refreshed.",
         _OWN_CLIENTS),
        ("metadata.recovery.strategy", Type.STRING, "rebootstrap", None, ("rebootstrap", "none"),
         "What to do when no known broker responds.", _OWN_CLIENTS),
        ("metadata.recovery.rebootstrap.trigger.ms", Type.LONG, "300000", 0, (),
         "When to start over from the bootstrap list.", _OWN_CLIENTS),
        ("request.timeout.ms", Type.INT, "40000", 0, (), "Time limit of a request.", _OWN_CLIENTS),
        ("retry.backoff.ms", Type.LONG, "100", 0, (), "First pause before a retry.", _OWN_CLIENTS),
        ("retry.backoff.max.ms", Type.LONG, "1000", 0, (), "Longest such pause.", _OWN_CLIENTS),
        ("reconnect.backoff.ms", Type.LONG, "50", 0, (), "First pause before reconnecting.",
         _OWN_CLIENTS),
        ("reconnect.backoff.max.ms", Type.LONG, "1000", 0, (), "Longest such pause.",
         _OWN_CLIENTS),
        ("socket.connection.setup.timeout.ms", Type.LONG, "10000", 0, (),
         "Time limit of connecting.", _OWN_CLIENTS),
        ("socket.connection.setup.timeout.max.ms", Type.LONG, "30000", 0, (),
         "Longest such limit.", _OWN_CLIENTS),
        ("receive.buffer.bytes", Type.INT, "32768", -1, (), "TCP receive buffer.", _OWN_CLIENTS),
        ("send.buffer.bytes", Type.INT, "131072", -1, (), "TCP send buffer.", _OWN_CLIENTS),
        ("metric.reporters", Type.LIST, "org.apache.kafka.common.metrics.JmxReporter", None, (),
         "Java classes that metrics are reported to.",
         "there are no JMX metrics; see sparkmirror.metrics.listen"),
        ("metrics.num.samples", Type.INT, "2", 1, (), "Samples per metric.",
         "there are no JMX metrics; see sparkmirror.metrics.listen"),
        ("metrics.recording.level", Type.STRING, "INFO", None, ("INFO", "DEBUG"),
         "How much is measured.", "there are no JMX metrics; see sparkmirror.metrics.listen"),
        ("metrics.sample.window.ms", Type.LONG, "30000", 0, (), "Window of a sample.",
         "there are no JMX metrics; see sparkmirror.metrics.listen"),
    )
)  # fmt: skip

WORKER_ROWS = _SUPPORTED + _IGNORED
