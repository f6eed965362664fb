"""Typed settings of one flow from derived client configurations, for MM2 and MM1 files."""

from __future__ import annotations

import re
from collections.abc import Mapping

from sparkmirror.config.clients.security import protocol_of, secured
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader, shown
from sparkmirror.config.table.mirrormaker1 import (
    CODECS,
    GROUP_ROWS,
    PARTITIONERS,
    RECORD_ROWS,
    STRATEGIES,
)
from sparkmirror.config.table.settings import Scope, Status, find
from sparkmirror.config.table.settings_clients import COMMON_ROWS, FETCH_ROWS, PRODUCE_ROWS
from sparkmirror.errors import ConfigError
from sparkmirror.model import Partitioner
from sparkmirror.offset_reset import duration_ms
from sparkmirror.settings import (
    ClusterClient,
    FaultSettings,
    FetchSettings,
    GroupSettings,
    ProduceSettings,
    RecordSettings,
)

_POSITION_KEYS = frozenset({"exclude.internal.topics"})
_HOST_PORT = re.compile(r"(?:[A-Za-z_]+://)?(\[[0-9A-Fa-f:.%a-z]+\]|[0-9A-Za-z._%-]+):([0-9]{1,5})")
# Properties that ClusterClient, FetchSettings and ProduceSettings hold as typed fields.
_FIELDS = frozenset(
    row.name
    for row in COMMON_ROWS + FETCH_ROWS + GROUP_ROWS + PRODUCE_ROWS + RECORD_ROWS
    if row.name not in _POSITION_KEYS
) | {"bootstrap.servers", "security.protocol"}
_OFFSET_RESETS = ("earliest", "latest", "none")
_IN_FLIGHT_IDEMPOTENT_MAX = 5
_POSITION_INTERVAL_MS_MIN = 100


def bootstrap_servers(entry: Entry) -> tuple[str, ...]:
    """``host:port`` texts. Raises ConfigError for an empty list or a malformed address."""
    servers = []
    for address in ValueReader({"bootstrap.servers": entry}, Scope.CONSUMER).elements(
        "bootstrap.servers"
    ):
        match = _HOST_PORT.fullmatch(address)
        if match is None or not 0 < int(match.group(2)) <= 65_535:
            raise ConfigError(
                f"{entry.key} contains '{shown(entry, address)}', which is not host:port.",
                where=entry.where,
                do="Write host:port[,host:port…], for example kafka1.example.com:9092.",
            )
        servers.append(f"{match.group(1)}:{match.group(2)}")
    if not servers:
        raise ConfigError(
            f"{entry.key} is empty.", where=entry.where, do="Name at least one broker as host:port."
        )
    return tuple(servers)


def client(
    alias: str, conf: Mapping[str, Entry], scope: Scope, client_id: str, *, path: str, key: str
) -> ClusterClient:
    """The client of one cluster in one role.

    ``conf``: the role's Java client properties. ``path`` and ``key``: the file, and the full key of
    bootstrap.servers in it. Raises ConfigError for missing or malformed servers and for security
    settings that cannot work.
    """
    servers = conf.get("bootstrap.servers")
    if servers is None:
        raise ConfigError(
            f"{key} is missing: cluster '{alias}' has no address.",
            where=path,
            do=f"Add {key}=host:port[,host:port…].",
        )
    reader = ValueReader(conf, scope)
    protocol = protocol_of(reader.text("security.protocol"))
    return ClusterClient(
        alias=alias,
        bootstrap_servers=bootstrap_servers(servers),
        client_id=client_id,
        security_protocol=protocol,
        request_timeout_ms=reader.integer("request.timeout.ms"),
        connect_timeout_ms=reader.integer("socket.connection.setup.timeout.ms"),
        connect_timeout_ms_max=reader.integer("socket.connection.setup.timeout.max.ms"),
        reconnect_backoff_ms=reader.integer("reconnect.backoff.ms"),
        reconnect_backoff_ms_max=reader.integer("reconnect.backoff.max.ms"),
        retry_backoff_ms=reader.integer("retry.backoff.ms"),
        retry_backoff_ms_max=reader.integer("retry.backoff.max.ms"),
        metadata_age_ms_max=reader.integer("metadata.max.age.ms"),
        properties=secured(
            alias,
            _remaining(conf, scope),
            protocol,
            path=path,
            conf=conf,
        ),
    )


