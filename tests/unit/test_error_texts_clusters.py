"""More errors that the user meets: clusters, permissions, slots, TLS and logins."""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import struct
import sys
import traceback
from collections.abc import Callable
from concurrent.futures import CancelledError
from dataclasses import replace
from pathlib import Path
from threading import Event
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, pkcs12

from sparkmirror.cli.verbs import control_commands
from sparkmirror.config.clients.tls import Store, TlsSettings
from sparkmirror.control.coordination.ownership import Ownership
from sparkmirror.control.positions.seeding import check_group_is_free
from sparkmirror.control.topics.internal_topics import create_internal_topics, internal_names
from sparkmirror.control.verify.scope import NothingToCompare, ScopeOffsets
from sparkmirror.data.coordination import fencing
from sparkmirror.data.read import resume_point
from sparkmirror.data.read.slot_reader import SlotReader
from sparkmirror.data.transform.record_path import _PartitionCounts, _RecordPath
from sparkmirror.data.write.exactly_once import ExactlyOnce
from sparkmirror.data.write.slot_sink import SlotSink
from sparkmirror.errors import (
    ClusterError,
    ConfigError,
    Denied,
    Fenced,
    MachineError,
    MirrorError,
    NotKafka,
    PartitionError,
    TopicError,
    TransactionError,
    Unreachable,
    Unsupported,
)
from sparkmirror.internal_topics.commands import CONTROL_PARTITIONS, CommandKind, control_topic
from sparkmirror.model import MirrorMode, TopicPartition
from sparkmirror.progress import Halt
from sparkmirror.wire.admin import groups
from sparkmirror.wire.admin.cluster import Cluster
from sparkmirror.wire.admin.inspector import Inspector
from sparkmirror.wire.cluster.coordinators import Coordinators
from sparkmirror.wire.fetch import record_stream
from sparkmirror.wire.fetch.record_stream import RecordStream
from sparkmirror.wire.group.session import GroupSession
from sparkmirror.wire.net.connection import Connection
from sparkmirror.wire.produce.transactions import Transactions
from sparkmirror.wire.security import tls
from sparkmirror.wire.security.jks import StoreError, read_jks
from sparkmirror.wire.security.kerberos import _gssapi
from sparkmirror.wire.security.keystores import read_identity
from sparkmirror.wire.security.sasl import _aws_credentials
from tests.certificates import PASSWORD, Authority
from tests.unit.test_error_texts import CLIENT, FLOW, check

TP = TopicPartition("t", 0)
BROKER = "Start a broker that has"
AT_ONCE = replace(CLIENT, retry_backoff_ms=0)


