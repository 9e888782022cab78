"""The rules that describe secrets: read from ``rules.toml``, compiled when first needed. Pure.

A rule is tried only where one of its keywords occurs. All patterns work on bytes. Patterns also match text in JSON
strings nested in JSON strings, because a tool's output often has this form: in a pattern, ``{Q}`` stands for a quote
and ``{S}`` for spaces, at any depth of escaping; ``{IS}`` stands for the text between a name and its value.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.resources import files
from math import log2

_MACROS = {
    "{Q}": r"""(?:\\{0,15}["'])""",
    "{S}": r"(?:[ \t]|\\{1,15}t){0,8}",
    # {IS} is what separates a name from its value, as in: name"] : "value, name => 'value', NAME=value
    "{IS}": r"""(?:\\{0,15}["'])?\]?(?:[ \t]|\\{1,15}t){0,8}(?:=>|:=|::|[=:](?![=:]))"""
    r"""(?:[ \t]|\\{1,15}t){0,8}(?:\\{0,15}["'])?""",
}

# _NAMES matches the words that mark the name of a secret, and _TAIL matches how such a name may continue.
_BEGIN = r"(?:(?<![A-Za-z])|(?<=\\[nrt]))"
_NAMES = (
    r"(?:(?i:passw(?:or)?d|passphrase|passcode|secret|credentials?|api[_-]?(?:key|token)"
    r"|(?:access|private|auth|signing|encryption|master|account)[_-]?key|(?:auth|access|refresh)[_-]?token"
    r"|connection[_-]?string|{BEGIN}(?:pass|pwd|auth|token))|(?<=[a-z])(?:Pass|Pwd|Token)|{BEGIN}PAT|(?i:(?:git(?:hub|lab)?|gh|azure|devops|bitbucket)[_-]?pat)"
    r"|(?<=_)KEY)"
).replace("{BEGIN}", _BEGIN)
_TAIL = (
    r"(?:[_-]?(?i:access|key|base|value|string|prod(?:uction)?|dev|test|staging|live|old|new|primary|secondary"
    r"|admin|[0-9]{1,3})(?![a-z])){0,3}"
)
# _PLAIN matches one element of an unquoted value, and punctuation only if more of the value follows.
_PLAIN = (
    r"""(?:[^\s"'\\,;&)\]}|`]|[,&](?![\s"'\\]|\Z|[\w.-]{1,40}=)|[;)\]}|`](?![\s"'\\,;)\]}]|\Z)"""
    r"""|\\{0,15}["'](?=[A-Za-z0-9!@#$%^&*(])|\\(?![nrtu"'\\]))"""
)
SECRET_NAME = re.compile(rf"(?<!next)(?<!next_)(?<!page)(?<!page_)(?:{_NAMES}){_TAIL}\Z")
"""Pattern to search for in a name; it matches if the name's value is a secret."""

_MACROS |= {
    "{BEGIN}": _BEGIN,
    "{NAMES}": _NAMES,
    "{TAIL}": _TAIL,
    "{PLAIN}": _PLAIN,
    # {VALUE} is what a shell or a query reads as one value: all in quotes, or one word.
    "{VALUE}": r"""(?:(?P<q>\\{0,15}["'])(?![$<{%]|\[redacted|\.\.\.)"""
    r"""(?P<quoted>(?:[^\\\n"']|\\++(?!["'\\nrt])|(?!(?P=q))\\*+["']){1,512})(?=(?P=q)|\Z)"""
    r"""|(?![$<{%`\[-]|\.\.\.)(?P<plain>[^\s"'\\|;&`]{1,256}))""",
    "{ASSIGN}": r"""(?:\\{0,15}["'])?\]?(?:[ \t]|\\{1,15}t){0,8}(?:=>|:=|::|[=:](?![=:]))(?:[ \t]|\\{1,15}t){0,8}""",
}

_BEGINNING = (
    r"(?<![A-Za-z0-9])",
    # A word may begin after these sequences, which occur in nested JSON, URLs and coloured output.
    r"(?<=\\[bfnrt])",
    r"(?<=\\u[0-9A-Fa-f]{4})",
    r"(?<=%[0-9A-Fa-f]{2})",
    r"(?<=[\[;][0-9]m)",
    r"(?<=[\[;][0-9][0-9]m)",
)
_WORD_BEGINS = re.compile("|".join(_BEGINNING).encode())
_IN_BASE64 = re.compile(rb"(?<=[+/])")


@dataclass(frozen=True)
class Rule:
    """One kind of secret.

    Every match begins with one of the ``keywords``, or with text that the pattern ``before`` matches, followed by a
    keyword. Keywords in lower case match both upper and lower case. A secret without a fixed word has a ``shape``
    instead: a pattern for a part of the secret. For speed, this pattern must begin with a literal. ``regex`` matches
    from the beginning of the secret. If one of its groups matched, the text of that group is replaced, otherwise the
    whole match; at most one group may match. ``word`` requires
    that the match begins a word, ``base64 = false`` requires that the match is not inside base64 text, and ``entropy``
    requires that the secret has at least that many bits per byte.
    """

    id: str
    description: str
    regex: str
    keywords: tuple[str, ...] = ()
    before: str = ""
    shape: str = ""
    word: bool = True
    base64: bool = True
    entropy: float = 0.0
    examples: tuple[str, ...] = ()
    ordinary: tuple[str, ...] = ()

    def secret_at(self, text: bytes, at: int, ends: Container[int] = ()) -> tuple[int, int] | None:
        """Return start and end of the secret whose keyword begins at ``at``; ``None`` if there is none.

        ``ends`` are the ends of other secrets, after which a word may begin, too.
        """
        start = at
        if self.before:
            found = self._head.search(text, max(0, at - MAX_BEFORE), at)
            if found is None:
                return None
            start = found.start()
        if self.word and start not in ends and not _WORD_BEGINS.match(text, start):
            return None
        if not self.base64 and _IN_BASE64.match(text, start):
            return None
        match = self.pattern.match(text, start)
        if match is None:
            return None
        span = match.span(match.lastindex or 0)
        if self.entropy and entropy(text[span[0] : span[1]]) < self.entropy:
            return None
        return span

    @cached_property
    def pattern(self) -> re.Pattern[bytes]:
        return compiled(self.regex)

    @cached_property
    def shape_pattern(self) -> re.Pattern[bytes]:
        return compiled(self.shape)

    @cached_property
    def _head(self) -> re.Pattern[bytes]:
        return compiled(f"(?:{self.before})\\Z")


MAX_BEFORE = 64
"""Maximum number of bytes that a ``before`` pattern may match."""


def compiled(regex: str) -> re.Pattern[bytes]:
    for name, meaning in _MACROS.items():
        regex = regex.replace(name, meaning)
    return re.compile(regex.encode())


def entropy(data: bytes) -> float:
    """Shannon entropy in bits per byte: 0 for one repeated byte, about 4 for hex, above 4.5 for long base64."""
    size = len(data)
    shares = [data.count(byte) / size for byte in set(data)]
    return -sum(share * log2(share) for share in shares)


@cache
def built_in() -> tuple[Rule, ...]:
    """All rules of ``rules.toml``. If two rules match at the same place, the secret is named after the earlier rule."""
    table = tomllib.loads(files(__package__).joinpath("rules.toml").read_text(encoding="utf-8"))
    return tuple(_rules(table["rule"]))


def _rules(entries: Iterable[dict[str, object]]) -> Iterator[Rule]:
    for entry in entries:
        lists = {key: tuple(value) for key, value in entry.items() if isinstance(value, list)}
        yield Rule(**{**entry, **lists})  # type: ignore[arg-type]


def rule_ids() -> tuple[str, ...]:
    return tuple(rule.id for rule in built_in())
