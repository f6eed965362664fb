"""Writes ``smts.json``: what Kafka Connect and MirrorMaker 2 do with single message transforms.

``python -m tests.vectors.java.smts`` compiles and runs `SmtVectors.java`, which needs a JDK.
"""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from sparkmirror.testing.maven import resolve

HERE = Path(__file__).parent
_JARS = ("org.apache.kafka:connect-mirror:4.3.0", "org.apache.kafka:connect-runtime:4.3.0")
_PACKAGE = "org.apache.kafka.connect.transforms."
_SEED, _CHAINS, _RECORDS, _TIMED = 7, 120, 10, 60
_TOPICS = ("orders", "orders.eu", "plain", "A")
_HEADERS = ("h", "H", "x-y", "it's", "$1", "${a}", "back\\slash")
_PATTERNS = ("A[.]orders.*", "orders.*", ".*eu", "A\\.plain|A\\.A", "(?i)a.*", "new-.*", "A|A.A")
_ROUTERS = (
    ("A\\.(.*)", "$1"), ("(.*)", "new-$1"), ("A|A\\.A", "z"), ("A\\.(orders)(\\..*)?", "$1-all$2"),
    ("(?<all>.+)", "x.${all}"), ("A.*?", "q"), ("plain", "\\$1"),
)  # fmt: skip
_LETTERS = "yyyMMddLDFuHkKhmsSX"
_TOPIC_FORMATS = (
    "${topic}-${timestamp}", "${timestamp}.${topic}", "${topic}", "all.${timestamp}", "fixed",
    "${timestamp}_${timestamp}",
)  # fmt: skip
# No time, the first and the last moments of days, years and centuries, and years of five digits.
_TIMES = (
    -1, 0, 1, 951_782_399_999, 951_782_400_000, 1_709_207_999_999, 1_735_689_599_999,
    4_102_444_800_000, 253_402_300_799_999, 253_402_300_800_000, 1_000_000_000_000_000,
)  # fmt: skip
_PLAIN: list[Any] = ["t", 0, 1_700_000_000_000, "key", "value", []]


def _cases() -> dict[str, list[dict[str, Any]]]:
    rng, timed = random.Random(_SEED), random.Random(_SEED)
    return {
        "chains": [_chain(rng) for _ in range(_CHAINS)],
        "refused": [{"config": one, "records": [_PLAIN]} for one in _refused()],
        "files": [{"file": _FILE | one} for one in _files()],
        "times": [_timed(timed) for _ in range(_TIMED)],
    }


def _chain(rng: random.Random) -> dict[str, Any]:
    names = [f"s{number}" for number in range(rng.randint(1, 4))]
    predicates = [f"p{number}" for number in range(rng.randint(1, 3))]
    config = {"transforms": ", ".join(names), "predicates": ",".join(predicates)}
    by_record = set()
    for name in predicates:
        kind = rng.choice(("TopicNameMatches", "HasHeaderKey", "RecordIsTombstone"))
        config[f"predicates.{name}.type"] = _named(rng, f"predicates.{kind}")
        if kind == "TopicNameMatches":
            config[f"predicates.{name}.pattern"] = rng.choice(_PATTERNS)
            continue
        by_record.add(name)
        if kind == "HasHeaderKey":
            config[f"predicates.{name}.name"] = _header(rng)
    for name in names:
        kind = rng.choice(("Filter", "DropHeaders", "InsertHeader", "RegexRouter"))
        key = f"transforms.{name}."
        config[f"{key}type"] = _named(rng, kind)
        if kind == "DropHeaders":
            some = {_header(rng): None for _ in range(rng.randint(1, 3))}
            config[f"{key}headers"] = ",".join(some)
        elif kind == "InsertHeader":
            config |= {f"{key}header": _header(rng), f"{key}value.literal": "null"}
        elif kind == "RegexRouter":
            regex, replacement = rng.choice(_ROUTERS)
            config |= {f"{key}regex": regex, f"{key}replacement": replacement}
        allowed = [one for one in predicates if kind != "RegexRouter" or one not in by_record]
        if allowed and (kind == "Filter" or rng.random() < 0.6):
            config[f"{key}predicate"] = rng.choice(allowed)
            if rng.random() < 0.4:
                config[f"{key}negate"] = "true"
    return {"config": config, "records": [_record(rng) for _ in range(_RECORDS)]}