def as_self(**fields: Any) -> Any:
    """An object with what a method needs of its own."""
    return SimpleNamespace(**fields)


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that does."""

    def call(*_: object, **__: object) -> Any:
        raise error

    return call


# --- topics and groups --------------------------------------------------------------------------


def test_topics_without_a_leader_cannot_be_read() -> None:
    cluster = as_self(
        alias="B",
        leaders=SimpleNamespace(known=lambda *_: True),
        end_offsets=lambda *_: {TopicPartition("t", 1): 0},
    )
    check(
        lambda: Cluster.tail(cluster, "t", partitions=[0, 1, 2]), TopicError,
        "t-0, t-2 cannot be read: no live leader", "cluster B", BROKER,
    )  # fmt: skip
    target = SimpleNamespace(alias="B", end_offsets=lambda _: {})
    ours = as_self(_flow=FLOW, _tail=object(), _partitions=(0,), _target=target)
    check(
        lambda: Ownership._read(ours), TopicError, f"{control_topic(FLOW)} cannot be read",
        "cluster B", BROKER,
    )  # fmt: skip


def test_logs_without_a_leader_say_nothing_of_a_loss(monkeypatch: pytest.MonkeyPatch) -> None:
    connections: Any = SimpleNamespace(
        client=CLIENT,
        leaders={TP: object()},
        leaderless={},
        refresh=lambda: None,
        list_offsets=lambda *_, **__: {},
        close=lambda: None,
    )
    check(
        lambda: resume_point._log_start(connections, TP), Unreachable, "no leader of t-0 responds",
        "cluster A", "",
    )  # fmt: skip
    monkeypatch.setattr(resume_point, "ClusterConnections", lambda *_: connections)
    check(
        lambda: next(resume_point._compacted(CLIENT, "t")), Unreachable, "topic t has no leader",
        "cluster A", "",
    )  # fmt: skip


def test_a_control_topic_that_cannot_grow_says_why() -> None:
    small = SimpleNamespace(name=control_topic(FLOW), partitions=1, leaderless=())
    reason = ClusterError("too many partitions.", where="cluster A", do="Remove some.")
    target: Any = SimpleNamespace(
        alias="A",
        topics=lambda _: dict.fromkeys(internal_names(FLOW), small),
        create_topics=lambda _: {},
        grow_topics=lambda wanted: dict.fromkeys(wanted, SimpleNamespace(error=reason)),
    )
    check(
        lambda: create_internal_topics(target, FLOW), TopicError,
        f"1 of {CONTROL_PARTITIONS} partitions and cannot grow: too many partitions",
        f"cluster A, topic {control_topic(FLOW)}", "Remove some.",
    )  # fmt: skip


def test_a_group_with_members_is_not_free() -> None:
    flow = replace(FLOW, mode=MirrorMode.MM1, group_id="g")
    members = [SimpleNamespace(client_id=f"mm-{n}", host=f"/10.0.0.{n}") for n in range(7)]
    members[0] = SimpleNamespace(client_id="", host="")
    source: Any = SimpleNamespace(group_members=lambda _: members)
    check(
        lambda: check_group_is_free(source, flow), ClusterError,
        "the group g has active members (a consumer at an unknown host, mm-1 at /10.0.0.1, "
        "mm-2 at /10.0.0.2, mm-3 at /10.0.0.3, mm-4 at /10.0.0.4 and others)",
        "cluster A", "Stop it first",
    )  # fmt: skip
    members.clear()
    check_group_is_free(source, flow)
    check_group_is_free(source, FLOW)


def test_a_coordinator_that_does_not_answer_is_told_per_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[list[str]] = []

    def ask_all(_link: object, _answers: object, left: list[str], *_: object) -> list[str]:
        asked.append(left)
        return left[1:] or left

    monkeypatch.setattr(groups, "_query_all", ask_all)
    link: Any = SimpleNamespace(client=AT_ONCE)
    answers: Any = object()
    found = groups.committed_by_group(link, answers, ["g2", "g1"], raising(AssertionError("no")))
    error = found["g2"]
    assert len(asked) > 1
    assert type(error) is Unreachable
    assert "the coordinator of group g2 does not respond" in error.what
    assert error.where == "cluster A"
    assert "g1" not in found


def test_an_order_for_a_flow_that_never_ran() -> None:
    order = as_self(flow=FLOW, target=SimpleNamespace(alias="A", topics=lambda _: {}))
    check(
        lambda: control_commands._give(CommandKind.PAUSE, order, 0.0), TopicError,
        f"{control_topic(FLOW)} does not exist", "cluster A", "start the mirror first",
    )  # fmt: skip


def test_no_topic_to_verify() -> None:
    source: Any = SimpleNamespace(topics=dict)
    scope: Any = SimpleNamespace(topics=("none",))
    check(
        lambda: ScopeOffsets(source, source, FLOW, scope), NothingToCompare, "no topic of the flow",
        "flow A->A", "--topic",
    )  # fmt: skip


def test_a_quorum_that_tells_no_time() -> None:
    requester = SimpleNamespace(request=lambda *_, **__: SimpleNamespace(topics=[]))
    check(
        lambda: Inspector.clock_ms(as_self(_requester=requester, alias="A")), Unsupported,
        "returns no time", "cluster A", "",
    )  # fmt: skip


def test_a_group_that_this_principal_may_not_read() -> None:
    def call() -> None:
        raise Coordinators._failure(as_self(client=CLIENT), 30, "group g", "g")

    check(call, Denied, "(GROUP_AUTHORIZATION_FAILED)", "cluster A, group g", "--group")


def test_a_coordinator_that_cannot_be_found_is_looked_for_again() -> None:
    """It ends no membership; a right that is missing does."""
    ours = as_self(group="g")
    error = ClusterError("no coordinator", where="cluster A", do="Wait.")
    coordinators: Any = SimpleNamespace(connection=raising(error))
    check(
        lambda: GroupSession._coordinator(ours, coordinators), Unreachable, "no coordinator",
        "cluster A", "Wait.",
    )  # fmt: skip
    coordinators.connection = raising(Denied("no", where="cluster A", do="Grant it."))
    check(
        lambda: GroupSession._coordinator(ours, coordinators),
        Denied,
        "no",
        "cluster A",
        "Grant it.",
    )


# --- slots --------------------------------------------------------------------------------------


def test_memory_of_another_process_is_no_record() -> None:
    """A row with a reference came before the note that says which memory it means."""
    what, where = "memory that this process never mapped", "flow A->A"
    nothing, reference = memoryview(b""), object()
    sink = as_self(_task=SimpleNamespace(frames=None), _delivery=None, flow=FLOW)
    check(
        lambda: SlotSink._take(sink, [], nothing, None, reference),  # type: ignore[arg-type]
        MirrorError, what, where, "",
    )  # fmt: skip
    path = as_self(_source=None, _flow=FLOW)
    check(
        lambda: list(_RecordPath._row(path, [], nothing, None, reference)),  # type: ignore[arg-type]
        MirrorError, what, where, "",
    )  # fmt: skip


def test_positions_that_cannot_be_read_end_a_bounded_slot() -> None:
    asked = SimpleNamespace(close=lambda: None)
    reader = as_self(
        flow=FLOW,
        _ends={},
        _given_up=None,
        _connections=SimpleNamespace(refresh_if_due=lambda: None),
        _begins=SimpleNamespace(
            asked=lambda: asked, find_out=raising(Unreachable("nobody answers."))
        ),
    )
    check(
        lambda: SlotReader._start(reader), Unreachable,
        "positions cannot be read (nobody answers.)", "flow A->A", "",
    )  # fmt: skip


def test_a_target_that_tells_no_partitions_is_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    looks = iter([{}, {}, {TP: 1, TopicPartition("t", 2): 1}])
    connections = SimpleNamespace(
        leaders={}, leaderless={}, add_topics=lambda _: None, mark_stale=lambda: None
    )

    def refresh() -> bool:
        connections.leaders = next(looks)
        return True

    connections.refresh_if_due = refresh
    flow = replace(FLOW, target=AT_ONCE)
    counts = as_self(_connections=connections, _counts={}, _flow=flow)
    with caplog.at_level(logging.WARNING):
        assert _PartitionCounts.of(counts, "t") == 3
    (told,) = [one.getMessage() for one in caplog.records]
    assert told.startswith("cluster A: the partition count of t is unavailable")


def test_an_exactly_once_slot_whose_writer_is_not_known() -> None:
    ours = as_self(_transactions=None, _flow=FLOW)
    pending: Any = SimpleNamespace()
    check(
        lambda: ExactlyOnce.write(ours, pending, memoryview(b"x")), TransactionError,
        "before the writer was known", "A->A", "",
    )  # fmt: skip


def test_a_transaction_is_written_anew_by_its_own_writer_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Not when the slot's plan is over, nor when somebody else has moved a position."""
    watch = SimpleNamespace(start=lambda: None, close=lambda: None, assignment=None)
    monkeypatch.setattr(fencing, "ControlWatch", lambda *_, **__: watch)
    identities: list[object] = [None, "identity", "identity"]
    monkeypatch.setattr(fencing, "take_over", lambda *_: identities.pop(0))
    remote = [TopicPartition("A.t", number) for number in range(3)]
    committed = {remote[0]: 10, remote[1]: 12}
    monkeypatch.setattr(fencing, "committed_positions", lambda *_: committed)
    lanes = {
        tp: SimpleNamespace(target=tp, committed=at, left=False)
        for tp, at in zip(remote, (10, 11, -1), strict=True)
    }
    ours = as_self(
        _close_writer=lambda: None,
        _writer=SimpleNamespace(control_offset=0, run_id="r", version=1, record=None),
        _flow=FLOW,
        _task=SimpleNamespace(slot=0, lanes=lanes, leaving={}, ends=SimpleNamespace(lost=())),
    )
    where = "flow A->A"
    check(lambda: ExactlyOnce._identity_again(ours), TransactionError, "is outdated", where, "")
    check(
        lambda: ExactlyOnce._identity_again(ours), Fenced,
        "positions were moved by another writer (A.t-1)", where, "",
    )  # fmt: skip
    committed[remote[1]] = 11
    assert ExactlyOnce._identity_again(ours) == "identity"


