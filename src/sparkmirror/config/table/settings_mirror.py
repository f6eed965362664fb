"""Settings rows: driver and connector keys of MirrorMaker 2, and sparkmirror's own."""

from __future__ import annotations

from sparkmirror.config.table.own import BATCH_ROWS, RING_ROWS
from sparkmirror.config.table.setting import Scope, Setting, Status, Type
from sparkmirror.settings import (
    CheckpointSettings,
    OffsetSyncSettings,
    PolicySettings,
    TopicSettings,
)

_D = (Scope.DRIVER,)
_C = (Scope.CONNECTOR,)
_DW = (Scope.DRIVER, Scope.WORKER)
_DC = (Scope.DRIVER, Scope.CONNECTOR)
_CW = (Scope.CONNECTOR, Scope.WORKER)
_I = Status.IGNORED
_R = Status.REFUSED
_T = TopicSettings()
_S = OffsetSyncSettings()
_G = CheckpointSettings()

_NO_REST = "there is no REST server: nodes communicate through Kafka"
_NO_CONNECT = "no Kafka Connect runs here"
_RAW = "records are copied as raw batches and never decoded"

DRIVER_ROWS = (
    Setting(
        "clusters", Type.LIST, None, "Aliases of all clusters in the file.", _D,
        required=True, empty_allowed=False,
    ),
    Setting(
        "dedicated.mode.enable.internal.rest", Type.BOOLEAN, "false",
        "Let the nodes of one mirror talk over HTTP.", _D, status=_I, reason=_NO_REST,
    ),
    Setting(
        "config.providers", Type.LIST, "",
        "Names of the providers that `${name:path:key}` placeholders in values refer to.",
        (Scope.DRIVER, Scope.CONNECTOR, Scope.WORKER),
    ),
    *(
        Setting(name, kind, default, doc, _DW, status=_I, reason=_NO_REST)
        for name, kind, default, doc in (
            ("listeners", Type.LIST, "http://:8083", "Addresses of the REST server."),
            ("rest.advertised.host.name", Type.STRING, None, "Host that REST peers are given."),
            ("rest.advertised.listener", Type.STRING, None, "Listener that REST peers are given."),
            ("rest.advertised.port", Type.INT, None, "Port that REST peers are given."),
            ("access.control.allow.origin", Type.STRING, "", "CORS origin of the REST server."),
            ("access.control.allow.methods", Type.STRING, "", "CORS methods of the REST server."),
            ("response.http.headers.config", Type.STRING, "", "Headers of REST responses."),
        )
    ),
    Setting(
        "ssl.client.auth", Type.STRING, "none", "Client certificates on the REST server.", _DW,
        choices=("required", "requested", "none"), status=_I, reason=_NO_REST,
    ),
)  # fmt: skip

# The flow itself, its topics, and the creation of remote topics.
_SOURCE_ROWS = (
    Setting("enabled", Type.BOOLEAN, "false", "Mirror this flow.", _C, java_default="true"),
    Setting(
        "tasks.max", Type.INT, "1",
        "Maximum number of slots (Spark tasks) of one flow; exactly-once: at most 1,000.", _C,
        low=1, mm1=("--num.streams",),
    ),
    Setting(
        "topics", Type.LIST, ",".join(_T.include),
        "Topics to mirror: Java regexes, each matching whole names.", _C,
        regexes=True, mm1=("--include", "--whitelist"),
    ),
    Setting(
        "topics.exclude", Type.LIST, ",".join(_T.exclude),
        "Topics to exclude; overrides `topics`.", _C, regexes=True,
    ),
    Setting(
        "config.properties.exclude", Type.LIST, ",".join(_T.config_properties_exclude),
        "Topic configs that are not copied to remote topics.", _C,
        regexes=True,
    ),
    Setting(
        "use.defaults.from", Type.STRING, _T.use_defaults_from,
        "Which defaults a remote topic gets for configs that the source topic does not set: "
        "`source` copies the source's, anything else keeps the target's. Works only as "
        "`A->B.use.defaults.from`.",
        _C,
    ),
    Setting(
        "replication.factor", Type.INT, str(_T.replication_factor),
        "Replication factor of remote topics that are created; -1 = the broker's default.", _C,
        low=-1,
    ),
    Setting(
        "refresh.topics.enabled", Type.BOOLEAN, "true",
        "Pick up new topics and partitions while running.", _C,
    ),
    Setting(
        "refresh.topics.interval.seconds", Type.LONG, str(_T.refresh_interval_s),
        "How often to look for new topics and partitions; a negative number: never.", _C,
        mm1=("metadata.max.age.ms",),
    ),
    Setting(
        "heartbeats.replication.enabled", Type.BOOLEAN, "true",
        "Mirror heartbeats topics even if `topics` does not name them.", _C,
    ),
    Setting(
        "replication.policy.class", Type.CLASS, "DefaultReplicationPolicy",
        "How remote topics are named: DefaultReplicationPolicy (`A.topic`) or "
        "IdentityReplicationPolicy (`topic`).", _CW,
        choices=("DefaultReplicationPolicy", "IdentityReplicationPolicy",
                 "LegacyReplicationPolicy"),
        reason="custom Java policies cannot be loaded",
    ),
    Setting(
        "replication.policy.separator", Type.STRING, PolicySettings().separator,
        "Text between alias and topic in remote names.", _CW,
    ),
    Setting(
        "replication.policy.internal.topic.separator.enabled", Type.BOOLEAN, "true",
        "Use that separator in the names of MirrorMaker's own topics too.", _CW,
    ),
)  # fmt: skip

