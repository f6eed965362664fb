"""TLS and SASL against real brokers: the wire layer in every combination, then whole mirrors."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path

import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from kafka.protocol.metadata import MetadataRequest

from sparkmirror.errors import ClusterError, ConfigError, Denied, MirrorError, NotKafka
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FetchSettings, ProduceSettings
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.messages import record_batch
from sparkmirror.wire.cluster.cluster_connections import ClusterConnections
from sparkmirror.wire.fetch import channels
from sparkmirror.wire.fetch.channels import Channel
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.net import connection as net_connection
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.probe.reach import reach
from sparkmirror.wire.produce.producer import Producer
from tests.certificates import Authority, pem, to_jks
from tests.kafka.clusters.secure import SESSION_MS, SIGNED, USER, USER_SECRET, Secured, jaas
from tests.kafka.clusters.token_endpoint import CLIENT_SECRET, TokenEndpoint, token_endpoint
from tests.kafka.harness.support import create_topic
from tests.kafka.harness.ways import GSSAPI, ROLES, WAYS, now_ms, pump, whole_batches, works
from tests.patience import patience

# The first test waits for both brokers. Logins without TLS are those with it, and less: `make test`
# tries one of them.
OF_THIS_FILE = [
    pytest.param(*way, marks=pytest.mark.more) if way[0] == "LOGIN" and way[1] != "PLAIN" else way
    for way in WAYS
    if way[1] != GSSAPI
]


@pytest.fixture(scope="module")
def secured(secured_clusters: tuple[Secured, Secured]) -> Secured:
    return secured_clusters[0]


@pytest.mark.parametrize(("listener", "mechanism", "role"), OF_THIS_FILE)
def test_both_clients_work(
    secured: Secured, listener: str, mechanism: str, role: str, topic_name: str
):
    works(secured.client(listener, mechanism), role, secured.kafka, topic_name)


def _clients(
    secured: Secured, listener: str, topic: str
) -> tuple[ClusterConnections, ClusterConnections]:
    """One that writes, one that reads."""
    client = secured.client(listener, "SCRAM-SHA-256")
    return ClusterConnections(client, [topic]), ClusterConnections(client, [topic])


# Logins without TLS are those with it, and less.
_LISTENERS = pytest.mark.parametrize(
    "listener", [pytest.param("LOGIN", marks=pytest.mark.long), "BOTH"]
)


@pytest.fixture
def _early_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a session is left at a new login, so a pause of the broker ends none."""
    monkeypatch.setattr(net_connection, "_LOGIN_AGAIN", (0.4, 0.5))


@pytest.mark.usefixtures("_early_logins")
@_LISTENERS
def test_sessions_are_prolonged_while_requests_are_in_flight(
    secured: Secured, listener: str, topic_name: str
):
    """The same connections carry data for longer than a session lives."""
    create_topic(secured.kafka, topic_name)
    tp = TopicPartition(topic_name, 0)
    connections, source = _clients(secured, listener, topic_name)
    producer, fetcher = Producer(connections, ProduceSettings()), Fetcher(source, FetchSettings())
    fetcher.assign(tp, 0)
    sent = seen = 0
    used: set[int] = set()
    end = time.monotonic() + 1.3 * SESSION_MS / 1000
    while time.monotonic() < end:
        while producer.backlog.bytes_waiting < 20_000:  # several requests are always in flight
            producer.backlog.append(tp, memoryview(record_batch([(b"k", b"v" * 1_000)], now_ms())))
            sent += 1
        producer.pump(0.01)
        fetcher.send()
        for connection in fetcher.ready(0.01):
            for part in fetcher.receive(connection):
                seen += sum(count for _, count in whole_batches(part.records))
                fetcher.advance(tp, seen)
        used |= {id(each) for each in (*connections._connections.values(),
                                              *source._connections.values())}  # fmt: skip
    pump(producer)
    # A cold broker may say once that a coordinator is loading; a lost connection counts as such.
    assert "CONNECTION_LOST" not in producer.backlog.errors | fetcher.errors
    assert fetcher.halts == {}
    assert len(used) == 2, "a connection was replaced instead of prolonged"
    assert seen > 0
    assert sent > 100
    producer.close()
    connections.close()
    source.close()


