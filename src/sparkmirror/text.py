"""Text of others, on its way to a terminal or into a log."""

from __future__ import annotations

from unicodedata import category

__all__ = ["printable"]

# What terminals and readers act on: control and format characters (cursor, colours, the direction
# of writing), halves of characters, separators of lines and paragraphs.
_ACTIVE = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})


def printable(text: str, *, keep: str = "") -> str:
    r"""``text`` with what a terminal or a reader of lines would act on written out.

    An escape character becomes ``\x1b``, a line break ``\n``. ``keep``: characters that stay, such
    as the line breaks of a text that is ours.
    """
    if text.isprintable():
        return text
    return "".join(
        one
        if one.isprintable() or one in keep or category(one) not in _ACTIVE
        else one.encode("unicode_escape").decode()
        for one in text
    )
