"""Commands that the documents show: the verbs and options are real ones."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from sparkmirror.cli import kafka_mirror_maker
from sparkmirror.cli import main as main_module

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *(ROOT / "examples").glob("*.md")]
)
_COMMAND = re.compile(r"(?:^|[`\s/(])(sparkmirror|kafka-mirror-maker) +([^`\n|>;&]*)")


def commands(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each command line of ``page``, continued lines joined: its name and its words."""
    text = page.read_text().replace("\\\n", " ")
    for name, rest in _COMMAND.findall(text):
        try:
            words = shlex.split(rest, comments=True)
        except ValueError:  # a sentence with an apostrophe
            continue
        yield name, words


@cache
def _verbs() -> Any:
    main_module._add_verbs([])
    return typer.main.get_command(main_module.app)


def options_of(words: list[str]) -> set[str] | None:
    """The options of the verb that ``words`` begin with; None where no verb is named."""
    command = _verbs()
    for word in words:
        verbs = getattr(command, "commands", None)
        if verbs is None:
            break
        if word not in verbs:
            return None
        command = verbs[word]
    if hasattr(command, "commands"):
        return None
    return {option for one in command.params for option in (*one.opts, *one.secondary_opts)}


@cache
def java_options() -> set[str]:
    actions = kafka_mirror_maker._parser()._actions
    return {option for action in actions for option in action.option_strings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_options_of_the_commands_exist(page: Path) -> None:
    wrong = []
    for name, words in commands(page):
        given = [word.partition("=")[0] for word in words if re.match(r"--[a-z]", word)]
        known = java_options() if name == "kafka-mirror-maker" else options_of(words)
        if given and known is None:
            wrong.append(f"{name} {' '.join(words)}: no such verb")
        elif known is not None:
            wrong += [f"{name} {words[0]}: {one}" for one in given if one not in known | {"--help"}]
    assert wrong == []


def test_the_pages_do_show_commands() -> None:
    """Else the pattern has stopped to find them."""
    found = {words[0] for page in PAGES for name, words in commands(page) if words}
    assert {"run", "doctor", "plan", "lag", "status", "verify", "config"} <= found


def test_a_systemd_unit_lets_only_the_mirror_itself_have_sigterm() -> None:
    """By default, systemd sends it to Spark and the workers, too."""
    units = [
        block
        for page in PAGES
        for block in re.findall(r"```ini\n(.+?)```", page.read_text(), re.DOTALL)
        if "ExecStart=" in block
    ]
    assert units
    assert all("\nKillMode=mixed\n" in unit for unit in units)
