"""A broker in threads: it answers ApiVersions, and everything else as a function says."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Callable, Mapping
from types import EllipsisType
from typing import Any

from kafka.protocol.metadata import ApiVersionsResponse, MetadataResponse

__all__ = ["FakeBroker", "metadata"]

_VERSIONS = {0: (3, 9), 1: (4, 11), 2: (1, 7), 3: (0, 9), 10: (0, 3), 15: (0, 5), 16: (0, 3)}
Answer = Any
Said = Callable[[int, int], Answer]


class FakeBroker:
    """Calls ``said(api key, version)`` for each request, and sends what it returns.

    None hangs up, an ellipsis is no answer at all, bytes are sent as they are. ``asked``: the API
    keys in order, without ApiVersions (18). ``accepted``: the number of connections so far.
    """

    def __init__(self, said: Said, versions: Mapping[int, tuple[int, int]] = _VERSIONS) -> None:
        self.said = said
        self.versions = dict(versions)
        self.asked: list[int] = []
        self.accepted = 0
        self._peers: list[socket.socket] = []
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._server.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _accept(self) -> None:
        while True:
            try:
                peer, _ = self._server.accept()
            except OSError:
                return
            self.accepted += 1
            self._peers.append(peer)
            threading.Thread(target=self._serve, args=(peer,), daemon=True).start()

    def _serve(self, peer: socket.socket) -> None:
        stream = peer.makefile("rb")
        try:
            while head := stream.read(4):
                request = stream.read(int.from_bytes(head, "big"))
                key, version, correlation = struct.unpack_from(">hhi", request)
                answer = self._versions() if key == 18 else self._answer(key, version)
                if answer is None:
                    break
                if isinstance(answer, EllipsisType):
                    continue
                if not isinstance(answer, bytes):
                    flexible = key != 18 and answer.flexible_version_q(version)
                    head = correlation.to_bytes(4, "big") + b"\0" * flexible
                    body = head + bytes(answer.encode(version=version))
                    answer = len(body).to_bytes(4, "big") + body
                peer.sendall(answer)
        except OSError:
            pass
        finally:
            stream.close()
            peer.close()

    def _answer(self, key: int, version: int) -> Answer:
        self.asked.append(key)
        return self.said(key, version)

    def _versions(self) -> Any:
        row = ApiVersionsResponse.ApiVersion
        keys = [
            row(api_key=key, min_version=a, max_version=b) for key, (a, b) in self.versions.items()
        ]
        return ApiVersionsResponse(error_code=0, api_keys=keys)

    def hang_up(self) -> None:
        """Close all connections; new ones are accepted."""
        peers, self._peers = self._peers, []
        for peer in peers:
            with contextlib.suppress(OSError):
                peer.shutdown(socket.SHUT_RDWR)

    def stop(self) -> None:
        """Close all connections, and accept no more."""
        with contextlib.suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # closing alone does not end `accept`
        self._server.close()
        self.hang_up()


def metadata(
    brokers: Mapping[int, FakeBroker],
    leaders: Mapping[tuple[str, int], int] = {},
    *,
    controller: int = -1,
) -> Any:
    """The answer to Metadata: ``brokers`` by node id, and the leader of each partition."""
    topics = {name for name, _ in leaders}
    topic = MetadataResponse.MetadataResponseTopic
    part = topic.MetadataResponsePartition
    return MetadataResponse(
        throttle_time_ms=0,
        brokers=[
            MetadataResponse.MetadataResponseBroker(
                node_id=node, host="127.0.0.1", port=broker.port, rack=None
            )
            for node, broker in brokers.items()
        ],
        cluster_id="c",
        controller_id=controller,
        topics=[
            topic(
                error_code=0, name=name, topic_id=None, is_internal=False,
                partitions=[
                    part(
                        error_code=0, partition_index=number, leader_id=leader, leader_epoch=0,
                        replica_nodes=[leader], isr_nodes=[leader], offline_replicas=[],
                    )
                    for (other, number), leader in leaders.items()
                    if other == name
                ],
            )
            for name in sorted(topics)
        ],
    )  # fmt: skip
