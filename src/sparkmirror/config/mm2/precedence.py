"""All spellings of a flow's setting in a file, and their precedence.

`spellings` lists them, highest precedence first; `scoping` gets the same result by merging.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.mm2.scoping import TOP_LEVEL_CONNECTOR_KEYS, WORKER_PREFIXES
from sparkmirror.config.table.settings import CLIENT_SET, Scope


class Part(Enum):
    """The part of a flow that a setting applies to; the value is its heading."""

    FLOW = "flow"
    CONSUMER = "source consumer"
    PRODUCER = "target producer"
    SOURCE_ADMIN = "source admin"
    TARGET_ADMIN = "target admin"
    SYNCS = "offset syncs producer"
    CHECKPOINTS = "checkpoints consumer"
    WORKER = "worker"
    OWN = "sparkmirror"

    @property
    def scope(self) -> Scope:
        """The scope of this part's keys in the settings table."""
        return _SCOPES[self]


_SCOPES = {
    Part.FLOW: Scope.CONNECTOR,
    Part.CONSUMER: Scope.CONSUMER,
    Part.PRODUCER: Scope.PRODUCER,
    Part.SOURCE_ADMIN: Scope.ADMIN,
    Part.TARGET_ADMIN: Scope.ADMIN,
    Part.SYNCS: Scope.PRODUCER,
    Part.CHECKPOINTS: Scope.CONSUMER,
    Part.WORKER: Scope.WORKER,
    Part.OWN: Scope.SPARKMIRROR,
}


_CLIENTS = {
    Part.CONSUMER: ("source", "consumer"),
    Part.CHECKPOINTS: ("target", "consumer"),
    Part.SOURCE_ADMIN: ("source", "admin"),
    Part.TARGET_ADMIN: ("target", "admin"),
}


def spellings(
    part: Part, key: str, source: str, target: str, syncs_on: str = "source"
) -> tuple[str, ...]:
    """Every full key that can set ``key`` of ``part`` in flow ``source->target``.

    They are in order of precedence: the first one that the file contains applies. ``syncs_on``: the
    side of the offset-syncs topic.
    """
    flow = f"{source}->{target}"
    shared = key in CLIENT_SET
    if part is Part.FLOW:
        top = key in TOP_LEVEL_CONNECTOR_KEYS or key.startswith("replication.policy")
        return (f"{flow}.{key}", key) if top else (f"{flow}.{key}",)
    if part is Part.OWN:
        return (f"{flow}.{key}", key)
    if part is Part.WORKER:
        top = key.startswith((*WORKER_PREFIXES, "config.providers"))
        return (key, f"{target}.{key}") if top else (f"{target}.{key}",)
    if part is Part.PRODUCER:
        producer = (f"{flow}.producer.override.{key}", f"{target}.producer.{key}")
        return (*producer, f"{target}.{key}", key) if shared else producer
    side, client = (syncs_on, "producer") if part is Part.SYNCS else _CLIENTS[part]
    alias = source if side == "source" else target
    own: tuple[str, ...] = (f"{flow}.{side}.{client}.{key}", f"{alias}.{client}.{key}")
    # The cluster's own settings override this one although it names the flow, as in Java.
    weak: tuple[str, ...] = (f"{flow}.{client}.{key}",)
    if shared:
        own += (f"{alias}.{key}", key)
        weak += (f"{flow}.{side}.cluster.{key}",)
    return own + weak


def given(
    raw: Mapping[str, Entry],
    part: Part,
    key: str,
    source: str,
    target: str,
    syncs_on: str = "source",
) -> tuple[Entry, ...]:
    """The file's entries for one setting; the first one applies."""
    every = spellings(part, key, source, target, syncs_on)
    return tuple(raw[name] for name in every if name in raw)


def scope_of(spelling: str, key: str) -> str:
    """The prefix before ``key`` in ``spelling``, in words."""
    prefix = spelling.removesuffix(key).rstrip(".")
    if not prefix:
        return "top level"
    if "->" in prefix:
        flow, client = _client_of(prefix)
        return f"{client} of flow {flow}" if client else f"flow {flow}"
    head, _, client = prefix.rpartition(".")
    if client in ("consumer", "producer", "admin") and head:
        return f"{client} of cluster {head}"
    return f"cluster {prefix}"


_FLOW_CLIENTS = (
    "source.consumer",
    "source.admin",
    "target.admin",
    "target.consumer",
    "source.producer",
    "target.producer",
    "source.cluster",
    "target.cluster",
    "producer.override",
    "consumer",
    "producer",
    "admin",
)


def _client_of(prefix: str) -> tuple[str, str]:
    """Split ``A->B.source.consumer`` into ``A->B`` and ``source.consumer``."""
    for client in _FLOW_CLIENTS:
        if prefix.endswith("." + client):
            return prefix.removesuffix("." + client), client
    return prefix, ""
