"""Why lines of the product are run by no test: by module, or by function of a module.

A key is a file below ``src/sparkmirror``, or ``file:function`` (``file:Class.method``). What is
not in here is listed as not explained; what is here and is run by tests is listed, too.
"""

from __future__ import annotations

__all__ = ["REASONS"]

REASONS: dict[str, str] = {
    "data/workers/prefork_client.py:owner": (
        "systems that do not tell who is at the other end of a local socket"
    ),
}
