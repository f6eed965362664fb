"""Long mirrors over TLS and SASL, which ``make matrix`` runs and ``make test`` does not.

Eleven flows in one process take their time to start, brokers theirs to start again. The ways to
connect with Kerberos have mirrors of their own in test_kerberos_mirrors.py.
"""

from __future__ import annotations

import uuid
from datetime import timedelta
from pathlib import Path

from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource

from tests.certificates import Authority, Certified, pem
from tests.kafka.clusters.secure import HOST, Secured
from tests.kafka.harness.mirror_process import MirrorProcess, wait_until, write_mm2
from tests.kafka.harness.support import (
    TIMEOUT_S,
    Sent,
    admin,
    create_topic,
    produce,
    wait_until_equal,
)
from tests.kafka.harness.ways import GSSAPI, VALUES, WAYS

# --- every way to connect -----------------------------------------------------------------------


def test_a_mirror_through_every_way_to_connect(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """One process; each way is a cluster alias of its own, once as source and once as target."""
    p, q = secured_clusters
    ways = sorted({(listener, login) for listener, login, _ in WAYS if login != GSSAPI})
    sources = {f"s{n}": way for n, way in enumerate(ways)}
    # The other side is reached in another way, so that neither lends the other its settings.
    targets = {f"t{n}": way for n, way in enumerate([*ways[1:], ways[0]])}
    name = f"way-{uuid.uuid4().hex[:8]}"
    settings = {
        "clusters": ",".join([*sources, *targets]),
        "tasks.max": "1",
        "replication.factor": "1",
        "offset.storage.replication.factor": "1",
    }
    off = ("emit.heartbeats", "emit.checkpoints", "emit.offset-syncs", "heartbeats.replication")
    settings |= {f"{each}.enabled": "false" for each in off}
    for cluster, sides in ((p, sources), (q, targets)):
        for alias, (listener, login) in sides.items():
            settings[f"{alias}.bootstrap.servers"] = cluster.servers[listener]
            properties = cluster.properties(listener, login)
            settings |= {f"{alias}.{key}": value for key, value in properties.items()}
    for source, target in zip(sources, targets, strict=True):
        topic = f"{name}-{source}"
        settings[f"{source}->{target}.enabled"] = "true"
        settings[f"{source}->{target}.topics"] = topic
        create_topic(p.kafka, topic)
        produce(p.kafka, topic, [Sent(value=value, key=b"k", partition=0) for value in VALUES])
    path = tmp_path / "mm2.properties"
    path.write_text("".join(f"{key} = {value}\n" for key, value in settings.items()))
    mirror = MirrorProcess(tmp_path, ["run", str(path), "--once"])
    try:
        assert mirror.wait() == 0, mirror.text()
    finally:
        mirror.kill()
    assert len(ways) == 11
    for source in sources:
        topic = f"{name}-{source}"
        found = wait_until_equal(p.kafka, topic, q.kafka, f"{source}.{topic}", timeout_s=5)
        assert len(found) == len(VALUES)


# --- certificates of brokers that change --------------------------------------------------------


def _serve(cluster: Secured, store: Path) -> None:
    """Have the TLS listener show the certificate in ``store``, as ``kafka-configs`` does it."""
    guard = admin(cluster.kafka)
    key, value = "listener.name.tls.ssl.keystore.location", str(store)
    entry = ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET)
    broker = ConfigResource(ConfigResource.Type.BROKER, "1", incremental_configs=[entry])
    for future in guard.incremental_alter_configs([broker]).values():
        future.result(TIMEOUT_S)


def _serve_all(cluster: Secured, certified: Certified, store: Path) -> None:
    """`_serve`, and end all connections: open ones would go on with what they know."""
    _serve(cluster, certified.pkcs12(store))
    cluster.kafka.restart()
    assert cluster.shown("TLS") == certified.certificate


def _exchange(path: Path, text: str) -> None:
    """A new file takes the name of the old one."""
    beside = path.with_suffix(".new")
    beside.write_text(text)
    beside.replace(path)


def test_a_mirror_while_certificates_of_brokers_are_replaced_and_expire(
    secured_clusters: tuple[Secured, Secured], tmp_path: Path
):
    """Renewed, revoked, expired; by an authority that the client learns of later."""
    p, q = secured_clusters
    topic = f"renewed-{uuid.uuid4().hex[:8]}"
    create_topic(p.kafka, topic, 2)
    trust = tmp_path / "trust.pem"
    trust.write_text(p.authority.pem())
    other = Authority("Another authority")
    lists = tmp_path / "lists.pem"
    lists.write_text(pem(p.authority.revoked()) + pem(other.revoked()))
    extra = {
        "A.ssl.crl.location": str(lists),
        "A.bootstrap.servers": p.servers["TLS"],
        "A.security.protocol": "SSL",
        "A.ssl.truststore.type": "PEM",
        "A.ssl.truststore.location": str(trust),
        # The driver says why it has no answer when it has waited for one.
        "A.admin.request.timeout.ms": "4000",
        "A.consumer.request.timeout.ms": "4000",
    }
    path = write_mm2(tmp_path / "mm2.properties", p.kafka, q.kafka, topic, extra)

    def certified(authority: Authority, **times: timedelta) -> Certified:
        return authority.certify("broker", "localhost", HOST, **times)

    def equal() -> None:
        produce(p.kafka, topic, [Sent(value=b"v" * 100, partition=n % 2) for n in range(20)])
        wait_until_equal(p.kafka, topic, q.kafka, f"A.{topic}")

    mirror = MirrorProcess(tmp_path, ["run", str(path), "--log-format", "json"])

    def told(what: str) -> bool:
        # That it expires in some days is told from the start on.
        lines = [line for line in mirror.text().splitlines() if "quick check" not in line]
        return any(what in line and "cluster A" in line for line in lines)

    try:
        equal()
        renewed = certified(p.authority)
        _serve_all(p, renewed, tmp_path / "renewed.p12")
        equal()
        assert not told("certificate"), mirror.text()
        revoked = p.authority.revoked(renewed.certificate)
        _exchange(lists, pem(revoked) + pem(other.revoked()))
        _serve_all(p, renewed, tmp_path / "revoked.p12")
        wait_until(lambda: told("has been revoked"), "the reason is told")
        _serve_all(p, certified(p.authority), tmp_path / "valid.p12")
        equal()
        hour = timedelta(hours=1)
        expired = certified(p.authority, begins=-2 * hour, ends=-hour)
        _serve_all(p, expired, tmp_path / "expired.p12")
        wait_until(lambda: told("certificate has expired"), "the reason is told")
        _serve_all(p, certified(other), tmp_path / "other.p12")
        wait_until(lambda: told("certificate is not trusted"), "the reason is told")
        _exchange(trust, p.authority.pem() + other.pem())
        equal()
        assert mirror.drain()[0] == 0, mirror.text()
    finally:
        mirror.kill()
        _serve(p, p.stores["broker"])
    assert "Traceback" not in mirror.text()
