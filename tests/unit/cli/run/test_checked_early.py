"""What is wrong in a file or on the command line is said before any cluster is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.cli.run.parts import check_master
from sparkmirror.cli.shared import connections
from sparkmirror.errors import ConfigError
from tests.unit.config_files import BASE, write


@pytest.fixture
def untouched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A probe of a cluster fails the test."""

    def asked(*_: object) -> None:
        raise AssertionError("a cluster was asked")

    monkeypatch.setattr(connections, "_Probe", asked)


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        (
            "sparkmirror.metrics.listen=0.0.0.0:9404\n",
            "metrics on 0.0.0.0:9404 could be read by anybody",
        ),
        (
            "sparkmirror.metrics.listen=127.0.0.1:9404\n"
            "sparkmirror.metrics.token.file=/nowhere/token\n",
            "the token file /nowhere/token cannot be read",
        ),
        (
            "A.security.protocol=SSL\nA.ssl.truststore.location=/nowhere/trust.pem\n"
            "A.ssl.truststore.type=PEM\n",
            "/nowhere/trust.pem",
        ),
        (
            "B.security.protocol=SASL_SSL\nB.sasl.mechanism=PLAIN\n"
            "B.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required"
            ' username="u" password="p";\n'
            "B.ssl.keystore.location=/nowhere/key.p12\nB.ssl.keystore.password=secret\n",
            "/nowhere/key.p12",
        ),
        *(
            (
                f"{scope}.security.protocol=SSL\n{scope}.ssl.truststore.type=PEM\n"
                f"{scope}.ssl.truststore.location=/nowhere/{scope}.pem\n",
                f"/nowhere/{scope}.pem",
            )
            for scope in (
                "A->B.source.producer",  # writes offset syncs
                "A->B.target.consumer",  # reads checkpoints
                "B->A.producer.override",  # writes heartbeats
            )
        ),
    ],
)
def test_config_refuses_what_a_run_refuses(
    lines: str, told: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], untouched: None
) -> None:
    path = write(tmp_path, BASE + lines)
    assert main(["config", str(path)]) == 2
    assert told in capsys.readouterr().err
    assert main(["config", str(write(tmp_path, BASE))]) == 0


def test_files_of_clients_that_nothing_uses_are_not_looked_at(
    tmp_path: Path, untouched: None
) -> None:
    lines = "".join(
        f"{scope}.security.protocol=SSL\n{scope}.ssl.truststore.type=PEM\n"
        f"{scope}.ssl.truststore.location=/nowhere/trust.pem\n"
        for scope in ("A->B.source.producer", "A->B.target.consumer")
    )
    path = write(tmp_path, f"{BASE}{lines}emit.offset-syncs.enabled=false\n")
    assert main(["config", str(path)]) == 0


def test_a_pattern_of_verify(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], untouched: None
) -> None:
    path = write(tmp_path, BASE)
    assert main(["verify", str(path), "--topic", "["]) == 2
    assert "--topic" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "where"),
    [
        (["--master", "yarn"], "--master yarn"),
        (["--master", "lokal[2]"], "--master"),
        (["--master", "local[0]"], "--master"),
        (["--conf", "spark.master=spark//h:7077"], "--conf spark.master"),
    ],
)
def test_a_master_that_is_none(
    arguments: list[str],
    where: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("HADOOP_CONF_DIR", "YARN_CONF_DIR"):
        monkeypatch.delenv(name, raising=False)
    work = tmp_path / "work"
    path = write(tmp_path, BASE)
    assert main(["run", str(path), *arguments, "--work-dir", str(work)]) == 2
    assert f"error: {where}: " in capsys.readouterr().err
    assert not work.exists(), "nothing was begun"


def test_masters_that_spark_has(tmp_path: Path) -> None:
    for master in (
        "local", "local[*]", "local[4]", "local[4,2]", "local[*, 3]", "spark://h:7077",
        "spark://a:1,b:2", "k8s://https://h:443", "local-cluster[2,1,1024]",
    ):  # fmt: skip
        check_master(master, {})
    check_master("yarn", {"HADOOP_CONF_DIR": str(tmp_path)})
    with pytest.raises(ConfigError, match="HADOOP_CONF_DIR=/nowhere is not a directory"):
        check_master("yarn", {"HADOOP_CONF_DIR": "/nowhere"})
