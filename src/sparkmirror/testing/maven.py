"""Downloads jars from Maven's central repository with the Ivy jar that PySpark contains.

Nothing has to be installed, and no repository address is needed because Ivy has one. The cache
lists what was resolved, so a second call starts no JVM and needs no network. All jars are verified
against `pins` before they are returned.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import ipaddress
import os
import re
import subprocess
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal
from urllib.parse import unquote, urlsplit
from xml.sax.saxutils import quoteattr

from sparkmirror.cache import cache_directory, locked
from sparkmirror.errors import Defect, MachineError
from sparkmirror.java import JavaHome, find_java
from sparkmirror.testing.pins import pins_digest, verify_jars

__all__ = ["Fetching", "resolve"]

_RESOLVE_TIMEOUT_S = 900.0
_LAYOUT = "2"  # raise it when the Ivy settings below change, so that old listings are not used
_SETTINGS_VARIABLE = "SPARKMIRROR_IVY_SETTINGS"
_NO_NETWORK = re.compile(
    r"UnknownHost|ConnectException|Connection refused|Connection timed out|timed out|NoRouteToHost"
    r"|Network is unreachable|Server access error|SSLHandshake|PKIX|Unable to tunnel|not found\.$",
)
# What Ivy says where the proxy did not get a login, or not one that it accepts.
_NO_LOGIN = "Your proxy requires authentication"
_PROXY_ADDRESS = (
    "Write http://host:port, or http://user:password@host:port, with %40, %2F, %3A and %25 for the"
    " characters @, /, : and % in the password."
)


@dataclass(frozen=True, slots=True)
class Fetching:
    """The progress of a download.

    ``phase``: ``resolve`` while dependencies are resolved (``done`` so far, ``total`` is 0), then
    ``download`` with ``done`` of ``total`` jars. ``name``: the current module or file. ``bytes``:
    downloaded so far.
    """

    phase: Literal["resolve", "download"]
    name: str
    done: int
    total: int
    bytes: int


def resolve(
    *coordinates: str,
    exclude: Sequence[str] = (),
    progress: Callable[[Fetching], None] | None = None,
    java: JavaHome | None = None,
) -> tuple[Path, ...]:
    """Jars of ``coordinates`` and of all their dependencies, as paths in the cache.

    A coordinate is ``group:artifact:version``, or ``group:artifact:version@jar`` for only that jar.
    ``exclude``: artifact names to leave out, with dependencies that only they need. Raises
    MachineError if there is no network, a coordinate does not exist, Java is missing, the cache
    cannot be written, or a jar's hash differs from `pins`.
    """
    wanted = [_parse(coordinate) for coordinate in coordinates]
    cache = cache_directory() / "maven"
    text = "\n".join([_LAYOUT, *sorted(coordinates), "exclude", *sorted(exclude)])
    key = hashlib.sha256(text.encode()).hexdigest()[:20]
    listing = cache / "resolved" / f"{key}.txt"
    # Earlier versions also read the listing, so a separate file says which pins it passed.
    verified = listing.with_suffix(f".{pins_digest()[:20]}")
    if verified.exists() and (jars := _listed(listing)):
        return jars
    with locked(cache / ".lock", timeout_s=_RESOLVE_TIMEOUT_S):
        # Another process may have downloaded the same jars while this one waited.
        jars = _listed(listing)
        if jars and verified.exists():
            return jars
        try:
            listing.parent.mkdir(parents=True, exist_ok=True)
            if not jars:
                java = java or find_java()
                jars = _fetch(wanted, exclude, cache, key, progress=progress, java=java)
            verify_jars([f"{one.artifact}-{one.version}.jar" for one in wanted], jars)
            aside = listing.with_suffix(".part")
            aside.write_text("".join(f"{jar}\n" for jar in jars), "utf-8")
            aside.replace(listing)
            verified.touch()
        except OSError as error:
            raise MachineError(
                f"The jar cache cannot be written ({error.strerror or error}).",
                where=str(cache),
                do="Free some disk space, or set XDG_CACHE_HOME to a directory that you may"
                " write to.",
            ) from error
        return jars


@dataclass(frozen=True, slots=True)
class _Coordinate:
    group: str
    artifact: str
    version: str
    transitive: bool


def _parse(coordinate: str) -> _Coordinate:
    found = re.fullmatch(r"([\w.-]+):([\w.-]+):([\w.-]+)(@jar)?", coordinate)
    if not found:
        raise MachineError(
            "This is not a Maven coordinate.",
            where=coordinate,
            do="Write group:artifact:version, or group:artifact:version@jar for a single jar.",
        )
    return _Coordinate(found[1], found[2], found[3], transitive=found[4] is None)


def _listed(listing: Path) -> tuple[Path, ...]:
    """The jars of an earlier call; none if the list or one of its files is missing."""
    try:
        names = listing.read_text("utf-8").splitlines()
    except FileNotFoundError:
        return ()
    jars = tuple(Path(name) for name in names)
    return jars if all(jar.is_file() for jar in jars) else ()


def _fetch(
    wanted: Sequence[_Coordinate],
    exclude: Sequence[str],
    cache: Path,
    key: str,
    *,
    progress: Callable[[Fetching], None] | None,
    java: JavaHome,
) -> tuple[Path, ...]:
    proxies = _proxies(os.environ)
    login = _login(proxies)
    work = cache / "work"
    work.mkdir(parents=True, exist_ok=True)
    settings = os.environ.get(_SETTINGS_VARIABLE, "")
    if not settings:
        settings = str(work / "settings.xml")
        Path(settings).write_text(_SETTINGS.format(cache=quoteattr(str(cache / "ivy"))), "utf-8")
    module = work / f"{key}.xml"
    module.write_text(_module_text(wanted, exclude, key), "utf-8")
    paths = work / f"{key}.classpath"
    command = [
        str(java.java),
        "-XX:TieredStopAtLevel=1",  # Ivy runs for seconds, so full optimization would not pay off
        *(_proxy_options(proxies) + _direct_options(os.environ) if proxies else []),
        *(["@/dev/stdin"] if login else []),  # others may read a command line
        "-jar",
        str(_ivy_jar()),
        *("-cache", str(cache / "ivy"), "-settings", settings, "-ivy", str(module)),
        *("-confs", "default", "-cachepath", str(paths)),
    ]
    output = _run(command, login, _Reader(progress))
    names = paths.read_text("utf-8").strip().split(os.pathsep) if output is None else []
    module.unlink()
    paths.unlink(missing_ok=True)
    if output is not None:
        raise _explained(wanted, proxies, output)
    return tuple(Path(name) for name in names)


# Lookups of source and documentation jars would double the number of requests.
_SETTINGS = """<ivysettings>
  <property name="ivy.maven.lookup.sources" value="false"/>
  <property name="ivy.maven.lookup.javadoc" value="false"/>
  <settings defaultResolver="central"/>
  <caches defaultCacheDir={cache}/>
  <timeout-constraints>
    <timeout-constraint name="bounded" connectionTimeout="15000" readTimeout="60000"/>
  </timeout-constraints>
  <resolvers>
    <ibiblio name="central" m2compatible="true" useMavenMetadata="false"
             timeoutConstraint="bounded"/>
  </resolvers>
