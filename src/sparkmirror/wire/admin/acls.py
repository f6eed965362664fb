"""Describes, creates and deletes the ACL bindings of a cluster, in batches.

Names of resource types, patterns, operations and permissions are Kafka's own (``TOPIC``,
``PREFIXED``, ``DESCRIBE_CONFIGS``, ``ALLOW``).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from kafka.protocol.admin import (
    ACLOperation,
    ACLPermissionType,
    ACLResourcePatternType,
    ACLResourceType,
    CreateAclsRequest,
    DeleteAclsRequest,
)

from sparkmirror.errors import MirrorError
from sparkmirror.wire.admin.acl_answers import AclRows, all_topic_acls
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.raw_responses import DecodeCache
from sparkmirror.wire.admin.requester import Requester, error_for
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.cluster.views import AclBinding

__all__ = ["create_acls", "delete_acls", "describe_topic_acls"]

_SECURITY_DISABLED = 54
# The controller writes one record per binding and accepts 10,000 of them at once.
_BINDINGS_PER_REQUEST = 2_500


def describe_topic_acls(
    requester: Requester, reader: DecodeCache[AclRows], operation: str
) -> tuple[AclBinding, ...] | None:
    """All ACLs on topics, sorted; None when the cluster has no authorizer. Raises `MirrorError`.

    ``reader``: of this cluster; an unchanged response yields the same tuple. ``operation``: what
    an error advises to grant.
    """
    rows: AclRows = requester.request(
        all_topic_acls,
        "describing ACLs",
        read=reader.read,
        check=_unless_disabled,
        needs=Right(operation, "Cluster"),
    )
    return None if rows.error_code == _SECURITY_DISABLED else rows.bindings


def _unless_disabled(rows: AclRows) -> int:
    return 0 if rows.error_code == _SECURITY_DISABLED else rows.error_code


def create_acls(requester: Requester, bindings: Sequence[AclBinding]) -> list[MirrorError | None]:
    """Add ``bindings``; per binding the error, None if it exists now.

    Raises `MirrorError` when a whole request fails, as it does at a broker before 2.0 if one of
    them is on a prefix.
    """
    outcomes: list[MirrorError | None] = []
    for start in range(0, len(bindings), _BINDINGS_PER_REQUEST):
        part = bindings[start : start + _BINDINGS_PER_REQUEST]
        response = requester.request(
            partial(_create_request, part),
            f"creating {_kind(part)}",
            needs=Right("Alter", "Cluster"),
        )
        for binding, row in zip(part, response.results, strict=True):
            outcomes.append(_outcome(requester, f"creating the ACL '{binding}'", row))
    return outcomes


def delete_acls(requester: Requester, bindings: Sequence[AclBinding]) -> list[MirrorError | None]:
    """Remove exactly ``bindings``; results as in `create_acls`. A missing one is no error."""
    outcomes: list[MirrorError | None] = []
    for start in range(0, len(bindings), _BINDINGS_PER_REQUEST):
        part = bindings[start : start + _BINDINGS_PER_REQUEST]
        response = requester.request(
            partial(_delete_request, part),
            f"removing {_kind(part)}",
            needs=Right("Alter", "Cluster"),
        )
        for binding, row in zip(part, response.filter_results, strict=True):
            outcomes.append(_outcome(requester, f"removing the ACL '{binding}'", row))
    return outcomes


def _outcome(requester: Requester, doing: str, row: Any) -> MirrorError | None:
    if not row.error_code:
        return None
    error = error_for(row.error_code, row.error_message)
    return translate(error, requester.client, doing, needs=Right("Alter", "Cluster"))


def _create_request(bindings: Sequence[AclBinding]) -> Any:
    rows = [
        CreateAclsRequest.AclCreation(
            resource_type=ACLResourceType[binding.resource_type],
            resource_name=binding.name,
            resource_pattern_type=ACLResourcePatternType[binding.pattern],
            principal=binding.principal,
            host=binding.host,
            operation=ACLOperation[binding.operation],
            permission_type=ACLPermissionType[binding.permission],
        )
        for binding in bindings
    ]
    return CreateAclsRequest(creations=rows, min_version=_lowest_version(bindings))


def _delete_request(bindings: Sequence[AclBinding]) -> Any:
    rows = [
        DeleteAclsRequest.DeleteAclsFilter(
            resource_type_filter=ACLResourceType[binding.resource_type],
            resource_name_filter=binding.name,
            pattern_type_filter=ACLResourcePatternType[binding.pattern],
            principal_filter=binding.principal,
            host_filter=binding.host,
            operation=ACLOperation[binding.operation],
            permission_type=ACLPermissionType[binding.permission],
        )
        for binding in bindings
    ]
    return DeleteAclsRequest(filters=rows, min_version=_lowest_version(bindings))


def _lowest_version(bindings: Sequence[AclBinding]) -> int:
    # Version 0 has no pattern type: the broker would take each prefix for a name (KIP-290).
    return int(_on_prefixes(bindings))


def _on_prefixes(bindings: Sequence[AclBinding]) -> bool:
    return any(binding.pattern != "LITERAL" for binding in bindings)


def _kind(bindings: Sequence[AclBinding]) -> str:
    return "ACLs on prefixes" if _on_prefixes(bindings) else "ACLs"
