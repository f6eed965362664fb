"""A properties file written for people: comments, settings, and which of them are secret."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkmirror.config.table.settings import is_secret

__all__ = ["Migrated", "Page"]

_COMMENT_WIDTH = 98


@dataclass(frozen=True, slots=True)
class Migrated:
    """The new file's text, and the keys in it whose values are secrets.

    ``origins``: by line of the text, where that line's setting comes from. ``notes``: what has no
    counterpart, a line each.
    """

    text: str
    secrets: tuple[str, ...]
    origins: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Page:
    """Lines of a properties file, one after the other."""

    lines: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    origins: dict[int, str] = field(default_factory=dict)

    def comment(self, text: str) -> None:
        """A paragraph, wrapped."""
        line = "#"
        for word in text.split():
            if len(line) + 1 + len(word) > _COMMENT_WIDTH and line != "#":
                self.lines.append(line)
                line = "#"
            line += f" {_escape(word, comment=True)}"
        self.lines.append(line)

    def put(self, key: str, value: str, origin: str = "", *, reference: bool = False) -> None:
        """A setting. ``reference``: the value says where a secret is, and is none itself."""
        self.lines.append(f"{_escape(key, key=True)} = {_escape(value)}")
        if origin:
            self.origins[len(self.lines)] = origin
        if is_secret(key) and not reference:
            self.secrets.append(key)

    def gap(self) -> None:
        """An empty line."""
        self.lines.append("")

    def migrated(self, notes: tuple[str, ...] = ()) -> Migrated:
        """The file as it is now."""
        return Migrated(
            "\n".join(self.lines) + "\n", tuple(self.secrets), dict(self.origins), notes
        )


def _escape(text: str, *, key: bool = False, comment: bool = False) -> str:
    """``text`` as a properties file spells it (Java's Properties.store)."""
    out: list[str] = []
    for index, char in enumerate(text):
        if not comment and (
            char == "\\" or (key and char in "=: #!") or (char == " " and not index)
        ):
            out.append(f"\\{char}")
        elif char in "\t\n\r\f":
            out.append({"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f"}[char])
        elif " " <= char <= "~":
            out.append(char)
        else:
            pair = char.encode("utf-16-be", "surrogatepass")
            out += [f"\\u{pair[i : i + 2].hex()}" for i in range(0, len(pair), 2)]
    return "".join(out)
