"""What the control plane's threads tell of jobs that fail."""

from __future__ import annotations

from sparkmirror.control.loop import ControlLoop
from sparkmirror.errors import ClusterError
from sparkmirror.model import MirrorSettings


def test_each_reason_in_a_row_of_failures_is_told_once() -> None:
    loop = ControlLoop(MirrorSettings((), ()), once=False, run_id="r")
    told = []
    failing = False
    for what in ("no answer in 3.1 s", "no answer in 4.2 s", "expired", "no answer in 5 s", "",
                 "no answer in 6 s"):  # fmt: skip

        def job(reason: str = what) -> None:
            if reason:
                raise ClusterError(reason)

        failing = not loop._attempt("ends", job, told=failing)
        told.append(loop.events())
    assert told == [
        ["ends: no answer in 3.1 s"],
        [],
        ["ends: expired"],
        [],
        ["ends: works again"],
        ["ends: no answer in 6 s"],
    ]


def test_reasons_without_end_are_told_of_a_few_times() -> None:
    loop = ControlLoop(MirrorSettings((), ()), once=False, run_id="r")

    def fail(reason: str) -> None:
        raise ClusterError(reason)

    for n in range(100):
        loop._attempt("ends", lambda: fail("x" * n), told=n > 0)  # noqa: B023
    assert len(loop.events()) == 10
