"""TLS and SASL against real brokers: the wire layer in every combination, then whole mirrors."""

from __future__ import annotations

import json
import select
import threading
import time
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from sparkmirror.config.sasl import OAuthLogin
from sparkmirror.errors import ClusterError, ConfigError, Denied, MirrorError, NotKafka
from sparkmirror.model import ClusterClient, FetchSettings, ProduceSettings, TopicPartition
from sparkmirror.wire.batch import HEADER_BYTES, LOG_OVERHEAD_BYTES
from sparkmirror.wire.client import Cluster
from sparkmirror.wire.connection import Connection
from sparkmirror.wire.fetch import Fetcher
from sparkmirror.wire.oauth import unsecured_token
from sparkmirror.wire.produce import Producer
from sparkmirror.wire.reach import reach
from sparkmirror.wire.requests import record_batch
from sparkmirror.wire.routes import Routes
from tests.certificates import Authority, to_jks
from tests.kafka.secure import (
    MECHANISMS,
    SESSION_MS,
    USER,
    USER_SECRET,
    Secured,
    jaas,
)
from tests.kafka.support import create_topic

# The first test waits for both brokers.
pytestmark = pytest.mark.timeout(240)

WAYS = [
    ("OPEN", ""),
    ("TLS", ""),
    ("MUTUAL", ""),
    *(("LOGIN", mechanism) for mechanism in MECHANISMS),
    *(("BOTH", mechanism) for mechanism in MECHANISMS),
]
# More than one TLS record, and parts on both sides of the size up to which they are joined.
VALUES = [b"x" * size for size in (10, 70_000, 300_000, 900_000)]


@pytest.fixture(scope="module")
def secured(secured_clusters: tuple[Secured, Secured]) -> Secured:
    return secured_clusters[0]


def _now_ms() -> int:
    """Retention removes older records half a minute after the broker's start."""
    return int(time.time() * 1000)


def _produce(client: ClusterClient, tp: TopicPartition, values: list[bytes]) -> None:
    routes = Routes(client, [tp.topic])
    producer = Producer(routes, ProduceSettings())
    for value in values:
        producer.append(tp, memoryview(record_batch([(b"k", value)], _now_ms())))
    _pump(producer)
    producer.close()
    routes.close()


def _pump(producer: Producer) -> None:
    deadline = time.monotonic() + 30
    while not producer.idle:
        assert time.monotonic() < deadline, (producer.halts, producer.errors)
        producer.pump(0.2)
    assert producer.halts == {}


def _fetch(client: ClusterClient, tp: TopicPartition, count: int) -> int:
    """Bytes of ``count`` batches read from the beginning of ``tp``."""
    routes = Routes(client, [tp.topic])
    fetcher = Fetcher(routes, FetchSettings())
    fetcher.assign(tp, 0)
    seen = size = 0
    deadline = time.monotonic() + 30
    while seen < count:
        assert time.monotonic() < deadline, (fetcher.halts, fetcher.errors)
        fetcher.send()
        for sock in select.select(fetcher.sockets(), [], [], 0.2)[0]:
            for part in fetcher.receive(sock):
                found = _whole_batches(part.records)
                seen += len(found)
                size += sum(found)
                fetcher.advance(tp, part.fetch_offset + len(found))
    routes.close()
    assert seen == count
    return size


def _whole_batches(records: memoryview) -> list[int]:
    """Sizes of the batches in an answer; its last one may be cut off."""
    sizes, at = [], 0
    while at + HEADER_BYTES <= len(records):
        size = LOG_OVERHEAD_BYTES + int.from_bytes(records[at + 8 : at + 12], "big")
        if at + size > len(records):
            break
        sizes.append(size)
        at += size
    return sizes


