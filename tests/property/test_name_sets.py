"""Common names of regex lists: found names are in all sets, and none is missed among short ones."""

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sparkmirror.names.regex_overlap import Names, Undecided, common_name
from sparkmirror.names.replication_policy import TopicFilter

_ALPHABET = "ab.-"
_ATOMS = st.sampled_from(
    ["a", "b", "[.]", "-", ".", "[ab]", "[^a]", "[.-]", "\\.", "\\w", "\\D", "^", "$", "(?i)A"]
)


def _regexes() -> st.SearchStrategy[str]:
    def larger(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
        return st.one_of(
            st.tuples(inner, inner).map("".join),
            st.tuples(inner, inner).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
            st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,2}", "{0,}", "*?"])).map(
                lambda pair: f"(?:{pair[0]}){pair[1]}"
            ),
        )

    return st.recursive(_ATOMS, larger, max_leaves=6)


def _lists(least: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.lists(_regexes(), min_size=least, max_size=2).map(tuple)


_NAMES = st.builds(Names, _lists(1), _lists(0), st.sampled_from(["", "a", "a.", "A.", "ab-"]))


def _holds(names: Names) -> Callable[[str], bool]:
    """What says of a name whether it is one of them."""
    accepts = TopicFilter(names.include, names.exclude).accepts

    def holds(name: str) -> bool:
        rest = name.removeprefix(names.prefix)
        return name.startswith(names.prefix) and bool(rest) and accepts(rest)

    return holds


@settings(max_examples=400, deadline=None)
@given(st.lists(_NAMES, min_size=1, max_size=3))
def test_the_answer_is_what_the_filters_say(sets: list[Names]) -> None:
    found = common_name(sets)
    filters = [_holds(names) for names in sets]
    if found is not None:
        assert all(holds(found) for holds in filters)
    short = 5 if found is None else min(5, len(found) - 1)
    for length in range(1, short + 1):
        for chars in itertools.product(_ALPHABET, repeat=length):
            name = "".join(chars)
            assert not all(holds(name) for holds in filters), (name, found)


@pytest.mark.parametrize(
    ("one", "other", "common"),
    [
        ((".*",), ("orders.*",), "orders"),
        (("orders.*",), ("payments.*",), None),
        (("orders[.].*",), (".*[.]eu",), "orders.eu"),
        (("a", "b"), ("c", "b"), "b"),
        (("a",), ("A",), None),
        (("(?i)a",), ("A",), "A"),
        (("^x$",), ("x",), "x"),
        (("[a-f]{3,}",), ("[e-z]{2,4}",), "eee"),
        (("\\d+",), ("[0-4]+",), "0"),
        (("a\\b",), (".*",), None),
        (("(?!x).*",), ("x", "yz"), "yz"),
        (("a.b",), ("a.b",), "aab"),
        ((), (".*",), None),
    ],
)
def test_known_answers(one: tuple[str, ...], other: tuple[str, ...], common: str | None) -> None:
    if one == ("a\\b",):
        with pytest.raises(Undecided):
            common_name([Names(one), Names(other)])
    else:
        assert common_name([Names(one), Names(other)]) == common


def test_excludes_and_prefixes_count() -> None:
    assert common_name([Names((".*",), ("a.*",)), Names(("a.*",))]) is None
    assert common_name([Names((".*",), ("a", "b")), Names(("[ab]+",))]) == "aa"
    assert common_name([Names((".*",), prefix="A."), Names((".*",), prefix="B.")]) is None
    assert common_name([Names(("t",), prefix="A.B."), Names(("B[.]t",), prefix="A.")]) == "A.B.t"


@pytest.mark.parametrize("regex", ["(?!x).*", "(a)\\1", "a*+b", "(?>a)b", "(?=a).*"])
def test_what_no_automaton_can_do_is_left_undecided(regex: str) -> None:
    with pytest.raises(Undecided):
        common_name([Names((regex,)), Names((".*",))])


def test_many_plain_names_are_compared_in_no_time() -> None:
    ours = tuple(f"topic-{number}" for number in range(0, 400, 2))
    theirs = tuple(f"(?:topic)-{number}" for number in range(1, 400, 2))
    assert common_name([Names(ours), Names(theirs)]) is None
    assert common_name([Names(ours), Names((*theirs, "topic-39[78]"))]) == "topic-398"
