r"""Reads Java ``.properties`` files as Java does, and keeps the line of every key.

Files that are not properties files (other encodings, JSON, XML, YAML, binary) are refused; Java
would read keys from them. Two kinds of lines are read as Java reads them, with a remark. A line
without a separator is a key with an empty value, which is nearly always a mistake. A byte that is
not ASCII is one ISO-8859-1 character, so a UTF-8 file silently means something else; ``\uXXXX``
means the same everywhere.

Commands read a file several times, but a pipe, such as Bash's ``<(sops -d mm2.properties)``, only
once has something to read. So what it contained is kept for as long as the process lives.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sparkmirror.config.files.origin import DERIVED, Kind, Origin
from sparkmirror.errors import ConfigError

__all__ = [
    "Entry",
    "Properties",
    "file_bytes",
    "load_properties",
    "may_be_secret",
    "parse_properties",
    "read_file",
]

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_HEX4 = re.compile(r"[0-9A-Fa-f]{4}")
# Enough for any configuration; a larger file is most likely a data file.
_FILE_BYTES_MAX = 16 * 1024 * 1024
_SAMPLE_BYTES = 64 * 1024
# Contents of pipes, FIFOs and devices, by device, inode and time of the last change: a new FIFO may
# get the inode of a removed one.
_read_once: dict[tuple[int, int, int], bytes] = {}
# Kafka's tools read files so: each byte is one character.
_BYTEWISE = "iso-8859-1"
# The longest key without a dot is shorter; a line of base64 is longer, but for the last one.
_WORD_CHARS_MAX = 20
# gzip, zip and jar, JKS, DER (PKCS#12), zstd.
_BINARY = (b"\x1f\x8b", b"PK\x03\x04", b"\xfe\xed\xfe\xed", b"\x30\x82", b"\x28\xb5\x2f\xfd")
_YAML_HEAD = re.compile(r"---\s*$|%YAML|(apiVersion|kind)\s*:")
# A key without a value, followed by an indented key or a list.
_YAML_NESTED = re.compile(r"^[\w.-]+:[ \t]*\r?\n[ \t]+(- )?[\w.-]+:( |\r?$)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting as written in a file; ``repr`` omits ``value``, which may be a secret.

    ``key``: as written, with its scope.
    ``secret``: the value came from a config provider, so it is never shown.
    ``placeholders``: what config providers replaced in it, as written.
    ``written``: the value before they did; empty if they replaced nothing.
    """

    key: str
    value: str = field(repr=False)
    origin: Origin = DERIVED
    secret: bool = False
    placeholders: tuple[str, ...] = ()
    written: str = field(default="", repr=False)

    @property
    def where(self) -> str:
        """``file:line``, or another source of the value, in words."""
        return self.origin.text

    @property
    def line(self) -> int:
        """Line number; 0 if the value is not from a file."""
        return self.origin.line


class Properties(Mapping[str, Entry]):
    """The settings of one file by key, in file order; the last one of repeated keys applies.

    ``repeated``: (key, overridden line), in file order. ``remarks``: remarks on lines that do not
    mean what they seem to mean.
    """

    def __init__(
        self,
        path: Path,
        entries: Mapping[str, Entry],
        repeated: Sequence[tuple[str, int]] = (),
        remarks: Sequence[str] = (),
    ) -> None:
        self.path = path
        self.repeated = tuple(repeated)
        self.remarks = tuple(remarks)
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
        """``file:line`` of ``key``; only the file if it has no such key."""
        entry = self._entries.get(key)
        return entry.where if entry else str(self.path)


def load_properties(path: Path, encoding: str = _BYTEWISE) -> Properties:
    """Read a properties file.

    Raises ConfigError for a file that is missing, unreadable or not a properties file, and for a
    line without a key or with a malformed escape.
    """
    return parse_properties(read_file(path), path, encoding)


def read_file(path: Path) -> bytes:
    """The bytes of a configuration file.

    Raises ConfigError if it is missing, unreadable or too large.
    """
    try:
        return file_bytes(path)
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
        if error.errno == errno.EFBIG:
            raise ConfigError(
                f"The file is larger than {_FILE_BYTES_MAX // 1024 // 1024} MiB.",
                where=str(path),
                do="Name a properties file.",
            ) from None
        raise ConfigError(
            f"The file cannot be read: {error.strerror or error}.",
            where=str(path),
            do="Check the path and the disk.",
        ) from error


def file_bytes(path: Path) -> bytes:
    """The bytes of a file; those of a pipe, a FIFO or a device are read once, and kept.

    Raises OSError, also (``EFBIG``) for a file that is larger than any configuration.
    """
    data = _read_once.get(_identity(path.stat()))
    if data is None:
        with path.open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
            status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            _read_once[_identity(status)] = data
    if len(data) > _FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
    return data


def _identity(status: os.stat_result) -> tuple[int, int, int]:
    return status.st_dev, status.st_ino, status.st_ctime_ns


