"""Replaces secrets before anything is written. Pure.

Text that the rules of ``rules.toml`` match becomes ``[redacted:rule]``; the values of keys with secret names are
replaced whole. The same input always gives the same output, and redacting the output again changes nothing.

A value is first scanned as one JSON text, which suffices for most payloads,
because they contain no secret. If the scan finds something, each string is redacted separately.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from typing import Any, Final

import orjson

from bridge.opencode.redact.rules import SECRET_NAME, Rule, built_in
from bridge.opencode.redact.scanner import Scanner
from streams.hashing import MAX_DEPTH

__all__ = ["KEPT_OF_LONG", "MAX_STRING", "Redactor"]

MAX_STRING = 8 * 1024 * 1024
"""Maximum length, in characters, of a string that is kept whole; a longer one is replaced by its digest, size and
beginning."""

KEPT_OF_LONG = 64 * 1024

_SECRET_KEYS: Final = frozenset(
    ["authorization", "proxyauthorization", "idtoken", "setcookie", "cookie", "pat", "dsn", "connectionuri"]
)
"""Secret key names besides the names that ``SECRET_NAME`` matches, in lower case without ``-`` and ``_``."""

_SECRET_ENDINGS: Final = (
    "apikey",
    "accesskey",
    "secretkey",
    "accesstoken",
    "refreshtoken",
    "authtoken",
    "apitoken",
    "clientsecret",
    "password",
)
"""Endings of secret key names, which match names such as ``openaiApiKey`` and ``x-api-key``."""

_KEY_ENDS: Final = (
    *("authorization", "passwd", "passphrase", "passcode", "password", "secret", "token", "key", "cookie"),
    *("credential", "credentials", "string", "pass", "pwd", "auth", "pat", "dsn", "uri"),
    *("base", "value", "val", "prod", "production", "dev", "test", "staging", "live", "old", "new", "primary"),
    *("secondary", "admin", "access", *"0123456789"),
)
"""Every secret key name has one of these endings, in lower case."""

_PAIR_NAMES: Final = ("name", "key", "Name", "Key")
_PAIR_VALUES: Final = ("value", "Value", "val")
"""Keys of the value in objects that hold a name and its value, such as ``{"name": "DB_PASSWORD", "value": "..."}``."""

_KINDS: Final = frozenset(["basic", "bearer", "digest", "none", "oauth", "oauth2", "api", "key", "true", "false"])
"""Values that name a kind of secret instead of being a secret."""

_FLAG: Final = re.compile(r"--?[A-Za-z0-9-]{1,64}\Z")
_NO_FLAG_VALUE: Final = ("-", "$", "<", "{", "%", "[", "...")

_VALUE_BEGINS: Final = ('":"', '":[')
"""The text between a key name and a string or a list, in compact JSON."""

_TELLING: Final = re.compile(r"(?i)(?:token|key)$")
"""Matches key names that satisfy the rules which require a name before a value."""

_PASSES: Final = 8
"""Maximum number of passes over one text."""


class Redactor:
    """Replaces secrets in JSON values.

    ``extra`` maps names to regular expressions, tried on every string; ``literals`` maps names to texts. ``keys`` are
    further secret key names, compared without case, ``-`` and ``_``. ``disable`` lists built-in rules to turn off, by
    id. ``allow`` lists regular expressions; a found text that is a full match of one of these is not a secret.

    Raises:
        re.error: a pattern is not a regular expression.
        ValueError: ``disable`` has an id that no rule has.
    """

    def __init__(
        self,
        extra: Mapping[str, str] | None = None,
        keys: Iterable[str] = (),
        *,
        literals: Mapping[str, str] | None = None,
        disable: Iterable[str] = (),
        allow: Iterable[str] = (),
        enabled: bool = True,
    ) -> None:
        rules = [*_own_rules(literals or {}), *_wanted(disable)] if enabled else []
        self._labels = [f"[redacted:{rule.id}]".encode() for rule in rules]
        self._extra = [(f"[redacted:{name}]", re.compile(pattern)) for name, pattern in (extra or {}).items()]
        own_keys = {_plain(key) for key in keys}
        self._keys = _SECRET_KEYS | own_keys
        ends = sorted({*_KEY_ENDS, *(key[-1:] for key in own_keys), *("-_" if own_keys else "")})
        # Accept only our own placeholders, because "[redacted:" and "]" around a secret must not protect it.
        names = {"value", *(rule.id for rule in rules), *(extra or {})}
        placeholder = rf"\[redacted:(?:{'|'.join(sorted(map(re.escape, names)))})\]"
        self._placeholders = re.compile(placeholder)
        self._scanner = Scanner(
            rules,
            re.compile(placeholder.encode()),
            allow=allow,
            marks=[end + begins for end in ends for begins in _VALUE_BEGINS],
        )
        self._enabled = enabled
        self.redactions = 0
        self.shortened = 0
        """Number of overlong strings, and of values nested deeper than an event allows."""

    def clean(self, value: Any) -> Any:
        """Return ``value`` without secrets and overlong strings; the same object if nothing changed."""
        return self.cleaned(value)[0]

    def cleaned(self, value: Any) -> tuple[Any, bytes]:
        """What ``clean`` returns, and its canonical form; nothing if that was not written to look for secrets."""
        text = self._plain(value)
        return (value, text) if text else (self._clean(value, 0), b"")

    def _plain(self, value: Any) -> bytes:
        """The canonical form of ``value`` if it needs no change. The rules also match escaped text, so one scan
        suffices."""
        if self._extra:
            return b""
        try:
            text = orjson.dumps(value, option=orjson.OPT_SORT_KEYS)
        except (TypeError, RecursionError):
            return b""
        if len(text) > MAX_STRING or (self._enabled and self._scanner.finds(text, self._is_secret_key)):
            return b""
        return text

    def _is_secret_key(self, text: bytes, at: int, end: int) -> bool:
        """True if a key name in compact JSON text is secret: the name before the ``":"`` that ends at ``end``."""
        key = text[text.rfind(b'"', 0, at) + 1 : end - len(_VALUE_BEGINS[0])]
        name = key.decode("utf-8", "replace")
        return name in _PAIR_VALUES or self._is_secret(name)

    def _clean(self, value: Any, depth: int) -> Any:
        if isinstance(value, str):
            return self._text(value)
        if not isinstance(value, dict | list):
            return value
        if depth >= MAX_DEPTH:
            # Cut the value here, as the log would: JSON readers accept deeper nesting than Python's recursion allows.
            self.shortened += 1
            return {"$too_deep": type(value).__name__}
        if isinstance(value, dict):
            return self._object(value, depth)
        items = [self._item(value, at, depth + 1) for at in range(len(value))]
        return items if any(new is not old for new, old in zip(items, value, strict=True)) else value

    def _item(self, items: list[Any], at: int, depth: int) -> Any:
        item, before = items[at], items[at - 1] if at else None
        flag = before if self._enabled and isinstance(before, str) and _FLAG.match(before) else ""
        if not flag or not isinstance(item, str) or item.startswith(_NO_FLAG_VALUE):
            return self._clean(item, depth)
        return self._whole(item) if self._is_secret(flag.lstrip("-")) else self._clean(item, depth)

    def _object(self, value: dict[str, Any], depth: int) -> dict[str, Any]:
        cleaned: dict[str, Any] = {}
        changed = False
        named = next((name for key in _PAIR_NAMES if isinstance(name := value.get(key), str)), "")
        is_pair = bool(named) and self._enabled and self._is_secret(named)
        for key, old in value.items():
            if is_pair and key in _PAIR_VALUES and isinstance(old, str):
                new: Any = self._whole(old)
            else:
                new = self._under_key(key, old, depth + 1)
            name = self._name(key)
            while name != key and (name in cleaned or name in value):
                name += "'"  # two key names may become the same placeholder, and both values must be kept
            changed = changed or new is not old or name != key
            cleaned[name] = new
        return cleaned if changed else value

    def _name(self, key: str) -> str:
        name = self._text(key)
        return name if isinstance(name, str) else str(name["$sha256"])

    def _under_key(self, key: str, value: Any, depth: int) -> Any:
        if self._enabled and isinstance(value, str | list) and self._is_secret(key):
            if isinstance(value, str):
                return self._whole(value)
            if all(isinstance(item, str) for item in value):
                items = [self._whole(item) for item in value]
                return items if items != value else value
        if isinstance(value, str) and self._enabled and _TELLING.search(key):
            # Scan the value of a field such as {"token": "..."} as if the text were token="...".
            name = f'"{key}":"'.encode("utf-8", "surrogatepass")
            text = name + value.encode("utf-8", "surrogatepass") + b'"'
            for span in self._scanner.spans(text):
                if (span.start, span.end) == (len(name), len(text) - 1):
                    self.redactions += 1
                    return self._labels[span.rank].decode()
        return self._clean(value, depth)

    def _is_secret(self, key: str) -> bool:
        plain = _plain(key)
        return plain in self._keys or plain.endswith(_SECRET_ENDINGS) or SECRET_NAME.search(key) is not None

    def _whole(self, text: str) -> str:
        if not text or text.lower() in _KINDS or self._placeholders.fullmatch(text):
            return text
        self.redactions += 1
        return "[redacted:value]"

    def _text(self, text: str) -> Any:
        if self._enabled:
            text = self._redacted(text)
        if len(text) > MAX_STRING:
            self.shortened += 1
            data = text.encode("utf-8", "replace")
            beginning = self._redacted(text[:KEPT_OF_LONG]) if self._enabled else text[:KEPT_OF_LONG]
            return {"$sha256": sha256(data).hexdigest(), "bytes": len(data), "beginning": beginning}
        return text

    def _redacted(self, text: str) -> str:
        for _ in range(_PASSES):
            # Scan the text until nothing changes, so that redacting the result again would change nothing.
            before = text
            data = text.encode("utf-8", "surrogatepass")
            spans = self._scanner.spans(data)
            if spans:
                text = b"".join(self._pieces(data, spans)).decode("utf-8", "surrogatepass")
                self.redactions += len(spans)
            for label, pattern in self._extra:
                text = self._without(text, label, pattern)
            if text == before:
                return before
        return text

    def _without(self, text: str, label: str, pattern: re.Pattern[str]) -> str:
        """Return ``text`` with the matches of a user's pattern replaced, except within placeholders."""
        taken = [found.span() for found in self._placeholders.finditer(text)] if "[redacted:" in text else []

        def replaced(match: re.Match[str]) -> str:
            after = bisect_right(taken, match.start(), key=lambda place: place[1])
            if not match[0] or (after < len(taken) and taken[after][0] < match.end()):
                return match[0]
            self.redactions += 1
            return label

        return pattern.sub(replaced, text)

    def _pieces(self, data: bytes, spans: Iterable[Any]) -> Iterator[bytes]:
        end = 0
        for span in spans:
            yield data[end : span.start]
            yield self._labels[span.rank]
            end = span.end
        yield data[end:]


def _wanted(disable: Iterable[str]) -> list[Rule]:
    unwanted = set(disable)
    unknown = unwanted - {rule.id for rule in built_in()}
    if unknown:
        raise ValueError(f"no rule is named {', '.join(sorted(unknown))}")
    return [rule for rule in built_in() if rule.id not in unwanted]


def _own_rules(literals: Mapping[str, str]) -> Iterator[Rule]:
    for name, text in literals.items():
        # Search for the literal itself and for its form in JSON, where quotes and line breaks are escaped.
        forms = {text, orjson.dumps(text).decode()[1:-1]}
        yield Rule(
            id=name,
            description="a text listed in the configuration",
            regex="|".join(re.escape(form) for form in sorted(forms, key=len, reverse=True)),
            keywords=tuple(form.encode().lower().decode() for form in forms),
            word=False,
        )


def _plain(key: str) -> str:
    return key.lower().replace("-", "").replace("_", "")
