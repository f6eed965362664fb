"""The steps over TLS: catch-up with every connection of the mirror over TLS, on both sides.

The topic is filled and watched over the brokers' plain listeners; only the mirrors use TLS. Each
peer gets the same stores (an authority of the run, elliptic curve P-256) and no other setting, so
Java and OpenSSL choose version and suite themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from tests.certificates import PASSWORD, Authority

from benchmarks.load import LOADS, Load
from sparkmirror.testing.clusters import KafkaCluster, start_all
from sparkmirror.testing.probe import free_ports

__all__ = ["TLS_LOADS", "TlsPair", "tls_clusters"]

HOST = "127.0.0.1"


def _over_tls(name: str) -> Load:
    load = LOADS[name]
    return replace(load, topic=f"{load.topic}-tls", title=f"{load.title}, TLS on both sides")


TLS_LOADS = {"100b-tls": _over_tls("100b"), "1k-lz4-tls": _over_tls("1k-lz4")}


@dataclass(frozen=True)
class TlsPair:
    """Two clusters; ``servers``: their TLS listeners; ``properties``: what the mirrors add."""

    clusters: tuple[KafkaCluster, KafkaCluster]
    servers: tuple[str, str]
    properties: dict[str, str]


@contextmanager
def tls_clusters(
    directory: Path, broker: dict[str, str], jvm: tuple[str, ...]
) -> Iterator[TlsPair]:
    """Two one-node clusters like those of the other steps, with a TLS listener each."""
    directory.mkdir(parents=True)
    authority = Authority()
    trust = authority.truststore(directory / "trust.p12")
    own = authority.certify("broker", "localhost", HOST).pkcs12(directory / "broker.p12")
    clusters, servers = [], []
    for name in "AB":
        plain, controller, tls = free_ports(3)
        listeners = {"PLAINTEXT": plain, "CONTROLLER": controller, "SSL": tls}
        config = {
            **broker,
            "controller.quorum.voters": f"1@{HOST}:{controller}",
            "listeners": ",".join(f"{each}://{HOST}:{port}" for each, port in listeners.items()),
            "advertised.listeners": f"PLAINTEXT://{HOST}:{plain},SSL://{HOST}:{tls}",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SSL:SSL",
            "ssl.keystore.location": str(own),
            "ssl.keystore.password": PASSWORD,
            "ssl.keystore.type": "PKCS12",
        }
        clusters.append(KafkaCluster(name, ports=(plain,), config=config, heap="1g", jvm=jvm))
        servers.append(f"{HOST}:{tls}")
    properties = {"security.protocol": "SSL", "ssl.truststore.location": str(trust),
                  "ssl.truststore.type": "PKCS12", "ssl.truststore.password": PASSWORD}  # fmt: skip
    both = {f"{alias}.{key}": value for alias in "AB" for key, value in properties.items()}
    start_all(*clusters)
    try:
        yield TlsPair((clusters[0], clusters[1]), (servers[0], servers[1]), both)
    finally:
        for cluster in clusters:
            cluster.stop()
