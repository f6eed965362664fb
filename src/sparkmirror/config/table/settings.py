"""The settings table: every key that sparkmirror knows, each once per scope.

Parsing, validation, the warning about ignored keys, the error for unknown keys and the generated
settings page all use this table; no other place has a key's type or default. The rows are in
``settings_mirror``, ``settings_worker``, ``settings_clients``, ``settings_security`` and ``own``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from sparkmirror.config.table.legacy_keys import OLD_CLIENT_KEYS
from sparkmirror.config.table.own import (
    FAULT_ROWS,
    METRICS_ROWS,
    NAME_ROWS,
    REGISTRY_ROWS,
    THROTTLE_ROWS,
    TRANSFORM,
    TRANSFORM_ROWS,
    placeholder,
    transform_option,
)
from sparkmirror.config.table.setting import Scope, Setting, Status, Type
from sparkmirror.config.table.settings_clients import CLIENT_ROWS
from sparkmirror.config.table.settings_mirror import (
    CONNECTOR_ROWS,
    DRIVER_ROWS,
    DROPPED_KEYS,
    OWN_ROWS,
    REMOVED_KEYS,
    RENAMED_KEYS,
)
from sparkmirror.config.table.settings_security import SECURITY_ROWS
from sparkmirror.config.table.settings_worker import WORKER_ROWS
from sparkmirror.errors import Defect

__all__ = [
    "CLIENT_SET",
    "DROPPED_KEYS",
    "HIDDEN",
    "OLD_CLIENT_KEYS",
    "REMOVED_KEYS",
    "RENAMED_KEYS",
    "SETTINGS",
    "ClientProperties",
    "Scope",
    "Setting",
    "Status",
    "Type",
    "find",
    "is_secret",
    "names",
    "redact",
    "redact_all",
]

SETTINGS: tuple[Setting, ...] = (
    DRIVER_ROWS
    + CONNECTOR_ROWS
    + WORKER_ROWS
    + CLIENT_ROWS
    + SECURITY_ROWS
    + OWN_ROWS
    + NAME_ROWS
    + THROTTLE_ROWS
    + TRANSFORM_ROWS
    + REGISTRY_ROWS
    + FAULT_ROWS
    + METRICS_ROWS
)

# Keys that MirrorMaker 2 copies from a cluster to each of its clients.
CLIENT_SET: frozenset[str] = frozenset(row.name for row in SECURITY_ROWS)

# Java's own marker for values of type PASSWORD.
HIDDEN = "[hidden]"

# Parts of a key's name that make its value a secret, even without a row in the table.
_SECRET_PARTS = (
    "password", "secret", "passphrase", "jaas.config", "keystore.key", "token", "account.key",
    "private.key",
    # Addresses of databases may have the password in them.
    ".option.url",
)  # fmt: skip


def _index(rows: Iterable[Setting]) -> dict[tuple[Scope, str], Setting]:
    index: dict[tuple[Scope, str], Setting] = {}
    for row in rows:
        for scope in row.scopes:
            if (scope, row.name) in index:
                raise Defect(f"two rows for {scope.value} {row.name}")
            index[scope, row.name] = row
    return index


_BY_SCOPE = _index(SETTINGS)
_SECRET_NAMES = frozenset(row.name for row in SETTINGS if row.type is Type.PASSWORD)


def find(name: str, *scopes: Scope) -> Setting | None:
    """The row of ``name`` in the first of ``scopes`` that has one; without scopes, in any.

    Keys of a transform share the rows of ``sparkmirror.transform.NAME``.
    """
    transform, option = transform_option(name)
    if transform:
        name = f"{TRANSFORM}NAME.{placeholder(option)}"
    for scope in scopes or tuple(Scope):
        row = _BY_SCOPE.get((scope, name))
        if row is not None:
            return row
    return None


def names(*scopes: Scope) -> frozenset[str]:
    """Every key known in any of ``scopes``; without scopes, in all."""
    return frozenset(name for scope, name in _BY_SCOPE if not scopes or scope in scopes)


def is_secret(key: str) -> bool:
    """Whether the value of ``key`` (scoped or bare) must never be shown."""
    if any(key == name or key.endswith("." + name) for name in _SECRET_NAMES):
        return True
    return any(part in key.lower() for part in _SECRET_PARTS)


def redact(key: str, value: str) -> str:
    """``value``, or ``[hidden]`` if the value of ``key`` (scoped or bare) is a secret."""
    return HIDDEN if is_secret(key) else value


def redact_all(properties: Mapping[str, str]) -> dict[str, str]:
    """A copy of ``properties`` with secrets hidden."""
    return {key: redact(key, value) for key, value in properties.items()}


class ClientProperties(dict[str, str]):
    """A dictionary of Java client properties whose ``repr`` hides secrets."""

    def __repr__(self) -> str:
        return repr(redact_all(self))
