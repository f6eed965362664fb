"""Discovery by an HTTP server that answers as Ambari does."""

from __future__ import annotations

import json
import re
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.verbs.discover import password_from
from sparkmirror.errors import ClusterError, ConfigError
from sparkmirror.wire.legacy.ambari import parse_hosts
from tests.ambari import (
    BROKERS,
    HOSTS,
    KEEPERS,
    SECRET,
    SETTINGS,
    Ambari,
    component,
    hosts,
    serve,
    settings,
)
from tests.certificates import Authority


@pytest.fixture
def ambari(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ambari]:
    monkeypatch.setenv("AMBARI_PASSWORD", SECRET)
    with serve(Ambari()) as one:
        yield one


def discover(ambari: Ambari, *more: str, password: str = "env:AMBARI_PASSWORD") -> int:
    return main(["discover", "ambari", "--url", ambari.url, "--cluster", "kafka one",
                 "--password", password, *more])  # fmt: skip


def test_addresses_with_the_usual_ports(ambari: Ambari, capsys: pytest.CaptureFixture[str]) -> None:
    assert discover(ambari) == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "bootstrap.servers=wn0-kafka.internal:9092,wn1-kafka.internal:9092",
        "zookeeper.connect=zk0.internal:2181,zk2.internal:2181",
    ]
    assert told.err == ""
    assert all(line.startswith("GET ") for line in ambari.seen)


def test_ports_and_chroot_of_the_configuration(
    ambari: Ambari, capsys: pytest.CaptureFixture[str]
) -> None:
    ambari.answers[SETTINGS] = settings(
        {"listeners": "PLAINTEXT://localhost:6667", "zookeeper.connect": "zk0:2182,zk2:2182/kafka"}
    )
    ambari.answers[BROKERS]["host_components"][0]["HostRoles"]["state"] = "INSTALLED"
    assert discover(ambari, "--alias", "A") == 0
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "# listeners=PLAINTEXT://localhost:6667",
        "A.bootstrap.servers=wn0-kafka.internal:6667,wn1-kafka.internal:6667",
        "# zookeeper.connect=zk0.internal:2182,zk2.internal:2182/kafka",
    ]
    assert "wn1-kafka.internal is not started" in told.err
    assert (
        discover(ambari, "--broker-port", "9093", "--zookeeper-port", "1", "--format", "json") == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["bootstrap.servers"].endswith("wn1-kafka.internal:9093")
    assert found["zookeeper.connect"] == "zk0.internal:1,zk2.internal:1/kafka"


IPS = {
    "wn0-kafka.internal": "10.0.0.4",
    "wn1-kafka.internal": "10.0.0.5",
    "zk0.internal": "10.0.0.6",
    "zk2.internal": "fd00::7",
    "hn0.internal": "10.0.0.8",
}
# What the documents of managed clusters add to kafka-env, so that brokers advertise addresses.
ENV = """\
export KAFKA_HEAP_OPTS="-Xmx1g"
# advertised by address
IP_ADDRESS=$(hostname -i)
sed -i.bak -e '/advertised/{/advertised@/!d;}' /etc/kafka/conf/server.properties
echo "advertised.listeners=PLAINTEXT://$IP_ADDRESS:9092" >> /etc/kafka/conf/server.properties
"""


def test_addresses_beside_names_and_what_is_advertised(
    ambari: Ambari, capsys: pytest.CaptureFixture[str]
) -> None:
    ambari.answers[HOSTS] = hosts(IPS)
    ambari.answers[SETTINGS] = settings(
        {"listeners": "PLAINTEXT://0.0.0.0:9092", "advertised.listeners": "PLAINTEXT://h:9092"}, ENV
    )
    names, ips = "wn0-kafka.internal:9092,wn1-kafka.internal:9092", "10.0.0.4:9092,10.0.0.5:9092"
    keepers, by_ip = "zk0.internal:2181,zk2.internal:2181", "10.0.0.6:2181,[fd00::7]:2181"
    told = [
        "# listeners=PLAINTEXT://0.0.0.0:9092",
        "# advertised.listeners=PLAINTEXT://h:9092",
        "# kafka-env: sed -i.bak -e '/advertised/{/advertised@/!d;}' "
        "/etc/kafka/conf/server.properties",
        '# kafka-env: echo "advertised.listeners=PLAINTEXT://$IP_ADDRESS:9092" >> '
        "/etc/kafka/conf/server.properties",
    ]
    assert discover(ambari) == 0
    assert capsys.readouterr().out.splitlines() == [
        *told,
        f"bootstrap.servers={names}",
        f"# by IP address: {ips}",
        f"zookeeper.connect={keepers}",
        f"# by IP address: {by_ip}",
    ]
    assert discover(ambari, "--ip", "--alias", "A") == 0
    assert capsys.readouterr().out.splitlines() == [
        *told,
        f"A.bootstrap.servers={ips}",
        f"# by name: {names}",
        f"# zookeeper.connect={by_ip}",
        f"# by name: {keepers}",
    ]
    assert discover(ambari, "--format", "json", "--ip") == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["bootstrap.servers"], found["zookeeper.connect"]) == (ips, by_ip)
    assert found["brokers"]["names"] == names.split(",")
    assert found["advertised.listeners"] == "PLAINTEXT://h:9092"
    assert len(found["kafka-env"]) == 2