def _timed(rng: random.Random) -> dict[str, Any]:
    """A chain with a TimestampRouter, and what may be beside it."""
    time_format = "".join(
        rng.choice(_LETTERS) * rng.choice((1, 2, 2, 3, 4)) + rng.choice(("", "-", ".", "'T'", "_"))
        for _ in range(rng.randint(1, 4))
    )
    # From three letters on it is a name.
    time_format = re.sub("M{3,}", "MM", re.sub("L{3,}", "LL", time_format))
    time_format = re.sub("X{4,}", "XXX", time_format)
    config = {"transforms": "before, time, after", "predicates": "tomb, head, name"}
    kinds = {"tomb": "RecordIsTombstone", "head": "HasHeaderKey", "name": "TopicNameMatches"}
    config |= {f"predicates.{name}.type": kind for name, kind in kinds.items()}
    config |= {"predicates.head.name": "h", "predicates.name.pattern": rng.choice(_PATTERNS)}
    regex, replacement = rng.choice(_ROUTERS[:2])
    config |= rng.choice(
        (
            {"transforms.before.type": "RegexRouter", "transforms.before.regex": regex,
             "transforms.before.replacement": replacement},
            {"transforms.before.type": "DropHeaders", "transforms.before.headers": "h,H"},
            {"transforms.before.type": "Filter", "transforms.before.predicate": "tomb"},
        )
    )  # fmt: skip
    config["transforms.time.type"] = _named(rng, "TimestampRouter")
    if rng.random() < 0.8:
        config["transforms.time.timestamp.format"] = time_format
    if rng.random() < 0.7:
        config["transforms.time.topic.format"] = rng.choice(_TOPIC_FORMATS)
    if rng.random() < 0.6:
        config["transforms.time.predicate"] = rng.choice(tuple(kinds))
        config["transforms.time.negate"] = rng.choice(("true", "false"))
    config |= rng.choice(
        (
            {"transforms.after.type": "TimestampRouter", "transforms.after.timestamp.format": "yy"},
            {"transforms.after.type": "DropHeaders", "transforms.after.headers": "x-y",
             "transforms.after.predicate": "head"},
            {"transforms.after.type": "Filter", "transforms.after.predicate": "head"},
        )
    )  # fmt: skip
    records = [_record(rng) for _ in range(_RECORDS)]
    for one in records:
        one[2] = rng.choice((*_TIMES, rng.randrange(1 << 42), rng.randrange(1 << 47)))
    return {"config": config, "records": records}


def _header(rng: random.Random) -> str:
    """Often the same one, so that SMTs meet."""
    return rng.choice(_HEADERS if rng.random() < 0.3 else _HEADERS[:2])


def _named(rng: random.Random, kind: str) -> str:
    return _PACKAGE + kind if rng.random() < 0.5 else kind.rpartition(".")[2]


def _record(rng: random.Random) -> list[Any]:
    headers = [
        [_header(rng) if rng.random() < 0.9 else "", rng.choice((None, "", "v\u00ff"))]
        for _ in range(rng.randint(0, 4))
    ]
    value = rng.choice((None, "", "value", "\u0000\u00fe"))
    return [rng.choice(_TOPICS), rng.randint(0, 3), 1_700_000_000_000, None, value, headers]


def _one(kind: str, predicate: str = "", **options: str) -> dict[str, str]:
    config = {"transforms": "a", "transforms.a.type": kind}
    config |= {f"transforms.a.{key.replace('_', '.')}": value for key, value in options.items()}
    if predicate:
        config |= {"transforms.a.predicate": "p", "predicates": "p", "predicates.p.type": predicate}
    return config


