"""Transforms of a flow: ``A->B.sparkmirror.transforms`` and ``….transform.NAME.*``.

Spark checks their SQL when it starts (`data.transform.plan`); here is what the file alone shows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import ValueReader, merge_errors, parse_list, shown
from sparkmirror.config.table.own import (
    HASH_SALT,
    TRANSFORM,
    TRANSFORMS,
    table_option,
    transform_option,
)
from sparkmirror.errors import ConfigError
from sparkmirror.names.regex_overlap import Names, Undecided, common_name
from sparkmirror.names.smts import TIME_ROUTER
from sparkmirror.names.transforms import routes
from sparkmirror.settings import FlowSettings
from sparkmirror.transform_settings import TableSettings, TransformSettings

_SALT_CHARS_MIN = 16
_NAME = re.compile(r"[A-Za-z0-9_-]+")
# NAME = FORMAT:PATH, or NAME = FORMAT. An address such as s3a://… is no format with a path.
_TABLE = re.compile(r"([A-Za-z0-9_-]+)\s*=\s*([A-Za-z][\w.]*)(?:\s*:\s*(?!//)(.+))?", re.DOTALL)


def transform_settings(
    raw: Mapping[str, Entry], flow: str, own: ValueReader
) -> tuple[TransformSettings, ...]:
    """The transforms of ``flow``, in the order of the file's list.

    ``own``: the flow's ``sparkmirror.*`` settings. Raises ConfigError.
    """
    listed = own.entry(TRANSFORMS)
    names = own.elements(TRANSFORMS)
    found = _options(raw, flow)
    errors = [*_unlisted(found, names, flow)]
    made: list[TransformSettings] = []
    for name in names:
        try:
            made.append(_transform(name, found.get(name, {}), flow, listed))
        except ConfigError as error:
            errors.append(error)
    errors += _met(made)
    errors += _tables_met(made)
    if len(made) == len(names):
        errors += _uncalled(made)
    if errors:
        raise merge_errors(errors, errors[0].where.rpartition(":")[0])
    return tuple(made)


def hash_salt(own: ValueReader) -> str:
    """The salt of `hash_json`, empty for none. Raises ConfigError if it is too short."""
    salt, given = own.text(HASH_SALT).strip(), own.entry(HASH_SALT)
    if salt and given is not None and len(salt) < _SALT_CHARS_MIN:
        raise ConfigError(
            f"{given.key} has {len(salt)} characters, so it could be guessed, and the values with "
            f"it; it needs at least {_SALT_CHARS_MIN}.",
            where=given.where,
            do="Create one with openssl rand -hex 32.",
        )
    return salt


def _options(raw: Mapping[str, Entry], flow: str) -> dict[str, dict[str, Entry]]:
    """Entries by transform and option; those of the flow override those of all flows."""
    found: dict[str, dict[str, Entry]] = {}
    for prefix in ("", f"{flow}."):
        for key, entry in raw.items():
            if key.startswith(f"{prefix}{TRANSFORM}"):
                name, option = transform_option(key[len(prefix) :])
                if name:
                    found.setdefault(name, {})[option] = entry
    return found


def _unlisted(
    found: Mapping[str, Mapping[str, Entry]], names: Sequence[str], flow: str
) -> Iterator[ConfigError]:
    for name, options in found.items():
        # A transform for all flows need not be used by each of them.
        own = [entry for entry in options.values() if entry.key.startswith(f"{flow}.")]
        if name not in names and own:
            yield ConfigError(
                f"{own[0].key}: {flow} has no transform {name}.",
                where=own[0].where,
                do=f"Add {name} to {flow}.{TRANSFORMS}, or remove the key.",
            )


def _transform(
    name: str, options: Mapping[str, Entry], flow: str, listed: Entry | None
) -> TransformSettings:
    where = "" if listed is None else listed.where
    key = f"{flow}.{TRANSFORM}{name}"
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{TRANSFORMS}: {name!r} is not a name for a transform.",
            where=where,
            do="Use letters, digits, '_' and '-' only.",
        )
    topics = parse_list(options["topics"]) if "topics" in options else ()
    if not topics:
        raise ConfigError(
            f"the transform {name} of {TRANSFORMS} has no topics.",
            where=where,
            do=f"Set {key}.topics to the source topics that it processes (Java regexes).",
        )
    used = ("where", "select", "python", "handler")
    sql = {one: options[one].value.strip() for one in used if one in options}
    if not any(sql.values()):
        raise ConfigError(
            f"the transform {name} does nothing.",
            where=where,
            do=f"Set {key}.where (or .select, .python, .handler), or remove {name} from the list.",
        )
    for option in ("python", "handler"):
        if sql.get(option):
            _check_alone(option, options, sql)
    if "args" in options and not sql.get("handler"):
        raise ConfigError(
            f"{options['args'].key}: the transform {name} has no handler that would get it.",
            where=options["args"].where,
            do=f"Set {key}.handler, or remove the key.",
        )
    return TransformSettings(
        name,
        topics,
        sql.get("where", ""),
        sql.get("select", ""),
        tuple((option, f"{one.where}: {one.key}") for option, one in sorted(options.items())),
        routes=routes(sql.get("select", "")),
        python=sql.get("python", ""),
        functions=parse_list(options["functions"]) if "functions" in options else (),
        handler=sql.get("handler", ""),
        handler_args=options["args"].value if "args" in options else None,
        tables=_tables(options),
        compression=options["compression"].value.strip() if "compression" in options else "",
    )


def _tables(options: Mapping[str, Entry]) -> tuple[TableSettings, ...]:
    """The static tables of a transform. Raises ConfigError."""
    readers: dict[str, dict[str, Entry]] = {}
    for option, entry in options.items():
        table, what = table_option(option)
        if table:
            readers.setdefault(table, {})[what] = entry
    found: dict[str, TableSettings] = {}
    if "tables" in options:
        entry = options["tables"]
        for part in filter(None, map(str.strip, entry.value.split(";"))):
            table, kind, path = _table(entry, part)
            if table in found:
                raise ConfigError(
                    f"{entry.key}: the table {table} is there twice.",
                    where=entry.where,
                    do="Remove one of them.",
                )
            found[table] = TableSettings(table, kind, path, *_reader(readers.pop(table, {})))
    for table, own in readers.items():
        one = min(own.values(), key=lambda one: one.key)
        raise ConfigError(
            f"{one.key}: the transform has no table {table}.",
            where=one.where,
            do=f"Add {table} to its tables, or remove the key.",
        )
    return tuple(found.values())


def _table(entry: Entry, text: str) -> tuple[str, str, str]:
    """Name, format and path of a table. Raises ConfigError."""
    match = _TABLE.fullmatch(text)
    if match is None:
        raise ConfigError(
            f"{entry.key}: {shown(entry, repr(text))} is not a table.",
            where=entry.where,
            do="Write NAME = FORMAT:PATH, separated by ';': customers = parquet:/data/customers.",
        )
    name, kind, path = match.groups(default="")
    if kind.lower() == "jdbc" and path:
        raise ConfigError(
            f"{entry.key}: the table {name} has an address where other tables have a path.",
            where=entry.where,
            do=f"Write {name} = jdbc, and set table.{name}.option.url, .dbtable, .user and "
            ".password.",
        )
    return name, kind, path.strip()


def _reader(own: Mapping[str, Entry]) -> tuple[str, tuple[tuple[str, str], ...]]:
    """The schema of a table, and the options of Spark's reader."""
    options = [
        (what.removeprefix("option."), one.value.strip())
        for what, one in sorted(own.items())
        if what != "schema"
    ]
    return own["schema"].value.strip() if "schema" in own else "", tuple(options)


