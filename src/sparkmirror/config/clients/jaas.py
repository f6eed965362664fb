"""JAAS login entries: the value of ``sasl.jaas.config``, and JAAS files.

Java has two parsers for nearly the same syntax: Kafka's ``JaasConfig`` (one property, one module)
and the JVM's ``ConfigFile`` (a file of named entries). This module behaves as both do, including
their tokenizer. Errors contain no values and no text of the entry, because it contains passwords.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from sparkmirror.config.clients.stream_tokenizer import Token, tokens
from sparkmirror.config.files.properties import file_bytes
from sparkmirror.errors import ConfigError

__all__ = [
    "QUOTES",
    "LoginModule",
    "format_module",
    "java_system_properties",
    "named_options",
    "parse_file",
    "parse_property",
    "read_file_entry",
]

CLIENT_ENTRY = "KafkaClient"
QUOTES = "Put values that are not plain words in double quotes."
_FLAGS = frozenset({"required", "requisite", "sufficient", "optional"})
_PROPERTY_LETTERS = "-_$"
_FILE_LETTERS = "-_$*"
_REFERENCE = re.compile(r"\$\{([^}]*)\}")
# Options that Java's login modules know, in lower case. Errors show only these names.
_KNOWN = frozenset(
    {"username", "password", "tokenauth", "servicename", "clientid", "clientsecret", "scope",
     "usekeytab", "keytab", "principal", "useticketcache", "ticketcache", "storekey",
     "donotprompt", "debug", "refreshkrb5config", "isinitiator", "renewtgt", "clearpass",
     "storepass", "tryfirstpass", "usefirstpass", "unsecuredloginlifetimeseconds",
     "unsecuredloginprincipalclaimname", "unsecuredloginscopeclaimname", "awsprofilename",
     "awsrolearn", "awsrolesessionname", "awsroleexternalid", "awsstsregion", "awsdebugcreds",
     "awsmaxretries", "awsmaxbackofftimems"}
)  # fmt: skip
_KNOWN_BEGINNING = re.compile(
    r"extension_|user_|ssl\.|unsecuredLogin(?:StringClaim|NumberClaim|ListClaim|Extension)_"
)
_EXAMPLE = 'MODULE required KEY="VALUE" ... ;'


@dataclass(frozen=True, slots=True)
class LoginModule:
    """One login module: its class, control flag in lower case, and options (may be secret)."""

    name: str
    flag: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def short_name(self) -> str:
        """The class name without its package."""
        return self.name.rpartition(".")[2]


class _Reader:
    """Reads a list of tokens one by one; its errors contain ``where`` and the line."""

    def __init__(self, found: Sequence[Token], where: str, last_line: int) -> None:
        self._found = found
        self._at = 0
        self._where = where
        self._last_line = last_line

    def peek(self) -> str:
        """Kind of the next token, ``""`` at the end."""
        return self._found[self._at].kind if self._at < len(self._found) else ""

    def take(self) -> Token:
        token = (
            self._found[self._at]
            if self._at < len(self._found)
            else Token("", line=self._last_line)
        )
        self._at += 1
        return token

    def text(self, what: str, *, kinds: str) -> str:
        token = self.take()
        if token.kind != "word" and (not token.kind or token.kind not in kinds):
            found = {"": "the text ends", "number": "there is a bare number"}.get(
                token.kind, f"there is '{token.kind}'"
            )
            raise self.error(f"{found} where {what} is expected", token)
        return token.text

    def expect(self, kind: str, after: str) -> None:
        token = self.take()
        if token.kind != kind:
            raise self.error(f"'{kind}' is missing after {after}", token)

    def error(self, problem: str, token: Token | None = None) -> ConfigError:
        line = token.line if token else self._last_line
        return ConfigError(
            f"the JAAS entry has a syntax error in its line {line}: {problem}.",
            where=self._where,
            do=f"Write it as {_EXAMPLE} {QUOTES}",
        )


def _reader(text: str, letters: str, where: str) -> _Reader:
    return _Reader(list(tokens(text, letters)), where, text.count("\n") + 1)


def parse_property(text: str, *, where: str) -> LoginModule:
    """The one login module of a ``sasl.jaas.config``. Raises ConfigError for anything else."""
    reader = _reader(text, _PROPERTY_LETTERS, where)
    modules: list[LoginModule] = []
    while reader.peek():
        modules.append(_property_module(reader))
    if len(modules) != 1:
        raise ConfigError(
            f"sasl.jaas.config contains {len(modules)} login modules; it must contain exactly one.",
            where=where,
            do=f"Write it as {_EXAMPLE}",
        )
    return modules[0]


def _property_module(reader: _Reader) -> LoginModule:
    name = reader.text("the login module's class", kinds="\"'")
    flag = _flag(reader, reader.text("the control flag", kinds="\"'"))
    options: dict[str, str] = {}
    while reader.peek() not in ("", ";"):
        key = reader.text("an option's name", kinds="\"'")
        reader.expect("=", f"the option {_named(key)}")
        options[key] = reader.text(f"the value of the option {_named(key)}", kinds="\"'")
    reader.expect(";", "the last option")
    return LoginModule(name, flag, options)


def _named(key: str) -> str:
    """``key`` if Java knows it, else ``here``: a missing quote may turn a secret into an option."""
    if key.lower() in _KNOWN:
        return key
    beginning = _KNOWN_BEGINNING.match(key)
    return f"{beginning.group()}…" if beginning else "here"


def named_options(keys: Collection[str]) -> str:
    """``keys`` for an error: the names that Java knows, and the number of the others."""
    named = list(dict.fromkeys(name for name in map(_named, sorted(keys)) if name != "here"))
    hidden = sum(_named(key) == "here" for key in keys)
    if not hidden:
        return f"{', '.join(named)}."
    count = f"{hidden} that {'is' if hidden == 1 else 'are'} not named here"
    told = f"{', '.join(named)} and {count}" if named else count
    return f"{told}, because it may be part of a password."


def _flag(reader: _Reader, flag: str) -> str:
    if flag.lower() not in _FLAGS:
        raise reader.error(
            "the word after the login module is not a control flag "
            "(required, requisite, sufficient, optional)"
        )
    return flag.lower()


def parse_file(
    text: str, *, where: str, system: Mapping[str, str] | None = None
) -> dict[str, tuple[LoginModule, ...]]:
    """All entries of a JAAS file by name.

    ``system``: Java system properties for ``${name}`` in values. Raises ConfigError.
    """
    reader = _reader(text, _FILE_LETTERS, where)
    entries: dict[str, tuple[LoginModule, ...]] = {}
    while reader.peek():
        name = reader.text("an entry's name", kinds='"')
        reader.expect("{", "the entry's name")
        modules: list[LoginModule] = []
        while reader.peek() != "}":
            modules.append(_file_module(reader, system or {}))
        reader.take()
        reader.expect(";", "the closing brace")
        if name in entries:
            raise reader.error(f"the entry {_entry_name(name)} is defined twice")
        entries[name] = tuple(modules)
    return entries


def _entry_name(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z][A-Za-z0-9_.]{0,60}", name) else "here"


def _file_module(reader: _Reader, system: Mapping[str, str]) -> LoginModule:
    name = reader.text("the login module's class", kinds='"')
    flag = _flag(reader, reader.text("the control flag", kinds='"'))
    options: dict[str, str] = {}
    while reader.peek() not in ("", ";"):
        key = reader.text("an option's name", kinds='"')
        reader.expect("=", f"the option {_named(key)}")
        value = reader.text(f"the value of the option {_named(key)}", kinds='"')
        options[key] = _expanded(value, key, system, reader)
    reader.expect(";", "the last option")
    return LoginModule(name, flag, options)


def _expanded(value: str, key: str, system: Mapping[str, str], reader: _Reader) -> str:
    def fill(match: re.Match[str]) -> str:
        name = match.group(1)
        if name == "/":
            return "/"
        if name not in system:
            raise reader.error(
                f"the value of {_named(key)} uses a Java system property that is not set"
            )
        return system[name]

    return _REFERENCE.sub(fill, value)


def format_module(module: LoginModule) -> str:
    """``module`` as the text of a ``sasl.jaas.config``; `parse_property` reads it back."""
    options = "".join(f" {_quote(key)}={_quote(value)}" for key, value in module.options.items())
    return f"{_quote(module.name)} {module.flag}{options};"


def _quote(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + escaped.replace("\n", "\\n").replace("\r", "\\r") + '"'


# -- the JVM's options -----------------------------------------------------------------------------


def java_system_properties(environment: Mapping[str, str]) -> dict[str, str]:
    """Properties set by ``-Dname=value`` in KAFKA_OPTS, which Kafka's scripts pass to Java.

    Raises ConfigError if KAFKA_OPTS has an open quote.
    """
    home = environment.get("HOME", "")
    found = {"user.home": home} if home else {}
    try:
        words = shlex.split(environment.get("KAFKA_OPTS", ""))
    except ValueError as error:
        raise ConfigError(
            f"KAFKA_OPTS cannot be read ({error}).",
            where="environment",
            do="Close the quotes in it.",
        ) from error
    for word in words:
        if word.startswith("-D"):
            name, _, value = word[2:].partition("=")
            found[name] = value
    return found


def read_file_entry(system: Mapping[str, str], *, where: str) -> LoginModule | None:
    """The entry for clients in the JAAS file that ``java.security.auth.login.config`` names.

    ``None`` if the property is not set. Raises ConfigError if the file cannot be read or has no
    usable entry ``KafkaClient``; ``where`` is the place that errors name.
    """
    location = system.get("java.security.auth.login.config", "").removeprefix("=")
    if not location:
        return None
    path = Path(location)
    try:
        if location.startswith("file:"):
            path = Path(unquote(urlsplit(location).path))
        text = file_bytes(path).decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not the URL of a file"
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not UTF-8 text"
        raise ConfigError(
            f"the JAAS file {path} cannot be read: {reason}.",
            where=where,
            do="Check java.security.auth.login.config in KAFKA_OPTS, or set sasl.jaas.config.",
        ) from error
    entries = parse_file(text, where=str(path), system=system)
    modules = entries.get(CLIENT_ENTRY, ())
    if len(modules) != 1:
        listed = ", ".join(entries) or "none"
        what = f"{len(modules)} login modules" if modules else f"no entry (entries: {listed})"
        raise ConfigError(
            f"the JAAS file {path} has {what} for {CLIENT_ENTRY}; it must have exactly one.",
            where=where,
            do=f"Write {CLIENT_ENTRY} {{ {_EXAMPLE} }};",
        )
    return modules[0]
