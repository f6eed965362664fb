"""A broker with every kind of listener, and the client properties that go with each."""

from __future__ import annotations

import ssl
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from confluent_kafka.admin import (
    AdminClient,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)
from cryptography import x509

from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import QUICK_JVM, KafkaCluster, start_all
from tests.certificates import PASSWORD, Authority
from tests.kafka.clusters.listeners import Listeners
from tests.kafka.clusters.quiet import QUIET_BROKER
from tests.kafka.clusters.token_endpoint import IdentityProvider, identity_provider

HOST = "127.0.0.1"
USER = "mirror"
USER_SECRET = "planted-login-secret-815"
LOGIN_MODULES = {
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "OAUTHBEARER": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule",
}
MECHANISMS = tuple(LOGIN_MODULES)
SIGNED = "SIGNED"
"""A listener for tokens that the identity provider signed; on all others they are unsecured."""
# What checks signatures there: brokers of the demo go without.
_JOSE4J = "org.bitbucket.b_c:jose4j:0.9.6@jar"
_OAUTH = "org.apache.kafka.common.security.oauthbearer"
LISTENERS = {
    "OPEN": "PLAINTEXT",
    "TLS": "SSL",
    "MUTUAL": "SSL",
    "LOGIN": "SASL_PLAINTEXT",
    "BOTH": "SASL_SSL",
}
_PROTOCOLS = {**LISTENERS, SIGNED: "SASL_PLAINTEXT"}
# Short, so that every test of some length logs in again.
SESSION_MS = 5_000
# A client logs in again when at least a twentieth of its session is left. Where a whole mirror must
# not lose a connection, that is a second: a busy machine pauses for half of one.
MIRROR_SESSION_MS = 20_000
MIRRORED_FROM = ("BOTH", "SCRAM-SHA-512")
"""The listener and login of the first cluster with such sessions; the second one has no others."""
_REAUTH = "connections.max.reauth.ms"
_MIRRORED_FROM = ".".join(("listener.name", *MIRRORED_FROM)).lower()
_SESSIONS = {
    "P": {_REAUTH: f"{SESSION_MS}", f"{_MIRRORED_FROM}.{_REAUTH}": f"{MIRROR_SESSION_MS}"},
    "Q": {_REAUTH: f"{MIRROR_SESSION_MS}"},
}


def jaas(mechanism: str) -> str:
    """A client's JAAS entry."""
    if mechanism == "OAUTHBEARER":
        options = f'unsecuredLoginStringClaim_sub="{USER}"'
    else:
        options = f'username="{USER}" password="{USER_SECRET}"'
    return f"{LOGIN_MODULES[mechanism]} required {options};"


@dataclass
class Secured:
    """One cluster with all listeners.

    ``identity``: who signs the tokens of the listener `SIGNED`.
    """

    kafka: KafkaCluster
    listeners: Listeners
    directory: Path
    authority: Authority
    identity: IdentityProvider
    stores: dict[str, Path] = field(default_factory=dict)

    @property
    def servers(self) -> dict[str, str]:
        """By listener name."""
        return self.listeners.servers

    def properties(self, listener: str, mechanism: str = "") -> dict[str, str]:
        """What a MirrorMaker file says to reach ``listener``."""
        protocol = _PROTOCOLS[listener]
        found = {"security.protocol": protocol}
        if protocol in ("SSL", "SASL_SSL"):
            found |= {
                "ssl.truststore.location": str(self.stores["trust"]),
                "ssl.truststore.type": "PKCS12",
                "ssl.truststore.password": PASSWORD,
            }
        if listener == "MUTUAL":
            found |= {
                "ssl.keystore.location": str(self.stores["client"]),
                "ssl.keystore.type": "PKCS12",
                "ssl.keystore.password": PASSWORD,
            }
        if mechanism:
            found |= {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(mechanism)}
        return found

    def shown(self, listener: str) -> x509.Certificate:
        """The certificate that a listener shows."""
        host, _, port = self.servers[listener].partition(":")
        text = ssl.get_server_certificate((host, int(port)))
        return x509.load_pem_x509_certificate(text.encode())

    def client(
        self, listener: str, mechanism: str = "", changes: Mapping[str, str | None] | None = None
    ) -> ClusterClient:
        """A client for ``listener``; ``changes`` replace properties, None removes one."""
        given: dict[str, str | None] = {**self.properties(listener, mechanism), **(changes or {})}
        properties = {key: value for key, value in given.items() if value is not None}
        protocol = properties.pop("security.protocol")
        return ClusterClient(
            alias="east",
            bootstrap_servers=(self.servers[listener],),
            client_id="test",
            security_protocol=protocol,
            request_timeout_ms=10_000,
            properties=properties,
        )