@pytest.mark.parametrize("stands", [True, False], ids=["it stands still", "it makes no progress"])
def test_a_log_that_cannot_be_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch, stands: bool
) -> None:
    monkeypatch.setattr(record_stream, "_STALLED_S", -1.0)
    halts = {TP: Halt("OFFSET_OUT_OF_RANGE", "offset 3 is not there")} if stands else {}
    stream = as_self(
        tp=TP,
        end=5,
        _fetcher=SimpleNamespace(position=lambda _: 3, halts=halts),
        _connections=SimpleNamespace(client=CLIENT),
        _round=lambda: [],
        _over=Event(),
    )
    if stands:
        kind: type[MirrorError] = PartitionError
        what, do = "offset 3 is not there (OFFSET_OUT_OF_RANGE)", ""
    else:
        kind, what, do = TopicError, "reading t-0 at offset 3 makes no progress", "are healthy"
    check(lambda: list(RecordStream.selections(stream)), kind, what, "cluster A", do)


def test_reading_that_is_given_up_asks_for_nothing_more() -> None:
    over = Event()
    over.set()
    fetcher = SimpleNamespace(position=lambda _: 3, halts={})
    asked = raising(AssertionError("asked"))
    stream = as_self(tp=TP, end=5, _fetcher=fetcher, _over=over, _round=asked)
    with pytest.raises(CancelledError):
        list(RecordStream.selections(stream))


