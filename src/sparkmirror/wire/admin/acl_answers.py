"""Reads ACL bindings from DescribeAcls responses."""

from __future__ import annotations

from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    DescribeAclsRequest,
)

from sparkmirror.wire.admin.raw_responses import RawResponse, ResponseReader, undecoded
from sparkmirror.wire.cluster.views import AclBinding

__all__ = ["AclRows", "all_topic_acls", "read_acls"]

_UndecodedRequest = undecoded(DescribeAclsRequest)
_THROTTLE_BYTES = 4
_PATTERNS_FROM, _FLEXIBLE_FROM = 1, 2
_LITERAL = int(ACLResourcePatternType.LITERAL)
_ORDER = attrgetter(
    "resource_type", "name", "pattern", "principal", "host", "operation", "permission"
)


class AclRows(NamedTuple):
    """The content of a response: error code (0: none) and message, and the sorted bindings."""

    error_code: int
    error_message: str | None
    bindings: tuple[AclBinding, ...]


def all_topic_acls() -> DescribeAclsRequest:
    """A request for all ACLs on topics, whose response is a `RawResponse`."""
    return _UndecodedRequest(
        resource_type_filter=ACLResourceType.TOPIC,
        resource_name_filter=None,
        pattern_type_filter=ACLResourcePatternType.ANY,
        principal_filter=None,
        host_filter=None,
        operation=ACLOperation.ANY,
        permission_type=ACLPermissionType.ANY,
    )


def read_acls(raw: RawResponse) -> AclRows:
    """The content of ``raw``. Raises an error of `kafka_python_limits.UNREADABLE`."""
    reader = ResponseReader(raw.data, _THROTTLE_BYTES, flexible=raw.version >= _FLEXIBLE_FROM)
    code, message = reader.int16(), reader.text()
    bindings: list[AclBinding] = []
    for _ in range(reader.count()):
        kind = _name(_RESOURCES, reader.int8())
        resource = reader.name()
        pattern = _name(_PATTERNS, reader.int8() if raw.version >= _PATTERNS_FROM else _LITERAL)
        for _ in range(reader.count()):
            principal, host = reader.name(), reader.name()
            operation = _name(_OPERATIONS, reader.int8())
            permission = _name(_PERMISSIONS, reader.int8())
            reader.skip_tags()
            bindings.append(
                AclBinding(kind, resource, pattern, principal, host, operation, permission)
            )
        reader.skip_tags()
    reader.skip_tags()
    bindings.sort(key=_ORDER)
    return AclRows(code, message, tuple(bindings))


def _names(kind: type[IntEnum]) -> dict[int, str]:
    return {int(one): str(one.name) for one in kind}


_RESOURCES, _PATTERNS = _names(ACLResourceType), _names(ACLResourcePatternType)
_OPERATIONS, _PERMISSIONS = _names(ACLOperation), _names(ACLPermissionType)


def _name(names: dict[int, str], code: int) -> str:
    """Kafka's name of a number; a newer broker may send unknown ones."""
    return names.get(code, "UNKNOWN")
