"""One text of a query for two databases: SQLite's, as Postgres takes it. Pure.

The queries keep to what both know. Here is all that differs: how values are named, words that Postgres reserves, a
limit of -1, and lists of values.
"""

from __future__ import annotations

import re
from functools import cache
from typing import Final

_TEXTS: Final = ("streams", "names")
"""Names of parameters that are lists of texts; all other lists have numbers."""

_RULES: Final = tuple(
    (re.compile(pattern), new)
    for pattern, new in (
        # Keywords are written in capitals, names of columns are not.
        (r'(?<![":])\b(end|offset)\b(?!")', r'"\1"'),
        (r"%", "%%"),
        (r"\?", "%s"),
        (r":(\w+)", r"%(\1)s"),
        (rf"json_each\((%\((?:{'|'.join(_TEXTS)})\)s)\)", r"texts_of(\1)"),
        (r"json_each\((%(?:\(\w+\))?s)\)", r"ints_of(\1)"),
        (r"\bLIMIT (%(?:\(\w+\))?s)", r"LIMIT nullif(\1::bigint, -1)"),
        (r"\bmain\.", ""),
        (r"\bifnull\(", "coalesce("),
        (r"\b(?:NOT INDEXED|INDEXED BY \w+)", ""),
    )
)


@cache
def for_postgres(text: str) -> str:
    """The text for psycopg: values are ``%s`` or ``%(name)s``."""
    for pattern, new in _RULES:
        text = pattern.sub(new, text)
    return text
