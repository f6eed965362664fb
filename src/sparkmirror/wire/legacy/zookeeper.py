"""Reads the broker addresses and the old groups' offsets of a cluster from its ZooKeeper.

Up to 3.x, brokers register under ``/brokers/ids`` (JSON since 0.8; 0.7 wrote
``creator:host:port``). The old consumer commits offsets under ``/consumers/GROUP/offsets/TOPIC/N``
as decimal numbers, each the next offset to read. ``/consumers/GROUP/owners/TOPIC/N`` is an
ephemeral node with the consumer thread that owns a partition. Nothing is ever written.
"""

from __future__ import annotations

import contextlib
import json
import logging
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError

from sparkmirror.errors import ClusterError, ConfigError, MirrorError, Unreachable
from sparkmirror.model import TopicPartition

__all__ = ["ZookeeperGroup", "find_brokers", "group_offsets", "parse_registration", "read_group"]

# A name, an IPv4 address, or an IPv6 one with brackets or without.
_ADDRESS = re.compile(r"(?:\[[0-9A-Fa-f:.%]+\]|[A-Za-z0-9._:-]+):([0-9]{1,5})")
_OFFSET = re.compile(r"[0-9]{1,19}")
_PARTITION = re.compile(r"[0-9]{1,9}")
_CONNECT_TIMEOUT_S = 8.0
_SESSION_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True)
class ZookeeperGroup:
    """An old consumer group. ``offsets``: next offset, ``owners``: thread id, per partition."""

    offsets: dict[TopicPartition, int]
    owners: dict[TopicPartition, str]


def find_brokers(connect: str, protocol: str = "PLAINTEXT") -> tuple[str, ...]:
    """``host:port`` of the listener with security ``protocol`` of every live broker.

    ``connect``: as in ``zookeeper.connect``, ``host:port,host:port/chroot``. Raises `Unreachable`
    when ZooKeeper does not respond, `ClusterError` when no live broker has such a listener, and
    `ConfigError` for a malformed ``connect``.
    """
    where = f"ZooKeeper {connect}"
    with _session(connect) as session:
        try:
            ids = session.get_children("/brokers/ids")
            registrations = [session.get(f"/brokers/ids/{broker}")[0] for broker in sorted(ids)]
        except NoNodeError as error:
            raise ClusterError(
                "no Kafka cluster is registered there (there is no /brokers/ids).",
                where=where,
                do="Check the chroot at the end of zookeeper.connect, or write bootstrap.servers. "
                "A cluster without ZooKeeper (KRaft) is found by bootstrap.servers only.",
            ) from error
    found = [parse_registration(data, protocol) for data in registrations]
    servers = tuple(dict.fromkeys(server for server in found if server))
    if not servers:
        raise ClusterError(
            f"{len(registrations)} live brokers are registered, none with a {protocol} listener."
            if registrations
            else "no broker is registered, so none runs.",
            where=where,
            do="Start the brokers, set security.protocol to one that they offer, or write "
            "bootstrap.servers.",
        )
    return servers


def parse_registration(data: bytes, protocol: str) -> str:
    """``host:port`` from one broker's registration, ``""`` if it has no such listener. Pure.

    Malformed data counts as no listener: a writer to ZooKeeper must not be able to stop a command.
    """
    text = data.decode("utf-8", "replace").strip()
    if not text.startswith("{"):
        _, _, address = text.partition(":")  # 0.7: creator:host:port
        return _address(address) if protocol == "PLAINTEXT" else ""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return ""
    names = document.get("listener_security_protocol_map")
    endpoints = document.get("endpoints")
    for endpoint in endpoints if isinstance(endpoints, list) else ():
        listener, mark, address = str(endpoint).partition("://")
        named = names.get(listener, listener) if isinstance(names, dict) else listener
        if mark and named == protocol and _address(address):
            return address
    host, port = document.get("host"), document.get("port")
    if protocol == "PLAINTEXT" and isinstance(host, str) and type(port) is int:
        return _address(f"{host}:{port}") if 0 < port < 65_536 else ""
    return ""


