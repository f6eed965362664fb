"""Clusters that files share: how long they last; the pair, whole again after each test."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from typing import Generic, TypeVar

import pytest

from sparkmirror.errors import MachineError
from sparkmirror.testing.clusters import KafkaCluster
from tests.conftest import SHARED

__all__ = ["Lasting", "make_whole", "shared_clusters_whole"]

log = logging.getLogger(__name__)
T = TypeVar("T")


class Lasting(Generic[T]):
    """What tests of several files share, from its first use on until it is closed."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._there: list[T] = []

    def get(self, start: Callable[[], AbstractContextManager[T]]) -> T:
        """What ``start`` makes, which is called if there is none yet."""
        if not self._there:
            self._there.append(self._stack.enter_context(start()))
        return self._there[0]

    def close(self) -> None:
        """End it; the next `get` starts another one."""
        self._there.clear()
        self._stack.close()


@pytest.fixture(autouse=True)
def shared_clusters_whole(pytestconfig: pytest.Config) -> Iterator[None]:
    """A test that dies between freeze and thaw decides about no other one."""
    yield
    make_whole(pytestconfig.stash.get(SHARED, ()))


def make_whole(clusters: Iterable[KafkaCluster]) -> None:
    """Thaw what is frozen, start what was killed; what does not start gives way to a new cluster.

    One that is whole is not asked anything: this comes after every test.
    """
    for cluster in clusters:
        for number in cluster.alive:
            cluster.thaw(number)
        if cluster.alive and cluster.alive == frozenset(cluster.node_ids):
            continue
        try:
            cluster.start()
        except MachineError:
            # What does not start has given up its directory and its ports.
            log.warning("cluster %s did not come back; a new one", cluster.name, exc_info=True)
            cluster.start()
