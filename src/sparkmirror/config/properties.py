r"""Java ``.properties`` files, read the way Java reads them, with the line of every key.

Two things differ on purpose from ``java.util.Properties``. A line without any separator is
refused: Java makes it a key with an empty value, and it is nearly always a mistake. Bytes that
are not ASCII are refused outside comments: Java takes each as one ISO-8859-1 character, so a
UTF-8 file silently means something else; ``\uXXXX`` means the same everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sparkmirror.errors import ConfigError

__all__ = ["Entry", "Properties", "load_properties", "parse_properties", "read_file"]

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
# Room for any sane configuration, and a guard against being handed a data file.
_FILE_BYTES_MAX = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting as it stands in a file; ``value`` stays out of ``repr`` (it may be a secret).

    ``where``: ``file:line``, or what supplied the value if no file did. ``key``: as written,
    with its scope. ``secret``: the value came from a config provider, so it is never shown.
    """

    key: str
    value: str = field(repr=False)
    where: str = ""
    secret: bool = False

    @property
    def line(self) -> int:
        """Line number, 0 when no file supplied the value."""
        number = self.where.rpartition(":")[2]
        return int(number) if number.isdigit() else 0


class Properties(Mapping[str, Entry]):
    """The settings of one file by key, in file order; of repeated keys the last one counts.

    ``told``: remarks on lines that say something else to Java, and here, than they seem to.
    """

    def __init__(
        self, path: Path, entries: Mapping[str, Entry], told: tuple[str, ...] = ()
    ) -> None:
        self.path = path
        self.told = told
        self._entries = dict(entries)

    def __getitem__(self, key: str) -> Entry:
        return self._entries[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Properties({str(self.path)!r}, {len(self)} keys)"

    def where(self, key: str) -> str:
        """``file:line`` of ``key``, or the file alone when it has no such key."""
        entry = self._entries.get(key)
        return entry.where if entry else str(self.path)


def load_properties(path: Path) -> Properties:
    """Read a properties file.

    Raises ConfigError for a file that is missing, unreadable or no text, and for a line that is
    no property.
    """
    return parse_properties(read_file(path), path)


def read_file(path: Path) -> bytes:
    """The bytes of a configuration file. ConfigError if it is missing, unreadable or huge."""
    try:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(
            "There is no such file.", where=str(path), do="Check the path of the properties file."
        ) from None
    except IsADirectoryError:
        raise ConfigError(
            "This is a directory, not a properties file.", where=str(path), do="Name the file."
        ) from None
    except PermissionError:
        raise ConfigError(
            "The file cannot be read: permission denied.",
            where=str(path),
            do="Make it readable for the user who runs the mirror.",
        ) from None
    except OSError as error:
        raise ConfigError(
            f"The file cannot be read: {error.strerror or error}.",
            where=str(path),
            do="Check the path and the disk.",
        ) from error
    if len(data) > _FILE_BYTES_MAX:
        raise ConfigError(
            f"The file is larger than {_FILE_BYTES_MAX // 1024 // 1024} MiB.",
            where=str(path),
            do="Name a properties file.",
        )
    return data


def parse_properties(data: bytes, path: Path) -> Properties:
    """Parse the bytes of a properties file; ``path`` is used in messages only.

    Raises ConfigError as ``load_properties`` does.
    """
    _refuse_other_encodings(data, path)
    entries: dict[str, Entry] = {}
    told: list[str] = []
    # Kafka's tools read files as ISO-8859-1: each byte is one character.
    for number, line in _logical_lines(data.decode("iso-8859-1")):
        where = f"{path}:{number}"
        key, value, separated = _split_property(line, where)
        entries.pop(key, None)  # a repeated key counts where it stands last
        entries[key] = Entry(key, value, where)
        if not separated:
            told.append(
                f"{where}: no '=' follows {key[:60]!r}, so it is a key with an empty value, as in "
                "Java. Write key=value, or # in front of a comment."
            )
        told += _not_ascii(line, where)
    return Properties(path, entries, tuple(told))


def _refuse_other_encodings(data: bytes, path: Path) -> None:
    if data.startswith((b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")):
        what = "The file starts with a byte order mark, which Java reads as part of the first key."
    elif b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        what = f"The file is not text: line {line} holds a zero byte."
    else:
        return
    raise ConfigError(what, where=str(path), do="Save it as plain ASCII text without a mark.")


def _not_ascii(line: str, where: str) -> list[str]:
    """A remark on the first character that an editor most likely shows as another one."""
    byte = next((ord(char) for char in line if ord(char) > 0x7F), None)
    if byte is None:
        return []
    return [
        f"{where}: the line holds the byte 0x{byte:02X}, which is not ASCII. It is read as Java "
        "reads it, as one character of ISO-8859-1; write \\uXXXX for any other."
    ]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, joined line) without comments and blank lines."""
    start, joined = 0, ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        bare = line.lstrip(_BLANKS)
        # A line that so far is a lone backslash has not begun yet: a comment may still follow.
        if not joined:
            if not bare or bare[0] in "#!":
                continue
            start = number
        joined += bare
        backslashes = len(bare) - len(bare.rstrip("\\"))
        if backslashes % 2:
            joined = joined[:-1]
            continue
        if joined:
            yield start, joined
        start, joined = 0, ""
    if joined:
        yield start, joined


def _split_property(line: str, where: str) -> tuple[str, str, bool]:
    """Key, value, and whether anything separates them."""
    end = 0
    while end < len(line) and line[end] not in "=:" + _BLANKS:
        end += 2 if line[end] == "\\" else 1
    end = min(end, len(line))
    rest = line[end:].lstrip(_BLANKS)
    key = _unescape(line[:end], where)
    if not rest:
        return key, "", False
    if not key:
        raise ConfigError(
            f"This line is no property: nothing stands before the {rest[0]!r}.",
            where=where,
            do="Write key=value.",
        )
    if rest[0] in "=:":
        rest = rest[1:].lstrip(_BLANKS)
    return key, _unescape(rest, where), True


def _unescape(text: str, where: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    at = 0
    while at < len(text):
        char = text[at]
        at += 1
        if char != "\\":
            out.append(char)
            continue
        if at == len(text):  # Java drops a lone backslash at the very end
            break
        char = text[at]
        at += 1
        if char == "u":
            digits = _HEX4.match(text, at)
            if digits is None:
                raise ConfigError(
                    "The line holds a malformed \\uXXXX escape: four hex digits must follow \\u.",
                    where=where,
                    do="Complete the escape, or double the backslash if it is meant literally.",
                )
            out.append(chr(int(digits.group(), 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Java strings are UTF-16: a pair of \u escapes may make up one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