@pytest.mark.usefixtures("_early_logins")
@_LISTENERS
def test_each_channel_to_a_far_broker_logs_in_and_prolongs_its_session(
    secured: Secured, listener: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
):
    """Four partitions over three connections, longer than a session lives; in order and once."""
    monkeypatch.setattr(channels, "ROUND_TRIP_S_MIN", 0.0)  # as far as it takes
    create_topic(secured.kafka, topic_name, partitions=4)
    tps = [TopicPartition(topic_name, number) for number in range(4)]
    connections, source = _clients(secured, listener, topic_name)
    producer = Producer(connections, ProduceSettings())
    small = FetchSettings(fetch_max_bytes=12_000, partition_fetch_bytes_max=3_000)
    fetcher = Fetcher(source, small, channels_max=channels.CHANNELS_MAX)
    sent, seen = dict.fromkeys(tps, 0), dict.fromkeys(tps, 0)
    for tp in tps:
        fetcher.assign(tp, 0)
    used: dict[Channel, set[int]] = {}
    end = time.monotonic() + 1.3 * SESSION_MS / 1000
    while time.monotonic() < end or seen != sent:
        assert time.monotonic() < end + patience(), (sent, seen, fetcher.errors)
        while time.monotonic() < end and producer.backlog.bytes_waiting < 40_000:
            for tp in tps:  # more than the small answers carry
                producer.backlog.append(
                    tp, memoryview(record_batch([(b"k", b"v" * 1_000)], now_ms()))
                )
                sent[tp] += 1
        producer.pump(0.01)
        fetcher.send()
        for connection in fetcher.ready(0.01):
            for part in fetcher.receive(connection):
                assert part.fetch_offset == seen[part.tp]
                seen[part.tp] += sum(count for _, count in whole_batches(part.records))
                fetcher.advance(part.tp, seen[part.tp])
        for channel, connection in source._connections.items():
            used.setdefault(channel, set()).add(id(connection))
    pump(producer)
    assert "CONNECTION_LOST" not in producer.backlog.errors | fetcher.errors
    assert fetcher.halts == {}
    assert [channel[1] for channel in sorted(used)] == [0, 1, 2]
    assert all(len(one) == 1 for one in used.values()), "replaced instead of prolonged"
    producer.close()
    connections.close()
    source.close()


@pytest.mark.usefixtures("_early_logins")
@_LISTENERS
def test_each_request_that_waits_for_the_same_partition_logs_in_and_prolongs_its_session(
    secured: Secured, listener: str, topic_name: str, monkeypatch: pytest.MonkeyPatch
):
    """Records one by one, as from a far broker, for longer than a session lives."""
    monkeypatch.setattr(channels.Channels, "round_trip_s", lambda *_: 0.05)
    create_topic(secured.kafka, topic_name)
    tp = TopicPartition(topic_name, 0)
    connections, source = _clients(secured, listener, topic_name)
    producer = Producer(connections, ProduceSettings())
    fetcher = Fetcher(source, FetchSettings(), reread_bytes=500_000)
    fetcher.assign(tp, 0)
    sent = seen = 0
    used: dict[Channel, set[int]] = {}
    began = time.monotonic()
    end = began + 1.3 * SESSION_MS / 1000
    while time.monotonic() < end or seen < sent:
        assert time.monotonic() < end + patience(), (sent, seen, fetcher.errors)
        if sent < (min(time.monotonic(), end) - began) * 100:
            producer.backlog.append(tp, memoryview(record_batch([(b"k", b"v" * 500)], now_ms())))
            sent += 1
        producer.pump(0.001)
        fetcher.send()
        for connection in fetcher.ready(0.001):
            for part in fetcher.receive(connection):
                assert part.fetch_offset == seen
                seen += sum(count for _, count in whole_batches(part.records))
                fetcher.advance(tp, seen)
        for channel, connection in source._connections.items():
            used.setdefault(channel, set()).add(id(connection))
    pump(producer)
    assert fetcher.errors == {}
    assert len(used) > 2, "several requests wait"
    assert all(len(one) == 1 for one in used.values()), "replaced instead of prolonged"
    producer.close()
    connections.close()
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
         "requires a client certificate", "ssl.keystore.location"),
        ("OPEN", "", {"security.protocol": "SSL"}, NotKafka, "TLS", "security.protocol"),
        ("TLS", "", {"security.protocol": "PLAINTEXT"}, NotKafka, "", "security.protocol"),
        ("LOGIN", "", {"security.protocol": "PLAINTEXT"}, MirrorError, "closes connections",
         "SASL_PLAIN"),
        ("LOGIN", "PLAIN", {"sasl.mechanism": "AWS_MSK_IAM"}, ConfigError,
         "needs the login module IAMLoginModule", "sasl.mechanism"),
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
    cluster = Cluster(ClusterClient(**{**_fields(client), "request_timeout_ms": 10_000}))
    with pytest.raises(ClusterError, match="is not trusted"):
        cluster.describe()
    cluster.close()


