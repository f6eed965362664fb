"""Errors that the user meets: each says what is wrong, where, and what to do about it."""

from __future__ import annotations

import os
import socket
import ssl
import struct
import sys
import urllib.error
from collections.abc import Callable, Mapping
from dataclasses import replace
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sparkmirror.cache import locked
from sparkmirror.cli.main import main
from sparkmirror.cli.verbs.acls import _principals, lock
from sparkmirror.cli.verbs.migrate_config import _aliases, _same_flow, _write
from sparkmirror.config.callables import load_callable
from sparkmirror.config.clients.jaas import parse_property, read_file_entry
from sparkmirror.config.clients.sasl import KerberosLogin
from sparkmirror.config.files.properties import read_file
from sparkmirror.control.mm1.rebalance_listener import RebalanceListener
from sparkmirror.control.positions import preflight
from sparkmirror.data.coordination.sealed_options import KEY_VARIABLE, new_key, seal, unseal
from sparkmirror.data.spark.temp_dir import TempDirectory
from sparkmirror.errors import (
    ClusterError,
    ConfigError,
    CorruptBatch,
    Denied,
    MachineError,
    MirrorError,
    NotKafka,
    QuotaExceeded,
    TooFewBrokers,
    TopicError,
    UnknownCodec,
    Unreachable,
    Unsupported,
)
from sparkmirror.model import TopicPartition
from sparkmirror.observe.metrics.address import resolve
from sparkmirror.records.codecs import decompress
from sparkmirror.records.header import split
from sparkmirror.records.records import Record, encode_batch
from sparkmirror.records.split import cut_batch
from sparkmirror.records.varint import read_varint
from sparkmirror.settings import ClusterClient, FlowSettings, GroupSettings
from sparkmirror.testing import guard, maven
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.error_translation import translate
from sparkmirror.wire.admin.groups import commit_offsets
from sparkmirror.wire.cluster.acl_advice import Right
from sparkmirror.wire.legacy.ambari import AmbariLogin, _http_error, _Server, parse_hosts
from sparkmirror.wire.net.framing import ConnectionLost
from sparkmirror.wire.net.shared_connection import NoResponse
from sparkmirror.wire.probe.reach import _address
from sparkmirror.wire.protocol_errors import (
    ApiUnsupported,
    BrokerError,
    NoBroker,
    UnreadableResponse,
)
from sparkmirror.wire.security.kerberos import _check_keytab, kerberos_error
from sparkmirror.wire.security.tls import handshake_error
from tests.unit.config_files import BASE, LINE, QUIET, refused, write

CLIENT = ClusterClient("A", ("a:1",), "mirror", request_timeout_ms=10)
FLOW = FlowSettings(CLIENT, CLIENT, CLIENT, CLIENT)
"""Of A to A: only its names are looked at."""


def check(
    call: Callable[[], object], kind: type[MirrorError], what: str, where: str, do: str
) -> None:
    """``call`` raises ``kind`` itself; ``what``, ``where`` and ``do`` are parts of what it says."""
    with pytest.raises(MirrorError) as caught:
        call()
    error = caught.value
    assert type(error) is kind
    assert what in error.what
    assert where in error.where
    assert bool(where) == bool(error.where)
    assert do in error.do
    assert bool(do) == bool(error.do)


# --- settings -----------------------------------------------------------------------------------

SASL = "security.protocol=SASL_PLAINTEXT\nsasl.mechanism=PLAIN\n"


@pytest.mark.parametrize(
    ("extra", "what", "do"),
    [
        ("config.providers=env\n", "config.providers names 'env', but config.providers.env.class",
         "Add it, for example org.apache.kafka"),
        ("x=\\u00g0\n", "malformed \\uXXXX escape: four hex digits", "Complete the escape"),
        ("sparkmirror.metrics.tls.cert=c\n", "tls.cert is set, sparkmirror.metrics.tls.key is not",
         "Set both, or none."),
        ("sparkmirror.metrics.tls.key=c\n", "tls.key is set, sparkmirror.metrics.tls.cert is not",
         "Set both, or none."),
        ("B.producer.enable.idempotence=true\nB.producer.acks=1\n",
         "acks=1 contradicts enable.idempotence=true", "or set enable.idempotence=false"),
        ("B.producer.enable.idempotence=true\n"
         "B.producer.max.in.flight.requests.per.connection=6\n",
         "=6 contradicts enable.idempotence=true, which needs at most 5", "enable.idempotence="),
        (f"A.{SASL.replace(chr(10), chr(10) + 'A.', 1)}", "Cluster 'A': ", "sasl.jaas.config"),
    ],
)  # fmt: skip
def test_a_line_of_a_file_is_named(tmp_path: Path, extra: str, what: str, do: str) -> None:
    error = refused(tmp_path, BASE + QUIET + extra)
    assert what in error.what
    lines = [LINE + QUIET.count("\n") + n for n in range(extra.count("\n"))]
    assert error.where in [f"{tmp_path / 'mm2.properties'}:{line}" for line in lines]
    assert do in error.do