PAGE = (Path(__file__).parents[4] / "docs" / "managed-hadoop.md").read_text(encoding="utf-8")


def test_the_page_shows_what_is_printed(
    ambari: Ambari, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """And its lines for kafka-env do what they are for."""
    (shown,) = re.findall(r"```properties\n(.*?)```", PAGE, re.DOTALL)
    (script,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    ips = {"wn0-kafka": "10.0.0.4", "wn1-kafka": "10.0.0.5",
           "zk0-kafka": "10.0.0.6", "zk1-kafka": "10.0.0.7"}  # fmt: skip
    named = {f"{host}.internal": ip for host, ip in ips.items()}
    for answer, service, name, start in (
        (BROKERS, "KAFKA", "KAFKA_BROKER", "wn"),
        (KEEPERS, "ZOOKEEPER", "ZOOKEEPER_SERVER", "zk"),
    ):
        there = [host for host in named if host.startswith(start)]
        ambari.answers[answer] = component(service, name, there)
    ambari.answers[HOSTS] = hosts(named)
    ambari.answers[SETTINGS] = settings({"listeners": "PLAINTEXT://0.0.0.0:9092"}, script)
    assert discover(ambari, "--alias", "old") == 0
    assert capsys.readouterr().out == shown

    path = tmp_path / "server.properties"
    path.write_text(
        "advertised.listeners=PLAINTEXT://wn0:6667\nlisteners=PLAINTEXT://0.0.0.0:9092\n"
    )
    place = "/usr/hdp/current/kafka-broker/conf/server.properties"
    assert place in script
    here = script.replace(place, str(path)).replace("$(hostname -i)", "10.0.0.4")
    for _ in range(2):  # at each start of the broker
        subprocess.run(["bash", "-e", "-c", here], check=True)
    assert path.read_text().splitlines() == [
        "listeners=PLAINTEXT://0.0.0.0:9092",
        "advertised.listeners=PLAINTEXT://10.0.0.4:9092",
    ]


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"<html>",
        {"items": [{"Hosts": {"host_name": "wn0-kafka.internal"}}]},
        hosts({**IPS, "wn1-kafka.internal": "10.0.0.5\nA.bootstrap.servers=evil:1"}),
        hosts({key: ip for key, ip in IPS.items() if key[:3] != "wn1"}),
    ],
)
def test_addresses_that_ambari_does_not_tell(
    ambari: Ambari, capsys: pytest.CaptureFixture[str], answer: Any
) -> None:
    """Names are enough, unless addresses are asked for."""
    if answer is not None:
        ambari.answers[HOSTS] = answer
    assert discover(ambari) == 0
    told = capsys.readouterr().out
    assert told.startswith("bootstrap.servers=wn0-kafka.internal:9092,")
    assert "evil" not in told
    assert "10.0.0.5" not in told
    assert discover(ambari, "--ip") == 1
    assert "does not report the IP address of every broker" in " ".join(
        capsys.readouterr().err.split()
    )


