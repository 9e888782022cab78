"""What a person or a model said, before redaction. What is stored is redacted; what acts uses what was said.

The words that redaction replaces are in memory only. A sidecar that starts later does not know them. Then the act
is refused, because an agent that gets ``[redacted]`` for a password does the wrong work.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Sequence
from typing import Any, Final

from sidecar.background.hosts.host import HostError
from sidecar.background.messages.wording import quoted

KEPT: Final = 500
"""How many prompts and answers are kept; the oldest are dropped first."""


class Said:
    """The words of one sidecar. ``clean`` redacts a value; ``key`` returns the secret for the digests."""

    def __init__(self, clean: Callable[[Any], Any], key: Callable[[], str]) -> None:
        self.clean, self._key = clean, key
        self._words: dict[str, dict[str, str]] = {}

    def redacts(self, values: Any) -> bool:
        return bool(self.clean(values) != values)

    def keep(self, name: str, words: Sequence[str]) -> tuple[list[str], str]:
        """Remember the ``words`` of the field ``name``.

        Returns the redacted words, and a keyed digest of the words that tells them from others that are redacted to
        the same text. The digest is empty if nothing was redacted.
        """
        stored = [str(self.clean({name: each})[name]) for each in words]
        if stored == list(words):
            return stored, ""
        text = "\0".join(words).encode("utf-8", "surrogatepass")
        digest = hmac.new(self._key().encode(), text, "sha256").hexdigest()[:24]
        self._words[digest] = dict(zip(stored, words, strict=True))
        while len(self._words) > KEPT:
            del self._words[next(iter(self._words))]
        return stored, digest

    def restore(self, digest: str, text: str) -> str:
        """A stored text as it was said. Without a ``digest``, it is what was said.

        Raises:
            HostError: a sidecar that has ended knew the words.
        """
        words = self._words.get(digest, {})
        if digest and text not in words:
            reason = "it holds what the log redacts, and the sidecar that knew the words has ended; give it again"
            raise HostError(reason, permanent=True)
        return words[text] if digest else text

    def in_message(self, digest: str, text: str) -> str:
        """A message of ours that quotes stored words; they are shown as they were said, if that is known."""
        for redacted, said in self._words.get(digest, {}).items():
            text = text.replace(quoted(redacted), quoted(said))
        return text
