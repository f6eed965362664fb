"""deploy/kubernetes agrees with Kubernetes' schemas and with the product."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from sparkmirror.cli.main import app
from sparkmirror.cli.run.parts import DRAIN_S, END_S
from sparkmirror.cli.run.workdir import open_work_dir
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.data.spark.ports import secrets_of
from sparkmirror.errors import ConfigError, MachineError
from sparkmirror.observe.metrics import server
from sparkmirror.observe.metrics.address import resolve
from sparkmirror.settings import MirrorSettings

ROOT = Path(__file__).parents[3]
PLACE = ROOT / "deploy" / "kubernetes"
# Kinds of other projects, which Kubernetes' schemas do not have.
FOREIGN = {"Kustomization", "ServiceMonitor"}
VERSIONS = ("1.30", "1.34", "1.37")
PAGE = (ROOT / "docs" / "kubernetes.md").read_text("utf-8")


def documents() -> dict[tuple[str, str], dict[str, Any]]:
    """Each manifest by kind and name."""
    found = [
        one
        for path in sorted(PLACE.glob("*.yaml"))
        for one in yaml.safe_load_all(path.read_text("utf-8"))
    ]
    return {(one["kind"], one.get("metadata", {}).get("name", "")): one for one in found}


ALL = documents()
POD = ALL["Deployment", "sparkmirror"]["spec"]["template"]["spec"]
(MIRROR,) = POD["containers"]
(DIRECTORIES,) = POD["initContainers"]
SECRET = ALL["Secret", "sparkmirror"]["stringData"]
METRICS = ALL["Secret", "sparkmirror-metrics"]["stringData"]


def mounts() -> dict[str, str]:
    """Where the mirror's container has each volume."""
    return {one["name"]: one["mountPath"] for one in MIRROR["volumeMounts"]}


@pytest.fixture
def mirror_file(tmp_path: Path) -> Path:
    """The ConfigMap's file, with the Secrets where the pod has them, below ``tmp_path``."""
    for place, secret in ((mounts()["secrets"], SECRET), (mounts()["metrics"], METRICS)):
        directory = tmp_path / place.lstrip("/")
        # As the kubelet writes them: links to a directory that is replaced as a whole.
        (directory / "..2026_11_25").mkdir(parents=True)
        (directory / "..data").symlink_to("..2026_11_25")
        for key, value in secret.items():
            (directory / "..data" / key).write_text(value, "utf-8")
            (directory / key).symlink_to(f"..data/{key}")
    (text,) = ALL["ConfigMap", "sparkmirror"]["data"].values()
    root = str(Path(mounts()["config"]).parent)
    path = tmp_path / "mirror.properties"
    path.write_text(text.replace(root, f"{tmp_path}{root}"), "utf-8")
    return path


@pytest.fixture
def settings(mirror_file: Path) -> MirrorSettings:
    """What the product reads in it."""
    return load_mm2(mirror_file)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_manifest_has_kubernetes_schema(version: str) -> None:
    own = [one for (kind, _), one in ALL.items() if kind not in FOREIGN]
    assert len(own) == 7
    for one in own:
        assert kubernetes_validate.validate(one, version, strict=True) == version
    assert all(f"`{kind}`" in PAGE for kind in FOREIGN), "the page says what was not validated"
    assert all(one in PAGE for one in VERSIONS)


def test_the_schemas_notice_a_mistyped_field() -> None:
    wrong = {**ALL["Service", "sparkmirror"], "spec": {"clusterIp": "None"}}
    with pytest.raises(kubernetes_validate.ValidationError, match="clusterIp"):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


def test_all_of_them_are_applied_but_secrets_and_other_projects_kinds() -> None:
    listed = set(ALL["Kustomization", ""]["resources"])
    left_out = {"kustomization.yaml", "secret.example.yaml", "servicemonitor.yaml"}
    assert listed == {path.name for path in PLACE.glob("*.yaml")} - left_out
    assert all(one in PAGE for one in left_out - {"kustomization.yaml"})


def test_the_file_is_a_mirror_file_without_a_secret(settings: MirrorSettings) -> None:
    (flow,) = settings.flows
    assert flow.name == "old->new"
    assert secrets_of(settings) == ["old", "new"]
    assert flow.control_secret == SECRET["control-secret"]
    given = settings.metrics
    assert Path(given.token_file).read_text() == SECRET["metrics-token"]
    assert Path(given.tls_cert).read_text() == METRICS["tls.crt"]
    assert Path(given.tls_key).read_text() == METRICS["tls.key"]
    (text,) = ALL["ConfigMap", "sparkmirror"]["data"].values()
    for value in {**SECRET, **METRICS}.values():
        assert value not in text


