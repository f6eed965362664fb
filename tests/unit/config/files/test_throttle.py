"""Rates, daily windows and rules, as users spell them."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from sparkmirror.config.files.throttle import (
    in_window,
    parse_between,
    parse_rate,
    rate_text,
    rule_text,
)
from sparkmirror.config.mm2.load import load_mm2
from sparkmirror.errors import ConfigError
from sparkmirror.settings import ThrottleRule

FILE = "clusters=A,B\nA.bootstrap.servers=a:1\nB.bootstrap.servers=b:1\nA->B.enabled=true\n"


@pytest.mark.parametrize(
    ("text", "bytes_s"),
    [
        ("50MB/s", 50_000_000),
        (" 50 MB/s ", 50_000_000),
        ("1.5GB/s", 1_500_000_000),
        ("50MiB/s", 52_428_800),
        ("64KiB/s", 65_536),
        ("100kB/s", 100_000),
        ("100KB/s", 100_000),
        ("2000B/s", 2_000),
        ("400Mbit/s", 50_000_000),
        ("400Mbps", 50_000_000),
        ("10Gbit/s", 1_250_000_000),
        ("8Mibit/s", 1_048_576),
        ("1TB/s", 10**12),
        ("off", 0),
        ("OFF", 0),
    ],
)
def test_rates(text: str, bytes_s: int) -> None:
    assert parse_rate(text, where="RATE") == bytes_s


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("50", "A unit per second is missing"),
        ("50MB", "A unit per second is missing"),
        ("50mb/s", "mb may mean bytes or bits"),
        ("50Mb/s", "Mb may mean bytes or bits"),
        ("5XB/s", "The unit 'XB' is unknown"),
        ("-5MB/s", "'-5MB/s' is not a rate"),
        ("fast", "'fast' is not a rate"),
        ("", "'' is not a rate"),
        ("1e9B/s", "is not a rate"),
        ("5MB/min", "is not a rate"),
        ("0MB/s", "less than 1 kB/s"),
        ("999B/s", "less than 1 kB/s"),
        ("2TB/s", "over 1 TB/s"),
    ],
)
def test_what_is_no_rate_is_refused_with_an_example(text: str, told: str) -> None:
    with pytest.raises(ConfigError, match="RATE: ") as error:
        parse_rate(text, where="RATE")
    assert told in str(error.value)
    assert "50MB/s" in str(error.value)


@pytest.mark.parametrize(
    ("bytes_s", "text"),
    [(0, "off"), (1_000, "1 kB/s"), (52_428_800, "52.43 MB/s"), (10**12, "1 TB/s")],
)
def test_rates_for_people(bytes_s: int, text: str) -> None:
    assert rate_text(bytes_s) == text


@pytest.mark.parametrize(
    ("text", "window"),
    [
        ("08:00-18:00", "08:00-18:00"),
        ("8:00 - 18:30", "08:00-18:30"),
        ("22:00-06:00", "22:00-06:00"),
        ("12:00-24:00", "12:00-24:00"),
        ("", ""),
    ],
)
def test_windows(text: str, window: str) -> None:
    assert parse_between(text, where="--between") == window


@pytest.mark.parametrize(
    "text", ["8-18", "08:00", "08:00-25:00", "24:00-03:00", "08:60-09:00", "08:00-08:00", "a-b"]
)
def test_what_is_no_window_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--between: .* 22:00-06:00 for a window over midnight"):
        parse_between(text, where="--between")


@pytest.mark.parametrize(
    ("window", "inside", "outside"),
    [
        ("08:00-18:00", ["08:00", "17:59"], ["07:59", "18:00", "00:00"]),
        ("22:00-06:00", ["22:00", "23:59", "00:00", "05:59"], ["06:00", "21:59", "12:00"]),
        ("12:00-24:00", ["12:00", "23:59"], ["11:59", "00:00"]),
        ("", ["00:00", "12:00"], []),
    ],
)
def test_when_a_window_applies(window: str, inside: list[str], outside: list[str]) -> None:
    def within(clock: str) -> bool:
        return in_window(window, time.strptime(f"2026-03-29 {clock}", "%Y-%m-%d %H:%M"))

    assert all(map(within, inside))
    assert not any(map(within, outside))


def test_rules_for_people() -> None:
    assert rule_text(ThrottleRule("", 50_000_000)) == "50 MB/s"
    rule = ThrottleRule("logs.*", 5_000, "08:00-18:00")
    assert rule_text(rule) == "5 kB/s between 08:00 and 18:00 for topics logs.*"


def _load(tmp_path: Path, *lines: str):
    path = tmp_path / "mm2.properties"
    path.write_text(FILE + "\n".join(lines))
    return load_mm2(path)


def test_a_file_sets_limits(tmp_path: Path) -> None:
    settings = _load(
        tmp_path,
        "sparkmirror.throttle = 50MB/s",
        "A->B.sparkmirror.throttle.between = 8:00-18:00",
        "A->B.sparkmirror.throttle.topics = logs.* => 5MB/s; audit=>1MB/s 22:00-06:00 ;",
    )
    assert settings.flows[0].throttles == (
        ThrottleRule("", 50_000_000, "08:00-18:00"),
        ThrottleRule("logs.*", 5_000_000),
        ThrottleRule("audit", 1_000_000, "22:00-06:00"),
    )
    assert _load(tmp_path).flows[0].throttles == ()
    assert _load(tmp_path, "sparkmirror.throttle = off").flows[0].throttles == ()


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("sparkmirror.throttle = 50", "is not a rate"),
        ("sparkmirror.throttle.between = 8-18", "is not a daily window"),
        ("sparkmirror.throttle.topics = logs.*", "is not a rule"),
        ("sparkmirror.throttle.topics = => 5MB/s", "is not a rule"),
        ("sparkmirror.throttle.topics = ( => 5MB/s", "("),
        ("sparkmirror.throttle.topics = a => off", "has no limit"),
        ("sparkmirror.throttle.topics = a => 5MB/s; a => 6MB/s", "the same regex"),
        ("sparkmirror.throttle.topics = a => 5MB/s 8-18", "is not a daily window"),
        (
            "sparkmirror.throttle.topics = " + ";".join(f"t{n} => 5MB/s" for n in range(17)),
            "17 limits are too many",
        ),
    ],
)
def test_a_wrong_limit_is_refused_with_file_line_and_key(
    tmp_path: Path, line: str, told: str
) -> None:
    with pytest.raises(ConfigError) as error:
        _load(tmp_path, f"A->B.{line}")
    assert told in str(error.value)
    assert f"mm2.properties:5: A->B.{line.partition(' ')[0]}" in str(error.value)


def test_a_window_without_a_rate_is_reported(tmp_path: Path) -> None:
    warnings = _load(tmp_path, "sparkmirror.throttle.between = 08:00-18:00").warnings
    assert any("no flow has a rate that it would apply to" in line for line in warnings)
    used = _load(
        tmp_path, "sparkmirror.throttle.between = 08:00-18:00", "A->B.sparkmirror.throttle = 1MB/s"
    )
    assert not any("throttle" in line for line in used.warnings)
