"""What may be wrong with certificates, stores and logins, told by the command to its user.

On real brokers, as the source's trouble and as the target's; what Kerberos says is in
test_kerberos.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import pytest

from sparkmirror.testing.clusters import KafkaCluster
from tests.certificates import PASSWORD, Authority, pem
from tests.kafka.cli.test_bad_input import paragraph
from tests.kafka.clusters.listeners import Listeners
from tests.kafka.clusters.secure import HOST, USER_SECRET, Secured, jaas
from tests.kafka.harness.mirror_process import write_mm2

KRB5 = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
HOUR = timedelta(hours=1)


# What each listener of the broker with the bad certificates shows, and what is said of it.
CERTIFICATES = {
    "EXPIRED": ("the broker's certificate has expired", "Renew it"),
    "EARLY": ("the broker's certificate is not yet valid", "clocks"),
    "ELSEWHERE": ("the broker's certificate is for another host name", "alternative names"),
    "UNKNOWN": ("the broker's certificate is not trusted", "ssl.truststore.location"),
    "REVOKED": ("has been revoked", "ssl.crl.location"),
}
Pair = tuple[Secured, Secured]


@dataclass(frozen=True)
class Bad:
    """A broker with a listener for each of `CERTIFICATES`; ``lists`` are its authority's."""

    kafka: KafkaCluster
    servers: dict[str, str]
    lists: Path


@pytest.fixture(scope="module")
def bad(secured_clusters: Pair, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bad]:
    directory = tmp_path_factory.mktemp("bad")
    authority = secured_clusters[0].authority
    config = {
        "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,OPEN:PLAINTEXT,"
        + ",".join(f"{each}:SSL" for each in CERTIFICATES),
        "inter.broker.listener.name": "OPEN",
    }
    lists = directory / "lists.pem"
    for each in CERTIFICATES:
        signer = Authority("Stranger") if each == "UNKNOWN" else authority
        names = ("elsewhere.example",) if each == "ELSEWHERE" else ("localhost", HOST)
        times = {"EXPIRED": (-2 * HOUR, -HOUR), "EARLY": (10 * HOUR, 20 * HOUR)}
        begins, ends = times.get(each, (-HOUR, 10 * HOUR))
        certified = signer.certify("broker", *names, begins=begins, ends=ends)
        if each == "REVOKED":
            lists.write_text(pem(authority.revoked(certified.certificate)))
        prefix = f"listener.name.{each.lower()}.ssl.keystore"
        config |= {
            f"{prefix}.location": str(certified.pkcs12(directory / f"{each}.p12")),
            f"{prefix}.password": PASSWORD,
            f"{prefix}.type": "PKCS12",
        }
    listeners = Listeners("OPEN", *CERTIFICATES)
    with KafkaCluster("X", config=config, node_config=listeners, heap="300m") as kafka:
        yield Bad(kafka, listeners.servers, lists)


def told(
    pair: Pair,
    side: str,
    listener: str,
    directory: Path,
    *,
    code: int,
    mechanism: str = "",
    server: str = "",
    environment: dict[str, str] | None = None,
    more: dict[str, str] | None = None,
    **changes: str,
) -> str:
    """The error of a mirror whose cluster ``side`` is the first of ``pair``, with ``changes``.

    ``server``: another one in its place. ``more``: lines of the file besides.
    """
    first, good = pair
    other = "B" if side == "A" else "A"
    of_bad = first.properties(listener, mechanism)
    of_bad |= {key.replace("_", "."): value for key, value in changes.items()}
    extra = {
        f"{side}.bootstrap.servers": server or first.servers[listener],
        f"{other}.bootstrap.servers": good.servers["TLS"],
        **{f"{side}.{key}": value for key, value in of_bad.items()},
        **{f"{other}.{key}": value for key, value in good.properties("TLS").items()},
        **(more or {}),
    }
    topics = f"none-{uuid.uuid4().hex[:8]}"
    path = write_mm2(directory / "mm2.properties", first.kafka, good.kafka, topics, extra)
    line = paragraph(directory, code, "run", str(path), environment=environment)
    assert f"cluster {side}" in line or f"Cluster '{side}'" in line, line
    assert f"cluster {other}" not in line
    assert f"Cluster '{other}'" not in line
    assert USER_SECRET not in line
    return line


