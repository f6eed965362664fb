"""Single message transforms (SMTs) of a flow: ``transforms``, ``predicates`` and their settings.

As in Kafka Connect, they belong to one connector: ``A->B.transforms.NAME.type`` and so on. Those
that make sense on bytes become parts of the flow (`names.smts`, `config.mm2.smt_sql`). All others
are refused with the SQL that does the same.
"""

from __future__ import annotations

import string
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from sparkmirror.config.files.properties import Entry
from sparkmirror.config.files.values import (
    merge_errors,
    parse_boolean,
    parse_list,
    shown,
    split_list,
)
from sparkmirror.config.mm2.smt_sql import smt_sql, topic_pieces
from sparkmirror.config.table.own import TOPICS_MAP, TRANSFORMS
from sparkmirror.errors import ConfigError
from sparkmirror.names.java_regex import compile_regex
from sparkmirror.names.smts import BY_NAME, ROUTER, TIME_ROUTER, conditions, variants
from sparkmirror.names.topics_map import parse_name
from sparkmirror.names.transforms import routes
from sparkmirror.transform_settings import SmtSettings, TransformSettings

SMTS, PREDICATES = "transforms", "predicates"
_PACKAGE = "org.apache.kafka.connect.transforms."
_PREDICATE_PACKAGE = f"{_PACKAGE}predicates."
_EVERY_SMT = ("type", "predicate", "negate", "plugin.version")
_EVERY_PREDICATE = ("type", "plugin.version")
_SMTS = {
    "Filter": (),
    "DropHeaders": ("headers",),
    "InsertHeader": ("header", "value.literal"),
    ROUTER: ("regex", "replacement"),
    TIME_ROUTER: ("topic.format", "timestamp.format"),
}
_PREDICATES = {BY_NAME: ("pattern",), "HasHeaderKey": ("name",), "RecordIsTombstone": ()}
# A topic's SMTs are one of 2 to the power of this many combinations, each a column of the query.
_CONDITIONS_MAX = 5

_TIME_FORMATS = {"topic.format": "${topic}-${timestamp}", "timestamp.format": "yyyyMMdd"}
_NAME_CHARS = frozenset(f"{string.ascii_letters}{string.digits}._-")

_FIELDS = "it needs records with fields, but MirrorMaker 2 gives it bytes: in Java, too, it fails"
_JSON = "CAST(value AS STRING)"
_FIELD = f"get_json_object({_JSON}, '$.FIELD')"


def _parsed(schema: str) -> str:
    """A struct of fields; VARIANT keeps a field's type."""
    # Without FAILFAST, what is no JSON would become "{}".
    return f"from_json({_JSON}, '{schema}', map('mode', 'FAILFAST'))"


def _document(fields: str) -> str:
    """A new value of ``fields``. A tombstone stays one: to_json would make "{}" of it."""
    return f"CASE WHEN value IS NOT NULL THEN to_json(named_struct({fields})) END AS value"


OTHERS = {
    "Cast": (
        _FIELDS,
        _document(f"'FIELD', CAST({_FIELD} AS INT), 'OTHER', {_parsed('OTHER VARIANT')}.OTHER"),
    ),
    "ExtractField": (_FIELDS, f"{_FIELD} AS value"),
    "Flatten": (_FIELDS, _document(f"'A.B', {_parsed('A STRUCT<B: VARIANT>')}.A.B")),
    "HeaderFrom": (
        _FIELDS,
        f"concat(headers, array(struct('NAME' AS key, {_FIELD} AS value))) AS headers",
    ),
    "HoistField": (
        "it gives records with fields, which are no bytes: in Java, too, it fails",
        _document(f"'FIELD', parse_json({_JSON})"),
    ),
    "InsertField": (
        _FIELDS,
        _document(f"'NEW', topic, 'FIELD', {_parsed('FIELD VARIANT')}.FIELD"),
    ),
    "MaskField": (
        _FIELDS,
        "mask_json(value, '$.FIELD', '') AS value",
    ),
    "ReplaceField": (
        _FIELDS,
        f"to_json({_parsed('FIELD VARIANT, OTHER VARIANT')}) AS value",
    ),
    "SetSchemaMetadata": ("bytes have no schema: in Java, too, it fails", ""),
    "TimestampConverter": (
        _FIELDS,
        _document(
            f"'FIELD', date_format(timestamp_millis(CAST({_FIELD} AS BIGINT)), 'yyyy-MM-dd')"
        ),
    ),
    "ValueToKey": (_FIELDS, f"{_FIELD} AS key"),
}
"""Classes of Kafka that are refused: why, and SQL (of ``select``) that does the same with JSON."""


