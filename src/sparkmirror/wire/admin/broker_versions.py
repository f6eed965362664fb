"""The Kafka release of each broker, derived from its API versions."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.protocol.metadata import ApiVersionsRequest

from sparkmirror.errors import Unreachable
from sparkmirror.wire.admin.messages import error_code
from sparkmirror.wire.admin.requester import Requester

__all__ = ["broker_versions"]

# Releases that kafka-python does not know, newest first: (release, API key, first version of that
# API in the release). ApiVersions 5 has a cluster id (KIP-1242).
_NEWER = (("4.4", 18, 5),)


def broker_versions(requester: Requester, nodes: Iterable[int]) -> dict[int, str]:
    """Release per broker, such as ``4.3``; a broker that does not respond is missing.

    A release without a new version of any API looks like the one before.
    """
    found: dict[int, str] = {}
    for node in nodes:
        try:
            response = requester.request(
                # All brokers use the same response format up to this version.
                partial(ApiVersionsRequest, max_version=2),
                "requesting the API versions",
                node=node,
                check=error_code,
            )
        except Unreachable:
            continue
        known = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        found[node] = _release(known)
    return found


def _release(known: dict[int, tuple[int, int]]) -> str:
    """The release with these versions (lowest, highest) per API key."""
    for release, key, version in _NEWER:
        if known.get(key, (0, -1))[1] >= version:
            return release
    return ".".join(map(str, infer_broker_version_from_api_versions(known)))
