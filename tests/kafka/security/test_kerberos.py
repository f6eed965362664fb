"""Kerberos for real: a KDC, keytabs, a broker that takes GSSAPI logins, a mirror through it."""

from __future__ import annotations

import os
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sparkmirror.errors import ConfigError, Denied, MirrorError, Unreachable
from sparkmirror.testing.probe import free_ports
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.probe.reach import reach
from tests.kafka.clusters.kerberized import CLIENT, MODULE, Kerberized
from tests.kafka.clusters.kerberized import kerberized as new_kerberized
from tests.kafka.clusters.realm import (
    OTHER_REALM,
    REALM,
    TICKET_LIFE_S,
    Realm,
    client_conf,
    realm,
    require_kerberos,
    trust,
)
from tests.kafka.harness.mirror_process import MirrorProcess, write_mm2
from tests.kafka.harness.support import Sent, create_topic, produce, wait_until_equal
from tests.kafka.harness.ways import GSSAPI, WAYS, works


@pytest.fixture(scope="module")
def kerberized(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kerberized]:
    require_kerberos()
    directory = tmp_path_factory.mktemp("realm")
    before = os.environ.get("KRB5_CONFIG")
    with realm(directory) as running:
        client = running.keytab("client.keytab", CLIENT)
        found = new_kerberized("K", running, client, directory)
        with found.kafka:
            yield found
    if before is None:
        os.environ.pop("KRB5_CONFIG", None)
    else:
        os.environ["KRB5_CONFIG"] = before


@pytest.fixture(scope="module")
def other_realm(
    kerberized: Kerberized, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Realm]:
    """Another realm, whose users the brokers' realm believes."""
    with realm(tmp_path_factory.mktemp("other"), OTHER_REALM) as running:
        trust(kerberized.realm, running)
        yield running


@contextmanager
def wrong_by(kdc: Realm, off_s: int) -> Iterator[None]:
    """``kdc`` with another time than this machine has."""
    kdc.restart(off_s)
    try:
        yield
    finally:
        kdc.restart(0)


def both_realms(kerberized: Kerberized, other: Realm, path: Path, *lines: str) -> str:
    """A krb5.conf for users of ``other``."""
    kdcs = {OTHER_REALM: other.port, REALM: kerberized.realm.port}
    return str(client_conf(path, OTHER_REALM, kdcs, *lines))


@pytest.mark.parametrize(
    ("listener", "mechanism", "role"), [way for way in WAYS if way[1] == GSSAPI]
)
def test_both_clients_work(
    kerberized: Kerberized, listener: str, mechanism: str, role: str, topic_name: str
):
    """With a keytab."""
    client = kerberized.client(listener=listener, **{"sasl.mechanism": mechanism})
    works(client, role, kerberized.kafka, topic_name)


def test_a_user_of_a_realm_that_is_trusted(
    kerberized: Kerberized, other_realm: Realm, tmp_path: Path, topic_name: str
):
    """Tickets come from the user's own KDC, then from the brokers', and are got again later."""
    user = f"guest@{OTHER_REALM}"
    keytab = other_realm.keytab("guest.keytab", user)
    conf = both_realms(kerberized, other_realm, tmp_path / "both.conf")
    options = f'useKeyTab=true keyTab="{keytab}" principal="{user}"'
    client = kerberized.client(options, **{"java.security.krb5.conf": conf})
    works(client, "target", kerberized.kafka, topic_name)
    # Without the way to the brokers' realm the own KDC cannot help.
    lonely = client_conf(tmp_path / "own.conf", OTHER_REALM, {OTHER_REALM: other_realm.port})
    second = f"second@{OTHER_REALM}"
    keytab = other_realm.keytab("second.keytab", second)
    options = f'useKeyTab=true keyTab="{keytab}" principal="{second}"'
    client = kerberized.client(options, **{"java.security.krb5.conf": str(lonely)})
    with pytest.raises(Unreachable, match="no KDC of the Kerberos realm can be reached"):
        reach(client)


def test_clocks_that_differ_too_much(kerberized: Kerberized, other_realm: Realm, tmp_path: Path):
    """The KDC is an hour late, and the client does not take its time from there."""
    user = f"late@{OTHER_REALM}"
    keytab = other_realm.keytab("late.keytab", user)
    conf = both_realms(kerberized, other_realm, tmp_path / "late.conf", "kdc_timesync = 0")
    options = f'useKeyTab=true keyTab="{keytab}" principal="{user}"'
    client = kerberized.client(options, **{"java.security.krb5.conf": conf})
    differ = pytest.raises(Denied, match="clocks of this machine and of the KDC differ too much")
    with wrong_by(other_realm, -3_600), differ as caught:
        reach(client)
    assert caught.value.do == "Synchronise the clocks."
    assert "cluster east" in caught.value.where


def test_a_ticket_cache(kerberized: Kerberized, tmp_path: Path):
    """Made by kinit, read by path; and the same cache when it is empty."""
    cache = tmp_path / "tickets"
    client = kerberized.client(f'useTicketCache=true ticketCache="{cache}" principal="{CLIENT}"')
    with pytest.raises(Denied, match="the ticket cache holds no credentials"):
        reach(client)
    subprocess.run(
        ["kinit", "-k", "-t", str(kerberized.keytab), "-c", f"FILE:{cache}", CLIENT],
        env=kerberized.realm.environment,
        check=True,
        timeout=30,
    )
    assert reach(client).versions


