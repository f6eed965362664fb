"""Reads a Kafka cluster's brokers and ZooKeeper servers from an Ambari server.

It sends four requests to its REST API, all of them reads::

    GET /api/v1/clusters/NAME/services/KAFKA/components/KAFKA_BROKER
    GET /api/v1/clusters/NAME/services/ZOOKEEPER/components/ZOOKEEPER_SERVER
    GET /api/v1/clusters/NAME/hosts?fields=Hosts/ip
    GET /api/v1/clusters/NAME/configurations/service_config_versions?service_name=KAFKA&…

The last one returns ports, listeners, advertised listeners and a chroot. If the user may not read
it, the ports are Kafka's defaults. If the user may not read the hosts, there are only host names.
"""

from __future__ import annotations

import base64
import http.client
import ipaddress
import json
import re
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sparkmirror.errors import ClusterError, ConfigError, Denied, MirrorError, Unreachable

__all__ = ["AmbariLogin", "Found", "find_cluster", "parse_hosts", "split_url"]

_TIMEOUT_S = 15.0
_RESPONSE_BYTES_MAX = 16 * 1024 * 1024
_HOST = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?")
_LISTENER = re.compile(r"([A-Za-z_0-9]+)://([^:/,\s]*|\[[^\]]*\]):([0-9]{1,5})(?![0-9])")
# Only characters that ZooKeeper allows and that have no special meaning in a properties file.
_CHROOT = re.compile(r"[A-Za-z0-9._~@+/-]*")
BROKER_PORT, ZOOKEEPER_PORT = 9092, 2181
# What is shown of kafka-env, the shell script that starts a broker: lines, and characters of each.
_ENV_LINES_MAX, _ENV_CHARS_MAX = 8, 200


@dataclass(frozen=True, slots=True)
class AmbariLogin:
    """Address and user of Ambari. ``url``: its beginning, without ``/api``."""

    url: str
    user: str
    password: str = ""
    ca_file: Path | None = None

    def __repr__(self) -> str:
        return f"AmbariLogin({self.url!r}, {self.user!r})"


@dataclass(frozen=True, slots=True)
class Found:
    """Addresses as ``host:port``. ``listeners``: as in the brokers' configs, empty: unknown.

    ``stopped``: hosts whose broker is not started, as far as Ambari knows. ``broker_ips``,
    ``zookeeper_ips``: the addresses with IP addresses; empty unless Ambari has them for all hosts.
    ``advertised``: ``advertised.listeners`` as in the configs. ``env``: lines of kafka-env about
    it, which change the configs when a broker starts.
    """

    brokers: tuple[str, ...]
    zookeeper: tuple[str, ...]
    chroot: str = ""
    listeners: str = ""
    stopped: tuple[str, ...] = ()
    broker_ips: tuple[str, ...] = ()
    zookeeper_ips: tuple[str, ...] = ()
    advertised: str = ""
    env: tuple[str, ...] = ()

    @property
    def zookeeper_connect(self) -> str:
        """``host:port,host:port/chroot``; empty for a cluster without ZooKeeper."""
        return ",".join(self.zookeeper) + self.chroot if self.zookeeper else ""

    @property
    def zookeeper_connect_ips(self) -> str:
        """`zookeeper_connect` with IP addresses; empty if they are unknown."""
        return ",".join(self.zookeeper_ips) + self.chroot if self.zookeeper_ips else ""


def split_url(url: str) -> urllib.parse.SplitResult:
    """The parts of Ambari's address. Raises `ConfigError`, which does not quote it."""
    try:
        parts = urllib.parse.urlsplit(url)
        good = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        good = None
    if not good or parts.username:
        raise ConfigError(
            "the URL of Ambari is not http(s)://host[:port].",
            where="--url",
            do="Write it like this: --url https://ambari.example.com (the user is --user).",
        )
    return parts


