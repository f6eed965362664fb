"""Who may talk to Spark's ports: what we set, and what we refuse to start with."""

from __future__ import annotations

import logging
import socket
from dataclasses import replace
from typing import Any, ClassVar, Self

import pytest

from sparkmirror.data.spark.ports import (
    check_local,
    cluster_settings,
    driver_host,
    is_local,
    own_settings,
    secrets_of,
    withheld,
)
from sparkmirror.errors import ConfigError
from sparkmirror.settings import (
    CheckpointSettings,
    ClusterClient,
    FlowSettings,
    MirrorSettings,
    OffsetSyncSettings,
)

SECRET = {"spark.authenticate.secret": "x" * 32}
CLOSED = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.saslFallback": "false",
}


@pytest.mark.parametrize(
    ("master", "local"),
    [
        ("local", True),
        ("local[*]", True),
        (" local[4, 2] ", True),
        ("local-cluster[2,1,1024]", False),  # processes of its own, which connect
        ("spark://h:7077", False),
        ("yarn", False),
        ("k8s://https://h", False),
    ],
)
def test_what_a_local_master_is(master: str, local: bool) -> None:
    assert is_local(master) == local
    host = own_settings(master).get("spark.driver.bindAddress")
    assert host == ("127.0.0.1" if local else None)


class _Network:
    """This machine is 10.0.0.5 and has a name that leads to itself, as many have."""

    NAMES: ClassVar = {"this": "127.0.1.1", "master": "10.0.0.9", "kafka": "10.1.0.9", "six": "::9"}
    ROUTES: ClassVar = {"10.0.": "10.0.0.5", "10.1.": "10.1.0.5", "127.": "127.0.0.1", "::": "::5"}

    def __init__(self, family: int, _kind: int) -> None:
        self._own = ""

    @classmethod
    def resolve(cls, host: str, port: int, *, type: int) -> list[Any]:
        address = cls.NAMES.get(host, host)
        if not address[0].isdigit() and ":" not in address:
            raise socket.gaierror(f"{host} is not known")
        return [(2, type, 0, "", (address, port))]

    def connect(self, address: tuple[str, int]) -> None:
        own = [own for net, own in self.ROUTES.items() if address[0].startswith(net)]
        if not own:
            raise OSError("no route")
        self._own = own[0]

    def getsockname(self) -> tuple[str, int]:
        return self._own, 40_000

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass


@pytest.mark.parametrize(
    ("master", "host"),
    [
        ("spark://master:7077", "10.0.0.5"),
        ("spark://gone:7077,master:7077", "10.0.0.5"),
        ("spark://172.16.0.1:7077", "10.1.0.5"),  # no route: where Kafka is reached from
        ("spark://127.0.0.1:7077", "127.0.0.1"),
        ("spark://this:7077", "127.0.0.1"),
        ("k8s://https://master:6443", "10.0.0.5"),
        ("k8s://https://master", "10.0.0.5"),
        ("spark://[::9]:7077", "[::5]"),
        ("spark://six:7077", "[::5]"),
        ("yarn", "10.1.0.5"),
        ("local-cluster[2,1,1024]", "10.1.0.5"),
    ],
)
def test_the_driver_is_where_executors_reach_it(
    master: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(socket, "getaddrinfo", _Network.resolve)
    monkeypatch.setattr(socket, "socket", _Network)
    assert driver_host(master, ["gone:9092", "kafka:9092"]) == host
    assert driver_host("yarn", ["gone:9092"]) == ""


def test_on_this_machine_the_driver_is_on_it() -> None:
    assert driver_host("spark://127.0.0.1:7077", []) == "127.0.0.1"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("spark.driver.host", "10.0.0.5"),
        ("spark.driver.host", "mirror.example.com"),
        ("spark.driver.bindAddress", "0.0.0.0"),
        ("spark.driver.bindAddress", "::"),
        ("spark.authenticate", "false"),
    ],
)
def test_what_would_open_a_local_spark_is_refused_by_name(key: str, value: str) -> None:
    with pytest.raises(ConfigError, match="Spark's ports") as caught:
        check_local({"spark.a": "b", key: value})
    assert caught.value.what.startswith(f"{key}={value} would ")
    assert caught.value.do.startswith("Leave it out: with a local master it is ")