@pytest.mark.parametrize(("listener", "mechanism"), WAYS)
def test_both_clients_work(secured: Secured, listener: str, mechanism: str, topic_name: str):
    """As a target (topic made, records produced), then as a source (records fetched)."""
    client = secured.client(listener, mechanism)
    reached = reach(client)
    assert f"{reached.host}:{reached.port}" == secured.servers[listener]
    cluster = Cluster(client)
    try:
        create_topic(secured.kafka, topic_name)
        assert cluster.topics([topic_name])[topic_name].partitions == 1
        assert cluster.produce_many(topic_name, [(0, b"k", b"v")]) == 1
        tp = TopicPartition(topic_name, 0)
        _produce(client, tp, VALUES)
        assert cluster.end_offsets([tp]) == {tp: 1 + len(VALUES)}
        assert _fetch(client, tp, 1 + len(VALUES)) > sum(map(len, VALUES))
        # The third way of kafka-python: a consumer, which reads control and offset topics.
        assert next(iter(cluster.read_compacted(topic_name))) == (0, b"k", b"v")
    finally:
        cluster.close()


@pytest.mark.parametrize("listener", ["LOGIN", "BOTH"])
def test_sessions_are_prolonged_while_requests_are_in_flight(
    secured: Secured, listener: str, topic_name: str
):
    """The same connections carry data for longer than a session lives."""
    create_topic(secured.kafka, topic_name)
    tp = TopicPartition(topic_name, 0)
    client = secured.client(listener, "SCRAM-SHA-256")
    routes, source = Routes(client, [topic_name]), Routes(client, [topic_name])
    producer, fetcher = Producer(routes, ProduceSettings()), Fetcher(source, FetchSettings())
    fetcher.assign(tp, 0)
    sent = seen = 0
    connections: set[int] = set()
    end = time.monotonic() + 2.5 * SESSION_MS / 1000
    while time.monotonic() < end:
        while producer.bytes_waiting < 20_000:  # several requests are always in flight
            producer.append(tp, memoryview(record_batch([(b"k", b"v" * 1_000)], _now_ms())))
            sent += 1
        producer.pump(0.01)
        fetcher.send()
        for sock in select.select(fetcher.sockets(), [], [], 0.01)[0]:
            for part in fetcher.receive(sock):
                found = _whole_batches(part.records)
                seen += len(found)
                fetcher.advance(tp, part.fetch_offset + len(found))
        connections |= {id(each) for each in (*routes._connections.values(),
                                              *source._connections.values())}  # fmt: skip
    _pump(producer)
    # A cold broker may say once that a coordinator is loading; a lost connection counts as such.
    assert "CONNECTION_LOST" not in producer.errors | fetcher.errors
    assert fetcher.halts == {}
    assert len(connections) == 2, "a connection was replaced instead of prolonged"
    assert seen > 0
    assert sent > 100
    producer.close()
    routes.close()
    source.close()


def test_the_drivers_client_outlives_its_session(secured: Secured, topic_name: str):
    create_topic(secured.kafka, topic_name)
    cluster = Cluster(secured.client("BOTH", "OAUTHBEARER"))
    end = time.monotonic() + 1.5 * SESSION_MS / 1000
    while time.monotonic() < end:
        assert topic_name in cluster.topics([topic_name])
        time.sleep(0.2)
    cluster.close()


# -- stores ----------------------------------------------------------------------------------------


def _store_changes(kind: str, secured: Secured, directory: Path) -> dict[str, str | None]:
    certified = secured.authority.certify("client")
    own = certified.pkcs12(directory / "own.p12")
    if kind == "JKS":
        trust = to_jks(secured.stores["trust"], directory / "trust.jks")
        return {
            "ssl.truststore.location": str(trust),
            "ssl.truststore.type": None,
            "ssl.keystore.location": str(to_jks(own, directory / "own.jks", key_password="other1")),
            "ssl.keystore.type": None,
            "ssl.key.password": "other1",
        }
    passwords: dict[str, str | None] = {
        "ssl.truststore.type": "PEM",
        "ssl.keystore.type": "PEM",
        "ssl.truststore.password": None,
        "ssl.keystore.password": None,
        "ssl.key.password": "pem-secret",
    }
    if kind == "PEM files":
        (directory / "trust.pem").write_text(secured.authority.pem())
        return passwords | {
            "ssl.truststore.location": str(directory / "trust.pem"),
            "ssl.keystore.location": str(certified.pem_file(directory / "own.pem", "pem-secret")),
        }
    return passwords | {
        "ssl.truststore.location": None,
        "ssl.keystore.location": None,
        "ssl.truststore.certificates": secured.authority.pem(),
        "ssl.keystore.certificate.chain": certified.chain_pem(),
        "ssl.keystore.key": certified.key_pem("pem-secret"),
    }


