"""What the results of ``make test-all`` are about: the same product, the same result."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path

__all__ = ["product"]

_INSTALLED = ("pyproject.toml", "requirements.lock")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def product(root: Path) -> str:
    """Names what a tree installs: its locked dependencies, and ``src`` as Python runs it.

    Comments, docstrings and the form of the code make no difference.
    """
    found = hashlib.sha256()
    for path in (*sorted((root / "src").rglob("*.*")), *(root / name for name in _INSTALLED)):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(root)}\n".encode())
            found.update(_code(path) if path.suffix == ".py" else path.read_bytes())
    return found.hexdigest()[:12]


def _code(path: Path) -> bytes:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            del node.body[0]
    return ast.dump(tree).encode()
