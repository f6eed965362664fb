"""SASL logins: the settings of a client (`Login`), and the exchange with a broker.

`Login` creates one mechanism object per exchange; `authenticate` runs it over a connection.
"""

from __future__ import annotations

import os
import re
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass

from sparkmirror.config.clients.sasl import OAuthLogin, SaslSettings, sasl_settings
from sparkmirror.config.clients.security import KRB5_CONF, uses_sasl
from sparkmirror.config.clients.tls import tls_settings
from sparkmirror.errors import ClusterError, ConfigError, Denied, MirrorError
from sparkmirror.settings import ClusterClient
from sparkmirror.text import printable
from sparkmirror.wire.protocol_errors import code_of, error_name
from sparkmirror.wire.security.kerberos import (
    gssapi_mechanism,
    kerberos_error,
    use_kerberos_configuration,
)
from sparkmirror.wire.security.mechanisms import (
    ChallengeRefused,
    Mechanism,
    OAuthBearer,
    Plain,
)
from sparkmirror.wire.security.oauth import TokenSource
from sparkmirror.wire.security.tls import make_context

__all__ = ["Exchange", "Login", "authenticate", "login_for"]

_UNSUPPORTED_MECHANISM = code_of("UNSUPPORTED_SASL_MECHANISM")
_ROUNDS_MAX = 20
_REGION = re.compile(r"\.(?:kafka|kafka-serverless)\.([a-z0-9-]+)\.amazonaws\.com")


@dataclass(frozen=True, slots=True)
class Exchange:
    """The calls to a broker that a login needs; all raise `ConnectionLost`.

    ``handshake(mechanism)`` returns (error code, mechanisms that the broker offers);
    ``authenticate(bytes)`` returns (error code, message, bytes, session lifetime in ms, 0 = none).
    ``bare`` sends bytes without a Kafka header, as brokers before 1.0 require; None for newer
    ones. Its second argument says whether a response follows.
    """

    handshake: Callable[[str], tuple[int, list[str]]]
    authenticate: Callable[[bytes], tuple[int, str, bytes, int]]
    bare: Callable[[bytes, bool], bytes] | None = None


class _MskIam:
    """The one message of AWS_MSK_IAM; kafka-python's code signs it with `_aws_credentials`."""

    def __init__(self, settings: SaslSettings, host: str, where: str) -> None:
        from kafka.net.sasl.msk import AwsMskIamClient  # noqa: PLC0415  (with a whole client)

        self._client = AwsMskIamClient(host=host, **_aws_credentials(settings, host, where))
        self._done = False
        self._accepted = False

    def auth_bytes(self) -> bytes:
        message: bytes = self._client.first_message()
        return message

    def receive(self, data: bytes) -> None:
        self._done = True
        self._accepted = data != b""

    def is_done(self) -> bool:
        return self._done

    def is_authenticated(self) -> bool:
        return self._accepted


def _aws_credentials(settings: SaslSettings, host: str, where: str) -> dict[str, str | None]:
    """Keys and region for AWS_MSK_IAM. Raises `ConfigError` or `Denied`.

    Keys come from the profile if one is set, else from the environment, else from what botocore
    finds. The region comes from the host name, else from the environment, else from botocore.
    """
    match = _REGION.search(host)
    region = match.group(1) if match else os.environ.get("AWS_REGION")
    region = region or os.environ.get("AWS_DEFAULT_REGION")
    key, secret = os.environ.get("AWS_ACCESS_KEY_ID"), os.environ.get("AWS_SECRET_ACCESS_KEY")
    token = os.environ.get("AWS_SESSION_TOKEN")
    if settings.aws_profile or not (key and secret):
        try:
            from botocore.session import Session  # noqa: PLC0415  (large, and for AWS alone)
        except ImportError as error:
            raise ConfigError(
                "AWS_MSK_IAM finds no credentials in AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, "
                "and other sources need the Python package botocore.",
                where=where,
                do="Set the two variables, or: pip install botocore.",
            ) from error
        try:
            session = Session(profile=settings.aws_profile or None)
            found = session.get_credentials()
            frozen = None if found is None else found.get_frozen_credentials()
            region = region or session.get_config_variable("region")
        except Exception as error:  # botocore's errors have no base of their own
            raise Denied(
                f"AWS_MSK_IAM gets no AWS credentials ({_botocore_reason(error)}).",
                where=where,
                do="Check the profile (awsProfileName), and where its credentials come from.",
            ) from None  # the cause may hold a secret
        if frozen is None:
            raise Denied(
                "AWS_MSK_IAM finds no AWS credentials.",
                where=where,
                do="Set a profile (awsProfileName), AWS_ACCESS_KEY_ID, or an instance role.",
            )
        key, secret, token = frozen.access_key, frozen.secret_key, frozen.token
    if not region:
        raise ConfigError("AWS_MSK_IAM finds no AWS region.", where=where, do="Set AWS_REGION.")
    return {"access_key": key, "secret_key": secret, "region": region, "token": token}


def _botocore_reason(error: Exception) -> str:
    """What an error of botocore says, except the words of the user's program: a secret may be one.

    botocore's CredentialRetrievalError quotes what a profile's ``credential_process`` wrote.
    """
    if getattr(error, "kwargs", {}).get("provider") == "custom-process":
        return "the credential_process of the profile failed"
    return printable(str(error).rstrip(".") or type(error).__name__)


