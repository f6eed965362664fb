"""Everything wrong in a MirrorMaker 2 file is told with its file, line, key and what to do."""

from pathlib import Path

import pytest

from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.errors import ConfigError
from tests.unit.config_files import BASE, LINE, load, refused


@pytest.mark.parametrize(
    ("line", "what", "do"),
    [
        # flows and clusters
        ("A->X.enabled=true", "A->X.enabled names the cluster 'X'", "clusters"),
        ("X->A.topics=t", "X->A.topics names the cluster 'X'", "clusters"),
        ("b->A.enabled=true", "names the cluster 'b', which is not in clusters=A,B", "Add"),
        ("A->A.enabled=true", "A->A.enabled: a flow cannot lead from a cluster to itself", "two"),
        ("->A.enabled=true", "->A.enabled is not a flow", "alias"),
        # values
        ("topics=a(", "'a(' is an invalid regex: a '(' is not closed", "Java regular"),
        ("A->B.topics.exclude=[", "'[' is an invalid regex", "Java regular"),
        ("groups=*", "'*' is an invalid regex", "Java regular"),
        ("topics=a,,b", "topics has an empty element", "Remove the comma"),
        ("topics=a,b,", "topics has an empty element", "Remove the comma"),
        ("refresh.topics.enabled=yes", "refresh.topics.enabled=yes is neither true nor", "Write"),
        ("A->B.enabled=on", "A->B.enabled=on is neither true nor false", "Write true or false"),
        ("tasks.max=four", "tasks.max=four is not a whole number", "digits"),
        ("tasks.max=4 # slots", "tasks.max=4 # slots is not a whole", "on a line of its own"),
        ("tasks.max=0", "tasks.max=0 is out of range", "at least 1"),
        ("tasks.max=99999999999", "does not fit in 32 bits", "nearer to zero"),
        (f"tasks.max={'9' * 5_000}", "does not fit in 32 bits", "nearer to zero"),
        ("tasks.max=1_0", "tasks.max=1_0 is not a whole number", "digits"),
        (f"A.consumer.metadata.max.age.ms=-{'9' * 5_000}", "does not fit in 64 bits", "nearer"),
        (f"B.producer.acks={'9' * 5_000}", "is not one of", "all"),
        ("sparkmirror.epoch.seconds=0", "is out of range", "from 1 to 86400"),
        ("sparkmirror.on.source.loss=skip", "is not one of", "fail, record-and-continue"),
        ("sparkmirror.on.source.loss.fail.topics=(", "is an invalid regex", ""),
        ("sasl.login.refresh.window.factor=2", "is out of range", "from 0.5 to 1"),
        ("sasl.login.refresh.window.factor=x", "is not a number", "0.8"),
        ("sasl.login.refresh.window.factor=0.8_1", "is not a number", "0.8"),
        ("sasl.login.refresh.window.factor=nan", "is not a number", "0.8"),
        ("sasl.login.retry.backoff.ms=-1", "is out of range", "at least 0"),
        ("sasl.login.retry.backoff.max.ms=-1", "is out of range", "at least 0"),
        ("A.sasl.login.connect.timeout.ms=-1", "is out of range", "at least 0"),
        ("A.sasl.login.read.timeout.ms=-1", "is out of range", "at least 0"),
        ("offset-syncs.topic.location=here", "is not one of the values", "source, target"),
        ("sparkmirror.link.compression=none", "is not one of", "gzip, snappy, lz4, zstd"),
        ("sparkmirror.link.reread.bytes=-1", "is out of range", "at least 0"),
        ("metric.names.formats=old", "is not one of the values", "legacy, new"),
        ("A.consumer.isolation.level=none", "is not one of", "read_committed, read_uncommitted"),
        ("A.consumer.auto.offset.reset=first", "is not one of", "earliest, latest, none"),
        ("A.consumer.auto.offset.reset=by_duration:1D", "is not one of", "by_duration:PT12H"),
        (f"A.consumer.auto.offset.reset=by_duration:P{'9' * 400}D", "is not one", "by_duration"),
        ("A.consumer.auto.offset.reset=by_duration:P106751991168D", "is not one", "by_duration"),
        ("A.consumer.auto.offset.reset=by_duration:PT", "is not one of", "by_duration:PT12H"),
        ("A.consumer.auto.offset.reset=by_duration:-PT1H", "is not one of", "by_duration:PT12H"),
        ("replication.policy.separator=/", "not allowed in topic names", "letters"),
        # servers
        ("B.bootstrap.servers=b", "B.bootstrap.servers contains 'b', which is not", "host"),
        ("B.bootstrap.servers=b:x", "contains 'b:x', which is not host:port", "host"),
        ("B.bootstrap.servers=b:1 c:1", "contains 'b:1 c:1', which is not host:port", "host"),
        ("B.bootstrap.servers=b:70000", "contains 'b:70000'", "host"),
        ("B.bootstrap.servers=::1:9092", "contains '::1:9092'", "host"),
        ("B.bootstrap.servers=", "B.bootstrap.servers= is empty", "at least one"),
        # unavailable or impossible
        ("security.protocol=abc", "security.protocol=abc is not one of", "PLAINTEXT, SSL"),
        (
            "B.security.protocol=SASL_SSL",
            "Cluster 'B': security.protocol=SASL_SSL needs a login",
            "KafkaClient",
        ),
        (
            "A.consumer.security.protocol=plaintextsasl",
            "needs a login (sasl.mechanism=GSSAPI)",
            "java.security.auth.login.config",
        ),
        (
            "B.ssl.truststore.type=BCFKS\nB.security.protocol=ssl",
            "Cluster 'B': ssl.truststore.type=BCFKS is not supported",
            "JKS, PKCS12, PEM",
        ),
        ("B.exactly.once.source.support=on", "is not one of", "disabled, preparing, enabled"),
        (
            "A->B.exactly.once.support=required",
            "exactly-once is not enabled",
            "B.exactly.once.source.support=enabled",
        ),
        ("B.producer.transactional.id=x", "the mirror sets it itself", "Remove"),
        ("B.producer.acks=0", "B.producer.acks=0 cannot be used", "all"),
        # custom classes
        ("topic.filter.class=com.acme.F", "topic.filter.class=com.acme.F cannot", "DefaultTopic"),
        ("A->B.group.filter.class=F", "custom Java classes", "DefaultGroupFilter"),
        ("forwarding.admin.class=F", "custom Java classes", "ForwardingAdmin"),
        ("config.property.filter.class=F", "custom Java classes", "DefaultConfigPropertyFilter"),
        ("replication.policy.class=com.acme.P", "custom Java pol", "IdentityReplicationPolicy"),
        (
            "replication.policy.class=com.acme.DefaultReplicationPolicy",
            "custom Java policies",
            "IdentityReplicationPolicy",
        ),
        ("key.converter=org.apache.kafka.connect.json.JsonConverter", "raw batches", "ByteArray"),
        ("transforms=route", "A->B.transforms.route.type is missing: transforms", "Set A->B.tra"),
        ("A.consumer.interceptor.classes=x", "interceptor.classes cannot be used", "Remove"),
        ("A->B.source.cluster.alias=Z", "it is set by the mirror itself", "Remove"),
        # keys of older releases
        ("emit.heartbeats=true", "is not a key of", "Write emit.heartbeats.enabled"),
        ("A->B.enable=true", "is not a key of", "Write A->B.enabled"),
    ],
)
def test_one_wrong_line(tmp_path: Path, line: str, what: str, do: str) -> None:
    error = refused(tmp_path, BASE + line + "\n")
    assert error.where.startswith(f"{tmp_path}/mm2.properties:{LINE}")
    assert what in error.what
    assert do in error.do
    key = line.partition("=")[0]
    assert key in str(error) or key.rpartition(".")[2] in str(error)


