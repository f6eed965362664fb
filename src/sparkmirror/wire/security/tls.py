"""TLS for connections: one OpenSSL context per client, and the errors of failed handshakes.

A context is rebuilt when a store's file has changed, so renewed certificates and revocation lists
apply from the next connection on.
"""

from __future__ import annotations

import contextlib
import logging
import os
import re
import socket
import ssl
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from sparkmirror.config.clients.security import uses_tls
from sparkmirror.config.clients.tls import TlsSettings, tls_settings
from sparkmirror.errors import ClusterError, ConfigError, Denied, NotKafka, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.security.keystores import read_identity, read_trusted
from sparkmirror.wire.security.revocation import read_revocation_lists

__all__ = ["context_for", "handshake_error", "make_context", "wrap"]

log = logging.getLogger(__name__)

_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
# Level 2: Python's default suites, all with forward secrecy. They are written out because Python
# uses OpenSSL's default in builds for some systems. Level 1: also Java's other suites, as far as
# OpenSSL has them.
_SUITES = {
    1: "DEFAULT",
    2: "ECDH+AESGCM:ECDH+CHACHA20:ECDH+AES:DHE+AES:!aNULL:!eNULL:!aDSS:!SHA1:!AESCCM",
}
_CONTEXTS_MAX = 64
_Stamp = tuple[tuple[str, int, int], ...]
_contexts: dict[tuple[TlsSettings, str], tuple[_Stamp, ssl.SSLContext]] = {}
_lock = threading.Lock()


def context_for(client: ClusterClient) -> ssl.SSLContext | None:
    """The context for a client's connections; None when its protocol is without TLS.

    Raises ConfigError when a store cannot be used.
    """
    if not uses_tls(client.security_protocol):
        return None
    where = f"cluster {client.alias}"
    return make_context(tls_settings(client.properties, where=where), where)


def make_context(settings: TlsSettings, where: str) -> ssl.SSLContext:
    """A context for ``settings``: the previous one if no store's file has changed.

    Raises ConfigError when a store cannot be used and there is no previous context.
    """
    stamp = _stamp(settings)
    with _lock:
        known = _contexts.get((settings, where))
        if known is not None and known[0] == stamp:
            return known[1]
        try:
            context = _new_context(settings, where)
        except ConfigError as error:
            if known is None:
                raise
            # A store that is being replaced may be half written; it is read again next time.
            log.warning("%s The files read before stay in use.", error)
            return known[1]
        if len(_contexts) >= _CONTEXTS_MAX:
            _contexts.clear()
        _contexts[settings, where] = (stamp, context)
        return context


def _stamp(settings: TlsSettings) -> _Stamp:
    """Path, modification time (ns) and size of each file; missing files are reported later."""
    stores = (settings.truststore, settings.keystore)
    paths = [store.location for store in stores if store is not None]
    found = []
    for path in (*paths, settings.crl):
        if path:
            with contextlib.suppress(OSError):
                state = os.stat(path)
                found.append((path, state.st_mtime_ns, state.st_size))
    return tuple(found)


