"""The schema registry in MirrorMaker 2's files: what is read, what is hidden, what is refused."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from sparkmirror.cli.shared.secrets import hide_secrets
from sparkmirror.config.explain import explain
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.data.coordination.sealed_options import new_key
from sparkmirror.data.coordination.slot_plan import decode_flow, encode_flow
from sparkmirror.data.spark.ports import secrets_of
from sparkmirror.errors import ConfigError
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import RegistrySettings

_REGISTRY = "A->B.sparkmirror.registry"
_URL = f"{_REGISTRY}.url = https://one:8081/, http://two/api"
_SECRET = "a-secret-of-the-registry"
_LOGIN = f"{_REGISTRY}.basic.auth.user.info = mirror:{_SECRET}"
_TOKEN = f"{_REGISTRY}.bearer.auth.token = {_SECRET}"
_STORE = f"{_REGISTRY}.ssl.truststore"
_KEYSTORE = f"{_REGISTRY}.ssl.keystore"
_TRANSFORM = (
    "A->B.sparkmirror.transforms = clean",
    "A->B.sparkmirror.transform.clean.topics = orders",
    "A->B.sparkmirror.transform.clean.where = true",
)


def _flow(path: Path, *lines: str) -> FlowSettings:
    head = ["clusters = A, B", "A->B.enabled = true"]
    head += [f"{alias}.bootstrap.servers = localhost:1{alias == 'B':d}" for alias in "AB"]
    path.write_text("\n".join([*head, *_TRANSFORM, *lines]) + "\n")
    (flow,) = load_mm2(path).flows
    return flow


def test_addresses_and_a_login(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    found = _flow(path, _URL, _LOGIN).registry
    assert found.urls == ("https://one:8081", "http://two/api")
    assert found.authorization.startswith("Basic ")
    assert base64.b64decode(found.authorization[6:]).decode() == f"mirror:{_SECRET}"
    assert (found.truststore, found.truststore_type) == ("", "JKS")
    assert found.place("url") == f"{path}:8: {_REGISTRY}.url"
    assert _flow(path, _URL, _TOKEN).registry.authorization == f"Bearer {_SECRET}"
    assert _flow(path).registry == RegistrySettings()


def test_the_keys_of_confluents_clients(tmp_path: Path) -> None:
    found = _flow(
        tmp_path / "mm2.properties",
        "sparkmirror.registry.url = https://registry",
        "sparkmirror.registry.basic.auth.credentials.source = USER_INFO",
        "sparkmirror.registry.basic.auth.user.info = me:a:b",
        f"{_STORE}.location = /etc/trust.p12",
        f"{_STORE}.type = pkcs12",
        f"{_STORE}.password = {_SECRET}",
    ).registry
    assert base64.b64decode(found.authorization[6:]) == b"me:a:b"
    assert (found.truststore, found.truststore_type) == ("/etc/trust.p12", "PKCS12")
    assert found.truststore_password == _SECRET


def test_a_client_certificate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its passwords and its key are shown nowhere, and executors get them only where it is safe."""
    path = tmp_path / "mm2.properties"
    in_file = (
        *(f"{_KEYSTORE}.location = /own.p12", f"{_KEYSTORE}.type = pkcs12"),
        *(f"{_KEYSTORE}.password = {_SECRET}", f"{_REGISTRY}.ssl.key.password = {_SECRET}"),
    )
    as_text = (
        *(f"{_KEYSTORE}.type = PEM", f"{_KEYSTORE}.key = {_SECRET}"),
        f"{_KEYSTORE}.certificate.chain = {_SECRET}",
    )
    for lines, wanted in (
        (in_file, {"ssl.keystore.location": "/own.p12", "ssl.keystore.type": "PKCS12",
                   "ssl.keystore.password": _SECRET, "ssl.key.password": _SECRET}),
        (as_text, {"ssl.keystore.type": "PEM", "ssl.keystore.key": _SECRET,
                   "ssl.keystore.certificate.chain": _SECRET}),
    ):  # fmt: skip
        flow = _flow(path, _URL, *lines)
        assert dict(flow.registry.keystore) == wanted
        assert secrets_of(load_mm2(path)) == ["B"]
        assert _SECRET not in repr(flow) + encode_flow(flow, new_key()) + str(explain(path))
        assert decode_flow(encode_flow(flow)).registry == RegistrySettings()
        hidden: list[str] = []
        monkeypatch.setattr("sparkmirror.cli.shared.secrets.register_secret", hidden.append)
        hide_secrets(load_mm2(path))
        assert hidden.count(_SECRET) == 2


@pytest.mark.parametrize("login", [_LOGIN, _TOKEN])
def test_the_login_is_shown_nowhere(tmp_path: Path, login: str) -> None:
    """Neither in what `explain` prints, nor in options of Spark's query; no worker gets it."""
    path = tmp_path / "mm2.properties"
    store = (f"{_STORE}.location = /x", f"{_STORE}.password = {_SECRET}")
    flow = _flow(path, _URL, login, *store)
    encoded = base64.b64encode(f"mirror:{_SECRET}".encode()).decode()
    told = repr(flow) + encode_flow(flow, new_key()) + str(explain(path))
    told += str(load_mm2(path).warnings)
    assert _SECRET not in told
    assert encoded not in told
    assert decode_flow(encode_flow(flow)).registry == RegistrySettings()


