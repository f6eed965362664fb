"""MirrorMaker 2's scoping and precedence of settings, as pure functions.

Input is always the whole file (key -> entry). Output is one derived configuration with the same
keys that Java's MirrorMaker would pass to that worker, connector or client. Every value keeps its
entry, so an error can name the line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from sparkmirror.config.files.origin import DERIVED, MIRRORMAKER
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.table.settings import CLIENT_SET, Scope, names

Conf = Mapping[str, Entry]

_PACKAGE = "org.apache.kafka.connect.mirror."
_CONVERTER = "org.apache.kafka.connect.converters.ByteArrayConverter"
# Java tests these prefixes without a dot, so admin.timeout.ms is a client key, too.
_CLIENT_LEVEL = re.compile(r"(?:consumer|producer|admin)")
_CLIENTS = ("producer", "consumer", "admin")
# Top-level keys with these prefixes apply to workers and override those of a cluster.
WORKER_PREFIXES = (
    "offset.storage",
    "config.storage",
    "status.storage",
    "key.converter",
    "value.converter",
    "header.converter",
    "task",
    "worker",
    "replication.policy",
)
# Connector keys that only the filters or Connect's source configuration read. In Java they are not
# part of a connector's definition, so they have no effect at the top level.
FLOW_ONLY = frozenset(
    {
        "use.defaults.from",
        "exactly.once.support",
        "transaction.boundary",
        "transaction.boundary.interval.ms",
        "topic.creation.groups",
        "offsets.storage.topic",
        "task.assigned.partitions",
        "task.assigned.groups",
        "task.index",
    }
)
TOP_LEVEL_CONNECTOR_KEYS = (names(Scope.CONNECTOR) - FLOW_ONLY) - {"bootstrap.servers"}


def _stripped(conf: Conf, prefix: str) -> dict[str, Entry]:
    return {key[len(prefix) :]: entry for key, entry in conf.items() if key.startswith(prefix)}


def _put_absent(conf: dict[str, Entry], key: str, value: str) -> None:
    conf.setdefault(key, Entry(key, value, MIRRORMAKER))


def cluster_config(raw: Conf, alias: str) -> dict[str, Entry]:
    """The settings of one cluster, with its security keys copied to each client."""
    conf = _stripped(raw, alias + ".")
    for key in CLIENT_SET & conf.keys():
        for client in _CLIENTS:
            conf.setdefault(f"{client}.{key}", conf[key])
    for key in CLIENT_SET & raw.keys():
        for name in (key, *(f"{client}.{key}" for client in _CLIENTS)):
            conf.setdefault(name, raw[key])
    return conf


def cluster_pairs(raw: Conf, clusters: Sequence[str]) -> Iterator[tuple[str, str]]:
    """The (source, target) pairs that Java runs workers for: enabled or with heartbeats."""
    heartbeats = _is_true(raw.get("emit.heartbeats.enabled"), default=True)
    for source in clusters:
        for target in clusters:
            if source == target:
                continue
            flow = f"{source}->{target}"
            enabled = _is_true(raw.get(f"{flow}.enabled"), default=False)
            own = raw.get(f"{flow}.emit.heartbeats.enabled")
            if enabled or _is_true(own, default=heartbeats):
                yield source, target


def _is_true(entry: Entry | None, *, default: bool) -> bool:
    return default if entry is None else entry.value.strip().lower() == "true"


def worker_config(raw: Conf, source: str, target: str) -> dict[str, Entry]:
    """Configuration of the Connect worker of flow ``source->target``."""
    conf = cluster_config(raw, target)
    conf |= {key: entry for key, entry in raw.items() if key.startswith(WORKER_PREFIXES)}
    conf |= {key: entry for key, entry in raw.items() if key.startswith("config.providers")}
    for key, value in (
        ("client.id", f"{source}->{target}"),
        ("group.id", f"{source}-mm2"),
        ("offset.storage.topic", f"mm2-offsets.{source}.internal"),
        ("status.storage.topic", f"mm2-status.{source}.internal"),
        ("config.storage.topic", f"mm2-configs.{source}.internal"),
        ("key.converter", _CONVERTER),
        ("value.converter", _CONVERTER),
        ("header.converter", _CONVERTER),
    ):
        _put_absent(conf, key, value)
    return conf


def connector_config(
    raw: Conf, source: str, target: str, connector: str = "MirrorSourceConnector"
) -> dict[str, Entry]:
    """Configuration of one connector of flow ``source->target``; later steps win."""
    conf = {key: entry for key, entry in raw.items() if key in TOP_LEVEL_CONNECTOR_KEYS}
    for prefix in ("config.providers", "replication.policy"):
        conf |= {key: entry for key, entry in raw.items() if key.startswith(prefix)}
    for side, alias in (("source", source), ("target", target)):
        for key, entry in cluster_config(raw, alias).items():
            level = "" if _CLIENT_LEVEL.match(key) else "cluster."
            conf[f"{side}.{level}{key}"] = entry
    _put_absent(conf, "name", connector)
    _put_absent(conf, "connector.class", _PACKAGE + connector)
    _put_absent(conf, "source.cluster.alias", source)
    _put_absent(conf, "target.cluster.alias", target)
    conf |= _stripped(raw, f"{source}->{target}.")
    _put_absent(conf, "enabled", "false")
    return conf


def _client_config(conf: Conf, side: str, client: str, role: str) -> dict[str, Entry]:
    cluster = _stripped(conf, f"{side}.cluster.")
    result = {key: entry for key, entry in cluster.items() if key in CLIENT_SET}
    result |= _stripped(conf, f"{client}.")
    result |= _stripped(conf, f"{side}.{client}.")
    user = result.get("client.id")
    flow = f"{conf['source.cluster.alias'].value}->{conf['target.cluster.alias'].value}"
    client_id = f"{flow}|{conf['name'].value}|{role}"
    if user is not None:
        client_id = f"{user.value.strip()}|{client_id}"
    result["client.id"] = Entry("client.id", client_id, user.origin if user else DERIVED)
    return result


def consumer_config(conf: Conf, side: str, role: str) -> dict[str, Entry]:
    """Consumer of the ``side`` (source or target) cluster, from a connector's configuration."""
    result = _client_config(conf, side, "consumer", role)
    result["enable.auto.commit"] = Entry("enable.auto.commit", "false", MIRRORMAKER)
    _put_absent(result, "auto.offset.reset", "earliest")
    return result


def admin_config(conf: Conf, side: str, role: str) -> dict[str, Entry]:
    """Admin client of the ``side`` cluster, from a connector's configuration."""
    return _client_config(conf, side, "admin", role)


def producer_config(conf: Conf, side: str, role: str) -> dict[str, Entry]:
    """Producer of the ``side`` cluster, which Java uses only for offset syncs."""
    return _client_config(conf, side, "producer", role)


def data_producer_config(worker: Conf, connector: Conf) -> dict[str, Entry]:
    """Producer of the records: the worker's settings, overridden by ``producer.override.*``.

    Java's worker has no cluster aliases, so the client id has Connect's form.
    """
    result = _stripped(worker, "producer.")
    result |= _stripped(connector, "producer.override.")
    _put_absent(result, "client.id", f"connector-producer-{connector['name'].value}")
    return result
