"""Clusters that several files share, on first use; broker logs in the report of a failed test."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from sparkmirror.testing.clusters import KafkaCluster
from tests.conftest import LAST_ON, SHARED
from tests.kafka.clusters.authorized import Authorized, authorized_pair
from tests.kafka.clusters.faults import FaultyCluster, SixBrokers
from tests.kafka.clusters.quiet import QUIET_BROKER
from tests.kafka.clusters.secure import Secured, secured_pair
from tests.kafka.clusters.shared import Lasting, shared_clusters_whole  # noqa: F401
from tests.kafka.harness.leaks import no_leaks, pytest_fixture_setup, pytest_runtest_call  # noqa: F401
from tests.kafka.harness.support import admin, forget_mirrors
from tests.kafka.harness.warm_spark import close_jvms

_LINES = 25


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed:
        used = {id(value): value for value in getattr(item, "funcargs", {}).values()}
        for cluster in used.values():
            if isinstance(cluster, KafkaCluster):
                for node in cluster.node_ids:
                    title = f"log of cluster {cluster.name}, broker {node}"
                    report.sections.append((title, cluster.log_tail(node, _LINES)))
    return report


@pytest.fixture(scope="module", autouse=True)
def no_mirror_before(pytestconfig: pytest.Config) -> None:
    """A file's mirrors would find, and mirror, what those of earlier files left for themselves."""
    forget_mirrors(*pytestconfig.stash.get(SHARED, ()))


def pytest_sessionfinish() -> None:
    """What files share within this process goes with it."""
    close_jvms()
    for shared in _SHARED.values():
        shared.close()


@contextmanager
def _guarded() -> Iterator[KafkaCluster]:
    """A cluster where clients may not create topics that start with ``east.secret``.

    Clients and broker are the same anonymous principal there, so that one may do all else.
    """
    config = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "allow.everyone.if.no.acl.found": "true",
        **QUIET_BROKER,
    }
    with KafkaCluster("G", config=config, heap="300m") as cluster:
        kafka_cluster = ("kafka-cluster", ResourceType.BROKER, ResourcePatternType.LITERAL)
        secret = ("east.secret", ResourceType.TOPIC, ResourcePatternType.PREFIXED)
        bindings = [
            _acl(kafka_cluster, AclOperation.ALL, AclPermissionType.ALLOW),
            _acl(kafka_cluster, AclOperation.CREATE, AclPermissionType.DENY),
            _acl(secret, AclOperation.CREATE, AclPermissionType.DENY),
        ]
        guard = admin(cluster)
        for future in guard.create_acls(bindings).values():
            future.result(20)
        yield cluster


def _acl(
    resource: tuple[str, ResourceType, ResourcePatternType],
    operation: AclOperation,
    permission: AclPermissionType,
) -> AclBinding:
    name, kind, pattern = resource
    return AclBinding(kind, name, pattern, "User:ANONYMOUS", "*", operation, permission)


_SIX = SixBrokers()
_GUARDED = Lasting[KafkaCluster]()
_SECURED = Lasting[tuple[Secured, Secured]]()
_AUTHORIZED = Lasting[tuple[Authorized, Authorized]]()
_SHARED: dict[str, SixBrokers | Lasting[Any]] = {
    "faulty_clusters": _SIX,
    "guarded": _GUARDED,
    "secured_clusters": _SECURED,
    "authorized": _AUTHORIZED,
}


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(
    item: pytest.Item, nextitem: pytest.Item | None
) -> Generator[None, None, None]:
    """Idle brokers take processor time: they end with the last test that uses them.

    ``tests/conftest.py`` puts these tests one behind the other.
    """
    yield
    for name, shared in _SHARED.items():
        if nextitem is None or item.nodeid == item.config.stash[LAST_ON].get(name):
            shared.close()


@pytest.fixture(scope="module")
def guarded() -> KafkaCluster:
    """A cluster where clients may not create topics that start with ``east.secret``."""
    return _GUARDED.get(_guarded)


@pytest.fixture(scope="module")
def secured_clusters(tmp_path_factory: pytest.TempPathFactory) -> tuple[Secured, Secured]:
    """Two clusters with TLS and SASL listeners, for all files that use them."""
    return _SECURED.get(lambda: secured_pair(tmp_path_factory.mktemp("secured")))


@pytest.fixture(scope="module")
def authorized() -> tuple[Authorized, Authorized]:
    """Two clusters with an authorizer, for all files that use them."""
    return _AUTHORIZED.get(authorized_pair)


@pytest.fixture
def faulty_clusters() -> Iterator[tuple[FaultyCluster, FaultyCluster]]:
    """Source and target for tests of faults: three brokers each, healthy before and after."""
    yield _SIX.pair()
    _SIX.restore()


@pytest.fixture
def source(faulty_clusters: tuple[FaultyCluster, FaultyCluster]) -> FaultyCluster:
    """The source of tests of faults; some files have sources of their own."""
    return faulty_clusters[0]


@pytest.fixture
def target(faulty_clusters: tuple[FaultyCluster, FaultyCluster]) -> FaultyCluster:
    """The target, likewise."""
    return faulty_clusters[1]
