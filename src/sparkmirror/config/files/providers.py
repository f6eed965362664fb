"""Config providers: ``${name:key}`` and ``${name:path:key}`` in values, as Kafka resolves them.

The three stock providers (EnvVar, File, Directory) are built in; other Java classes are refused.
No message shows what a provider returns.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from sparkmirror.config.files.properties import Entry, load_properties
from sparkmirror.config.files.values import parse_list
from sparkmirror.config.table.settings import is_secret
from sparkmirror.errors import ConfigError, Defect
from sparkmirror.names.java_regex import compile_regex

REFERENCE = re.compile(r"\$\{([^}:]+):[^}]*\}")
"""A placeholder; its group is the provider's name."""
_PLACEHOLDER = re.compile(r"\$\{([^}:]*):(?:([^}]*?):)?([^}]*)\}")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]*")
_PACKAGE = "org.apache.kafka.common.config.provider."
_PARAMETERS = {
    "EnvVarConfigProvider": ("allowlist.pattern",),
    "FileConfigProvider": ("allowed.paths",),
    "DirectoryConfigProvider": ("allowed.paths",),
}
_SECRET_FILE_BYTES_MAX = 1024 * 1024


@dataclass(frozen=True, slots=True)
class _Provider:
    """One declared provider; ``fetch(path, key)`` returns a value or raises ConfigError."""

    name: str
    fetch: Callable[[str, str], str]


def resolve(
    raw: Mapping[str, Entry],
    environment: Mapping[str, str] | None = None,
    *,
    by_client: bool = False,
) -> tuple[dict[str, Entry], list[str]]:
    """The file with every placeholder replaced, and remarks.

    ``environment`` is ``os.environ`` by default. ``by_client``: a client of Java's reads the file,
    which skips a provider without a class; MirrorMaker 2 does not start. A placeholder of an
    undeclared provider is kept, as in Java, with a remark. Raises ConfigError for a provider that
    is not a stock class and for a placeholder that its provider cannot resolve.
    """
    skipped = without_class(raw) if by_client else ()
    providers = _declared(raw, os.environ if environment is None else environment, skipped)
    resolved: dict[str, Entry] = {}
    remarks = [
        f"{raw['config.providers'].where}: config.providers names '{name}', but "
        f"config.providers.{name}.class is missing, so its placeholders are used literally."
        for name in skipped
    ]
    for key, entry in raw.items():
        if declares(key):
            resolved[key] = entry
            continue
        found = list(_PLACEHOLDER.finditer(entry.value))
        undeclared = [match.group(1) for match in found if match.group(1) not in providers]
        replaced = tuple(match.group() for match in found if match.group(1) in providers)
        resolved[key] = entry
        if replaced:
            value = _PLACEHOLDER.sub(partial(_fill, providers, entry), entry.value)
            resolved[key] = replace(
                entry, value=value, secret=True, placeholders=replaced, written=entry.value
            )
        remarks += dict.fromkeys(
            f"{entry.where}: {entry.key} contains a placeholder {_told(entry.key, name)}; it is "
            "used literally."
            for name in undeclared
            if name not in skipped
        )
    return resolved, remarks


def _told(key: str, name: str) -> str:
    """A placeholder's undeclared provider; its name is not told if it may be part of a secret."""
    if is_secret(key) or not _NAME.fullmatch(name):
        return "that no provider in config.providers resolves"
    return f"of '{name}', which config.providers does not name"


def without_class(raw: Mapping[str, Entry]) -> tuple[str, ...]:
    """The config providers that the file names without their class."""
    listed = raw.get("config.providers")
    names = parse_list(listed) if listed else ()
    return tuple(name for name in names if f"config.providers.{name}.class" not in raw)


def declares(key: str) -> bool:
    """Whether ``key`` names or describes config providers."""
    return key == "config.providers" or key.startswith("config.providers.")


def _fill(providers: Mapping[str, _Provider], entry: Entry, match: re.Match[str]) -> str:
    provider = providers.get(match.group(1))
    return match.group() if provider is None else _fetch(provider, match, entry)


def _fetch(provider: _Provider, match: re.Match[str], entry: Entry) -> str:
    path, key = (match.group(2) or "").strip(), match.group(3).strip()
    try:
        return provider.fetch(path, key)
    except ConfigError as error:
        raise ConfigError(
            f"{entry.key}: the placeholder {match.group()} cannot be resolved: {error.what}"
            + (f" ({error.where})" if error.where else ""),
            where=entry.where,
            do=error.do,
        ) from None