def _refused() -> list[dict[str, str]]:
    """What Java does not start, or where it fails at the first record with a value."""
    literals = ("text", "12", "true", "1.5", "[]", "{}", '"null"', "NULL", "2020-01-01T00:00:00Z")
    filtered = _one("Filter", "HasHeaderKey") | {"predicates.p.name": "h"}
    return [
        *(_one("InsertHeader", header="h", value_literal=one) for one in literals),
        _one("InsertHeader", header="h"),
        _one("InsertHeader", value_literal="null"),
        _one("DropHeaders"),
        _one("DropHeaders", headers=""),
        _one("RegexRouter", regex="A["),
        _one("RegexRouter", regex="A[", replacement="x"),
        _one("RegexRouter", regex="(.*)", replacement="x$2"),
        _one("RegexRouter", regex="(.*)", replacement="x$"),
        _one("Filter", "HasHeaderKey"),
        _one("Filter", "TopicNameMatches"),
        _one("Filter", "TopicNameMatches") | {"predicates.p.pattern": "A["},
        _one("Filter", "HasHeader"),
        _one("Filter", negate="true"),
        _one("Filter", negate="false"),
        filtered | {"transforms.a.predicate": "q"},
        filtered | {"predicates": "p,q"},
        filtered | {"predicates": "p,p"},
        filtered | {"transforms": "a,a"},
        filtered | {"transforms.a.negate": "maybe"},
        {"transforms": "a"},
        _one("my.Own"),
        *(
            _one(f"{_PACKAGE}{kind}$Value", **options)
            for kind, options in (
                ("Cast", {"spec": "int32"}),
                ("ExtractField", {"field": "f"}),
                ("Flatten", {}),
                ("HoistField", {"field": "f"}),
                ("InsertField", {"static_field": "f", "static_value": "v"}),
                ("MaskField", {"fields": "f"}),
                ("ReplaceField", {"exclude": "f"}),
                ("SetSchemaMetadata", {"schema_name": "s"}),
                ("TimestampConverter", {"target_type": "string", "format": "yyyy", "field": "f"}),
                ("HeaderFrom", {"fields": "f", "headers": "h", "operation": "copy"}),
            )
        ),
        _one(f"{_PACKAGE}ValueToKey", fields="f"),
        *(
            _one("TimestampRouter") | {"transforms.a.timestamp.format": one}
            for one in ("yyyyb", "yyyy'T", "XXXX", "yyyyMMdd e")
        ),
    ]


_FILE = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "B.bootstrap.servers": "b:1"}


def _files() -> list[dict[str, str]]:
    """Where a file may write the keys, and which connectors get them."""
    return [
        {"A->B.transforms": "a", "A->B.transforms.a.type": "Filter", "A->B.predicates": "p"},
        {"transforms": "a", "transforms.a.type": "Filter", "predicates.p.type": "X"},
        {"transforms": "a", "predicates": "p", "A->B.transforms.a.type": "Filter"},
        {"transforms": "a", "A->B.transforms": "b"},
    ]


def answered(cases: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """``cases`` with what the Java classes give."""
    classpath = os.pathsep.join(map(str, resolve(*_JARS)))
    with tempfile.TemporaryDirectory() as directory:
        source = str(HERE / "SmtVectors.java")
        subprocess.run(
            ["javac", "-nowarn", "-d", directory, "-cp", classpath, source],
            check=True, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        done = subprocess.run(
            ["java", "-cp", os.pathsep.join((directory, classpath)), "SmtVectors"],
            input=json.dumps(cases), text=True, check=True,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        )  # fmt: skip
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def main() -> None:
    """Write the file, a line per case."""
    cases = _cases()
    answers = iter(answered([one for part in cases.values() for one in part]))
    parts = []
    for name, part in cases.items():
        lines = ",\n  ".join(json.dumps(next(answers)) for _ in part)
        parts.append(f' "{name}": [\n  {lines}\n ]')
    text = "{\n" + ",\n".join(parts) + "\n}\n"
    (HERE.parent / "smts.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