def _new_context(settings: TlsSettings, where: str) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = settings.check_host
    context.verify_mode = ssl.CERT_REQUIRED
    # In Java every certificate of a truststore is a trust anchor, whether it is a root or not.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    context.minimum_version = _VERSIONS[settings.versions[0]]
    context.maximum_version = _VERSIONS[settings.versions[-1]]
    chosen = settings.ciphers or _SUITES[settings.level]
    try:
        context.set_ciphers(f"{chosen}:@SECLEVEL={settings.level}")
    except ssl.SSLError as error:
        raise ConfigError(
            "ssl.cipher.suites names no suite that this machine's OpenSSL has.",
            where=where,
            do="Add suites that it has (openssl ciphers -stdname).",
        ) from error
    trusted = None
    if settings.truststore is None:
        context.load_default_certs()
    else:
        trusted = read_trusted(settings.truststore, where)
        context.load_verify_locations(cadata=trusted.decode())
    if settings.crl:
        lists = read_revocation_lists(settings.crl, where)
        with _private_file(lists.pem) as path:
            context.load_verify_locations(cafile=path)
        chain = trusted is not None and lists.cover(trusted)
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_CHAIN if chain else ssl.VERIFY_CRL_CHECK_LEAF
    if settings.keystore is not None:
        identity = read_identity(settings.keystore, where)
        with _private_file(identity.key + identity.chain) as path:
            try:
                context.load_cert_chain(path)
            except ssl.SSLError as error:
                if "TOO_SMALL" in (error.reason or "") or "TOO_WEAK" in (error.reason or ""):
                    raise ConfigError(
                        "the certificate of the keystore has a key or a signature that is too "
                        f"weak ({error.reason}).",
                        where=where,
                        do=f"Take one with an RSA key of 2,048 bits or more. {_LEVEL}",
                    ) from error
                raise ConfigError(
                    f"the key and certificate of the keystore do not match ({error.reason}).",
                    where=where,
                    do="Put the certificate of this key first.",
                ) from error
    return context


@contextlib.contextmanager
def _private_file(data: bytes) -> Iterator[str]:
    """A path to ``data`` that only this process can open, in memory if the system supports it.

    Python's ssl reads keys only from files.
    """
    try:
        descriptor = os.memfd_create("sparkmirror", os.MFD_CLOEXEC)
    except (AttributeError, OSError):
        descriptor = -1
    if descriptor >= 0:
        try:
            os.write(descriptor, data)
            yield f"/proc/self/fd/{descriptor}"
        finally:
            os.close(descriptor)
        return
    descriptor, name = tempfile.mkstemp(prefix="sparkmirror-")  # mode 0600
    try:
        os.write(descriptor, data)
        os.close(descriptor)
        yield name
    finally:
        Path(name).unlink(missing_ok=True)


def wrap(sock: socket.socket, host: str, client: ClusterClient) -> socket.socket:
    """``sock`` with TLS if the client's protocol has it. Closes ``sock`` when this fails.

    Raises `ClusterError` or `ConfigError`.
    """
    where = f"cluster {client.alias}, {host}"
    try:
        where = f"{where}:{sock.getpeername()[1]}"
        context = context_for(client)
        if context is None:
            return sock
        secure = context.wrap_socket(sock, server_hostname=host.rstrip("."))
    except OSError as error:
        sock.close()
        raise handshake_error(error, where) from error
    except BaseException:
        sock.close()
        raise
    suites = tls_settings(client.properties, where=where).suites
    chosen = secure.cipher()
    # Python cannot choose the TLS 1.3 suites that OpenSSL offers.
    if suites and chosen is not None and chosen[0] not in suites:
        secure.close()
        raise ClusterError(
            f"the broker chose the cipher suite {chosen[0]}, which is not in ssl.cipher.suites.",
            where=where,
            do="Add it to ssl.cipher.suites, or set ssl.enabled.protocols=TLSv1.2.",
        )
    return secure


# -- errors ----------------------------------------------------------------------------------------

