"""Secrets are replaced before anything is written. Pure.

A pattern is tried only where one of its literal hints occurs, so text without
secrets costs a few substring searches. What is found becomes
``[redacted:name]``; values under secret key names are replaced whole.

Source: RELIABILITY, "Security"; FEATURES U15.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

import orjson

from streams.hashing import MAX_DEPTH

MAX_STRING = 8 * 1024 * 1024
"""Characters of one string that are kept whole; a longer one becomes digest, size and beginning."""

KEPT_OF_LONG = 64 * 1024

_BEFORE = (
    r"(?<![A-Za-z0-9]{0})",
    # What ends in a letter or digit and still ends a word, in JSON within text, URLs and coloured output:
    r"(?<=\\[bfnrt]{0})",
    r"(?<=\\u[0-9A-Fa-f]{{4}}{0})",
    r"(?<=%[0-9A-Fa-f]{{2}}{0})",
    r"(?<=[\[;][0-9]m{0})",
    r"(?<=[\[;][0-9][0-9]m{0})",
)


def _word(beginning: str) -> str:
    """``beginning`` (a pattern of fixed width) at the beginning of a word; it comes first, since ``re`` looks
    for a leading literal many times faster than for a place."""
    return f"{beginning}(?:{'|'.join(before.format(beginning) for before in _BEFORE)})"


_BUILT_IN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "private-key",
        ("PRIVATE KEY",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----[\s\S]*?"
        r"(?:-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----|\Z)",
    ),
    ("anthropic-key", ("sk-ant-",), r"sk-ant-[A-Za-z0-9_-]{20,}"),
    (
        "openai-key",
        ("sk-",),
        # Ordinary names begin like this too (sk-learn, sk-fading-circle): a key has digits, and capitals or a long run.
        _word("sk-") + r"(?!ant-)(?=[\w-]{0,200}[0-9])(?=[\w-]{0,200}(?:[A-Z]|[a-z0-9]{16}))[A-Za-z0-9_-]{20,}",
    ),
    ("github-token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), _word("gh[pousr]_") + r"[A-Za-z0-9]{36,}"),
    ("github-token", ("github_pat_",), r"github_pat_[A-Za-z0-9_]{40,}"),
    ("gitlab-token", ("glpat-",), r"glpat-[A-Za-z0-9_-]{20,}"),
    ("aws-key-id", ("AKIA", "ASIA"), _word("A[KS]IA") + r"[A-Z0-9]{16}(?![A-Za-z0-9])"),
    (
        "aws-secret",
        ("aws_secret", "AWS_SECRET", "ecretAccessKey"),
        r"(?i)(?:aws_secret_access_key|SecretAccessKey)\\?['\"]?\s*[:=]\s*\\?['\"]?[A-Za-z0-9/+=]{40}",
    ),
    ("google-key", ("AIza",), _word("AIza") + r"[A-Za-z0-9_-]{35}"),
    ("google-oauth", ("ya29.",), r"ya29\.[A-Za-z0-9_-]{20,}"),
    (
        "slack-token",
        ("xoxb-", "xoxa-", "xoxp-", "xoxr-", "xoxs-", "xapp-"),
        _word("x(?:ox[abprs]|app)-") + r"[A-Za-z0-9-]{10,}",
    ),
    ("slack-webhook", ("hooks.slack.com",), r"hooks\.slack\.com/services/[A-Za-z0-9/_-]{20,}"),
    ("stripe-key", ("sk_live_", "rk_live_", "sk_test_"), _word("[sr]k_(?:live|test)_") + r"[A-Za-z0-9]{16,}"),
    ("stripe-key", ("whsec_",), _word("whsec_") + r"[A-Za-z0-9]{16,}"),
    ("huggingface-token", ("hf_",), _word("hf_") + r"[A-Za-z0-9]{30,}"),
    ("npm-token", ("npm_",), _word("npm_") + r"[A-Za-z0-9]{36}"),
    ("pypi-token", ("pypi-",), _word("pypi-") + r"[A-Za-z0-9_-]{50,}"),
    ("sendgrid-key", ("SG.",), _word(r"SG\.") + r"[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("jwt", ("eyJ",), r"eyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    # "bearer responsibilities" and "Basic internationalisation" are no credentials.
    ("bearer-token", ("earer ",), r"(?<=[Bb]earer )(?=[\w.~+/-]{0,200}[0-9])[A-Za-z0-9._~+/-]{16,}=*"),
    ("basic-auth", ("asic ",), r"(?<=[Bb]asic )(?=[\w+/]{1,200}[A-Z0-9+/=])[A-Za-z0-9+/]{16,}=*"),
    (
        # NAME=value and name: "value" in text, as in an .env file: only what has a digit, since words are no secrets.
        "secret",
        (),
        r"(?P<keep>(?i:passw(?:or)?d|secret|api_?key|access_?key|private_?key|(?:auth|access|refresh|api)_?token)"
        r"\\?[\"']?[ \t]{0,3}[:=][ \t]{0,3}\\?[\"']?)(?!\[redacted:)"
        r"(?=[^\s\"'\\,;&()<>{}$]{0,200}[0-9])[^\s\"'\\,;&()<>{}$]{8,}",
    ),
    ("url-password", ("://",), r"(?<=://)(?!\[redacted:)[^\s/:@\"']{0,80}:[^\s/@\"']{3,}(?=@)"),
)

_SECRET_KEYS = frozenset(
    [
        "authorization",
        "proxyauthorization",
        "passwd",
        "secret",
        "idtoken",
        "privatekey",
        "setcookie",
        "cookie",
    ]
)
"""Without case, ``-`` and ``_``, so that ``accessToken``, ``access_token`` and ``ACCESS-TOKEN`` are one."""

_SECRET_ENDINGS = ("apikey", "accesskey", "accesstoken", "refreshtoken", "authtoken", "clientsecret", "password")
"""Ends of secret key names, so that ``OPENAI_API_KEY`` and ``x-api-key`` are found."""


class Redactor:
    """Replaces secrets in JSON values.

    ``extra`` maps a name to a regular expression, tried on every string;
    ``keys`` are further key names, compared without case, ``-`` and ``_``.

    Raises:
        re.error: an extra pattern is no regular expression.
    """

    def __init__(
        self, extra: Mapping[str, str] | None = None, keys: Iterable[str] = (), *, enabled: bool = True
    ) -> None:
        self._built_in = [
            (r"\g<keep>" + _label(name) if "?P<keep>" in pattern else _label(name), hints, re.compile(pattern))
            for name, hints, pattern in _BUILT_IN
        ]
        self._extra = [(_label(name), re.compile(pattern)) for name, pattern in (extra or {}).items()]
        own_keys = {_plain(key) for key in keys}
        self._has_own_keys = bool(own_keys)
        self._keys = _SECRET_KEYS | own_keys
        self._enabled = enabled
        self.redactions = 0
        self.shortened = 0
        """Overlong strings and values nested deeper than any event keeps."""

    def clean(self, value: Any) -> Any:
        """``value`` without secrets and without overlong strings; the same object when nothing changed."""
        return value if self._is_plain(value) else self._clean(value, 0)

    def _is_plain(self, value: Any) -> bool:
        """Whether nothing of ``value`` can need a change: one look at its JSON text instead of at each string.

        Most payloads are; looking at each string costs forty times as much.
        """
        if self._extra or self._has_own_keys:
            return False
        try:
            text = orjson.dumps(value)
        except (TypeError, RecursionError):
            return False
        if len(text) > MAX_STRING:
            return False
        if not self._enabled:
            return True
        lower = text.lower()
        return not (
            any(hint in text for hint in _HINTS)
            or any(end in lower for end in _SECRET_KEY_ENDS)
            or any(word in lower for word in _SECRET_WORD_BYTES)
        )

    def _clean(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= MAX_DEPTH:
            # The log would cut it here as well; readers take more than Python can descend.
            self.shortened += 1
            return {"$too_deep": type(value).__name__}
        if isinstance(value, dict):
            changed = {}
            for key, old in value.items():
                new = self._under_key(key, old, depth + 1)
                if new is not old:
                    changed[key] = new
            return {**value, **changed} if changed else value
        items = [self._clean(item, depth + 1) for item in value]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value

    def _under_key(self, key: str, value: Any, depth: int) -> Any:
        if self._enabled and isinstance(value, str | list) and self._is_secret(key):
            if isinstance(value, str):
                return self._whole(value)
            if all(isinstance(item, str) for item in value):
                items = [self._whole(item) for item in value]
                return items if items != value else value
        return self._clean(value, depth)

    def _is_secret(self, key: str) -> bool:
        plain = _plain(key)
        return plain in self._keys or plain.endswith(_SECRET_ENDINGS)

    def _whole(self, text: str) -> str:
        if not text or _REDACTED.fullmatch(text):
            return text
        self.redactions += 1
        return "[redacted:value]"

    def _text(self, text: str) -> Any:
        if self._enabled:
            if len(text) >= _SHORTEST:
                lower = text.lower()
                named = any(word in lower for word in _SECRET_WORDS)
                for label, hints, pattern in self._built_in:
                    if any(hint in text for hint in hints) or (named and not hints):
                        text, count = pattern.subn(label, text)
                        self.redactions += count
            for label, pattern in self._extra:
                text, count = pattern.subn(label, text)
                self.redactions += count
        if len(text) > MAX_STRING:
            self.shortened += 1
            data = text.encode("utf-8", "replace")
            return {"$sha256": sha256(data).hexdigest(), "bytes": len(data), "beginning": text[:KEPT_OF_LONG]}
        return text


_SECRET_WORDS = ("passw", "secret", "key", "token")
"""One of these, in any case, is in every name that the pattern without hints of its own looks for."""

_SECRET_WORD_BYTES = tuple(
    # Without "tokens", which every answer of a model counts.
    word.encode()
    for word in (
        "passw",
        "secret",
        "apikey",
        "api_key",
        "access_key",
        "accesskey",
        "private_key",
        "privatekey",
        "_token",
        "token=",
        "token:",
    )
)

_HINTS = tuple({hint.encode() for _, hints, _ in _BUILT_IN for hint in hints})

_SECRET_KEY_ENDS = tuple(
    f'{end}":'.encode() for end in ("authorization", "passwd", "password", "secret", "token", "key", "cookie")
)
"""How every secret key name ends in JSON text, in lower case; a few others do too, and only cost the longer look."""

_SHORTEST = 8
"""No built-in pattern matches fewer characters."""

_REDACTED = re.compile(r"\[redacted:[^\]]*\]")


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")


def _label(name: str) -> str:
    """The replacement as ``re`` wants it: a backslash in a user's name is no group."""
    return f"[redacted:{name}]".replace("\\", r"\\")
