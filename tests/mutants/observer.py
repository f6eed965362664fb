"""A plugin of pytest: tells `tests.mutants` in a file what each test came to, and by what error."""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from hypothesis import Phase, settings

OUT = "SPARKMIRROR_MUTANTS_OUT"
SOURCE = "SPARKMIRROR_MUTANTS_SOURCE"

# The first example that fails is enough, and what failed with one mutant says nothing of the next.
settings.register_profile("mutants", phases=(Phase.explicit, Phase.generate), database=None)
settings.load_profile("mutants")


def pytest_configure(config: pytest.Config) -> None:
    import sparkmirror

    source = Path(os.environ[SOURCE]).resolve()
    if source not in Path(sparkmirror.__file__).resolve().parents:
        raise pytest.UsageError(f"the product that is tested is not the one in {source}")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.when == "call" or report.outcome != "passed":
        errors = [] if call.excinfo is None else list(_flat(call.excinfo.value))
        _tell(
            test=item.nodeid,
            when=report.when,
            outcome=report.outcome,
            errors=[type(one).__name__ for one in errors],
            text=_line(errors[-1]) if errors else "",
        )
    return report


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        text = str(report.longrepr).strip().splitlines()[-1:]
        _tell(
            test=report.nodeid,
            when="collect",
            outcome="failed",
            errors=["CollectError"],
            text="".join(text),
        )


def _flat(error: BaseException) -> Iterator[BaseException]:
    """The errors in a group: Hypothesis reports several at once."""
    if isinstance(error, BaseExceptionGroup):
        for one in error.exceptions:
            yield from _flat(one)
    else:
        yield error


def _line(error: BaseException) -> str:
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first}"[:160]


def _tell(**found: object) -> None:
    with Path(os.environ[OUT]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(found) + "\n")
