"""The driver's connections to the brokers of one cluster, shared between its threads.

There is one connection to each broker, and a second one for requests with a quota that must not
hold up others. Connecting happens on threads of its own, because
name resolution has no time limit and a server may accept a connection and then hang: who waits for
a connection gives up in time, or tries the next server meanwhile.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kafka.protocol.metadata import MetadataRequest

from sparkmirror.errors import ClusterError, Denied, Unreachable
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.cluster.metadata import split_address
from sparkmirror.wire.net.connection import Connection, ConnectionLost
from sparkmirror.wire.net.shared_connection import NoResponse, SharedConnection
from sparkmirror.wire.protocol_errors import NoBroker

__all__ = ["BrokerPool", "CannotConnect"]

log = logging.getLogger(__name__)

Address = tuple[str, int]

# How long any broker may take to tell the addresses anew, if the one of before may still do.
_LEARN_S = 5.0
# How long one server may take to accept a connection before the next one is tried, too.
_NEXT_SERVER_S = 0.5


class CannotConnect(ConnectionLost):
    """No connection to a broker. ``reason``: why."""

    def __init__(self, reason: ClusterError) -> None:
        where = reason.where.rpartition(", ")[2]
        super().__init__(f"{where}: {reason.what.rstrip('.')}")
        self.reason = reason


@dataclass(slots=True)
class _Failure:
    """Why connecting failed, how often in a row, and when to try again (monotonic)."""

    error: ClusterError
    count: int
    again_at: float


class BrokerPool:
    """Connections by broker, and the brokers' addresses. Safe to share between threads.

    ``ends_throttled``: see `SharedConnection`. Raises `Denied` if a broker refuses the login,
    `CannotConnect`, `NoResponse` at the deadline, `ConnectionLost` after `close`, and `NoBroker`.
    """

    def __init__(self, client: ClusterClient, *, ends_throttled: bool = False) -> None:
        self.client = client
        self._ends_throttled = ends_throttled
        self._apart: BrokerPool | None = None
        self._changed = threading.Condition()
        self._brokers: dict[int, Address] = {}
        self._learned_at = 0.0
        self._live: dict[Address, SharedConnection] = {}
        self._attempts: set[tuple[Address, int]] = set()  # with the generation
        self._failures: dict[Address, _Failure] = {}
        self._generation = 0  # how often all connections were closed
        self.bootstrapped = False
        """Whether a bootstrap server has named brokers, since the last `close`."""

    # -- brokers ---------------------------------------------------------------------------

    def any(self, deadline: float) -> SharedConnection:
        """A connection to any broker; open ones are preferred."""
        if not self._brokers:
            self.learn(deadline)
        with self._changed:
            addresses = list(self._brokers.values())
        try:
            return self._connected(addresses, deadline)
        except CannotConnect:
            with self._changed:
                self._brokers = {}  # they may all have moved: bootstrap again
            raise

    def to(self, node: int, deadline: float, *, apart: bool = False) -> SharedConnection:
        """The connection to the broker ``node``.

        ``apart``: the second one. The broker reads nothing from a connection that it throttles, so
        that one ends then, and the next call opens another.
        """
        with self._changed:
            now = time.monotonic()
            old = (now - self._learned_at) * 1000 >= self.client.metadata_age_ms_max
            known = self._brokers.get(node)
        address = None if old else known
        if address is None:
            # The broker is new, or was down at the last request.
            try:
                self.learn(deadline if known is None else min(deadline, now + _LEARN_S))
                with self._changed:
                    address = self._brokers.get(node)
            except NoResponse:
                if known is None:
                    raise
                # Another broker was asked, and is silent: that is not this one's fault.
                address = known
        if address is None:
            raise NoBroker(f"the cluster has no broker {node} at present")
        pool = self._second() if apart else self
        try:
            return pool._connected([address], deadline)
        except CannotConnect:
            with self._changed:
                self._learned_at = float("-inf")  # it may have moved
            raise

    def _second(self) -> BrokerPool:
        with self._changed:
            if self._apart is None:
                self._apart = BrokerPool(self.client, ends_throttled=True)
            return self._apart

    def learn(self, deadline: float) -> None:
        """Request the brokers' addresses: from a known broker, else from a bootstrap server."""
        with self._changed:
            known = list(self._brokers.values())
        bootstrap = [split_address(server) for server in self.client.bootstrap_servers]
        connection = self._connected(known or bootstrap, deadline)
        # In version 0, no topics would mean all.
        response = connection.request(MetadataRequest(topics=[], min_version=1), deadline)
        brokers = {int(one.node_id): (one.host, int(one.port)) for one in response.brokers}
        if not brokers:
            raise NoBroker("the cluster has no brokers at present")
        with self._changed:
            self._brokers, self._learned_at = brokers, time.monotonic()
            self.bootstrapped = True
            unnamed = self._live.keys() - set(brokers.values())
            ended = [one for a in unnamed if not (one := self._live[a]).in_flight]
            for one in ended:
                del self._live[one.address]
        for one in ended:
            one.close()

    # -- connections -----------------------------------------------------------------------

    def _connected(self, addresses: Iterable[Address], deadline: float) -> SharedConnection:
        """A connection to one of ``addresses``; tries the next one while others take long."""
        with self._changed:
            generation = self._generation
            left = deque(self._in_order(addresses))
            tried: list[Address] = []
            next_at = 0.0
            while True:
                if self._generation != generation:
                    raise ConnectionLost("the connection was closed")
                open_one = self._open_one([*tried, *left])
                if open_one is not None:
                    return open_one
                now = time.monotonic()
                running = [one for one in tried if (one, generation) in self._attempts]
                if left and (not running or now >= next_at):
                    tried.append(left.popleft())
                    self._begin(tried[-1])
                    next_at = now + _NEXT_SERVER_S
                    continue
                if not running:
                    raise self._failure(tried)
                if now >= deadline:
                    self._raise_reason(tried)
                    servers = ", ".join(f"{host}:{port}" for host, port in running)
                    raise NoResponse(f"no connection to {servers} in time")
                until = min(deadline, next_at) if left else deadline
                self._changed.wait(until - now)

    def _in_order(self, addresses: Iterable[Address]) -> list[Address]:
        """In a random order, those that failed a moment ago last."""
        found = list(dict.fromkeys(addresses))
        random.shuffle(found)
        found.sort(key=lambda one: self._failures[one].count if one in self._failures else 0)
        return found

    def _open_one(self, addresses: Iterable[Address]) -> SharedConnection | None:
        """The open connection with the fewest requests in flight."""
        found = [self._live[address] for address in addresses if address in self._live]
        for one in sorted(found, key=lambda one: one.in_flight):
            if one.usable():
                return one
            del self._live[one.address]
        return None

    def _errors(self, tried: Sequence[Address]) -> list[ClusterError]:
        return [self._failures[one].error for one in tried if one in self._failures]

    def _failure(self, tried: Sequence[Address]) -> Exception:
        errors = self._errors(tried)
        for error in errors:
            if isinstance(error, Denied):
                return error
        # One that was reached says more than those that were not.
        errors.sort(key=lambda error: isinstance(error, Unreachable))
        if errors:
            return CannotConnect(errors[0])
        where = f"cluster {self.client.alias}"
        why = "the connection was closed." if tried else "no bootstrap server is configured."
        return CannotConnect(Unreachable(why, where=where))

    def _raise_reason(self, tried: Sequence[Address]) -> None:
        """Raise why the attempts before failed, where a server was reached: the time is up within
        another attempt or the pause before it, and "no connection in time" would hide the cause.
        """
        # One that hung up may be restarting.
        if any(
            not isinstance(error, Unreachable) and not isinstance(error.__cause__, ConnectionLost)
            for error in self._errors(tried)
        ):
            raise self._failure(tried)

    def _begin(self, address: Address) -> None:
        attempt = address, self._generation
        if attempt in self._attempts:
            return
        self._attempts.add(attempt)
        name = f"connect-{address[0]}:{address[1]}"
        threading.Thread(target=self._connect, args=attempt, name=name, daemon=True).start()

    def _connect(self, address: Address, generation: int) -> None:
        """Connect to ``address`` once its back-off is over; the body of a thread."""
        connection: SharedConnection | None = None
        failure: ClusterError | None = None
        before = self._rested(address, generation)
        try:
            if self._generation == generation:
                connection = SharedConnection(
                    Connection(*address, self._patient(before)),
                    ends_throttled=self._ends_throttled,
                )
        except ClusterError as error:
            failure = error
        except Exception as error:
            log.debug("connecting to %s:%d", *address, exc_info=True)
            failure = ClusterError(
                f"cannot connect ({error}).", where=f"cluster {self.client.alias}"
            )
        with self._changed:
            self._attempts.discard((address, generation))
            if self._generation == generation:
                if connection is not None:
                    self._failures.pop(address, None)
                    self._live[address] = connection
                    connection = None
                elif failure is not None:
                    self._failures[address] = self._failed(failure, before + 1)
            self._changed.notify_all()
        if connection is not None:
            connection.close()

    def _rested(self, address: Address, generation: int) -> int:
        """Wait for the end of the back-off; returns the number of failures before."""
        with self._changed:
            failure = self._failures.get(address)
            if failure is None:
                return 0
            while self._generation == generation:
                left_s = failure.again_at - time.monotonic()
                if left_s <= 0:
                    break
                self._changed.wait(left_s)
            return failure.count

    def _patient(self, failures: int) -> ClusterClient:
        """The client's settings; each failure doubles the time for connecting, up to its limit."""
        client = self.client
        limit_ms = max(client.connect_timeout_ms, client.connect_timeout_ms_max)
        grown_ms = client.connect_timeout_ms * 2 ** min(failures, 16)
        return replace(client, connect_timeout_ms=min(limit_ms, grown_ms))

    def _failed(self, error: ClusterError, count: int) -> _Failure:
        low, high = self.client.reconnect_backoff_ms, self.client.reconnect_backoff_ms_max
        backoff_ms = min(high, low * 2 ** min(count - 1, 16))
        spread = random.uniform(0.8, 1.2)  # noqa: S311  (spreads load, guards nothing)
        return _Failure(error, count, time.monotonic() + backoff_ms / 1000 * spread)

    # -- the end ---------------------------------------------------------------------------

    def forget(self) -> None:
        """Forget the addresses: the brokers may have moved, so bootstrap again next time."""
        with self._changed:
            self._brokers = {}

    def close(self) -> None:
        """Close all connections; requests in flight fail, and waiting threads, too."""
        with self._changed:
            self._generation += 1
            live, self._live = list(self._live.values()), {}
            second = self._apart
            self._brokers, self._failures = {}, {}
            self.bootstrapped = False
            self._changed.notify_all()
        for one in live:
            one.close()
        if second is not None:
            second.close()