@pytest.mark.parametrize(
    ("text", "what", "do"),
    [
        ("clusters=\n", "clusters is empty.", "Write clusters=A,B."),
        (BASE.replace("a:9092", ""), "A.bootstrap.servers= is empty.", "Name at least one."),
        (BASE + "sparkmirror.metrics.token=" + "a" * 40 + "\nsparkmirror.metrics.token.file=f\n",
         "sparkmirror.metrics.token and sparkmirror.metrics.token.file are both set.",
         "Set one of them."),
    ],
)  # fmt: skip
def test_a_file_that_contradicts_itself(tmp_path: Path, text: str, what: str, do: str) -> None:
    error = refused(tmp_path, text)
    assert what in error.what
    assert do in error.do


def test_what_is_no_properties_file(tmp_path: Path) -> None:
    large = tmp_path / "large"
    with large.open("wb") as file:
        file.truncate((64 << 20) + 1)
    for path, what, do in (
        (tmp_path, "This is a directory, not a properties file.", "Name the file."),
        (tmp_path / "none", "There is no such file.", "Check the path"),
        (large, "The file is larger than", "Name a properties file."),
    ):
        check(lambda path=path: read_file(path), ConfigError, what, str(path), do)  # type: ignore[misc]


PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule required username=a password=b;"


@pytest.mark.parametrize(("text", "count"), [("", 0), (PLAIN * 2, 2)])
def test_a_login_has_exactly_one_module(text: str, count: int, tmp_path: Path) -> None:
    check(
        lambda: parse_property(text, where="f:3"),
        ConfigError,
        f"contains {count} login modules; it must contain exactly one",
        "f:3",
        "Write it as",
    )
    path = write(tmp_path, f"KafkaClient {{ {text} }};" if text else "Other { };", "jaas.conf")
    system = {"java.security.auth.login.config": str(path)}
    if text:
        what = f"has {count} login modules for KafkaClient; it must have exactly one"
        check(
            lambda: read_file_entry(system, where="cluster A"), ConfigError, what, "cluster A",
            "Write KafkaClient {",
        )  # fmt: skip


def test_a_jaas_file_without_the_clients_entry_says_which_it_has(tmp_path: Path) -> None:
    path = write(tmp_path, f"KafkaServer {{ {PLAIN} }};", "jaas.conf")
    system = {"java.security.auth.login.config": f"file://{path}"}
    check(
        lambda: read_file_entry(system, where="cluster A"),
        ConfigError,
        f"the JAAS file {path} has no entry (entries: KafkaServer) for KafkaClient",
        "cluster A",
        "Write KafkaClient {",
    )


@pytest.mark.parametrize(
    ("name", "args", "what", "do"),
    [
        ("handlers", None, "'handlers' is not module:function.", "for example mirrors.handlers"),
        (":mask", None, "':mask' is not module:function.", "Java classes cannot be loaded"),
        ("none_such:x", None, "cannot be imported (No module named 'none_such')", "PYTHONPATH"),
        ("json:none", None, "cannot be imported (module 'json' has no attribute", "check the name"),
        ("failing:x", None, "the module fails (ZeroDivisionError: ", "Correct the module."),
        ("ending:x", None, "cannot be imported: the module fails (SystemExit: 0)", "Correct the"),
        ("made:Ending", None, "cannot be instantiated (SystemExit: 3)", "Its constructor takes"),
        ("json:__doc__", None, "json:__doc__ is neither a function nor a class.", "Name one"),
        ("json:JSONDecoder", "x", "cannot be instantiated (TypeErr", "takes the text of the args"),
        ("made:mask", "x", "made:mask is an object, which the text of the args", "Name its class"),
    ],
)
def test_a_callable_that_cannot_be_had(
    name: str, args: str | None, what: str, do: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "failing.py").write_text("1 / 0\n")
    (tmp_path / "ending.py").write_text("import sys\nsys.exit(0)\n")
    made = "class Mask:\n    def __call__(self, record): ...\nmask = Mask()\n"
    made += "class Ending:\n    def __init__(self): raise SystemExit(3)\n"
    (tmp_path / "made.py").write_text(made)
    monkeypatch.syspath_prepend(tmp_path)
    where = "--message.handler"
    check(lambda: load_callable(name, args, where=where), ConfigError, what, where, do)


