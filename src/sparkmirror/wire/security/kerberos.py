"""Kerberos logins: credentials from a keytab or a ticket cache, and the exchange (RFC 4752).

With a keytab, libkrb5 itself gets the first ticket, keeps it in memory and gets a new one when half
of its lifetime is over. Each login requests credentials from libkrb5. kinit is not needed.
"""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path
from typing import Any

from sparkmirror.config.clients.sasl import KerberosLogin
from sparkmirror.errors import ClusterError, ConfigError, Denied, MachineError, Unreachable
from sparkmirror.wire.security.mechanisms import ChallengeRefused, Mechanism

__all__ = ["gssapi_mechanism", "kerberos_error", "use_kerberos_configuration"]

_NO_SECURITY_LAYER = 1  # quality of protection "auth" (RFC 4752, section 3.3)
# The most that this side receives in one message of a security layer. There is none, but Java's
# client sends its default.
_MESSAGE_BYTES_MAX = 65_536


def use_kerberos_configuration(path: str) -> None:
    """Make libkrb5 read ``path`` (Java's java.security.krb5.conf), in the whole process."""
    if path and os.environ.get("KRB5_CONFIG") != path:
        os.environ["KRB5_CONFIG"] = path


def _gssapi() -> Any:
    try:
        import gssapi  # noqa: PLC0415  (needed for Kerberos alone, and compiled against libkrb5)
    except (ImportError, OSError) as error:
        raise MachineError(
            "sasl.mechanism=GSSAPI needs the Python package gssapi, which is not installed.",
            do="Install libkrb5-dev and a C compiler, then: pip install 'sparkmirror[kerberos]'.",
        ) from error
    return gssapi


class GssapiExchange:
    """The mechanism GSSAPI over ``context``, a security context of libgssapi that has not begun.

    First both sides prove who they are, in as many messages as libgssapi needs. Then the broker
    offers its security layers. The reply selects "none", because Kafka has no other one, and names
    the client's principal, both as Java's client does. Raises what ``context`` raises.
    """

    def __init__(self, context: Any) -> None:
        self._context = context
        self._next: bytes = context.step(None) or b""
        self._chosen = False  # the next message is the last one
        self._done = False

    def auth_bytes(self) -> bytes:
        """The next message."""
        # The last message needs no response: brokers before 1.0 send none.
        self._done = self._chosen
        return self._next

    def receive(self, data: bytes) -> None:
        """Take a token, or the security layers. Raises ValueError for anything else."""
        if self._done:
            if data:
                raise ValueError("data after the last message")
        elif not self._context.complete:
            self._next = self._context.step(data) or b""
        else:
            self._next = self._reply(self._context.unwrap(data).message)
            self._chosen = True

    def _reply(self, offered: bytes) -> bytes:
        if len(offered) != 4:
            raise ValueError("the security layers are not four bytes")
        if not offered[0] & _NO_SECURITY_LAYER:
            raise ChallengeRefused(
                "it requires integrity or confidentiality (qop), and Kafka's clients support "
                "authentication only",
                "Allow sasl.qop=auth in the broker's JAAS or SASL configuration.",
            )
        principal = str(self._context.initiator_name).encode()
        reply = bytes([_NO_SECURITY_LAYER]) + _MESSAGE_BYTES_MAX.to_bytes(3, "big") + principal
        message: bytes = self._context.wrap(reply, False).message
        return message

    def is_done(self) -> bool:
        """Whether the last message was taken."""
        return self._done

    def is_authenticated(self) -> bool:
        """Whether the broker has proved who it is; it refuses the login with an error."""
        return self._chosen


def gssapi_mechanism(login: KerberosLogin, host: str, where: str) -> Mechanism:
    """A GSSAPI exchange with the broker at ``host``. Raises `MirrorError`."""
    library = _gssapi()
    if login.keytab:
        _check_keytab(login, where)
    try:
        broker = library.Name(f"{login.service}@{host}", library.NameType.hostbased_service)
        return GssapiExchange(
            library.SecurityContext(
                name=broker.canonicalize(library.MechType.kerberos),
                creds=_credentials(login, library),
                usage="initiate",
            )
        )
    except library.exceptions.GSSError as error:
        raise kerberos_error(error, login, host, where) from error


