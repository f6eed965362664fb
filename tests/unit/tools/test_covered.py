"""What ``make coverage`` lists: each place that no test runs, with why, or what leads there."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import coverage
import pytest

from tests.covered.__main__ import (
    CONFIG,
    PROCESS_CONFIG,
    Gap,
    gaps,
    render,
    unknown_reasons,
)
from tests.covered.error_texts import error_texts
from tests.covered.reasons import REASONS
from tests.covered.unreached import conditions

ROOT = Path(__file__).parents[3]
SLOT_PLAN = ROOT / "src" / "sparkmirror" / "data" / "coordination" / "slot_plan.py"
SOURCE = """\
import os

class Reader:
    def read(self):
        def inner():
            return 1
        return inner

    def close(self):
        pass
"""


def test_lines_belong_to_the_innermost_function() -> None:
    found = [replace(one, unmet="") for one in gaps("m.py", {1, 6, 7, 10}, SOURCE)]
    assert found == [
        Gap("m.py", "", (1,)),
        Gap("m.py", "Reader.read.inner", (6,)),
        Gap("m.py", "Reader.read", (7,)),
        Gap("m.py", "Reader.close", (10,)),
    ]


BRANCHES = """\
def first(values):
    \"\"\"Of them.\"\"\"
    for value in values:
        if value > 1:
            value = 2
            return value
        else:
            break
    try:
        return values[0]
    except (IndexError, KeyError):
        if values:
            return 1
        return 0


def second():
    return {"a|b": 1}
"""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ({5, 6}, "no test brings it about: `value > 1`"),
        ({8}, "no test brings it about: not `value > 1`"),
        ({4, 5, 6, 8}, "no test brings it about: one of `values`"),
        ({12, 13, 14}, "no test brings it about: `(IndexError, KeyError)` is raised"),
        ({6}, "no test brings it about: what stands before was left early"),
        ({5, 6, 13}, "no test brings it about: `value > 1`; `values`"),
        ({18}, "no test of `make test` calls it: `second`"),
        (
            {3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 14},
            "no test of `make test` calls it: `first`",
        ),
    ],
)
def test_what_no_test_brings_about_is_told(lines: set[int], told: str) -> None:
    assert conditions(ast.parse(BRANCHES), lines) == told


REASONED = """\
def act(self):
    if self._control is None:
        raise Defect("no control plane")
    try:
        self._control.step()
    except ConnectionLost:
        self._control.drop()
    except OSError:
        return
    if time.monotonic() > deadline:
        self.give_up()
    if self.odd:
        self.even()

if __name__ == "__main__":
    act(None)
"""


def test_each_place_has_its_reason() -> None:
    tree = ast.parse(REASONED)
    for lines, told in (
        ({3}, "only a fault of our own leads there: `self._control is None`"),
        ({6, 7}, "no test has a cluster fail at that moment: `ConnectionLost` is raised"),
        ({8, 9}, "no test has the machine refuse it at that moment: `OSError` is raised"),
        ({11}, "no test waits that long: `time.monotonic() > deadline`"),
        ({13}, "no test brings it about: `self.odd`"),
        ({16}, "run as a script alone: `__name__ == '__main__'`"),
    ):
        assert conditions(tree, lines) == told
    assert conditions(tree, {3, 6, 7, 11, 13}) == (
        "only a fault of our own leads there: `self._control is None`. "
        "no test has a cluster fail at that moment: `ConnectionLost` is raised. "
        "no test waits that long: `time.monotonic() > deadline`. "
        "no test brings it about: `self.odd`"
    )


ERRORS = """\
def check(name, where):
    if name is None:
        raise Defect("no name")
    if not name:
        raise ConfigError(
            "the name is empty.", where=where
        )
    if "|" in name:
        return errors.TopicError(f"{name!r} has a | in it: {len(name)} characters.")
    raise error