# Configs and ACLs that are synced to existing topics.
_SYNC_ROWS = (
    Setting(
        "sync.topic.configs.enabled", Type.BOOLEAN, "true",
        "Keep the configs of remote topics equal to the source's.", _C,
    ),
    Setting(
        "sync.topic.configs.interval.seconds", Type.LONG, str(_T.sync_configs_interval_s),
        "How often to compare topic configs; a negative number: never.", _C,
    ),
    Setting(
        "sync.topic.acls.enabled", Type.BOOLEAN, "true",
        "Copy the ACLs of source topics to remote topics, except write permissions.", _C,
    ),
    Setting(
        "sync.topic.acls.interval.seconds", Type.LONG, str(_T.sync_acls_interval_s),
        "How often to compare topic ACLs; a negative number: never.", _C,
    ),
)  # fmt: skip

# Offset syncs, checkpoints, group offsets, heartbeats. A negative interval means never, as in
# MirrorMaker.
_GROUP_ROWS = (
    *(
        Setting(name, Type.BOOLEAN, default, doc, _C)
        for name, default, doc in (
            ("emit.heartbeats.enabled", "true",
             "Emit heartbeats to the target, also for a pair of clusters without a flow."),
            ("emit.checkpoints.enabled", "true",
             "Emit checkpoints: offsets of the source's groups, translated to the target."),
            ("emit.offset-syncs.enabled", "true",
             "Emit offset syncs, from which checkpoints are computed."),
            ("sync.group.offsets.enabled", "false",
             "Commit translated offsets to groups of the target that have no active members."),
            ("refresh.groups.enabled", "true", "Pick up new consumer groups while running."),
        )
    ),
    *(
        Setting(name, Type.LONG, str(default), doc, _C)
        for name, default, doc in (
            ("emit.heartbeats.interval.seconds", 1, "How often to emit a heartbeat."),
            ("emit.checkpoints.interval.seconds", _G.interval_s, "How often to emit checkpoints."),
            ("sync.group.offsets.interval.seconds", _G.sync_interval_s,
             "How often to commit group offsets."),
            ("refresh.groups.interval.seconds", _G.refresh_interval_s,
             "How often to look for new consumer groups."),
            ("offset.lag.max", _S.lag_max,
             "Offset syncs: number of target offsets after which the next one is written."),
        )
    ),
    *(
        Setting(f"{topic}.topic.replication.factor", Type.SHORT, "3",
                f"Replication factor of the {topic} topic when it is created; -1 = the broker's "
                "default.", _C, low=-1)
        for topic in ("heartbeats", "checkpoints", "offset-syncs")
    ),
    Setting(
        "offset-syncs.topic.location", Type.STRING, _S.location,
        "Cluster that holds the offset-syncs topic.", _C, choices=("source", "target"),
    ),
    Setting(
        "groups", Type.LIST, ",".join(_G.include),
        "Consumer groups that get checkpoints: Java regexes, each matching whole names.", _C,
        regexes=True,
    ),
    Setting(
        "groups.exclude", Type.LIST, ",".join(_G.exclude),
        "Consumer groups to exclude; overrides `groups`.", _C, regexes=True,
    ),
)  # fmt: skip

