"""Certificates and stores for tests, made on the spot."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    pkcs12,
)
from cryptography.x509.oid import NameOID

from sparkmirror.java import find_java

PASSWORD = "store-secret-4711"


@dataclass(frozen=True)
class Certified:
    """A key, its certificate, and the certificates of those that signed it."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate
    issuers: tuple[x509.Certificate, ...]

    def chain_pem(self) -> str:
        return "".join(pem(each) for each in (self.certificate, *self.issuers))

    def key_pem(self, password: str = "") -> str:
        hidden = BestAvailableEncryption(password.encode()) if password else NoEncryption()
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, hidden).decode()

    def pkcs12(self, path: Path, password: str = PASSWORD) -> Path:
        data = pkcs12.serialize_key_and_certificates(
            b"own",
            self.key,
            self.certificate,
            self.issuers,
            BestAvailableEncryption(password.encode()),
        )
        path.write_bytes(data)
        return path

    def pem_file(self, path: Path, password: str = "") -> Path:
        path.write_text(self.key_pem(password) + self.chain_pem())
        return path


class Authority:
    """A certificate authority for one test."""

    def __init__(self, name: str = "Test authority", above: Authority | None = None) -> None:
        """A root, or one that ``above`` signed."""
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self.above = above
        now = datetime.now(UTC)
        self.certificate = (
            x509.CertificateBuilder()
            .subject_name(self.name)
            .issuer_name((above or self).name)
            .public_key(self.key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=30))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign((above or self).key, hashes.SHA256())
        )

    def certify(
        self,
        common_name: str,
        *names: str,
        begins: timedelta = timedelta(hours=-1),
        ends: timedelta = timedelta(days=10),
    ) -> Certified:
        """A certificate for ``names`` (DNS names and addresses), valid relative to now."""
        key = ec.generate_private_key(ec.SECP256R1())
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)]))
            .issuer_name(self.name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + begins)
            .not_valid_after(now + ends)
        )
        if names:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([_general_name(name) for name in names]),
                critical=False,
            )
        issuers = [self.certificate]
        above = self.above
        while above is not None:
            issuers.append(above.certificate)
            above = above.above
        return Certified(key, builder.sign(self.key, hashes.SHA256()), tuple(issuers))

    def revoked(
        self,
        *certificates: x509.Certificate,
        begins: timedelta = timedelta(hours=-1),
        ends: timedelta = timedelta(days=1),
        delta: bool = False,
    ) -> x509.CertificateRevocationList:
        """The list of ``certificates`` that this authority has revoked, valid relative to now."""
        now = datetime.now(UTC)
        builder = (
            x509.CertificateRevocationListBuilder()
            .issuer_name(self.name)
            .last_update(now + begins)
            .next_update(now + ends)
        )
        if delta:
            builder = builder.add_extension(x509.DeltaCRLIndicator(1), critical=True)
        for each in certificates:
            entry = x509.RevokedCertificateBuilder().serial_number(each.serial_number)
            builder = builder.add_revoked_certificate(entry.revocation_date(now + begins).build())
        return builder.sign(self.key, hashes.SHA256())

    def pem(self) -> str:
        return pem(self.certificate)

    def truststore(self, path: Path, password: str = PASSWORD) -> Path:
        """A PKCS12 truststore that Java accepts: made by its own keytool."""
        certificate = path.with_suffix(".crt")
        certificate.write_text(self.pem())
        keytool(
            *("-importcert", "-noprompt", "-alias", "authority", "-file", str(certificate)),
            *("-keystore", str(path), "-storetype", "PKCS12", "-storepass", password),
        )
        return path


def pem(certificate: x509.Certificate | x509.CertificateRevocationList) -> str:
    return certificate.public_bytes(Encoding.PEM).decode()


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def keytool(*arguments: str) -> None:
    """Run Java's own tool for stores."""
    own = find_java().path / "bin" / "keytool"
    found = str(own) if own.exists() else shutil.which("keytool")
    assert found, "no keytool on this machine"
    subprocess.run(
        [found, "-J-XX:TieredStopAtLevel=1", *arguments],
        check=True,
        capture_output=True,
        timeout=60,
    )


def to_jks(source: Path, path: Path, password: str = PASSWORD, key_password: str = "") -> Path:
    """A PKCS12 store as one of type JKS."""
    keytool(
        *("-importkeystore", "-noprompt", "-srckeystore", str(source), "-srcstoretype", "PKCS12"),
        *("-srcstorepass", password, "-destkeystore", str(path), "-deststoretype", "JKS"),
        *("-deststorepass", password),
    )
    if key_password:
        keytool(
            *("-keypasswd", "-alias", "own", "-keystore", str(path), "-storepass", password),
            *("-keypass", password, "-new", key_password),
        )
    return path
