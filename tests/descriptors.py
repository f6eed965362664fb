"""A process with many connections, as a worker or a server of metrics may become one."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

__all__ = ["BEYOND_SELECT", "many_descriptors"]

BEYOND_SELECT = 1_024
"""The first descriptor that ``select.select`` does not take."""

_HELD = 1_100
_LIMIT = 4_096


@contextmanager
def many_descriptors() -> Iterator[None]:
    """Whatever is opened within the block has a number from `BEYOND_SELECT` on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with ExitStack() as stack:
        if soft != resource.RLIM_INFINITY and soft < _LIMIT:
            resource.setrlimit(resource.RLIMIT_NOFILE, (_LIMIT, hard))
            stack.callback(resource.setrlimit, resource.RLIMIT_NOFILE, (soft, hard))
        for _ in range(_HELD):
            stack.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        yield
