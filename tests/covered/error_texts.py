"""The errors that a user meets, by where they are made: which of them some test brings about."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from sparkmirror import errors

__all__ = ["error_texts"]

_CHARS_MAX = 100
_CLASSES = frozenset(
    name
    for name in errors.__all__
    if issubclass(getattr(errors, name), errors.MirrorError)
)  # fmt: skip


def error_texts(tree: ast.AST) -> list[tuple[int, str]]:
    """(line, text) of each place that makes an error of ``sparkmirror.errors`` with a text.

    The line is that of the statement, as coverage counts. `Defect` is not among them: it is
    nobody's mistake but ours, and no user is to meet it.
    """
    return sorted(_made(tree, 0))


def _made(node: ast.AST, line: int) -> Iterator[tuple[int, str]]:
    for child in ast.iter_child_nodes(node):
        at = child.lineno if isinstance(child, ast.stmt) else line
        if isinstance(child, ast.Call) and child.args and _name(child.func) in _CLASSES:
            yield at, _shown(child.args[0])
        yield from _made(child, at)


def _name(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def _shown(node: ast.expr) -> str:
    """The text, with the names of what is put into it."""
    if isinstance(node, ast.JoinedStr):
        parts = [
            f"{{{ast.unparse(one.value)}}}"
            if isinstance(one, ast.FormattedValue)
            else str(getattr(one, "value", ""))
            for one in node.values
        ]
        text = "".join(parts)
    else:
        text = node.value if isinstance(node, ast.Constant) else ast.unparse(node)
    text = " ".join(str(text).split()).replace("|", "\\|")
    return text if len(text) <= _CHARS_MAX else f"{text[: _CHARS_MAX - 1]}…"
