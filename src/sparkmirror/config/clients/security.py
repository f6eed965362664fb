"""Security of one client: the properties that apply, and keys of a file that have no effect."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from sparkmirror.config.clients.assertion import PREFIX, RETRIEVER
from sparkmirror.config.clients.jaas import format_module, java_system_properties, read_file_entry
from sparkmirror.config.clients.sasl import sasl_settings
from sparkmirror.config.clients.tls import TlsSettings, tls_settings
from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import shown, split_list
from sparkmirror.config.table.settings import HIDDEN, ClientProperties
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ClusterClient, FlowSettings, HeartbeatSettings

__all__ = [
    "KRB5_CONF",
    "at_its_line",
    "idle_reason",
    "protocol_of",
    "secured",
    "unsafe",
    "uses_sasl",
    "uses_tls",
]

KRB5_CONF = "java.security.krb5.conf"
"""Property with the path of the Kerberos configuration, named as Java's system property."""
# Java's JVM property that enables the check; others (enableCRLDP, OCSP) only choose its sources.
_CHECK_REVOCATION = "com.sun.net.ssl.checkRevocation"
_HOST_CHECK = "ssl.endpoint.identification.algorithm"
_OLD_SPELLINGS = {"PLAINTEXTSASL": "SASL_PLAINTEXT"}
_KEY = re.compile(r"\b(?:ssl|sasl)\.[a-z.]*[a-z]")
_MECHANISM_KEYS = (
    ("sasl.oauthbearer.", "OAUTHBEARER"),
    ("sasl.login.refresh.", "OAUTHBEARER"),
    ("sasl.login.retry.", "OAUTHBEARER"),
    ("sasl.login.connect.", "OAUTHBEARER"),
    ("sasl.login.read.", "OAUTHBEARER"),
    ("sasl.kerberos.", "GSSAPI"),
)


def protocol_of(text: str) -> str:
    """``security.protocol`` in upper case; the spelling of old distributions is replaced."""
    return _OLD_SPELLINGS.get(text.strip().upper(), text.strip().upper())


def uses_tls(protocol: str) -> bool:
    """Whether connections of this protocol are encrypted."""
    return protocol in ("SSL", "SASL_SSL")


def uses_sasl(protocol: str) -> bool:
    """Whether connections of this protocol begin with a login."""
    return protocol in ("SASL_PLAINTEXT", "SASL_SSL")


def secured(
    alias: str,
    properties: Mapping[str, str],
    protocol: str,
    *,
    path: str,
    conf: Mapping[str, Entry],
    environment: Mapping[str, str] | None = None,
) -> ClientProperties:
    """``properties`` for the client: checked, and with the JAAS file's entry added.

    Keys without effect under ``protocol`` are left out. ``conf``: the keys' entries in the file
    ``path``, for errors. Raises ConfigError for settings that cannot work.
    """
    kept = {key: value for key, value in properties.items() if _counts(key, protocol)}
    try:
        system = java_system_properties(os.environ if environment is None else environment)
        if uses_tls(protocol):
            _check_revocation(tls_settings(kept, where=path), alias, system)
        if uses_sasl(protocol):
            _fill_login(kept, system, path)
            sasl_settings(
                {**kept, "security.protocol": protocol},
                where=path,
                jaas_where=_place(conf, "sasl.jaas.config", path),
            )
    except ConfigError as error:
        secrets = [one.value.strip() for one in conf.values() if one.secret and one.value.strip()]
        placed = _placed(error, alias, conf, path, secrets)
        raise placed from (None if secrets else error)
    return ClientProperties(kept)


def _check_revocation(tls: TlsSettings, alias: str, system: Mapping[str, str]) -> None:
    """Raise ConfigError if Java's revocation check is enabled but no revocation list is set."""
    if system.get(_CHECK_REVOCATION, "").lower() == "true" and not tls.crl:
        raise ConfigError(
            f"{_CHECK_REVOCATION}=true requires revocation checks of certificates; here they need "
            "a file with revocation lists.",
            where="KAFKA_OPTS",
            do=f"Set {alias}.ssl.crl.location (in MirrorMaker 1's files: ssl.crl.location) to a "
            "file with the authority's revocation lists, or remove the property from KAFKA_OPTS.",
        )


def _fill_login(kept: dict[str, str], system: Mapping[str, str], where: str) -> None:
    """Add what Java finds without properties: the JAAS file's entry, the Kerberos configuration."""
    if not kept.get("sasl.jaas.config", "").strip():
        module = read_file_entry(system, where=where)
        if module is not None:
            kept["sasl.jaas.config"] = format_module(module)
    if system.get(KRB5_CONF):
        kept[KRB5_CONF] = system[KRB5_CONF]


def _place(conf: Mapping[str, Entry], key: str, path: str) -> str:
    entry = conf.get(key)
    return entry.where if entry is not None and entry.line else path


def _placed(
    error: ConfigError, alias: str, conf: Mapping[str, Entry], path: str, secrets: Iterable[str]
) -> ConfigError:
    """``error`` with the cluster, and with the line of the first key that it names.

    ``secrets``: values from config providers, which no message shows.
    """
    where = error.where
    if where == path:
        named = [key for key in _KEY.findall(error.what) if key in conf]
        where = _place(conf, [*named, "security.protocol"][0], path)
    what = _without(error.what, secrets)
    return ConfigError(f"Cluster '{alias}': {what}", where=where, do=error.do)


