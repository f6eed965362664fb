"""Signed assertions (JWT, RFC 7515) from a template, claims and the time, as in Java."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from sparkmirror.config.clients.assertion import PREFIX, Assertion
from sparkmirror.errors import Denied

__all__ = ["assertion_text"]

_COORDINATE_BYTES = 32


def assertion_text(assertion: Assertion, now_s: float, *, where: str) -> str:
    """The assertion to send; files are read again each time. Raises `Denied`."""
    if assertion.file:
        return _read(assertion.file, "file", where).decode("utf-8", "replace").strip()
    header, payload = _template(assertion, where)
    now = int(now_s)
    header |= {"alg": assertion.algorithm, "typ": "JWT"}
    payload |= assertion.claims
    payload |= {
        "iat": now, "exp": now + assertion.expires_s, "nbf": now - assertion.before_s,
    }  # fmt: skip
    if assertion.numbered:
        payload["jti"] = str(uuid.uuid4())
    signed = f"{_part(header)}.{_part(payload)}"
    return f"{signed}.{_encoded(_signature(assertion, signed.encode(), where))}"


def _template(assertion: Assertion, where: str) -> tuple[dict[str, Any], dict[str, Any]]:
    if not assertion.template:
        return {}, {}
    try:
        document = json.loads(_read(assertion.template, "template.file", where))
        header, payload = (dict(document.get(name, {})) for name in ("header", "payload"))
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise Denied(
            f"the template {assertion.template} of assertions is not a JSON object with the "
            "objects header and payload.",
            where=where,
            do=f"Correct it, or remove {PREFIX}template.file.",
        ) from error
    return header, payload


def _signature(assertion: Assertion, data: bytes, where: str) -> bytes:
    pem = _read(assertion.key_file, "private.key.file", where)
    try:
        key = load_pem_private_key(pem, assertion.passphrase.encode() or None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise Denied(
            f"the private key in {assertion.key_file} cannot be read: it is not a PEM key, or its "
            "passphrase is wrong.",
            where=where,
            do=f"Check {PREFIX}private.key.file and {PREFIX}private.key.passphrase.",
        ) from error
    if assertion.algorithm == "RS256" and isinstance(key, rsa.RSAPrivateKey):
        return key.sign(data, padding.PKCS1v15(), SHA256())
    if (
        assertion.algorithm == "ES256"
        and isinstance(key, ec.EllipticCurvePrivateKey)
        and isinstance(key.curve, ec.SECP256R1)
    ):
        numbers = decode_dss_signature(key.sign(data, ec.ECDSA(SHA256())))
        return b"".join(number.to_bytes(_COORDINATE_BYTES, "big") for number in numbers)
    raise Denied(
        f"the private key in {assertion.key_file} is not a key for {assertion.algorithm}.",
        where=where,
        do=f"Set {PREFIX}algorithm to RS256 for an RSA key, to ES256 for one on the curve P-256.",
    )


def _read(path: str, key: str, where: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise Denied(
            f"{path} cannot be read: {error.strerror or error}.",
            where=where,
            do=f"Check {PREFIX}{key}.",
        ) from error


def _part(document: dict[str, Any]) -> str:
    return _encoded(json.dumps(document, separators=(",", ":")).encode())


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
