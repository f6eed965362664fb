"""A Kerberos realm for tests: Debian's KDC as an ordinary process, principals, keytabs."""

from __future__ import annotations

import importlib
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from sparkmirror.testing.guard import forget, spawn
from sparkmirror.testing.probe import free_ports
from tests.lacking import lacks

REALM = "MIRROR.TEST"
OTHER_REALM = "OTHER.TEST"
HOST = "localhost"
# Kerberos in the test's own processes reads this file; in the mirror KAFKA_OPTS names it.
TICKET_LIFE_S = 20


@dataclass
class Realm:
    """A KDC; ``conf`` is the krb5.conf of its clients. ``off_s``: how wrong its clock is."""

    name: str
    directory: Path
    conf: Path
    port: int
    off_s: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "KRB5_CONFIG": str(self.conf),
            "KRB5_KDC_PROFILE": str(self.directory / "kdc.conf"),
        }

    def admin(self, query: str) -> None:
        subprocess.run(
            [_tool("kadmin.local"), "-r", self.name, "-q", query],
            env=self.environment,
            check=True,
            capture_output=True,
            timeout=30,
        )

    def keytab(self, name: str, principal: str, *, known: bool = False) -> Path:
        """A new principal with a random key, and the keytab that holds it.

        Both are in the realm's directory, also while its KDC does not run. ``known``: the
        principal may be there, and keeps its key.
        """
        path = self.directory / name
        self.admin(f"addprinc -randkey {principal}")  # which changes nothing where there is one
        self.admin(f"ktadd -k {path} {'-norandkey ' if known else ''}{principal}")
        return path

    def start(self) -> None:
        log = (self.directory / "kdc.out").open("ab")
        path = str(self.directory / "kdc.pid")
        command = [_tool("krb5kdc"), "-n", "-r", self.name, "-P", path]
        assignments = _assignments(self)
        if self.off_s:
            # Not by the command faketime, which would stay in front of the KDC.
            assignments += [f"LD_PRELOAD={_faketime()}", f"FAKETIME={self.off_s:+d}s"]
        self.process = spawn(["env", *assignments, *command], output=log)
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert self.process.poll() is None, (self.directory / "kdc.out").read_text()
            time.sleep(0.05)
        raise AssertionError("the KDC does not listen")

    def stop(self) -> None:
        if self.process is not None:
            self.process.terminate()
            self.process.wait(10)
            forget(self.process.pid)
            self.process = None

    def restart(self, off_s: int) -> None:
        """With another time."""
        self.stop()
        self.off_s = off_s
        self.start()


def _assignments(realm: Realm) -> list[str]:
    return [f"KRB5_CONFIG={realm.conf}", f"KRB5_KDC_PROFILE={realm.directory / 'kdc.conf'}"]


def _tool(name: str) -> str:
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin:/sbin")
    if path is None:
        lacks(f"{name} is not installed (make kerberos)")
    return path


def _faketime() -> Path:
    found = sorted(Path("/usr/lib").glob("*/faketime/libfaketime.so.1"))
    if not found:
        lacks("faketime is not installed (make kerberos)")
    return found[0]


def require_kerberos() -> None:
    """Skip with the reason where something is missing; ``make kerberos`` installs it."""
    try:
        importlib.import_module("gssapi")
    except ImportError:
        lacks("the Python package gssapi is not installed (make kerberos)")
    for name in ("krb5kdc", "kadmin.local", "kdb5_util", "kinit"):
        _tool(name)


def other_host() -> str:
    """Another name that this machine has for itself; skips the test where there is none."""
    name = socket.gethostname()
    try:
        known = name != HOST and bool(socket.getaddrinfo(name, None))
    except OSError:
        known = False
    if not known:
        lacks("this machine cannot resolve its own name")
    return name


def client_conf(
    path: Path, default: str, kdcs: dict[str, int], *lines: str, hosts: dict[str, str] | None = None
) -> Path:
    """A krb5.conf for ``default``; ``kdcs``: port by realm.

    The brokers on `HOST` are in `REALM`; ``hosts``: other realms, by host.
    """
    mapped = "".join(f"{host} = {name}\n" for host, name in {HOST: REALM, **(hosts or {})}.items())
    sections = "".join(f"{name} = {{\n kdc = 127.0.0.1:{port}\n}}\n" for name, port in kdcs.items())
    more = "".join(f"{line}\n" for line in lines)
    path.write_text(
        f"""[libdefaults]
default_realm = {default}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
ticket_lifetime = {TICKET_LIFE_S}s
{more}[realms]
{sections}[domain_realm]
{mapped}"""
    )
    return path


@contextmanager
def realm(directory: Path, name: str = REALM) -> Iterator[Realm]:
    """A realm of its own on a free port of this machine."""
    directory.mkdir(exist_ok=True)
    (port,) = free_ports(1)
    conf = client_conf(directory / "krb5.conf", name, {name: port})
    found = Realm(name, directory, conf, port)
    (directory / "kdc.conf").write_text(
        f"""[kdcdefaults]
kdc_ports = ""
kdc_tcp_ports = {port}
[realms]
{name} = {{
 database_name = {directory}/principal
 key_stash_file = {directory}/stash
 acl_file = {directory}/acl
 max_life = {TICKET_LIFE_S}s
 max_renewable_life = 1h
}}
"""
    )
    subprocess.run(
        [_tool("kdb5_util"), "create", "-s", "-r", name, "-P", "master-of-the-test"],
        env=found.environment,
        check=True,
        capture_output=True,
        timeout=60,
    )
    found.start()
    try:
        yield found
    finally:
        found.stop()


def trust(believing: Realm, believed: Realm) -> None:
    """Tickets of ``believed`` lead to services of ``believing``: the key that both share."""
    for each in (believing, believed):
        each.admin(f"addprinc -pw shared-by-two krbtgt/{believing.name}@{believed.name}")