# --- commands -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text", ["mirror", "User:", ":x", "A=mirror", "A=User:", "C=User:m", "a=User:m", "A=B=User:m"]
)
def test_a_principal_is_a_kind_and_a_name(text: str) -> None:
    settings: Any = SimpleNamespace(clusters=("A", "B"))
    what = f"{text!r} is not a principal."
    do = "Write User:NAME, or ALIAS=User:NAME for one cluster of the file (A, B)."
    check(lambda: _principals(settings, [text]), ConfigError, what, "--principal", do)


@pytest.mark.parametrize("text", ["analytics", "User:", ":x", "A=User:m"])
def test_a_reader_is_a_principal(text: str, tmp_path: Path) -> None:
    """It is refused before a cluster is asked."""
    path, readers = write(tmp_path, BASE), ["User:*", "User:CN=m", text]
    what, do = f"{text!r} is not a principal.", "Write User:NAME."
    check(lambda: lock(path, "A->B", readers=readers), ConfigError, what, "--reader", do)


def test_a_certificates_principal_has_to_be_told() -> None:
    settings: Any = SimpleNamespace(clusters=("A", "B"))
    principal = _principals(settings, ["B=User:CN=m"])
    keystore = {"ssl.keystore.location": "k"}
    secured = replace(CLIENT, security_protocol="SSL", properties=keystore)
    what = "the settings do not say which principal mirror has there."
    do = "Add --principal 'A=User:NAME'."
    check(lambda: principal(secured), ConfigError, what, "cluster A", do)
    assert _principals(settings, ["User:CN=m"])(secured) == "User:CN=m"


@pytest.mark.parametrize("alias", ["", " ", "a b", "a->b", "a,b"])
def test_an_alias_is_one_word(alias: str) -> None:
    what, where = f"{alias!r} is not an alias.", "--source, --target"
    check(lambda: _aliases(["a"], alias), ConfigError, what, where, "Use letters, digits")
    check(lambda: _aliases([alias], "b"), ConfigError, what, where, "Use letters, digits")


def test_two_clusters_of_one_name() -> None:
    what, do = "two clusters have the same name.", "Give each its own name."
    check(lambda: _aliases(["a"], "a"), ConfigError, what, "--source, --target", do)


def test_a_new_file_replaces_no_other_and_needs_a_place(tmp_path: Path) -> None:
    path = write(tmp_path, "old")
    check(
        lambda: _write(path, "new", force=False), ConfigError, "The file exists.", str(path),
        "or give --force",
    )  # fmt: skip
    assert path.read_text() == "old"
    nowhere = tmp_path / "none" / "f"
    check(
        lambda: _write(nowhere, "new", force=True), MachineError, "No such file or directory.",
        str(nowhere), "a directory that exists",
    )  # fmt: skip
    long = tmp_path / ("x" * 300)
    check(
        lambda: _write(long, "new", force=False), MachineError, "File name too long.",
        str(long), "this user may write",
    )  # fmt: skip
    check(
        lambda: _same_flow(FLOW, (), path), ConfigError, "The file has no flow A->A.", str(path),
        "Give --source and --target the names",
    )  # fmt: skip


def test_a_file_that_cannot_be_written_leaves_no_passwords_behind(tmp_path: Path) -> None:
    place = tmp_path / "directory"
    place.mkdir()
    check(
        lambda: _write(place, "password=hunter2", force=True), MachineError, "Is a directory.",
        str(place), "this user may write",
    )  # fmt: skip
    assert list(tmp_path.iterdir()) == [place]


def test_the_page_of_settings_needs_no_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["config", "--docs", str(write(tmp_path, BASE))]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "--docs: the page lists all settings, so it takes no file. Leave out FILE" in said


# --- the machine --------------------------------------------------------------------------------