def smt_settings(conf: Mapping[str, Entry], flow: str) -> tuple[SmtSettings, ...]:
    """The SMTs in ``conf``, the configuration of a flow's source connector. Raises ConfigError."""
    listed = _listed(conf, SMTS)
    predicates, errors = {}, []
    for name in _listed(conf, PREDICATES):
        part = _Part.of(conf, PREDICATES, name, flow)
        try:
            predicates[name] = _predicate(part)
        except ConfigError as error:
            errors.append(error)
    made = []
    for name in listed:
        try:
            made.append(_smt(_Part.of(conf, SMTS, name, flow), predicates, known=not errors))
        except ConfigError as error:
            errors.append(error)
    if errors:
        raise merge_errors(errors, errors[0].where.rpartition(":")[0])
    _check_order(made, conf, flow)
    if len(conditions(made)) > _CONDITIONS_MAX:
        raise ConfigError(
            f"{conf[SMTS].key}: what happens to records depends on {len(conditions(made))} patterns"
            f" of {BY_NAME}; at most {_CONDITIONS_MAX} are possible.",
            where=conf[SMTS].where,
            do="Join patterns with |, or write transforms in SQL (sparkmirror.transforms).",
        )
    return tuple(made)


def _check_order(made: Sequence[SmtSettings], conf: Mapping[str, Entry], flow: str) -> None:
    """Raise ConfigError for what needs a topic's name after records have got different ones."""
    routed = ""
    for one in made:
        part = _Part.of(conf, SMTS, one.name, flow)
        do = f"Write {one.name} before {routed} in {part.listed.key}."
        if routed and one.kind == ROUTER:
            what = f"cannot be used after {routed} ({TIME_ROUTER}): records of one topic have "
            raise part.wrong("type", f"{what}different names there", do)
        if routed and one.predicate == BY_NAME:
            what = f"cannot be used after {routed} ({TIME_ROUTER}): records of one topic have "
            raise part.wrong("predicate", f"{what}different names there, but it is a {BY_NAME}", do)
        if one.kind == TIME_ROUTER:
            routed = one.name


def smt_transforms(
    smts: tuple[SmtSettings, ...], conf: Mapping[str, Entry], own: Mapping[str, Entry]
) -> tuple[TransformSettings, ...]:
    """The transforms of records for ``smts``: one for each set of them that may apply to a topic.

    ``own``: the flow's ``sparkmirror.*`` settings. Raises ConfigError if these name transforms or
    topics, too.
    """
    if not smts:
        return ()
    listed = conf[SMTS]
    names = any(one.kind in (ROUTER, TIME_ROUTER) for one in smts)
    for key, whole in ((TRANSFORMS, True), (TOPICS_MAP, names)):
        other = own.get(key)
        if whole and other is not None and other.value.strip():
            raise ConfigError(
                f"{other.key} and {listed.key} cannot be used together: which of them comes first "
                "would be a guess.",
                where=other.where,
                do=f"Use one of both: {key} can do what the SMTs do.",
            )
    made = []
    for steps in variants(smts):
        where, select = smt_sql([smts[number] for number in steps])
        name = "+".join(smts[number].name for number in steps)
        place = f"{listed.where}: {listed.key}"
        places = (("select", place), ("where", place))
        made.append(
            TransformSettings(name, (), where, select, places, steps=steps, routes=routes(select))
        )
    return tuple(made)


