"""Writes a properties file with comments and settings, and notes which settings are secret."""

from __future__ import annotations

from dataclasses import dataclass, field

from sparkmirror.config.table.settings import is_secret

__all__ = ["Migrated", "Page"]

_COMMENT_WIDTH = 98


@dataclass(frozen=True, slots=True)
class Migrated:
    """The new file's text, and the keys in it whose values are secrets.

    ``origins``: the source of each setting, by line number of the text. ``notes``: one line per
    setting without a counterpart.
    """

    text: str
    secrets: tuple[str, ...]
    origins: dict[int, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


@dataclass
class Page:
    """A properties file in progress, line by line."""

    lines: list[str] = field(default_factory=list)
    secrets: list[str] = field(default_factory=list)
    origins: dict[int, str] = field(default_factory=dict)

    def comment(self, text: str) -> None:
        """Add a wrapped paragraph as comment."""
        line = "#"
        for word in text.split():
            if len(line) + 1 + len(word) > _COMMENT_WIDTH and line != "#":
                self.lines.append(line)
                line = "#"
            line += f" {_escape(word, comment=True)}"
        self.lines.append(line)

    def put(
        self,
        key: str,
        value: str,
        origin: str = "",
        *,
        reference: bool = False,
        secret: bool = False,
    ) -> None:
        """Add a setting. ``reference``: the value refers to a secret and is not one itself.

        ``secret``: it is one, whatever its key.
        """
        self.lines.append(f"{_escape(key, key=True)} = {_escape(value)}")
        if origin:
            self.origins[len(self.lines)] = origin
        if secret or (is_secret(key) and not reference):
            self.secrets.append(key)

    def gap(self) -> None:
        """Add an empty line."""
        self.lines.append("")

    def migrated(self, notes: tuple[str, ...] = ()) -> Migrated:
        """The file with all lines so far."""
        return Migrated(
            "\n".join(self.lines) + "\n", tuple(self.secrets), dict(self.origins), notes
        )


def _escape(text: str, *, key: bool = False, comment: bool = False) -> str:
    """``text`` escaped for a properties file, as Java's Properties.store does it."""
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
