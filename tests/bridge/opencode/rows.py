"""Rows in memory, in which a test lets sessions rest."""

from __future__ import annotations

from bridge.opencode.capture.stored_map import ANSWERS, Changes, Question, Row


class MemoryRows:
    def __init__(self, changes: Changes | None = None) -> None:
        self.rows: dict[str, Row] = {}
        self.put(changes or {})

    def put(self, changes: Changes) -> None:
        for key, row in changes.items():
            if row is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = row

    def get(self, key: str) -> bytes | None:
        return self.rows[key].body if key in self.rows else None

    def keys(self) -> list[str]:
        return list(self.rows)

    def having(self, question: Question, value: str) -> list[str]:
        return [key for key, row in self.rows.items() if ANSWERS[question](row.found, value)]

    def with_message(self, first: str, end: str) -> list[str]:
        named = {key: row.found.messages for key, row in self.rows.items()}
        return [key for key, messages in named.items() if any(first <= each < end for each in messages)]

    def damaged(self) -> Exception:
        return AssertionError("a body cannot be read")
