"""What a check found: the one noun of the doctor."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum

from sparkmirror.errors import Denied, MirrorError, Unreachable, Unsupported

__all__ = ["Finding", "Level", "at_work", "counts", "failed", "gathered", "listed", "ok", "skipped"]

_NAMES_MAX = 6


class Level(Enum):
    """How bad it is. ``SKIP``: it could not be tried, ``do`` says what it takes."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Finding:
    """One result of one check.

    ``subject``: what it is about (cluster, broker, topic). ``tried``, ``found``, ``do``: what was
    done, what came back, and the next step. ``place``: the machine it was done from, "" = here.
    """

    check: str
    level: Level
    subject: str
    tried: str
    found: str
    do: str = ""
    place: str = ""


def ok(check: str, subject: str, tried: str, found: str) -> Finding:
    """A check that all is well with."""
    return Finding(check, Level.OK, subject, tried, found)


def failed(check: str, subject: str, tried: str, error: MirrorError) -> Finding:
    """A check that ended with an error."""
    found = error.what.rstrip(".")
    return Finding(check, Level.FAIL, subject, tried, found, error.do)


def skipped(check: str, subject: str, tried: str, error: MirrorError) -> Finding:
    """A check that is not vital and could not be made."""
    return Finding(check, Level.SKIP, subject, tried, error.what.rstrip("."), error.do)


def at_work(check: str, subject: str, tried: str, error: MirrorError) -> Finding:
    """`skipped` for what the cluster does not tell everybody, `failed` for everything else."""
    small = isinstance(error, Denied | Unsupported | Unreachable)
    return (skipped if small else failed)(check, subject, tried, error)


def listed(names: Iterable[str]) -> str:
    """A few of ``names``, and how many more there are."""
    known = list(names)
    rest = len(known) - _NAMES_MAX
    shown = ", ".join(known[:_NAMES_MAX])
    return f"{shown} and {rest} more" if rest > 0 else shown


def gathered(findings: Sequence[Finding]) -> list[Finding]:
    """Findings of one check that are fine become one, so that the others can be seen. Pure.

    Their subjects are joined; so are those of findings of one cluster that are otherwise alike, and
    those of topics.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for one in findings:
        fine = one.level is Level.OK
        what, _, name = one.subject.partition(" ")
        kind = what if what == "topic" else f"{what} {name.partition(',')[0]}"
        alike = () if fine else (kind, one.found, one.do)
        key = (one.check, one.level.value, one.place, one.tried, *alike)
        groups.setdefault(key, []).append(one)
    result = []
    for group in groups.values():
        first = group[0]
        subject = listed(dict.fromkeys(one.subject for one in group))
        told = list(dict.fromkeys(one.found for one in group))
        found = told[0] if len(told) == 1 else f"{len(group)} of {len(group)} are fine"
        result.append(
            Finding(first.check, first.level, subject, first.tried, found, first.do, first.place)
        )
    return result


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Number of findings by level, in the order of `Level`."""
    found = {level.value: 0 for level in Level}
    for one in findings:
        found[one.level.value] += 1
    return found
