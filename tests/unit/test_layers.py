"""Imports go one way, and the documents are true to the code."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import sparkmirror
from sparkmirror.cli.main import main
from sparkmirror.config.docs import settings_page

ROOT = Path(__file__).parents[2]
SOURCE = Path(sparkmirror.__file__).parent

FORBIDDEN = {
    "model": {"config", "wire", "data", "control", "cli", "observe", "demo"},
    "errors": {"config", "wire", "data", "control", "cli", "observe", "demo"},
    "policy": {"config", "wire", "data", "control", "cli", "observe", "demo"},
    "config": {"wire", "data", "control", "cli", "observe", "demo"},
    "wire": {"data", "control", "cli", "demo"},
    "data": {"control", "cli"},
    "control": {"data", "cli"},
    "observe": {"config", "wire", "data", "control", "cli", "demo"},
}


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("layer", sorted(FORBIDDEN))
def test_imports_go_one_way(layer: str) -> None:
    files = [path for path in SOURCE.rglob("*.py") if _layer(path) == layer]
    assert files
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in files
        for name in _imports(path)
        if name.startswith("sparkmirror.") and name.split(".")[1] in FORBIDDEN[layer]
    ]
    assert wrong == []


def test_only_wire_imports_kafka_python() -> None:
    wrong = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        # The demo writes aborted transactions, which the product never does.
        if _layer(path) not in {"wire", "demo"}
        and any(name.split(".")[0] == "kafka" for name in _imports(path))
    ]
    assert wrong == []


def test_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_every_module_is_in_the_file_map() -> None:
    design = (ROOT / "DESIGN.md").read_text()
    missing = [
        path.stem
        for path in SOURCE.rglob("*.py")
        if path.stem != "__init__" and f"{path.stem}" not in design
    ]
    assert missing == []


@pytest.mark.parametrize("command", ["run", "demo"])
def test_readme_and_quickstart_name_real_commands(command: str) -> None:
    assert main([command, "--help"]) == 0
    texts = (ROOT / "README.md").read_text() + (ROOT / "docs" / "quickstart.md").read_text()
    assert command in texts
