"""Reads untrusted JSON and YAML documents, and keeps the file and line of each part.

A document consists of tables, lists and texts; numbers and booleans are texts, booleans spelled as
in Java. YAML tags create no objects, and YAML aliases cannot expand a file beyond a limit.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from json.decoder import scanstring  # type: ignore[attr-defined]
from pathlib import Path
from typing import NoReturn

from yaml import (
    MappingNode,
    MarkedYAMLError,
    SafeLoader,
    ScalarNode,
    SequenceNode,
    YAMLError,
    compose_all,
)
from yaml import Node as YamlNode

from sparkmirror.config.files.properties import read_file
from sparkmirror.errors import ConfigError, Defect

# More than any file of connectors has; a few lines of YAML aliases could expand to billions.
_PARTS_MAX = 100_000
_BLANKS = re.compile(r"[ \t\r\n]*")
_PLAIN = re.compile(r"[^ \t\r\n,\]}]+")
_NULL, _BOOLEAN = "tag:yaml.org,2002:null", "tag:yaml.org,2002:bool"
_MERGE = "tag:yaml.org,2002:merge"
_TRUE = ("true", "yes", "on", "y")


@dataclass(frozen=True, slots=True)
class Node:
    """A part of a document: a table, a list, a text, or None for null.

    ``where``: file and line. ``path``: the keys that lead to it. ``repr`` omits the value, which
    may be a secret.
    """

    value: dict[str, Node] | list[Node] | str | None = field(repr=False)
    where: str
    path: str = ""

    def table(self) -> dict[str, Node]:
        """The entries; an empty table for null. Raises ConfigError if it is not a table."""
        if self.value is None:
            return {}
        if not isinstance(self.value, dict):
            self.wrong("is not a table of keys and values")
        return self.value

    def items(self) -> list[Node]:
        """The elements; an empty list for null. Raises ConfigError if it is not a list."""
        if self.value is None:
            return []
        if not isinstance(self.value, list):
            self.wrong("is not a list")
        return self.value

    def text(self) -> str:
        """The text. Raises ConfigError if it is not a text."""
        if not isinstance(self.value, str):
            self.wrong("is not a text, number or boolean")
        return self.value

    def get(self, key: str) -> Node | None:
        """The entry ``key`` of a table; None if it is missing or null."""
        found = self.table().get(key)
        return None if found is None or found.value is None else found

    def need(self, key: str) -> Node:
        """The entry ``key`` of a table. Raises ConfigError if it is missing or null."""
        found = self.get(key)
        if found is None:
            raise ConfigError(
                f"{self.path + '.' if self.path else ''}{key} is missing.",
                where=self.where,
                do=f"Add {key}.",
            )
        return found

    def wrong(self, what: str) -> NoReturn:
        """Raise a ConfigError with this part as subject and ``what`` as predicate."""
        raise ConfigError(
            f"{self.path or 'the document'} {what}.",
            where=self.where,
            do="Correct it, or export the file again.",
        )


def load_json(path: Path) -> Node:
    """Read a JSON file. Raises ConfigError with the line of the fault."""
    text = _text(path)
    try:
        json.loads(text, parse_int=str)  # Python's int refuses several thousand digits
        return _JsonReader(text, path).document()
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"this is not JSON: {error.msg[:1].lower()}{error.msg[1:]} (column {error.colno}).",
            where=f"{path}:{error.lineno}",
            do="Name a connector's file in the form that Kafka Connect accepts.",
        ) from None
    except RecursionError:
        raise _too_large(path) from None


def load_yaml(path: Path) -> list[Node]:
    """Read the documents of a YAML file. Raises ConfigError with the line of the fault."""
    text = _text(path)
    try:
        composed = list(compose_all(text, Loader=SafeLoader))
        reader = _YamlReader(path)
        return [reader.node(one, "") for one in composed if one is not None]
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark is not None else ""
        raise ConfigError(
            f"this is not YAML: {error.problem or 'it cannot be read'}.",
            where=f"{path}{line}",
            do="Name the file of the custom resource (kubectl get kafkamirrormaker2 NAME -o yaml).",
        ) from None
    except YAMLError:
        raise ConfigError(
            "this is not YAML: it contains characters that YAML does not allow.",
            where=str(path),
            do="Save it as UTF-8 text.",
        ) from None
    except RecursionError:
        raise _too_large(path) from None


def _text(path: Path) -> str:
    try:
        return read_file(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"this is not UTF-8 text (byte {error.start}).",
            where=str(path),
            do="Save it as UTF-8.",
        ) from None


def _too_large(path: Path) -> ConfigError:
    return ConfigError(
        f"the document has more than {_PARTS_MAX:,} parts, or is nested too deeply.",
        where=str(path),
        do="Name the file of a connector or of a KafkaMirrorMaker2 resource.",
    )


def _below(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _twice(key: str, path: str, where: str) -> ConfigError:
    return ConfigError(
        f"{_below(path, key)} is defined twice.", where=where, do="Remove one of them."
    )


class _JsonReader:
    """Parses a text that `json.loads` has accepted again, to find the line of each part."""

    def __init__(self, text: str, path: Path) -> None:
        self._text = text
        self._path = path
        self._seen = self._line = 0
        self._parts = 0

    def document(self) -> Node:
        return self._value(self._blanks(0), "")[0]

    def _blanks(self, at: int) -> int:
        match = _BLANKS.match(self._text, at)
        if match is None:
            raise Defect("blanks match nothing, too")
        return match.end()

    def _where(self, at: int) -> str:
        self._line += self._text.count("\n", self._seen, at)
        self._seen = at
        return f"{self._path}:{self._line + 1}"

    def _value(self, at: int, path: str) -> tuple[Node, int]:
        """The part that begins at ``at``, and the index after it."""
        self._parts += 1
        if self._parts > _PARTS_MAX:
            raise _too_large(self._path)
        where, first = self._where(at), self._text[at]
        if first == "{":
            return self._table(at, path, where)
        if first == "[":
            found: list[Node] = []
            at = self._blanks(at + 1)
            while self._text[at] != "]":
                node, at = self._value(at, f"{path}[{len(found)}]")
                found.append(node)
                at = self._after(at)
            return Node(found, where, path), at + 1
        if first == '"':
            text, end = scanstring(self._text, at + 1, True)
            return Node(text, where, path), end
        match = _PLAIN.match(self._text, at)
        if match is None:
            raise Defect("json.loads has taken it")
        return Node(None if match[0] == "null" else match[0], where, path), match.end()

    def _table(self, at: int, path: str, where: str) -> tuple[Node, int]:
        found: dict[str, Node] = {}
        at = self._blanks(at + 1)
        while self._text[at] != "}":
            key, end = scanstring(self._text, at + 1, True)
            if key in found:
                raise _twice(key, path, self._where(at))
            at = self._blanks(self._blanks(end) + 1)
            found[key], at = self._value(at, _below(path, key))
            at = self._after(at)
        return Node(found, where, path), at + 1

    def _after(self, at: int) -> int:
        """The index of the next element, or of the bracket that ends the list or table."""
        at = self._blanks(at)
        return self._blanks(at + 1) if self._text[at] == "," else at


class _YamlReader:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts = 0

    def node(self, node: YamlNode, path: str) -> Node:
        self._count()
        where = self._where(node)
        if isinstance(node, MappingNode):
            return Node(dict(self._entries(node, path)), where, path)
        if isinstance(node, SequenceNode):
            found = [self.node(one, f"{path}[{n}]") for n, one in enumerate(node.value)]
            return Node(found, where, path)
        text: str | None = node.value
        if node.tag == _NULL:
            text = None
        elif node.tag == _BOOLEAN:
            text = "true" if node.value.lower() in _TRUE else "false"
        return Node(text, where, path)

    def _count(self) -> None:
        self._parts += 1
        if self._parts > _PARTS_MAX:
            raise _too_large(self._path)

    def _where(self, node: YamlNode) -> str:
        return f"{self._path}:{node.start_mark.line + 1}"

    def _entries(self, node: MappingNode, path: str) -> Iterator[tuple[str, Node]]:
        """The entries of a mapping: its own, then those of merge keys that it does not have."""
        seen = set()
        merged: list[MappingNode] = []
        for key, value in node.value:
            if not isinstance(key, ScalarNode):
                raise ConfigError(
                    "a key is not a text.", where=self._where(key), do="Write key: value."
                )
            if key.value in seen:
                raise _twice(key.value, path, self._where(key))
            seen.add(key.value)
            if key.tag == _MERGE:
                merged = self._merged(value, key, path)
                continue
            # Use the line of the key, because a value may begin on the next line.
            found = self.node(value, _below(path, key.value))
            yield key.value, Node(found.value, self._where(key), found.path)
        for one in merged:
            for name, found in self._entries(one, path):
                if name not in seen:
                    seen.add(name)
                    yield name, found

    def _merged(self, value: YamlNode, key: YamlNode, path: str) -> list[MappingNode]:
        """The mappings that a merge key (``<<``) names, the one that wins first."""
        named = value.value if isinstance(value, SequenceNode) else [value]
        for one in named:
            self._count()
            if not isinstance(one, MappingNode):
                what = "is not a table of keys and values, nor a list of them"
                Node(None, self._where(key), _below(path, "<<")).wrong(what)
        return list(named)
