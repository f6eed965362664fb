"""Placeholders in values: resolved by the stock providers, never shown."""

from pathlib import Path

import pytest

from sparkmirror.config.files.properties import parse_properties
from sparkmirror.config.files.providers import resolve
from sparkmirror.errors import ConfigError
from tests.unit.config_files import BASE, LINE, QUIET, load, refused

PACKAGE = "org.apache.kafka.common.config.provider."
ENV = f"config.providers=env\nconfig.providers.env.class={PACKAGE}EnvVarConfigProvider\n"


def _resolve(text: str, environment: dict[str, str] | None = None) -> dict[str, str]:
    raw = parse_properties(text.encode(), Path("mm2.properties"))
    resolved, _ = resolve(raw, environment or {})
    return {key: entry.value for key, entry in resolved.items()}


def test_environment_variables() -> None:
    values = _resolve(ENV + "a=${env:X}\nb=1${env:X}2${env:Y}\n", {"X": "x", "Y": ""})
    assert (values["a"], values["b"]) == ("x", "1x2")


def test_files_and_directories(tmp_path: Path) -> None:
    (tmp_path / "secrets.properties").write_text("user=u\npass=p=w\n")
    (tmp_path / "token").write_text("t\n")
    values = _resolve(
        f"config.providers=file, dir\n"
        f"config.providers.file.class={PACKAGE}FileConfigProvider\n"
        f"config.providers.file.param.allowed.paths={tmp_path}\n"
        f"config.providers.dir.class={PACKAGE}DirectoryConfigProvider\n"
        f"a=${{file:{tmp_path}/secrets.properties:pass}}\nb=${{dir:{tmp_path}:token}}\n"
    )
    assert (values["a"], values["b"]) == ("p=w", "t\n")


def test_a_resolved_value_reaches_the_flow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIRROR_TOPICS", "orders,payments")
    settings = load(tmp_path, BASE + ENV + QUIET + "A->B.topics=${env:MIRROR_TOPICS}\n")
    assert settings.flows[0].topics.include == ("orders", "payments")
    assert settings.warnings == ()


def test_undeclared_placeholders_stay_and_are_told(tmp_path: Path) -> None:
    settings = load(tmp_path, BASE + QUIET + "A.consumer.client.rack=${vault:a:b}\n")
    assert settings.flows[0].fetch.client_rack == "${vault:a:b}"
    assert "placeholder of 'vault', which config.providers does not name" in settings.warnings[0]