@pytest.mark.parametrize(
    "url",
    [
        "http://[::1/token", "https://[::1/token", "https://idp:port/token", "https://idp:0/token",
        "https:///token", "https://idp/a token", "https://idp/t\u00f6ken", "HTTPS//idp", "file://[x",
        "https://me:hunter2@idp/token",
    ],
)  # fmt: skip
def test_a_token_endpoint_that_is_no_url(tmp_path: Path, url: str) -> None:
    oauth = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLogin"
    error = refused(
        tmp_path,
        f"{BASE}A.sasl.oauthbearer.token.endpoint.url={url}\n"
        "A.security.protocol=SASL_SSL\nA.sasl.mechanism=OAUTHBEARER\n"
        f"A.sasl.login.callback.handler.class={oauth}CallbackHandler\n"
        f'A.sasl.jaas.config={oauth}Module required clientId="a" clientSecret="b";\n',
    )
    assert error.where == f"{tmp_path}/mm2.properties:{LINE}"
    what = "sasl.oauthbearer.token.endpoint.url is not an http(s): or file: URL."
    assert error.what == f"Cluster 'A': {what}"
    assert "https://HOST:PORT/PATH" in error.do
    assert "hunter2" not in str(error)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("topcs=x", "topcs is unknown (did you mean topics?)"),
        ("replication.factr=1", "(did you mean replication.factor?)"),
        ("A.bootstrap.server=x:1", "(did you mean A.bootstrap.servers?)"),
        ("B.producer.linger.mss=1", "(did you mean B.producer.linger.ms?)"),
        ("A->B.enabledd=true", "(did you mean A->B.enabled?)"),
        ("A->B.source.consumer.fetch.min.byte=1", "A->B.source.consumer.fetch.min.bytes?)"),
        ("A->B.sparkmirror.join.byte=1", "(did you mean A->B.sparkmirror.join.bytes?)"),
        ("sparkmirror.epoch.second=1", "(did you mean sparkmirror.epoch.seconds?)"),
        ("C.bootstrap.servers=c:1", "('C' is not in clusters=A,B)"),
        ("C.producer.acks=all", "('C' is not in clusters=A,B)"),
        ("A -> B.enabled = true", "(a flow is written without blanks, as in A->B.enabled=true)"),
        ("zookeeper.connect=z:1", "now bootstrap.servers)"),
        ("serializer.class=x", "it has no replacement)"),
        ("A->B.=x", "A->B. is unknown"),
        ("qqqqqqqq=1", "qqqqqqqq is unknown. "),
    ],
)
def test_an_unknown_key_with_the_nearest_known_one(tmp_path: Path, line: str, told: str) -> None:
    error = refused(tmp_path, BASE + line + "\n")
    assert error.where == f"{tmp_path}/mm2.properties:{LINE}"
    assert told in str(error)


