"""The errors of the log; ``stores/sqlite/files.py`` adds one.

Every class has a ``code`` that stays the same when its text changes; docs/operations.md lists the codes.
Errors carry their facts as fields and build their text in ``__str__``: what
happened, to what, and what to do next. Payloads never appear in a text.
"""

from __future__ import annotations

from typing import ClassVar


class CodedError(Exception):
    """An error whose text goes to whoever made the request. Programs rely on ``code``, which never changes."""

    code: ClassVar[str]


class StreamError(CodedError):
    """Root of all errors of the log."""

    code: ClassVar[str] = "log-error"

    hint: str = ""
    """What the reader of the message can do next; empty if there is nothing to do."""


class InvalidEvent(StreamError, ValueError):
    """The event does not match the envelope: a missing field, a bad id, a payload that is not a JSON object."""

    code: ClassVar[str] = "invalid-event"


class Conflict(StreamError):
    """The whole append was refused, and the log is unchanged."""

    code: ClassVar[str] = "conflict"


class OffsetConflict(Conflict):
    """The caller expected the next record of ``stream_id`` at offset ``expected``, but it would be at ``actual``."""

    code: ClassVar[str] = "offset-conflict"

    def __init__(self, stream_id: str, expected: int, actual: int) -> None:
        super().__init__(
            f"stream {stream_id} is at offset {actual}, not {expected}: another writer appended first; "
            "read the stream's new records and decide again"
        )
        self.stream_id, self.expected, self.actual = stream_id, expected, actual


class IdempotencyConflict(Conflict):
    """``key`` is already stored, and this batch does not simply repeat the one that stored it."""

    code: ClassVar[str] = "key-conflict"

    def __init__(self, key: str, reason: str) -> None:
        super().__init__(f"idempotency key {key}: {reason}; use a new key for a new command")
        self.key = key


class StoreUnavailable(StreamError):
    """The store cannot be used now; nothing was acknowledged. It is safe to retry later with the same keys."""

    code: ClassVar[str] = "log-unavailable"

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(f"{reason}; {hint}" if hint else reason)
        self.reason, self.hint = reason, hint


class StoreLocked(StoreUnavailable):
    code: ClassVar[str] = "log-locked"


class StoreClosed(StoreUnavailable):
    code: ClassVar[str] = "log-closed"


class StoreFailed(StoreUnavailable):
    """A write or sync failed, so this store stopped for good.

    A failed fsync is never retried, because the kernel may have dropped the dirty pages, and a second call would report
    a success that never happened. Reopening verifies the tail and cuts off whatever was never acknowledged.
    """

    code: ClassVar[str] = "log-failed"


class StoreFenced(StoreFailed):
    """This writer's lock file was deleted or replaced, so another process may have taken over."""

    code: ClassVar[str] = "log-fenced"


class BadStore(StreamError):
    """The files on disk cannot be trusted as they are; nothing was changed."""

    code: ClassVar[str] = "log-bad"


class CorruptLog(BadStore):
    """A record that was once durable is damaged or missing.

    ``line`` counts from 1 within ``file``; ``None`` means the whole file, or a directory. ``position`` is
    the record's place in the log, ``None`` if unknown.
    """

    code: ClassVar[str] = "log-damaged"

    def __init__(self, file: str, line: int | None, position: int | None, reason: str) -> None:
        where = file if line is None else f"{file}:{line}"
        place = "" if position is None else f" (position {position})"
        super().__init__(
            f"{where}{place}: {reason}; nothing was changed: restore the file from a backup, "
            "or run `durable-stream verify` to see all damage"
        )
        self.file, self.line, self.position, self.reason = file, line, position, reason


class MissingLog(BadStore):
    """The store that ``store.json`` names, or ``store.json`` itself, is gone: half of the store was deleted."""

    code: ClassVar[str] = "log-missing"

    def __init__(self, path: str, reason: str, hint: str) -> None:
        super().__init__(f"{path}: {reason}; nothing was changed: {hint}")
        self.path = path


NOT_OURS = "it was not written by Durable Stream: choose another home with --home"


class ForeignStore(BadStore):
    """Another program wrote the store, or a newer version of Durable Stream did."""

    code: ClassVar[str] = "log-foreign"

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path, self.reason = path, reason

    @property
    def is_not_ours(self) -> bool:
        """True if another program wrote the store, so that the store is not damaged."""
        return self.reason == NOT_OURS
