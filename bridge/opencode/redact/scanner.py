"""Finds secrets in text. Pure.

One pass of an Aho-Corasick automaton finds every keyword of every rule, and a
rule is tried only where one of its keywords occurs. So text without secrets
costs one pass, regardless of the number of rules.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from ahocorasick_rs import BytesAhoCorasick, Implementation

from bridge.opencode.redact.rules import Rule


@dataclass(frozen=True, slots=True, order=True)
class Span:
    """Bytes ``start`` to ``end`` are a secret; ``rank`` is the index of its rule."""

    start: int
    rank: int
    end: int


class Scanner:
    """Applies the rules to text.

    A text that is a full match of a pattern of ``allow`` is not a secret. ``marks`` are further words, in lower case,
    which ``finds`` searches for in the same pass. ``placeholders`` matches the replacements of earlier secrets; nothing
    that overlaps a placeholder is a secret.

    Raises:
        re.error: a pattern of ``allow`` is not a regular expression.
    """

    def __init__(
        self,
        rules: Iterable[Rule],
        placeholders: re.Pattern[bytes],
        *,
        allow: Iterable[str] = (),
        marks: Iterable[str] = (),
    ) -> None:
        self.rules = tuple(rules)
        self._placeholders = placeholders
        self._allow = [re.compile(pattern.encode()) for pattern in allow]
        tried: dict[str, list[tuple[int, Rule, bytes]]] = {mark: [] for mark in marks}
        self._marks = len(tried)
        for rank, rule in enumerate(self.rules):
            for keyword in rule.keywords:
                exact = b"" if keyword == keyword.lower() else keyword.encode()
                tried.setdefault(keyword.lower(), []).append((rank, rule, exact))
        self._tried = list(tried.values())
        words = [keyword.encode() for keyword in tried]
        self._words = BytesAhoCorasick(words, implementation=Implementation.DFA).find_matches_as_indexes
        self._shaped = [(rank, rule, rule.shape_pattern) for rank, rule in enumerate(self.rules) if rule.shape]

    def finds(self, text: bytes, is_marked: Callable[[bytes, int, int], bool]) -> bool:
        """True if ``text`` has a secret, or a mark for which ``is_marked(text, start, end)`` is true."""
        hits = self._words(text.lower(), overlapping=True)
        for number, at, end in hits:
            if number < self._marks and is_marked(text, at, end):
                return True
        return next(self._found(text, hits), None) is not None

    def spans(self, text: bytes) -> list[Span]:
        """The secrets of ``text``, in order. Overlapping secrets are merged and named after the first one."""
        merged: list[Span] = []
        for span in sorted(self._found(text, self._words(text.lower(), overlapping=True))):
            if merged and span.start < merged[-1].end:
                last = merged[-1]
                merged[-1] = Span(last.start, last.rank, max(last.end, span.end))
            else:
                merged.append(span)
        return merged

    def _found(self, text: bytes, hits: Iterable[tuple[int, int, int]]) -> Iterator[Span]:
        taken: list[tuple[int, int]] | None = None
        done: dict[int, int] = {}
        ends: set[int] = set()
        for rank, rule, at in self._places(text, hits):
            if at < done.get(rank, 0):
                # Skip places within the rule's last match, because testing each of many repeated beginnings would take
                # quadratic time.
                continue
            span = rule.secret_at(text, at, ends)
            if span is None:
                continue
            done[rank] = span[1]
            if taken is None:
                taken = [found.span() for found in self._placeholders.finditer(text)]
            after = bisect_right(taken, span[0], key=lambda place: place[1])
            if after < len(taken) and taken[after][0] < span[1]:
                continue
            if not any(pattern.fullmatch(text, *span) for pattern in self._allow):
                ends.add(span[1])
                yield Span(span[0], rank, span[1])

    def _places(self, text: bytes, hits: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, Rule, int]]:
        for number, at, end in hits:
            for rank, rule, exact in self._tried[number]:
                if not exact or text[at:end] == exact:
                    yield rank, rule, at
        for rank, rule, shape in self._shaped:
            for found in shape.finditer(text):
                yield rank, rule, found.start()
