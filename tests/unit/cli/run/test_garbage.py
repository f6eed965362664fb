"""A start does not look for garbage; a mirror that runs does."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sparkmirror.cli.run.parts import Parts, RunOptions
from sparkmirror.cli.run.run import run_mirror
from sparkmirror.errors import MirrorError
from sparkmirror.settings import MirrorSettings


class _Look:
    """A quick check that finds nothing."""

    def begin(self) -> None: ...
    def topics_made(self) -> None: ...
    def end(self) -> None: ...
    def lines(self) -> list[str]:
        return []


class _Control:
    """A control plane that fails once the run mirrors."""

    owned = leaving = frozenset[str]()

    def __init__(self, seen: list[tuple[str, bool]], *, starts: bool) -> None:
        self._seen, self._starts = seen, starts
        seen.append(("made", gc.isenabled()))

    def prepare(self) -> None:
        self._seen.append(("prepare", gc.isenabled()))
        if not self._starts:
            raise MirrorError("no start")

    def failures(self) -> tuple[MirrorError, ...]:
        self._seen.append(("runs", gc.isenabled()))
        raise MirrorError("no more")

    def __getattr__(self, _name: str) -> Callable[..., tuple[()]]:
        return lambda *_, **__: ()


@pytest.mark.parametrize("starts", [True, False])
def test_garbage_is_collected_when_the_mirror_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], starts: bool
) -> None:
    seen: list[tuple[str, bool]] = []

    def control(*_: object, **__: object) -> Any:
        return _Control(seen, starts=starts)

    parts = Parts(control=control, flow=_Look, quick_check=lambda _: _Look())
    options = RunOptions(work_dir=tmp_path / "work", live=False)
    assert run_mirror(MirrorSettings((), ("A", "B")), options, parts=parts) == (1 if starts else 3)
    assert seen == [("made", False), ("prepare", False), *([("runs", True)] * starts)]
    assert gc.isenabled()
    assert ("no more" if starts else "no start") in capsys.readouterr().err