def parse_properties(data: bytes, path: Path, encoding: str = _BYTEWISE) -> Properties:
    """Parse the bytes of a properties file; ``path`` is only used in messages.

    Raises ConfigError like ``load_properties``.
    """
    _refuse_other_encodings(data, path)
    _refuse_other_formats(data, path)
    entries: dict[str, Entry] = {}
    repeated: list[tuple[str, int]] = []
    remarks: list[str] = []
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"The file is not {encoding.upper()} text.", where=str(path), do="Save it as such."
        ) from error
    for number, line in _logical_lines(text):
        where = f"{path}:{number}"
        key, value, separated = _split_property(line, where)
        before = entries.pop(key, None)  # a repeated key takes its last position in the order
        if before is not None:
            repeated.append((key, before.line))
        entries[key] = Entry(key, value, Origin(Kind.FILE, where, number))
        if not separated:
            remarks.append(
                f"{where}: no '=' follows {_shown(key)}, so it is a key with an empty value, as in "
                "Java. Write key=value, or # in front of a comment."
            )
        remarks += _not_ascii(line, where) if encoding == _BYTEWISE else ()
    return Properties(path, entries, repeated, remarks)


def may_be_secret(key: str) -> bool:
    """Whether ``key`` looks like a line of a value: of a PEM key whose lines lack a backslash."""
    if "." in key or "->" in key:
        return False
    return len(key) > _WORD_CHARS_MAX or "-----" in key or bool({"+", "/"} & set(key))


def _shown(key: str) -> str:
    return f"a text of {len(key)} characters" if may_be_secret(key) else repr(key[:60])


def _refuse_other_encodings(data: bytes, path: Path) -> None:
    do = "Save it as plain ASCII text without a byte order mark."
    zeros = data[:_SAMPLE_BYTES].count(b"\0")
    # In UTF-16, every other byte of ASCII text is zero; editors may omit the byte order mark.
    halves = 0.3 * len(data[:_SAMPLE_BYTES]) < zeros and _is_text(data[:_SAMPLE_BYTES])
    if data.startswith((b"\xff\xfe", b"\xfe\xff")) or halves:
        what = "The file is UTF-16 text, and Java reads properties files byte by byte."
        do = "Save it as plain ASCII text; iconv -f UTF-16 -t ASCII converts it."
    elif data.startswith(b"\xef\xbb\xbf"):
        what = "The file starts with a byte order mark, which Java reads as part of the first key."
    elif data.startswith(_BINARY) or (zeros and not _is_text(data[:_SAMPLE_BYTES])):
        what = "The file is binary: an archive, a key store or data."
        do = "Name the properties file."
    elif b"\0" in data:
        line = data[: data.index(b"\0")].count(b"\n") + 1
        what = f"The file is not text: line {line} contains a zero byte."
    else:
        return
    raise ConfigError(what, where=str(path), do=do)


def _is_text(sample: bytes) -> bool:
    """Whether the only control characters are blanks, line ends, 0x1A and zero bytes."""
    return not set(sample) & (set(range(32)) - set(b"\0\t\n\f\r\x1a"))


def _refuse_other_formats(data: bytes, path: Path) -> None:
    """Raise ConfigError for JSON, XML and YAML: Java would read keys from them, all unknown."""
    text = data[:_SAMPLE_BYTES].decode("iso-8859-1")
    first = next(
        (
            line.strip()
            for line in text.splitlines()
            if line.strip() and line.strip()[0] not in "#!"
        ),
        "",
    )
    if first.startswith("{") or re.match(r"\[\s*($|[\[{\"])", first):
        kind = "JSON"
    elif first.startswith("<"):
        kind = "XML"
    elif _YAML_HEAD.match(first) or _YAML_NESTED.search(text):
        kind = "YAML"
    else:
        return
    raise ConfigError(
        f"The file looks like {kind}, not like a properties file.",
        where=str(path),
        do="Write one key = value in each line, as in connect-mirror-maker.properties.",
    )


def _not_ascii(line: str, where: str) -> list[str]:
    """A remark on the first byte that is not ASCII, which editors may show as another character."""
    byte = next((ord(char) for char in line if ord(char) > 0x7F), None)
    if byte is None:
        return []
    return [
        f"{where}: the line contains the byte 0x{byte:02X}, which is not ASCII. It is read as in "
        "Java, as one character of ISO-8859-1; write \\uXXXX for any other character."
    ]


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield (number of the first line, joined line) without comments and blank lines."""
    start, joined = 0, ""
    for number, line in enumerate(_LINE_END.split(text), 1):
        bare = line.lstrip(_BLANKS)
        # After a line that is only a backslash, nothing is joined yet; a comment may follow.
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
    """(key, value, whether a separator follows the key)."""
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
            f"This line has no key before the {rest[0]!r}.",
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
        if at == len(text):  # Java drops a single backslash at the end
            break
        char = text[at]
        at += 1
        if char == "u":
            digits = _HEX4.match(text, at)
            if digits is None:
                raise ConfigError(
                    "The line contains a malformed \\uXXXX escape: four hex digits must follow "
                    "\\u.",
                    where=where,
                    do="Complete the escape, or double the backslash if it is meant literally.",
                )
            out.append(chr(int(digits.group(), 16)))
            at += 4
        else:
            out.append(_ESCAPES.get(char, char))
    # Java strings are UTF-16: two \u escapes may form one character.
    return "".join(out).encode("utf-16", "surrogatepass").decode("utf-16", "replace")
