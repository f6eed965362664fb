"""Spark's page: who may see it, and with which token."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import stat
import urllib.error
import urllib.request
from pathlib import Path

import psutil
import pytest

from sparkmirror.data.spark.page import SparkPage, check_page
from sparkmirror.data.spark.ports import withheld
from sparkmirror.data.spark.session import Spark
from sparkmirror.errors import ConfigError
from tests.unit.config_files import BASE, load

_KEY = "spark.org.apache.spark.ui.JWSFilter.param.secretKey"


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def test_the_token_has_the_signature_of_the_run_s_own_key() -> None:
    page = SparkPage()
    settings = page.settings()
    key = _decoded(settings[_KEY])
    assert len(key) == 32
    head, claims, signature = page.token().split(".")
    assert json.loads(_decoded(head))["alg"] == "HS256"
    assert json.loads(_decoded(claims)) == {"sub": "sparkmirror"}
    assert _decoded(signature) == hmac.digest(key, f"{head}.{claims}".encode(), hashlib.sha256)
    assert settings["spark.ui.filters"] == "org.apache.spark.ui.JWSFilter"
    assert SparkPage().settings()[_KEY] != settings[_KEY]


def test_the_key_is_on_no_command_line_and_in_no_text() -> None:
    page = SparkPage()
    assert withheld(page.settings()) == {_KEY}
    assert repr(page) == "SparkPage()"


def test_only_this_user_can_read_the_header(tmp_path: Path) -> None:
    page = SparkPage()
    (tmp_path / "spark-page.header").write_text("old")
    (tmp_path / "spark-page.header").chmod(0o644)
    path = page.write_header(tmp_path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert path.read_text() == f"Authorization: Bearer {page.token()}\n"


@pytest.mark.parametrize(
    ("master", "given", "said"),
    [
        ("spark://h:7077", {}, "would be on the network of spark://h:7077"),
        ("yarn", {}, "would be on the network of yarn"),
        ("local[2]", {"spark.ui.enabled": "true"}, "--conf spark.ui.enabled and --ui decide"),
        ("local[2]", {"spark.ui.filters": "x.Y"}, "--conf spark.ui.filters and --ui decide"),
    ],
)
def test_what_does_not_go_together_is_refused(
    master: str, given: dict[str, str], said: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=said) as caught:
        check_page(master, given)
    assert caught.value.where == "--ui"
    settings = load(tmp_path, BASE)
    with pytest.raises(ConfigError, match=said):
        Spark(settings, master=master, spark_conf=given, work_dir=tmp_path, key="k", ui=True)
    Spark(settings, master=master, spark_conf=given, work_dir=tmp_path, key="k")


def test_the_page_may_have_a_port_of_its_own() -> None:
    check_page("local[*]", {"spark.ui.port": "4711"})


def test_spark_shows_its_page_here_and_only_with_the_token(tmp_path: Path) -> None:
    """In a real Spark: page and REST interface; no other address of the machine listens."""
    settings, work = load(tmp_path, BASE), tmp_path / "work"
    spark = Spark(settings, master="local[1]", spark_conf={}, work_dir=work, key="k", ui=True)
    assert spark.page == ""
    session = spark.open()
    try:
        url = str(session.sparkContext.uiWebUrl)
        header = work / "spark-page.header"
        assert spark.page == f"{url} (curl -LH @{header} …)"
        assert url.startswith("http://127.0.0.1:")
        name, _, value = header.read_text().strip().partition(": ")

        def asked(path: str, **headers: str) -> tuple[int, str]:
            request = urllib.request.Request(url + path, headers=headers)
            try:
                with urllib.request.urlopen(request, timeout=20) as reply:
                    return reply.status, reply.read().decode()
            except urllib.error.HTTPError as error:
                return error.code, ""

        for path in ("/jobs/", "/environment/", "/api/v1/applications", "/static/webui.js"):
            assert asked(path)[0] in (401, 403), path
            assert asked(path, **{name: "Bearer wrong"})[0] in (401, 403), path
        for path in ("/jobs/", "/api/v1/applications"):
            assert asked(path, **{name: value})[0] == 200, path
        code, environment = asked("/environment/", **{name: value})
        assert code == 200
        secret = session.sparkContext.getConf().get(_KEY)
        assert secret
        assert secret not in environment
        port = int(url.rpartition(":")[2])
        listening = {
            one.laddr.ip
            for process in psutil.Process().children(recursive=True)
            for one in process.net_connections()
            if one.status == "LISTEN" and one.laddr.port == port
        }
        assert {one.removeprefix("::ffff:") for one in listening} == {"127.0.0.1"}
    finally:
        spark.close()