@pytest.mark.parametrize("kind", ["JKS", "PEM files", "PEM text"])
def test_mutual_tls_with_every_kind_of_store(secured: Secured, kind: str, tmp_path: Path):
    client = secured.client("MUTUAL", changes=_store_changes(kind, secured, tmp_path))
    connection = Connection(*_address(client), client)
    connection.close()
    cluster = Cluster(client)
    assert cluster.describe().brokers
    cluster.close()


@pytest.mark.parametrize(
    ("changes", "version", "suite"),
    [
        ({"ssl.enabled.protocols": "TLSv1.2"}, "TLSv1.2", ""),
        ({"ssl.protocol": "TLSv1.2"}, "TLSv1.2", ""),
        ({"ssl.enabled.protocols": "TLSv1.3,TLSv1.1"}, "TLSv1.3", ""),
        (
            {"ssl.cipher.suites": "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"},
            "TLSv1.2",
            "ECDHE-ECDSA-AES128-GCM-SHA256",
        ),
        ({"ssl.cipher.suites": "TLS_AES_256_GCM_SHA384"}, "TLSv1.3", "TLS_AES_256_GCM_SHA384"),
    ],
)
def test_versions_and_suites(secured: Secured, changes: dict[str, str], version: str, suite: str):
    client = secured.client("TLS", changes=changes)
    connection = Connection(*_address(client), client)
    try:
        assert connection.socket.version() == version  # type: ignore[attr-defined]
        assert suite in ("", connection.socket.cipher()[0])  # type: ignore[attr-defined]
    finally:
        connection.close()


def _address(client: ClusterClient) -> tuple[str, int]:
    host, _, port = client.bootstrap_servers[0].partition(":")
    return host, int(port)


