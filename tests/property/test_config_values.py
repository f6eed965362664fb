"""Properties files and lists hold whatever is put into them."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from sparkmirror.config.files.properties import parse_properties
from sparkmirror.config.files.values import split_list

FILE = Path("generated.properties")
_ENDS = st.sampled_from(["\n", "\r", "\r\n"])
_KEYS = st.text(min_size=1, max_size=20)


def _escape(text: str) -> str:
    """Java's way of storing: anything that could mean something else as ``\\uXXXX``."""
    units = text.encode("utf-16-be", "surrogatepass")
    out = []
    for at in range(0, len(units), 2):
        code = int.from_bytes(units[at : at + 2])
        plain = 0x20 < code < 0x7F and chr(code) not in "\\=:#!"
        out.append(chr(code) if plain else f"\\u{code:04x}")
    return "".join(out)


_TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=30)


@given(
    st.dictionaries(_KEYS.filter(lambda key: key.isprintable()), _TEXT, max_size=8),
    st.sampled_from(["=", ":", " = ", " ", "\t:\f"]),
    _ENDS,
    st.sampled_from(["", "# comment", "   ", "!\\"]),
)
def test_what_is_stored_is_read_back(
    wanted: dict[str, str], separator: str, end: str, between: str
) -> None:
    text = "".join(
        f"{between}{end}{_escape(key)}{separator if value or separator.strip() else '='}"
        f"{_escape(value)}{end}"
        for key, value in wanted.items()
    )
    text = f"first = line{end}{text}"  # which shows that the file is no JSON, say
    read = parse_properties(text.encode("ascii"), FILE)
    assert {key: entry.value for key, entry in read.items()} == {"first": "line", **wanted}


@given(st.lists(st.text("abc=:", min_size=2, max_size=12), min_size=1, max_size=6), _ENDS)
def test_a_value_may_be_continued_anywhere(parts: list[str], end: str) -> None:
    text = "k=" + f"\\{end}  \t".join(part.lstrip("=:") or "a" for part in parts)
    expected = "".join(part.lstrip("=:") or "a" for part in parts)
    assert parse_properties(text.encode(), FILE)["k"].value == expected


@given(st.integers(0, 30), st.integers(0, 30))
def test_lines_are_counted_from_one(comments: int, blanks: int) -> None:
    text = "# c\n" * comments + "\n" * blanks + "a=b"
    assert parse_properties(text.encode(), FILE)["a"].line == comments + blanks + 1


_ELEMENTS = st.text(st.characters(codec="ascii", exclude_characters=","), max_size=8).map(str.strip)


@given(
    st.lists(_ELEMENTS, min_size=1, max_size=8),
    st.sampled_from([",", ", ", " ,", "\t,\t", " , "]),
)
def test_a_list_is_split_on_commas_and_blanks_around_them(elements: list[str], comma: str) -> None:
    joined = comma.join(elements)
    expected = elements if joined.strip() else []
    assert split_list(joined) == expected
    assert split_list(f"  {joined}  ") == expected


@given(st.text(" \t", max_size=5))
def test_blank_text_is_the_empty_list(blank: str) -> None:
    assert split_list(blank) == []