def _listed(conf: Mapping[str, Entry], key: str) -> tuple[str, ...]:
    entry = conf.get(key)
    if entry is None:
        return ()
    names = parse_list(entry)
    if len(split_list(entry.value)) > len(names):
        raise ConfigError(
            f"{entry.key} names an alias twice.", where=entry.where, do="Write each alias once."
        )
    return names


# -- one SMT or predicate --------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Part:
    """The settings of one SMT or predicate. ``key``: how its keys begin in the file."""

    name: str
    key: str
    listed: Entry
    options: Mapping[str, Entry]

    @classmethod
    def of(cls, conf: Mapping[str, Entry], kind: str, name: str, flow: str) -> _Part:
        prefix = f"{kind}.{name}."
        options = {key[len(prefix) :]: one for key, one in conf.items() if key.startswith(prefix)}
        return cls(name, f"{flow}.{prefix}", conf[kind], options)

    def text(self, option: str, *, empty: bool = False) -> str:
        """The value of an option that must be there. Raises ConfigError.

        ``empty``: whether it may be.
        """
        entry = self.options.get(option)
        if entry is None:
            name = shown(self.listed, self.name)
            key = f"{self.key.removesuffix(f'{self.name}.')}{name}.{option}"
            raise ConfigError(
                f"{key} is missing: {self.listed.key} names {name}.",
                where=self.listed.where,
                do=f"Set {key}, or remove {name} from the list.",
            )
        value = entry.value.strip()
        if not (value or empty):
            raise self.wrong(option, "is empty", "Write a value.")
        return value

    def entry(self, option: str) -> Entry:
        return self.options.get(option, self.listed)

    def wrong(self, option: str, what: str, do: str) -> ConfigError:
        entry = self.entry(option)
        return ConfigError(f"{entry.key} {what}.", where=entry.where, do=do)

    def regex(self, option: str) -> str:
        """A Java regex. Raises ConfigError."""
        value, entry = self.text(option), self.entry(option)
        try:
            compile_regex(value, where=f"{entry.where}: {entry.key}")
        except ConfigError as error:
            if not entry.secret:
                raise
            raise self.wrong(option, "is an invalid regex", error.do) from None
        return value

    def check_names(self, kind: str, known: tuple[str, ...]) -> None:
        """Raise ConfigError for an option that ``kind`` does not have."""
        for option in self.options.keys() - set(known):
            do = f"Correct or remove it: {kind} has {', '.join(known)}."
            raise self.wrong(option, f"is no setting of {kind}", do)


def _predicate(part: _Part) -> tuple[str, str]:
    """Class and argument of a predicate."""
    written = part.text("type")
    kind = written.removeprefix(_PREDICATE_PACKAGE)
    if kind not in _PREDICATES:
        raise part.wrong(
            "type",
            f"={shown(part.entry('type'), written)} cannot be used: Java classes cannot be loaded",
            f"Use {', '.join(_PREDICATES)}, or a condition in SQL "
            "(sparkmirror.transform.NAME.where).",
        )
    options = _PREDICATES[kind]
    part.check_names(kind, (*_EVERY_PREDICATE, *options))
    argument = ""
    for option in options:
        argument = part.regex(option) if kind == BY_NAME else part.text(option)
    return kind, argument


def _smt(part: _Part, predicates: Mapping[str, tuple[str, str]], *, known: bool) -> SmtSettings:
    """One SMT. ``known``: whether ``predicates`` has all of the file's."""
    written = part.text("type")
    kind = written.removeprefix(_PACKAGE)
    if kind not in _SMTS:
        raise _refused(part, shown(part.entry("type"), written), kind.partition("$")[0])
    part.check_names(kind, (*_EVERY_SMT, *_SMTS[kind]))
    predicate, argument, negate = "", "", False
    if "predicate" in part.options:
        alias = part.text("predicate")
        if alias in predicates:
            predicate, argument = predicates[alias]
        elif known:
            do = f"Add {alias} to {part.key.partition('.transforms.')[0]}.{PREDICATES}."
            told = shown(part.entry("predicate"), alias)
            raise part.wrong("predicate", f"={told} is no predicate of the flow", do)
    if "negate" in part.options:
        negate = parse_boolean(part.options["negate"])
        if "predicate" not in part.options:
            do = f"Set {part.key}predicate, or remove the key."
            raise part.wrong("negate", "has no predicate to negate", do)
    made = SmtSettings(part.name, kind, predicate=predicate, argument=argument, negate=negate)
    return _with_options(made, part)


