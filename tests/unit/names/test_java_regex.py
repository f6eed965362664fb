"""Java regexes: the same names match as in java.util.regex."""

import pytest

from sparkmirror.errors import ConfigError
from sparkmirror.names.java_regex import compile_list, compile_regex
from tests.rows import named
from tests.vectors import load

VECTORS = load("java_regex")
NAMES: list[str] = VECTORS["names"]
# Java knows these, we do not translate them: refused by name, never mistranslated.
UNTRANSLATED = {"(?x)a b", "(?d)a", r"(?U)\w+", r"\G", r"\X", "(?iu)É"}


def test_matches_what_java_matches() -> None:
    for regex, expected in VECTORS["cases"]:
        with named(repr(regex)):
            _matches(regex, expected)


def _matches(regex: str, expected: str | None) -> None:
    if expected is None:
        with pytest.raises(ConfigError, match="is an invalid regex"):
            compile_regex(regex)
    elif regex in UNTRANSLATED:
        with pytest.raises(ConfigError, match="is not supported"):
            compile_regex(regex)
    else:
        pattern = compile_regex(regex)
        matched = [name for name in NAMES if pattern.fullmatch(name)]
        assert matched == [name for name, bit in zip(NAMES, expected, strict=True) if bit == "1"]


def test_the_vectors_hold_matches_and_errors() -> None:
    outcomes = [expected for _, expected in VECTORS["cases"]]
    assert outcomes.count(None) > 90
    assert sum(expected is not None and "1" in expected for expected in outcomes) > 300


@pytest.mark.parametrize(
    ("regex", "reason"),
    [
        ("(", "a '(' is not closed"),
        ("a)", "unmatched ')' at character 2"),
        ("[a", "a '[' is not closed"),
        ("*a", "'*' has nothing to repeat"),
        ("a{1|2}", "'{' starts no valid count such as {2} or {2,5}"),
        ("a\\", "it ends in a lone backslash"),
        (r"\y", r"\y is not a known escape"),
        (r"\p{Foo}", r"the property \p{Foo} is not supported"),
        ("[z-a]", "the range z-a is backwards"),
        (r"\b{g}", r"\b{g} is not supported"),
        ("(?<a>x)(?<a>y)", "redefinition of group name 'a'"),
    ],
)
def test_errors_say_what_is_wrong_and_where(regex: str, reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compile_regex(regex, where="mm2.properties:3: topics")
    assert reason in caught.value.what
    assert str(caught.value).startswith(f"mm2.properties:3: topics: '{regex}' is an invalid regex")
    assert "Java regular expressions" in caught.value.do


def test_a_long_regex_is_cut_in_its_error() -> None:
    with pytest.raises(ConfigError) as caught:
        compile_regex("(" + "a" * 1000)
    assert len(str(caught.value)) < 500


def test_a_list_is_one_regex() -> None:
    pattern = compile_list(("foo", "(?i)bar", "baz"))
    assert pattern is not None
    # The flag holds from where it stands on, as in Java's joined pattern.
    assert [bool(pattern.fullmatch(name)) for name in ("FOO", "BAR", "BAZ", "foo", "foobar")] == [
        False,
        True,
        True,
        True,
        False,
    ]


def test_an_empty_list_is_no_pattern() -> None:
    assert compile_list(()) is None


def test_the_faulty_element_of_a_list_is_named() -> None:
    with pytest.raises(ConfigError, match=r"'b\[' is an invalid regex"):
        compile_list(("a", "b[", "c"))


def test_nesting_too_deep_for_python_is_an_error_of_ours() -> None:
    with pytest.raises(ConfigError, match="invalid regex"):
        compile_regex("(" * 50_000 + ")" * 50_000)


def test_elements_that_are_a_regex_only_together() -> None:
    """A comma within a group is one more "or", because Java compiles the joined list alone."""
    pattern = compile_list(("orders[.](eu", "us)"))
    assert pattern is not None
    assert [bool(pattern.fullmatch(name)) for name in ("orders.eu", "orders.us", "us")] == [
        *(True, True, False)
    ]