def _tables_met(made: Sequence[TransformSettings]) -> Iterator[ConfigError]:
    """Refuse two tables of one name: all transforms of a flow can look up in both."""
    known: dict[str, tuple[TableSettings, str]] = {}
    for one in made:
        for table in one.tables:
            before, name = known.setdefault(table.name, (table, one.name))
            if before != table:
                yield ConfigError(
                    f"the transforms {name} and {one.name} both name a table {table.name}, and "
                    "mean different ones.",
                    where=one.place("tables"),
                    do="Give one of them another name: transforms of one flow share their tables.",
                )


def _uncalled(made: Sequence[TransformSettings]) -> Iterator[ConfigError]:
    """Refuse functions and tables that nothing can call: all transforms of the flow are handlers.

    Otherwise they may stand anywhere, because transforms of one flow share them.
    """
    for one in made if all(one.handler for one in made) else ():
        for option, values in (("functions", one.functions), ("tables", one.tables)):
            if values:
                yield ConfigError(
                    f"the transform {one.name} has a handler, which cannot use {option}.",
                    where=one.place(option),
                    do="Remove the key, or put it on a transform with where, select or python.",
                )


_ALONE = {
    "python": (
        "all of it in the function (filter, selectExpr)",
        "Name a Python function from DataFrame to DataFrame: mirrors.transforms:clean.",
    ),
    "handler": (
        "all of it in the handler",
        "Name a Python function or class that gets one record: mirrors.handlers:mask.",
    ),
}


def _check_alone(option: str, options: Mapping[str, Entry], used: Mapping[str, str]) -> None:
    """Raise ConfigError for a name that is none, and for other options beside it."""
    entry, (all_of_it, named) = options[option], _ALONE[option]
    also = [options[one].key for one in used if used[one] and one != option]
    if also:
        raise ConfigError(
            f"{entry.key} cannot be used together with {' and '.join(also)}.",
            where=entry.where,
            do=f"Write all of it in SQL, or {all_of_it}.",
        )
    module, _, function = used[option].partition(":")
    if not module or not function:
        raise ConfigError(
            f"{entry.key}: {shown(entry, repr(entry.value))} is not module:function.",
            where=entry.where,
            do=named,
        )


def _met(made: Sequence[TransformSettings]) -> Iterator[ConfigError]:
    """Refuse two transforms for one topic: which of them applies would be a guess."""
    for one, other in combinations(made, 2):
        try:
            topic = common_name([Names(one.topics), Names(other.topics)])
        except Undecided:
            continue  # a topic that both match is left out (`names.transforms.unclear_topics`)
        if topic is not None:
            yield ConfigError(
                f"the transforms {one.name} and {other.name} both match topics: for example, "
                f"'{topic}'.",
                where=other.place("topics"),
                do="Write lists that have no topic in common, or make one transform of both.",
            )


def routed(flows: Iterable[FlowSettings]) -> list[str]:
    """A remark on each transform that routes records: what does not hold for its topics. Pure."""
    routing = [
        (
            one.place("select"),
            f"the transform {one.name} routes records of {', '.join(one.topics)} by their content"
            if one.topics
            else f"{TIME_ROUTER} routes records by their time",
        )
        for flow in flows
        for one in flow.transforms
        if one.routes
    ]
    return [
        f"{place}: {what}: for these topics, offsets of consumer groups are not translated, and "
        "records that the target loses are not noticed."
        for place, what in dict.fromkeys(routing)
    ]
