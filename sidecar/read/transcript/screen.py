"""What a command wrote to its terminal, as the terminal showed it: overwritten text and colours. Pure."""

from __future__ import annotations

import re
from html import escape
from itertools import groupby
from typing import Final

from sidecar.read.wording import printable

MOST: Final = 100_000
"""Longer output is written without colours."""

_CODE: Final = re.compile(r"\x1b\[([0-?]*)[ -/]*([@-~])|([\r\b])")
_TAB: Final = 4
_EXTENDED: Final = {"38", "48"}
_BOLD: Final = {"1": True, "22": False}


def screen(text: str) -> str:
    """``text`` as HTML, escaped: a return or a backspace goes back over the line, and a colour is a class, ``a1`` (red)
    to ``a6`` (cyan), and ``b`` for bold. Other sequences do nothing."""
    if len(text) > MOST or not _CODE.search(text):
        return escape(printable(text).expandtabs(_TAB))
    style, lines = "", []
    for line in text.split("\n"):
        shown, style = _line(line, style)
        lines.append(shown)
    return "\n".join(lines)


def _line(line: str, style: str) -> tuple[str, str]:
    """One line, and the style with which the next one begins."""
    cells: list[tuple[str, str]] = []
    column = at = 0
    for found in [*_CODE.finditer(line), None]:
        new = printable(line[at : found.start() if found else None]).expandtabs(_TAB)
        cells[column : column + len(new)] = [(each, style) for each in new]
        column += len(new)
        if found is None:
            break
        at = found.end()
        if found[3]:
            column = 0 if found[3] == "\r" else max(column - 1, 0)
        elif found[2] == "K" and found[1] in ("", "0"):
            del cells[column:]
        elif found[2] == "K" and found[1] == "2":
            cells = [(" ", "")] * column
        elif found[2] == "m":
            style = _styled(style, found[1])
    runs = ((name, "".join(each for each, _ in run)) for name, run in groupby(cells, lambda cell: cell[1]))
    return "".join(
        f'<span class="{name}">{escape(text)}</span>' if name else escape(text) for name, text in runs
    ), style


def _styled(style: str, given: str) -> str:
    """The classes after a sequence that sets colours."""
    colour = next((each for each in style.split() if each != "b"), "")
    is_bold = "b" in style.split()
    numbers = iter(given.split(";"))
    for number in numbers:
        if number in _EXTENDED:
            # The colour is in the numbers that follow: one of 256, or red, green and blue.
            is_table = next(numbers, "") == "5"
            values = [next(numbers, "") for _ in range(1 if is_table else 3)]
            if number == "38":
                colour = _named(int(values[0])) if is_table and values[0].isdecimal() and len(values[0]) < 4 else ""
        elif number in ("", "0"):
            colour, is_bold = "", False
        elif number in _BOLD:
            is_bold = _BOLD[number]
        elif len(number) == 2 and number[0] in "39" and number[1] in "01234567":
            colour = _named(int(number[1]))
        elif number == "39":
            colour = ""
    return " ".join(filter(None, (colour, "b" * is_bold)))


def _named(number: int) -> str:
    """The class of one of the 16 colours; black, white and all others are the text's own colour."""
    return f"a{number % 8}" if number < 16 and number % 8 not in (0, 7) else ""
