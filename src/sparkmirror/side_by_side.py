"""Several questions at once, where each costs a round trip."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import TypeVar

__all__ = ["of_each"]

T = TypeVar("T")
U = TypeVar("U")


def of_each(ask: Callable[[T], U], items: Iterable[T], *, at_most: int = 16) -> list[U]:
    """What ``ask`` returns of each of ``items``, in their order; ``at_most`` are asked at once.

    The first failure is raised once the calls under way have ended; no others begin then. Ctrl+C
    does not wait for them.
    """
    asked = list(items)
    if len(asked) < 2:
        return [ask(one) for one in asked]
    pool = ThreadPoolExecutor(min(at_most, len(asked)), "side-by-side")
    ended = False
    try:
        calls = [pool.submit(ask, one) for one in asked]
        wait(calls, return_when=FIRST_EXCEPTION)
        for call in calls:
            call.cancel()
        wait(calls)
        ended = True
    finally:
        pool.shutdown(wait=ended, cancel_futures=True)
    for call in calls:
        if not call.cancelled() and (error := call.exception()) is not None:
            raise error
    return [call.result() for call in calls]