def _declared(
    raw: Mapping[str, Entry], environment: Mapping[str, str], skipped: Collection[str]
) -> dict[str, _Provider]:
    listed = raw.get("config.providers")
    providers: dict[str, _Provider] = {}
    for name in parse_list(listed) if listed else ():
        if name in skipped:
            continue
        if listed is None:
            raise Defect("a provider that no key names")
        class_entry = raw.get(f"config.providers.{name}.class")
        if class_entry is None:
            raise ConfigError(
                f"config.providers names '{name}', but config.providers.{name}.class is missing.",
                where=listed.where,
                do=f"Add it, for example {_PACKAGE}EnvVarConfigProvider.",
            )
        kind = class_entry.value.strip().removeprefix(_PACKAGE)
        if kind not in _PARAMETERS:
            raise ConfigError(
                f"{class_entry.key}={class_entry.value.strip()} cannot be used: custom Java "
                "classes cannot be loaded.",
                where=class_entry.where,
                do=f"Built in: {', '.join(_PARAMETERS)} (package {_PACKAGE[:-1]}).",
            )
        providers[name] = _Provider(name, _fetcher(name, kind, raw, environment))
    _check_keys(raw, providers, skipped)
    return providers


def _check_keys(
    raw: Mapping[str, Entry], providers: Mapping[str, _Provider], skipped: Collection[str]
) -> None:
    for key, entry in raw.items():
        if not key.startswith("config.providers."):
            continue
        name = key.removeprefix("config.providers.").partition(".")[0]
        if name in skipped:
            continue
        if name not in providers:
            what = f"{key}: config.providers does not name '{name}'."
            do = f"Add '{name}' to config.providers, or remove the key."
        else:
            known = _parameters(raw, name)
            if key == f"config.providers.{name}.class" or key in known:
                continue
            what = f"{key} is not a parameter of this provider."
            do = f"Known: {', '.join(known)}."
        raise ConfigError(what, where=entry.where, do=do)


def _parameters(raw: Mapping[str, Entry], name: str) -> list[str]:
    """The full keys of the provider's parameters."""
    kind = raw[f"config.providers.{name}.class"].value.strip().removeprefix(_PACKAGE)
    return [f"config.providers.{name}.param.{parameter}" for parameter in _PARAMETERS[kind]]


def _fetcher(
    name: str, kind: str, raw: Mapping[str, Entry], environment: Mapping[str, str]
) -> Callable[[str, str], str]:
    entry = raw.get(f"config.providers.{name}.param.{_PARAMETERS[kind][0]}")
    if kind == "EnvVarConfigProvider":
        allowed = compile_regex(entry.value.strip(), where=entry.where) if entry else None

        def from_environment(path: str, key: str) -> str:
            if path:
                raise ConfigError(f"'{name}' takes no path.", do=f"Write ${{{name}:NAME}}.")
            if allowed is not None and allowed.fullmatch(key) is None:
                raise ConfigError(
                    "allowlist.pattern does not allow this variable.", do="Widen the pattern."
                )
            if key not in environment:
                raise ConfigError("there is no such environment variable.", do="Set it.")
            return environment[key]

        return from_environment
    directories = [Path(text.strip()) for text in entry.value.split(",")] if entry else None
    from_path = _from_file if kind == "FileConfigProvider" else _from_directory

    def from_allowed_path(path: str, key: str) -> str:
        if not path:
            raise ConfigError("the path is missing.", do=f"Write ${{{name}:/path:key}}.")
        real = _real(Path(path))
        if directories is not None and not any(
            real.is_relative_to(_real(directory)) for directory in directories
        ):
            raise ConfigError("allowed.paths does not allow this path.", do="Widen allowed.paths.")
        return from_path(real, key)

    return from_allowed_path


def _real(path: Path) -> Path:
    """``path`` without links. Raises ConfigError for a path at which no file can be."""
    try:
        return path.resolve()
    except (OSError, RuntimeError):
        raise ConfigError(
            "its path leads into a loop of links.", where=str(path), do="Correct the links."
        ) from None
    except ValueError:
        raise ConfigError("its path contains a NUL character.", do="Correct the path.") from None


def _from_file(path: Path, key: str) -> str:
    properties = load_properties(path, "utf-8")  # unlike the main file, as Java does
    if key not in properties:
        raise ConfigError("the file has no such key.", do=f"Add the key to {path}.")
    return properties[key].value


def _from_directory(path: Path, key: str) -> str:
    """The file ``key`` of ``path``, or what a link of that name leads to within ``path``.

    Kubernetes mounts a Secret as links to a hidden directory beside them, which it replaces.
    """
    file = path / key
    try:
        inside = Path(key).name == key and _real(file).is_relative_to(path)
        if not inside or not file.is_file():
            raise ConfigError("the directory has no such file.", do=f"Create {file}.")
        data = file.read_bytes()[:_SECRET_FILE_BYTES_MAX]
        return data.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(
            f"the file cannot be read ({type(error).__name__}).",
            do=f"Make {file} a UTF-8 text that the mirror's user may read.",
        ) from None
