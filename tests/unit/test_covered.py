"""What ``make coverage`` lists: each place that no test runs, with its reason or without one."""

from __future__ import annotations

from tests.covered.__main__ import Gap, gaps, render, unknown_reasons
from tests.covered.reasons import REASONS

SOURCE = """\
import os

class Reader:
    def read(self):
        def inner():
            return 1
        return inner

    def close(self):
        pass
"""


def test_lines_belong_to_the_innermost_function() -> None:
    assert gaps("m.py", {1, 6, 7, 10}, SOURCE) == [
        Gap("m.py", "", (1,)),
        Gap("m.py", "Reader.read.inner", (6,)),
        Gap("m.py", "Reader.read", (7,)),
        Gap("m.py", "Reader.close", (10,)),
    ]


def test_what_has_no_reason_is_listed_as_such() -> None:
    missing = {24, 44}  # in cache_directory and in claim_part
    files = {"cache.py": (set(range(1, 101)), missing), "errors.py": (set(range(100)), set())}
    page, percent = render(files, {"cache.py:claim_part": "a race", "errors.py": "idle"})
    assert percent == 99.0
    assert "| `cache.py:cache_directory` | 24 | **no reason is given** |" in page
    assert "| `cache.py:claim_part` | 44 | a race |" in page
    assert "Reasons for what tests do run: `errors.py`." in page
    whole, _ = render(files, {"cache.py": "of the module"})
    assert "no reason" not in whole


def test_reasons_are_about_what_exists() -> None:
    assert unknown_reasons(REASONS) == []
    assert len(unknown_reasons({"gone.py": "x", "cache.py:gone": "x", "cache.py": " "})) == 3