def test_executors_get_a_login_only_where_it_is_safe_in_transit(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flow(path, _URL, _LOGIN)
    assert secrets_of(load_mm2(path)) == ["B"]
    _flow(path, _URL)
    assert secrets_of(load_mm2(path)) == []


def test_a_login_without_encryption_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flow(path, f"{_REGISTRY}.url = https://one, http://two, http://localhost:8081", _LOGIN)
    (said,) = [one for one in load_mm2(path).warnings if "unencrypted" in one]
    assert (
        said
        == f"{path}:8: {_REGISTRY}.url: the registry's login travels unencrypted to http://two."
    )


def test_a_registry_without_a_transform_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mm2.properties"
    _flow(path, _URL, _LOGIN)
    lines = [one for one in path.read_text().splitlines() if "transform" not in one]
    path.write_text("\n".join(lines) + "\n")
    (warning,) = [one for one in load_mm2(path).warnings if "registry" in one]
    assert (
        f"{_REGISTRY}.url (line 5), {_REGISTRY}.basic.auth.user.info (line 6): no flow has a"
        in (warning)
    )


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ((_LOGIN,), f"basic.auth.user.info is set without an address. Set {_REGISTRY}.url."),
        ((f"{_REGISTRY}.url = ftp://one",), "has no address of a registry"),
        ((f"{_REGISTRY}.url = one:8081",), "has no address of a registry"),
        ((f"{_REGISTRY}.url = http://one:x",), "has no address of a registry"),
        ((f"{_REGISTRY}.url = http://me:{_SECRET}@one",), "has a login in an address"),
        ((_URL, _LOGIN, _TOKEN), f"token cannot be used with {_REGISTRY}.basic.auth.user.info"),
        ((_URL, f"{_REGISTRY}.basic.auth.user.info = {_SECRET}"), "has no colon"),
        ((_URL, f"{_REGISTRY}.bearer.auth.token = {_SECRET} x"), "has blanks"),
        (
            (_URL, f"{_REGISTRY}.basic.auth.credentials.source = USER_INFO"),
            f"source is set without a login. Set {_REGISTRY}.basic.auth.user.info",
        ),
        (
            (_URL, f"{_REGISTRY}.basic.auth.credentials.source = SASL_INHERIT", _LOGIN),
            "is not one of the values it can have. Choose from: USER_INFO",
        ),
        (
            (_URL, f"{_REGISTRY}.bearer.auth.credentials.source = OAUTHBEARER", _TOKEN),
            "Choose from: STATIC_TOKEN",
        ),
        ((_URL, f"{_STORE}.password = {_SECRET}"), "there is no sparkmirror.registry.ssl"),
        (
            (_URL, f"{_STORE}.location = /x", f"{_STORE}.type = PEM",
             f"{_STORE}.password = {_SECRET}"),
            "a PEM store has no password",
        ),
        (
            (_URL, f"{_KEYSTORE}.location = /x"),
            f"{_KEYSTORE}.location cannot be used: ssl.keystore.location is set without "
            "ssl.keystore.password. Add ssl.keystore.password.",
        ),
        (
            (_URL, f"{_KEYSTORE}.type = PEM", f"{_KEYSTORE}.key = {_SECRET}"),
            f"{_KEYSTORE}.key cannot be used: ssl.keystore.key is set without "
            "ssl.keystore.certificate.chain",
        ),
        (
            (_URL, f"{_KEYSTORE}.key = {_SECRET}", f"{_KEYSTORE}.certificate.chain = x"),
            "ssl.keystore.key contains PEM text, but ssl.keystore.type is JKS",
        ),
        (
            (_URL, f"{_KEYSTORE}.password = {_SECRET}"),
            "ssl.keystore.password is set without ssl.keystore.location",
        ),
        (
            (_URL, f"{_REGISTRY}.ssl.key.password = {_SECRET}"),
            f"ssl.key.password is set without a client certificate. Set {_KEYSTORE}.location",
        ),
        ((_URL, f"{_KEYSTORE}.type = PKCS12"), "ssl.keystore.type is set without a client"),
        ((_URL, f"{_KEYSTORE}.type = BKS"), "is not one of the values it can have"),
        (
            (f"{_REGISTRY}.url = http://one", f"{_KEYSTORE}.location = /x",
             f"{_KEYSTORE}.password = {_SECRET}"),
            "no address of the registry begins with https:",
        ),
        ((f"{_KEYSTORE}.location = /x",), "is set without an address"),
        ((_URL, f"{_REGISTRY}.auth = x"), "sparkmirror.registry.auth is unknown"),
    ],
)  # fmt: skip
def test_what_is_refused(tmp_path: Path, lines: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        _flow(tmp_path / "mm2.properties", *lines)
    told = str(caught.value)
    assert said in told
    assert "mm2.properties:" in told
    assert _SECRET not in told
