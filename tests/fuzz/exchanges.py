"""Conversations with one hostile broker: fetch sessions, membership in a group, logins.

Other targets damage one answer. Here the peer plays its part until it answers something odd, so
that damage comes where the conversation has got to. Most answers are whole or carry an error of the
protocol; the checks on what a whole conversation leads to stand here, too.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from itertools import count
from random import Random
from types import SimpleNamespace
from typing import Any

from kafka.protocol.consumer import (
    FetchRequest,
    FetchResponse,
    HeartbeatResponse,
    JoinGroupResponse,
    SyncGroupResponse,
)
from kafka.protocol.consumer.metadata import ConsumerProtocolSubscription
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from sparkmirror.errors import MirrorError
from sparkmirror.model import TopicPartition
from sparkmirror.settings import ClusterClient, FetchSettings, GroupSettings
from sparkmirror.wire.cluster.metadata import Leader
from sparkmirror.wire.fetch.fetcher import Fetcher
from sparkmirror.wire.fetch.messages import FETCH_HIGHEST, FETCH_LOWEST, FETCH_SESSIONS_FROM
from sparkmirror.wire.fetch.sessions import SESSION_LOST
from sparkmirror.wire.group.assignors import (
    Subscription,
    encode_assignment,
    encode_subscription,
)
from sparkmirror.wire.group.session import GroupSession, Joined
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.security.sasl import Login
from tests.fuzz.inputs import mutated

__all__ = ["CLIENT", "Answering", "groups", "logins", "sessions"]

CLIENT = ClusterClient("hostile", ("broker:9092",), "fuzz")
_CORRELATION = 77


class Answering(Connection):
    """A connection whose peer answers with what ``answer(request, version)`` gives.

    That is an answer behind its correlation id. Versions are ``rng``'s choice of those allowed.
    """

    def __init__(
        self,
        answer: Callable[[Any, int], bytes],
        rng: Random,
        *,
        login: Login | None = None,
        versions: Mapping[int, tuple[int, int]] | None = None,
    ) -> None:
        self.client, self.host, self.port = CLIENT, "broker", 9092
        self._answer, self._rng = answer, rng
        self._login, self._login_at = login, math.inf
        self._versions = dict(versions or {})
        self._frame = b""

    def api_version(self, api_key: int, lowest: int, highest: int, name: str) -> int:
        """Any version that would do."""
        return self._rng.randrange(lowest, highest + 1)

    def send_message(self, message: Any, version: int) -> int:
        """Nothing goes out, but it could: what a peer has said stands in later requests."""
        message.with_header(correlation_id=_CORRELATION, client_id="fuzz")
        message.encode(version=version, header=True, framed=True)
        self._frame = struct.pack(">i", _CORRELATION) + self._answer(message, version)
        return _CORRELATION

    def readable(self, timeout_s: float = 0.0) -> bool:
        """Always: the answer is there."""
        return True

    def receive_frame(self, buffer: object = None) -> memoryview:
        """The hostile answer."""
        return memoryview(self._frame)

    def close(self) -> None:
        """Nothing to close."""


def _encoded(response: Any, version: int) -> bytes:
    tags = b"\0" if response.flexible_version_q(version) else b""
    return tags + bytes(response.encode(version=version))


# --- fetch sessions -----------------------------------------------------------------------------

_SESSION_NODE = 1


class _SessionBroker:
    """What a `Fetcher` uses of a connection, to a broker that keeps one fetch session as told."""

    round_trip_s = 0.001

    def __init__(self, version: int) -> None:
        self.version = version
        self.known: dict[TopicPartition, int] = {}
        """Offsets that this broker would answer for, after the newest request."""
        self.header_seen = (0, -1)
        self.frame = b""
        self.breaks = False

    def api_version(self, _key: int, _lowest: int, _highest: int, _name: str) -> int:
        return self.version

    def header(self, _key: int, _version: int) -> tuple[int, bytes]:
        return _CORRELATION, b""

    def ready_to_send(self, *, idle: bool) -> bool:
        return idle

    def readable(self) -> bool:
        return False

    def ended_idle(self) -> bool:
        return False

    def watched_by(self, _poller: object) -> None:
        """Nobody waits: `read` is called when there is something to read."""

    unsent = False

    def begin_frame(self, parts: list[bytes], size: int) -> None:
        if self.breaks:
            raise ConnectionLost("broken")
        body = b"".join(parts)
        assert len(body) == size
        request = FetchRequest.decode(body, version=self.version)
        listed = {
            TopicPartition(topic.topic, one.partition): one.fetch_offset
            for topic in request.topics
            for one in topic.partitions
        }
        self.header_seen = (0, -1)
        if self.version >= FETCH_SESSIONS_FROM:
            self.header_seen = request.session_id, request.session_epoch
        if self.header_seen[1] <= 0:
            self.known = listed
            return
        for topic in request.forgotten_topics_data:
            for partition in topic.partitions:
                del self.known[TopicPartition(topic.topic, partition)]
        self.known |= listed

    def receive_available(self, _buffer: object) -> memoryview:
        return memoryview(self.frame)


class _SessionConnections:
    """One broker that leads everything."""

    def __init__(self, partitions: list[TopicPartition], broker: _SessionBroker) -> None:
        self.client = CLIENT
        self.leaders = dict.fromkeys(partitions, Leader(_SESSION_NODE, 3))
        self.leaderless: dict[TopicPartition, int] = {}
        self.reachable = True
        self.topic_ids: dict[str, str] = {}
        self.generation = 1
        self._broker = broker

    def refresh_if_due(self) -> bool:
        return False

    def connection(self, node: int, _number: int = 0) -> _SessionBroker | None:
        return self._broker if node == _SESSION_NODE else None

    def doubt(self, _tp: TopicPartition) -> None:
        """Believe the next metadata."""

    def mark_stale(self, _tp: TopicPartition | None = None) -> None:
        """Nothing to refresh."""

    def drop(self, connection: object) -> None:
        """Nothing to close."""


def sessions(rng: Random) -> None:
    """A fetch session over several requests: lost, refused, taken over, answered with nonsense.

    Whatever the answers say, the broker must know after each request what is wanted and nothing
    else: a partition that it has forgotten would never be fetched again.
    """
    partitions = [TopicPartition(topic, n) for topic in ("a", "käse") for n in range(10)]
    wanted = partitions if rng.random() < 0.9 else partitions[:3]
    broker = _SessionBroker(rng.randrange(FETCH_LOWEST, FETCH_HIGHEST + 1))
    connections = _SessionConnections(partitions, broker)
    now = 0.0
    fetcher = Fetcher(connections, FetchSettings(), clock=lambda: now)  # type: ignore[arg-type]
    for tp in wanted:
        fetcher.assign(tp, rng.choice((0, 7, 2**62)))
    expected: tuple[int, int] | None = None
    for _ in range(rng.randrange(2, 7)):
        broker.breaks = rng.random() < 0.05
        fetcher.send()
        if broker.breaks:
            expected = None
            now += 1e7
            continue
        under_way = fetcher._requests.get((_SESSION_NODE, 0))
        if under_way is None:
            break
        asked = {tp: offset for tp, (offset, _, _) in under_way.requested.items()}
        assert broker.known == asked
        assert list(asked.values()) == [fetcher.position(tp) for tp in asked]
        if expected is not None:
            assert broker.header_seen == expected
        expected = _answer_session(broker, rng)
        for part in fetcher.receive(broker):
            assert part.fetch_offset == asked[part.tp]
            if rng.random() < 0.5:
                fetcher.advance(part.tp, part.fetch_offset + rng.randrange(1, 9))
        assert not fetcher._requests
        _reassign(fetcher, partitions, rng)
        now += 1e7  # past every pace, throttle and back-off


def _answer_session(broker: _SessionBroker, rng: Random) -> tuple[int, int] | None:
    """Prepares the answer; returns what the next request's header must be, None where that is open.

    Only a whole answer tells: who knows what a damaged one was taken for.
    """
    session_id, epoch = broker.header_seen
    in_session = epoch >= 0
    code = rng.choice((0, 0, 0, 0, 70, 71, 106, 6, 99)) if in_session else 0
    given = rng.choice((session_id, session_id, 5, 0, 2**31 - 1, -1)) if in_session else 0
    rows = FetchResponse.FetchableTopicResponse
    topics: dict[str, list[Any]] = {}
    for tp in rng.sample(sorted(broker.known), rng.randrange(len(broker.known) + 1)):
        one = rows.PartitionData(
            partition_index=tp.partition,
            error_code=rng.choice((0, 0, 0, 0, 1, 3, 6, 29, 74, 99)),
            high_watermark=100,
            last_stable_offset=90,
            log_start_offset=0,
            aborted_transactions=[],
            preferred_read_replica=rng.choice((-1, -1, -1, 2)),
            records=b"",
        )
        topics.setdefault(tp.topic, []).append(one)
    response = FetchResponse(
        throttle_time_ms=rng.choice((0, 0, 5, 2**31 - 1)),
        error_code=code,
        session_id=given,
        responses=[rows(topic=name, partitions=parts) for name, parts in topics.items()],
    )
    frame = struct.pack(">i", _CORRELATION) + bytes(response.encode(version=broker.version))
    broker.frame = mutated(frame, rng) if rng.random() < 0.3 else frame
    if broker.frame != frame or broker.version < FETCH_SESSIONS_FROM or not in_session:
        return None
    if code in SESSION_LOST:
        broker.known = {}
    if code:
        return session_id, 0
    return given, epoch + 1 if given else 0


def _reassign(fetcher: Fetcher, partitions: list[TopicPartition], rng: Random) -> None:
    """What an owner may do between two requests."""
    tp = rng.choice(partitions)
    change = rng.randrange(5)
    if change == 0:
        fetcher.unassign(tp)
    elif change == 1:
        fetcher.assign(tp, rng.randrange(100))
    elif change == 2:
        fetcher.need_bytes(tp, 1 << 24)


# --- groups -------------------------------------------------------------------------------------

_STRATEGIES = ("range", "roundrobin", "sticky", "cooperative-sticky")
_HASTY = replace(CLIENT, request_timeout_ms=0, retry_backoff_ms=0)
_JOINS_MAX = 4


class _Member(GroupSession):
    """A member without the thread that beats."""

    def _enter(self, joined: Joined) -> None:
        self._generation = joined.member.generation


def groups(rng: Random) -> None:
    """A member joins a group whose coordinator and whose other members say odd things."""
    strategies = tuple(rng.sample(_STRATEGIES, rng.randrange(1, 3)))
    settings = GroupSettings(strategies=strategies, instance_id=rng.choice(("", "", "i")))
    connection = Answering(lambda message, version: _group_answer(message, version, rng), rng)
    turns = count(1)
    session = _Member(
        _HASTY,
        "g",
        settings,
        counts=lambda topics: {topic: rng.choice((0, 1, 3)) for topic in topics},
        stopping=lambda: next(turns) > _JOINS_MAX,
    )
    session._coordinators = SimpleNamespace(  # type: ignore[assignment]
        connection=lambda _: connection, close=lambda: None
    )
    try:
        joined = session.join(("a", "b"), rng.choice(((), (TopicPartition("a", 0),))))
    except MirrorError:
        joined = None
    if joined is not None:
        assert joined.strategy in _STRATEGIES or not joined.leads
        for topic, partition in joined.partitions:
            assert isinstance(topic, str)
            assert isinstance(partition, int)
    try:
        code = session._heartbeat(session._coordinators, session._member_id, session._generation)
    except (MirrorError, ConnectionLost):
        return
    assert isinstance(code, int)


def _group_answer(message: Any, version: int, rng: Random) -> bytes:
    code = rng.choice((*(0,) * 12, 14, 16, 22, 25, 27, 23, 30, 81, 82, 99, -1))
    if message.name == "JoinGroupRequest":
        frame = _encoded(_joined(message, code, rng), version)
    elif message.name == "SyncGroupRequest":
        partitions = tuple(TopicPartition(topic, n) for topic in ("a", "b") for n in range(3))
        share = encode_assignment(rng.choice((partitions, partitions, ())))
        response = SyncGroupResponse(
            throttle_time_ms=0,
            error_code=code,
            protocol_type="consumer",
            protocol_name=rng.choice((None, "range")),
            assignment=mutated(share, rng) if rng.random() < 0.6 else share,
        )
        frame = _encoded(response, version)
    else:
        frame = _encoded(HeartbeatResponse(throttle_time_ms=0, error_code=code), version)
    return mutated(frame, rng) if rng.random() < 0.25 else frame


def _joined(message: Any, code: int, rng: Random) -> JoinGroupResponse:
    offered = [one.name for one in message.protocols]
    strategy = rng.choice((*offered, *offered, *offered, "none", ""))
    rows = JoinGroupResponse.JoinGroupResponseMember
    members = [
        rows(
            member_id=rng.choice((f"m{n}", "m0")) if n else "m0",
            group_instance_id=rng.choice((None, None, "i", "")),
            metadata=_subscription(strategy, rng),
        )
        for n in range(rng.choice((0, 1, 3, 3, 8)))
    ]
    return JoinGroupResponse(
        throttle_time_ms=0,
        error_code=79 if not message.member_id and rng.random() < 0.2 else code,
        generation_id=rng.choice((1, 2, 2**31 - 1, -1)),
        protocol_type="consumer",
        protocol_name=strategy,
        leader="m0",
        skip_assignment=rng.random() < 0.2,
        member_id=rng.choice(("m0", "m0", "m0", "m1", "")),
        members=members,
    )


def _subscription(strategy: str, rng: Random) -> bytes:
    """What a member says of itself; its claims on partitions may be anything."""
    owned = tuple(
        TopicPartition(rng.choice(("a", "b", "gone")), rng.choice((0, 1, 2, 99, -1)))
        for _ in range(rng.choice((0, 1, 5)))
    )
    generation = rng.choice((-1, 1, 2, 2**31 - 1))
    topics = rng.choice((("a",), ("a", "b"), ("a", "a"), ("b", "gone"), ()))
    member, cooperative = Subscription(topics, owned, generation), rng.random() < 0.5
    data = encode_subscription(member, strategy, cooperative=cooperative)
    if strategy == "sticky" and rng.random() < 0.5:
        said = ConsumerProtocolSubscription.decode(data)
        data = bytes(
            ConsumerProtocolSubscription(
                version=rng.choice((0, 1, 2)),
                topics=list(topics),
                user_data=mutated(bytes(said.user_data or b""), rng),
                owned_partitions=[],
                generation_id=generation,
            ).encode()
        )
    return mutated(data, rng) if rng.random() < 0.4 else data


# --- logins -------------------------------------------------------------------------------------

_PASSWORD = "secret"
_MODULES = {
    "PLAIN": "plain.PlainLoginModule required username=u password=secret",
    "SCRAM-SHA-256": "scram.ScramLoginModule required username=u password=secret",
    "SCRAM-SHA-512": "scram.ScramLoginModule required username=u password=secret",
    "OAUTHBEARER": "oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub=u",
}
_SASL_AUTHENTICATE = 36


@cache
def _login(mechanism: str) -> Login:
    properties = {
        "sasl.mechanism": mechanism,
        "sasl.jaas.config": f"org.apache.kafka.common.security.{_MODULES[mechanism]};",
    }
    return Login(replace(CLIENT, security_protocol="SASL_PLAINTEXT", properties=properties))


class _Server:
    """The broker's side of a login; ``knows``: whether it has the password."""

    def __init__(self, mechanism: str, rng: Random, *, knows: bool) -> None:
        self.mechanism, self.rng = mechanism, rng
        self.password = _PASSWORD if knows else "other"
        self._round = 0
        self._said: list[bytes] = []
        self._salt, self._iterations = b"twelve bytes", rng.choice((20, 4096, 4096, 4096))
        self.damaged = self._iterations < 4096  # a client gives no proof for so few

    def reply(self, data: bytes) -> bytes:
        """What follows on ``data`` of the client."""
        self._round += 1
        if self.mechanism.startswith("SCRAM"):
            reply = self._scram(data)
        else:
            reply = b"" if self.rng.random() < 0.8 else b'{"status":"invalid_token"}'
        if self.rng.random() < 0.4:
            changed = mutated(reply, self.rng)
            if self.rng.random() < 0.3:
                changed = self.rng.choice(
                    (b"", b"r", b"=,=", b"r=,s=,i=", b"i=" + b"9" * 5_000, b"\xff", reply * 2)
                )
            self.damaged |= changed != reply
            return changed
        return reply

    def _scram(self, data: bytes) -> bytes:
        kind = "sha256" if self.mechanism.endswith("256") else "sha512"
        if self._round == 1:
            bare = data.partition(b"n,,")[2]
            nonce = bare.partition(b"r=")[2] + b"server"
            number = self._iterations
            if self.rng.random() < 0.1:
                number = self.rng.choice((0, -1, 2**31, 2**63, 10**30))
            first = b"r=%b,s=%b,i=%d" % (nonce, base64.b64encode(self._salt), number)
            self.damaged |= number != self._iterations
            self._said = [bare, first]
            return first
        if len(self._said) == 2:
            self._said.append(data.rpartition(b",p=")[0])
        salted = hashlib.pbkdf2_hmac(kind, self.password.encode(), self._salt, self._iterations)
        key = hmac.digest(salted, b"Server Key", kind)
        return b"v=" + base64.b64encode(hmac.digest(key, b",".join(self._said), kind))


