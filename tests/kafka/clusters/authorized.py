"""A broker with an authorizer: who logs in may do what ACLs say, the open listener may do all."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KAFKA_VERSION, KafkaCluster, start_all
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.cluster.views import AclBinding
from tests.kafka.clusters.listeners import Listeners
from tests.kafka.clusters.quiet import QUIET_BROKER

HOST = "127.0.0.1"
MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
ADMIN = "admin"  # a super user that logs in
_LAST = "last-change-"
_CATCH_UP_S_MAX = 60.0
_LEAST = ("least", *(f"least{n}" for n in range(1, 8)))  # nobody gets what another test grants
USERS = (ADMIN, "mirror", "reader", *_LEAST, "locked", "locked1", "other")


class Authorized:
    """One cluster with a PLAINTEXT listener for super users and a SASL/PLAIN one for the others."""

    def __init__(self, name: str, version: str = KAFKA_VERSION) -> None:
        self._listeners = Listeners("OPEN", "LOGIN")
        users = " ".join(f'user_{user}="{password(user)}"' for user in USERS)
        config = {
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OPEN:PLAINTEXT,"
            "LOGIN:SASL_PLAINTEXT",
            "inter.broker.listener.name": "OPEN",
            "sasl.enabled.mechanisms": "PLAIN",
            "listener.name.login.plain.sasl.jaas.config": f"{MODULE} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": f"User:ANONYMOUS;User:{ADMIN}",
            **QUIET_BROKER,
        }
        self.kafka = KafkaCluster(
            name, config=config, node_config=self._listeners, heap="300m", version=version
        )

    @property
    def login_servers(self) -> str:
        return self._listeners.servers["LOGIN"]

    def client(self, alias: str, user: str = "", *, timeout_ms: int = 10_000) -> ClusterClient:
        """A client that logs in as ``user``, or a super user."""
        if not user:
            servers = (self.kafka.bootstrap_servers,)
            return ClusterClient(alias, servers, f"test-{alias}", request_timeout_ms=timeout_ms)
        return ClusterClient(
            alias,
            (self.login_servers,),
            f"test-{alias}",
            security_protocol="SASL_PLAINTEXT",
            request_timeout_ms=timeout_ms,
            properties=properties(user),
        )

    def allow(self, bindings: Iterable[AclBinding]) -> None:
        """Add ACLs as a super user; they hold when this returns."""
        with self.super_user() as cluster:
            assert not any(cluster.create_acls(list(bindings)))
            _catch_up(cluster)

    def forbid(self, bindings: Iterable[AclBinding]) -> None:
        """Remove ACLs as a super user; they no longer hold when this returns."""
        with self.super_user() as cluster:
            assert not any(cluster.delete_acls(list(bindings)))
            _catch_up(cluster)

    def acls(self, *prefixes: str) -> set[AclBinding]:
        """The ACLs on topics whose names start with one of ``prefixes``."""
        with self.super_user() as cluster:
            found = _catch_up(cluster)
        return {binding for binding in found if binding.name.startswith(prefixes)}

    @contextmanager
    def super_user(self) -> Iterator[Cluster]:
        cluster = Cluster(self.client(self.kafka.name))
        try:
            yield cluster
        finally:
            cluster.close()


def _catch_up(cluster: Cluster) -> set[AclBinding]:
    """Wait until the broker knows all ACLs that the controller has; return those on topics.

    The controller answers a change before the broker has heard of it. The broker hears of changes
    in their order: what came before this one is known when this one is.
    """
    last = topic_acl(f"{_LAST}{uuid.uuid4().hex}", "READ", "User:nobody")
    assert not any(cluster.create_acls([last]))
    deadline = time.monotonic() + _CATCH_UP_S_MAX
    while True:
        found = cluster.topic_acls()
        assert found is not None
        if last in found:
            break
        assert time.monotonic() < deadline, "the broker does not learn of its ACLs"
        time.sleep(0.02)
    assert not any(cluster.delete_acls([last]))
    return {binding for binding in found if not binding.name.startswith(_LAST)}


def password(user: str) -> str:
    return f"{user}-secret-4711"


def properties(user: str) -> dict[str, str]:
    """What a client's file says to log in."""
    login = f'{MODULE} required username="{user}" password="{password(user)}";'
    return {"sasl.mechanism": "PLAIN", "sasl.jaas.config": login}


def topic_acl(
    name: str, operation: str, principal: str = "User:reader", *, permission: str = "ALLOW",
    pattern: str = "LITERAL", host: str = "*",
) -> AclBinding:  # fmt: skip
    return AclBinding("TOPIC", name, pattern, principal, host, operation, permission)


@contextmanager
def authorized_pair(
    names: Sequence[str] = ("V", "W"), version: str = KAFKA_VERSION
) -> Iterator[tuple[Authorized, Authorized]]:
    """Two such clusters, started side by side."""
    pair = tuple(Authorized(name, version) for name in names)
    start_all(*(each.kafka for each in pair))
    try:
        yield pair[0], pair[1]
    finally:
        for each in pair:
            each.kafka.stop()
