"""What may be wrong with certificates, stores and logins, told by the command to its user.

On real brokers, as the source's trouble and as the target's; what Kerberos says is in
test_kerberos.py.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography import x509

from tests.certificates import Authority, pem
from tests.kafka.mirror_process import wait_until, write_mm2
from tests.kafka.secure import HOST, USER_SECRET, Secured, jaas
from tests.kafka.test_bad_input import paragraph

pytestmark = pytest.mark.timeout(240)
KRB5 = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
HOUR = timedelta(hours=1)


@pytest.fixture
def pair(secured_clusters: tuple[Secured, Secured]) -> Iterator[tuple[Secured, Secured]]:
    """The first with its own certificate again afterwards."""
    first = secured_clusters[0]
    own = first.shown("TLS")
    yield secured_clusters
    show(first, first.stores["broker"], own)


def show(cluster: Secured, store: Path, certificate: x509.Certificate) -> None:
    cluster.serve(store)
    wait_until(lambda: cluster.shown("TLS") == certificate, "the certificate is shown")


def told(
    pair: tuple[Secured, Secured],
    side: str,
    listener: str,
    directory: Path,
    *,
    code: int,
    mechanism: str = "",
    environment: dict[str, str] | None = None,
    more: dict[str, str] | None = None,
    **changes: str,
) -> str:
    """The error of a mirror whose cluster ``side`` is the first of ``pair``, with ``changes``.

    ``more``: lines of the file besides.
    """
    bad, good = pair
    other = "B" if side == "A" else "A"
    of_bad = bad.properties(listener, mechanism)
    of_bad |= {key.replace("_", "."): value for key, value in changes.items()}
    extra = {
        f"{side}.bootstrap.servers": bad.servers[listener],
        f"{other}.bootstrap.servers": good.servers["TLS"],
        **{f"{side}.{key}": value for key, value in of_bad.items()},
        **{f"{other}.{key}": value for key, value in good.properties("TLS").items()},
        **(more or {}),
    }
    topics = f"none-{uuid.uuid4().hex[:8]}"
    path = write_mm2(directory / "mm2.properties", bad.kafka, good.kafka, topics, extra)
    line = paragraph(directory, code, "run", str(path), environment=environment)
    assert f"cluster {side}" in line or f"Cluster '{side}'" in line, line
    assert f"cluster {other}" not in line
    assert f"Cluster '{other}'" not in line
    assert USER_SECRET not in line
    return line


@pytest.mark.parametrize("side", ["A", "B"])
@pytest.mark.parametrize(
    ("kind", "what", "do"),
    [
        ("expired", "the broker's certificate has expired", "Renew it"),
        ("early", "the broker's certificate is not yet valid", "clocks"),
        ("elsewhere", "the broker's certificate is for another host name", "alternative names"),
        ("unknown", "the broker's certificate is not trusted", "ssl.truststore.location"),
        ("revoked", "has been revoked", "ssl.crl.location"),
    ],
)
def test_certificates(
    pair: tuple[Secured, Secured], tmp_path: Path, side: str, kind: str, what: str, do: str
):
    authority = Authority("Stranger") if kind == "unknown" else pair[0].authority
    begins, ends = {"expired": (-2 * HOUR, -HOUR), "early": (HOUR, 2 * HOUR)}.get(
        kind, (-HOUR, HOUR)
    )
    names = ("elsewhere.example",) if kind == "elsewhere" else ("localhost", HOST)
    certified = authority.certify("broker", *names, begins=begins, ends=ends)
    changes = {}
    if kind == "revoked":
        (tmp_path / "lists").write_text(pem(authority.revoked(certified.certificate)))
        changes = {"ssl_crl_location": str(tmp_path / "lists")}
    show(pair[0], certified.pkcs12(tmp_path / "own.p12"), certified.certificate)
    line = told(pair, side, "TLS", tmp_path, code=3, **changes)
    assert what in line
    assert do in line[line.index(what) :]


@pytest.mark.parametrize("side", ["A", "B"])
def test_the_password_of_a_store(pair: tuple[Secured, Secured], tmp_path: Path, side: str):
    line = told(pair, side, "TLS", tmp_path, code=2, ssl_truststore_password="wrong")
    assert f"the truststore {pair[0].stores['trust']} cannot be used: its password is wrong" in line
    assert "Check ssl.truststore.password." in line
    line = told(pair, side, "MUTUAL", tmp_path, code=2, ssl_keystore_password="wrong")
    assert f"the keystore {pair[0].stores['client']} cannot be used: its password is wrong" in line


@pytest.mark.parametrize("side", ["A", "B"])
def test_a_mechanism_that_the_broker_lacks(
    pair: tuple[Secured, Secured], tmp_path: Path, side: str
):
    line = told(
        pair, side, "BOTH", tmp_path, code=3, mechanism="PLAIN", sasl_mechanism="GSSAPI",
        sasl_jaas_config=KRB5, sasl_kerberos_service_name="kafka",
    )  # fmt: skip
    assert "the broker does not offer sasl.mechanism=GSSAPI on this listener (it offers" in line
    assert "SCRAM-SHA-512" in line


@pytest.mark.parametrize("side", ["A", "B"])
def test_the_syntax_of_jaas(pair: tuple[Secured, Secured], tmp_path: Path, side: str):
    """In the property, with its line of the file; in a file that KAFKA_OPTS names."""
    entry = jaas("PLAIN").rstrip(";")
    line = told(
        pair, side, "LOGIN", tmp_path, code=2, mechanism="PLAIN", sasl_jaas_config=entry
    )  # fmt: skip
    assert "the JAAS entry has a syntax error in its line 1: ';' is missing" in line
    assert "mm2.properties:" in line
    file = tmp_path / "jaas.conf"
    file.write_text(f"KafkaClient {{\n{entry};\n}}\n")
    options = {"KAFKA_OPTS": f"-Djava.security.auth.login.config={file}"}
    line = told(
        pair, side, "LOGIN", tmp_path, code=2, mechanism="PLAIN", sasl_jaas_config="",
        environment=options,
    )  # fmt: skip
    assert "the JAAS entry has a syntax error in its line" in line
    assert "';' is missing after the closing brace" in line
    assert str(file) in line


@pytest.mark.parametrize("side", ["A", "B"])
def test_javas_switch_for_revoked_certificates(
    pair: tuple[Secured, Secured], tmp_path: Path, side: str
):
    """Both sides speak TLS; the one with lists has what Java was asked for."""
    (tmp_path / "lists").write_text(pem(pair[0].authority.revoked()))
    other = "B" if side == "A" else "A"
    line = told(
        pair, side, "TLS", tmp_path, code=2,
        environment={"KAFKA_OPTS": "-Dcom.sun.net.ssl.checkRevocation=true"},
        more={f"{other}.ssl.crl.location": str(tmp_path / "lists")},
    )  # fmt: skip
    assert "com.sun.net.ssl.checkRevocation=true asks for" in line
    assert f"Set {side}.ssl.crl.location" in line
