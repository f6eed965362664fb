"""Which release each broker runs, as far as the requests that it knows tell."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from kafka.protocol.broker_version_data import infer_broker_version_from_api_versions
from kafka.protocol.metadata import ApiVersionsRequest

from sparkmirror.errors import Unreachable
from sparkmirror.wire.admin.messages import error_code
from sparkmirror.wire.admin.requester import Link

__all__ = ["broker_versions"]

# Releases that kafka-python does not know, newest first: a request (its API key), and the version
# of it that came with the release. ApiVersions 5 has a cluster id (KIP-1242).
_NEWER = (("4.4", 18, 5),)


def broker_versions(link: Link, nodes: Iterable[int]) -> dict[int, str]:
    """Release per broker, such as ``4.3``; a broker that does not answer is missing.

    Releases that brought no new version of any request look like the one before.
    """
    found: dict[int, str] = {}
    for node in nodes:
        try:
            response = link.request(
                # The first version whose answer every broker gives in the same form.
                partial(ApiVersionsRequest, max_version=2),
                "asking for the versions of requests",
                node=node,
                check=error_code,
            )
        except Unreachable:
            continue
        known = {row.api_key: (row.min_version, row.max_version) for row in response.api_keys}
        found[node] = _release(known)
    return found


def _release(known: dict[int, tuple[int, int]]) -> str:
    """The release that knows these versions, lowest and highest, per request."""
    for release, key, version in _NEWER:
        if known.get(key, (0, -1))[1] >= version:
            return release
    return ".".join(map(str, infer_broker_version_from_api_versions(known)))