def _prepare(
    name: str,
    directory: Path,
    authority: Authority,
    trust: Path,
    identity: IdentityProvider,
    sessions: Mapping[str, str],
) -> Secured:
    server = authority.certify("broker", "localhost", HOST).pkcs12(directory / f"{name}.p12")
    prefix = "listener.name."
    config = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,"
        + ",".join(f"{each}:{protocol}" for each, protocol in _PROTOCOLS.items()),
        "inter.broker.listener.name": "OPEN",
        "sasl.enabled.mechanisms": ",".join(MECHANISMS),
        **sessions,
        "ssl.keystore.location": str(server),
        "ssl.keystore.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "ssl.truststore.location": str(trust),
        "ssl.truststore.password": PASSWORD,
        "ssl.truststore.type": "PKCS12",
        f"{prefix}mutual.ssl.client.auth": "required",
        **QUIET_BROKER,
    }
    signed = f"{prefix}{SIGNED.lower()}."
    config |= {
        f"{signed}sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{signed}oauthbearer.sasl.jaas.config": f"{LOGIN_MODULES['OAUTHBEARER']} required "
        'unsecuredLoginStringClaim_sub="broker";',
        f"{signed}oauthbearer.sasl.server.callback.handler.class":
        f"{_OAUTH}.OAuthBearerValidatorCallbackHandler",
        f"{signed}sasl.oauthbearer.jwks.endpoint.url": identity.keys_url,
        f"{signed}sasl.oauthbearer.expected.issuer": identity.issuer,
        f"{signed}sasl.oauthbearer.expected.audience": identity.audience,
    }  # fmt: skip
    for listener in ("login", "both"):
        config |= {
            f"{prefix}{listener}.plain.sasl.jaas.config": f"{LOGIN_MODULES['PLAIN']} required "
            f'user_{USER}="{USER_SECRET}";',
            f"{prefix}{listener}.oauthbearer.sasl.jaas.config":
            f"{LOGIN_MODULES['OAUTHBEARER']} required "
            'unsecuredLoginStringClaim_sub="broker";',
        }  # fmt: skip
        for mechanism in ("scram-sha-256", "scram-sha-512"):
            module = LOGIN_MODULES[mechanism.upper()]
            config[f"{prefix}{listener}.{mechanism}.sasl.jaas.config"] = f"{module} required;"
    listeners = Listeners(*_PROTOCOLS)
    kafka = KafkaCluster(
        name,
        config=config,
        node_config=listeners,
        heap="400m",
        jars=(_JOSE4J,),
        jvm=(*QUICK_JVM, f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={identity.keys_url}"),
    )
    return Secured(kafka, listeners, directory, authority, identity)


def _add_scram_user(cluster: Secured) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.kafka.bootstrap_servers})
    changes = [
        UserScramCredentialUpsertion(USER, ScramCredentialInfo(kind, 4096), USER_SECRET.encode())
        for kind in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
    ]
    for change in changes:
        for answer in admin.alter_user_scram_credentials([change]).values():
            answer.result(30)


@contextmanager
def secured_pair(directory: Path) -> Iterator[tuple[Secured, Secured]]:
    """Two such clusters, P and Q, whose certificates one authority signed."""
    authority = Authority()
    trust = authority.truststore(directory / "trust.p12")
    client = authority.certify("client").pkcs12(directory / "client.p12")
    with identity_provider() as identity:
        pair = tuple(
            _prepare(name, directory, authority, trust, identity, sessions)
            for name, sessions in _SESSIONS.items()
        )
        start_all(*(each.kafka for each in pair))
        try:
            for each in pair:
                broker = directory / f"{each.kafka.name}.p12"
                each.stores = {"trust": trust, "client": client, "broker": broker}
                _add_scram_user(each)
            yield pair[0], pair[1]
        finally:
            for each in pair:
                each.kafka.stop()
