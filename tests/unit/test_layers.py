"""Imports go one way, and the documents are true to the code."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path

import pytest

import sparkmirror
from sparkmirror.cli.main import main
from sparkmirror.config.docs import settings_page
from tests.module_page import folders, module_page

ROOT = Path(__file__).parents[2]
SOURCE = Path(sparkmirror.__file__).parent

# What everybody shares.
_TYPES = "model progress transform_settings settings"
# Who may import what, from the ground up: a row names only rows before it. `cli` is on top.
MAY_IMPORT = {
    layer: set(below.replace("types", _TYPES).split())
    for layer, below in {
        "errors": "",
        "model": "",
        "progress": "",
        "transform_settings": "model",
        "settings": "model transform_settings",
        "offset_reset": "",
        "text": "",
        "ticks": "",
        "side_by_side": "",
        # What the machine has. Only those who start processes need it.
        "directories": "errors",
        "cache": "errors directories",
        "java": "errors cache",
        "names": "errors types",
        "records": "errors types",
        "internal_topics": "errors types names",
        "config": "errors types offset_reset text ticks names",
        "observe": "errors types text ticks",
        "wire": "errors types offset_reset text ticks side_by_side names records internal_topics "
        "config observe",
        "client": "errors types offset_reset text ticks names internal_topics config wire",
        "control": "errors types offset_reset text ticks side_by_side names records "
        "internal_topics config observe wire",
        "data": "errors types offset_reset text ticks directories cache java names records "
        "internal_topics config observe wire",
        # Looks at both sides of a mirror: the control plane's plans and the executors' network.
        "doctor": "errors types offset_reset text ticks names internal_topics config observe wire "
        "control data",
        "testing": "errors cache java",
        # Of observe, what the results of a comparison are.
        "demo": "errors types java names records observe wire testing",
    }.items()
}
UNBOUND = {"__init__", "__main__", "cli"}


@cache
def imported(source: str, package: str) -> set[str]:
    """Full names of the modules and attributes that ``source``, in ``package``, imports."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parents = package.split(".")
            base = parents[: len(parents) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            # An imported name may be a module or an attribute; both count as what it is in.
            names |= {f"{module}.{alias.name}" for alias in node.names}
        elif isinstance(node, ast.Call) and node.args:
            name = node.args[0]
            if isinstance(name, ast.Constant) and ast.unparse(node.func) in _LOADERS:
                names.add(name.value)
    return names


_LOADERS = {"importlib.import_module", "import_module", "__import__", "find_spec"}


def layer_of(name: str) -> str:
    """``wire`` for ``sparkmirror.wire.net.poller``, an empty text for a module that is not ours."""
    parts = name.split(".")
    return parts[1] if parts[0] == "sparkmirror" and len(parts) > 1 else ""


def _imports(path: Path) -> set[str]:
    package = ".".join(["sparkmirror", *path.relative_to(SOURCE).parts[:-1]])
    return imported(path.read_text(), package)


def _layer(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "line",
    [
        "import sparkmirror.wire",
        "import sparkmirror.wire.batch as b",
        "from sparkmirror import wire",
        "from sparkmirror import model, wire as w",
        "from sparkmirror.wire import batch",
        "from sparkmirror.wire.batch import HEADER",
        "from .. import wire",
        "from ..wire.batch import HEADER",
        "def late():\n    from sparkmirror import wire",
        "import importlib\nimportlib.import_module('sparkmirror.wire')",
    ],
)
def test_every_way_to_import_is_seen(line: str) -> None:
    assert "wire" in {layer_of(name) for name in imported(line, "sparkmirror.config")}


def test_imports_within_a_package_stay_in_it() -> None:
    names = imported("from . import keys\nfrom .keys import wire", "sparkmirror.config")
    assert {layer_of(name) for name in names} == {"config"}


def test_every_layer_has_its_rule() -> None:
    assert {_layer(path) for path in SOURCE.rglob("*.py")} == set(MAY_IMPORT) | UNBOUND


def test_the_table_goes_from_the_ground_up() -> None:
    order = list(MAY_IMPORT)
    for layer, below in MAY_IMPORT.items():
        assert below <= set(order[: order.index(layer)]), layer


@pytest.mark.parametrize("layer", sorted(MAY_IMPORT))
def test_imports_go_one_way(layer: str) -> None:
    files = [path for path in SOURCE.rglob("*.py") if _layer(path) == layer]
    assert files
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in files
        for name in sorted(_imports(path))
        if layer_of(name) not in MAY_IMPORT[layer] | {layer, ""}
    ]
    assert wrong == []


LISTED = {"cli", "config", "control", "doctor", "names", "observe"}
"""The packages in which a module has ``__all__`` if and only if another package imports it."""


def modules_of(source: Path) -> dict[str, Path]:
    """The modules below ``source`` by their full names."""
    return {
        ".".join(["sparkmirror", *path.relative_to(source).with_suffix("").parts]): path
        for path in source.rglob("*.py")
        if path.name != "__init__.py"
    }


def test_all_stands_where_another_package_imports() -> None:
    modules = modules_of(SOURCE)
    public = {
        name if name in modules else name.rpartition(".")[0]
        for path in modules.values()
        for name in _imports(path)
        if layer_of(name) != _layer(path)
    }
    wrong = {
        module
        for module, path in modules.items()
        if layer_of(module) in LISTED
        and (module in public) != ("\n__all__ = [" in path.read_text())
    }
    assert wrong == set()
    assert len(public & modules.keys()) > 100


FILES_MAX = 20
"""Of a folder; whoever looks for something reads the names of all of them."""


