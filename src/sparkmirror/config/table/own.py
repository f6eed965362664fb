"""Settings rows of sparkmirror's own: faults, names, transforms, schema registry, metrics."""

from __future__ import annotations

import re

from sparkmirror.config.table.setting import Scope, Setting, Type
from sparkmirror.settings import FaultSettings, FetchSettings, ProduceSettings

_F = FaultSettings()

# In order of precedence: the earlier choice wins if several lists name a topic.
LOSS_CHOICES = ("fail", "record-and-continue")
TARGET_LOSS_CHOICES = ("fail", "repair", "record-and-continue")
REFUSAL_CHOICES = ("pause", "dead-letter", "skip")

_LOSS = "sparkmirror.on.source.loss"
_TARGET_LOSS = "sparkmirror.on.target.loss"
_REFUSAL = "sparkmirror.on.bad.record"

FAULT_ROWS = (
    Setting(
        _LOSS, Type.STRING, _F.source_loss,
        "What to do when source data was lost before it was mirrored (deleted, truncated, topic "
        "recreated, cluster replaced): `fail` halts the partition, `record-and-continue` continues "
        "at the first available offset. Both write a gap record (`sparkmirror gaps`).",
        (Scope.SPARKMIRROR,), choices=LOSS_CHOICES,
    ),
    *(
        Setting(
            f"{_LOSS}.{choice}.topics", Type.LIST, "",
            f"Source topics (Java regexes) with `{choice}`, regardless of `{_LOSS}`; if several "
            "lists match a topic, the safer choice wins.",
            (Scope.SPARKMIRROR,), regexes=True,
        )
        for choice in LOSS_CHOICES
    ),
    Setting(
        _TARGET_LOSS, Type.STRING, _F.target_loss,
        "What to do when the target has lost records that it had acknowledged (remote topic "
        "recreated, log truncated, cluster replaced): `repair` mirrors them again from the end of "
        "the target's log, `fail` halts the partition, `record-and-continue` continues without "
        "them. All write a gap record (`sparkmirror gaps`).",
        (Scope.SPARKMIRROR,), choices=TARGET_LOSS_CHOICES,
    ),
    *(
        Setting(
            f"{_TARGET_LOSS}.{choice}.topics", Type.LIST, "",
            f"Source topics (Java regexes) with `{choice}`, regardless of `{_TARGET_LOSS}`; if "
            "several lists match a topic, `fail` wins, then `repair`.",
            (Scope.SPARKMIRROR,), regexes=True,
        )
        for choice in TARGET_LOSS_CHOICES
    ),
    Setting(
        _REFUSAL, Type.STRING, _F.bad_record,
        "What to do when the target refuses a record (too large, timestamp, null key on a "
        "compacted topic): `pause` halts the partition and retries, `skip` leaves the record out, "
        "`dead-letter` writes it to `<remote topic>.dead-letter`. Records left out get a gap "
        "record. The same for records on which a transform fails.",
        (Scope.SPARKMIRROR,), choices=REFUSAL_CHOICES,
    ),
    *(
        Setting(
            f"{_REFUSAL}.{choice}.topics", Type.LIST, "",
            f"Source topics (Java regexes) with `{choice}`, regardless of `{_REFUSAL}`; if several "
            "lists match a topic, the safer choice wins.",
            (Scope.SPARKMIRROR,), regexes=True,
        )
        for choice in REFUSAL_CHOICES
    ),
)  # fmt: skip

TOPICS_MAP = "sparkmirror.topics.map"

NAME_ROWS = (
    Setting(
        TOPICS_MAP, Type.STRING, "",
        "Names of remote topics: rules `REGEX => NAME`, separated by `;`. The first rule counts "
        "whose Java regex matches the whole name of a source topic. `$1` or `${name}` stand for "
        "its groups. NAME is the whole name on the target, without the policy's prefix. The policy "
        "names topics that no rule matches. In a properties file, double each backslash.",
        (Scope.SPARKMIRROR,), topics_map=True,
    ),
)  # fmt: skip

