"""The schema registry of a flow, ``A->B.sparkmirror.registry.*``: Confluent's names of keys."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from urllib.parse import urlsplit

from sparkmirror.config.clients.tls import tls_settings
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader
from sparkmirror.config.table.own import REGISTRY
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import RegistrySettings

_URL = f"{REGISTRY}url"
_USER = f"{REGISTRY}basic.auth.user.info"
_TOKEN = f"{REGISTRY}bearer.auth.token"
_STORE = f"{REGISTRY}ssl.truststore."
_CERTIFICATE = (f"{REGISTRY}ssl.keystore.", f"{REGISTRY}ssl.key.")
_SSL = re.compile(r"\bssl\.[a-z.]*[a-z]")
# A token travels in a header, which has neither blanks nor ends of lines within it.
_PLAIN = re.compile(r"[!-~]+")


def registry_settings(own: ValueReader) -> RegistrySettings:
    """The registry of a flow. Raises ConfigError.

    ``own``: the flow's ``sparkmirror.*`` settings.
    """
    given = {key: entry for key, entry in own.conf.items() if key.startswith(REGISTRY)}
    urls = tuple(_url(own.conf[_URL], one) for one in own.elements(_URL))
    if not urls:
        for entry in given.values():
            if entry.value.strip():
                raise _refused(entry, "is set without an address", f"Set {_sibling(entry, _URL)}.")
        return RegistrySettings()
    store = own.text(f"{_STORE}location")
    kind, password = own.text(f"{_STORE}type"), own.text(f"{_STORE}password")
    if password and (kind == "PEM" or not store):
        why = "a PEM store has no password" if kind == "PEM" else f"there is no {_STORE}location"
        entry = given[f"{_STORE}password"]
        raise _refused(entry, f"cannot be used: {why}", "Remove the password.")
    return RegistrySettings(
        urls,
        _authorization(own),
        store,
        kind,
        password,
        tuple(
            (key.removeprefix(REGISTRY), f"{entry.where}: {entry.key}")
            for key, entry in sorted(given.items())
        ),
        _keystore(own, given, urls),
    )


def plain_logins(flows: Iterable[FlowSettings]) -> list[str]:
    """A remark on each login that travels unencrypted over a network. Pure."""
    return [
        f"{flow.registry.place('url')}: the registry's login travels unencrypted to {url}."
        for flow in flows
        for url in flow.registry.urls
        if flow.transforms
        and flow.registry.authorization
        and url.startswith("http:")
        and urlsplit(url).hostname not in ("localhost", "127.0.0.1", "::1")
    ]


def _url(entry: Entry, text: str) -> str:
    try:
        parts = urlsplit(text)
        known = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # a port that is no number
        parts, known = urlsplit(""), False
    if parts.username is not None:
        do = f"Set {_sibling(entry, _USER)} to USER:PASSWORD, best through a config provider."
        raise _refused(entry, "has a login in an address, where logs would show it", do)
    if not known or parts.query or parts.fragment:
        raise _refused(entry, "has no address of a registry", "Write https://HOST:PORT.")
    return text.rstrip("/")


def _keystore(
    own: ValueReader, given: Mapping[str, Entry], urls: Sequence[str]
) -> tuple[tuple[str, str], ...]:
    """The properties of a client certificate, under Kafka's names."""
    found = {
        key.removeprefix(REGISTRY): own.text(key)
        for key in sorted(given)
        if key.startswith(_CERTIFICATE) and own.text(key)
    }
    try:
        store = tls_settings(found, where="").keystore
    except ConfigError as error:
        named = [key for key in _SSL.findall(error.what) if key in found]
        entry = given[REGISTRY + named[0]]
        what = f"{entry.key} cannot be used: {error.what}"
        raise ConfigError(what, where=entry.where, do=error.do) from error
    if not found:
        return ()
    entry = given[REGISTRY + next(iter(found))]
    if store is None:
        do = f"Set {_sibling(entry, f'{REGISTRY}ssl.keystore.location')}, or remove it."
        raise _refused(entry, "is set without a client certificate", do)
    if not any(url.startswith("https:") for url in urls):
        do = f"Write an https: address into {_sibling(entry, _URL)}."
        raise _refused(entry, "cannot be used: no address of the registry begins with https:", do)
    return tuple(found.items())


def _authorization(own: ValueReader) -> str:
    user, token = own.text(_USER), own.text(_TOKEN)
    for key, value in ((_USER, user), (_TOKEN, token)):
        source = f"{key.rpartition('auth.')[0]}auth.credentials.source"
        if own.given(source) and not value:
            entry = own.conf[source]
            raise _refused(entry, "is set without a login", f"Set {_sibling(entry, key)}.")
    if user and token:
        entry = own.conf[_TOKEN]
        raise _refused(entry, f"cannot be used with {_sibling(entry, _USER)}", "Keep one of them.")
    if user:
        if ":" not in user:
            raise _refused(own.conf[_USER], "has no colon", "Write USER:PASSWORD.")
        return f"Basic {base64.b64encode(user.encode()).decode()}"
    if token and not _PLAIN.fullmatch(token):
        do = "Write the token alone, in one line."
        raise _refused(own.conf[_TOKEN], "has blanks or characters beyond ASCII", do)
    return f"Bearer {token}" if token else ""


def _sibling(entry: Entry, key: str) -> str:
    """``key`` as the file would spell it beside ``entry``."""
    return entry.key[: entry.key.index(REGISTRY)] + key


def _refused(entry: Entry, what: str, do: str) -> ConfigError:
    return ConfigError(f"{entry.key} {what}.", where=entry.where, do=do)