def test_all_unknown_keys_are_told_at_once_with_their_lines(tmp_path: Path) -> None:
    error = refused(tmp_path, BASE + "topcs=x\n# fine\nA.tasks.maxx=3\nfoo.bar=1\n")
    assert error.what.startswith("3 keys are unknown: ")
    for told in (
        f"line {LINE}: topcs is unknown (did you mean topics?)",
        f"line {LINE + 2}: A.tasks.maxx",
        f"line {LINE + 3}: foo.bar",
    ):
        assert told in error.what


def test_all_wrong_values_are_told_at_once(tmp_path: Path) -> None:
    error = refused(tmp_path, BASE + "tasks.max=x\ntopics=a,,b\n")
    assert error.what.startswith("2 settings are wrong. ")
    assert f"(1) {tmp_path}/mm2.properties:{LINE}: tasks.max=x" in error.what
    assert f"(2) {tmp_path}/mm2.properties:{LINE + 1}: topics has an empty" in error.what


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "clusters is missing"),
        ("bootstrap.servers=a:1\ngroup.id=g\n", "clusters is missing"),
        ("clusters=\n", "clusters is empty"),
        ("clusters=A B\n", "clusters contains 'A B', which is not an alias"),
        ("clusters=A->B\n", "clusters contains 'A->B', which is not an alias"),
        ("clusters=A,,B\n", "clusters has an empty element"),
    ],
)
def test_clusters(tmp_path: Path, text: str, what: str) -> None:
    assert what in refused(tmp_path, text).what


@pytest.mark.parametrize("alias", ["A", "B"])
def test_missing_servers_are_told_once(tmp_path: Path, alias: str) -> None:
    error = refused(tmp_path, BASE.replace(f"{alias}.bootstrap.servers", "# x"))
    assert error.what == (
        f"{alias}.bootstrap.servers is missing: cluster '{alias}' has no address."
    )
    assert error.do.startswith(f"Add {alias}.bootstrap.servers=host:port")