@pytest.mark.parametrize("side", [pytest.param("A", marks=pytest.mark.more), "B"])
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=pytest.mark.more) if kind in ("EARLY", "ELSEWHERE") else kind
        for kind in CERTIFICATES
    ],
)
def test_certificates(secured_clusters: Pair, bad: Bad, tmp_path: Path, side: str, kind: str):
    what, do = CERTIFICATES[kind]
    changes = {"ssl_crl_location": str(bad.lists)} if kind == "REVOKED" else {}
    server = bad.servers[kind]
    line = told(secured_clusters, side, "TLS", tmp_path, code=3, server=server, **changes)
    assert what in line
    assert do in line[line.index(what) :]


@pytest.mark.parametrize("side", ["A", pytest.param("B", marks=pytest.mark.more)])
def test_the_password_of_a_store(secured_clusters: Pair, tmp_path: Path, side: str):
    stores = secured_clusters[0].stores
    line = told(secured_clusters, side, "TLS", tmp_path, code=2, ssl_truststore_password="no-4711")
    assert f"the truststore {stores['trust']} cannot be used: its password is wrong" in line
    assert "Check ssl.truststore.password." in line
    line = told(secured_clusters, side, "MUTUAL", tmp_path, code=2, ssl_keystore_password="no-4711")
    assert f"the keystore {stores['client']} cannot be used: its password is wrong" in line


@pytest.mark.parametrize("side", ["A", pytest.param("B", marks=pytest.mark.more)])
def test_a_mechanism_that_the_broker_lacks(secured_clusters: Pair, tmp_path: Path, side: str):
    line = told(
        secured_clusters, side, "BOTH", tmp_path, code=3, mechanism="PLAIN",
        sasl_mechanism="GSSAPI", sasl_jaas_config=KRB5, sasl_kerberos_service_name="kafka",
    )  # fmt: skip
    assert "the broker does not offer sasl.mechanism=GSSAPI on this listener (it offers" in line
    assert "SCRAM-SHA-512" in line


@pytest.mark.parametrize("side", ["A", pytest.param("B", marks=pytest.mark.more)])
def test_the_syntax_of_jaas(secured_clusters: Pair, tmp_path: Path, side: str):
    """In the property, with its line of the file; in a file that KAFKA_OPTS names."""
    entry = jaas("PLAIN").rstrip(";")
    line = told(
        secured_clusters, side, "LOGIN", tmp_path, code=2, mechanism="PLAIN", sasl_jaas_config=entry
    )  # fmt: skip
    assert "the JAAS entry has a syntax error in its line 1: ';' is missing" in line
    assert "mm2.properties:" in line
    file = tmp_path / "jaas.conf"
    file.write_text(f"KafkaClient {{\n{entry};\n}}\n")
    options = {"KAFKA_OPTS": f"-Djava.security.auth.login.config={file}"}
    line = told(
        secured_clusters, side, "LOGIN", tmp_path, code=2, mechanism="PLAIN", sasl_jaas_config="",
        environment=options,
    )  # fmt: skip
    assert "the JAAS entry has a syntax error in its line" in line
    assert "';' is missing after the closing brace" in line
    assert str(file) in line


@pytest.mark.parametrize("side", [pytest.param("A", marks=pytest.mark.more), "B"])
def test_javas_switch_for_revoked_certificates(secured_clusters: Pair, tmp_path: Path, side: str):
    """Both sides speak TLS; the one with lists has what Java was asked for."""
    (tmp_path / "lists").write_text(pem(secured_clusters[0].authority.revoked()))
    other = "B" if side == "A" else "A"
    line = told(
        secured_clusters, side, "TLS", tmp_path, code=2,
        environment={"KAFKA_OPTS": "-Dcom.sun.net.ssl.checkRevocation=true"},
        more={f"{other}.ssl.crl.location": str(tmp_path / "lists")},
    )  # fmt: skip
    assert "com.sun.net.ssl.checkRevocation=true requires" in line
    assert f"Set {side}.ssl.crl.location" in line
