"""The exchange of a login, and those of PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628). No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

__all__ = ["ChallengeRefused", "Mechanism", "OAuthBearer", "Plain"]


class Mechanism(Protocol):
    """One exchange with a broker.

    While it is not done, ``auth_bytes`` goes to the broker, and ``receive`` takes what it returns.
    ``receive`` raises an error for a response that the mechanism does not allow.
    """

    def auth_bytes(self) -> bytes:
        """The next message to the broker."""

    def receive(self, data: bytes) -> None:
        """Take the broker's response to the message before."""

    def is_done(self) -> bool:
        """Whether nothing more is to be sent."""

    def is_authenticated(self) -> bool:
        """Whether the exchange ended as the mechanism says that it must."""


class ChallengeRefused(ValueError):
    """The client does not answer a broker's challenge: that would be unsafe, or take too long.

    ``do``: what to change.
    """

    def __init__(self, what: str, do: str) -> None:
        super().__init__(what)
        self.do = do


class _OneMessage:
    """A mechanism whose only message the broker accepts with an empty response."""

    def __init__(self) -> None:
        self._done = False
        self._accepted = False

    def receive(self, data: bytes) -> None:
        """Take the response: the login has succeeded if it is empty."""
        self._done = True
        self._accepted = data == b""

    def is_done(self) -> bool:
        """Whether the broker has responded."""
        return self._done

    def is_authenticated(self) -> bool:
        """Whether the response was the right one."""
        return self._accepted


class Plain(_OneMessage):
    """PLAIN. As with Java's clients, the authorization identity is empty: that of ``username``.

    Raises ValueError for a NUL character, which separates the parts of the message.
    """

    def __init__(self, username: str, password: str) -> None:
        super().__init__()
        if "\0" in username or "\0" in password:
            raise ValueError("a username or password for PLAIN cannot contain a NUL character")
        self._message = f"\0{username}\0{password}".encode()

    def auth_bytes(self) -> bytes:
        """The credentials."""
        return self._message


class OAuthBearer(_OneMessage):
    """OAUTHBEARER with SASL extensions (KIP-342).

    ``token`` returns a token that is valid now. If the broker refuses it, the response is a JSON
    document. RFC 7628 then requires one more message, after which the broker reports the failure.
    """

    def __init__(self, token: Callable[[], str], extensions: Mapping[str, str]) -> None:
        super().__init__()
        self._token = token
        self._extensions = extensions
        self._refused = False

    def auth_bytes(self) -> bytes:
        """The token and the extensions; after a refusal, the message that asks for its reason."""
        if self._refused:
            return b"\x01"
        extensions = "".join(f"{key}={text}\x01" for key, text in self._extensions.items())
        return f"n,,\x01auth=Bearer {self._token()}\x01{extensions}\x01".encode()

    def receive(self, data: bytes) -> None:
        """Take an empty response as success, any other one as a refusal."""
        self._refused = data != b""
        if not self._refused:
            super().receive(data)