class Login:
    """The login of one client; safe to share between threads and connections."""

    def __init__(self, client: ClusterClient) -> None:
        self.alias = client.alias
        where = f"cluster {client.alias}"
        properties = {**client.properties, "security.protocol": client.security_protocol}
        self.settings = sasl_settings(properties, where=where)
        self._krb5_conf = client.properties.get(KRB5_CONF, "")
        self._tokens: TokenSource | None = None
        if self.settings.oauth is not None:
            self._tokens = _token_source(self.settings.oauth, client, where)

    @property
    def name(self) -> str:
        """The mechanism's name."""
        return self.settings.mechanism

    def mechanism(self, host: str) -> Mechanism:
        """A new exchange with the broker at ``host``. Raises `MirrorError`."""
        settings = self.settings
        where = f"cluster {self.alias}, {host}"
        if settings.kerberos is not None:
            use_kerberos_configuration(self._krb5_conf)
            return gssapi_mechanism(settings.kerberos, host, where)
        if self._tokens is not None:
            return OAuthBearer(self._tokens.token, self._tokens.login.extensions)
        if settings.mechanism == "AWS_MSK_IAM":
            return _MskIam(settings, host, where)
        if settings.mechanism == "PLAIN":
            try:
                return Plain(settings.username, settings.password)
            except ValueError as error:
                raise ConfigError(
                    f"{error}.", where=where, do="Check username and password in sasl.jaas.config."
                ) from error
        from sparkmirror.wire.security.scram import Scram  # noqa: PLC0415  (with a whole client)

        scram: Mechanism = Scram(settings)
        return scram


def _token_source(oauth: OAuthLogin, client: ClusterClient, where: str) -> TokenSource:
    """The token source, with the JAAS entry's TLS settings for its endpoint, as in Java.

    Without any, the machine's certificates are trusted. Raises ConfigError if a store cannot be
    used; one that changes is read again at the next request.
    """

    def context() -> ssl.SSLContext | None:
        if not oauth.url.startswith("https"):
            return None
        place = f"{where}, token endpoint"
        return make_context(tls_settings(oauth.tls, where=place), place)

    context()  # a store that cannot be used is told before a token is needed
    return TokenSource(oauth, f"cluster {client.alias}, {oauth.url}", tls=context)


_logins: dict[tuple[str, str, tuple[tuple[str, str], ...]], Login] = {}
_LOGINS_MAX = 64
_lock = threading.Lock()


def login_for(client: ClusterClient) -> Login | None:
    """The login of a client; None without SASL. Clients with the same settings share it.

    Raises ConfigError.
    """
    if not uses_sasl(client.security_protocol):
        return None
    key = (client.alias, client.security_protocol, tuple(sorted(client.properties.items())))
    with _lock:
        login = _logins.get(key)
        if login is None:
            if len(_logins) >= _LOGINS_MAX:
                _logins.clear()
            login = _logins[key] = Login(client)
        return login


def authenticate(login: Login, exchange: Exchange, host: str, where: str) -> int:
    """Log in; returns the session lifetime in ms, 0: unlimited. Raises `MirrorError`."""
    code, offered = exchange.handshake(login.name)
    if code == _UNSUPPORTED_MECHANISM or (not code and offered and login.name not in offered):
        raise Denied(
            f"the broker does not offer sasl.mechanism={login.name} on this listener "
            f"(it offers {', '.join(offered) or 'none'}).",
            where=where,
            do="Set sasl.mechanism to one that it offers.",
        )
    if code:
        raise _refused(login, f"{error_name(code)} at the handshake", where)
    mechanism = login.mechanism(host)
    lifetime_ms = 0
    try:
        for _ in range(_ROUNDS_MAX):
            if mechanism.is_done():
                break
            sent = mechanism.auth_bytes()
            if exchange.bare is not None:
                # There the last message of GSSAPI gets no response.
                last = bool(mechanism.is_done())
                data = exchange.bare(sent, not last)
                if not last:
                    mechanism.receive(data)
                continue
            code, message, data, lifetime_ms = exchange.authenticate(sent)
            if code:
                raise _refused(login, message or error_name(code), where)
            mechanism.receive(data)
    except (MirrorError, OSError):
        raise
    except ChallengeRefused as error:
        raise ClusterError(_not_answered(login, error), where=where, do=error.do) from error
    except Exception as error:
        if login.settings.kerberos is not None and hasattr(error, "maj_code"):
            raise kerberos_error(error, login.settings.kerberos, host, where) from error
        if isinstance(error, ValueError | KeyError | IndexError | UnicodeDecodeError):
            raise _refused(login, "the broker's response is invalid", where) from error
        raise
    if not mechanism.is_done() or not mechanism.is_authenticated():
        raise _refused(login, "the exchange did not finish", where)
    return max(0, lifetime_ms)


def _refused(login: Login, said: str, where: str) -> ClusterError:
    advice = {
        "GSSAPI": "Check the principal, and the broker's log.",
        "OAUTHBEARER": "Check client id, scope and audience, and the broker's log.",
        "AWS_MSK_IAM": "Check the IAM policy of these credentials.",
    }.get(login.name, "Check username and password in sasl.jaas.config.")
    return Denied(
        f"the broker refused the login with {login.name} ({said}).", where=where, do=advice
    )


def _not_answered(login: Login, error: ChallengeRefused) -> str:
    return f"the broker's {login.name} challenge is refused: {error}."