def _address(text: str) -> str:
    """``text`` if it is ``host:port``, else ``""``."""
    match = _ADDRESS.fullmatch(text)
    return text if match and 0 < int(match[1]) < 65_536 else ""


def group_offsets(
    connect: str, group: str, partitions: Iterable[TopicPartition]
) -> dict[TopicPartition, int]:
    """Next offset per partition that the old consumers of ``group`` committed in ZooKeeper.

    Partitions without one are missing. Raises `Unreachable`, `ConfigError`.
    """
    offsets: dict[TopicPartition, int] = {}
    with _session(connect) as session:
        for tp in partitions:
            path = f"/consumers/{group}/offsets/{tp.topic}/{tp.partition}"
            offset = _offset(_text(session, path))
            if offset is not None:
                offsets[tp] = offset
    return offsets


def read_group(connect: str, group: str) -> ZookeeperGroup:
    """Offsets and owners of an old consumer group; empty for an unknown one.

    Raises `Unreachable`, `ConfigError`.
    """
    with _session(connect) as session:
        offsets = {
            tp: offset
            for tp, text in _per_partition(session, f"/consumers/{group}/offsets")
            if (offset := _offset(text)) is not None
        }
        owners = dict(_per_partition(session, f"/consumers/{group}/owners"))
    return ZookeeperGroup(offsets, owners)


def _per_partition(session: Any, path: str) -> Iterator[tuple[TopicPartition, str]]:
    """The texts under ``path/TOPIC/N``; skips names like 0.7's ``BROKER-N``, which name brokers."""
    for topic in _children(session, path):
        for name in _children(session, f"{path}/{topic}"):
            text = _text(session, f"{path}/{topic}/{name}")
            if _PARTITION.fullmatch(name) and text:
                yield TopicPartition(topic, int(name)), text


def _children(session: Any, path: str) -> list[str]:
    try:
        return sorted(session.get_children(path))
    except NoNodeError:
        return []


def _text(session: Any, path: str) -> str:
    try:
        data, _ = session.get(path)
    except NoNodeError:  # owners come and go
        return ""
    return (data or b"").decode("utf-8", "replace").strip()


def _offset(text: str) -> int | None:
    """A decimal number that fits 64 bits; otherwise None."""
    offset = int(text) if _OFFSET.fullmatch(text) else -1
    return offset if 0 <= offset < 1 << 63 else None


@contextlib.contextmanager
def _session(connect: str) -> Iterator[Any]:
    """A read-only session; errors of ZooKeeper and the network become `MirrorError`s."""
    # kazoo logs each refused connection as a warning; the error below says the same.
    logging.getLogger("kazoo").setLevel(logging.ERROR)
    logging.getLogger("kazoo.client").setLevel(logging.CRITICAL)
    where = f"ZooKeeper {connect}"
    try:
        client = KazooClient(hosts=connect, timeout=_SESSION_TIMEOUT_S, read_only=True)
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"the address cannot be read ({error}).",
            where=where,
            do="Write zookeeper.connect=host:port[,host:port…][/chroot].",
        ) from error
    interrupted = False
    try:
        with warnings.catch_warnings():  # about a missing chroot: the error says so, too
            warnings.simplefilter("ignore", UserWarning)
            client.start(timeout=_CONNECT_TIMEOUT_S)
        yield client
    except MirrorError:
        raise
    except (KazooTimeoutError, KazooException, OSError) as error:
        raise Unreachable(
            f"no answer ({type(error).__name__}).",
            where=where,
            do="Check the address and that ZooKeeper runs, or write bootstrap.servers=host:port.",
        ) from error
    except KeyboardInterrupt:
        interrupted = True
        raise
    finally:
        # Ctrl+C ends the process, and with it the client's threads. `stop` would first wait ten
        # seconds for a ZooKeeper that does not answer.
        if not interrupted:
            with contextlib.suppress(KazooException, OSError):
                client.stop()
                client.close()
