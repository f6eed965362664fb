"""Brokers with more listeners than one."""

from __future__ import annotations

from collections.abc import Mapping

from sparkmirror.testing.node import HOST, Node
from sparkmirror.testing.probe import free_ports

__all__ = ["FurtherPorts", "Listeners", "addresses"]


class FurtherPorts:
    """A port for each of ``names`` beside a node's own ones.

    They are chosen when the node is: where another process takes one of them before the broker has
    it, the cluster makes its nodes anew and starts those.
    """

    def __init__(self, *names: str) -> None:
        self._names = names
        self._chosen: dict[int, tuple[Node, dict[str, int]]] = {}

    def of(self, node: Node) -> dict[str, int]:
        known, ports = self._chosen.get(node.id, (None, {}))
        if known is not node:
            ports = dict(zip(self._names, free_ports(len(self._names)), strict=True))
            self._chosen[node.id] = node, ports
        return ports


class Listeners:
    """The listeners of a single broker, as the ``node_config`` of its cluster.

    The ``first`` is on the node's own port. ``hosts``: by which name of this machine some of the
    ``others`` are known.
    """

    def __init__(self, first: str, *others: str, hosts: Mapping[str, str] | None = None) -> None:
        self._first = first
        self._further = FurtherPorts(*others)
        self._hosts = hosts or {}
        self.servers: dict[str, str] = {}
        """The address of each, once the cluster is started."""

    def __call__(self, node: Node) -> dict[str, str]:
        ports = {self._first: node.port, **self._further.of(node)}
        self.servers = {
            name: f"{self._hosts.get(name, HOST)}:{port}" for name, port in ports.items()
        }
        shown = ",".join(f"{name}://{server}" for name, server in self.servers.items())
        return {
            "listeners": f"{shown},{addresses({'CONTROLLER': node.controller_port})}",
            "advertised.listeners": shown,
        }


def addresses(ports: Mapping[str, int]) -> str:
    """Listeners on these ports, as a broker's properties name them."""
    return ",".join(f"{name}://{HOST}:{port}" for name, port in ports.items())
