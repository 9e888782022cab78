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

MAX_STRING = 8 * 1024 * 1024
"""Characters of one string that are kept whole; a longer one becomes digest, size and beginning."""

KEPT_OF_LONG = 64 * 1024

_BUILT_IN: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "private-key",
        ("PRIVATE KEY-----",),
        r"-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|\Z)",
    ),
    ("anthropic-key", ("sk-ant-",), r"\bsk-ant-[A-Za-z0-9_-]{20,}"),
    ("openai-key", ("sk-",), r"\bsk-(?!ant-)(?:proj-|svcacct-|admin-|or-v1-)?[A-Za-z0-9_-]{20,}"),
    ("github-token", ("ghp_", "gho_", "ghu_", "ghs_", "ghr_"), r"\bgh[pousr]_[A-Za-z0-9]{36,}"),
    ("github-token", ("github_pat_",), r"\bgithub_pat_[A-Za-z0-9_]{40,}"),
    ("gitlab-token", ("glpat-",), r"\bglpat-[A-Za-z0-9_-]{20,}"),
    ("aws-key-id", ("AKIA", "ASIA"), r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    (
        "aws-secret",
        ("aws_secret", "AWS_SECRET", "SecretAccessKey"),
        r"(?i)(?:aws_secret_access_key|SecretAccessKey)['\"]?\s*[:=]\s*['\"]?[A-Za-z0-9/+=]{40}",
    ),
    ("google-key", ("AIza",), r"\bAIza[A-Za-z0-9_-]{35}"),
    ("google-oauth", ("ya29.",), r"\bya29\.[A-Za-z0-9_-]{20,}"),
    (
        "slack-token",
        ("xoxb-", "xoxa-", "xoxp-", "xoxr-", "xoxs-", "xapp-"),
        r"\b(?:xox[abprs]|xapp)-[A-Za-z0-9-]{10,}",
    ),
    ("slack-webhook", ("hooks.slack.com",), r"hooks\.slack\.com/services/[A-Za-z0-9/_-]{20,}"),
    (
        "stripe-key",
        ("sk_live_", "rk_live_", "sk_test_", "whsec_"),
        r"\b(?:[sr]k_(?:live|test)_|whsec_)[A-Za-z0-9]{16,}",
    ),
    ("huggingface-token", ("hf_",), r"\bhf_[A-Za-z0-9]{30,}"),
    ("npm-token", ("npm_",), r"\bnpm_[A-Za-z0-9]{36}"),
    ("pypi-token", ("pypi-",), r"\bpypi-[A-Za-z0-9_-]{50,}"),
    ("sendgrid-key", ("SG.",), r"\bSG\.[A-Za-z0-9_-]{16,}\.[A-Za-z0-9_-]{16,}"),
    ("jwt", ("eyJ",), r"\beyJ[A-Za-z0-9_-]{8,}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}"),
    ("bearer-token", ("earer ",), r"(?<=[Bb]earer )[A-Za-z0-9._~+/-]{16,}=*"),
    ("basic-auth", ("asic ",), r"(?<=[Bb]asic )[A-Za-z0-9+/]{16,}=*"),
    ("url-password", ("://",), r"(?<=://)[^\s/:@\"']{1,80}:[^\s/@\"']{3,}(?=@)"),
)

_SECRET_KEYS = frozenset(
    [
        "authorization",
        "proxy-authorization",
        "x-api-key",
        "api-key",
        "api_key",
        "apikey",
        "password",
        "passwd",
        "secret",
        "client_secret",
        "access_token",
        "refresh_token",
        "id_token",
        "private_key",
        "secret_access_key",
        "set-cookie",
        "cookie",
    ]
)


class Redactor:
    """Replaces secrets in JSON values.

    ``extra`` maps a name to a regular expression, tried on every string;
    ``keys`` are further key names, compared without case.

    Raises:
        re.error: an extra pattern is no regular expression.
    """

    def __init__(
        self, extra: Mapping[str, str] | None = None, keys: Iterable[str] = (), *, enabled: bool = True
    ) -> None:
        self._patterns = [(name, hints, re.compile(pattern)) for name, hints, pattern in _BUILT_IN]
        self._patterns += [(name, (), re.compile(pattern)) for name, pattern in (extra or {}).items()]
        self._keys = _SECRET_KEYS | {key.lower() for key in keys}
        self._enabled = enabled
        self.redactions = 0
        self.shortened = 0

    def clean(self, value: Any) -> Any:
        """``value`` without secrets and without overlong strings; the same object when nothing changed."""
        if isinstance(value, str):
            return self._text(value)
        if isinstance(value, dict):
            changed = {}
            for key, old in value.items():
                new = self._under_key(key, old)
                if new is not old:
                    changed[key] = new
            return {**value, **changed} if changed else value
        if isinstance(value, list):
            items = [self.clean(item) for item in value]
            return items if any(new is not old for new, old in zip(items, value, strict=True)) else value
        return value

    def _under_key(self, key: str, value: Any) -> Any:
        if self._enabled and isinstance(value, str) and value and key.lower() in self._keys:
            self.redactions += 1
            return "[redacted:value]"
        return self.clean(value)

    def _text(self, text: str) -> Any:
        if self._enabled and len(text) >= 8:
            for name, hints, pattern in self._patterns:
                if not hints or any(hint in text for hint in hints):
                    text, count = pattern.subn(f"[redacted:{name}]", text)
                    self.redactions += count
        if len(text) > MAX_STRING:
            self.shortened += 1
            data = text.encode("utf-8", "replace")
            return {"$sha256": sha256(data).hexdigest(), "bytes": len(data), "beginning": text[:KEPT_OF_LONG]}
        return text
