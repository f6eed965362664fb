"""What would have to come about for lines that no test runs to be run, read from their source."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

__all__ = ["conditions"]

_CHARS_MAX = 90
_PARTS_MAX = 4


def conditions(tree: ast.AST, lines: Collection[int]) -> str:
    """What leads to ``lines`` of one function, each branch once, in the order of the source.

    A branch counts where its first statement did not run: what is further inside follows from that.
    """
    missing = set(lines)
    found: dict[str, None] = {}
    for text, first, last in _branches(tree):
        inside = {line for line in missing if first <= line <= last}
        if inside and first in missing:
            found[text] = None
            missing -= inside
    if missing:
        found.setdefault("what stands before was left early", None)
    texts = list(found)
    more = f"; {len(texts) - _PARTS_MAX} more" if len(texts) > _PARTS_MAX else ""
    return "; ".join(texts[:_PARTS_MAX]) + more


def _branches(node: ast.AST) -> Iterator[tuple[str, int, int]]:
    """(what leads there, first line, last line) of each body, the outer ones first."""
    for child in ast.iter_child_nodes(node):
        for text, body in _bodies(child):
            first = body[0]
            last = body[-1].end_lineno
            assert last is not None
            yield text, _first_line(first), last
        yield from _branches(child)


def _bodies(node: ast.AST) -> Iterator[tuple[str, list[ast.stmt]]]:
    match node:
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            body = node.body
            if len(body) > 1 and _is_docstring(body[0]):
                body = body[1:]
            yield f"nothing calls `{node.name}`", body
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


def _is_docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _first_line(node: ast.stmt) -> int:
    decorated = getattr(node, "decorator_list", ())
    return min([node.lineno, *(one.lineno for one in decorated)])


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split()).replace("|", "\\|")
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