</ivysettings>
"""


def _module_text(wanted: Sequence[_Coordinate], exclude: Sequence[str], key: str) -> str:
    """An Ivy module that depends on ``wanted``."""
    lines = [
        '<ivy-module version="2.0">',
        f'  <info organisation="sparkmirror" module="m{key}"/>',
        '  <configurations><conf name="default"/></configurations>',
        "  <dependencies>",
    ]
    lines += [
        f'    <dependency org="{one.group}" name="{one.artifact}" rev="{one.version}"'
        f' conf="default->default" transitive="{str(one.transitive).lower()}"/>'
        for one in wanted
    ]
    lines += [f"    <exclude module={quoteattr(name)}/>" for name in exclude]
    return "\n".join([*lines, "  </dependencies>", "</ivy-module>", ""])


def _ivy_jar() -> Path:
    spec = importlib.util.find_spec("pyspark")
    locations = spec.submodule_search_locations if spec else None
    jars = Path(next(iter(locations))) / "jars" if locations else Path("jars")
    found = sorted(jars.glob("ivy-*.jar"))
    if not found:
        raise MachineError(
            "PySpark's Ivy jar is missing.",
            where=str(jars),
            do="Install PySpark again: pip install --force-reinstall pyspark==4.3.0",
        )
    return found[-1]


@dataclass(frozen=True, slots=True)
class _Proxy:
    """The proxy for addresses of ``scheme``, from the environment variable ``name``."""

    name: str
    scheme: str
    host: str
    port: int
    user: str
    password: str = field(repr=False)


def _proxies(environment: Mapping[str, str]) -> list[_Proxy]:
    """The proxies in the usual variables of command-line tools.

    Raises MachineError for what is not an HTTP proxy, without the value: it may hold a password.
    """
    found = []
    for scheme in ("http", "https"):
        names = (f"{scheme}_proxy", f"{scheme}_proxy".upper())
        name = next((one for one in names if environment.get(one)), None)
        if name is None:
            continue
        value = environment[name]
        try:
            parts = urlsplit(value if "//" in value else f"//{value}")
            host, port = parts.hostname, parts.port or 3128
        except ValueError:
            raise _no_proxy(name) from None
        if not host or parts.scheme not in ("", "http", "https"):
            raise _no_proxy(name)
        login = (unquote(parts.username or ""), unquote(parts.password or ""))
        found.append(_Proxy(name, scheme, host, port, *login))
    return found


def _no_proxy(name: str) -> MachineError:
    return MachineError(
        "This variable does not hold the address of an HTTP proxy.",
        where=name,
        do=f"{_PROXY_ADDRESS} For a SOCKS proxy, unset it and set"
        " JDK_JAVA_OPTIONS='-DsocksProxyHost=host -DsocksProxyPort=port'.",
    )


def _proxy_options(proxies: Sequence[_Proxy]) -> list[str]:
    """JVM options with the addresses of ``proxies``."""
    options = []
    for one in proxies:
        options += [
            f"-D{one.scheme}.proxyHost={one.host}",
            f"-D{one.scheme}.proxyPort={one.port}",
        ]
    return options


# What Java asks no proxy for by itself, as long as it is told nothing else.
_DIRECT = ("localhost", "127.*", "[::1]")


def _direct_options(environment: Mapping[str, str]) -> list[str]:
    """JVM options with the hosts of the usual variable that are asked without a proxy.

    As in other tools a name counts for the hosts below it, too. Java has no ports there: a host
    with one is asked without a proxy at all of them.
    """
    value = environment.get("no_proxy") or environment.get("NO_PROXY") or ""
    found = [host for one in re.split(r"[\s,]+", value) for host in _java_hosts(one)]
    if not value:
        return []
    # Java has the same property for HTTPS.
    return [f"-Dhttp.nonProxyHosts={'|'.join(dict.fromkeys((*_DIRECT, *found)))}"]


def _java_hosts(entry: str) -> list[str]:
    """What Java calls the hosts of ``entry``; none for a network of IPv6, which it cannot name."""
    if entry in ("", "*"):
        return [entry] if entry else []
    with contextlib.suppress(ValueError):
        network = ipaddress.ip_network(entry.strip("[]"), strict=False)
        if network.num_addresses == 1:
            address = str(network.network_address)
            return [address if network.version == 4 else f"[{address}]"]
        return _java_networks(network) if network.version == 4 else []
    if "/" in entry:
        return []
    host = re.sub(r":\d+$", "", entry)
    if host != entry:
        return _java_hosts(host)
    name = host.removeprefix("*").removeprefix(".")
    return [name, f"*.{name}"] if name else []


def _java_networks(network: ipaddress.IPv4Network) -> list[str]:
    """A network of IPv4 as networks that end between two numbers."""
    whole = max(8, -(-network.prefixlen // 8) * 8)
    return [
        ".".join(str(one.network_address).split(".")[: whole // 8]) + (".*" if whole < 32 else "")
        for one in network.subnets(new_prefix=whole)
    ]


def _login(proxies: Sequence[_Proxy]) -> str:
    """A file of arguments for Java with the login for ``proxies``; empty if they name none.

    Ivy has one login for all proxies, in the last two properties. Of two logins, that for HTTPS
    counts: the central repository's address begins so. Without the first property, Java offers no
    password to a proxy that tunnels HTTPS.
    """
    users = [one for one in proxies if one.user]
    if not users:
        return ""
    values = {
        "jdk.http.auth.tunneling.disabledSchemes": "",
        "http.proxyUser": users[-1].user,
        "http.proxyPassword": users[-1].password,
    }
    lines = (f"-D{name}={value}" for name, value in values.items())
    escaped = (line.replace("\\", r"\\").replace('"', r"\"") for line in lines)
    return "".join(f'"{line}"\n' for line in escaped)


class _Reader:
    """Reads Ivy's log line by line, and reports progress to the caller."""

    def __init__(self, progress: Callable[[Fetching], None] | None) -> None:
        self._progress = progress
        self._modules = 0
        self._jars = 0
        self._bytes = 0
        self._name = ""

    def read(self, line: str) -> None:
        if found := re.match(r"\s*found (\S+?)#(\S+);(\S+) in ", line):
            self._modules += 1
            self._report("resolve", found[2])
        elif found := re.match(r"downloading \S*/(\S+)", line):
            self._name = found[1]
            if self._name.endswith(".jar"):
                self._report("download", self._name)
        elif found := re.match(r"\.* ?\((\d+)kB\)", line):
            self._bytes += int(found[1]) * 1024
        elif re.match(r"\s*\[SUCCESSFUL \] \S*\.jar", line):
            self._jars += 1
            self._report("download", self._name)

    def _report(self, phase: Literal["resolve", "download"], name: str) -> None:
        if self._progress is None:
            return
        done = self._modules if phase == "resolve" else self._jars
        total = 0 if phase == "resolve" else max(self._modules, self._jars)
        self._progress(Fetching(phase, name, done, total, self._bytes))


