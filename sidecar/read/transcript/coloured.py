"""Colours code by classes: ``k`` for keywords, ``s`` for strings, ``c`` for comments and ``n`` for numbers. Pure.

The highlighter is not a parser. It leaves unknown words plain, and writes each character once, in order.
No expression goes back over what it read, so the time grows with the length only.
"""

from __future__ import annotations

import re
from functools import cache
from html import escape
from typing import Final, NamedTuple

MOST: Final = 200_000
"""Longer code stays plain."""

_QUOTED: Final = r'"(?:\\.|[^"\\\n])*+"?'
_SINGLE: Final = r"'(?:\\.|[^'\\\n])*+'?"
_CHARACTER: Final = r"'(?:\\.[^'\n]{0,8}|[^'\\\n])'"
_TICKED: Final = r"`(?:\\.|[^`\\])*+`?"
_TRIPLE: Final = r'"""(?:.*?"""|.*+)|' + r"'''(?:.*?'''|.*+)"
_BLOCK: Final = r"/\*(?:.*?\*/|.*+)|//[^\n]*+"
_HASH: Final = r"(?<![^\s;(\[{])\#[^\n]*+"
_DASHES: Final = r"--[^\n]*+"
_NUMBER: Final = r"(?<![\w.])(?:0[xXbBoO][\da-fA-F_]++|\d[\d_]*+(?:\.\d[\d_]*+)?+(?:[eE][+-]?\d++)?+)"
_WORD: Final = r"[A-Za-z_$@][\w$]*+"


class _Language(NamedTuple):
    comments: str
    strings: str
    keywords: str


_C_WORDS: Final = (
    "break case class const continue default do else enum extends false for if implements import in interface new null "
    "private protected public return static super switch this throw try catch finally true void while"
)
_SCRIPT: Final = _Language(
    _BLOCK,
    f"{_QUOTED}|{_SINGLE}|{_TICKED}",
    f"{_C_WORDS} abstract any as async await boolean debugger declare delete export from function get instanceof keyof "
    "let namespace never number of readonly set string type typeof undefined unknown var yield",
)
_C: Final = _Language(
    _BLOCK,
    f"{_QUOTED}|{_CHARACTER}",
    f"{_C_WORDS} abstract auto bool boolean byte char constexpr decimal delete double explicit extern final float fun "
    "goto inline int internal is let long namespace noexcept nullptr object operator override package record sealed "
    "short signed sizeof string struct template throws typedef typename union unsigned using val var virtual volatile",
)
_GO: Final = _Language(
    _BLOCK,
    f"{_QUOTED}|{_CHARACTER}|{_TICKED}",
    "any bool break byte case chan const continue default defer else error fallthrough false float64 for func go goto "
    "if import int int64 interface map nil package range return rune select string struct switch true type uint var",
)
_RUST: Final = _Language(
    _BLOCK,
    f"{_QUOTED}|{_CHARACTER}",
    "Err None Ok Self Some as async await bool break const continue crate dyn else enum extern false fn for i32 i64 if "
    "impl in let loop match mod move mut pub ref return self static str struct super trait true type u32 u64 u8 unsafe "
    "use usize where while",
)
_PYTHON: Final = _Language(
    r"\#[^\n]*+",
    f"{_TRIPLE}|{_QUOTED}|{_SINGLE}",
    "False None True and as assert async await break case class continue def del elif else except finally for from "
    "global if import in is lambda match nonlocal not or pass raise return self try while with yield",
)
_RUBY: Final = _Language(
    _HASH,
    f"{_QUOTED}|{_SINGLE}",
    "alias and begin break case class def defined do else elsif end ensure false fn for if in module next nil not or "
    "raise redo require rescue retry return self super then true undef unless until when while yield",
)
_SHELL: Final = _Language(
    _HASH,
    f"{_QUOTED}|'[^']*+'?",
    "case cd do done echo elif else esac exit export fi for function if in local return set shift source sudo then "
    "trap unset until while ADD CMD COPY ENTRYPOINT ENV EXPOSE FROM RUN WORKDIR",
)
_DATA: Final = _Language(_HASH, f"{_TRIPLE}|{_QUOTED}|{_SINGLE}", "false no null off on true yes")
_JSON: Final = _Language(_BLOCK, _QUOTED, "false null true")
_STYLES: Final = _Language(
    r"/\*(?:.*?\*/|.*+)", f"{_QUOTED}|{_SINGLE}", "@import @keyframes @media @supports auto none"
)
_MARKED: Final = _Language(r"<!--(?:.*?-->|.*+)", f"{_QUOTED}|(?<==){_SINGLE}", "")
_SQL: Final = _Language(
    rf"{_DASHES}|/\*(?:.*?\*/|.*+)",
    f"{_QUOTED}|'[^']*+'?",
    "add all alter and as asc begin between by case check column commit constraint create cross default delete desc "
    "distinct drop else end exists explain foreign from full group having if in index inner insert int integer into is "
    "join key left like limit not null offset on or order outer primary references returning right rollback select set "
    "table text then union unique update using values varchar view when where with",
)
_LUA: Final = _Language(
    _DASHES,
    f"{_QUOTED}|{_SINGLE}",
    "and break do else elseif end false for function if in local nil not or repeat return then true until while",
)

_NAMES: Final = {
    "js jsx mjs cjs javascript ts tsx mts typescript vue svelte php dart": _SCRIPT,
    "c h cc cpp cxx hpp c++ cs csharp java kotlin kt scala swift groovy proto": _C,
    "go golang": _GO,
    "rs rust": _RUST,
    "py python python3 py3 pyi": _PYTHON,
    "rb ruby elixir ex exs perl pl r": _RUBY,
    "sh bash zsh shell console dockerfile docker make makefile": _SHELL,
    "yaml yml toml ini cfg conf properties": _DATA,
    "json jsonc json5": _JSON,
    "css scss less": _STYLES,
    "html xml svg xhtml": _MARKED,
    "sql sqlite postgresql mysql": _SQL,
    "lua": _LUA,
}
_LANGUAGES: Final = {name: language for names, language in _NAMES.items() for name in names.split()}


@cache
def _compiled(language: _Language) -> tuple[re.Pattern[str], frozenset[str]]:
    pattern = rf"(?P<c>{language.comments})|(?P<s>{language.strings})|(?P<n>{_NUMBER})|(?P<k>{_WORD})"
    return re.compile(pattern, re.DOTALL), frozenset(language.keywords.split())


def coloured(code: str, language: str) -> str:
    """``code`` as HTML, escaped. A language that is not known, or none, gives plain text."""
    known = _LANGUAGES.get(language.lower())
    if known is None or len(code) > MOST:
        return escape(code)
    pattern, keywords = _compiled(known)
    made, at = [], 0
    for found in pattern.finditer(code):
        kind, text = found.lastgroup, found[0]
        if kind == "k" and (text.lower() if known is _SQL else text) not in keywords:
            continue
        made.append(f'{escape(code[at : found.start()])}<span class="{kind}">{escape(text)}</span>')
        at = found.end()
    return "".join(made) + escape(code[at:])