@pytest.mark.parametrize(
    "root", [SOURCE, ROOT / "tests", ROOT / "benchmarks"], ids=lambda one: one.name
)
def test_no_folder_is_crowded(root: Path) -> None:
    counts = Counter(path.parent for path in root.rglob("*.py") if path.name != "__init__.py")
    assert len(counts) > 2
    crowded = {
        str(folder.relative_to(root)): count
        for folder, count in counts.items()
        if count > FILES_MAX
    }
    assert crowded == {}


def folders_of(source: Path) -> dict[str, set[str]]:
    """The folders below ``source``, each with the others that its modules import from.

    A module in no folder stands for itself; imports within functions count like all others.
    """
    modules = modules_of(source)

    def folder(module: str) -> str:
        parts = module.split(".")[1:]
        return "/".join(parts[:-1]) or parts[0]

    found: dict[str, set[str]] = {folder(module): set() for module in modules}
    for module, path in modules.items():
        for name in imported(path.read_text(), module.rpartition(".")[0]):
            target = name if name in modules else name.rpartition(".")[0]
            if target in modules and folder(target) != folder(module):
                found[folder(module)].add(folder(target))
    return found


def circle(imports: dict[str, set[str]]) -> list[str]:
    """Those of which each imports the next, and the last the first; empty where there are none."""
    done: set[str] = set()

    def walk(one: str, way: list[str]) -> list[str]:
        if one in way:
            return way[way.index(one) :]
        if one in done:
            return []
        for other in sorted(imports[one]):
            if found := walk(other, [*way, one]):
                return found
        done.add(one)
        return []

    for one in sorted(imports):
        if found := walk(one, []):
            return found
    return []


def test_folders_do_not_import_each_other_in_a_circle() -> None:
    folders = folders_of(SOURCE)
    assert "wire/net" in folders["wire/fetch"]
    assert "cli/run" in folders["cli"]
    assert circle(folders) == []


def test_a_circle_is_found() -> None:
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"b"}}) == ["b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


def selects(source: str) -> list[int]:
    """The lines of ``source`` that use, or import, ``select`` of the standard module ``select``."""
    if "select" not in source.lower():
        return []  # most files: to parse them all takes seconds
    tree, names, found = ast.parse(source), set(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {one.asname or one.name for one in node.names if one.name == "select"}
        elif isinstance(node, ast.ImportFrom) and node.module == "select" and not node.level:
            found += [node.lineno for one in node.names if one.name in ("select", "*")]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "select":
            if isinstance(node.value, ast.Name) and node.value.id in names:
                found.append(node.lineno)
        elif isinstance(node, ast.Attribute) and node.attr == "SelectSelector":
            found.append(node.lineno)
    return sorted(found)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("import select\nselect.select([], [], [])", [2]),
        ("import os, select as waiting\ndef late():\n    return waiting.select", [3]),
        ("from select import poll, select as wait", [1]),
        ("import selectors\nselectors.SelectSelector()", [2]),
        ("import select\nselect.poll()\nself._selector.select()", []),
        ("from sparkmirror.wire import select\nselect.select(b'')", []),
        ("from sparkmirror.wire.select import select", []),
    ],
)
def test_every_way_to_select_is_seen(text: str, lines: list[int]) -> None:
    assert selects(text) == lines


def test_nothing_waits_with_select() -> None:
    """It takes no descriptor from 1,024 on; `sparkmirror.wire.net.poller` takes any."""
    files = [
        path for name in ("src", "tests", "benchmarks") for path in (ROOT / name).rglob("*.py")
    ]
    assert len(files) > 100
    wrong = [
        f"{path.relative_to(ROOT)}:{line}" for path in files for line in selects(path.read_text())
    ]
    assert wrong == []


def test_settings_page_is_current() -> None:
    assert (ROOT / "docs" / "settings.md").read_text() == settings_page(), "run `make docs`"


def test_module_page_is_current() -> None:
    assert (ROOT / "docs" / "modules.md").read_text() == module_page(), "run `make docs`"


def test_the_tree_of_the_design_names_every_folder_and_no_other() -> None:
    tree = (ROOT / "DESIGN.md").read_text().split("## Folders", 1)[1].split("\n## ", 1)[0]
    beside = {"tests/", "examples/", "benchmarks/", "deploy/kubernetes/"}
    assert all((ROOT / one).is_dir() for one in beside)
    named = set(re.findall(r"`([a-z_0-9/]+/)`", tree)) - beside
    assert named == set(folders()) - {"", "wire/"}


@pytest.mark.parametrize(
    ("page", "at_least"),
    [
        ("DESIGN.md", 20),
        ("CONTRIBUTING.md", 6),
        ("docs/decisions.md", 3),
        ("docs/exactly-once.md", 4),
    ],
)
def test_what_a_page_points_to_is_there(page: str, at_least: int) -> None:
    """A function or method named as ``wire/fetch/fetcher.py:Fetcher.send`` is in that file."""
    pointers = re.findall(r"`([a-z_/]+\.py):([\w.]+)`", (ROOT / page).read_text())
    assert len(pointers) >= at_least
    stale = []
    for file, name in pointers:
        tree = ast.parse((SOURCE / file).read_text())
        kinds = (ast.ClassDef, ast.FunctionDef)
        found = {node.name for node in ast.walk(tree) if isinstance(node, kinds)}
        if not found.issuperset(name.split(".")):
            stale.append(f"{file}:{name}")
    assert stale == []


@pytest.mark.parametrize("command", ["run", "demo"])
def test_readme_and_quickstart_name_real_commands(command: str) -> None:
    assert main([command, "--help"]) == 0
    texts = (ROOT / "README.md").read_text() + (ROOT / "docs" / "quickstart.md").read_text()
    assert command in texts