def _with_options(made: SmtSettings, part: _Part) -> SmtSettings:
    if made.kind == "DropHeaders":
        part.text("headers")
        return replace(made, headers=parse_list(part.entry("headers")))
    if made.kind == "InsertHeader":
        if part.text("value.literal") != "null":
            raise part.wrong(
                "value.literal",
                "cannot be used: InsertHeader gives text or a number, and ByteArrayConverter takes "
                "bytes only. Java's MirrorMaker fails at the first record; only null works there",
                "Write a transform in SQL (sparkmirror.transforms) with select = concat(headers, "
                "array(struct('NAME' AS key, 'TEXT' AS value))) AS headers.",
            )
        return replace(made, headers=(part.text("header"),))
    if made.kind == ROUTER:
        if made.predicate not in ("", BY_NAME):
            raise part.wrong(
                "predicate",
                f"cannot be used: with {made.predicate}, records of one topic would go to several",
                f"Use {BY_NAME}, or no predicate.",
            )
        return replace(made, regex=part.regex("regex"), replacement=_replacement(part))
    if made.kind == TIME_ROUTER:
        return _time_router(made, part)
    return made


def _time_router(made: SmtSettings, part: _Part) -> SmtSettings:
    formats = {
        option: part.text(option) if option in part.options else default
        for option, default in _TIME_FORMATS.items()
    }
    topic_format, time_format = formats.values()
    try:
        pieces = topic_pieces(topic_format, time_format)
    except ValueError as error:
        raise part.wrong(
            "timestamp.format",
            f"cannot be used: {shown(part.entry('timestamp.format'), str(error))}",
            "Use y, M, d, H, m, s and S: yyyyMMdd, yyyy-MM-dd.",
        ) from None
    wrong = {char for text, sql in pieces if not sql for char in text} - _NAME_CHARS
    if wrong:
        option = "topic.format" if wrong & set(topic_format) else "timestamp.format"
        chars = shown(part.entry(option), " and ".join(map(repr, sorted(wrong))))
        raise part.wrong(
            option,
            f"gives names with {chars}, which topics cannot have",
            "Use letters, digits, '.', '_' and '-', ${topic} and ${timestamp}.",
        )
    return replace(made, topic_format=topic_format, time_format=time_format)


def _replacement(part: _Part) -> str:
    pattern, text = compile_regex(part.text("regex")), part.text("replacement", empty=True)
    try:
        parse_name(text, pattern.groups, pattern.groupindex)
    except ValueError as error:
        raise part.wrong(
            "replacement",
            f"is invalid: {error}",
            "$1 stands for the first group in parentheses, $0 for the whole name.",
        ) from None
    return text


def _refused(part: _Part, written: str, kind: str) -> ConfigError:
    reason, sql = OTHERS.get(kind, ("Java classes cannot be loaded", ""))
    do = f"Use {', '.join(_SMTS)}, or write transforms in SQL (sparkmirror.transforms)."
    if sql:
        do = f"For JSON, write a transform in SQL (sparkmirror.transforms) with select = {sql}."
    elif kind in OTHERS:
        do = "Remove it."
    return part.wrong("type", f"={written} cannot be used: {reason}", do)


def unlisted(conf: Mapping[str, Entry]) -> Iterator[tuple[Entry, str]]:
    """Settings of SMTs and predicates that the flow's lists do not name, and why they are idle."""
    for kind in (SMTS, PREDICATES):
        known = tuple(f"{kind}.{name}." for name in _listed(conf, kind))
        for key, entry in conf.items():
            if key.startswith(f"{kind}.") and not key.startswith(known):
                yield entry, f"{entry.key.partition(f'.{kind}.')[0]}.{kind} does not name it"
