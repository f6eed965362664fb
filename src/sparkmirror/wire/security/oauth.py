"""OAUTHBEARER tokens: from a token endpoint, from a file, or unsecured ones made here.

Tokens are kept per login and refreshed when most of their lifetime is over. This happens when a
connection logs in, not on a thread: between logins no token is needed.
"""

from __future__ import annotations

import base64
import binascii
import http.client
import json
import math
import random
import re
import ssl
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sparkmirror.config.clients.sasl import OAuthLogin
from sparkmirror.errors import ClusterError, ConfigError, Denied, Unreachable
from sparkmirror.text import printable
from sparkmirror.wire.security.assertion import assertion_text

__all__ = ["Token", "TokenSource", "unsecured_token"]

_RESPONSE_BYTES_MAX = 1 << 20
_LIFETIME_S_UNKNOWN = 300.0
_JWT_BEARER = "urn:ietf:params:oauth:grant-type:jwt-bearer"
_RETRIED = frozenset({408, 429, 500, 502, 503, 504})


@dataclass(frozen=True, slots=True)
class Token:
    """A bearer token; times are seconds since 1970."""

    text: str = field(repr=False)
    began: float
    expires: float


class TokenSource:
    """The tokens of one login. Safe to share between threads.

    ``tls`` returns the SSL context for each request to an https endpoint (None: the machine's
    certificates); it may raise `ConfigError`. ``clock``: seconds since 1970.
    """

    def __init__(
        self,
        login: OAuthLogin,
        where: str,
        *,
        tls: Callable[[], ssl.SSLContext | None] = lambda: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.login = login
        self._where = where
        self._tls = tls
        self._clock = clock
        self._lock = threading.Lock()  # of the token and when it is due
        self._fetching = threading.Lock()
        self._token: Token | None = None
        self._refresh_at = 0.0
        self._random = random.Random()  # noqa: S311  (spreads load, guards nothing)

    def token(self) -> str:
        """A token that is valid now. Raises `ClusterError` when none can be fetched.

        While one is fetched, other threads get the old one, unless it has expired.
        """
        held, due = self._held()
        valid = held is not None and self._clock() < held.expires
        if held is not None and not due:
            return held.text
        if not self._fetching.acquire(blocking=not valid) and held is not None:
            return held.text
        try:
            return self._refreshed()
        finally:
            self._fetching.release()

    def _held(self) -> tuple[Token | None, bool]:
        """The token, and whether another one is due."""
        with self._lock:
            held = self._token
            # After a failed attempt, the next one may lie after the end of the token.
            due = held is None or self._clock() >= min(self._refresh_at, held.expires)
            return held, due

    def _refreshed(self) -> str:
        held, due = self._held()
        if held is not None and not due:
            return held.text  # another thread was quicker
        try:
            token = self._fetch()
            refresh_at = self._refresh_time(token)
        except ClusterError:
            now = self._clock()  # the attempt may have taken long
            if held is None or now >= held.expires:
                raise
            # The old token is still valid: retry later.
            token, refresh_at = held, now + self.login.retry_backoff_s_max
        with self._lock:
            self._token, self._refresh_at = token, refresh_at
        return token.text

    def _refresh_time(self, token: Token) -> float:
        """When to refresh ``token``, by Java's rule (KIP-255): after a part of its lifetime.

        At least ``refresh_min_s`` from now and ``refresh_buffer_s`` before its end, unless the
        lifetime is too short for both.
        """
        login, now = self.login, self._clock()
        life_s = token.expires - token.began
        factor = login.refresh_factor + login.refresh_jitter * self._random.random()
        wanted = token.began + life_s * factor
        if now + login.refresh_min_s + login.refresh_buffer_s <= token.expires:
            wanted = min(wanted, token.expires - login.refresh_buffer_s)
            wanted = max(wanted, now + login.refresh_min_s)
        return wanted

    def _fetch(self) -> Token:
        login = self.login
        if not login.url:
            return unsecured_token(login, self._clock())
        if login.url.startswith("file:"):
            return self._checked(self._from_file(), None)
        document = self._request_token()
        text = document.get("access_token")
        if not isinstance(text, str) or not text:
            raise self._error("its response has no access_token")
        return self._checked(text, _seconds(document.get("expires_in")))

    def _from_file(self) -> str:
        path = Path(urllib.parse.unquote(urllib.parse.urlsplit(self.login.url).path))
        try:
            return path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Denied(
                f"the token file {path} cannot be read: {getattr(error, 'strerror', 'not text')}.",
                where=self._where,
                do="Check sasl.oauthbearer.token.endpoint.url.",
            ) from error

    def _checked(self, text: str, life_s: float | None) -> Token:
        """The token with the times in its claims, else those of the endpoint. Raises `Denied`."""
        if not re.fullmatch(r"[\x21-\x7e]+", text):
            # Control characters separate the parts of the message that carries the token.
            raise Denied(
                "the OAUTHBEARER token is empty, or contains a character that no token may contain "
                "(RFC 6750).",
                where=self._where,
                do="Check the token endpoint, or the token file: it must hold the token alone.",
            )
        now = self._clock()
        claims = _claims(text)
        expires, began = _seconds(claims.get("exp")), _seconds(claims.get("iat"))
        token = Token(
            text,
            now if began is None else began,
            now + (life_s or _LIFETIME_S_UNKNOWN) if expires is None else expires,
        )
        if token.expires <= now:
            raise Denied(
                "the OAUTHBEARER token has already expired.",
                where=self._where,
                do="Check the clock of this machine and the token's lifetime.",
            )
        return token

    def _request_token(self) -> dict[str, object]:
        deadline = time.monotonic() + self.login.retry_backoff_s_max
        backoff_s = self.login.retry_backoff_s
        while True:
            try:
                return self._post()
            except urllib.error.HTTPError as error:
                if 300 <= error.code < 400:
                    raise self._redirected(error) from error
                said = _oauth_error(error)
                if error.code in _RETRIED:
                    if backoff_s <= 0 or time.monotonic() + backoff_s > deadline:
                        raise self._error(said) from error
                else:
                    signed = self.login.assertion is not None
                    shown = "assertion" if signed else "client credentials"
                    own = (
                        "key and claims of the assertion" if signed else "client id, client secret"
                    )
                    raise Denied(
                        f"the token endpoint refused the {shown} ({said}).",
                        where=self._where,
                        do=f"Check {own} and scope of this cluster.",
                    ) from error
            except (ValueError, RecursionError) as error:
                raise self._error("its response is not a JSON object") from error
            except http.client.HTTPException as error:
                raise self._error("its response is not HTTP") from error
            except OSError as error:
                reason = getattr(error, "reason", None)
                if isinstance(reason, ssl.SSLCertVerificationError):
                    said = reason.verify_message
                    raise ClusterError(
                        f"the token endpoint's certificate is not accepted ({said}).",
                        where=self._where,
                        do="Put its authority into a truststore that the JAAS entry names "
                        '(ssl.truststore.location="…"), or into those of this machine.',
                    ) from error
                if backoff_s <= 0 or time.monotonic() + backoff_s > deadline:
                    raise self._error(str(getattr(error, "reason", error))) from error
            time.sleep(backoff_s)
            backoff_s *= 2

    def _redirected(self, error: urllib.error.HTTPError) -> Denied:
        try:
            target = urllib.parse.urlsplit(error.headers.get("Location") or "").netloc
        except ValueError:
            target = ""
        return Denied(
            f"the token endpoint redirects (HTTP {error.code}) to "
            f"{printable(target) or 'another address'}; the client secret is sent only to the "
            "address in the file.",
            where=self._where,
            do="Set sasl.oauthbearer.token.endpoint.url to the address that does not redirect.",
        )

    def _error(self, reason: str) -> Unreachable:
        return Unreachable(
            f"the token endpoint returns no token ({reason}).",
            where=self._where,
            do="Check sasl.oauthbearer.token.endpoint.url and that it can be reached from here.",
        )

    def _post(self) -> dict[str, object]:
        login = self.login
        form, authorization = self._grant()
        if login.scope:
            form["scope"] = login.scope
        request = urllib.request.Request(  # noqa: S310  (http(s) only, checked with the file)
            login.url,
            data=urllib.parse.urlencode(form).encode(),
            headers={
                **authorization,
                "Accept": "application/json",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        # As in Java, 0 means no limit.
        timeout_s = max(login.connect_timeout_s, login.read_timeout_s) or None
        # Java's client reads no proxy from the environment. The secret goes to the address in the
        # file and to nobody else.
        opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}),
            _NoRedirect,
            urllib.request.HTTPSHandler(context=self._context()),
        )
        with opener.open(request, timeout=timeout_s) as answer:
            document = json.loads(answer.read(_RESPONSE_BYTES_MAX))
        if not isinstance(document, dict):
            raise ValueError
        return document

    def _context(self) -> ssl.SSLContext | None:
        try:
            return self._tls()
        except ConfigError as error:
            # Stores may be replaced at this moment; a token that is valid stays in use.
            raise Denied(error.what, where=error.where, do=error.do) from error

    def _grant(self) -> tuple[dict[str, str], dict[str, str]]:
        """(form fields, headers) that authenticate the token request. Raises `Denied`."""
        login = self.login
        if login.assertion is not None:
            text = assertion_text(login.assertion, self._clock(), where=self._where)
            return {"grant_type": _JWT_BEARER, "assertion": text}, {}
        client_id, secret = login.client_id, login.client_secret
        if login.urlencode_header:
            client_id, secret = (urllib.parse.quote_plus(text) for text in (client_id, secret))
        basic = base64.b64encode(f"{client_id}:{secret}".encode()).decode()
        return {"grant_type": "client_credentials"}, {"Authorization": f"Basic {basic}"}


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Turns every redirect into an error: the request carries the client secret."""

    def http_error_302(self, req: Any, fp: Any, code: int, msg: str, headers: Any) -> None:
        """Do not follow the redirect."""

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302


def _oauth_error(error: urllib.error.HTTPError) -> str:
    """HTTP status and OAuth's error code (RFC 6749); nothing else of the response is shown."""
    code = ""
    try:
        document = json.loads(error.read(_RESPONSE_BYTES_MAX))
        if isinstance(document, dict) and isinstance(document.get("error"), str):
            code = f", {document['error'][:60]}"
    except (OSError, ValueError, RecursionError, http.client.HTTPException):
        code = ""  # also if the response is cut off
    return f"HTTP {error.code}{code}"


def _seconds(value: object) -> float | None:
    """A number of seconds in a response; None if it is not a valid one."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if 0 <= value < 1e12 else None


def _claims(text: str) -> dict[str, object]:
    """The claims of a JWT; empty for a token of another kind."""
    parts = text.split(".")
    if len(parts) != 3:
        return {}
    try:
        claims = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    except (ValueError, RecursionError, binascii.Error):
        return {}
    return claims if isinstance(claims, dict) else {}


def unsecured_token(login: OAuthLogin, now: float) -> Token:
    """A JWT without a signature, as in Java's unsecured login (RFC 7515, appendix A.5)."""
    expires = now + login.lifetime_s
    # A broker compares with its clock in whole milliseconds, and refuses a token that was issued
    # later in the same millisecond. Whole seconds are exact in its arithmetic, too.
    claims: dict[str, object] = {"iat": float(math.floor(now)), "exp": expires, **login.claims}

    def part(document: dict[str, object]) -> str:
        data = json.dumps(document, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(data).rstrip(b"=").decode()

    return Token(f"{part({'alg': 'none'})}.{part(claims)}.", now, expires)
