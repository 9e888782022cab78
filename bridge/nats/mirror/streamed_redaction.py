"""Redacts text that arrives in pieces. A word is released only once it is complete. Pure.

A secret is one word or a quoted text, shortly after its name. So each word waits until whitespace follows, and
is then redacted together with the lines before it. Each time a word is released, all of the text so far is redacted
again and compared with the previous result, so a secret of several words or lines, such as a private key, does not
leak, either.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

MAX_WORD: Final = 8 * 1024
"""Maximum length of a waiting word, in characters. A longer word is replaced, because the end of a secret in it would
be unknown."""

MAX_CONTEXT: Final = 16 * 1024
SHORT_CONTEXT: Final = 1024

_LAST_SPACE: Final = re.compile(r"\s(?=\S*\Z)")
_END_OF_WORD: Final = re.compile(r"\A\S+")
_TOO_LONG: Final = "[redacted:long-word]"
_ENDS_HIDDEN: Final = re.compile(r"\[redacted:[^\]\n]{1,64}\]\s*\Z")


class PiecedText:
    """One text that arrives in pieces; ``clean`` is the function that redacts a text."""

    __slots__ = ("_clean", "_said", "_sent", "_too_long", "_word")

    def __init__(self, clean: Callable[[Any], Any]) -> None:
        self._clean = clean
        self._said = self._sent = self._word = ""
        self._too_long = False

    def add(self, piece: str) -> str:
        """Add a piece; return the redacted text that is ready."""
        self._word += piece
        space = _LAST_SPACE.search(self._word)
        if space is not None:
            whole, self._word = self._word[: space.end()], self._word[space.end() :]
            if self._too_long:
                whole, self._too_long = _END_OF_WORD.sub("", whole), False
            return self._release(whole)
        if self._too_long:
            self._word = ""
        elif len(self._word) > MAX_WORD:
            self._word, self._too_long = "", True
            return self._release(f" {_TOO_LONG} ")
        return ""

    def end(self) -> str:
        """Return the remaining text, redacted. Call it when the text ends or pauses."""
        word, self._word = self._word, ""
        return "" if self._too_long or not word else self._release(word)

    def _release(self, text: str) -> str:
        self._said += text
        whole = str(self._clean(self._said))
        same = len(self._sent)
        if not whole.startswith(self._sent):
            # Text that was already released became part of a secret, so continue where the old and new texts differ.
            pairs = zip(whole, self._sent, strict=False)
            same = next((at for at, (new, old) in enumerate(pairs) if new != old), min(len(whole), len(self._sent)))
        leaving, self._sent = whole[same:], whole
        self._forget()
        return leaving

    def _forget(self) -> None:
        if len(self._said) <= SHORT_CONTEXT:
            return
        if len(self._said) <= MAX_CONTEXT and _ENDS_HIDDEN.search(self._sent):
            return
        line = self._said.find("\n", len(self._said) - SHORT_CONTEXT) + 1
        if line or len(self._said) > MAX_CONTEXT:
            self._said = self._said[line or len(self._said) - SHORT_CONTEXT :]
            self._sent = str(self._clean(self._said))