"""


def test_the_errors_that_a_user_meets_are_known_by_their_texts() -> None:
    assert error_texts(ast.parse(ERRORS)) == [
        (5, "the name is empty."),
        (9, "{name} has a \\| in it: {len(name)} characters."),
    ]


def test_error_texts_that_no_test_touches_are_counted_and_listed() -> None:
    source = (ROOT / "src" / "sparkmirror" / "cache.py").read_text("utf-8")
    said = error_texts(ast.parse(source))
    (line, text), *others = said
    assert others
    page, _ = render({"cache.py": (set(range(1, 101)), {line})}, {})
    assert f"Tests touch {len(others)} of {len(said)} error texts." in page
    assert f"| `cache.py` | {line} | {text} |" in page
    assert others[0][1] not in page


def test_what_has_no_reason_is_listed_with_what_leads_there() -> None:
    missing = {24, 51}  # in cache_directory and in claim_part
    files = {"cache.py": (set(range(1, 101)), missing), "errors.py": (set(range(100)), set())}
    page, percent = render(files, {"cache.py:claim_part": "a race", "errors.py": "idle"})
    assert percent == 99.0
    assert "| `cache.py:cache_directory` | 24 | no test brings it about: " in page
    assert "| `cache.py:claim_part` | 51 | a race |" in page
    assert "Reasons for what tests do run: `errors.py`." in page
    whole, _ = render(files, {"cache.py": "of the module"})
    assert "no test brings it about" not in whole


def test_reasons_are_about_what_exists() -> None:
    assert unknown_reasons(REASONS) == []
    assert len(unknown_reasons({"gone.py": "x", "cache.py:gone": "x", "cache.py": " "})) == 3


# As Spark's daemon does it: a fork with the default actions of signals, ended by one of them while
# it waits for work; another one leaves by os._exit, as those of our own do.
FORKS = """
import os, signal, time
import tests.covered.endings
from sparkmirror.data.coordination import slot_plan

def fork(work):
    ours, theirs = os.pipe()
    if pid := os.fork():
        os.close(theirs)  # so that the end of the fork is seen, too
        os.read(ours, 1)
        return pid
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    work()
    os.write(theirs, b".")
    while True:  # a signal just before one long wait would be heard after it
        time.sleep(0.05)

hung_up = fork(lambda: slot_plan.assign_round_robin([], 1))
os.kill(hung_up, signal.SIGHUP)
assert os.waitstatus_to_exitcode(os.waitpid(hung_up, 0)[1]) == -signal.SIGHUP
left = fork(lambda: (slot_plan.SlotPlan(0, 0, "r", (), None, 0).end_offsets(), os._exit(7)))
assert os.waitstatus_to_exitcode(os.waitpid(left, 0)[1]) == 7
"""


def _missing(script: str, directory: Path) -> set[int]:
    """The lines of ``SLOT_PLAN`` that ``script`` and its forks do not run."""
    config = directory / "coveragerc"
    config.write_text(CONFIG.format(data=directory), encoding="utf-8")
    environment = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(config),
        "PYTHONPATH": str(ROOT),
    }
    environment.pop(PROCESS_CONFIG, None)  # of `make coverage`, whose data these lines would join
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    measured = coverage.Coverage(config_file=str(config))
    measured.combine([str(directory)], strict=True)
    _, _, _, missing, _ = measured.analysis2(str(SLOT_PLAN))
    return set(missing)


def _functions(missing: set[int]) -> set[str]:
    found = gaps("data/coordination/slot_plan.py", missing, SLOT_PLAN.read_text("utf-8"))
    return {gap.function for gap in found}


def test_what_forks_ran_is_known_however_they_end(tmp_path: Path) -> None:
    missing = _missing(FORKS, tmp_path)
    names = _functions(missing)
    assert "plan_slots" in names, "nobody called it"
    assert "assign_round_robin" not in names, "the fork that was ended by a signal"
    after = [line for line in missing if line in _lines_of(SLOT_PLAN, "if self.ends is None:")]
    assert after == [], "the fork that left by os._exit"


# As a worker of pytest-xdist that takes too long to end.
KILLED = """
import os, signal
from tests.covered import saving
from sparkmirror.data.coordination import slot_plan

if pid := os.fork():
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
else:
    slot_plan.assign_round_robin([], 1)
    saving.save()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_was_saved_outlives_its_process(tmp_path: Path) -> None:
    names = _functions(_missing(KILLED, tmp_path))
    assert "plan_slots" in names, "nobody called it"
    assert "assign_round_robin" not in names


def test_processes_learn_by_the_variable_that_coverage_sets(tmp_path: Path) -> None:
    config, script = tmp_path / "coveragerc", tmp_path / "script.py"
    config.write_text(CONFIG.format(data=tmp_path), encoding="utf-8")
    script.write_text(f"import os\nassert os.environ[{PROCESS_CONFIG!r}]\n", encoding="utf-8")
    environment = {**os.environ, PROCESS_CONFIG: ""}
    command = [sys.executable, "-m", "coverage", "run", f"--rcfile={config}", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, timeout=120, check=False)
    assert (done.returncode, done.stderr) == (0, b"")


def _lines_of(path: Path, text: str) -> set[int]:
    lines = path.read_text("utf-8").splitlines()
    return {number for number, line in enumerate(lines, 1) if line.strip() == text}
