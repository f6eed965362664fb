"""Placeholders of config providers in a MirrorMaker 2 file that is written for another machine.

What they refer to need not be on this machine, so they stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from sparkmirror.config.files.page import Page
from sparkmirror.config.files.properties import Entry, parse_properties
from sparkmirror.config.files.providers import REFERENCE
from sparkmirror.config.files.values import parse_list
from sparkmirror.config.mm2.keys import OF_CONNECTOR, KeyUse, classify
from sparkmirror.config.table.settings import CLIENT_SET, Type

__all__ = ["checkable", "providers_of"]

_STOCK = "org.apache.kafka.common.config.provider."
# Classes of providers by their usual names; in Kafka Connect, the workers' files declare them.
_PROVIDERS = {
    "file": f"{_STOCK}FileConfigProvider",
    "directory": f"{_STOCK}DirectoryConfigProvider",
    "env": f"{_STOCK}EnvVarConfigProvider",
}
# Keys that determine which topics a flow has, and their names.
_NAMING = ("topics", "replication.policy.")
_QUOTED = re.compile(r'"(?:[^"\\]|\\.)*"')


def providers_of(entries: Iterable[Entry]) -> tuple[dict[str, str], list[str]]:
    """The class of each provider that ``entries`` refer to, and a note where it is unknown."""
    found: dict[str, str] = {}
    notes: dict[str, None] = {}
    for entry in entries:
        for name in REFERENCE.findall(entry.value):
            if name in _PROVIDERS:
                found[name] = _PROVIDERS[name]
            else:
                notes[
                    f"{entry.where}: {entry.key}: the class of the config provider {name} is "
                    "unknown; its placeholder is kept: declare it under config.providers"
                ] = None
    return found, list(notes)


def checkable(text: str, path: Path) -> str:
    """The ``text`` of a new file, to be checked without what its placeholders stand for.

    Settings with placeholders are left out, or have other values at the end: no line gets another
    number. Flows and logins that depend on placeholders are not judged. ``path``: for errors.
    """
    entries = parse_properties(text.encode("ascii"), path)
    aliases = parse_list(entries["clusters"])
    uses = [use for one in entries.values() if isinstance(use := classify(one, aliases), KeyUse)]
    unknown = [use for use in uses if REFERENCE.search(use.entry.value) and not _is_opaque(use)]
    smts = {use.flow for use in unknown if _is_of_smts(use)}
    page = Page()
    for use in unknown:
        if use.setting.name == "bootstrap.servers":
            page.put(use.entry.key, "localhost:9092")
    for flow in smts | {use.flow for use in unknown if use.setting.name.startswith(_NAMING)}:
        page.put(f"{flow}.topics", "")  # a flow without topics is part of no loop
    if any(use.setting.name in CLIENT_SET - {"bootstrap.servers"} for use in unknown):
        for use in uses:
            if use.setting.name == "security.protocol":
                page.put(use.entry.key, "PLAINTEXT")
    lines = text.split("\n")
    for use in uses:
        of_smts = use.flow in smts and _is_of_smts(use)
        if use in unknown or of_smts or use.setting.name == "config.providers":
            lines[use.entry.line - 1] = "#"
    return "\n".join([*lines, *page.lines, ""])


def _is_of_smts(use: KeyUse) -> bool:
    return use.entry.key.removeprefix(f"{use.flow}.").partition(".")[0] in OF_CONNECTOR


def _is_opaque(use: KeyUse) -> bool:
    """Whether the checks of a login take any text for this value: a password, a file's name."""
    name, value = use.setting.name, use.entry.value
    if name == "sasl.jaas.config":
        return REFERENCE.search(_QUOTED.sub("", value)) is None
    return name in CLIENT_SET and (use.setting.type is Type.PASSWORD or name.endswith(".location"))
