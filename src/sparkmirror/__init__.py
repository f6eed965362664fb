"""sparkmirror: a mirror between Apache Kafka clusters.

For programs: `MirrorClient` and `RemoteClusterUtils` (see `sparkmirror.client`).
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sparkmirror.client import MirrorClient, OffsetAndMetadata, RemoteClusterUtils

__all__ = ["MirrorClient", "OffsetAndMetadata", "RemoteClusterUtils"]


def __getattr__(name: str) -> Any:
    # Imported on first use: Spark's workers import this package too, but do not need the client.
    if name in __all__:
        return getattr(importlib.import_module("sparkmirror.client"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
