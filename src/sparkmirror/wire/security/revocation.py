"""Certificate revocation lists (CRLs, RFC 5280) for OpenSSL, from a file in PEM or DER."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from sparkmirror.errors import ConfigError

__all__ = ["RevocationLists", "read_revocation_lists"]

_LIST = re.compile(rb"-----BEGIN X509 CRL-----.+?-----END X509 CRL-----", re.DOTALL)
_DER_SEQUENCE = b"\x30"


@dataclass(frozen=True, slots=True)
class RevocationLists:
    """The lists of one file as PEM, and the names of the authorities that issued them."""

    pem: bytes
    issuers: frozenset[x509.Name]

    def cover(self, trusted: bytes) -> bool:
        """Whether the certificates of authorities can be checked, not only the broker's own.

        ``trusted``: the truststore, PEM. OpenSSL then requires a list for each certificate of a
        chain, including its end. A chain that ends below a root has no list for its end.
        """
        return all(
            one.subject == one.issuer and one.issuer in self.issuers
            for one in x509.load_pem_x509_certificates(trusted)
        )


def read_revocation_lists(path: str, where: str) -> RevocationLists:
    """The lists in the file ``path``, at least one. Raises ConfigError with ``where``."""
    try:
        lists = _parsed(Path(path).read_bytes())
        reason = _unusable(lists)
    except OSError as error:
        reason = str(error.strerror)
    except ValueError:
        reason = "it is damaged, or neither PEM nor DER"
    if reason:
        raise ConfigError(
            f"the revocation lists {path} cannot be used: {reason}.",
            where=where,
            do="Check ssl.crl.location: it names a file with one or more CRLs as PEM, or one as "
            "DER.",
        )
    return RevocationLists(
        b"".join(one.public_bytes(Encoding.PEM) for one in lists),
        frozenset(one.issuer for one in lists),
    )


def _parsed(data: bytes) -> list[x509.CertificateRevocationList]:
    if data.startswith(_DER_SEQUENCE):
        return [x509.load_der_x509_crl(data)]
    return [x509.load_pem_x509_crl(text) for text in _LIST.findall(data)]


def _unusable(lists: list[x509.CertificateRevocationList]) -> str:
    """Why ``lists`` cannot be used; ``""`` if they can. Raises ValueError for damaged ones."""
    if not lists:
        return "it holds no revocation list"
    for one in lists:
        if any(extension.oid == x509.DeltaCRLIndicator.oid for extension in one.extensions):
            return "it holds a delta CRL; complete CRLs are needed"
    return ""
