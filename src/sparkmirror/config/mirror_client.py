"""Settings of a `sparkmirror.MirrorClient`: MirrorClientConfig's keys, from a mapping or a file.

As in Java, other keys are ignored, so a consumer's properties file works, too. Of the client keys
only servers and security apply; with the prefix ``admin.`` or ``consumer.`` only for that client.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from sparkmirror.config.clients.typed import client
from sparkmirror.config.files.origin import Kind, Origin
from sparkmirror.config.files.properties import Entry, load_properties
from sparkmirror.config.files.providers import resolve
from sparkmirror.config.files.values import ValueReader
from sparkmirror.config.table.settings import CLIENT_SET, Scope
from sparkmirror.errors import Defect
from sparkmirror.names.replication_policy import policy_kind
from sparkmirror.settings import ClusterClient, PolicySettings

__all__ = ["MirrorClientSettings", "mirror_client_settings"]

_CLIENT_ID = "sparkmirror-client"
_POLICY = "replication.policy."


@dataclass(frozen=True, slots=True)
class MirrorClientSettings:
    """Settings of the two clients and of the replication policy.

    ``admin`` lists topics, ``consumer`` reads checkpoints. ``source_alias``: the source of every
    topic under the identity policy; None if it is not set.
    """

    admin: ClusterClient
    consumer: ClusterClient
    policy: PolicySettings
    source_alias: str | None = None


def mirror_client_settings(
    properties: Mapping[str, str] | Path, *, request_timeout_ms: int = 30_000
) -> MirrorClientSettings:
    """Read the settings of one cluster's client.

    Raises ConfigError for a missing ``bootstrap.servers``, an unknown policy, a placeholder that
    cannot be resolved, and security settings that cannot work.
    """
    given: Mapping[str, Entry]
    if isinstance(properties, Path):
        where, given = str(properties), load_properties(properties)
    else:
        where = "the client's properties"
        origin = Origin(Kind.PROGRAM, where)
        given = {key: Entry(key, value, origin) for key, value in properties.items()}
    raw, _ = resolve(given)
    reader = ValueReader(raw, Scope.CONNECTOR)
    named = reader.entry(_POLICY + "class")
    alias = raw.get("source.cluster.alias")
    if named is None:
        raise Defect("the policy has no default")

    def made(role: str, scope: Scope) -> ClusterClient:
        conf = {key: raw[key] for key in CLIENT_SET & raw.keys()}
        conf |= {key: raw[f"{role}.{key}"] for key in CLIENT_SET if f"{role}.{key}" in raw}
        servers = conf.get("bootstrap.servers")
        name = servers.value.strip() if servers is not None and not servers.secret else "target"
        found = client(name, conf, scope, _CLIENT_ID, path=where, key="bootstrap.servers")
        return replace(found, request_timeout_ms=request_timeout_ms)

    return MirrorClientSettings(
        made("admin", Scope.ADMIN),
        made("consumer", Scope.CONSUMER),
        PolicySettings(
            kind=policy_kind(named.value, where=named.where),
            separator=reader.text(_POLICY + "separator"),
            internal_separator_enabled=reader.boolean(_POLICY + "internal.topic.separator.enabled"),
        ),
        alias.value.strip() if alias is not None else None,
    )