def test_what_leaves_a_local_spark_closed_is_not_refused() -> None:
    for value in ("127.0.0.1", "127.1.2.3", "localhost", "[::1]"):
        check_local({"spark.driver.host": value, "spark.driver.bindAddress": value})
    check_local({"spark.authenticate": "TRUE", **SECRET, "spark.driver.port": "4711"})


def test_a_ui_that_is_asked_for_is_named(caplog: pytest.LogCaptureFixture) -> None:
    check_local({"spark.ui.enabled": "false"})
    assert caplog.text == ""
    check_local({"spark.ui.enabled": "true"})
    assert "--conf spark.ui.enabled=true: Spark's UI is open, without a login" in caplog.text


def _flow(**properties: str) -> FlowSettings:
    clients = [ClusterClient(alias, ("h:1",), alias) for alias in "ABAB"]
    clients[3] = ClusterClient("B", ("h:1",), "B", properties=properties)
    return FlowSettings(*clients)


def test_which_clusters_have_secrets() -> None:
    harmless = _flow(**{"client.rack": "r", "sasl.mechanism": "PLAIN", "ssl.key.password": ""})
    assert secrets_of(MirrorSettings((harmless,), ("A", "B"))) == []
    secret = _flow(**{"sasl.jaas.config": "x required;"})
    assert secrets_of(MirrorSettings((harmless, secret), ("A", "B"))) == ["B"]
    # Also those of a feature that is off: the executors get the whole flow.
    client = ClusterClient("A", ("h:1",), "A", properties={"sasl.jaas.config": "x required;"})
    for enabled in (True, False):
        for flow in (
            replace(harmless, offset_syncs=OffsetSyncSettings(enabled, client=client)),
            replace(harmless, checkpoints=CheckpointSettings(enabled, client=client)),
        ):
            assert secrets_of(MirrorSettings((flow,), ("A", "B"))) == ["A"]


@pytest.mark.parametrize(
    ("given", "lacking"),
    [
        (
            {},
            "spark.authenticate true; spark.authenticate.secret LONG-RANDOM-TEXT;"
            " spark.network.crypto.enabled true; spark.network.crypto.saslFallback false.",
        ),
        (CLOSED, ": spark.authenticate.secret LONG-RANDOM-TEXT."),
        ({**SECRET, "spark.authenticate": "false"}, ": spark.authenticate true."),
        (
            {**SECRET, "spark.network.crypto.enabled": "false"},
            ": spark.network.crypto.enabled true.",
        ),
        (
            {**SECRET, "spark.network.crypto.saslFallback": "true"},
            ": spark.network.crypto.saslFallback false.",
        ),
        ({"spark.ssl.rpc.enabled": "true"}, ": spark.authenticate true; spark.authenticate.secret"),
    ],
)
def test_no_secret_goes_through_an_open_cluster(
    given: dict[str, str], lacking: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(ConfigError, match="could read the secrets of clusters A, B") as caught:
        cluster_settings("spark://h:7077", given, ["A", "B"])
    assert lacking in caught.value.do
    assert caught.value.where == "master spark://h:7077"
    # Without secrets it starts, and says what is missing.
    with caplog.at_level(logging.WARNING):
        cluster_settings("spark://h:7077", given, [])
    assert lacking.rstrip(".") in caplog.text


def test_who_agreed_on_a_secret_with_the_cluster_has_the_rest_from_us(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert cluster_settings("spark://h:7077", SECRET, ["A"]) == CLOSED
    assert cluster_settings("spark://h:7077", SECRET | CLOSED, ["A"]) == {}
    tls = SECRET | {"spark.ssl.rpc.enabled": "true", "spark.network.crypto.enabled": "false"}
    assert cluster_settings("spark://h:7077", tls, ["A"])["spark.authenticate"] == "true"
    assert caplog.text == ""


@pytest.mark.parametrize("master", ["yarn", "k8s://https://h:443"])
def test_masters_that_make_the_secret_themselves_need_nothing_from_the_user(master: str) -> None:
    assert own_settings(master) == CLOSED
    assert cluster_settings(master, CLOSED, ["A"]) == {}
    with pytest.raises(ConfigError, match=r"secrets of cluster A"):
        cluster_settings(master, CLOSED | {"spark.network.crypto.enabled": "false"}, ["A"])


def test_what_stands_on_no_command_line() -> None:
    shown = {"spark.app.name", "spark.authenticate"}
    hidden = {"spark.authenticate.secret", "spark.ssl.keyStorePassword", "spark.x.Token"}
    assert withheld(dict.fromkeys(shown | hidden, "x")) == hidden
