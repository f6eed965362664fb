"""Who may connect to Spark's ports, and who can read their traffic.

Spark's JVM reads Java objects from whoever connects to it. It sends an executor all settings,
including the key of the sealed client properties. So with a local master, its ports are on this
machine's loopback address and require a login. With other masters, they require a login and
encrypt, as far as the master lets us decide that: a standalone master and its workers must have the
same settings. Otherwise, no secret is sent there.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import socket
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from sparkmirror.config.table.settings import is_secret
from sparkmirror.errors import ConfigError
from sparkmirror.settings import MirrorSettings

__all__ = [
    "check_local",
    "cluster_settings",
    "driver_host",
    "is_local",
    "own_settings",
    "secrets_of",
    "withheld",
]

log = logging.getLogger(__name__)

_LOCAL = re.compile(r"local(?:\[[^\]]*\])?")
# These create a secret for each application and send it to its executors.
_OWN_SECRETS = ("yarn", "k8s://")
_AUTHENTICATE = "spark.authenticate"
_SECRET = "spark.authenticate.secret"  # noqa: S105  (the setting's name)
_TLS = "spark.ssl.rpc.enabled"
_CRYPTO = "spark.network.crypto.enabled"
_UI = "spark.ui.enabled"
_FALLBACK = "spark.network.crypto.saslFallback"
_LOCAL_ONLY = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    _AUTHENTICATE: "true",
}
_ENCRYPTED = {_AUTHENTICATE: "true", _CRYPTO: "true", _FALLBACK: "false"}
_ANY_PORT = 9  # a route does not depend on it
# Spark's own default for settings that nobody should see.
_WITHHELD = re.compile(r"secret|password|token", re.IGNORECASE)


def is_local(master: str) -> bool:
    """Whether all of Spark runs in one JVM on this machine."""
    return _LOCAL.fullmatch(master.strip()) is not None


def own_settings(master: str) -> dict[str, str]:
    """The settings that we add before Spark starts."""
    if is_local(master):
        return dict(_LOCAL_ONLY)  # Spark creates the secret
    return dict(_ENCRYPTED) if master.strip().startswith(_OWN_SECRETS) else {}


def driver_host(master: str, brokers: Iterable[str]) -> str:
    """The address of this machine that executors can reach: the one on the route to the master.

    The address that the machine's own name resolves to is no help: on many machines it is
    127.0.1.1, and a remote executor would connect to itself. ``brokers``: ``host:port`` of Kafka,
    for masters without an address of their own (yarn). Empty if nothing is found: then Spark
    decides.
    """
    named = [one.rpartition("://")[2] for one in master.split(",")] if "://" in master else []
    for server in (*named, *brokers):
        try:
            host = urlsplit(f"//{server}").hostname or ""
            found = socket.getaddrinfo(host, _ANY_PORT, type=socket.SOCK_DGRAM) if host else []
        except (OSError, ValueError):  # unknown name, no address
            continue
        for family, kind, _, _, address in found:
            try:
                with socket.socket(family, kind) as asked:
                    asked.connect(address)  # sends nothing: it only chooses a route
                    own: str = asked.getsockname()[0]
            except OSError:
                continue
            # Spark appends a port.
            return f"[{own}]" if ":" in own else own
    return ""


def check_local(given: Mapping[str, str]) -> None:
    """Refuse settings that open a local Spark to others; warn if others can see its UI.

    ``given``: the user's own settings. Raises `ConfigError`.
    """
    for key, ours in _LOCAL_ONLY.items():
        value = given.get(key)
        if value is None or (_on(given, key) if key == _AUTHENTICATE else _loopback(value)):
            continue
        raise ConfigError(
            f"{key}={value} would open Spark's ports to others without a login."
            if key == _AUTHENTICATE
            else f"{key}={value} would let other machines reach Spark's ports.",
            where="--conf",
            do=f"Leave it out: with a local master it is {ours}.",
        )
    if _on(given, _UI):
        log.warning(
            "--conf %s=true: Spark's UI is open, without a login, to whoever reaches this machine",
            _UI,
        )


def secrets_of(settings: MirrorSettings) -> list[str]:
    """The clusters whose client properties hold a secret that Spark's executors get, in order.

    These include the targets of flows whose claims are signed, and of those with a salt for hashes
    or a login, a client certificate or a truststore's password for a schema registry.
    """
    found = {
        client.alias: None
        for flow in settings.flows
        for client in (*flow.clients, flow.offset_syncs.client, flow.checkpoints.client)
        if client is not None
        and any(value and is_secret(key) for key, value in client.properties.items())
    }
    found |= {
        flow.target.alias: None
        for flow in settings.flows
        if flow.control_secret
        or flow.hash_salt
        or flow.registry.authorization
        or flow.registry.truststore_password
        or flow.registry.keystore
    }
    return list(found)


def cluster_settings(
    master: str, effective: Mapping[str, str], secret_of: Iterable[str]
) -> dict[str, str]:
    """The settings to add to ``effective`` (all that apply) for a master that is not local.

    ``secret_of``: the clusters whose secrets the executors get. Raises `ConfigError` if these would
    not be safe in transit.
    """
    added = {}
    if _SECRET in effective:
        # A user who shares a secret with the cluster wants it used.
        added = {key: value for key, value in _ENCRYPTED.items() if key not in effective}
    found = {**effective, **added}
    lacking = [] if _on(found, _AUTHENTICATE) else [f"{_AUTHENTICATE} true"]
    if not master.strip().startswith(_OWN_SECRETS) and not found.get(_SECRET):
        lacking.append(f"{_SECRET} LONG-RANDOM-TEXT")
    if not _on(found, _TLS):
        lacking += [] if _on(found, _CRYPTO) else [f"{_CRYPTO} true"]
        lacking += [f"{_FALLBACK} false"] if _on(found, _FALLBACK, "true") else []
    if not lacking:
        return added
    clusters = list(secret_of)
    where = f"master {master}"
    if clusters:
        raise ConfigError(
            "Anybody who connects to Spark's ports or listens on its network could read the "
            f"secrets of {_listed(clusters)}.",
            where=where,
            do="Put these lines into conf/spark-defaults.conf of the Spark cluster's master and"
            f" workers and of this machine, and restart them: {'; '.join(lacking)}. Instead of"
            f" spark.network.crypto, you may use {_TLS} true with its stores.",
        )
    log.warning(
        "%s: anybody who reaches Spark's ports can read and change what it does, since these"
        " settings are missing: %s",
        where,
        "; ".join(lacking),
    )
    return added


def withheld(settings: Mapping[str, str]) -> set[str]:
    """The keys that must not be on a command line."""
    return {key for key in settings if _WITHHELD.search(key)}


def _on(settings: Mapping[str, str], key: str, default: str = "false") -> bool:
    return settings.get(key, default).strip().lower() == "true"


def _loopback(value: str) -> bool:
    try:
        return ipaddress.ip_address(value.strip("[] ")).is_loopback
    except ValueError:
        return value.strip().lower() == "localhost"


def _listed(clusters: Iterable[str]) -> str:
    names = list(clusters)
    return f"cluster{'s' * (len(names) > 1)} {', '.join(names)}"
