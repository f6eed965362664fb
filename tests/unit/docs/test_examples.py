"""The examples are files that load, with the flows that they promise and without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sparkmirror.cli.main import main
from sparkmirror.config.mm2.load import load_mm2
from tests.certificates import PASSWORD, Authority
from tests.examples import DIRECTORY, EXAMPLES, MM1_EXAMPLES, adapted_mm1

# What Kafka's own file says and no mirror needs.
_WARNINGS = {"connect-mirror-maker": ["no Kafka Connect runs here"]}


@pytest.fixture(scope="module")
def etc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In place of /etc/sparkmirror: whatever the examples name."""
    directory = tmp_path_factory.mktemp("etc")
    authority = Authority()
    authority.truststore(directory / "truststore.p12")
    authority.certify("client").pkcs12(directory / "keystore.p12")
    (directory / "ca.pem").write_text(authority.pem())
    (directory / "passwords.properties").write_text("west = planted-west\neast = planted-east\n")
    (directory / "mirror.keytab").touch()
    return directory


def own(directory: Path, etc: Path, name: str) -> Path:
    """The example as it stands, but for the place of the files that it names."""
    text = (DIRECTORY / f"{name}.properties").read_text()
    path = directory / f"{name}.properties"
    path.write_text(
        text.replace("/etc/sparkmirror", str(etc)).replace("my-secret-password", PASSWORD)
    )
    return path


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_has_its_flows_and_no_surprises(
    name: str, tmp_path: Path, etc: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = own(tmp_path, etc, name)
    assert main(["config", str(path), "--given"]) == 0
    told = capsys.readouterr()
    assert "planted" not in told.out + told.err
    assert PASSWORD not in told.out + told.err
    settings = load_mm2(path)
    wanted = _WARNINGS.get(name, [])
    assert len(settings.warnings) == len(wanted), settings.warnings
    for warning, words in zip(settings.warnings, wanted, strict=True):
        assert words in warning
    flows = {flow.name: flow for flow in settings.flows if flow.enabled}
    direct = {f"{copy.source}->{copy.target}" for copy in EXAMPLES[name] if _direct(copy.prefix)}
    over_two = {copy for copy in EXAMPLES[name] if not _direct(copy.prefix)}
    for copy in over_two:
        middle = copy.prefix.partition(".")[0]
        direct |= {f"{copy.source}->{middle}", f"{middle}->{copy.target}"}
    assert flows.keys() == direct


def _direct(prefix: str) -> bool:
    return prefix.count(".") == 1


@pytest.mark.parametrize("name", MM1_EXAMPLES)
def test_an_example_of_mirrormaker_1_loads(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mirror.keytab").touch()
    options = adapted_mm1(name, tmp_path, "a:1", "b:1", "x")
    assert main(["config", *options]) == 0
    assert "1 flow(s), 0 warning(s)" in capsys.readouterr().out


def test_the_page_lists_every_example_and_no_other() -> None:
    page = (DIRECTORY / "README.md").read_text()
    rows = set(re.findall(r"^\| \[([^\]]+)\]\(\1\) \|", page, re.MULTILINE))
    there = {one.name for one in DIRECTORY.iterdir() if one.name != "README.md"}
    assert rows == there
    assert there == {f"{name}.properties" for name in EXAMPLES} | set(MM1_EXAMPLES)
