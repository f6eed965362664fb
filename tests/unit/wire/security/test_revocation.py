"""Revocation lists: which certificates a handshake refuses, and what is said of the lists."""

from __future__ import annotations

import os
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.serialization import Encoding

from sparkmirror.config.clients.security import secured
from sparkmirror.errors import ClusterError, ConfigError
from tests.certificates import Authority, Certified, pem
from tests.unit.wire.security.test_tls import connect, server, trusting

HOUR = timedelta(hours=1)


@pytest.fixture(scope="module")
def root() -> Authority:
    return Authority()


@pytest.fixture(scope="module")
def middle(root: Authority) -> Authority:
    return Authority("Authority in the middle", root)


@pytest.fixture(scope="module")
def broker(root: Authority) -> Certified:
    return root.certify("broker", "localhost")


def checking(trusted: Authority, path: Path, *lists: object) -> dict[str, str]:
    """Client properties that check against ``lists``, written to ``path`` as PEM."""
    path.write_text("".join(map(pem, lists)))
    return trusting(trusted) | {"ssl.crl.location": str(path)}


@pytest.mark.parametrize("encoding", [Encoding.PEM, Encoding.DER])
def test_a_revoked_certificate_is_refused_and_another_is_not(
    root: Authority, broker: Certified, tmp_path: Path, encoding: Encoding
):
    revoked = root.certify("old", "localhost")
    path = tmp_path / "lists"
    path.write_bytes(root.revoked(revoked.certificate).public_bytes(encoding))
    properties = trusting(root) | {"ssl.crl.location": str(path)}
    with server(broker, tmp_path) as port:
        connect(port, properties).close()
    with server(revoked, tmp_path) as port:
        with pytest.raises(ClusterError, match="has been revoked") as caught:
            connect(port, properties)
        connect(port, trusting(root)).close()  # without a list nobody knows
    assert caught.value.where == f"cluster east, localhost:{port}"
    assert "ssl.crl.location" in caught.value.do


@pytest.mark.parametrize(
    ("begins", "ends", "what"),
    [(-2 * HOUR, -HOUR, "list for the broker's certificate has expired"),
     (HOUR, 2 * HOUR, "list for the broker's certificate is not yet valid")],
)  # fmt: skip
def test_lists_that_do_not_hold(
    root: Authority, broker: Certified, tmp_path: Path,
    begins: timedelta, ends: timedelta, what: str,
):  # fmt: skip
    properties = checking(root, tmp_path / "l", root.revoked(begins=begins, ends=ends))
    with server(broker, tmp_path) as port, pytest.raises(ClusterError, match=what) as caught:
        connect(port, properties)
    assert "ssl.crl.location" in caught.value.do


def test_lists_of_other_authorities(root: Authority, broker: Certified, tmp_path: Path):
    """None of the broker's; one of its name, but signed by another; and all three."""
    stranger, namesake = Authority("Stranger").revoked(), Authority().revoked()
    with server(broker, tmp_path) as port:
        with pytest.raises(ClusterError, match="has no revocation list of the authority"):
            connect(port, checking(root, tmp_path / "1", stranger))
        with pytest.raises(ClusterError, match=r"the signature of the .* cannot be verified"):
            connect(port, checking(root, tmp_path / "2", namesake))
        connect(port, checking(root, tmp_path / "3", stranger, root.revoked())).close()


def test_authorities_are_checked_when_all_have_lists(
    root: Authority, middle: Authority, tmp_path: Path
):
    broker = middle.certify("broker", "localhost")
    without, withdrawn = root.revoked(), root.revoked(middle.certificate)
    own = middle.revoked()
    with server(broker, tmp_path) as port:
        connect(port, checking(root, tmp_path / "1", own)).close()
        connect(port, checking(root, tmp_path / "2", own, without)).close()
        with pytest.raises(ClusterError, match="or one in its chain, has been revoked"):
            connect(port, checking(root, tmp_path / "3", own, withdrawn))
        with pytest.raises(ClusterError, match="has no revocation list of the authority"):
            connect(port, checking(root, tmp_path / "4", without))
        # Trusted as it stands, as in Java: what is above it does not count.
        connect(port, checking(middle, tmp_path / "5", own, withdrawn)).close()


def test_a_certificate_that_is_trusted_itself_needs_its_authority(
    root: Authority, broker: Certified, tmp_path: Path
):
    """For the list's signature; a broker that sends its authority's certificate is enough."""
    properties = checking(root, tmp_path / "l", root.revoked())
    properties["ssl.truststore.certificates"] = pem(broker.certificate)
    with server(broker, tmp_path) as port:
        connect(port, properties).close()
    cannot = pytest.raises(ClusterError, match=r"the signature of the .* cannot be verified")
    with server(replace(broker, issuers=()), tmp_path) as port, cannot:
        connect(port, properties)


def test_a_newer_list_counts_from_the_next_connection_on(
    root: Authority, broker: Certified, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    path = tmp_path / "lists.pem"
    properties = checking(root, path, root.revoked())
    with server(broker, tmp_path) as port:
        connect(port, properties).close()
        checking(root, path, root.revoked(broker.certificate))
        os.utime(path, ns=(1, 1))
        with pytest.raises(ClusterError, match="has been revoked"):
            connect(port, properties)
        path.write_text("-----BEGIN X509 CRL-----\n")  # half written
        with pytest.raises(ClusterError, match="has been revoked"):
            connect(port, properties)
    assert "stay in use" in caplog.text


@pytest.mark.parametrize(
    ("content", "what"),
    [
        (None, "No such file"),
        (b"hello", "holds no revocation list"),
        (b"-----BEGIN X509 CRL-----\nAAAA\n-----END X509 CRL-----\n", "damaged"),
        (b"\x30\x03abc", "damaged"),
        ("delta", "delta CRL"),
    ],
)
def test_files_without_use(
    root: Authority, broker: Certified, tmp_path: Path, content: bytes | str | None, what: str
):
    path = tmp_path / "lists"
    if content == "delta":
        path.write_text(pem(root.revoked(delta=True)))
    elif isinstance(content, bytes):
        path.write_bytes(content)
    properties = trusting(root) | {"ssl.crl.location": str(path)}
    with server(broker, tmp_path) as port, pytest.raises(ConfigError, match=what) as caught:
        connect(port, properties)
    assert str(path) in caught.value.what
    assert "ssl.crl.location" in caught.value.do
    assert "cluster east" in caught.value.where


def test_javas_switch_is_answered_with_the_key_to_set():
    asked = {"KAFKA_OPTS": "-Xmx1g -Dcom.sun.net.ssl.checkRevocation=true"}

    def check(protocol: str, properties: dict[str, str]) -> None:
        secured("east", properties, protocol, path="f", conf={}, environment=asked)

    with pytest.raises(ConfigError) as caught:
        check("SSL", {})
    assert "com.sun.net.ssl.checkRevocation=true" in caught.value.what
    assert "Cluster 'east'" in caught.value.what
    assert caught.value.where == "KAFKA_OPTS"
    assert "east.ssl.crl.location" in caught.value.do
    check("SSL", {"ssl.crl.location": "/lists.pem"})
    check("PLAINTEXT", {})