def _fields(client: ClusterClient) -> dict[str, object]:
    return {name: getattr(client, name) for name in ClusterClient.__dataclass_fields__}


# -- OAuth -----------------------------------------------------------------------------------------


@pytest.fixture
def endpoint() -> Iterator[TokenEndpoint]:
    with token_endpoint() as running:
        yield running


def test_tokens_from_an_endpoint_are_refreshed(secured: Secured, endpoint: TokenEndpoint):
    endpoint.lifetime_s = 6
    # It is used until two seconds of this are left, so a pause of the broker fails no login.
    early = {"sasl.login.refresh.window.factor": "0.6"}
    client = secured.client("LOGIN", changes=endpoint.properties() | early)
    began = time.monotonic()
    Connection(*_address(client), client).close()
    # Until most of a token's life is over it serves all connections.
    deadline = time.monotonic() + patience()
    while len(endpoint.asked) == 1:
        assert time.monotonic() < deadline, "no second token"
        Connection(*_address(client), client).close()
        time.sleep(0.1)
    assert time.monotonic() - began > 0.5 * endpoint.lifetime_s
    assert len(endpoint.asked) == 2
    for form in endpoint.asked:
        assert "grant_type=client_credentials" in form
        assert "scope=kafka" in form


def test_a_token_endpoint_that_refuses(secured: Secured, endpoint: TokenEndpoint):
    with pytest.raises(Denied, match=r"refused the client credentials \(HTTP 401, invalid_client"):
        reach(secured.client("LOGIN", changes=endpoint.properties("wrong")))


@pytest.mark.parametrize("role", ROLES)
def test_a_signed_token_for_a_signed_assertion(
    secured: Secured, role: str, topic_name: str, tmp_path: Path
):
    """The broker checks the token's signature with the identity provider's published key."""
    identity = secured.identity
    given = len(identity.claims)
    changes = identity.properties(tmp_path / "client.pem")
    works(secured.client(SIGNED, changes=changes), role, secured.kafka, topic_name)
    assert len(identity.claims) > given
    assert identity.claims[-1]["iss"] == "mirror"


def test_assertions_and_tokens_that_strangers_sign(
    secured: Secured, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    identity, key_file = secured.identity, tmp_path / "client.pem"
    stranger = rsa.generate_private_key(65_537, 2_048)
    with pytest.raises(Denied, match=r"refused the assertion \(HTTP 400, invalid_grant\)"):
        reach(secured.client(SIGNED, changes=identity.properties(key_file, stranger)))
    monkeypatch.setattr(identity, "key", stranger)
    with pytest.raises(Denied, match="OAUTHBEARER") as caught:
        reach(secured.client(SIGNED, changes=identity.properties(key_file)))
    assert "login" in str(caught.value)


@pytest.mark.parametrize("trusts", ["by the JAAS entry", "by the system"])
def test_a_token_endpoint_over_tls(
    secured: Secured, trusts: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Its authority is none that the brokers' certificates come from."""
    authority = Authority("Endpoint's authority")
    (tmp_path / "authority.pem").write_text(authority.pem())
    options = [
        f'ssl.truststore.location="{tmp_path}/authority.pem"',
        'ssl.truststore.type="PEM"',
    ]
    if trusts == "by the system":
        options = []
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "authority.pem"))
    with token_endpoint(authority.certify("endpoint", "localhost"), tmp_path) as endpoint:
        endpoint.lifetime_s = 60  # so that none is fetched anew meanwhile
        changes = endpoint.properties(CLIENT_SECRET, *options)
        client = secured.client("BOTH", changes=changes)
        assert reach(client).versions
        cluster = Cluster(client)
        assert cluster.describe().brokers
        cluster.close()
        assert len(endpoint.asked) == 1


