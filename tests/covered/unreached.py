"""Why lines are run by no test, and what would lead there, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

__all__ = ["conditions"]

_CHARS_MAX = 90
_PARTS_MAX = 4

_DEFECT = "only a fault of our own leads there"
_SCRIPT = "run as a script alone"
_CLUSTER = "no test has a cluster fail at that moment"
_MACHINE = "no test has the machine refuse it at that moment"
_CLOCK = "no test waits that long"
_UNCALLED = "no test of `make test` calls it"
_NOBODY = "no test brings it about"

_OF_OURS = frozenset({"Defect", "NotImplementedError", "AssertionError"})
_OF_CLUSTERS = frozenset(
    {"MirrorError", "ClusterError", "ConnectionLost", "Unreachable", "Denied", "Unsupported",
     "Fenced", "TimeoutError", "Exception", "BaseException"}
)  # fmt: skip
_OF_THE_MACHINE = frozenset(
    {"OSError", "FileNotFoundError", "BlockingIOError", "ProcessLookupError", "TimeoutExpired",
     "NoSuchProcess", "ImportError", "PackageNotFoundError", "RuntimeError", "OverflowError"}
)  # fmt: skip
_OF_CLOCKS = frozenset({"monotonic", "deadline", "left_s", "left_ms", "_clock", "stalled_at"})


def conditions(tree: ast.AST, lines: Collection[int]) -> str:
    """Why no test runs ``lines`` of one function: a reason, and what leads there, each branch once.

    A branch counts where its first statement did not run: what is further inside follows from that.
    """
    missing = set(lines)
    found: dict[str, str] = {}
    for text, why, head, first, last in _branches(tree):
        inside = {line for line in missing if head <= line <= last}
        if inside and first in missing:
            found.setdefault(text, why)
            missing -= inside
    if missing:
        found.setdefault("what stands before was left early", _NOBODY)
    told = list(found)[:_PARTS_MAX]
    reasons = dict.fromkeys(found[text] for text in told)
    parts = [f"{why}: {'; '.join(text for text in told if found[text] == why)}" for why in reasons]
    more = f"; {len(found) - _PARTS_MAX} more" if len(found) > _PARTS_MAX else ""
    return ". ".join(parts) + more


def _branches(node: ast.AST) -> Iterator[tuple[str, str, int, int, int]]:
    """(what leads there, why no test does, line of its head, first, last) of bodies, outer first.

    The head is the body's own as far as coverage counts it: the line of an ``except``.
    """
    for child in ast.iter_child_nodes(node):
        for text, body in _bodies(child):
            first, last = _first_line(body[0]), body[-1].end_lineno
            assert last is not None
            head = child.lineno if isinstance(child, ast.ExceptHandler) else first
            yield text, _why(child, body), head, first, last
        yield from _branches(child)


def _bodies(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            body = node.body
            if len(body) > 1 and _is_docstring(body[0]):
                body = body[1:]
            yield f"`{node.name}`", body
        case ast.If():
            yield f"`{_short(node.test)}`", node.body
            if node.orelse and not isinstance(node.orelse[0], ast.If):
                yield f"not `{_short(node.test)}`", node.orelse
        case ast.While():
            yield f"`{_short(node.test)}`", node.body
        case ast.For():
            yield f"one of `{_short(node.iter)}`", node.body
        case ast.ExceptHandler():
            yield f"`{_short(node.type)}` is raised" if node.type else "an error", node.body
        case ast.match_case():
            yield f"`case {_short(node.pattern)}`", node.body


def _why(node: ast.AST, body: list[ast.stmt]) -> str:
    if all(isinstance(one, ast.Raise) and _names(one.exc) & _OF_OURS for one in body):
        return _DEFECT
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            return _UNCALLED
        case ast.ExceptHandler():
            names = _names(node.type)
            if names & _OF_CLUSTERS:
                return _CLUSTER
            return _MACHINE if names & _OF_THE_MACHINE else _NOBODY
        case ast.If() | ast.While():
            if ast.unparse(node.test) == "__name__ == '__main__'":
                return _SCRIPT
            return _CLOCK if _names(node.test) & _OF_CLOCKS else _NOBODY
    return _NOBODY


def _names(node: ast.AST | None) -> set[str]:
    """The names, and those after a dot, in an expression."""
    inside = list(ast.walk(node)) if node is not None else []
    return {one.id for one in inside if isinstance(one, ast.Name)} | {
        one.attr for one in inside if isinstance(one, ast.Attribute)
    }


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _first_line(node: ast.stmt) -> int:
    decorated = getattr(node, "decorator_list", ())
    return min([node.lineno, *(one.lineno for one in decorated)])


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split()).replace("|", "\\|")
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