def test_all_that_is_in_the_secrets_is_used(mirror_file: Path) -> None:
    text = mirror_file.read_text("utf-8")
    monitor = str(ALL["ServiceMonitor", "sparkmirror"])
    for key in [*SECRET, *METRICS]:
        assert f"/{key}" in text or f":{key}}}" in text or f"'{key}'" in monitor, key


def test_a_missing_secret_is_named(mirror_file: Path, tmp_path: Path) -> None:
    (tmp_path / mounts()["secrets"].lstrip("/") / "old-password").unlink()
    with pytest.raises(ConfigError, match="old-password"):
        load_mm2(mirror_file)


def test_the_command_is_one_of_ours() -> None:
    program, verb, *arguments = MIRROR["command"]
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
    assert program in scripts
    group = typer.main.get_command(app)
    command = group.commands[verb]  # type: ignore[attr-defined]
    context = command.make_context(verb, list(arguments))
    assert context.params["master"] == "local[*]"
    assert mounts()["config"] in arguments
    assert context.params["log_format"].value == "json"


def test_probes_ask_what_is_served(settings: MirrorSettings) -> None:
    paths = set(re.findall(r"^(/\S+)", server._INDEX.decode(), re.MULTILINE))
    (port,) = MIRROR["ports"]
    listen = resolve(settings.metrics.listen, "")
    assert listen.port == port["containerPort"]
    assert not listen.loopback, "the kubelet connects to the pod's address"
    for probe, path in (
        ("startupProbe", "/health/live"),
        ("livenessProbe", "/health/live"),
        ("readinessProbe", "/health/ready"),
    ):
        assert MIRROR[probe]["httpGet"] == {"path": path, "port": port["name"], "scheme": "HTTPS"}
        assert path in paths
    (endpoint,) = ALL["ServiceMonitor", "sparkmirror"]["spec"]["endpoints"]
    assert (endpoint["path"] in paths, endpoint["scheme"]) == (True, "https")
    (offered,) = ALL["Service", "sparkmirror"]["spec"]["ports"]
    assert endpoint["port"] == offered["name"] == offered["targetPort"] == port["name"]
    assert offered["port"] == port["containerPort"]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["name"] == "sparkmirror"
    assert credentials["key"] in SECRET
    trusted = endpoint["tlsConfig"]["ca"]["secret"]
    assert trusted["name"] == "sparkmirror-metrics"
    assert trusted["key"] in METRICS


def test_the_network_lets_through_what_is_needed(settings: MirrorSettings) -> None:
    policy = ALL["NetworkPolicy", "sparkmirror"]["spec"]
    out = {port["port"] for rule in policy["egress"] for port in rule["ports"]}
    brokers = {
        int(server.rpartition(":")[2])
        for flow in settings.flows
        for client in (flow.source, flow.target)
        for server in client.bootstrap_servers
    }
    assert out == {53, *brokers}
    (inward,) = policy["ingress"]
    assert [one["port"] for one in inward["ports"]] == [MIRROR["ports"][0]["name"]]


def _mebibytes(text: str) -> float:
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", text).groups()  # type: ignore[union-attr]
    return int(number) * {"Mi": 1, "Gi": 1024}[unit]


def test_resources_follow_the_capacity_page(settings: MirrorSettings) -> None:
    page = (ROOT / "docs" / "capacity.md").read_text("utf-8")
    found = re.search(r"([\d.]+) GiB \+ slots x \((\d+) MiB \+ (\d+) x the largest", page)
    assert found is not None
    base, slot, batches = (float(one) for one in found.groups())
    slots = sum(flow.tasks_max for flow in settings.flows)
    resources = MIRROR["resources"]
    needed = base * 1024 + slots * (slot + batches)  # batches of 1 MiB
    limit = _mebibytes(resources["limits"]["memory"])
    assert needed + 512 <= limit <= needed + 1024
    assert resources["requests"]["memory"] == resources["limits"]["memory"]
    assert resources["requests"]["cpu"] == str(slots)
    assert "cpu" not in resources["limits"]
    environment = {one["name"]: one["value"] for one in MIRROR["env"]}
    assert environment["JAVA_TOOL_OPTIONS"] == f"-XX:ActiveProcessorCount={slots}"


def test_a_drain_fits_into_the_grace_period() -> None:
    assert POD["terminationGracePeriodSeconds"] - 10 >= DRAIN_S + END_S


