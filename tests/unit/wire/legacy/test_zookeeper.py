"""What stands in ZooKeeper may be anything: none of it is an error of ours."""

from __future__ import annotations

import json
from typing import Any

import pytest
from kazoo.client import KazooClient

from sparkmirror.wire.legacy.zookeeper import _offset, find_brokers, parse_registration

GOOD: dict[str, Any] = {
    "listener_security_protocol_map": {"IN": "PLAINTEXT", "OUT": "SASL_SSL"},
    "endpoints": ["IN://a:9092", "OUT://b.example:9093"],
    "host": "a",
    "port": 9092,
    "version": 4,
}
ODD: tuple[Any, ...] = (
    None, True, 1, 1.5, -1, 10**400, "", "x", "x:y", [], [[]], [1, None, {}], {}, {"a": []},
    ["IN://"], ["IN://\n:1"], ["IN://a:99999"], ["IN://a:0"], [["IN", "x"]],
)  # fmt: skip


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize("field", sorted(GOOD))
def test_odd_registrations(field: str, odd: Any, protocol: str) -> None:
    found = parse_registration(json.dumps(GOOD | {field: odd}).encode(), protocol)
    # Whatever is left of it is an address, or nothing is found.
    assert found in ("", "a:9092", "b.example:9093", "x:9092")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b'{"a":' * 100_000,
        b"\xff\xfe{}",
        b"{}",
        b"creator:host",
        b"creator:\x1b[2J:9092",
        b"creator:host:9092:more stuff",
        b"creator:host:" + b"9" * 5_000,
        b'{"host": "a\\nb", "port": 1}',
    ],
)
def test_what_is_no_registration(data: bytes) -> None:
    assert parse_registration(data, "PLAINTEXT") == ""


def test_registrations_of_every_age() -> None:
    assert parse_registration(b"host-1234:host:9092", "PLAINTEXT") == "host:9092"
    assert parse_registration(b'{"host": "h", "port": 1, "version": 1}', "PLAINTEXT") == "h:1"
    assert parse_registration(json.dumps(GOOD).encode(), "SASL_SSL") == "b.example:9093"
    old = {"endpoints": ["SSL://[::1]:9093"], "host": None, "port": -1}
    assert parse_registration(json.dumps(old).encode(), "SSL") == "[::1]:9093"


@pytest.mark.parametrize(
    ("text", "offset"),
    [
        ("0", 0),
        ("9223372036854775807", 2**63 - 1),
        ("9223372036854775808", None),
        ("9" * 5_000, None),
        ("-1", None),
        ("1_000", None),
        ("\u0661", None),
        ("", None),
        ("{}", None),
    ],
)
def test_offsets(text: str, offset: int | None) -> None:
    assert _offset(text) == offset


def test_ctrl_c_waits_for_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """`stop` waits until the client's thread has had its answer, or ten seconds."""
    stopped: list[KazooClient] = []

    def interrupted(client: KazooClient, timeout: float) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(KazooClient, "start", interrupted)
    monkeypatch.setattr(KazooClient, "stop", stopped.append)
    with pytest.raises(KeyboardInterrupt):
        find_brokers("127.0.0.1:2181")
    assert stopped == []