@pytest.mark.parametrize("broken", ["\n", "\r", "\r\n", "\u2028", "\x85", "\x0c", "\x1b[2J"])
def test_what_the_server_says_makes_no_lines_of_its_own(
    ambari: Ambari, capsys: pytest.CaptureFixture[str], broken: str
) -> None:
    """The output goes into a properties file."""
    planted = f"{broken}A.bootstrap.servers=evil:1{broken}"
    ambari.answers[SETTINGS] = settings(
        {"listeners": f"PLAINTEXT://h:6667{planted}", "advertised.listeners": planted},
        f"advertised {planted}",
    )
    assert discover(ambari, "--alias", "A") == 0
    told = capsys.readouterr().out
    lines = told.splitlines()
    assert [line for line in lines if line.startswith("A.bootstrap")] == [
        "A.bootstrap.servers=wn0-kafka.internal:6667,wn1-kafka.internal:6667"
    ]
    assert len([line for line in lines if line[0] != "#"]) == 1
    assert told.replace("\n", "").isprintable()

    for chroot in (f"kafka{planted}", "kafka\\", "a b", "a,b"):
        ambari.answers[SETTINGS] = settings({"zookeeper.connect": f"zk0:2182/{chroot}"})
        assert discover(ambari) == 1
        said = capsys.readouterr()
        assert said.out == ""
        assert "is no path of ZooKeeper" in " ".join(said.err.split())


@pytest.mark.parametrize("port", ["9" * 5_000, "\u0662\u0661", "\u00b2"])
def test_odd_ports_are_passed_over(
    ambari: Ambari, capsys: pytest.CaptureFixture[str], port: str
) -> None:
    ambari.answers[SETTINGS] = settings(
        {"listeners": f"PLAINTEXT://h:{port}", "zookeeper.connect": f"zk0:{port}/kafka"}
    )
    assert discover(ambari) == 0
    assert "bootstrap.servers=wn0-kafka.internal:9092," in capsys.readouterr().out


def test_a_cluster_without_zookeeper(ambari: Ambari, capsys: pytest.CaptureFixture[str]) -> None:
    del ambari.answers[KEEPERS]
    assert discover(ambari) == 0
    assert "zookeeper" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (b"<html>", "not JSON"),
        ({"items": []}, "host_components"),
        ([1], "host_components"),
        ({"host_components": []}, "on no host"),
        ({"host_components": [{"HostRoles": {"host_name": "a b\n"}}]}, "no host name"),
    ],
)
def test_answers_of_another_shape(
    ambari: Ambari, capsys: pytest.CaptureFixture[str], answer: Any, words: str
) -> None:
    ambari.answers[BROKERS] = answer
    assert discover(ambari) == 1
    assert words in capsys.readouterr().err


def test_refusals(ambari: Ambari, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("wrong\n")
    assert discover(ambari, password=f"file:{tmp_path / 'secret'}") == 1
    assert "refuses the login" in capsys.readouterr().err
    del ambari.answers[BROKERS]
    assert discover(ambari) == 1
    assert "no such cluster" in capsys.readouterr().err
    with serve(Ambari()) as other:
        ambari.redirect = other.url
        assert discover(ambari) == 1
        assert "redirects to" in capsys.readouterr().err
        assert other.seen == []  # the password did not go along
    ambari.url = "ftp://host"
    assert discover(ambari) == 2
    ambari.url = "http://127.0.0.1:1"
    assert discover(ambari) == 1
    assert "Traceback" not in capsys.readouterr().err


def test_tls(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("AMBARI_PASSWORD", SECRET)
    authority = Authority()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(authority.certify("a", "127.0.0.1").pem_file(tmp_path / "server.pem"))
    (tmp_path / "ca.pem").write_text(authority.pem())
    with serve(Ambari(), context) as ambari:
        assert discover(ambari) == 1
        assert "--ca-file" in capsys.readouterr().err
        assert discover(ambari, "--ca-file", str(tmp_path / "ca.pem")) == 0
        assert discover(ambari, "--ca-file", str(tmp_path / "none.pem")) == 2


def test_the_password_is_never_taken_from_the_command_line(
    ambari: Ambari, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    for given in (SECRET, "env:NO_SUCH_VARIABLE_HERE", f"file:{tmp_path / 'none'}"):
        assert discover(ambari, password=given) == 2
        assert SECRET not in capsys.readouterr().err
    assert ambari.seen == []
    with pytest.raises(ConfigError):
        password_from(None, "")  # no terminal here
    ambari.url = ambari.url.replace("http://", f"http://admin:{SECRET}@")
    assert discover(ambari) == 2
    assert SECRET not in capsys.readouterr().err


def test_hosts_without_states() -> None:
    answer = {
        "host_components": [{"HostRoles": {"host_name": "b"}}, {"HostRoles": {"host_name": "a"}}]
    }
    assert parse_hosts(answer, "x") == {"a": "", "b": ""}
    with pytest.raises(ClusterError):
        parse_hosts(None, "x")