def _credentials(login: KerberosLogin, library: Any) -> Any:
    name = None
    if login.principal:
        name = library.Name(login.principal, library.NameType.kerberos_principal)
    store: dict[str, str] = {}
    if login.keytab:
        # One cache per login: two clusters may use two principals.
        key = hashlib.sha256(f"{login.principal}\0{login.keytab}".encode()).hexdigest()[:16]
        store = {"client_keytab": f"FILE:{login.keytab}", "ccache": f"MEMORY:sparkmirror-{key}"}
    elif login.ticket_cache:
        store = {"ccache": f"FILE:{login.ticket_cache}"}
    return library.Credentials(name=name, usage="initiate", store=store or None)


def _check_keytab(login: KerberosLogin, where: str) -> None:
    path = Path(login.keytab)
    try:
        with path.open("rb") as file:
            head = file.read(2)
    except OSError as error:
        raise ConfigError(
            f"the keytab {path} cannot be read: {error.strerror}.",
            where=where,
            do="Check keyTab in the JAAS entry and the file's permissions.",
        ) from error
    if head[:1] != b"\x05":
        raise ConfigError(
            f"{path} is not a keytab.", where=where, do="Check keyTab in the JAAS entry."
        )


def kerberos_error(error: Any, login: KerberosLogin, host: str, where: str) -> ClusterError:
    """The error that explains a failure of libgssapi."""
    said = " ".join(_messages(error))
    who = login.principal or "the principal of the ticket cache"
    place = f"the keytab {login.keytab}" if login.keytab else "the ticket cache"
    for pattern, kind, what, do in (
        (r"Cannot contact any KDC|Cannot find KDC|resolve.*realm|Cannot locate", Unreachable,
         "no KDC of the Kerberos realm can be reached",
         "Check krb5.conf (KRB5_CONFIG, java.security.krb5.conf) and the network to the KDC."),
        (r"No key table entry|no suitable keys|Keytab contains no|No Kerberos credentials|"
         r"matching principal|not found in keytab|can't get initial|No credentials", Denied,
         f"{place} holds no credentials for {who}",
         "Check the principal in the JAAS entry against `klist -k` of the keytab, or run kinit."),
        (r"Client.*not found", Denied, f"the KDC does not know {who}",
         "Check principal in the JAAS entry."),
        (r"Server.*not found", Denied,
         f"the KDC does not know the brokers' principal {login.service}/{host}",
         "Check sasl.kerberos.service.name, and that the broker is reached by the name in its "
         "principal."),
        (r"Preauthentication failed|Decrypt integrity|password", Denied,
         f"the KDC refuses the key of {who}",
         "Export the keytab again: the principal's key has changed."),
        (r"expired", Denied, f"the ticket of {who} has expired", "Run kinit, or use a keytab."),
        (r"[Cc]lock skew", Denied, "the clocks of this machine and of the KDC differ too much",
         "Synchronise the clocks."),
        (r"Configuration file|No default realm|default realm", ConfigError,
         "the Kerberos configuration cannot be used",
         "Check krb5.conf (KRB5_CONFIG, java.security.krb5.conf)."),
    ):  # fmt: skip
        if re.search(pattern, said):
            return kind(f"{what} ({said}).", where=where, do=do)  # type: ignore[return-value]
    return Denied(
        f"the Kerberos login failed ({said}).", where=where, do="See the KDC's log for the reason."
    )


def _messages(error: Any) -> list[str]:
    """The messages of libgssapi; the general one only if there is no specific one."""
    found: list[str] = []
    for code, routine in ((getattr(error, "min_code", 0), False), (error.maj_code, True)):
        if code and not (found and routine):
            found += [
                text.decode(errors="replace") if isinstance(text, bytes) else str(text)
                for text in error.get_all_statuses(code, routine)
            ]
    return [text.strip() for text in dict.fromkeys(found) if text.strip()]