@pytest.mark.parametrize(
    ("text", "clusters", "do"),
    [
        (BASE.replace("true", "false"), (), "Enable one, for example A->B.enabled=true"),
        (BASE, ("A",), "--clusters A keeps only flows to these targets; the file enables A->B"),
        ("clusters=A\nA.bootstrap.servers=a:1\n", (), "Name at least two clusters"),
    ],
)
def test_no_flow_left(tmp_path: Path, text: str, clusters: tuple[str, ...], do: str) -> None:
    error = refused(tmp_path, text, clusters)
    assert error.what == "No source->target replication flows."
    assert do in error.do


@pytest.mark.parametrize(
    ("lines", "contradicts"),
    [
        ("B.producer.acks=1\n", "B.producer.acks=1 contradicts"),
        (
            "B.producer.max.in.flight.requests.per.connection=6\n",
            "B.producer.max.in.flight.requests.per.connection=6 contradicts",
        ),
    ],
)
def test_idempotence_asked_for_and_contradicted(
    tmp_path: Path, lines: str, contradicts: str
) -> None:
    error = refused(tmp_path, BASE + lines + "B.producer.enable.idempotence=true\n")
    assert contradicts in error.what
    assert error.where.endswith(f":{LINE}")


def test_a_cluster_in_no_enabled_flow_may_be_secured(tmp_path: Path) -> None:
    text = BASE.replace("clusters=A,B", "clusters=A,B,C") + (
        "C.bootstrap.servers=c:1\nC.security.protocol=SSL\n"
    )
    assert len(load(tmp_path, text).flows) == 1


@pytest.mark.parametrize(
    "line",
    [
        "ssl.key.password=hunter2\ntasks.max=x",
        "sasl.jaas.config=hunter2\nsasl.jaas.confg=hunter2",
        "A.sasl.oauthbearer.client.credentials.client.secret=hunter2\nA->X.enabled=true",
        "B.ssl.keystore.password=hunter2\nB.security.protocol=SSL",
    ],
)
def test_secrets_never_show_in_errors(tmp_path: Path, line: str) -> None:
    error = refused(tmp_path, BASE + line + "\n")
    assert "hunter2" not in str(error)
    assert "hunter2" not in repr(error)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        load_mm2(tmp_path / "none")


def test_a_line_that_is_no_property(tmp_path: Path) -> None:
    error = refused(tmp_path, BASE + "nonsense\n")
    assert error.where == f"{tmp_path}/mm2.properties:{LINE}"


@pytest.mark.parametrize("more", ["", "abc\n"], ids=["as it is", "a short last line"])
def test_lines_of_a_key_that_lost_their_backslash_are_not_shown(tmp_path: Path, more: str) -> None:
    body = "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgevZzL1gdAFr88hb2"
    key = f"-----BEGIN PRIVATE KEY-----\n{body}\n{body[:18]}==\n{more}-----END PRIVATE KEY-----\n"
    error = refused(tmp_path, f"{BASE}A.ssl.keystore.key={key}\nnonsense=1\n")
    for line in (body[:18], "abc", "END"):
        assert line not in str(error)
    assert f"a text of {len(body)} characters is unknown" in error.what
    assert "nonsense is unknown" in error.what
    assert "with a backslash" in error.do


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("A->B.source.cluster.sasl.login.retry.backoff.ms=1s", "=1s is not a whole number"),
        ("A->B.target.cluster.sasl.oauthbearer.assertion.claim.exp.seconds=5m", "=5m is not a"),
        ("A->B.target.cluster.bootstrap.servers=b", "contains 'b', which is not host:port"),
        ("A->B.producer.linger.ms=1s", "=1s is not a whole number"),
    ],
)
def test_a_key_that_counts_in_part_is_checked(tmp_path: Path, line: str, told: str) -> None:
    error = refused(tmp_path, f"{BASE}{line}\n")
    assert error.where == f"{tmp_path}/mm2.properties:{LINE}"
    assert line.partition("=")[0] in error.what
    assert told in error.what


@pytest.mark.parametrize(
    ("line", "do"),
    [
        ("sparkmirror.transaction.bytes=0", "Write a number from 1 to 33554432."),
        ("A.sasl.login.refresh.window.factor=2", "Write a number from 0.5 to 1."),
    ],
)
def test_bounds_are_written_in_full(tmp_path: Path, line: str, do: str) -> None:
    assert refused(tmp_path, f"{BASE}{line}\n").do == do