def find_cluster(
    login: AmbariLogin,
    cluster: str,
    *,
    broker_port: int | None = None,
    zookeeper_port: int | None = None,
) -> Found:
    """Read ``cluster`` from Ambari. Ports None: those of its configs, else the defaults.

    Raises `MirrorError` for a wrong address or login, and for an unknown cluster or service.
    """
    server = _Server(login)
    base = f"/api/v1/clusters/{urllib.parse.quote(cluster, safe='')}"
    fields = "?fields=host_components/HostRoles/state"
    where = f"Ambari {login.url}, cluster {cluster}"
    answer = server.get(f"{base}/services/KAFKA/components/KAFKA_BROKER{fields}", where)
    hosts = parse_hosts(answer, where)
    try:
        keepers = parse_hosts(
            server.get(f"{base}/services/ZOOKEEPER/components/ZOOKEEPER_SERVER{fields}", where),
            where,
        )
    except ClusterError as error:
        if isinstance(error, Denied | Unreachable):
            raise
        keepers = {}  # a cluster without ZooKeeper (KRaft)
    types = _settings(server, base)
    settings = types.get("kafka-broker", {})
    ips = _ips(server, f"{base}/hosts?fields=Hosts/ip", where)
    listeners = settings.get("listeners", "")
    port = broker_port or _listener_port(listeners) or BROKER_PORT
    known, _, chroot = settings.get("zookeeper.connect", "").partition("/")
    if not _CHROOT.fullmatch(chroot):
        raise ClusterError(
            f"the chroot {chroot[:100]!a} in zookeeper.connect is not a ZooKeeper path.",
            where=where,
            do="Check zookeeper.connect of the brokers in Ambari.",
        )
    keeper_port = zookeeper_port or _first_port(known) or ZOOKEEPER_PORT
    return Found(
        tuple(f"{host}:{port}" for host in hosts),
        tuple(f"{host}:{keeper_port}" for host in keepers),
        f"/{chroot}" if chroot and keepers else "",
        listeners,
        tuple(host for host, state in hosts.items() if state not in ("", "STARTED")),
        _by_ip(hosts, ips, port),
        _by_ip(keepers, ips, keeper_port),
        settings.get("advertised.listeners", ""),
        _about_advertised(types.get("kafka-env", {}).get("content", "")),
    )


def parse_hosts(answer: Any, where: str) -> dict[str, str]:
    """{host name: state of its component, empty if unknown}, sorted. Pure.

    Raises `ClusterError` for a response of another form, or without hosts.
    """
    try:
        roles = [component["HostRoles"] for component in answer["host_components"]]
        hosts = {str(role["host_name"]): str(role.get("state") or "") for role in roles}
    except (KeyError, TypeError, AttributeError) as error:
        raise ClusterError(
            "the response has no host_components with HostRoles/host_name.",
            where=where,
            do="Check that --url is Ambari's address.",
        ) from error
    wrong = [host for host in hosts if not _HOST.fullmatch(host)]
    if wrong or not hosts:
        what = f"{wrong[0]!r} is not a host name" if wrong else "the component is on no host"
        raise ClusterError(f"{what}.", where=where, do="Check the cluster in Ambari.")
    return dict(sorted(hosts.items()))


def _settings(server: _Server, base: str) -> dict[str, dict[str, str]]:
    """The current configs of Kafka by type; empty if this user may not read them."""
    query = "?service_name=KAFKA&is_current=true"
    found: dict[str, dict[str, str]] = {}
    try:
        answer = server.get(f"{base}/configurations/service_config_versions{query}", "")
        for item in answer["items"]:
            for configuration in item["configurations"]:
                values = {str(k): str(v) for k, v in configuration["properties"].items()}
                found.setdefault(str(configuration["type"]), values)
    except (MirrorError, KeyError, TypeError, AttributeError):
        pass
    return found


def _ips(server: _Server, path: str, where: str) -> dict[str, str]:
    """IP addresses by host name, as far as this user may read them."""
    found: dict[str, str] = {}
    try:
        for item in server.get(path, where)["items"]:
            host = item["Hosts"]
            address = ipaddress.ip_address(str(host["ip"]))
            shown = f"[{address}]" if address.version == 6 else str(address)
            found[str(host["host_name"])] = shown
    except (MirrorError, KeyError, TypeError, ValueError):
        pass
    return found