@pytest.mark.parametrize(
    ("lines", "what"),
    [
        (ENV + "a=${env:NONE}", "a: the placeholder ${env:NONE} cannot be resolved: there is no"),
        (ENV + "a=${env:p:X}", "'env' takes no path"),
        (
            ENV + "config.providers.env.param.allowlist.pattern=MM_.*\na=${env:X}",
            "allowlist.pattern does not allow",
        ),
        (
            f"config.providers=f\nconfig.providers.f.class={PACKAGE}FileConfigProvider\na=${{f:x}}",
            "the path is missing",
        ),
        (
            f"config.providers=f\nconfig.providers.f.class={PACKAGE}FileConfigProvider\n"
            "a=${f:/none:x}",
            "no such file",
        ),
        (
            f"config.providers=f\nconfig.providers.f.class={PACKAGE}FileConfigProvider\n"
            "config.providers.f.param.allowed.paths=/opt\na=${f:/opt/../etc/passwd:x}",
            "allowed.paths does not allow",
        ),
        (
            f"config.providers=d\nconfig.providers.d.class={PACKAGE}DirectoryConfigProvider\n"
            "a=${d:/etc:../etc/none}",
            "no such file",
        ),
        ("config.providers=x\na=b", "config.providers.x.class is missing"),
        ("config.providers=x\nconfig.providers.x.class=com.acme.Vault", "custom Java classes"),
        ("config.providers.x.class=y", "config.providers does not name 'x'"),
        (ENV + "config.providers.env.param.foo=1", "is not a parameter of this provider"),
        (
            ENV + "config.providers.env.allowlist.pattern=MM_.*",
            "config.providers.env.allowlist.pattern is not a parameter of this provider",
        ),
        (
            f"config.providers=f\nconfig.providers.f.class={PACKAGE}FileConfigProvider\n"
            "config.providers.f.allowed.paths=/opt",
            "config.providers.f.allowed.paths is not a parameter of this provider",
        ),
    ],
)
def test_what_cannot_be_resolved(lines: str, what: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _resolve(lines, {"X": "hunter2"})
    assert what in caught.value.what
    assert caught.value.where.startswith("mm2.properties:")
    assert caught.value.do
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(
    "line",
    [
        "tasks.max=${env:SECRET}",
        "topics=(${env:SECRET}",
        "A.bootstrap.servers=${env:SECRET}",
        "refresh.topics.enabled=${env:SECRET}",
        "topic.filter.class=${env:SECRET}",
        "A.consumer.auto.offset.reset=${env:SECRET}",
        "replication.policy.class=${env:SECRET}",
        "clusters=${env:SECRET} x",
        "sasl.mechanism=${env:SECRET}\nsecurity.protocol=SASL_SSL",
        "ssl.enabled.protocols=${env:SECRET}\nsecurity.protocol=SSL",
        "sparkmirror.throttle=${env:SECRET}",
    ],
)
def test_resolved_values_never_show_in_errors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setenv("SECRET", "hunter2")
    text = BASE + ENV + line + "\n"
    error = refused(tmp_path, text)
    assert "hunter2" not in str(error)
    assert f"mm2.properties:{LINE + 2}" in str(error)


def _from_secrets(directory: Path, key: str) -> str:
    text = (
        f"config.providers=d\nconfig.providers.d.class={PACKAGE}DirectoryConfigProvider\n"
        f"a=${{d:{directory}:{key}}}"
    )
    return _resolve(text)["a"]


def test_a_secret_is_read_as_kubernetes_mounts_it(tmp_path: Path) -> None:
    """Links to a hidden directory beside them."""
    secrets = tmp_path / "secrets"
    (secrets / "..2026").mkdir(parents=True)
    (secrets / "..2026" / "password").write_text("hunter2")
    (secrets / "..data").symlink_to("..2026")
    (secrets / "password").symlink_to("..data/password")
    assert _from_secrets(secrets, "password") == "hunter2"


@pytest.mark.parametrize("key", ["outside", "..data/password", "../other", "below/password", ".."])
def test_nothing_beside_the_files_of_the_directory_is_read(tmp_path: Path, key: str) -> None:
    secrets = tmp_path / "secrets"
    for place in (secrets / "..data", secrets / "below"):
        place.mkdir(parents=True)
        (place / "password").write_text("hunter2")
    (tmp_path / "other").write_text("hunter2")
    (secrets / "outside").symlink_to(tmp_path / "other")
    with pytest.raises(ConfigError, match="the directory has no such file"):
        _from_secrets(secrets, key)


def test_a_file_of_secrets_is_utf_8_as_in_java(tmp_path: Path) -> None:
    """The main file is not: there, each byte is a character."""
    path, text = tmp_path / "s.properties", "pw=p\u00e4ss\u2713\n"
    path.write_text(text, encoding="utf-8")
    lines = f"config.providers=f\nconfig.providers.f.class={PACKAGE}FileConfigProvider\n"
    lines += f"a=${{f:{path}:pw}}\n"
    assert _resolve(lines)["a"] == "p\u00e4ss\u2713"
    path.write_bytes(text.encode("utf-8")[:-3])
    with pytest.raises(ConfigError, match="is not UTF-8 text") as caught:
        _resolve(lines)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", ["File", "Directory"])
@pytest.mark.parametrize(
    ("path", "key"),
    [("loop", "x"), ("loop/x", "x"), ("a\\u0000b", "x"), (".", "loop"), (".", "x\\u0000")],
)
def test_a_path_that_leads_nowhere(tmp_path: Path, kind: str, path: str, key: str) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x=1\n")
    lines = f"config.providers=p\nconfig.providers.p.class={PACKAGE}{kind}ConfigProvider\n"
    more = f"config.providers.p.param.allowed.paths={tmp_path}\n"
    for extra in ("", more):
        with pytest.raises(ConfigError, match="cannot be resolved") as caught:
            _resolve(f"{lines}{extra}a=${{p:{tmp_path}/{path}:{key}}}\n")
        assert caught.value.where.startswith("mm2.properties:")
        assert caught.value.do


def test_allowed_paths_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("x=1\n")
    lines = f"config.providers=p\nconfig.providers.p.class={PACKAGE}FileConfigProvider\n"
    more = f"config.providers.p.param.allowed.paths={tmp_path}/loop\n"
    with pytest.raises(ConfigError, match="cannot be resolved"):
        _resolve(f"{lines}{more}a=${{p:{tmp_path}/file:x}}\n")