def test_what_this_machine_lacks(tmp_path: Path) -> None:
    blocked = write(tmp_path, "", "file") / "below"
    check(
        lambda: locked(blocked / "lock", timeout_s=0).__enter__(), MachineError,
        "The lock file cannot be opened (", str(blocked), "Set XDG_CACHE_HOME",
    )  # fmt: skip
    check(
        lambda: TempDirectory.make((blocked, tmp_path / ("x" * 120))), MachineError,
        "its path is too long for a Unix socket", "", "Set TMPDIR",
    )  # fmt: skip
    with pytest.raises(MachineError, match="/dev/null/x: Not a directory"):
        TempDirectory.make((Path("/dev/null/x"),))
    check(
        lambda: guard.spawn([str(tmp_path / "none")]), MachineError,
        "The program cannot be started (No such file", str(tmp_path / "none"), "Check that the fi",
    )  # fmt: skip


def test_settings_are_sealed_for_one_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KEY_VARIABLE, new_key())
    sealed = seal({"sasl.jaas.config": "x"}, new_key())
    what, do = f"the environment has no {KEY_VARIABLE} of this run.", "spark.executorEnv"
    check(lambda: unseal(sealed), MachineError, what, "", do)
    monkeypatch.delenv(KEY_VARIABLE)
    check(lambda: unseal(sealed), MachineError, what, "", do)


@pytest.mark.parametrize(
    ("listen", "what"),
    [
        ("localhost", "is not an address to listen on"),
        (":9404", "is not an address to listen on"),
        ("127.0.0.1:70000", "is not an address to listen on"),
        ("127.0.0.1:" + "9" * 5_000, "is not an address to listen on"),
        ("127.0.0.1:٣", "is not an address to listen on"),
        ("a..b:1", "cannot be found"),
    ],
)
def test_an_address_for_metrics(listen: str, what: str) -> None:
    check(lambda: resolve(listen, "f:7"), ConfigError, what, "f:7", "127.0.0.1:9404")


@pytest.mark.parametrize("text", ["a:b", "a:b:1@x", "", "a b:c:1"])
def test_what_is_no_maven_coordinate(text: str) -> None:
    what, do = "This is not a Maven coordinate.", "Write group:artifact:version"
    with pytest.raises(MachineError) as caught:
        maven._parse(text)
    assert (caught.value.what, caught.value.where) == (what, text)
    assert do in caught.value.do


@pytest.mark.parametrize(
    ("output", "what", "do"),
    [
        (["  Server access error: PKIX path building failed"], "does not trust the repository's",
         "JAVA_TOOL_OPTIONS"),
        (["x", " Server access error at url: Connection refused"], "cannot be downloaded: Server",
         "HTTPS_PROXY"),
        (["x", "\t:: a#b;1: not found"], "cannot be resolved: a#b;1: not found", "version number"),
        ([], "cannot be resolved: []", "version number"),
        (["\tYour proxy requires authentication."], "cannot be downloaded: the proxy wants a login",
         "http://user:password@host:port"),
    ],
)  # fmt: skip
def test_jars_that_cannot_be_had(output: list[str], what: str, do: str) -> None:
    error = maven._explained([maven._parse("a:b:1")], [], output)
    assert type(error) is MachineError
    assert "The jars of a:b:1" in error.what
    assert what in error.what
    assert error.where == "Maven repository"
    assert do in error.do


def test_a_helper_that_was_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_line: str) -> int:
        raise BrokenPipeError

    helper = SimpleNamespace(pid=7, stdin=SimpleNamespace(write=broken))
    monkeypatch.setattr(guard, "_helper", helper)
    monkeypatch.setattr(guard, "_owner", os.getpid())
    check(
        lambda: guard.guard_process(1), MachineError, "has been killed", "process 7", "Start again"
    )


# --- the user's code ----------------------------------------------------------------------------


class Failing:
    """A rebalance listener as a class."""

    def on_partitions_revoked(self, partitions: object) -> None:
        raise KeyError("gone")


def failing(what: str, partitions: object, *args: str) -> None:
    """A rebalance listener as a function."""
    raise ValueError(f"{what} {args}")


