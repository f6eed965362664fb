"""Brokers that take GSSAPI logins, and the client properties that go with them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from sparkmirror.settings import ClusterClient
from sparkmirror.testing.clusters import KafkaCluster
from tests.certificates import PASSWORD, Authority
from tests.kafka.clusters.listeners import Listeners
from tests.kafka.clusters.realm import HOST, OTHER_REALM, REALM, Realm
from tests.kafka.clusters.secure import LISTENERS

MODULE = "com.sun.security.auth.module.Krb5LoginModule"
CLIENT = f"mirror@{REALM}"
# Each session ends long before a run does, and each login takes a ticket that is valid. A client
# logs in again when at least a twentieth is left, in which a busy machine must not pause.
SESSION_MS = 12_000


@dataclass
class Kerberized:
    """A broker, its realm, a client's keytab."""

    kafka: KafkaCluster
    realm: Realm
    keytab: Path
    listeners: Listeners
    truststore: Path

    @property
    def servers(self) -> dict[str, str]:
        """By listener name."""
        return self.listeners.servers

    @property
    def server(self) -> str:
        """The one without TLS."""
        return self.servers["LOGIN"]

    def properties(self, options: str = "") -> dict[str, str]:
        options = options or f'useKeyTab=true keyTab="{self.keytab}" principal="{CLIENT}"'
        return {
            "sasl.jaas.config": f"{MODULE} required {options};",
            "sasl.kerberos.service.name": "kafka",
            "java.security.krb5.conf": str(self.realm.conf),
        }

    def client(
        self, options: str = "", *, listener: str = "LOGIN", **changes: str
    ) -> ClusterClient:
        properties = {**self.properties(options), **self.trusting(listener), **changes}
        return ClusterClient(
            "east",
            (self.servers[listener],),
            "test",
            security_protocol=LISTENERS[listener],
            request_timeout_ms=10_000,
            properties=properties,
        )

    def trusting(self, listener: str) -> dict[str, str]:
        """The properties for TLS, if ``listener`` has it."""
        if LISTENERS[listener] != "SASL_SSL":
            return {}
        return {
            "ssl.truststore.location": str(self.truststore),
            "ssl.truststore.type": "PEM",
        }

    def lines(self, alias: str, listener: str) -> dict[str, str]:
        """What a MirrorMaker 2 file says of cluster ``alias``; krb5.conf is the process's."""
        found = {
            "bootstrap.servers": self.servers[listener],
            "security.protocol": LISTENERS[listener],
            **self.properties(),
            **self.trusting(listener),
        }
        del found["java.security.krb5.conf"]
        return {f"{alias}.{key}": value for key, value in found.items()}


def kerberized(
    name: str,
    realm: Realm,
    keytab: Path,
    directory: Path,
    host: str = HOST,
    *,
    more: Mapping[str, str] | None = None,
) -> Kerberized:
    """A cluster, not started yet, whose broker is ``kafka/host`` of ``realm``.

    ``more``: properties of the broker.
    """
    principal = f"kafka/{host}@{realm.name}"
    broker = realm.keytab(f"{name}.keytab", principal, known=True)
    authority = Authority(f"Authority of {name}")
    own = authority.certify("broker", host).pkcs12(directory / f"{name}.p12")
    truststore = directory / f"trust-{name}.pem"
    truststore.write_text(authority.pem())
    entry = (
        f'{MODULE} required useKeyTab=true storeKey=true keyTab="{broker}" '
        f'principal="{principal}" isInitiator=false;'
    )
    config = {
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,"
        "LOGIN:SASL_PLAINTEXT,BOTH:SASL_SSL",
        "sasl.enabled.mechanisms": "GSSAPI",
        "sasl.kerberos.service.name": "kafka",
        # Java takes users of its own realm only, unless a rule names the other.
        "sasl.kerberos.principal.to.local.rules": "".join(
            f"RULE:[1:$1@$0](.*@{each})s/@.*//," for each in (REALM, OTHER_REALM)
        )
        + "DEFAULT",
        "connections.max.reauth.ms": str(SESSION_MS),
        "ssl.keystore.location": str(own),
        "ssl.keystore.password": PASSWORD,
        "ssl.keystore.type": "PKCS12",
        "listener.name.login.gssapi.sasl.jaas.config": entry,
        "listener.name.both.gssapi.sasl.jaas.config": entry,
        **(more or {}),
    }
    flags = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
    jvm = (*flags, f"-Djava.security.krb5.conf={realm.conf}")
    listeners = Listeners("PLAINTEXT", "LOGIN", "BOTH", hosts={"LOGIN": host, "BOTH": host})
    kafka = KafkaCluster(name, config=config, node_config=listeners, heap="400m", jvm=jvm)
    return Kerberized(kafka, realm, keytab, listeners, truststore)
