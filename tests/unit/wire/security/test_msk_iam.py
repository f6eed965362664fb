"""AWS_MSK_IAM sends what AWS's own Java client sends. MSK itself is out of a test's reach."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sparkmirror.errors import ClusterError
from sparkmirror.settings import ClusterClient
from sparkmirror.wire.security.sasl import Exchange, Login, authenticate

VECTORS = json.loads((Path(__file__).parents[3] / "vectors" / "msk_iam.json").read_text())
MODULE = "software.amazon.msk.auth.iam.IAMLoginModule"


@pytest.fixture
def login(monkeypatch: pytest.MonkeyPatch) -> Login:
    for name in ("AWS_REGION", "AWS_DEFAULT_REGION", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", VECTORS["secret"])
    properties = {"sasl.mechanism": "AWS_MSK_IAM", "sasl.jaas.config": f"{MODULE} required;"}
    client = ClusterClient("east", (), "c", security_protocol="SASL_SSL", properties=properties)
    return Login(client)


@pytest.mark.parametrize("wanted", VECTORS["payloads"])
def test_the_message_is_that_of_aws_own_client(
    wanted: dict[str, str], login: Login, monkeypatch: pytest.MonkeyPatch
):
    """Field by field, the signature too, at the moment at which Java's was made."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", wanted["x-amz-credential"].partition("/")[0])
    if "x-amz-security-token" in wanted:
        monkeypatch.setenv("AWS_SESSION_TOKEN", wanted["x-amz-security-token"])
    mechanism = login.mechanism(wanted["host"])
    mechanism._client.timestamp = wanted["x-amz-date"]
    mechanism._client.datestamp = wanted["x-amz-date"][:8]
    sent = json.loads(mechanism.auth_bytes())
    assert sent.pop("user-agent") != wanted["user-agent"]
    assert sent == {key: value for key, value in wanted.items() if key != "user-agent"}


def test_the_exchange_is_one_message_and_its_answer(login: Login):
    """An answer is consent, as for Java's client; a refusal comes as an error code."""
    host, sent = VECTORS["payloads"][0]["host"], []

    def broker(code: int, answer: bytes) -> Exchange:
        def receive(data: bytes) -> tuple[int, str, bytes, int]:
            sent.append(json.loads(data))
            return code, "Access denied" if code else "", answer, 900_000

        return Exchange(lambda name: (0, [name]), receive)

    assert authenticate(login, broker(0, b'{"version":"2020_10_22"}'), host, "east") == 900_000
    assert [message["action"] for message in sent] == ["kafka-cluster:Connect"]
    with pytest.raises(ClusterError, match="refused the login with AWS_MSK_IAM") as caught:
        authenticate(login, broker(58, b""), host, "east")
    assert "IAM policy" in caught.value.do
    assert VECTORS["secret"] not in str(caught.value)