def _remaining(conf: Mapping[str, Entry], scope: Scope) -> dict[str, str]:
    """Supported keys that the file sets and that have no typed field, trimmed as in Java."""
    rows = ((key, entry, find(key, scope)) for key, entry in sorted(conf.items()))
    return {
        key: entry.value.strip()
        for key, entry, row in rows
        if row is not None
        and row.status is Status.SUPPORTED
        and key not in _FIELDS
        and not entry.origin.is_default
    }


def fetch_settings(
    conf: Mapping[str, Entry], own: ValueReader, *, offset_reset: str = "earliest"
) -> FetchSettings:
    """Settings for reading the source. ``own``: sparkmirror's own settings of the flow.

    ``offset_reset``: the default of ``auto.offset.reset``.

    Raises ConfigError for an invalid ``auto.offset.reset``.
    """
    reader = ValueReader(conf, Scope.CONSUMER)
    reset = reader.text("auto.offset.reset").lower() if _given(conf, "auto.offset.reset") else ""
    if reset and reset not in _OFFSET_RESETS and duration_ms(reset) is None:
        entry = conf["auto.offset.reset"]
        raise ConfigError(
            f"{entry.key}={shown(entry, entry.value.strip())} is not one of the values it can "
            "have.",
            where=entry.where,
            do=f"Choose from: {', '.join(_OFFSET_RESETS)}, by_duration:PnDTnHnMnS (so long ago, "
            "as in by_duration:PT12H).",
        )
    return FetchSettings(
        fetch_max_wait_ms=reader.integer("fetch.max.wait.ms"),
        fetch_min_bytes=reader.integer("fetch.min.bytes"),
        fetch_max_bytes=reader.integer("fetch.max.bytes"),
        partition_fetch_bytes_max=reader.integer("max.partition.fetch.bytes"),
        isolation_level=reader.text("isolation.level"),
        auto_offset_reset=reset or offset_reset,
        check_crcs=reader.boolean("check.crcs"),
        client_rack=reader.text("client.rack"),
        receive_buffer_bytes=reader.integer("receive.buffer.bytes"),
        reread_bytes=own.integer("sparkmirror.link.reread.bytes"),
    )


def _given(conf: Mapping[str, Entry], key: str) -> bool:
    return key in conf and not conf[key].origin.is_default


def produce_settings(conf: Mapping[str, Entry], own: ValueReader) -> ProduceSettings:
    """Settings for writing to the target. ``own``: sparkmirror's own settings of the flow.

    Raises ConfigError for ``acks=0``, and if other settings contradict idempotence.
    """
    reader = ValueReader(conf, Scope.PRODUCER)
    acks = {"all": -1, "-1": -1, "0": 0, "1": 1}[reader.text("acks")]
    if acks == 0:
        entry = conf["acks"]
        raise ConfigError(
            f"{entry.key}=0 cannot be used: a position is committed only after the target has "
            "acknowledged the records, and with 0 it never does.",
            where=entry.where,
            do="Write all (safe) or 1.",
        )
    in_flight = reader.integer("max.in.flight.requests.per.connection")
    return ProduceSettings(
        acks=acks,
        enable_idempotence=_idempotence(conf, reader, acks, in_flight),
        in_flight_requests_max=in_flight,
        delivery_timeout_ms=reader.integer("delivery.timeout.ms"),
        request_bytes_max=reader.integer("max.request.size"),
        join_bytes=own.integer("sparkmirror.join.bytes"),
        link_joining=own.text("sparkmirror.link.joining"),
        link_compression=own.text("sparkmirror.link.compression"),
        send_buffer_bytes=reader.integer("send.buffer.bytes"),
        linger_ms=reader.integer("linger.ms"),
    )


def _idempotence(conf: Mapping[str, Entry], reader: ValueReader, acks: int, in_flight: int) -> bool:
    wanted = reader.boolean("enable.idempotence")
    if not wanted:
        return False
    for conflict, key, needed in (
        (acks != -1, "acks", "acks=all"),
        (
            in_flight > _IN_FLIGHT_IDEMPOTENT_MAX,
            "max.in.flight.requests.per.connection",
            "at most 5 requests in flight",
        ),
    ):
        if not conflict:
            continue
        if reader.given("enable.idempotence"):
            entry = conf[key]
            raise ConfigError(
                f"{entry.key}={shown(entry, entry.value.strip())} contradicts "
                f"enable.idempotence=true, which needs {needed}.",
                where=entry.where,
                do=f"Remove {entry.key}, or set enable.idempotence=false.",
            )
        return False
    return True