THROTTLE_ROWS = (
    Setting(
        "sparkmirror.throttle", Type.STRING, "",
        "Limit on the bytes per second that the flow reads, such as `50MB/s`, `50MiB/s` or "
        "`400Mbit/s`; empty or `off`: none. `sparkmirror throttle` changes it while the mirror "
        "runs ([throttling](throttling.md)).", (Scope.SPARKMIRROR,),
    ),
    Setting(
        "sparkmirror.throttle.between", Type.STRING, "",
        "When `sparkmirror.throttle` applies, such as `08:00-18:00` or `22:00-06:00`, in the time "
        "zone of the process that runs the flow; empty: always.", (Scope.SPARKMIRROR,),
    ),
    Setting(
        "sparkmirror.throttle.topics", Type.STRING, "",
        "Limits for some topics, besides that of the flow: rules `REGEX => RATE`, or `REGEX => "
        "RATE HH:MM-HH:MM`, separated by `;`. All topics whose whole name the Java regex matches "
        "share the rate.", (Scope.SPARKMIRROR,),
    ),
)  # fmt: skip

TRANSFORMS = "sparkmirror.transforms"
TRANSFORM = "sparkmirror.transform."
_OPTION = f"{TRANSFORM}NAME."
TABLE_SCHEMA = "table.TABLE.schema"
TABLE_OPTION = "table.TABLE.option.OPTION"
_TABLE_OPTION = re.compile(r"table\.([^.]+)\.(schema|option\..+)")
HASH_SALT = "sparkmirror.hash.salt"
ROUTED_CREATE = "sparkmirror.routing.create.topics"
ROUTED_MAX = f"{ROUTED_CREATE}.max"
_S = (Scope.SPARKMIRROR,)

TRANSFORM_ROWS = (
    Setting(
        TRANSFORMS, Type.LIST, "",
        "Names of the flow's transforms: Spark SQL, or Python functions, that filter or change the "
        "records of some topics on the way (MirrorMaker 2's files).", _S,
    ),
    Setting(
        f"{_OPTION}topics", Type.LIST, "",
        "Source topics (Java regexes) whose records the transform NAME processes. A topic belongs "
        "to one transform at most; all other topics stay raw batches.", _S, regexes=True,
    ),
    Setting(
        f"{_OPTION}where", Type.STRING, "",
        "Spark SQL: a record is mirrored if this is true. Columns as Spark's Kafka source has "
        "them: `topic`, `partition`, `offset`, `timestamp`, `timestampType`, `key`, `value`, "
        "`headers`.", _S,
    ),
    Setting(
        f"{_OPTION}select", Type.STRING, "",
        "Spark SQL: new values of `key`, `value`, `headers` or `timestamp`, as in "
        "`upper(CAST(value AS STRING)) AS value`, and where the record goes on the target: "
        "`… AS topic`, `… AS partition`. What it does not name is kept.", _S,
    ),
    Setting(
        f"{_OPTION}python", Type.STRING, "",
        "Instead of `where` and `select`: a Python function `module:function`, from a Spark "
        "DataFrame with these columns to one with the same columns "
        "([transforms](transforms.md#python-functions)).", _S,
    ),
    Setting(
        f"{_OPTION}handler", Type.STRING, "",
        "Instead of `where`, `select` and `python`: `module:name` of a Python callable that gets "
        "each record, like MirrorMaker 1's `--message.handler` "
        "([transforms](transforms.md#a-python-callable-per-record)).", _S,
    ),
    Setting(
        f"{_OPTION}args", Type.STRING, None,
        "A text for the `handler`: for the constructor of a class, or a function's second "
        "argument.", _S,
    ),
    Setting(
        f"{_OPTION}functions", Type.LIST, "",
        "`module:function` names: each is called with the flow's Spark session before its SQL is "
        "checked, and registers Java or SQL functions for it. Python functions are refused.", _S,
    ),
    Setting(
        f"{_OPTION}compression", Type.STRING, None,
        "Compression of the batches that the transform writes. Default: that of the source's "
        "batches; those of which all records stay as they are then pass as they are.", _S,
        choices=("none", "gzip", "snappy", "lz4", "zstd"),
    ),
    Setting(
        HASH_SALT, Type.PASSWORD, "",
        "What the SQL function `hash_json` puts before each value, so that hashes cannot be "
        "looked up. At least 16 characters; the same salt gives the same hashes.", _S,
    ),
    Setting(
        ROUTED_CREATE, Type.BOOLEAN, "true",
        "Whether the mirror creates topics that the target lacks and that records are routed to "
        "([routing](transforms.md#topics-that-the-mirror-creates)).", _S,
    ),
    Setting(
        ROUTED_MAX, Type.INT, "100",
        "How many topics the mirror creates at most because a record of the flow names them. Those "
        "that have been deleted since do not count. A record for one more follows "
        "`sparkmirror.on.bad.record`.", _S, low=1, high=1_000,
    ),
    Setting(
        f"{_OPTION}tables", Type.STRING, "",
        "Static tables that the SQL looks up rows in, as in `lookup('customers', 'id', …)`: "
        "`customers = parquet:/data/customers`, separated by `;`, with any format that Spark reads "
        "([tables](transforms.md#tables)).", _S,
    ),
    Setting(
        f"{_OPTION}{TABLE_SCHEMA}", Type.STRING, "",
        "Columns of the table TABLE, as in `id BIGINT, name STRING`. Empty: as its files have "
        "them; those of CSV and JSON are inferred.", _S,
    ),
    Setting(
        f"{_OPTION}{TABLE_OPTION}", Type.STRING, "",
        "Option of Spark's reader for the table TABLE. CSV has `header`, `inferSchema` = `true`, "
        "`enforceSchema` = `false`; CSV and JSON have `mode` = `FAILFAST`.", _S,
    ),
)  # fmt: skip

