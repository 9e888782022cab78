"""Subjects and patterns: the address of a message on a bus, and which messages a subscriber receives. Pure.

A subject is tokens joined by dots. In a pattern the token ``*`` stands for any
one token, and ``>``, allowed only at the end, stands for one or more. Nothing else is special,
and a ``*`` inside a longer token is refused rather than taken literally.
"""

from __future__ import annotations

import re
from functools import lru_cache
from hashlib import sha256
from typing import Final

MAX_SUBJECT: Final = 3000
"""Maximum length of a subject, in characters."""

ONE: Final = "*"

REST: Final = ">"

DEAD_LETTERS: Final = "dlq"
"""The first token of every dead letter's subject."""

_TOKEN = re.compile(r"[^\s\x00-\x1f\x7f-\x9f\ud800-\udfff.*>]+")


class SubjectError(ValueError):
    """A subject, pattern or token breaks the rules; ``text`` is that text, ``reason`` says what is wrong."""

    def __init__(self, text: str, reason: str) -> None:
        shown = ascii(text[:80])
        super().__init__(f"subject {shown if len(shown) <= 84 else f'{shown[:80]}...'}: {reason}")
        self.text, self.reason = text, reason


@lru_cache(maxsize=4096)
def check_subject(subject: str) -> str:
    """Return ``subject`` if a message can be published under it.

    Raises:
        SubjectError: the subject is empty or too long, has an empty token, a wildcard, white space or a control
            character.
    """
    for token in _tokens(subject):
        _check_token(subject, token)
    return subject


@lru_cache(maxsize=1024)
def check_pattern(pattern: str) -> str:
    """Return ``pattern`` if it can be subscribed to; every subject is a pattern.

    Raises:
        SubjectError: the pattern breaks a rule for subjects, a wildcard is only part of a token, or ``>`` is not the
            last token.
    """
    tokens = _tokens(pattern)
    for at, token in enumerate(tokens):
        if token == REST and at < len(tokens) - 1:
            raise SubjectError(pattern, "`>` matches the rest of a subject, so it must be the last token")
        if token not in (ONE, REST):
            _check_token(pattern, token)
    return pattern


def matches(pattern: str, subject: str) -> bool:
    """True if ``pattern`` matches ``subject``. Both arguments must be well formed."""
    wanted, given = pattern.split("."), subject.split(".")
    if wanted[-1] == REST:
        wanted.pop()
        if len(given) <= len(wanted):
            return False
    elif len(given) != len(wanted):
        return False
    return all(token in (ONE, here) for token, here in zip(wanted, given, strict=False))


def overlap(one: str, other: str) -> bool:
    """True if some subject matches both patterns. The patterns of two consumers of a work queue must not overlap."""
    left, right = one.split("."), other.split(".")
    for mine, theirs in zip(left, right, strict=False):
        if REST in (mine, theirs):
            return True
        if mine != theirs and ONE not in (mine, theirs):
            return False
    return len(left) == len(right)


def covers(wide: str, narrow: str) -> bool:
    """True if ``wide`` matches every subject that ``narrow`` does."""
    left, right = wide.split("."), narrow.split(".")
    for at, mine in enumerate(left):
        if mine == REST:
            return len(right) > at
        if at >= len(right) or right[at] == REST:
            return False
        if mine != ONE and mine != right[at]:
            return False
    return len(left) == len(right)


def dead_letter_subject(durable: str, subject: str) -> str:
    """The subject for a message that ``durable`` could not handle: ``dlq.{durable}.{subject}``.

    The original subject stays readable after the name, so that ``dlq.*.cmd.>`` matches every dead command. If the
    result would be too long, only the original subject's first token and a digest are kept; a header of the dead letter
    has the full subject.

    Raises:
        SubjectError: ``durable`` is not one token, or ``subject`` is invalid.
    """
    _check_token(durable, durable)
    whole = f"{DEAD_LETTERS}.{durable}.{check_subject(subject)}"
    if len(whole.encode()) > MAX_SUBJECT:
        digest = sha256(subject.encode()).hexdigest()[:32]
        whole = f"{DEAD_LETTERS}.{durable}.{subject.partition('.')[0][:200]}.%~{digest}"
    return check_subject(whole)


def _tokens(text: str) -> list[str]:
    if not text:
        raise SubjectError(text, "it is empty")
    if len(text) > MAX_SUBJECT or len(text.encode("utf-8", "replace")) > MAX_SUBJECT:
        raise SubjectError(text, f"it is longer than {MAX_SUBJECT} bytes")
    return text.split(".")


def _check_token(text: str, token: str) -> None:
    if not token:
        raise SubjectError(text, "it has an empty token (two adjacent dots, or a dot at either end)")
    if _TOKEN.fullmatch(token) is not None:
        return
    if ONE in token or REST in token:
        raise SubjectError(text, "`*` and `>` are allowed only in patterns, as whole tokens; escape them in a name")
    raise SubjectError(text, "it contains white space, a control character, a dot or a lone surrogate; escape it")