def fault_settings(own: ValueReader, *, by_record: bool = False) -> FaultSettings:
    """Settings for lost and refused records; ``own`` reads sparkmirror's own keys.

    ``by_record``: records are partitioned by key, so the offset of a refused record is unknown.
    Raises ConfigError if such a flow shall skip refused records or write them elsewhere.
    """
    loss, refusal = "sparkmirror.on.source.loss", "sparkmirror.on.bad.record"
    target = "sparkmirror.on.target.loss"
    for key in (refusal, f"{refusal}.skip.topics", f"{refusal}.dead-letter.topics"):
        entry = own.conf.get(key)
        if by_record and entry is not None and entry.value.strip() not in ("", "pause"):
            raise ConfigError(
                f"{entry.key}={shown(entry, entry.value.strip())} contradicts partitioning by "
                "key: there, a record that the target refuses always halts its partition.",
                where=entry.where,
                do="Remove the key.",
            )
    return FaultSettings(
        source_loss=own.text(loss),
        source_loss_fail=own.elements(f"{loss}.fail.topics"),
        source_loss_continue=own.elements(f"{loss}.record-and-continue.topics"),
        target_loss=own.text(target),
        target_loss_repair=own.elements(f"{target}.repair.topics"),
        target_loss_fail=own.elements(f"{target}.fail.topics"),
        target_loss_continue=own.elements(f"{target}.record-and-continue.topics"),
        bad_record=own.text(refusal),
        bad_record_pause=own.elements(f"{refusal}.pause.topics"),
        bad_record_skip=own.elements(f"{refusal}.skip.topics"),
        bad_record_dead_letter=own.elements(f"{refusal}.dead-letter.topics"),
    )


def position_interval_ms(wanted_ms: int, flush_interval_ms: int) -> int:
    """Milliseconds between commits of positions: as wanted, but at least as often as in Java."""
    return max(_POSITION_INTERVAL_MS_MIN, min(wanted_ms, flush_interval_ms))


def group_settings(
    conf: Mapping[str, Entry], *, listener: str = "", listener_args: str | None = None
) -> GroupSettings:
    """Settings of the mirror's consumer group membership.

    Raises ConfigError if the keys contradict each other.
    """
    reader = ValueReader(conf, Scope.CONSUMER)
    session_ms = reader.integer("session.timeout.ms")
    heartbeat_ms = reader.integer("heartbeat.interval.ms")
    if heartbeat_ms >= session_ms:
        key = (
            "heartbeat.interval.ms"
            if reader.given("heartbeat.interval.ms")
            else "session.timeout.ms"
        )
        raise ConfigError(
            f"heartbeat.interval.ms ({heartbeat_ms}) must be less than session.timeout.ms "
            f"({session_ms}).",
            where=conf[key].where,
            do="Set the interval to a third of the timeout.",
        )
    chosen = [
        STRATEGIES.get(name, name) for name in reader.elements("partition.assignment.strategy")
    ]
    return GroupSettings(
        strategies=tuple(dict.fromkeys(chosen)),
        session_timeout_ms=session_ms,
        heartbeat_interval_ms=heartbeat_ms,
        rebalance_timeout_ms=reader.integer("max.poll.interval.ms"),
        instance_id=reader.text("group.instance.id"),
        listener=listener,
        listener_args=listener_args,
    )


def _levels(reader: ValueReader) -> tuple[int, ...]:
    levels = list(RecordSettings().levels)
    for name in ("gzip", "lz4", "zstd"):
        key = f"compression.{name}.level"
        if reader.given(key):
            levels[CODECS[name]] = reader.integer(key)
    return tuple(levels)


def record_settings(
    conf: Mapping[str, Entry],
    *,
    keep_partitions: bool,
    handler: str = "",
    handler_args: str | None = None,
    drop_failed: bool = False,
) -> RecordSettings:
    """Settings of MirrorMaker 1's record path. ``conf``: the producer file."""
    reader = ValueReader(conf, Scope.PRODUCER)
    chosen = reader.text("partitioner.class")
    partitioner = PARTITIONERS[chosen] if chosen else Partitioner.KEY
    if reader.boolean("partitioner.ignore.keys") and partitioner is Partitioner.KEY:
        partitioner = Partitioner.STICKY
    codec = reader.text("compression.type").lower()
    return RecordSettings(
        partitioner=Partitioner.NUMBER if keep_partitions else partitioner,
        codec=CODECS[codec] if codec else -1,
        levels=_levels(reader),
        sticky_bytes=max(1, reader.integer("batch.size")),
        handler=handler,
        handler_args=handler_args,
        drop_failed=drop_failed,
    )