REGISTRY = "sparkmirror.registry."
_STORE = f"{REGISTRY}ssl.truststore."
_KEYSTORE = f"{REGISTRY}ssl.keystore."

# Confluent's clients have the same keys, with schema.registry. in front of some.
REGISTRY_ROWS = (
    Setting(
        f"{REGISTRY}url", Type.LIST, "",
        "Addresses of the schema registry for the SQL functions `decode_registry` and "
        "`encode_registry`, such as `https://registry:8081`; several are replicas of one registry "
        "([transforms](transforms.md#schema-registry)).", _S,
    ),
    Setting(
        f"{REGISTRY}basic.auth.credentials.source", Type.STRING, "USER_INFO",
        "Where the login stands.", _S, java_default="URL", choices=("USER_INFO",),
    ),
    Setting(
        f"{REGISTRY}basic.auth.user.info", Type.PASSWORD, "",
        "`USER:PASSWORD` for the registry; safer from a config provider than here.", _S,
    ),
    Setting(
        f"{REGISTRY}bearer.auth.credentials.source", Type.STRING, "STATIC_TOKEN",
        "Where the token comes from.", _S, choices=("STATIC_TOKEN",),
    ),
    Setting(
        f"{REGISTRY}bearer.auth.token", Type.PASSWORD, "",
        "Token that the registry gets as `Authorization: Bearer …`, instead of user and password.",
        _S,
    ),
    Setting(
        f"{_STORE}location", Type.STRING, "",
        "File with the certificates of the registry's authority, on the machine of the driver; "
        "empty: those that Java trusts.", _S,
    ),
    Setting(f"{_STORE}password", Type.PASSWORD, "", "Password of that file.", _S),
    Setting(
        f"{_STORE}type", Type.STRING, "JKS", "Format of that file.", _S,
        choices=("JKS", "PKCS12", "PEM"), fold_case=True,
    ),
    Setting(
        f"{_KEYSTORE}location", Type.STRING, "",
        "File with a client certificate for the registry and its key, on the machine of the "
        "driver.", _S,
    ),
    Setting(f"{_KEYSTORE}password", Type.PASSWORD, "", "Password of that file.", _S),
    Setting(
        f"{_KEYSTORE}type", Type.STRING, "JKS", "Format of that file.", _S,
        choices=("JKS", "PKCS12", "PEM"), fold_case=True,
    ),
    Setting(
        f"{_KEYSTORE}certificate.chain", Type.PASSWORD, "",
        "Client certificate for the registry with those that signed it, as PEM, instead of a file.",
        _S,
    ),
    Setting(f"{_KEYSTORE}key", Type.PASSWORD, "", "The key of that certificate, as PEM.", _S),
    Setting(
        f"{REGISTRY}ssl.key.password", Type.PASSWORD, "",
        "Password of the client certificate's key, if it has one of its own.", _S,
    ),
)  # fmt: skip


def transform_option(key: str) -> tuple[str, str]:
    """(NAME, option) of a key ``sparkmirror.transform.NAME.option``; both empty for other keys.

    Options of a table are as in the file: ``table.limits.schema``.
    """
    if not key.startswith(TRANSFORM):
        return "", ""
    name, table, option = key[len(TRANSFORM) :].partition(".table.")
    if table:
        return name, f"table.{option}"
    name, _, option = name.rpartition(".")
    return name, option


