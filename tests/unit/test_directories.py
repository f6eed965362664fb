"""Directories of our own: this user's alone, or none."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import pytest

from sparkmirror.cache import cache_directory
from sparkmirror.cli.run import workdir
from sparkmirror.cli.run.workdir import open_work_dir
from sparkmirror.directories import private_directory
from sparkmirror.errors import MachineError


def _linked(path: Path) -> None:
    (path.parent / "elsewhere").mkdir()
    path.symlink_to(path.parent / "elsewhere")


def _of_another(path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give a directory away")
    path.mkdir(mode=0o700)
    os.chown(path, 65_534, 65_534)


def _writable(mode: int, path: Path) -> None:
    path.mkdir()
    path.chmod(mode)


FOREIGN = {
    "link": (_linked, "a link, which somebody else"),
    "owner": (_of_another, r"another user \(uid 65534\)"),
    "group": (lambda path: _writable(0o770, path), r"Other users may write .* 0770"),
    "all": (lambda path: _writable(0o707, path), r"Other users may write .* 0707"),
    "sticky": (lambda path: _writable(0o1777, path), r"Other users may write .* 1777"),
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_what_others_prepared_is_refused_wherever_it_is_in_the_path(
    kind: str, tmp_path: Path
) -> None:
    prepare, words = FOREIGN[kind]
    prepare(tmp_path / "ours")
    for names in (("ours",), ("ours", "below")):
        with pytest.raises(MachineError, match=words) as caught:
            private_directory(tmp_path, names)
        assert caught.value.where == str(tmp_path / "ours")
        assert caught.value.do
    assert not (tmp_path / "ours" / "below").exists()


def test_each_directory_that_is_made_is_this_users_alone(tmp_path: Path) -> None:
    mask = os.umask(0)
    try:
        path = private_directory(tmp_path / "base", ("a", "b"))
    finally:
        os.umask(mask)
    assert path == tmp_path / "base" / "a" / "b"
    assert [each.stat().st_mode & 0o777 for each in (path.parent, path)] == [0o700, 0o700]
    assert private_directory(tmp_path / "base", ("a", "b")) == path


def test_where_everybody_may_rename_ours_is_no_place_for_it(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(MachineError, match="put other directories here"):
        private_directory(tmp_path, ("ours",))
    tmp_path.chmod(0o1777)
    assert private_directory(tmp_path, ("ours",)).is_dir()


def _homeless(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setenv("HOME", "/proc/nobody")
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))


@pytest.mark.parametrize("at", [(), ("runs",)])
def test_without_a_home_nobody_else_can_prepare_the_work_directory(
    at: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _homeless(monkeypatch, tmp_path)
    prepared = tmp_path.joinpath(f"sparkmirror-{os.getuid()}", *at)
    prepared.parent.mkdir(mode=0o700, exist_ok=True)
    _writable(0o777, prepared)
    with pytest.raises(MachineError, match="Other users may write"):
        open_work_dir(None, "run-1")
    assert list(prepared.iterdir()) == []
    prepared.chmod(0o700)
    found = open_work_dir(None, "run-1")
    assert found == tmp_path / f"sparkmirror-{os.getuid()}" / "runs" / "run-1"


def test_a_given_work_directory_may_be_named_by_a_link_but_not_be_everybodys(
    tmp_path: Path,
) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "name").symlink_to(tmp_path / "real")
    assert open_work_dir(tmp_path / "name", "ignored") == tmp_path / "real"
    (tmp_path / "real").chmod(0o777)
    with pytest.raises(MachineError, match="chmod go-w"):
        open_work_dir(tmp_path / "name", "ignored")


def test_nothing_is_taken_from_a_cache_that_others_may_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    directory = cache_directory("classes")
    assert directory.stat().st_mode & 0o777 == 0o700
    directory.parent.chmod(0o775)
    with pytest.raises(MachineError, match="chmod go-w") as caught:
        cache_directory("classes")
    assert caught.value.where == str(directory.parent)


def test_the_service_unit_gives_us_the_directories_that_we_look_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    unit = dict(re.findall(r"^(\w+)=(.*)$", page.partition("[Service]")[2], re.MULTILINE))
    given = dict(pair.split("=") for pair in unit["Environment"].split())
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    base, names = workdir._bases()[0]
    assert base.joinpath(*names) == Path("/var/lib") / unit["StateDirectory"]
    assert Path(given["XDG_CACHE_HOME"]) / "sparkmirror" == Path(
        "/var/cache", unit["CacheDirectory"]
    )
    assert {unit["StateDirectoryMode"], unit["CacheDirectoryMode"]} == {"0700"}
    assert unit["PrivateTmp"] == "yes"