def ending(what: str, partitions: object) -> None:
    """A rebalance listener that ends its process."""
    sys.exit(0)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Failing", "were revoked (KeyError: 'gone')."),
        ("failing", "revoked (ValueError: revoked"),
        ("ending", "revoked (SystemExit: 0)"),
    ],
)
def test_a_listener_that_fails_is_named(name: str, text: str) -> None:
    listener = RebalanceListener(GroupSettings(listener=f"{__name__}:{name}"))
    check(
        lambda: listener.revoked([TopicPartition("t", 0)]), MirrorError, text,
        f"--consumer.rebalance.listener {__name__}:{name}", "nothing is lost",
    )  # fmt: skip


# --- bytes --------------------------------------------------------------------------------------


def test_bytes_that_are_no_batches() -> None:
    again = "Fetch the chunk again."
    check(lambda: split(memoryview(bytes(60))), CorruptBatch, "60 bytes are left after byte 0",
          "", again)  # fmt: skip
    one = encode_batch([Record(0, 1, None, b"v")])
    what = f"5 bytes are left after byte {len(one)}"
    check(lambda: split(memoryview(one + bytes(5))), CorruptBatch, what, "", again)
    what = "A batch of 1 records cannot be cut."
    check(lambda: cut_batch(memoryview(one)), CorruptBatch, what, "", "")
    check(
        lambda: read_varint(b"\x80\x80", 0), CorruptBatch, "end inside a varint at byte 2", "", ""
    )
    what = "The varint ending at byte 10 has more than ten bytes."
    check(lambda: read_varint(b"\x80" * 20, 0), CorruptBatch, what, "", "")
    what = "Compression codec 7 is none of Kafka's"
    check(lambda: decompress(7, memoryview(b""), 9), UnknownCodec, what, "", "exclude the topic")


@pytest.mark.parametrize(("codec", "name"), [(1, "gzip"), (2, "snappy"), (3, "lz4"), (4, "zstd")])
def test_what_cannot_be_unpacked_is_named(codec: int, name: str) -> None:
    what = f"The {name} data cannot be unpacked ("
    with pytest.raises(CorruptBatch) as caught:
        decompress(codec, memoryview(b"\x28\xb5\x2f\xfd no such data" * 3), 1 << 20)
    assert what in caught.value.what
    assert caught.value.do


# --- clusters -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind", "what", "do"),
    [
        (BrokerError(58, "bad"), Denied,
         "the broker refused the login (SASL_AUTHENTICATION_FAILED: bad).", "sasl.* settings"),
        (BrokerError(29), Denied, "reading t is not allowed (TOPIC_AUTHORIZATION_FAILED).",
         "--operation Read --topic"),
        (BrokerError(29, "Request Request(processor=1, …"), Denied,
         "reading t is not allowed (TOPIC_AUTHORIZATION_FAILED).", "--operation Read --topic"),
        (BrokerError(35), Unsupported, "needs an API that this broker does not have (UNSUPPORTED",
         "Use a newer broker"),
        (ApiUnsupported("the broker does not have X"), Unsupported,
         "needs an API that this broker does not have (the broker does not have X).",
         "Use a newer broker"),
        (NoResponse("e:9092: no response to X"), Unreachable,
         "reading t failed: no answer (e:9092: no response to X).", "advertised.listeners"),
        (ConnectionLost("e:9092: it broke"), Unreachable,
         "reading t failed: no answer (e:9092: it broke).", "advertised.listeners"),
        (NoBroker("no controller"), Unreachable, "reading t failed: no answer (no controller).",
         "advertised.listeners"),
        (TimeoutError("late"), Unreachable,
         "reading t failed: no answer (TimeoutError: late).", "advertised.listeners"),
        (BrokerError(7), Unreachable, "reading t failed: no answer (REQUEST_TIMED_OUT).",
         "advertised.listeners"),
        (BrokerError(8), Unreachable, "reading t failed: no answer (BROKER_NOT_AVAILABLE).",
         "advertised.listeners"),
        (BrokerError(89), QuotaExceeded,
         "reading t failed: a quota allows no more at present (THROTTLING_QUOTA_EXCEEDED).",
         "controller_mutation_rate"),
        (BrokerError(38, "one is down"), TooFewBrokers,
         "reading t failed: the cluster has too few brokers (INVALID_REPLICATION_FACTOR: one is "
         "down).", "Start the brokers"),
        (BrokerError(-1, "odd"), ClusterError, "reading t failed (UNKNOWN_SERVER_ERROR: odd).",
         "broker's log"),
        (BrokerError(999), ClusterError, "reading t failed (error code 999).", "broker's log"),
        (UnreadableResponse("the response cannot be read (ValueError)"), ClusterError,
         "reading t failed (the response cannot be read (ValueError)).", "broker's log"),
        (struct.error("short"), ClusterError, "reading t failed (error: short).", "broker's log"),
    ],
)  # fmt: skip
def test_what_the_drivers_client_says_becomes_ours(
    error: Exception, kind: type[MirrorError], what: str, do: str
) -> None:
    def call() -> None:
        raise translate(error, CLIENT, "reading t", needs=Right("Read", "Topic", "t"))

    check(call, kind, what, "cluster A", do)


