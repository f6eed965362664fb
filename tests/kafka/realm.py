"""A Kerberos realm for tests: Debian's KDC as an ordinary process, principals, keytabs."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from sparkmirror.demo.guard import forget, spawn
from sparkmirror.demo.probe import free_ports

REALM = "MIRROR.TEST"
HOST = "localhost"
# Kerberos in the test's own processes reads this file; in the mirror KAFKA_OPTS names it.
TICKET_LIFE_S = 20
_PACKAGES = ("krb5-kdc", "krb5-admin-server", "krb5-user")


@dataclass
class Realm:
    """A running KDC; ``conf`` is the krb5.conf of its clients."""

    directory: Path
    conf: Path
    port: int
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
            [_tool("kadmin.local"), "-r", REALM, "-q", query],
            env=self.environment,
            check=True,
            capture_output=True,
            timeout=30,
        )

    def keytab(self, name: str, principal: str) -> Path:
        """A new principal with a random key, and the keytab that holds it."""
        path = self.directory / name
        self.admin(f"addprinc -randkey {principal}")
        self.admin(f"ktadd -k {path} {principal}")
        return path

    def start(self) -> None:
        log = (self.directory / "kdc.out").open("ab")
        path = str(self.directory / "kdc.pid")
        command = [_tool("krb5kdc"), "-n", "-r", REALM, "-P", path]
        self.process = spawn(["env", *_assignments(self), *command], output=log)
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


def _assignments(realm: Realm) -> list[str]:
    return [f"KRB5_CONFIG={realm.conf}", f"KRB5_KDC_PROFILE={realm.directory / 'kdc.conf'}"]


def _tool(name: str) -> str:
    path = shutil.which(name, path=os.environ["PATH"] + ":/usr/sbin:/usr/local/sbin:/sbin")
    assert path, f"{name} is not installed"
    return path


def require_kerberos() -> None:
    """Install Debian's KDC when it is missing and this is root; skip with the reason otherwise."""
    pytest.importorskip("gssapi", reason="the Python package gssapi is not installed")
    try:
        for name in ("krb5kdc", "kadmin.local", "kdb5_util", "kinit"):
            _tool(name)
        return
    except AssertionError as error:
        missing = str(error)
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        pytest.skip(f"{missing}, and only root could install it (apt-get install krb5-kdc)")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in (["apt-get", "update", "-qq"], ["apt-get", "install", "-y", "-qq", *_PACKAGES]):
        done = subprocess.run(
            command, env=environment, check=False, capture_output=True, timeout=300
        )
        if done.returncode:
            pytest.skip(f"{missing}, and {' '.join(command[:2])} failed")


@contextmanager
def realm(directory: Path) -> Iterator[Realm]:
    """A realm of its own on a free port of this machine."""
    (port,) = free_ports(1)
    found = Realm(directory, directory / "krb5.conf", port)
    found.conf.write_text(
        f"""[libdefaults]
default_realm = {REALM}
dns_lookup_kdc = false
dns_lookup_realm = false
dns_canonicalize_hostname = false
rdns = false
udp_preference_limit = 1
ticket_lifetime = {TICKET_LIFE_S}s
[realms]
{REALM} = {{
 kdc = 127.0.0.1:{port}
}}
[domain_realm]
{HOST} = {REALM}
"""
    )
    (directory / "kdc.conf").write_text(
        f"""[kdcdefaults]
kdc_ports = ""
kdc_tcp_ports = {port}
[realms]
{REALM} = {{
 database_name = {directory}/principal
 key_stash_file = {directory}/stash
 acl_file = {directory}/acl
 max_life = {TICKET_LIFE_S}s
 max_renewable_life = 1h
}}
"""
    )
    subprocess.run(
        [_tool("kdb5_util"), "create", "-s", "-r", REALM, "-P", "master-of-the-test"],
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