def test_what_the_product_writes_is_on_the_volume_and_private() -> None:
    """Everybody may write to an emptyDir, so each directory is made before, for the user alone."""
    environment = {one["name"]: one["value"] for one in MIRROR["env"]}
    written = {environment[name] for name in ("TMPDIR", "XDG_STATE_HOME", "XDG_CACHE_HOME")}
    made = DIRECTORIES["command"]
    assert made[:4] == ["mkdir", "-p", "-m", "0700"]
    assert set(made[4:]) == written
    assert {str(Path(one).parent) for one in written} == {mounts()["scratch"]}
    assert DIRECTORIES["volumeMounts"] == [{"name": "scratch", "mountPath": mounts()["scratch"]}]
    volumes = {one["name"]: one for one in POD["volumes"]}
    assert set(volumes) == set(mounts())
    assert "emptyDir" in volumes["scratch"]


def test_an_empty_volume_itself_would_be_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    volume = tmp_path / "scratch"
    volume.mkdir()
    volume.chmod(0o777)
    (volume / "state").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_STATE_HOME", str(volume / "state"))
    assert stat.S_IMODE(open_work_dir(None, "run").stat().st_mode) == 0o700
    monkeypatch.setenv("XDG_STATE_HOME", str(volume))
    monkeypatch.setenv("HOME", str(volume))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(volume))
    (volume / ".local").mkdir()
    (volume / ".local").chmod(0o777)
    (volume / ".local" / "state").mkdir()
    (volume / ".local" / "state").chmod(0o777)
    with pytest.raises(MachineError, match="Everybody may put other directories here"):
        open_work_dir(None, "run")


def test_nobody_gets_more_rights_than_needed() -> None:
    assert POD["automountServiceAccountToken"] is False
    pod = POD["securityContext"]
    assert pod["runAsNonRoot"] is True
    assert pod["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in (MIRROR, DIRECTORIES):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
    for name in ("secrets", "metrics"):
        (volume,) = [one for one in POD["volumes"] if one["name"] == name]
        assert volume["secret"]["defaultMode"] == 0o440


def test_replicas_stand_by_on_other_nodes_and_are_replaced_one_by_one() -> None:
    spec = ALL["Deployment", "sparkmirror"]["spec"]
    assert spec["replicas"] >= 2
    assert spec["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
    labels = spec["selector"]["matchLabels"]
    assert labels == spec["template"]["metadata"]["labels"]
    (apart,) = POD["affinity"]["podAntiAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert apart["topologyKey"] == "kubernetes.io/hostname"
    for kind in ("PodDisruptionBudget", "ServiceMonitor"):
        assert ALL[kind, "sparkmirror"]["spec"]["selector"]["matchLabels"] == labels
    assert apart["labelSelector"]["matchLabels"] == labels
    assert ALL["Service", "sparkmirror"]["spec"]["selector"] == labels
    assert ALL["NetworkPolicy", "sparkmirror"]["spec"]["podSelector"]["matchLabels"] == labels
    assert ALL["PodDisruptionBudget", "sparkmirror"]["spec"]["maxUnavailable"] == 1


CONTAINERFILE = (PLACE / "Containerfile").read_text("utf-8")


def test_the_image_has_what_the_pod_expects() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    image = f"sparkmirror:{project['version']}"
    assert MIRROR["image"] == DIRECTORIES["image"] == image
    assert f"-t {image} ." in CONTAINERFILE
    user = POD["securityContext"]["runAsUser"]
    assert f"USER {user}:{user}" in CONTAINERFILE
    assert f"useradd --uid {user} --gid {user}" in CONTAINERFILE
    assert POD["securityContext"]["runAsGroup"] == POD["securityContext"]["fsGroup"] == user


def test_the_image_has_the_class_archive_of_what_it_runs() -> None:
    _, build, final = re.split(r"^FROM ", CONTAINERFILE, flags=re.MULTILINE)
    made = build.index("RUN /opt/sparkmirror/bin/sparkmirror prepare")
    assert made > build.rindex("pip install")
    assert "COPY --from=build /opt/sparkmirror /opt/sparkmirror" in final


def test_the_image_is_built_from_files_that_are_there_with_hashes() -> None:
    copied = re.findall(r"^COPY (?!--)(.+) \S+$", CONTAINERFILE, re.MULTILINE)
    names = [name for line in copied for name in line.split()]
    assert {"requirements-run.lock", "src", "pyproject.toml"} <= set(names)
    assert all((ROOT / name).exists() for name in names)
    joined = CONTAINERFILE.replace("\\\n", " ")
    installs = re.findall(r"(?:pip install|uv build)[^&\n]*", joined)
    assert len(installs) == 4
    for one in installs:
        assert "--require-hashes" in one or "--no-deps" in one, one