@pytest.mark.long
def test_tickets_are_renewed_between_logins(kerberized: Kerberized):
    """Connections made over more than a ticket's life, from one process and one keytab."""
    client = kerberized.client()
    end = time.monotonic() + 1.3 * TICKET_LIFE_S
    host, _, port = kerberized.server.partition(":")
    logins = 0
    while time.monotonic() < end:
        Connection(host, int(port), client).close()
        logins += 1
        time.sleep(1)
    assert logins > TICKET_LIFE_S / 2


@pytest.mark.parametrize(
    ("options", "changes", "kind", "what", "do"),
    [
        ('useKeyTab=true keyTab="{keytab}" principal="nobody@' + REALM + '"', {}, Denied,
         "holds no credentials for nobody", "klist -k"),
        ('useKeyTab=true keyTab="/no/such.keytab" principal="' + CLIENT + '"', {}, ConfigError,
         "the keytab /no/such.keytab cannot be read", "keyTab"),
        ("", {"sasl.kerberos.service.name": "redis"}, Denied,
         "does not know the brokers' principal redis/", "sasl.kerberos.service.name"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    kerberized: Kerberized,
    options: str,
    changes: dict[str, str],
    kind: type[MirrorError],
    what: str,
    do: str,
):
    client = kerberized.client(options.replace("{keytab}", str(kerberized.keytab)), **changes)
    with pytest.raises(kind) as caught:
        reach(client)
    assert "cluster east" in caught.value.where
    assert what in caught.value.what
    assert do in caught.value.do


def test_an_old_key(kerberized: Kerberized):
    """The principal's key was changed after the keytab was made."""
    principal = f"stale@{REALM}"
    keytab = kerberized.realm.keytab("stale.keytab", principal)
    kerberized.realm.admin(f"change_password -randkey {principal}")
    client = kerberized.client(f'useKeyTab=true keyTab="{keytab}" principal="{principal}"')
    with pytest.raises(Denied, match="refuses the key of stale"):
        reach(client)


def test_an_unreachable_kdc(kerberized: Kerberized, tmp_path: Path):
    conf = tmp_path / "krb5.conf"
    (dead,) = free_ports(1)
    text = kerberized.realm.conf.read_text()
    conf.write_text(text.replace(f"127.0.0.1:{kerberized.realm.port}", f"127.0.0.1:{dead}"))
    # A principal of its own: the tickets of the other tests are kept in memory.
    keytab = kerberized.realm.keytab("lonely.keytab", f"lonely@{REALM}")
    options = f'useKeyTab=true keyTab="{keytab}" principal="lonely@{REALM}"'
    client = kerberized.client(options, **{"java.security.krb5.conf": str(conf)})
    unreachable = pytest.raises(Unreachable, match="no KDC of the Kerberos realm can be reached")
    with unreachable as caught:
        reach(client)
    assert "cluster east" in caught.value.where


@pytest.mark.long
def test_a_mirror_outlives_sessions_and_tickets(
    kerberized: Kerberized, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Both sides over GSSAPI, the login from a JAAS file as Kafka's scripts name it."""
    kafka = kerberized.kafka
    topic = f"kerberos-{uuid.uuid4().hex[:8]}"
    create_topic(kafka, topic, 2)
    records = [Sent(value=b"v" * 500, key=b"%d" % n, partition=n % 2) for n in range(100)]
    produce(kafka, topic, records)
    jaas = tmp_path / "jaas.conf"
    jaas.write_text(
        f"// as for Java\nKafkaClient {{\n  {MODULE} required\n  useKeyTab=true storeKey=true\n"
        f'  keyTab="{kerberized.keytab}" principal="{CLIENT}" serviceName="kafka";\n}};\n'
    )
    monkeypatch.setenv(
        "KAFKA_OPTS",
        f"-Djava.security.auth.login.config={jaas} "
        f"-Djava.security.krb5.conf={kerberized.realm.conf}",
    )
    monkeypatch.delenv("KRB5_CONFIG", raising=False)
    extra = {
        "A.bootstrap.servers": kerberized.server,
        "B.bootstrap.servers": kerberized.server,
        "A.security.protocol": "PLAINTEXTSASL",
        "B.security.protocol": "SASL_PLAINTEXT",
    }
    path = write_mm2(tmp_path / "mm2.properties", kafka, kafka, topic, extra)
    arguments = ["run", str(path), "--work-dir", str(tmp_path / "work"), "--log-format", "json"]
    mirror = MirrorProcess(tmp_path, arguments)
    try:
        wait_until_equal(kafka, topic, kafka, f"A.{topic}")
        end = time.monotonic() + 1.3 * TICKET_LIFE_S
        while time.monotonic() < end:
            produce(kafka, topic, records[:10])
            time.sleep(0.5)
        wait_until_equal(kafka, topic, kafka, f"A.{topic}")
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()
    assert "refused the login" not in mirror.text()
    assert "CONNECTION_LOST" not in mirror.text()