def test_without_a_right_the_advice_is_general() -> None:
    error = translate(BrokerError(31), CLIENT, "asking")
    assert "Grant the principal of this client the operation" in error.do


@pytest.mark.parametrize(
    ("code", "kind", "what", "do"),
    [
        (25, ClusterError, "the group g has active members", "Stop the consumers of this group"),
        (22, ClusterError, "the group g has active members", "Stop the consumers of this group"),
        (29, Denied, "not allowed", "kafka-acls"),
    ],
)
def test_offsets_that_a_group_does_not_take(
    code: int, kind: type[MirrorError], what: str, do: str
) -> None:
    row = SimpleNamespace(error_code=code, partition_index=0)
    response = SimpleNamespace(topics=[SimpleNamespace(name="t", partitions=[row])])
    link: Any = SimpleNamespace(client=CLIENT, request=lambda *_, **__: response)
    offsets = {TopicPartition("t", 0): (1, "")}
    check(lambda: commit_offsets(link, "g", offsets), kind, what, "cluster A", do)


def test_a_topic_that_does_not_exist_cannot_be_followed() -> None:
    cluster: Any = SimpleNamespace(alias="A", topics=lambda _: {})
    check(
        lambda: Cluster.tail(cluster, "t"), TopicError, "the topic t does not exist.", "cluster A",
        "may describe the topic",
    )  # fmt: skip


def test_ends_without_a_leader_are_named_up_to_five(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "_FREEZE_TIMEOUT_S", -1.0)
    wanted = [SimpleNamespace(source=TopicPartition("t", n)) for n in range(7)]
    source: Any = SimpleNamespace(alias="A", end_offsets=lambda tps, _: dict.fromkeys(tps[:1], 5))
    assignment: Any = SimpleNamespace(partitions=wanted)
    check(
        lambda: preflight.freeze_ends(FLOW, source, assignment), TopicError,
        "no end offset for 6 partitions (t-1, t-2, t-3, t-4, t-5 …): they have no leader.",
        "cluster A", "Bring their brokers back",
    )  # fmt: skip
    assignment.partitions = wanted[:1]
    assert preflight.freeze_ends(FLOW, source, assignment) == {TopicPartition("t", 0): 5}


@pytest.mark.parametrize("server", ["a", "a:", ":1", "a:0", "a:65536", "a:x"])
def test_what_is_no_address(server: str) -> None:
    what, do = f"'{server}' is not host:port.", "Write bootstrap.servers as host:port."
    check(lambda: _address(server, "cluster A"), ConfigError, what, "cluster A", do)


# --- TLS, Kerberos, Ambari ----------------------------------------------------------------------


def tls_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, reason)
    error.reason = reason
    return error


@pytest.mark.parametrize(
    ("error", "kind", "what", "do"),
    [
        (tls_error("TLSV1_ALERT_UNKNOWN_CA"), Denied, "does not accept the client certificate",
         "the broker's truststore signed"),
        (tls_error("WRONG_VERSION_NUMBER"), NotKafka, "does not speak TLS (wrong version number)",
         "security.protocol"),
        (tls_error("TLSV1_ALERT_PROTOCOL_VERSION"), ClusterError, "none of the TLS versions",
         "Add one that the broker has."),
        (tls_error("SSLV3_ALERT_HANDSHAKE_FAILURE"), ClusterError, "no cipher suite in common",
         "ssl.cipher.suites"),
        (tls_error("ODD_THING"), NotKafka, "the TLS handshake failed (odd thing)",
         "a listener without TLS"),
        (ConnectionResetError(104, "Connection reset by peer"), NotKafka,
         "the TLS handshake failed (connection reset by peer)", "a listener without TLS"),
        (OSError(), NotKafka, "the TLS handshake failed (closed)", "a listener without TLS"),
        (TimeoutError(), Unreachable, "the TLS handshake timed out.", "may wait for"),
    ],
)  # fmt: skip
def test_a_handshake_that_fails(
    error: OSError, kind: type[MirrorError], what: str, do: str
) -> None:
    def call() -> None:
        raise handshake_error(error, "cluster A, a:1")

    check(call, kind, what, "cluster A, a:1", do)


