"""Stores of every kind, and TLS handshakes against a small server: what works, what is said."""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from sparkmirror.config.clients.tls import TlsSettings, openssl_name, tls_settings
from sparkmirror.errors import ClusterError, ConfigError, MirrorError, NotKafka
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.security import keystores, tls
from sparkmirror.wire.security.jks import JksEntry
from sparkmirror.wire.security.keystores import read_identity, read_trusted
from sparkmirror.wire.security.tls import make_context, wrap
from tests.certificates import PASSWORD, Authority, Certified, keytool, to_jks

HOUR = timedelta(hours=1)
# Identifiers of algorithms in DER, of the same length.
EC_KEY, GOST_KEY = bytes.fromhex("06072a8648ce3d0201"), bytes.fromhex("06072a8503070101 01")


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority()


@contextlib.contextmanager
def server(own: Certified, directory: Path, trusted: Authority | None = None) -> Iterator[int]:
    """Answers every TLS connection with one byte; the port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(own.pem_file(directory / "server.pem"))
    if trusted is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=trusted.pem())
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), connection:
                    context.wrap_socket(connection, server_side=True).sendall(b"!")

        threading.Thread(target=serve, daemon=True).start()
        yield listener.getsockname()[1]


def connect(port: int, properties: dict[str, str], host: str = "localhost") -> ssl.SSLSocket:
    client = ClusterClient("east", (), "test", security_protocol="SSL", properties=properties)
    sock = socket.create_connection(("127.0.0.1", port), timeout=5)
    secure = wrap(sock, host, client)
    assert isinstance(secure, ssl.SSLSocket)
    return secure


def trusting(authority: Authority) -> dict[str, str]:
    return {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": authority.pem()}


def test_a_handshake(authority: Authority, tmp_path: Path):
    own = authority.certify("broker", "localhost")
    with server(own, tmp_path) as port, connect(port, trusting(authority)) as sock:
        assert sock.recv(1) == b"!"


@pytest.mark.parametrize(
    ("names", "begins", "ends", "what"),
    [
        (("localhost",), -2 * HOUR, -HOUR, "has expired"),
        (("localhost",), HOUR, 2 * HOUR, "is not yet valid"),
        (("elsewhere.example",), -HOUR, HOUR, "is for another host name"),
    ],
)
def test_certificates_that_do_not_hold(
    authority: Authority,
    tmp_path: Path,
    names: tuple[str, ...],
    begins: timedelta,
    ends: timedelta,
    what: str,
):
    own = authority.certify("broker", *names, begins=begins, ends=ends)
    with server(own, tmp_path) as port, pytest.raises(ClusterError) as caught:
        connect(port, trusting(authority))
    assert what in caught.value.what
    assert caught.value.where == f"cluster east, localhost:{port}"
    assert caught.value.do


def test_the_name_check_can_be_left_out(authority: Authority, tmp_path: Path):
    own = authority.certify("broker", "elsewhere.example")
    properties = {**trusting(authority), "ssl.endpoint.identification.algorithm": ""}
    with server(own, tmp_path) as port:
        connect(port, properties).close()


def test_an_address_has_to_be_named_as_an_address(authority: Authority, tmp_path: Path):
    named = authority.certify("broker", "localhost")
    other = pytest.raises(ClusterError, match="another host name")
    with server(named, tmp_path) as port, other:
        connect(port, trusting(authority), host="127.0.0.1")
    with server(authority.certify("broker", "127.0.0.1"), tmp_path) as port:
        connect(port, trusting(authority), host="127.0.0.1").close()


def test_an_unknown_authority(authority: Authority, tmp_path: Path):
    own = authority.certify("broker", "localhost")
    with server(own, tmp_path) as port, pytest.raises(ClusterError, match="is not trusted"):
        connect(port, trusting(Authority("Stranger")))


def test_a_certificate_in_the_truststore_is_enough(authority: Authority, tmp_path: Path):
    """Java needs no root: what stands in a truststore is trusted as it is."""
    own = authority.certify("broker", "localhost")
    properties = trusting(authority) | {
        "ssl.truststore.certificates": own.chain_pem().split("-----END")[0]
        + "-----END CERTIFICATE-----\n"
    }
    with server(own, tmp_path) as port:
        connect(port, properties).close()


def test_what_listens_without_tls(authority: Authority):
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(10)
                connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(NotKafka, match="does not speak TLS"):
            connect(listener.getsockname()[1], trusting(authority))


def test_renewed_stores_count_from_the_next_connection_on(
    authority: Authority, tmp_path: Path, caplog: pytest.LogCaptureFixture
):
    store = tmp_path / "trust.pem"
    store.write_text(Authority("Stranger").pem())
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.location": str(store)}
    with server(authority.certify("broker", "localhost"), tmp_path) as port:
        with pytest.raises(ClusterError, match="is not trusted"):
            connect(port, properties)
        store.write_text(authority.pem())
        os.utime(store, ns=(1, 1))
        connect(port, properties).close()
        # Half written: the certificates read before go on.
        store.write_text("-----BEGIN CERTIFICATE-----\n")
        connect(port, properties).close()
    assert "stay in use" in caplog.text


def test_keys_stay_out_of_the_file_system(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Neither with memory files nor, without them, after the context is made."""
    own = authority.certify("client").pem_file(tmp_path / "own.pem", "secret")
    properties = {
        **trusting(authority),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(own),
        "ssl.key.password": "secret",
    }
    seen: list[tuple[str, int]] = []
    load = ssl.SSLContext.load_cert_chain

    def spy(self: ssl.SSLContext, path: str) -> None:
        seen.append((path, os.stat(path).st_mode & 0o777))
        load(self, path)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", spy)
    make_context(tls_settings(properties, where="one"), "one")
    assert seen.pop()[0].startswith("/proc/self/fd/")
    monkeypatch.delattr(os, "memfd_create")
    monkeypatch.setattr(tls.tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    make_context(tls_settings(properties, where="two"), "two")
    path, mode = seen.pop()
    assert path.startswith(str(tmp_path / "temporary"))
    assert mode == 0o600
    assert list((tmp_path / "temporary").iterdir()) == []


# -- stores ----------------------------------------------------------------------------------------


def store_settings(**properties: str) -> TlsSettings:
    given = {key.replace("_", "."): value for key, value in properties.items()}
    return tls_settings(given, where="here")


def key_settings(
    path: Path, kind: str, password: str | None, key_password: str = ""
) -> TlsSettings:
    properties = {"ssl_keystore_location": str(path), "ssl_keystore_type": kind}
    if password is not None:
        properties["ssl_keystore_password"] = password
    if key_password:
        properties["ssl_key_password"] = key_password
    return store_settings(**properties)


@pytest.mark.parametrize("kind", ["JKS", "PKCS12"])
def test_javas_own_stores(authority: Authority, tmp_path: Path, kind: str):
    """Each type reads the other's files too, as Java's does."""
    certified = authority.certify("client")
    p12 = certified.pkcs12(tmp_path / "own.p12")
    jks = to_jks(p12, tmp_path / "own.jks", key_password="another1")
    for path, key_password in ((p12, ""), (jks, "another1")):
        settings = key_settings(path, kind, PASSWORD, key_password)
        assert settings.keystore is not None
        identity = read_identity(settings.keystore, "here")
        assert identity.key == certified.key_pem().encode()
        assert identity.chain == certified.chain_pem().encode()
    trust = authority.truststore(tmp_path / "trust.p12")
    for path in (trust, to_jks(trust, tmp_path / "trust.jks")):
        settings = store_settings(
            ssl_truststore_location=str(path),
            ssl_truststore_type=kind,
            ssl_truststore_password=PASSWORD,
        )
        assert settings.truststore is not None
        assert read_trusted(settings.truststore, "here") == authority.pem().encode()


def trusted_in(path: Path) -> list[str]:
    settings = store_settings(
        ssl_truststore_location=str(path),
        ssl_truststore_type="PKCS12",
        ssl_truststore_password=PASSWORD,
    )
    assert settings.truststore is not None
    found = x509.load_pem_x509_certificates(read_trusted(settings.truststore, "here"))
    return [one.subject.rfc4514_string() for one in found]


def test_a_truststore_trusts_no_chain_of_a_key(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As Java: what a key hangs on is there for the peer; what was imported is trusted."""
    root = Authority("root")
    between = Authority("between", above=root)
    own = between.certify("own")
    store = own.pkcs12(tmp_path / "own.p12")
    assert trusted_in(store) == ["CN=own"]
    assert "CN=between, CN=root of its chain" in caplog.text
    assert "ssl.truststore.location" in caplog.text
    jks = to_jks(store, tmp_path / "own.jks")
    assert trusted_in(jks) == ["CN=own"]

    caplog.clear()
    for name, authority in (("partner", Authority("partner")), ("root", root)):
        certificate = tmp_path / f"{name}.crt"
        certificate.write_text(authority.pem())
        for path in (store, jks):
            keytool(
                *("-importcert", "-noprompt", "-alias", name, "-file", str(certificate)),
                *("-keystore", str(path), "-storepass", PASSWORD),
            )
    # Java's own PKCS12: the root stands there twice, as an entry and as the end of the chain.
    for path in (store, jks):
        assert sorted(trusted_in(path)) == ["CN=own", "CN=partner", "CN=root"]
    assert "CN=between of its chain" in caplog.text
    assert "CN=root" not in caplog.text


def test_a_truststore_without_keys_is_trusted_whole(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, other = Authority("one"), Authority("other")
    path = tmp_path / "trust.p12"
    path.write_bytes(
        pkcs12.serialize_java_truststore(
            [
                pkcs12.PKCS12Certificate(each.certificate, each.name.rfc4514_string().encode())
                for each in (one, other)
            ],
            BestAvailableEncryption(PASSWORD.encode()),
        )
    )
    assert sorted(trusted_in(path)) == ["CN=one", "CN=other"]
    assert not caplog.text


def test_an_rsa_key_of_keytool_in_jks(tmp_path: Path):
    """Made by Java from the start; without a password for the store's content."""
    path = tmp_path / "made.jks"
    keytool(
        *("-genkeypair", "-alias", "own", "-keyalg", "RSA", "-keysize", "2048"),
        *("-dname", "CN=localhost", "-keystore", str(path), "-storetype", "JKS"),
        *("-storepass", "changeit", "-keypass", "changeit"),
    )
    settings = key_settings(path, "JKS", "changeit")
    assert settings.keystore is not None
    assert b"BEGIN PRIVATE KEY" in read_identity(settings.keystore, "here").key
    trust = store_settings(ssl_truststore_location=str(path)).truststore
    assert trust is not None
    assert b"BEGIN CERTIFICATE" in read_trusted(trust, "here")


@pytest.mark.parametrize(
    ("kind", "password", "key_password", "what", "do"),
    [
        ("p12", "wrong", "", "its password is wrong", "ssl.keystore.password"),
        ("jks", "wrong", "", "its password is wrong", "ssl.keystore.password"),
        ("jks", PASSWORD, "wrong1", "the password of the key 'own' is wrong", "ssl.key.password"),
        ("pem", None, "wrong", "the password of its key is wrong", "ssl.key.password"),
        ("pem", None, "", "its key is encrypted, and no password", "ssl.key.password"),
        ("text", "x", "", "neither JKS nor PKCS12", "ssl.keystore.type"),
        ("none", "x", "", "No such file", "ssl.keystore.location"),
        ("swapped", "x", "", "its content is PEM text", "ssl.keystore.type"),
        ("expired", None, "", "the client certificate in the keystore", "valid now"),
    ],
)
def test_keystores_that_cannot_be_used(
    authority: Authority,
    tmp_path: Path,
    kind: str,
    password: str | None,
    key_password: str,
    what: str,
    do: str,
):
    certified = authority.certify("client")
    path = tmp_path / f"own.{kind}"
    store_type = "PEM" if kind in ("pem", "expired") else "PKCS12"
    if kind == "p12":
        certified.pkcs12(path)
    elif kind == "jks":
        to_jks(certified.pkcs12(tmp_path / "own.p12"), path)
    elif kind == "pem":
        certified.pem_file(path, "right")
    elif kind == "swapped":
        certified.pem_file(path)
    elif kind == "expired":
        authority.certify("old", begins=-2 * HOUR, ends=-HOUR).pem_file(path)
    elif kind == "text":
        path.write_text("hello")
    settings = key_settings(path, store_type, password, key_password)
    assert settings.keystore is not None
    with pytest.raises(ConfigError) as caught:
        read_identity(settings.keystore, "cluster east")
    assert what in caught.value.what
    assert do in caught.value.do
    assert str(path) in caught.value.what
    assert caught.value.where == "cluster east"


@pytest.mark.parametrize("kind", ["jks", "damaged jks", "p12"])
def test_a_key_that_openssl_cannot_read(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    """One of an algorithm that it does not know: the store that was there before stays in use."""
    certified = authority.certify("client")
    path = certified.pkcs12(tmp_path / "own.store")
    settings = key_settings(path, "PKCS12", PASSWORD)
    assert settings.keystore is not None
    before = make_context(settings, "cluster east")
    if kind == "p12":

        def unknown(*_: object) -> None:
            raise UnsupportedAlgorithm("Unknown key type: 1.2.643.2.2.19")

        monkeypatch.setattr(keystores, "load_pkcs12", unknown)
        path.write_bytes(path.read_bytes() + b"x")
    else:
        key = certified.key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
        key = key[:-9] if kind == "damaged jks" else key.replace(EC_KEY, GOST_KEY)
        chain = (certified.certificate.public_bytes(Encoding.DER),)
        found = [JksEntry("own", chain, key)]
        monkeypatch.setattr(keystores, "read_jks", lambda *_, **__: found)
        path.write_bytes(b"\xfe\xed\xfe\xed")
    with pytest.raises(ConfigError, match=r"its private key cannot be read|is not supported"):
        read_identity(settings.keystore, "cluster east")
    assert make_context(settings, "cluster east") is before


@pytest.mark.parametrize("cut", [10, 100, 400])
def test_damaged_stores(authority: Authority, tmp_path: Path, cut: int):
    jks = to_jks(authority.truststore(tmp_path / "t.p12"), tmp_path / "t.jks")
    jks.write_bytes(jks.read_bytes()[:-cut])
    for password in ({"ssl_truststore_password": PASSWORD}, {}):
        store = store_settings(ssl_truststore_location=str(jks), **password).truststore
        assert store is not None
        with pytest.raises(ConfigError, match=r"damaged|holds no certificate|cannot be read"):
            read_trusted(store, "here")


# -- settings --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("properties", "what"),
    [
        ({"ssl_truststore_type": "BKS"}, "ssl.truststore.type=BKS is not supported"),
        ({"ssl_truststore_password": "x"}, "without ssl.truststore.location"),
        ({"ssl_truststore_certificates": "x"}, "but ssl.truststore.type is JKS"),
        ({"ssl_truststore_certificates": "x", "ssl_truststore_type": "PEM",
          "ssl_truststore_location": "f"}, "both ssl.truststore.location and"),
        ({"ssl_truststore_location": "f", "ssl_truststore_type": "PEM",
          "ssl_truststore_password": "x"}, "a PEM store has no password"),
        ({"ssl_keystore_location": "f"}, "without ssl.keystore.password"),
        ({"ssl_keystore_key": "x", "ssl_keystore_type": "PEM"}, "ssl.keystore.certificate.chain"),
        ({"ssl_keystore_certificate_chain": "x", "ssl_keystore_type": "PEM"}, "ssl.keystore.key"),
        ({"ssl_enabled_protocols": "TLSv1.1"}, "no TLS version that is still safe"),
        ({"ssl_enabled_protocols": "TLSv1.4"}, "TLSv1.4, which is not a TLS version"),
        ({"ssl_enabled_protocols": "TLSv1.3", "ssl_protocol": "TLSv1.2"}, "no TLS version"),
        ({"ssl_protocol": "SSLv3"}, "ssl.protocol=SSLv3 is not supported"),
        ({"ssl_cipher_suites": "TLS_FOO"}, "only unknown suites: TLS_FOO"),
        ({"ssl_cipher_suites": "TLS_AES_128_GCM_SHA256", "ssl_enabled_protocols": "TLSv1.2"},
         "no suite for the TLS versions"),
        ({"ssl_endpoint_identification_algorithm": "LDAPS"}, "LDAPS is not known"),
        ({"ssl_engine_factory_class": "com.example.Engine"}, "cannot run here"),
    ],
)  # fmt: skip
def test_settings_that_contradict_themselves(properties: dict[str, str], what: str):
    with pytest.raises(MirrorError) as caught:
        store_settings(**properties)
    assert what in caught.value.what
    assert caught.value.do


def test_suites_rule_versions_out():
    only_old = store_settings(ssl_cipher_suites="TLS_RSA_WITH_AES_256_CBC_SHA")
    assert (only_old.versions, only_old.ciphers) == (("TLSv1.2",), "AES256-SHA")
    only_new = store_settings(ssl_cipher_suites="TLS_AES_128_GCM_SHA256, TLS_UNKNOWN")
    assert (only_new.versions, only_new.ciphers) == (("TLSv1.3",), "")
    assert store_settings().versions == ("TLSv1.2", "TLSv1.3")


def suites(**properties: str) -> list[str]:
    """OpenSSL's names of the suites of TLS 1.2 that are offered."""
    context = make_context(store_settings(**properties), "here")
    found = [str(suite["name"]) for suite in context.get_ciphers()]
    return [name for name in found if not name.startswith("TLS_")]


def test_only_suites_with_forward_secrecy_unless_the_file_says_so():
    usual = suites()
    assert usual
    assert all(name.startswith(("ECDHE-", "DHE-")) for name in usual)
    assert not [name for name in usual if name.endswith("-SHA")]
    assert "AES256-SHA" in suites(ssl_security_level="1")
    assert suites(ssl_cipher_suites="TLS_RSA_WITH_AES_256_GCM_SHA384") == ["AES256-GCM-SHA384"]


@pytest.mark.parametrize("level", ["0", "3", "x", "-1", "1.0"])
def test_levels_that_are_none(level: str):
    with pytest.raises(ConfigError, match=rf"ssl\.security\.level={level} is not supported"):
        store_settings(ssl_security_level=level)


def weak_server(directory: Path) -> tuple[Path, str]:
    """A certificate for localhost with an RSA key of 1,024 bits, signed by itself: file and PEM."""
    key = rsa.generate_private_key(65_537, 1_024)
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - HOUR)
        .not_valid_after(now + HOUR)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem = certificate.public_bytes(Encoding.PEM).decode()
    path = directory / "weak.pem"
    path.write_text(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode() + pem
    )
    return path, pem


def serving(context: ssl.SSLContext) -> contextlib.AbstractContextManager[int]:
    @contextlib.contextmanager
    def serve() -> Iterator[int]:
        with socket.create_server(("127.0.0.1", 0)) as listener:

            def answer() -> None:
                with contextlib.suppress(OSError):
                    while True:
                        connection, _ = listener.accept()
                        with contextlib.suppress(OSError), connection:
                            context.wrap_socket(connection, server_side=True).sendall(b"!")

            threading.Thread(target=answer, daemon=True).start()
            yield listener.getsockname()[1]

    return serve()


def test_a_weak_certificate_takes_the_named_setting(tmp_path: Path):
    path, pem = weak_server(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("DEFAULT:@SECLEVEL=1")
    context.load_cert_chain(path)
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    with serving(context) as port:
        with pytest.raises(ClusterError, match="too weak") as caught:
            connect(port, properties)
        assert "ssl.security.level=1" in caught.value.do
        connect(port, properties | {"ssl.security.level": "1"}).close()
    stores = {"ssl_keystore_type": "PEM", "ssl_keystore_location": str(path)}
    with pytest.raises(ConfigError, match="too weak") as refused:
        make_context(store_settings(**stores), "here")
    assert "ssl.security.level=1" in refused.value.do
    make_context(store_settings(**stores, ssl_security_level="1"), "here")


def test_a_broker_without_forward_secrecy_takes_the_named_setting(tmp_path: Path):
    path, pem = weak_server(tmp_path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_ciphers("AES256-SHA:@SECLEVEL=1")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(path)
    properties = {"ssl.truststore.type": "PEM", "ssl.truststore.certificates": pem}
    with serving(context) as port:
        with pytest.raises(ClusterError, match="no cipher suite in common") as caught:
            connect(port, properties)
        assert "ssl.security.level=1" in caught.value.do
        connect(port, properties | {"ssl.security.level": "1"}).close()


def test_every_suite_of_openssl_has_its_java_name():
    """The rule against OpenSSL's own list, for the suites that Java has too."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_ciphers("ALL:@SECLEVEL=0")
    known = {cipher["name"] for cipher in context.get_ciphers()}
    java = [
        f"TLS_{exchange}_WITH_{cipher}"
        for exchange in ("RSA", "DHE_RSA", "ECDHE_RSA", "ECDHE_ECDSA")
        for cipher in ("AES_128_GCM_SHA256", "AES_256_GCM_SHA384", "AES_128_CBC_SHA",
                       "AES_256_CBC_SHA")
    ]  # fmt: skip
    java += [
        "TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_DHE_RSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA384",
        "TLS_RSA_WITH_AES_128_CBC_SHA256",
        "TLS_CHACHA20_POLY1305_SHA256",
    ]
    assert {name: openssl_name(name) for name in java if openssl_name(name) not in known} == {}