# --- connections --------------------------------------------------------------------------------


def test_a_name_that_does_not_resolve(monkeypatch: pytest.MonkeyPatch) -> None:
    error = socket.gaierror(-2, "Name or service not known")
    monkeypatch.setattr(socket, "create_connection", raising(error))
    ours = as_self(client=CLIENT, host="none.example", port=9092)
    check(
        lambda: Connection._connect(ours, 0, 0), Unreachable,
        "does not resolve (Name or service not known)", "cluster A, none.example:9092",
        "advertised.listeners",
    )  # fmt: skip


@pytest.mark.parametrize("frame", [struct.pack(">i", 6), struct.pack(">ihi", 5, 0, 1 << 30)])
def test_an_answer_that_is_no_list_of_versions(frame: bytes) -> None:
    parts = iter((len(frame).to_bytes(4, "big"), frame))

    def receive(view: memoryview, _deadline: float) -> None:
        view[:] = next(parts)

    ours = as_self(client=CLIENT, host="a", port=80, send_message=lambda *_: 5, _receive_by=receive)
    check(
        lambda: Connection._handshake(ours, 0.0), NotKafka, "does not speak Kafka's protocol",
        "cluster A, a:80", "Check the port",
    )  # fmt: skip


def test_an_api_that_a_broker_lacks() -> None:
    ours = as_self(client=CLIENT, host="a", port=9092, _versions={1: (0, 3)})
    check(
        lambda: Connection.api_version(ours, 1, 4, 11, "Fetch"), Unsupported,
        "versions 0 to 3 of the Fetch API, sparkmirror needs one of 4 to 11",
        "cluster A, a:9092", "from 0.11 on",
    )  # fmt: skip
    assert Connection.api_version(ours, 1, 2, 11, "Fetch") == 3