def _run(command: list[str], text: str, reader: _Reader) -> list[str] | None:
    """Run Ivy with ``text`` as input; returns None if it succeeded, else its log's last lines."""
    tail: deque[str] = deque(maxlen=200)
    with subprocess.Popen(  # noqa: S603  (an argument list, no shell)
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        # Ivy has no overall time limit; without this, a stalled transfer would never end.
        timer = threading.Timer(_RESOLVE_TIMEOUT_S, process.kill)
        timer.daemon = True
        timer.start()
        try:
            if process.stdin is None or process.stdout is None:
                raise Defect("the process has no pipes")
            with contextlib.suppress(BrokenPipeError):  # it has ended; its log says why
                process.stdin.write(text)
                process.stdin.close()
            for line in process.stdout:
                tail.append(line.rstrip())
                reader.read(line)
        finally:
            timer.cancel()
            if process.poll() is None:
                process.terminate()
    return None if process.returncode == 0 else list(tail)


def _explained(
    wanted: Sequence[_Coordinate], proxies: Sequence[_Proxy], output: list[str]
) -> MachineError:
    """The error for a failed Ivy run, from its log."""
    names = ", ".join(f"{one.group}:{one.artifact}:{one.version}" for one in wanted)
    if any(_NO_LOGIN in line for line in output):
        which = "another login" if any(one.user for one in proxies) else "a login"
        return MachineError(
            f"The jars of {names} cannot be downloaded: the proxy wants {which}.",
            where=", ".join(one.name for one in proxies) or "Maven repository",
            do=_PROXY_ADDRESS,
        )
    trouble = next((line.strip() for line in output if _NO_NETWORK.search(line)), "")
    if "PKIX" in trouble:
        return MachineError(
            f"The jars of {names} cannot be downloaded: this Java does not trust the repository's"
            " certificate, for example because a proxy intercepts TLS.",
            where="Maven repository",
            do="Give it your system's certificates, on Debian for example"
            " JAVA_TOOL_OPTIONS=-Djavax.net.ssl.trustStore=/etc/ssl/certs/java/cacerts, or use"
            " the system's own Java (JAVA_HOME).",
        )
    if trouble:
        return MachineError(
            f"The jars of {names} cannot be downloaded: {trouble}",
            where="Maven repository",
            do="Check the network. Behind a proxy, set HTTPS_PROXY; for your own repository, set"
            f" {_SETTINGS_VARIABLE} to an Ivy settings file.",
        )
    missing = [line.strip(": \t") for line in output if "not found" in line]
    return MachineError(
        f"The jars of {names} cannot be resolved: {'; '.join(missing[:3]) or output[-1:]}",
        where="Maven repository",
        do="Check the version number.",
    )
