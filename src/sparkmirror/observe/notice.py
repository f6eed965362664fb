"""A line for the user, with what it is about: for programs that read JSON lines."""

from __future__ import annotations

import re
from typing import Self

__all__ = ["Notice", "named_places"]

_FLOW = re.compile(r"[^\s:,]+->[^\s:,]+")
_CLUSTER = re.compile(r"\bcluster '?([^\s:,;']+)")


class Notice(str):
    """Text with facts; wherever only the text counts it is one.

    ``level``: ``info``, ``warning`` or ``error``. ``code``: of the error behind it (see
    ``errors``). ``flow``, ``cluster``: what it is about. Empty where there is none.
    """

    level: str
    code: str
    flow: str
    cluster: str

    def __new__(
        cls, text: str, *, level: str = "info", code: str = "", flow: str = "", cluster: str = ""
    ) -> Self:
        """The text with its facts."""
        made = super().__new__(cls, text)
        made.level, made.code, made.flow, made.cluster = level, code, flow, cluster
        return made

    def facts(self) -> dict[str, str | None]:
        """What stands beside the text in a JSON line."""
        return {
            "level": self.level,
            "code": self.code or None,
            "flow": self.flow or None,
            "cluster": self.cluster or None,
        }


def named_places(text: str) -> tuple[str, str]:
    """The flow and the cluster that the ``where`` of an error or a line names, empty for none."""
    flow, cluster = _FLOW.search(text), _CLUSTER.search(text)
    return flow[0] if flow else "", cluster[1] if cluster else ""