def table_option(option: str) -> tuple[str, str]:
    """(TABLE, ``schema`` or ``option.OPTION``) of a transform's option; else both empty."""
    match = _TABLE_OPTION.fullmatch(option)
    return (match[1], match[2]) if match else ("", "")


def placeholder(option: str) -> str:
    """The transform's ``option`` as the rows above name it."""
    _, what = table_option(option)
    if not what:
        return option
    return TABLE_SCHEMA if what == "schema" else TABLE_OPTION


BATCH_ROWS = (
    Setting(
        "sparkmirror.join.bytes", Type.INT, str(ProduceSettings().join_bytes),
        "Consecutive small batches are joined up to this size; 0 disables joining.",
        (Scope.SPARKMIRROR,), low=0, high=16 * 1024 * 1024,
    ),
    Setting(
        "sparkmirror.link.joining", Type.STRING, ProduceSettings().link_joining,
        "Whether batches that wait to be written to the target are decompressed, joined and "
        "compressed again. `auto`: if responses of the target take at least 5 ms and more batches "
        "wait than may be in flight. `always`: all waiting batches; `off`: none.",
        (Scope.SPARKMIRROR,),
        choices=("auto", "off", "always"),
    ),
    Setting(
        "sparkmirror.link.reread.bytes", Type.INT, str(FetchSettings().reread_bytes),
        "Over a link of 10 ms and more to the source, several Fetch requests wait for the next "
        "records of the same partitions, if these get few bytes and have no backlog. Records then "
        "take one way, but are read again up to seven times: at most so many bytes per second, "
        "slot and broker. 0: one request waits.",
        (Scope.SPARKMIRROR,), low=0,
    ),
    Setting(
        "sparkmirror.link.compression", Type.STRING, None,
        "Compression of batches that were joined for the link. Default: that of the source's "
        "batches, which is also used if the result would otherwise be larger than they are.",
        (Scope.SPARKMIRROR,), choices=("gzip", "snappy", "lz4", "zstd"),
    ),
)  # fmt: skip

RING = "sparkmirror.ring.enabled"
"""Name of the setting."""

RING_ROWS = (
    Setting(
        RING, Type.BOOLEAN, "true",
        "Whether small responses of the source reach the sink through memory that both workers of a"
        " slot share, and not through Spark's JVM: some tenths of a millisecond less for a record"
        " in the tail. Spark then counts only the larger ones. Has no effect on flows with"
        " transforms.",
        (Scope.SPARKMIRROR,),
    ),
)  # fmt: skip

# MirrorMaker 1's positions have Java's format, which contains nothing about the target.
MM1_OWN_ROWS = (
    *BATCH_ROWS,
    *RING_ROWS,
    *NAME_ROWS,
    *THROTTLE_ROWS,
    *(row for row in FAULT_ROWS if not row.name.startswith(_TARGET_LOSS)),
)


_D = (Scope.DRIVER,)

METRICS_ROWS = (
    Setting(
        "sparkmirror.metrics.listen", Type.STRING, "",
        "`HOST:PORT` for `/metrics` and `/health`; `PORT` alone means 127.0.0.1, port 0 any free"
        " port, empty no server. `--metrics` overrides it. An address that other machines can reach"
        " needs a certificate and a token.", _D,
    ),
    Setting(
        "sparkmirror.metrics.labels", Type.STRING, "partition",
        "Granularity of the series: `topic` omits the label `partition`, `flow` also omits"
        " `topic`.", _D, choices=("partition", "topic", "flow"),
    ),
    Setting(
        "sparkmirror.metrics.tls.cert", Type.STRING, "",
        "PEM file with the server's certificate chain; it is reloaded when it changes.", _D,
    ),
    Setting(
        "sparkmirror.metrics.tls.key", Type.STRING, "",
        "PEM file with the certificate's private key, without a password.", _D,
    ),
    Setting(
        "sparkmirror.metrics.token", Type.PASSWORD, "",
        "Token that scrapers must send as `Authorization: Bearer …`; safer from a config provider"
        " or `sparkmirror.metrics.token.file` than here.", _D,
    ),
    Setting(
        "sparkmirror.metrics.token.file", Type.STRING, "",
        "File that contains only the token; it is read for each request, so it can be replaced.",
        _D,
    ),
)  # fmt: skip