_CONNECT_ROWS = (
    *(
        Setting(
            name, Type.CLASS, choice, doc, _C, choices=(choice,),
            reason="custom Java classes cannot be loaded",
        )
        for name, choice, doc in (
            ("topic.filter.class", "DefaultTopicFilter", "Class that filters topics."),
            ("group.filter.class", "DefaultGroupFilter", "Class that filters groups."),
            ("config.property.filter.class", "DefaultConfigPropertyFilter",
             "Class that filters topic configs."),
            ("forwarding.admin.class", "ForwardingAdmin", "Class that changes the target."),
        )
    ),
    *(
        Setting(name, Type.CLASS, "ByteArrayConverter", doc, _CW, choices=("ByteArrayConverter",),
                reason=_RAW)
        for name, doc in (
            ("key.converter", "How keys are converted."),
            ("value.converter", "How values are converted."),
            ("header.converter", "How headers are converted."),
        )
    ),
    *(
        Setting(f"{part}.converter.plugin.version", Type.STRING, None,
                f"Version of the {part} converter.", _CW, status=_I, reason=_NO_CONNECT)
        for part in ("key", "value", "header")
    ),
    Setting(
        "transforms", Type.LIST, "",
        "Aliases of the flow's single message transforms, in order: `Filter`, `DropHeaders`, "
        "`InsertHeader` (null), `RegexRouter`. Their settings are `A->B.transforms.ALIAS.type` and "
        "so on ([single message transforms](single-message-transforms.md)). In Java they also "
        "apply to checkpoints and heartbeats.", _C,
    ),
    Setting(
        "predicates", Type.LIST, "",
        "Aliases of the predicates that `transforms` refer to: `TopicNameMatches`, `HasHeaderKey`, "
        "`RecordIsTombstone`.", _C,
    ),
    *(
        Setting(name, kind, default, doc, _C, low=low, choices=choices, status=_I, reason=reason)
        for name, kind, default, low, choices, doc, reason in (
            ("name", Type.STRING, None, None, (), "Name of the connector.", _NO_CONNECT),
            ("connector.class", Type.STRING, None, None, (), "Connector class.", _NO_CONNECT),
            ("connector.plugin.version", Type.STRING, None, None, (), "Connector version.",
             _NO_CONNECT),
            ("tasks.max.enforce", Type.BOOLEAN, "true", None, (),
             "Fail a connector that creates too many tasks.", "tasks.max is always enforced"),
            ("config.action.reload", Type.STRING, "restart", None, ("none", "restart"),
             "What happens when a config provider has new values.",
             "values are read once, when the mirror starts"),
            ("errors.tolerance", Type.STRING, "none", None, ("none", "all"),
             "Skip records that cannot be converted.",
             f"{_RAW}, so none can fail; for records that the target refuses write "
             "sparkmirror.on.bad.record=skip or dead-letter"),
            ("errors.retry.timeout", Type.LONG, "0", None, (),
             "How long to retry a failed conversion.", f"{_RAW}, so none can fail"),
            ("errors.retry.delay.max.ms", Type.LONG, "60000", None, (),
             "Longest pause between such retries.", f"{_RAW}, so none can fail"),
            ("errors.log.enable", Type.BOOLEAN, "false", None, (),
             "Log failed conversions.", f"{_RAW}, so none can fail"),
            ("errors.log.include.messages", Type.BOOLEAN, "false", None, (),
             "Log the records of failed conversions.", f"{_RAW}, so none can fail"),
            ("admin.timeout.ms", Type.LONG, "60000", None, (),
             "Time limit of administrative jobs.",
             "each request has its own limit (A.admin.request.timeout.ms)"),
            ("consumer.poll.timeout.ms", Type.LONG, "1000", None, (),
             "How long one poll may wait.",
             "the source is read by long polls (A.consumer.fetch.max.wait.ms)"),
            ("metric.names.formats", Type.LIST, "legacy", None, ("legacy", "new"),
             "Names of JMX metrics.", "there are no JMX metrics; see sparkmirror.metrics.listen"),
            ("metric.reporters", Type.LIST, "org.apache.kafka.common.metrics.JmxReporter", None,
             (), "Java classes that metrics are reported to.",
             "there are no JMX metrics; see sparkmirror.metrics.listen"),
            ("transaction.boundary", Type.STRING, "poll", None,
             ("poll", "interval", "connector"), "Where Connect ends transactions.", _NO_CONNECT),
            ("transaction.boundary.interval.ms", Type.LONG, None, 0, (),
             "How often Connect ends transactions.", _NO_CONNECT),
            ("topic.creation.groups", Type.LIST, "", None, (),
             "Rules by which Connect creates topics.",
             "remote topics get the source's partitions and configs"),
            ("offsets.storage.topic", Type.STRING, None, None, (),
             "Offsets topic of one connector.",
             "the topic is that of the cluster (B.offset.storage.topic)"),
        )
    ),
    Setting(
        "exactly.once.support", Type.STRING, "requested",
        "`required`: the flow does not start unless exactly-once is enabled for its target.",
        _C, choices=("requested", "required"), fold_case=True,
    ),
    *(
        Setting(name, kind, default, doc, _C, required=required, status=_R,
                reason="it is set by the mirror itself")
        for name, kind, default, required, doc in (
            ("source.cluster.alias", Type.STRING, None, False, "Alias of a flow's source."),
            ("target.cluster.alias", Type.STRING, "target", False, "Alias of a flow's target."),
            ("task.assigned.partitions", Type.LIST, None, False, "Partitions of one task."),
            ("task.assigned.groups", Type.LIST, None, False, "Groups of one task."),
            ("task.index", Type.INT, None, False, "Number of one task."),
        )
    ),
)  # fmt: skip