def test_a_token_endpoint_that_is_not_trusted(secured: Secured, tmp_path: Path):
    own = Authority("Stranger").certify("endpoint", "localhost")
    with token_endpoint(own, tmp_path) as endpoint:
        with pytest.raises(ClusterError, match="the token endpoint's certificate") as caught:
            reach(secured.client("LOGIN", changes=endpoint.properties()))
        assert endpoint.asked == []
    assert "ssl.truststore.location" in caught.value.do


# -- certificates that change ----------------------------------------------------------------------


def test_certificates_are_replaced_while_connections_are_open(secured: Secured, tmp_path: Path):
    """The client's expires, is a stranger's for a while, and is renewed."""
    changes = _store_changes("PEM files", secured, tmp_path)
    own = str(changes["ssl.keystore.location"])
    client = secured.client("MUTUAL", changes=changes)
    first = Connection(*_address(client), client)
    hour = timedelta(hours=1)
    expired = secured.authority.certify("client", begins=-2 * hour, ends=-hour)
    _replace(own, lambda path: expired.pem_file(path, "pem-secret"))
    # A keystore that is of no use, like one that is half written, leaves the one before in use.
    Connection(*_address(client), client).close()
    stranger = Authority("Stranger").certify("client")
    _replace(own, lambda path: stranger.pem_file(path, "pem-secret"))
    with pytest.raises(Denied, match="does not accept the client certificate"):
        Connection(*_address(client), client)
    renewed = secured.authority.certify("client")
    _replace(own, lambda path: renewed.pem_file(path, "pem-secret"))
    Connection(*_address(client), client).close()
    assert first.request(MetadataRequest(topics=[]), highest=9).brokers
    first.close()


@pytest.mark.parametrize("listener", ["TLS", "BOTH"])
def test_a_broker_whose_certificate_is_revoked(
    secured_clusters: tuple[Secured, Secured], listener: str, tmp_path: Path
):
    """By both clients, as the list says at the next connection; the other broker's is not."""
    p, q = secured_clusters
    lists = tmp_path / "lists.pem"
    changes = {"ssl.crl.location": str(lists)}
    one, other = (
        each.client(listener, "PLAIN" if listener == "BOTH" else "", changes) for each in (p, q)
    )

    def refused(client: ClusterClient, what: str) -> None:
        told = pytest.raises(ClusterError, match=what)
        with told as caught:
            Connection(*_address(client), client)
        assert "cluster east" in caught.value.where
        cluster = Cluster(ClusterClient(**{**_fields(client), "request_timeout_ms": 6_000}))
        with told:
            cluster.describe()
        cluster.close()

    def taken(client: ClusterClient) -> None:
        Connection(*_address(client), client).close()
        cluster = Cluster(client)
        assert cluster.describe().brokers
        cluster.close()

    hour = timedelta(hours=1)
    revoked = p.shown(listener)
    _replace(str(lists), lambda path: path.write_text(pem(p.authority.revoked())))
    taken(one)
    _replace(str(lists), lambda path: path.write_text(pem(p.authority.revoked(revoked))))
    refused(one, "has been revoked")
    taken(other)
    expired = p.authority.revoked(begins=-2 * hour, ends=-hour)
    _replace(str(lists), lambda path: path.write_text(pem(expired)))
    refused(other, "revocation list for the broker's certificate has expired")
    strangers = Authority("Stranger").revoked()
    _replace(str(lists), lambda path: path.write_text(pem(strangers)))
    refused(other, "no revocation list of the authority that signed the broker's certificate")


def _replace(path: str, write: Callable[[Path], object]) -> None:
    """As renewal tools do it: a new file takes the name of the old one."""
    beside = Path(f"{path}.new")
    write(beside)
    beside.replace(path)