# -- errors ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listener", "mechanism", "changes", "kind", "what", "do"),
    [
        ("TLS", "", {"ssl.truststore.password": "wrong"}, ConfigError,
         "its password is wrong", "ssl.truststore.password"),
        ("TLS", "", {"ssl.truststore.location": None, "ssl.truststore.password": None},
         ClusterError, "is not trusted", "truststore"),
        ("MUTUAL", "", {"ssl.keystore.location": None, "ssl.keystore.password": None}, Denied,
         "wants a client certificate", "ssl.keystore.location"),
        ("OPEN", "", {"security.protocol": "SSL"}, NotKafka, "TLS", "security.protocol"),
        ("TLS", "", {"security.protocol": "PLAINTEXT"}, NotKafka, "", "security.protocol"),
        ("LOGIN", "", {"security.protocol": "PLAINTEXT"}, MirrorError, "hangs up", "SASL_PLAIN"),
        ("LOGIN", "PLAIN", {"sasl.mechanism": "AWS_MSK_IAM"}, ConfigError,
         "goes with the login module IAMLoginModule", "sasl.mechanism"),
        ("LOGIN", "PLAIN", {"sasl.jaas.config": jaas("PLAIN").replace(USER_SECRET, "no")}, Denied,
         "refused the login with PLAIN", "password"),
        ("BOTH", "SCRAM-SHA-512",
         {"sasl.jaas.config": jaas("SCRAM-SHA-512").replace(USER, "nobody")}, Denied,
         "refused the login with SCRAM-SHA-512", "password"),
        ("LOGIN", "OAUTHBEARER",
         {"sasl.jaas.config":
          jaas("OAUTHBEARER").replace(";", ' unsecuredLoginLifetimeSeconds="-10";')},
         Denied, "OAUTHBEARER", ""),
        ("LOGIN", "PLAIN", {"sasl.jaas.config": "what required is=this"}, ConfigError,
         "syntax error in its line 1: ';' is missing", "MODULE required"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said(
    secured: Secured,
    listener: str,
    mechanism: str,
    changes: Mapping[str, str | None],
    kind: type[MirrorError],
    what: str,
    do: str,
):
    client = secured.client(listener, mechanism, changes)
    with pytest.raises(kind) as caught:
        reach(client)
    error = caught.value
    assert "cluster east" in error.where
    assert what in error.what
    assert do in error.do
    assert USER_SECRET not in str(error)


def test_a_mechanism_that_the_listener_lacks(secured: Secured):
    """The broker's listener knows four; a client asks for a fifth."""
    text = "com.sun.security.auth.module.Krb5LoginModule required useTicketCache=true;"
    client = ClusterClient(
        "east",
        (secured.servers["LOGIN"],),
        "test",
        security_protocol="SASL_PLAINTEXT",
        properties={"sasl.jaas.config": text, "sasl.kerberos.service.name": "kafka"},
    )
    with pytest.raises(Denied, match=r"does not offer sasl\.mechanism=GSSAPI") as caught:
        reach(client)
    assert "SCRAM-SHA-512" in caught.value.what


def test_the_drivers_client_says_why(secured: Secured):
    """Not only that it could not bootstrap."""
    stranger = Authority("Stranger").pem()
    changes = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": None,
        "ssl.truststore.password": None,
        "ssl.truststore.certificates": stranger,
    }
    client = secured.client("TLS", changes=changes)
    cluster = Cluster(ClusterClient(**{**_fields(client), "request_timeout_ms": 1_500}))
    with pytest.raises(ClusterError, match="is not trusted"):
        cluster.describe()
    cluster.close()


def _fields(client: ClusterClient) -> dict[str, object]:
    return {name: getattr(client, name) for name in ClusterClient.__dataclass_fields__}


# -- OAuth -----------------------------------------------------------------------------------------


class _Endpoint(BaseHTTPRequestHandler):
    asked: list[tuple[str, str]]

    def do_POST(self) -> None:
        form = self.rfile.read(int(self.headers["Content-Length"])).decode()
        self.asked.append((self.headers["Authorization"], form))
        refused = self.headers["Authorization"] != "Basic bWlycm9yOnRva2VuLXNlY3JldA=="
        token = unsecured_token(OAuthLogin(claims={"sub": "mirror"}, lifetime_s=3), time.time())
        body = {"error": "invalid_client"} if refused else {"access_token": token.text}
        self.send_response(401 if refused else 200)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""


@pytest.fixture
def endpoint() -> Iterator[tuple[str, list[tuple[str, str]]]]:
    handler = type("Endpoint", (_Endpoint,), {"asked": []})
    server = HTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/token", handler.asked
    server.shutdown()
    server.server_close()


def _with_endpoint(url: str, secret: str) -> dict[str, str]:
    module = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"
    return {
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.login.callback.handler.class": "org.apache.kafka.common.security.oauthbearer."
        "OAuthBearerLoginCallbackHandler",
        "sasl.oauthbearer.token.endpoint.url": url,
        "sasl.jaas.config": f'{module} required clientId="mirror" clientSecret="{secret}" '
        'scope="kafka";',
    }


def test_tokens_from_an_endpoint_are_refreshed(secured: Secured, endpoint, topic_name: str):
    url, asked = endpoint
    client = secured.client("LOGIN", changes=_with_endpoint(url, "token-secret"))
    for _ in range(3):
        Connection(*_address(client), client).close()
    assert len(asked) == 1, "one token serves all connections"
    assert "grant_type=client_credentials" in asked[0][1]
    assert "scope=kafka" in asked[0][1]
    time.sleep(3)
    Connection(*_address(client), client).close()
    assert len(asked) == 2


def test_a_token_endpoint_that_refuses(secured: Secured, endpoint):
    url, _ = endpoint
    with pytest.raises(Denied, match=r"refused the client credentials \(HTTP 401, invalid_client"):
        reach(secured.client("LOGIN", changes=_with_endpoint(url, "wrong")))
