"""The parts of ``make test-all``: what each runs, and which figures it leaves behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

from tests.complete.busy import minutes

__all__ = ["PARTS", "Part"]

Figures = Callable[[Path, str], Mapping[str, str]]
"""(directory of the part, what it printed) -> figures by name. Raises when they are not there."""


@dataclass(frozen=True)
class Part:
    """One part. ``{python}``, ``{make}`` and ``{out}`` (its directory) stand in its commands.

    ``command``: as for a release; ``short``: the same with as little of everything as there can
    be, which shows only that it works. ``what``: for the report. ``page``: a report of its own.
    """

    name: str
    what: str
    command: tuple[str, ...]
    short: tuple[str, ...]
    figures: Figures
    page: bool = False


def _found(pattern: str, text: str, what: str) -> re.Match[str]:
    found = re.search(pattern, text)
    if found is None:
        raise ValueError(f"{what} is missing")
    return found


def _tests(out: Path, _said: str) -> Mapping[str, str]:
    """Of a junit file: how many tests passed, failed and were skipped."""
    suites = list(ElementTree.parse(out / "junit.xml").getroot().iter("testsuite"))
    total, failed, errors, skipped = (
        sum(int(suite.get(name, "0")) for suite in suites)
        for name in ("tests", "failures", "errors", "skipped")
    )
    if total == 0:
        raise ValueError("no test ran")
    passed = total - failed - errors - skipped
    return {"passed": f"{passed:,}", "failed": f"{failed + errors:,}", "skipped": f"{skipped:,}"}


def _timed_tests(out: Path, said: str) -> Mapping[str, str]:
    """The same, and how long they took: the tests alone, without what is installed before them."""
    return {"minutes": f"{minutes(out / 'junit.xml'):.1f}", **_tests(out, said)}


def _faults(out: Path, _said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    kills = _found(r"## (\d+) random faults", page, "the number of faults")
    return {"kills": kills[1], **_counted(page)}


def _transformed_faults(out: Path, said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    found = _found(
        r"the transform left ([\d,]+) out; (\d+) differ from the model; (\d+) offsets of groups "
        r"translated, (\d+) of them not to the next record",
        *(page, "what the transform did"),
    )
    names = ("left out", "differ", "group offsets", "not exact")
    return {**_faults(out, said), **dict(zip(names, found.groups(), strict=True))}


def _standbys(out: Path, _said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    events = _found(r"## (\d+) random events, (\d+) takeovers", page, "the number of events")
    return {"events": events[1], "takeovers": events[2], **_counted(page)}


def _counted(page: str) -> Mapping[str, str]:
    """What those found who count the records at the target."""
    result = _found(r"\*\*(\d+) lost, (\d+) duplicated\*\*", page, "what was lost")
    records = _found(r"([\d,]+) records written", page, "the number of records")
    return {"records": records[1], "lost": result[1], "twice": result[2]}


def _losses(out: Path, _said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    losses = _found(r"## (\d+) losses at the target", page, "the number of losses")
    records = _found(r"([\d,]+) records:", page, "the number of records")
    result = _found(
        r"\*\*(\d+) missing, (\d+) twice, (\d+) out of order, (\d+) untold\*\*", page, "the sum"
    )
    names = ("missing", "twice", "out of order", "untold")
    sums = dict(zip(names, result.groups(), strict=True))
    return {"losses": losses[1], "records": records[1], **sums}


def _partitions(out: Path, _said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    return {"partitions": _found(r"([\d,]+) partitions", page, "the number of partitions")[1]}


def _fuzz(out: Path, _said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    found = _found(
        r"\*\*([\d,]+) cases in ([\d.,]+) CPU-minutes, (\d+) crashes, (\d+) hangs", page, "the sum"
    )
    return dict(zip(("cases", "CPU-minutes", "crashes", "hangs"), found.groups(), strict=True))


def _mutants(out: Path, _said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    found = _found(
        r"(\d+) mutants in \d+ s: \*\*(\d+) noticed, (\d+) survived, (\d+) broken", page, "the sum"
    )
    return dict(zip(("mutants", "noticed", "survived", "broken"), found.groups(), strict=True))


def _coverage(out: Path, said: str) -> Mapping[str, str]:
    page = (out / "page.md").read_text(encoding="utf-8")
    covered = _found(r"\*\*([\d.]+) %\*\*", page, "the coverage")[1]
    texts = _found(r"touch (\d+ of \d+) error texts", page, "the number of error texts")[1]
    return {"lines": f"{covered} %", "error texts": texts, **_tests(out, said)}


def _standing_by(processes: int, mode: str) -> Part:
    """Half of the ten minutes that each mode gets: with two processes, and with three."""
    flags = ("--at-least-once",) if mode == "at-least-once" else ()
    command = (
        *("{python}", "-m", "tests.faults.standbys", "--report", "{out}/page.md"),
        # Another seed: other events in another order.
        *("--processes", str(processes), "--seed", str(processes), *flags),
    )
    return Part(
        f"standbys-{processes}, {mode}",
        f"{processes} processes of one file stand by for each other; random kills, freezes, ends",
        (*command, "--seconds", "300"),
        (*command, "--seconds", "1"),
        _standbys,
        page=True,
    )


def _beside_spark(mode: str) -> Part:
    """Kills while small rows pass through the ring."""
    flags = ("--at-least-once",) if mode == "at-least-once" else ()
    command = ("{python}", "-m", "tests.faults", "--ring", *flags, "--report", "{out}/page.md")
    return Part(
        f"faults, ring, {mode}",
        "the same while small rows pass beside Spark",
        # Another seed: other faults in another order.
        (*command, "--faults", "30", "--records", "3000000", "--seed", "3"),
        (*command, "--faults", "1", "--records", "50000"),
        _faults,
        page=True,
    )


def _audit(_out: Path, said: str) -> Mapping[str, str]:
    compared = _found(r"(\d+) versions compared", said, "the number of versions")[1]
    found = _found(r"audit: (nothing|\d+) to mend", said, "the end")[1]
    database = _found(r"registry's database of faults[^\d\n]*(\d*)", said, "the database")
    unknown = "all" if "not asked" in database[0] else database[1] or "0"
    return {
        "versions": compared,
        "to mend": found.replace("nothing", "0"),
        "unknown to the registry": unknown,
    }


def _beside_others(run: int) -> Part:
    """One of the runs on a machine that is not quiet."""
    command = ("{python}", "-m", "tests.complete.busy", "--junitxml", "{out}/junit.xml")
    return Part(
        f"make test, busy {run}",
        "a clean clone, while another process keeps one core busy",
        command,
        (*command, "tests/unit/test_text.py"),
        _timed_tests,
    )


def _alone() -> Part:
    """The run on a machine that is quiet, which may take 20 minutes on two cores."""
    command = (
        *("{python}", "-m", "tests.complete.busy", "--alone", "--minutes-max", "20"),
        *("--junitxml", "{out}/junit.xml"),
    )
    return Part(
        "make test, quiet",
        "a clean clone, with nothing beside it; 20 minutes at most on two cores",
        command,
        (*command, "tests/unit/test_text.py"),
        _timed_tests,
    )


def _elections(name: str, *mode: str) -> Part:
    """Losses at the target, one after the other."""
    command = ("{python}", "-m", "tests.faults.elections", *mode, "--report", "{out}/page.md")
    return Part(
        name,
        "a target that loses records again and again; each loss is reported and mirrored again",
        (*command, "--losses", "30"),
        (*command, "--losses", "1"),
        _losses,
        page=True,
    )


_IN_TRANSACTIONS = (
    *("--at-least-once", "--none-twice", "--transactional", "--only"),
    *(f"{one} killed" for one in ("sink worker", "source worker", "planner", "JVM", "driver")),
)

_TRANSFORM = (
    *("--transform", "--only"),
    *(f"{one} killed" for one in ("sink worker", "source worker", "JVM", "driver")),
)

PARTS = (
    *(_beside_others(run) for run in (1, 2, 3)),
    _alone(),
    Part(
        "audit",
        "known faults of all packages, and the security rules on the product",
        ("{make}", "audit"),
        ("{make}", "audit", "ARGS=--offline"),
        _audit,
    ),
    Part(
        "mutants",
        "small faults in the product, and which test notices each",
        ("{make}", "mutants", "ARGS=--report {out}/page.md"),
        ("{make}", "mutants", "ARGS=--report {out}/page.md --workers 1 --only 'ACL rule inverted'"),
        _mutants,
        page=True,
    ),
    Part(
        "fuzz",
        "hostile answers and records, every target",
        ("{make}", "fuzz", "FUZZ=--report {out}/page.md"),
        ("{make}", "fuzz", "FUZZ=--seconds 5 --workers 1 --report {out}/page.md"),
        _fuzz,
        page=True,
    ),
    Part(
        "interop",
        "what Java's own tools and classes take part in",
        ("{make}", "interop", "ARGS=--junitxml={out}/junit.xml"),
        ("{make}", "interop", "ARGS=--junitxml={out}/junit.xml -k test_java_reads_ours"),
        _tests,
    ),
    Part(
        "matrix",
        "every listener, login and permission",
        ("{make}", "matrix", "ARGS=--junitxml={out}/junit.xml"),
        ("{make}", "matrix", "ARGS=--junitxml={out}/junit.xml -k test_a_mirror_through_every_way"),
        _tests,
    ),
    Part(
        "marked",
        "the many cases, in any file, that are marked as matrix",
        ("{python}", "-m", "pytest", "-m", "matrix", "--junitxml={out}/junit.xml", "tests"),
        ("{python}", "-m", "pytest", "-m", "matrix", "--junitxml={out}/junit.xml",
         "tests/kafka/security/test_acls_every_feature.py", "-k", "exactly-once"),
        _tests,
    ),
    Part(
        "more",
        "what make test does once, with other faults, sides and settings",
        ("{make}", "more", "ARGS=--junitxml={out}/junit.xml"),
        ("{make}", "more", "ARGS=--junitxml={out}/junit.xml -k test_a_long_condition"),
        _timed_tests,
    ),
    Part(
        "long",
        "mirrors that are killed, moved, frozen and starved, further than in make more",
        ("{make}", "long", "ARGS=--junitxml={out}/junit.xml"),
        ("{make}", "long", "ARGS=--junitxml={out}/junit.xml -k test_the_whole_page"),
        _tests,
    ),
    Part(
        "coverage",
        "the tests of make test and make more, and the lines of the product that they run",
        ("{make}", "coverage", "ARGS=--report {out}/page.md --junitxml={out}/junit.xml"),
        (
            *("{make}", "coverage"),
            "ARGS=--report {out}/page.md --junitxml={out}/junit.xml --fail-under 1"
            " tests/unit/data/write/test_slot_sink.py",
        ),
        _coverage,
        page=True,
    ),
    Part(
        "faults, exactly-once",
        "random kills under load; whoever reads committed records sees each once",
        ("{python}", "-m", "tests.faults", "--report", "{out}/page.md"),
        ("{python}", "-m", "tests.faults", "--report", "{out}/page.md", "--faults", "1",
         "--records", "50000"),
        _faults,
        page=True,
    ),
    Part(
        "faults, at-least-once",
        "the same without transactions",
        ("{python}", "-m", "tests.faults", "--at-least-once", "--report", "{out}/page.md"),
        ("{python}", "-m", "tests.faults", "--at-least-once", "--report", "{out}/page.md",
         "--faults", "1", "--records", "50000"),
        _faults,
        page=True,
    ),
    *(_beside_spark(mode) for mode in ("exactly-once", "at-least-once")),
    *(_standing_by(count, mode) for mode in ("exactly-once", "at-least-once") for count in (2, 3)),
    Part(
        "faults, transactional source",
        "kills of the mirror's processes at-least-once, half of the source in transactions; what "
        "was aborted never arrives, and nothing twice",
        ("{python}", "-m", "tests.faults", *_IN_TRANSACTIONS, "--report", "{out}/page.md",
         "--faults", "30"),
        ("{python}", "-m", "tests.faults", *_IN_TRANSACTIONS, "--report", "{out}/page.md",
         "--faults", "1", "--records", "50000"),
        _faults,
        page=True,
    ),
    Part(
        "faults, transform",
        "kills of the mirror's processes exactly-once, with a transform; each record is compared "
        "with a model, and groups go on at the next record",
        ("{python}", "-m", "tests.faults", *_TRANSFORM, "--report", "{out}/page.md",
         "--faults", "20", "--records", "500000"),
        ("{python}", "-m", "tests.faults", *_TRANSFORM, "--report", "{out}/page.md",
         "--faults", "1", "--records", "20000"),
        _transformed_faults,
        page=True,
    ),
    _elections("elections"),
    _elections("elections, exactly-once", "--exactly-once"),
    Part(
        "partitions",
        "a source with 10,000 partitions that nobody mirrors",
        ("{python}", "-m", "tests.faults.partitions", "--report", "{out}/page.md"),
        ("{python}", "-m", "tests.faults.partitions", "--report", "{out}/page.md",
         "--partitions", "200", "--burst-mb", "20"),
        _partitions,
        page=True,
    ),
)  # fmt: skip