CONNECTOR_ROWS = _SOURCE_ROWS + _SYNC_ROWS + _GROUP_ROWS + _CONNECT_ROWS

OWN_ROWS = (
    Setting(
        "sync.topic.configs.keep", Type.LIST, "",
        "Topic configs whose overrides on remote topics are kept if the source has no override; "
        "Java MirrorMaker resets them at each sync.", (Scope.SPARKMIRROR,), regexes=True,
    ),
    Setting(
        "sparkmirror.epoch.seconds", Type.INT, "86400",
        "Length of an epoch: how long a Spark micro-batch streams before the next one. Between two "
        "epochs the flow pauses for a moment (sparkmirror_pause_seconds).",
        (Scope.SPARKMIRROR,), low=1, high=86_400,
    ),
    Setting(
        "sparkmirror.position.interval.ms", Type.INT, "1000",
        "Time between two commits of positions; a smaller offset.flush.interval.ms lowers it.",
        (Scope.SPARKMIRROR,), low=100, high=60_000, mm1=("--offset.commit.interval.ms",),
    ),
    Setting(
        "sparkmirror.transaction.interval.ms", Type.INT,
        "100",
        "Exactly-once: maximum duration of a transaction, less than the producer's "
        "transaction.timeout.ms; sparkmirror.transaction.bytes may end it sooner.",
        (Scope.SPARKMIRROR,), low=10, high=10_000,
    ),
    Setting(
        "sparkmirror.transaction.commit.percent", Type.INT, "25",
        "Exactly-once: a transaction ends before sparkmirror.transaction.interval.ms as soon as no "
        "more records are at hand, as long as commits take at most this share of a slot's time. 0: "
        "it always lasts for the interval.",
        (Scope.SPARKMIRROR,), low=0, high=100,
    ),
    Setting(
        "sparkmirror.transaction.bytes", Type.INT, str(32 * 1024 * 1024),
        "Exactly-once: maximum bytes of records in a transaction (at least one batch); fewer if "
        "they would take more than a quarter of the producer's transaction.timeout.ms, or half of "
        "a slot's memory frames.",
        (Scope.SPARKMIRROR,), low=1, high=32 * 1024 * 1024,
    ),
    Setting(
        "sparkmirror.control.secret", Type.PASSWORD, "",
        "Signs the claims in the control topic that say which run writes a flow; unsigned claims "
        "are ignored. At least 32 characters that are hard to guess, the same for all mirrors that "
        "run the flow.", (Scope.SPARKMIRROR,),
    ),
    Setting(
        "sparkmirror.session.timeout.ms", Type.INT, "10000",
        "If several processes run one file, one mirrors a flow and the others stand by. A standby "
        "takes it over when the owner's reports in the control topic have stopped for this long.",
        (Scope.SPARKMIRROR,), low=2_000, high=3_600_000,
    ),
    *BATCH_ROWS,
    *RING_ROWS,
)  # fmt: skip

# Keys of 2.4 to 3.x and their current names.
RENAMED_KEYS = {
    "topics.blacklist": "topics.exclude",
    "groups.blacklist": "groups.exclude",
    "config.properties.blacklist": "config.properties.exclude",
}
# Keys of 2.4 to 3.x without a replacement, and what happens instead.
DROPPED_KEYS = {
    "use.incremental.alter.configs": "topic configs are always changed one by one",
    "add.source.alias.to.metrics": "metrics always name the source",
    "auto.include.jmx.reporter": "there are no JMX metrics; see sparkmirror.metrics.listen",
    **{
        f"internal.{part}.converter{option}": _NO_CONNECT
        for part in ("key", "value")
        for option in ("", ".schemas.enable")
    },
    "rest.host.name": _NO_REST,
    "rest.port": _NO_REST,
}
# Keys of older MirrorMakers, and their replacement.
REMOVED_KEYS = {
    "emit.heartbeats": "emit.heartbeats.enabled",
    "emit.checkpoints": "emit.checkpoints.enabled",
    "enable": "enabled",
}