_LEVEL = "Until then, ssl.security.level=1 accepts it as it is."
_VERIFY = (
    (r"too (small|weak)|too short",
     "the broker's certificate, or one in its chain, has a key or a signature that is too weak",
     f"Renew it with an RSA key of 2,048 bits or more and SHA-256. {_LEVEL}"),
    (r"certificate revoked", "the broker's certificate, or one in its chain, has been revoked",
     "Give the broker a new one, or check the list in ssl.crl.location."),
    (r"CRL has expired", "the revocation list for the broker's certificate has expired",
     "Put its authority's current list (CRL) into ssl.crl.location."),
    (r"CRL is not yet valid", "the revocation list for the broker's certificate is not yet valid",
     "Check this machine's clock, or the list in ssl.crl.location."),
    (r"get certificate CRL", "ssl.crl.location has no revocation list of the authority that "
     "signed the broker's certificate, or one in its chain",
     "Add that authority's list (CRL) to the file."),
    (r"CRL (issuer|signature)",
     "the signature of the revocation list for the broker's certificate cannot be verified",
     "Put the list (CRL) that the certificate's authority signed into ssl.crl.location, and the "
     "authority's certificate into the truststore (ssl.truststore.location)."),
    (r"CRL", "the revocation list for the broker's certificate cannot be used",
     "Put a complete list (CRL) of its authority into ssl.crl.location."),
    (r"certificate has expired", "the broker's certificate has expired",
     "Renew it on the broker."),
    (r"not yet valid", "the broker's certificate is not yet valid",
     "Check the clocks of both machines, or the certificate."),
    (r"(hostname|IP address) mismatch", "the broker's certificate is for another host name",
     "Use the name in the certificate, add this one to its subject alternative names, or set "
     "ssl.endpoint.identification.algorithm= (empty) to turn the check off."),
    (r"", "the broker's certificate is not trusted",
     "Put the certificate of the authority that signed it into the truststore "
     "(ssl.truststore.location)."),
)  # fmt: skip
_ALERTS = (
    (r"CERTIFICATE_REQUIRED|BAD_CERTIFICATE", Denied, "the broker requires a client certificate",
     "Set ssl.keystore.location to a keystore with a certificate that the broker trusts."),
    (r"CERTIFICATE_UNKNOWN|UNKNOWN_CA|CERTIFICATE_EXPIRED|CERTIFICATE_REVOKED", Denied,
     "the broker does not accept the client certificate",
     "Use one that has not expired and that an authority in the broker's truststore signed."),
    (r"WRONG_VERSION_NUMBER|HTTP_REQUEST|RECORD_LAYER_FAILURE|PACKET_LENGTH", NotKafka,
     "the server at this address does not speak TLS",
     "Check the port, or security.protocol: it may be a PLAINTEXT or SASL_PLAINTEXT listener."),
    (r"PROTOCOL_VERSION|UNSUPPORTED_PROTOCOL|VERSION_TOO_LOW", ClusterError,
     "the broker offers none of the TLS versions in ssl.enabled.protocols",
     "Add one that the broker has."),
    (r"HANDSHAKE_FAILURE|NO_SHARED_CIPHER|NO_CIPHERS", ClusterError,
     "the broker and this client have no cipher suite in common, or it requires a certificate",
     "Check ssl.cipher.suites and ssl.keystore.location. For a broker that has only suites without "
     "forward secrecy, or with SHA-1, set ssl.security.level=1."),
    (r"TOO_SMALL|TOO_WEAK|WRONG_SIGNATURE_TYPE|NO_SUITABLE_SIGNATURE|BAD_SIGNATURE|LEGACY_SIGALG",
     ClusterError, "the broker offers keys or signatures that are too weak",
     f"Give it keys of 2,048 bits or more, and SHA-256. {_LEVEL}"),
)  # fmt: skip


def handshake_error(error: OSError, where: str) -> ClusterError:
    """The error that explains a failed handshake. ``where`` names cluster and server."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message
        for pattern, what, do in _VERIFY:
            if re.search(pattern, said, re.IGNORECASE):
                return ClusterError(f"{what} ({said}).", where=where, do=do)
    if isinstance(error, ssl.SSLError) and error.reason:
        for pattern, kind, what, do in _ALERTS:
            if re.search(pattern, error.reason):
                reason = error.reason.lower().replace("_", " ")
                return kind(f"{what} ({reason}).", where=where, do=do)
    if isinstance(error, TimeoutError):
        return Unreachable(
            "the TLS handshake timed out.",
            where=where,
            do="Check the port, or security.protocol: a listener without TLS may wait for more.",
        )
    reason = getattr(error, "reason", None) or error.strerror or str(error) or "closed"
    return NotKafka(
        f"the TLS handshake failed ({str(reason).lower().replace('_', ' ')}).",
        where=where,
        do="Check the port, or security.protocol: it may be a listener without TLS.",
    )