class _LoginConnection(Answering):
    """Before 1.0 the bytes of a login go without a request around them."""

    def __init__(self, server: _Server, rng: Random, *, bare: bool) -> None:
        versions = {} if bare else {_SASL_AUTHENTICATE: (0, 2)}
        login = _login(server.mechanism)
        super().__init__(self._reply, rng, login=login, versions=versions)
        self._server = server
        self._waiting = b""

    def send_frame(self, parts: Any, size: int) -> None:
        """The client's bytes alone."""
        data = self._server.reply(b"".join(parts))
        length = len(data)
        if self._rng.random() < 0.1:
            length = self._rng.choice((-1, 2**31 - 1, 1 << 21, length + 1))
            self._server.damaged = True
        self._waiting = length.to_bytes(4, "big", signed=True) + data

    def _receive_size(self) -> int:
        head = memoryview(bytearray(4))
        self._receive_into(head)
        return int.from_bytes(head, "big", signed=True)

    def _receive_into(self, view: memoryview) -> None:
        if len(self._waiting) < len(view):
            raise ConnectionLost("the broker closed the connection")
        view[:] = self._waiting[: len(view)]
        self._waiting = self._waiting[len(view) :]

    def _reply(self, message: Any, version: int) -> bytes:
        server, rng = self._server, self._rng
        code = rng.choice((*(0,) * 12, 33, 34, 58, 99, -1))
        offered: Any = rng.choice(
            (*([[server.mechanism, "X"]] * 6), [], ["X"], [""], [server.mechanism] * 3)
        )
        if message.name == "SaslHandshakeRequest":
            response: Any = SaslHandshakeResponse(error_code=code, mechanisms=offered)
            server.damaged |= bool(code) or server.mechanism not in (offered or [server.mechanism])
        else:
            response = SaslAuthenticateResponse(
                error_code=code,
                error_message=rng.choice((None, "käse", "no")),
                auth_bytes=server.reply(bytes(message.auth_bytes)),
                session_lifetime_ms=rng.choice((0, 0, 1, 3_600_000, 2**63 - 1, -1)),
            )
            server.damaged |= bool(code)
        frame = _encoded(response, version)
        changed = mutated(frame, rng) if rng.random() < 0.15 else frame
        server.damaged |= changed != frame
        return changed


def logins(rng: Random) -> None:
    """A login with every mechanism that needs no other server; the broker may be an impostor."""
    knows = rng.random() < 0.8
    server = _Server(rng.choice(sorted(_MODULES)), rng, knows=knows)
    connection = _LoginConnection(server, rng, bare=rng.random() < 0.25)
    try:
        connection._authenticate()
    except MirrorError:
        accepted = False
    else:
        accepted = True
    if server.mechanism.startswith("SCRAM"):
        assert accepted <= knows, "a broker without the password was taken for the real one"
        assert accepted or server.damaged or not knows