def test_a_transaction_that_nobody_ends() -> None:
    seconds = iter(range(0, 1_000, 40))
    connections: Any = SimpleNamespace(client=CLIENT)
    transactions = Transactions(
        connections,
        "id-0",
        timeout_ms=60_000,
        patience_s=100.0,
        clock=lambda: float(next(seconds)),
        sleep=lambda _: None,
    )
    check(
        lambda: transactions._surely(raising(Unreachable("away.")), "it cannot be ended"),
        Unreachable, "it cannot be ended: no answer in 100 s (away.)", "cluster A", "",
    )  # fmt: skip
    check(
        lambda: transactions._surely(lambda: 50, "it cannot be begun"), TransactionError,
        "it cannot be begun (INVALID_TRANSACTION_TIMEOUT)", "cluster A",
        "Set A.producer.transaction.timeout.ms",
    )  # fmt: skip


# --- TLS and logins -----------------------------------------------------------------------------


def test_tls_that_this_machine_cannot_do(tmp_path: Path) -> None:
    where = "cluster A"
    check(
        lambda: tls.make_context(TlsSettings(ciphers="NONE-SUCH"), where), ConfigError,
        "no suite that this machine's OpenSSL has", where, "Add suites",
    )  # fmt: skip
    authority = Authority()
    own, other = authority.certify("own"), authority.certify("other")
    path = tmp_path / "own.pem"
    path.write_text(own.key_pem() + other.chain_pem())
    settings = TlsSettings(keystore=Store("PEM", str(path)))
    check(
        lambda: tls.make_context(settings, where), ConfigError, "do not match", where,
        "certificate of this key first",
    )  # fmt: skip


def test_a_suite_of_tls_1_3_that_was_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []
    secure = SimpleNamespace(
        cipher=lambda: ("TLS_AES_256_GCM_SHA384", "TLSv1.3", 256),
        close=lambda: closed.append("secure"),
    )
    context = SimpleNamespace(wrap_socket=lambda *_, **__: secure)
    monkeypatch.setattr(tls, "context_for", lambda _: context)
    sock: Any = SimpleNamespace(getpeername=lambda: ("10.0.0.1", 9093), close=lambda: None)
    suites = {"ssl.cipher.suites": "TLS_AES_128_GCM_SHA256"}
    client = replace(CLIENT, security_protocol="SSL", properties=suites)
    check(
        lambda: tls.wrap(sock, "a", client), ClusterError,
        "chose the cipher suite TLS_AES_256_GCM_SHA384", "cluster A, a:9093",
        "ssl.enabled.protocols=TLSv1.2",
    )  # fmt: skip
    assert closed == ["secure"]


def jks(version: int = 2, tag: int = 2) -> bytes:
    """A store of one entry, without a password's digest."""
    body = struct.pack(">III", 0xFEEDFEED, version, 1)
    body += struct.pack(">IH3sQ", tag, 3, b"own", 0)
    return body + struct.pack(">H5sI", 5, b"X.509", 0) + bytes(hashlib.sha1().digest_size)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"\xce\xce\xce\xce" + bytes(30), "of type JCEKS, which is not supported"),
        (jks(version=3), "its version 3 is unknown"),
        (jks(tag=3), "an entry of the unknown kind 3"),
    ],
)
def test_java_keystores_of_other_kinds(data: bytes, what: str) -> None:
    with pytest.raises(StoreError, match=what):
        read_jks(data, None)