def _by_ip(hosts: Mapping[str, str], ips: Mapping[str, str], port: int) -> tuple[str, ...]:
    """``address:port`` of each host; empty unless all are known."""
    if not all(host in ips for host in hosts):
        return ()
    return tuple(f"{ips[host]}:{port}" for host in hosts)


def _about_advertised(script: str) -> tuple[str, ...]:
    """The lines of kafka-env that are about ``advertised.listeners``, without comments."""
    lines = (line.strip() for line in script.splitlines())
    told = [line[:_ENV_CHARS_MAX] for line in lines if "advertised" in line and line[:1] != "#"]
    return tuple(told[:_ENV_LINES_MAX])


def _listener_port(listeners: str) -> int | None:
    """The port of the first listener."""
    match = _LISTENER.search(listeners)
    return int(match[3]) if match else None


def _first_port(servers: str) -> int | None:
    _, _, port = servers.split(",", maxsplit=1)[0].strip().rpartition(":")
    return int(port) if re.fullmatch("[0-9]{1,5}", port) else None


class _SameHost(urllib.request.HTTPRedirectHandler):
    """Follows no redirect to another server, because the password would be sent to it."""

    def redirect_request(
        self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str
    ) -> Any:
        old, new = urllib.parse.urlsplit(req.full_url), urllib.parse.urlsplit(newurl)
        if (old.scheme, old.netloc) != (new.scheme, new.netloc):
            raise urllib.error.HTTPError(newurl, code, "redirect elsewhere", headers, fp)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


class _Server:
    def __init__(self, login: AmbariLogin) -> None:
        split_url(login.url)
        self._base = login.url.rstrip("/")
        credentials = base64.b64encode(f"{login.user}:{login.password}".encode()).decode()
        self._headers = {"Authorization": f"Basic {credentials}", "X-Requested-By": "sparkmirror"}
        try:
            context = ssl.create_default_context(
                cafile=None if login.ca_file is None else str(login.ca_file)
            )
        except OSError as error:
            raise ConfigError(
                f"{login.ca_file} cannot be used ({error.strerror or error}).",
                where="--ca-file",
                do="Name a file with certificates in PEM format.",
            ) from error
        # Python 3.13 and newer set this by default. It refuses the certificates of many private
        # authorities.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        self._opener = urllib.request.build_opener(
            _SameHost, urllib.request.HTTPSHandler(context=context)
        )

    def get(self, path: str, where: str) -> Any:
        request = urllib.request.Request(f"{self._base}{path}", headers=self._headers)  # noqa: S310
        try:
            with self._opener.open(request, timeout=_TIMEOUT_S) as response:
                return json.loads(response.read(_RESPONSE_BYTES_MAX))
        except urllib.error.HTTPError as error:
            raise _http_error(error, where) from error
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise Unreachable(
                f"no answer ({getattr(reason, 'strerror', None) or reason}).",
                where=where,
                do="Check --url, the network, and --ca-file if the certificate is not trusted.",
            ) from error
        except (ValueError, RecursionError) as error:
            raise ClusterError(
                "the response is not JSON.", where=where, do="Check that --url is Ambari's address."
            ) from error


def _http_error(error: urllib.error.HTTPError, where: str) -> ClusterError:
    if error.code in (401, 403):
        return Denied(
            f"Ambari refuses the login (HTTP {error.code}).",
            where=where,
            do="Check user and password, and that the user may view this cluster.",
        )
    if error.code == 404:
        return ClusterError(
            "there is no such cluster, or it lacks the service (HTTP 404).",
            where=where,
            do="Check --cluster: it is the name that Ambari shows, in upper and lower case.",
        )
    if 300 <= error.code < 400:
        return ClusterError(
            f"it redirects to {urllib.parse.urlsplit(error.url).netloc}.",
            where=where,
            do="Give that address with --url: the password is not sent to another server.",
        )
    return ClusterError(
        f"the server returned HTTP {error.code}.", where=where, do="See Ambari's log."
    )