def _without(text: str, secrets: Iterable[str]) -> str:
    """``text`` without these values, and without the elements of those that are lists."""
    hidden = {part for one in secrets for part in (one.strip(), *split_list(one)) if part}
    longest_first = sorted(map(re.escape, hidden), key=len, reverse=True)
    return re.sub("|".join(longest_first), HIDDEN, text) if hidden else text


def at_its_line(
    error: ConfigError, properties: Mapping[str, str], entries: Iterable[Entry], alias: str = ""
) -> ConfigError:
    """``error`` about a file that ``properties`` name, with the line of the file's name.

    ``entries``: what the properties were made from; what a config provider returned is hidden.
    ``alias``: the client's cluster; without it, the error has a line already.
    """
    mine: dict[str, list[Entry]] = {key: [] for key in properties}
    for entry in entries:
        parts = entry.key.split(".")
        for key in {".".join(parts[at:]) for at in range(len(parts))} & mine.keys():
            if entry.value.strip() == properties[key].strip() != "":
                mine[key].append(entry)
    what = error.what
    named = [key for key in mine if properties[key] and properties[key] in what]
    named += [key for text in (what, error.do) for key in _KEY.findall(text) if key in mine]
    own_first = f"{alias}."
    found = [
        entry
        for key in named
        for entry in sorted(mine[key], key=lambda one: not one.key.startswith(own_first))
    ]
    what = _without(what, (one.value for some in mine.values() for one in some if one.secret))
    if not alias:
        return ConfigError(what, where=error.where, do=error.do)
    where = found[0].where if found else error.where
    return ConfigError(f"Cluster '{alias}': {what}", where=where, do=error.do)


def _counts(key: str, protocol: str) -> bool:
    if key.startswith("ssl."):
        return uses_tls(protocol)
    return uses_sasl(protocol) or not key.startswith("sasl.")


def unsafe(
    flows: Iterable[FlowSettings], path: str, heartbeats: Iterable[HeartbeatSettings] = ()
) -> list[str]:
    """One line for each setting that works but makes a connection insecure."""
    clients = [client for flow in flows for client in flow.clients]
    clients += [client for beats in heartbeats for client in (beats.target, beats.target_admin)]
    told = (
        f"{path}: cluster {client.alias}: {line}" for client in clients for line in _unsafe(client)
    )
    return list(dict.fromkeys(told))


def _unsafe(client: ClusterClient) -> Iterator[str]:
    properties = client.properties
    if uses_tls(client.security_protocol) and not _checks_host(properties):
        yield (
            f"{_HOST_CHECK} is empty, so anybody with a certificate of a trusted authority can "
            f"impersonate its brokers; give the brokers certificates with their host names and set "
            f"{_HOST_CHECK}=https."
        )
    if not uses_sasl(client.security_protocol):
        return
    login = sasl_settings(
        {**properties, "security.protocol": client.security_protocol}, where=client.alias
    )
    oauth = login.oauth
    shown = "the password" if login.mechanism == "PLAIN" else ""
    if oauth is not None and oauth.url:  # anybody can make a token that is unsecured
        shown = "the token"
    if shown and not uses_tls(client.security_protocol) and not _on_this_machine(client):
        yield (
            f"others on the network can read {shown} of its {login.mechanism} login with "
            "security.protocol=SASL_PLAINTEXT; use SASL_SSL."
        )
    if oauth is None or not oauth.url.startswith("http"):
        return
    if oauth.url.startswith("http:") and not _is_local(urlsplit(oauth.url).hostname or ""):
        yield (
            "sasl.oauthbearer.token.endpoint.url does not use TLS, so others on the network can "
            "read the client secret and the tokens; use an https: address."
        )
    if oauth.url.startswith("https:") and not _checks_host(oauth.tls):
        yield (
            f"{_HOST_CHECK} is empty in the JAAS entry, so anybody with a certificate of a trusted "
            "authority can impersonate the token endpoint and get the client secret; remove it."
        )


def _checks_host(properties: Mapping[str, str]) -> bool:
    return bool(properties.get(_HOST_CHECK, "https").strip())


def _on_this_machine(client: ClusterClient) -> bool:
    hosts = (one.rpartition(":")[0].strip("[]") for one in client.bootstrap_servers)
    return all(map(_is_local, hosts))


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host.rstrip(".").lower() == "localhost"


def idle_reason(name: str, conf: Mapping[str, Entry]) -> str:
    """Why security key ``name`` has no effect in a client with ``conf``; ``""`` if it has one."""
    entry = conf.get("security.protocol")
    protocol = protocol_of(entry.value) if entry else "PLAINTEXT"
    if not _counts(name, protocol):
        told = shown(entry, protocol) if entry else protocol
        return f"it has no effect with security.protocol={told}"
    chosen = conf.get("sasl.mechanism")
    mechanism = chosen.value.strip() if chosen else "GSSAPI"
    for prefix, wanted in _MECHANISM_KEYS:
        if name.startswith(prefix) and mechanism != wanted:
            told = shown(chosen, mechanism) if chosen else mechanism
            return f"it has no effect with sasl.mechanism={told}"
    retriever = conf.get("sasl.oauthbearer.jwt.retriever.class")
    named = retriever.value.strip().rpartition(".")[2] if retriever else ""
    if name.startswith(PREFIX) and named != RETRIEVER:
        return f"it has no effect without sasl.oauthbearer.jwt.retriever.class={RETRIEVER}"
    return ""