CERTIFICATE = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
KEY = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        ("no key", "it holds no private key (PEM, PKCS#8)"),
        ("damaged key", "its private key cannot be read"),
        ("damaged certificate", "a certificate in it cannot be read"),
        ("key alone", "it holds no certificate for its key"),
        ("certificates alone", "it holds no private key"),
        ("certificates alone, JKS", "it holds no private key"),
        ("cut", "the file is damaged"),
    ],
)
def test_keystores_that_lack_something(tmp_path: Path, kind: str, what: str) -> None:
    certified = Authority().certify("own")
    path = tmp_path / "own"
    texts = {
        "no key": certified.chain_pem(),
        "damaged key": KEY + certified.chain_pem(),
        "damaged certificate": certified.key_pem() + CERTIFICATE,
        "key alone": certified.key_pem(),
    }
    store = Store("PEM", str(path)) if kind in texts else Store("PKCS12", str(path), PASSWORD)
    if kind in texts:
        path.write_text(texts[kind])
    elif kind == "certificates alone":
        hidden = BestAvailableEncryption(PASSWORD.encode())
        path.write_bytes(
            pkcs12.serialize_key_and_certificates(
                b"own", None, None, [certified.certificate], hidden
            )
        )
    elif kind == "certificates alone, JKS":
        store = Store("JKS", str(path))
        path.write_bytes(jks())
    else:
        data = certified.pkcs12(path).read_bytes()
        path.write_bytes(data[: len(data) // 2])
    with pytest.raises(ConfigError) as caught:
        read_identity(store, "cluster A")
    assert what in caught.value.what
    assert str(path) in caught.value.what
    assert "cluster A" in caught.value.where
    assert caught.value.do


def test_kerberos_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "gssapi", None)
    check(_gssapi, MachineError, "needs the Python package gssapi", "", "Install libkrb5-dev")


def test_aws_credentials_that_are_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    settings: Any = SimpleNamespace(aws_profile="")
    where, host = "cluster A", "b-1.kafka.eu-west-1.amazonaws.com"

    def ask() -> object:
        return _aws_credentials(settings, host, where)

    monkeypatch.setitem(sys.modules, "botocore.session", None)
    check(ask, ConfigError, "need the Python package botocore", where, "pip install botocore")
    empty: Any = ModuleType("botocore.session")
    empty.Session = lambda profile: SimpleNamespace(get_credentials=lambda: None)
    monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.session", empty)
    check(ask, Denied, "finds no AWS credentials", where, "awsProfileName")


class BotocoreFailed(Exception):
    """Like botocore's errors: ``kwargs`` holds the parts of the text."""

    def __init__(self, text: str, **kwargs: str) -> None:
        super().__init__(text)
        self.kwargs = kwargs


@pytest.mark.parametrize("step", ["open", "find", "freeze", "region"])
@pytest.mark.parametrize(
    ("error", "what"),
    [
        (BotocoreFailed("The config profile (typo) could not be found", profile="typo"),
         "(The config profile (typo) could not be found)."),
        (BotocoreFailed("An error occurred:\nexpired."), "(An error occurred:\\nexpired)."),
        (BotocoreFailed("Error from custom-process: planted", provider="custom-process"),
         "(the credential_process of the profile failed)."),
    ],
)  # fmt: skip
def test_aws_credentials_that_botocore_cannot_get(
    monkeypatch: pytest.MonkeyPatch, error: Exception, what: str, step: str
) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    keys = SimpleNamespace(access_key="a", secret_key="b", token=None)
    frozen = {"get_frozen_credentials": lambda: keys}
    session = {"get_credentials": lambda: SimpleNamespace(**frozen)}
    found: Any = ModuleType("botocore.session")
    found.Session = lambda profile: SimpleNamespace(**session)
    fails = raising(error)
    if step == "open":
        found.Session = fails
    elif step == "find":
        session["get_credentials"] = fails
    elif step == "freeze":
        frozen["get_frozen_credentials"] = fails
    else:
        session["get_config_variable"] = fails
    monkeypatch.setitem(sys.modules, "botocore", ModuleType("botocore"))
    monkeypatch.setitem(sys.modules, "botocore.session", found)
    settings: Any = SimpleNamespace(aws_profile="typo")
    check(
        lambda: _aws_credentials(settings, "kafka.example.com", "cluster A"), Denied,
        f"AWS_MSK_IAM gets no AWS credentials {what}", "cluster A", "awsProfileName",
    )  # fmt: skip
    with pytest.raises(Denied) as caught:
        _aws_credentials(settings, "kafka.example.com", "cluster A")
    # What a traceback would show with it.
    assert "planted" not in "".join(traceback.format_exception(caught.value))