def test_a_file_that_is_no_keytab(tmp_path: Path) -> None:
    path = write(tmp_path, "text", "m.keytab")
    where, do = "cluster A", "Check keyTab in the JAAS entry"
    for name, what in (
        (path, f"{path} is not a keytab."),
        (tmp_path / "x", "cannot be read: No such"),
    ):
        login = KerberosLogin("kafka", "m@R", str(name))
        check(lambda login=login: _check_keytab(login, where), ConfigError, what, where, do)  # type: ignore[misc]


@pytest.mark.parametrize(
    ("said", "kind", "what", "do"),
    [
        ("Cannot contact any KDC for realm 'R'", Unreachable, "no KDC of the Kerberos realm",
         "krb5.conf"),
        ("No key table entry found", Denied, "the keytab k holds no credentials for m@R", "kinit"),
        ("Client not found in Kerberos database", Denied, "the KDC does not know m@R",
         "Check principal"),
        ("Server not found in Kerberos database", Denied, "brokers' principal kafka/host",
         "sasl.kerberos.service.name"),
        ("Preauthentication failed", Denied, "the KDC refuses the key of m@R", "Export the keytab"),
        ("Ticket expired", Denied, "the ticket of m@R has expired", "Run kinit"),
        ("Clock skew too great", Denied, "the clocks of this machine and of the KDC", "Synchron"),
        ("Configuration file does not specify default realm", ConfigError,
         "the Kerberos configuration cannot be used", "krb5.conf"),
        ("Odd", Denied, "the Kerberos login failed (Odd).", "See the KDC's log"),
    ],
)  # fmt: skip
def test_what_kerberos_says_is_explained(
    said: str, kind: type[MirrorError], what: str, do: str
) -> None:
    error = SimpleNamespace(
        maj_code=1, min_code=2, get_all_statuses=lambda _code, routine: [] if routine else [said]
    )

    def call() -> None:
        raise kerberos_error(error, KerberosLogin("kafka", "m@R", "k"), "host", "cluster A")

    check(call, kind, what, "cluster A", do)


@pytest.mark.parametrize(
    ("code", "url", "kind", "what", "do"),
    [
        (401, "", Denied, "Ambari refuses the login (HTTP 401).", "Check user and password"),
        (403, "", Denied, "Ambari refuses the login (HTTP 403).", "may view this cluster"),
        (404, "", ClusterError, "there is no such cluster", "Check --cluster"),
        (302, "https://x.example/api", ClusterError, "it redirects to x.example.", "with --url"),
        (500, "", ClusterError, "the server returned HTTP 500.", "See Ambari's log."),
    ],
)
def test_what_ambari_answers(
    code: int, url: str, kind: type[MirrorError], what: str, do: str
) -> None:
    def call() -> None:
        raise _http_error(urllib.error.HTTPError(url, code, "", Message(), None), "cluster c")

    check(call, kind, what, "cluster c", do)


@pytest.mark.parametrize(
    "url",
    ["ambari", "ftp://a", "http://", "http://me@a", "https://[::1", "http://a:p", "http://a:0"],
)
def test_what_is_no_url_of_ambari(url: str) -> None:
    login = AmbariLogin(url, "u")
    what = "the URL of Ambari is not http(s)://host[:port]."
    check(lambda: _Server(login), ConfigError, what, "--url", "--url https://ambari.example.com")


def test_an_ambari_that_is_not_there() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    ours = _Server(AmbariLogin(f"http://127.0.0.1:{port}", "u"))
    check(
        lambda: ours.get("/api", "cluster c"), Unreachable, "no answer (Connection refused).",
        "cluster c", "Check --url",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("names", "what"),
    [([], "the component is on no host."), (["a b"], "'a b' is not a host name.")],
)
def test_components_without_a_host(names: list[str], what: str) -> None:
    answer: Mapping[str, Any] = {
        "host_components": [{"HostRoles": {"host_name": name}} for name in names]
    }
    do = "Check the cluster in Ambari."
    check(lambda: parse_hosts(answer, where="w"), ClusterError, what, "w", do)
