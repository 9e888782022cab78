"""Random secrets, drawn from descriptions of their format, so that no scanner reports these files."""

from __future__ import annotations

import re
from random import Random
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any

ALNUM = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789"
_SETS = {
    "a": ALNUM,
    "h": "0123456789abcdef",
    "u": "ABCDEFGHIJKLMNOPQRSTUVWXYZ234567",
    "d": "0123456789",
    "s": ALNUM + "-_",
    "b": ALNUM + "+/",
    "l": "abcdefghijklmnopqrstuvwxyz0123456789",
}
_PLACE = re.compile(r"<([ahudsbl])(\d+)>")


def drawn(form: str, seed: int = 1) -> str:
    """Replace ``<a20>`` in ``form`` with 20 letters and digits, and so on; see ``rules.toml``."""
    random = Random(f"{form}{seed}")

    def draw(place: re.Match[str]) -> str:
        length = int(place[2])
        # Real ones of such lengths always have a capital and a digit.
        begin = "Q7" if place[1] in "asb" and length > 2 else "7a" if place[1] in "hl" and length > 7 else ""
        return begin + "".join(random.choice(_SETS[place[1]]) for _ in range(length - len(begin)))

    return _PLACE.sub(draw, form)


def matching(pattern: re.Pattern[str], seed: int) -> str:
    """A text that ``pattern`` matches as a whole; open-ended repeats exceed their minimum by 24."""
    text = _draw(_parser.parse(pattern.pattern, pattern.flags), Random(f"{pattern.pattern}{seed}"), {})
    assert pattern.search(text), (pattern.pattern, text)
    return text


def _draw(items: Any, random: Random, groups: dict[int, str]) -> str:
    return "".join(_draw_one(kind, value, random, groups) for kind, value in items)


def _draw_one(kind: Any, value: Any, random: Random, groups: dict[int, str]) -> str:
    match kind:
        case _constants.LITERAL:
            return chr(value)
        case _constants.NOT_LITERAL:
            return random.choice([c for c in ALNUM if ord(c) != value])
        case _constants.ANY:
            return "."
        case _constants.IN:
            letters = [c for c in ALNUM if _is_in(c, value)]
            return random.choice(letters or [c for c in "-_.+/=: \"'\n" if _is_in(c, value)])
        case _constants.BRANCH:
            return _draw(random.choice(value[1]), random, groups)
        case _constants.SUBPATTERN:
            groups[value[0]] = _draw(value[3], random, groups)
            return groups[value[0]]
        case _constants.MAX_REPEAT | _constants.MIN_REPEAT:
            least, most, inner = value
            times = least + 24 if most is _constants.MAXREPEAT and least else min(least + 3, int(most))
            if len(inner) == 1 and inner[0] == (_constants.LITERAL, 32):
                times = max(least, min(int(most), 1))
            return "".join(_draw(inner, random, groups) for _ in range(times))
        case _constants.ASSERT | _constants.ASSERT_NOT | _constants.AT:
            return ""  # true at the beginning and the end of a text of its own
    raise AssertionError(f"no way to draw {kind}")


def _is_in(char: str, members: Any) -> bool:
    inside = False
    for kind, value in members:
        if kind is _constants.LITERAL:
            inside = inside or ord(char) == value
        elif kind is _constants.RANGE:
            inside = inside or value[0] <= ord(char) <= value[1]
        elif kind is _constants.CATEGORY:
            name = str(value)
            fits = char.isdigit() if "DIGIT" in name else char.isspace() if "SPACE" in name else char.isalnum()
            inside = inside or fits != ("NOT" in name)
    return inside != (members[0][0] is _constants.NEGATE)
