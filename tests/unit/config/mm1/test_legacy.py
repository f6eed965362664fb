"""Consumer and producer files of Kafka 0.7 to 0.11: what each key means today."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.config.files.properties import parse_properties
from sparkmirror.config.mm1.legacy import TranslatedFile, translate
from sparkmirror.config.mm1.load import load_mm1
from sparkmirror.config.table.legacy_keys import CONSUMER_KEYS, PRODUCER_KEYS, VALUES, Fate, OldKey
from sparkmirror.config.table.settings import Scope, Status, find
from sparkmirror.errors import ConfigError, Unreachable
from sparkmirror.settings import MirrorSettings
from tests import vectors
from tests.rows import named
from tests.unit.config_files import write

# The consumer.properties and producer.properties that came with each version, with MirrorMaker's
# own recommendations, as a user may still have them.
CONSUMER_07 = """\
zk.connect=zk1:2181,zk2:2181/kafka
zk.connectiontimeout.ms=1000000
zk.sessiontimeout.ms=6000
zk.synctime.ms=2000
groupid=mirror
shallowiterator.enable=true
fetch.size=1048576
socket.buffersize=2097152
queuedchunks.max=100
autocommit.enable=true
autocommit.interval.ms=10000
backoff.increment.ms=1000
rebalance.retries.max=4
consumer.timeout.ms=-1
mirror.topics.whitelist=white1,white2
mirror.consumer.numthreads=3
"""
PRODUCER_07 = """\
zk.connect=zk3:2181
producer.type=async
queue.time=5000
queue.size=10000
queue.enqueueTimeout.ms=-1
batch.size=200
compression.codec=0
compressed.topics=a
max.message.size=1000000
serializer.class=kafka.serializer.DefaultEncoder
buffer.size=102400
connect.timeout.ms=5000
reconnect.interval=30000
"""
CONSUMER_08 = """\
zookeeper.connect=zk1:2181
zookeeper.connection.timeout.ms=1000000
zookeeper.session.timeout.ms=6000
zookeeper.sync.time.ms=2000
group.id=mirror
auto.offset.reset=smallest
auto.commit.enable=true
auto.commit.interval.ms=60000
fetch.message.max.bytes=2097152
fetch.min.bytes=1
fetch.wait.max.ms=100
socket.receive.buffer.bytes=65536
socket.timeout.ms=30000
num.consumer.fetchers=4
queued.max.message.chunks=2
rebalance.max.retries=4
rebalance.backoff.ms=2000
refresh.leader.backoff.ms=200
offsets.storage=kafka
dual.commit.enabled=true
partition.assignment.strategy=range
consumer.id=one
consumer.timeout.ms=-1
"""
PRODUCER_08 = """\
metadata.broker.list=b1:9092,b2:9092
request.required.acks=-1
request.timeout.ms=10000
producer.type=async
compression.codec=gzip
message.send.max.retries=3
retry.backoff.ms=100
topic.metadata.refresh.interval.ms=600000
queue.buffering.max.ms=5000
queue.buffering.max.messages=10000
queue.enqueue.timeout.ms=-1
batch.num.messages=200
send.buffer.bytes=102400
key.serializer.class=kafka.serializer.DefaultEncoder
partitioner.class=kafka.producer.DefaultPartitioner
client.id=mm
"""
PRODUCER_09 = """\
bootstrap.servers=b:9092
acks=all
block.on.buffer.full=true
metadata.fetch.timeout.ms=60000
timeout.ms=30000
retries=2147483647
max.in.flight.requests.per.connection=1
compression.type=gzip
buffer.memory=33554432
linger.ms=10
key.serializer=org.apache.kafka.common.serialization.ByteArraySerializer
"""
CONSUMER_011 = """\
bootstrap.servers=a:9092
group.id=mirror
enable.auto.commit=false
auto.offset.reset=earliest
max.poll.records=500
session.timeout.ms=10000
heartbeat.interval.ms=3000
partition.assignment.strategy=org.apache.kafka.clients.consumer.RoundRobinAssignor
"""
ASKED: list[tuple[str, str]] = []


def fake_brokers(connect: str, protocol: str) -> tuple[str, ...]:
    ASKED.append((connect, protocol))
    return (f"broker-of-{connect.partition(':')[0]}:9092",)


def load(directory: Path, consumer: str, producer: str, **options: object) -> MirrorSettings:
    return load_mm1(
        write(directory, consumer, "consumer.properties"),
        write(directory, producer, "producer.properties"),
        find_brokers=fake_brokers,
        **({"include": "t"} | options),  # type: ignore[arg-type]
    )


def old(text: str, scope: Scope = Scope.CONSUMER) -> TranslatedFile:
    return translate(parse_properties(text.encode(), Path("f")), scope, fake_brokers)


def test_files_of_0_7(tmp_path: Path) -> None:
    settings = load(tmp_path, CONSUMER_07, PRODUCER_07, include=None)
    (flow,) = settings.flows
    assert flow.source.bootstrap_servers == ("broker-of-zk1:9092",)
    assert flow.target.bootstrap_servers == ("broker-of-zk3:9092",)
    assert flow.group_id == "mirror"
    assert flow.zookeeper == "zk1:2181,zk2:2181/kafka"
    assert flow.topics.include == ("white1|white2",)
    assert flow.tasks_max == 3
    assert flow.fetch.auto_offset_reset == "earliest"  # 0.7's own default
    assert flow.fetch.partition_fetch_bytes_max == 1_048_576
    assert flow.fetch.receive_buffer_bytes == 2_097_152
    assert flow.produce.send_buffer_bytes == 102_400
    assert flow.target.connect_timeout_ms == 5_000
    told = "\n".join(settings.warnings)
    for line in (CONSUMER_07 + PRODUCER_07).splitlines():
        assert line.partition("=")[0] in told, f"nothing is said of {line}"


def test_options_count_more_than_a_file_of_0_7(tmp_path: Path) -> None:
    (flow,) = load(tmp_path, CONSUMER_07, PRODUCER_07, include="mine", num_streams=5).flows
    assert flow.topics.include == ("mine",)
    assert flow.tasks_max == 5


def test_files_of_0_8(tmp_path: Path) -> None:
    settings = load(tmp_path, CONSUMER_08, PRODUCER_08)
    (flow,) = settings.flows
    assert flow.source.bootstrap_servers == ("broker-of-zk1:9092",)
    assert flow.target.bootstrap_servers == ("b1:9092", "b2:9092")
    assert flow.zookeeper == "zk1:2181"
    fetch = flow.fetch
    assert (fetch.auto_offset_reset, fetch.fetch_max_wait_ms) == ("earliest", 100)
    assert (fetch.partition_fetch_bytes_max, fetch.receive_buffer_bytes) == (2_097_152, 65_536)
    assert (flow.source.request_timeout_ms, flow.source.retry_backoff_ms) == (30_000, 200)
    assert (flow.produce.acks, flow.produce.enable_idempotence) == (-1, True)
    assert flow.target.client_id == "mm"
    told = "\n".join(settings.warnings)
    assert flow.group.strategies == ("range",)
    still = ("group.id", "fetch.min.bytes", "request.timeout.ms", "retry.backoff.ms",
             "send.buffer.bytes", "client.id", "partition.assignment.strategy",
             "partitioner.class")  # fmt: skip
    for line in (CONSUMER_08 + PRODUCER_08).splitlines():
        key = line.partition("=")[0]
        assert key in still or key in told, f"nothing is said of {line}"


def test_files_of_0_9_to_0_11(tmp_path: Path) -> None:
    settings = load(tmp_path, CONSUMER_011, PRODUCER_09)
    (flow,) = settings.flows
    assert flow.zookeeper == ""
    assert flow.target.request_timeout_ms == 30_000
    assert flow.produce.in_flight_requests_max == 1
    told = "\n".join(settings.warnings)
    assert "block.on.buffer.full has no effect: the mirror always waits for space" in told
    assert "producer.properties:5: timeout.ms is now request.timeout.ms=30000" in told


@pytest.mark.parametrize(
    ("given", "now", "idempotent"),
    [("-1", -1, True), ("0", -1, True), ("2", -1, True), ("1", 1, False)],
)
def test_acknowledgements(tmp_path: Path, given: str, now: int, idempotent: bool) -> None:
    producer = f"broker.list=0:b1:9092,1:b2:9092\nrequest.required.acks={given}\n"
    (flow,) = load(tmp_path, CONSUMER_011, producer).flows
    assert flow.target.bootstrap_servers == ("b1:9092", "b2:9092")  # 0.7 wrote broker ids too
    assert (flow.produce.acks, flow.produce.enable_idempotence) == (now, idempotent)


@pytest.mark.parametrize(
    ("given", "now"),
    [("gzip", "gzip"), ("Snappy", "snappy"), ("2", "snappy"), ("3", "lz4"), ("none", "none"),
     ("0", "none")],
)  # fmt: skip
def test_compression(given: str, now: str) -> None:
    done = old(f"compression.codec={given}\ncompression.topics=a,b\n", Scope.PRODUCER)
    assert not done.errors
    assert done.file["compression.type"].value == now
    codec, topics = done.remarks
    assert f"is now compression.type={now} (without the key," in codec
    assert "compression.topics has no effect: all topics use one compression" in topics


@pytest.mark.parametrize(
    ("given", "now"),
    [("smallest", "earliest"), ("largest", "latest"), ("latest", "latest"), ("none", "none")],
)
def test_offset_reset(given: str, now: str) -> None:
    done = old(f"auto.offset.reset={given}\n")
    assert done.file["auto.offset.reset"].value == now
    assert bool(done.remarks) == (given != now)


def test_todays_key_counts_when_both_are_there() -> None:
    for text in ("groupid=a\ngroup.id=b\n", "group.id=b\ngroupid=a\n"):
        done = old(text)
        assert done.file["group.id"].value == "b"
        assert "is ignored because group.id is also set" in done.remarks[0]


def test_brokers_that_are_named_are_not_looked_up() -> None:
    ASKED.clear()
    done = old("zookeeper.connect=z:1\nbootstrap.servers=a:1\n")
    assert done.file["bootstrap.servers"].value == "a:1"
    assert done.zookeeper == ""  # a new consumer's offsets are in Kafka
    assert "names no brokers here" in done.remarks[0]
    assert ASKED == []


def test_brokers_are_looked_up_for_the_files_security_protocol() -> None:
    ASKED.clear()
    old("zookeeper.connect=z:1/k\nsecurity.protocol=SASL_PLAINTEXT\n")
    assert ASKED == [("z:1/k", "SASL_PLAINTEXT")]


def test_offsets_that_are_kept_in_kafka_alone_are_not_sought_in_zookeeper() -> None:
    text = "zookeeper.connect=z:1\noffsets.storage=kafka\n"
    assert old(text).zookeeper == "z:1"  # committed to both by default
    assert old(text + "dual.commit.enabled=false\n").zookeeper == ""


def test_a_zookeeper_that_does_not_answer_passes_through() -> None:
    def away(_connect: str, _protocol: str) -> tuple[str, ...]:
        raise Unreachable("no answer")

    file = parse_properties(b"zk.connect=z:1\n", Path("f"))
    with pytest.raises(Unreachable):
        translate(file, Scope.CONSUMER, away)


def test_one_cluster_read_twice_in_one_group_is_refused(tmp_path: Path) -> None:
    one = write(tmp_path, "bootstrap.servers=a:1,b:1\ngroup.id=g\n", "one")
    two = write(tmp_path, "bootstrap.servers=b:1\ngroup.id=g\n", "two")
    other = write(tmp_path, "bootstrap.servers=b:1\ngroup.id=h\n", "other")
    producer = write(tmp_path, "bootstrap.servers=c:1\n", "producer")
    with pytest.raises(ConfigError, match="mirrored twice") as caught:
        load_mm1([one, two], producer, include="t")
    assert caught.value.where == str(two)
    assert len(load_mm1([one, other], producer, include="t").flows) == 2


def test_wrong_values_are_all_told_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(
            tmp_path,
            CONSUMER_011 + "fetch.size=x\nauto.commit.enable=maybe\n",
            PRODUCER_09,
        )
    assert "fetch.size is not a whole number" in caught.value.what
    assert "auto.commit.enable has a value that was never valid" in caught.value.what


@pytest.mark.parametrize(
    ("scope", "line", "told"),
    [
        (Scope.CONSUMER, "fetch.message.max.bytes=1_000_000", "is not a whole number"),
        (Scope.CONSUMER, "fetch.message.max.bytes=\\u0661", "is not a whole number"),
        (Scope.CONSUMER, "socket.timeout.ms=2147483648", "does not fit in 32 bits"),
        (Scope.CONSUMER, "mirror.consumer.numthreads=99999999999", "does not fit in 32 bits"),
        (Scope.PRODUCER, "request.required.acks=1_0", "is not a whole number"),
        (Scope.PRODUCER, "request.required.acks=99999999999", "does not fit in 16 bits"),
    ],
)
def test_numbers_are_those_of_java(scope: Scope, line: str, told: str) -> None:
    (error,) = old(line, scope).errors
    assert f"{line.partition('=')[0]} {told}" in error.what


@pytest.mark.parametrize("scope", [Scope.CONSUMER, Scope.PRODUCER])
def test_every_row_is_whole(scope: Scope) -> None:
    for name, row in (CONSUMER_KEYS if scope is Scope.CONSUMER else PRODUCER_KEYS).items():
        with named((name, row)):
            _is_whole(scope, name, row)
    assert set(VALUES) <= CONSUMER_KEYS.keys() | PRODUCER_KEYS.keys()


def _is_whole(scope: Scope, name: str, row: OldKey) -> None:
    assert name == row.now or find(name, scope) is None, "the settings table knows it"
    if row.fate is Fate.RENAMED:
        assert find(row.now, scope) is not None, f"{row.now} is no key of today"
    elif row.fate in (Fate.DROPPED, Fate.REFUSED):
        assert row.why, "no reason is given"


KEYS = st.sampled_from(sorted(CONSUMER_KEYS))


@given(st.dictionaries(KEYS, st.sampled_from(["1", "true", "kafka", "none", "h:1", "smallest"])))
def test_no_old_key_is_passed_over_in_silence(given_keys: dict[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in given_keys.items())
    done = old(text)
    said = "\n".join(done.remarks) + "\n".join(str(error) for error in done.errors)
    looked_up = {"zk.connect", "zookeeper.connect"}
    for key, value in given_keys.items():
        kept = key in done.file and done.file[key].value == value
        twice = key == "zk.connect" and looked_up <= given_keys.keys()
        assert kept or twice or f"{key} " in said
    assert not set(done.file) & (set(CONSUMER_KEYS) - {"auto.offset.reset"})


PRODUCERS_KEYS = st.sampled_from(sorted(PRODUCER_KEYS))
_ANY_VALUE = st.sampled_from(["1", "true", "none", "h:1", "gzip", "-1"])


@given(st.dictionaries(PRODUCERS_KEYS, _ANY_VALUE))
def test_no_old_key_of_a_producer_is_passed_over_in_silence(given_keys: dict[str, str]) -> None:
    text = "".join(f"{key}={value}\n" for key, value in given_keys.items())
    done = old(text, Scope.PRODUCER)
    said = "\n".join(done.remarks) + "\n".join(str(error) for error in done.errors)
    for key in given_keys:
        assert f"{key} " in said or key in ("zk.connect", "zookeeper.connect")
    assert not set(done.file) & set(PRODUCER_KEYS)


_OLD_KEYS = vectors.load("old_client_keys")


@pytest.mark.parametrize("scope", [Scope.CONSUMER, Scope.PRODUCER])
@pytest.mark.parametrize("version", [key for key in _OLD_KEYS if key != "source"])
def test_every_key_that_a_version_had_is_known(version: str, scope: Scope) -> None:
    """Renamed, dropped or refused with a reason, or a key that today's clients still have."""
    table = CONSUMER_KEYS if scope is Scope.CONSUMER else PRODUCER_KEYS
    keys = _OLD_KEYS[version][scope.value]
    assert len(keys) > 20
    unknown = [key for key in keys if key not in table and find(key, scope) is None]
    assert unknown == []
    for key in keys:
        row, today = table.get(key), find(key, scope)
        assert row is None or row.why or row.now or row.fate.name not in ("DROPPED", "REFUSED")
        if row is None and today is not None and today.status is not Status.SUPPORTED:
            assert today.reason, key
