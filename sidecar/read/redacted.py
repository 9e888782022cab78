"""Records, and a session made of them, without the names of directories that say who recorded them, and where."""

from __future__ import annotations

import re
from typing import Any, Final

from sidecar.read.fields import as_text
from sidecar.read.story.past import Past
from streams.event import StreamEvent
from streams.store import Record

_HOME: Final = r"/(?:home|Users)/[^/\s\"'<>|:;,)\]}]+|[A-Za-z]:[\\/]+Users[\\/]+[^\\/\s\"'<>|:;,)\]}]+"
"""A home directory on Linux, macOS or Windows. The session may come from another machine."""


_DIRECTORIES: Final = """
    SELECT directory FROM (
        SELECT born, directory FROM session WHERE key = :session
        UNION ALL SELECT born, directory FROM place WHERE key = :place
        UNION ALL SELECT born, ran_in FROM place WHERE key = :place
    ) GROUP BY directory ORDER BY min(born)"""
"""Where a session ran, and what for, in the order in which that was known."""


class Redaction:
    """Replaces directories in records, which come in position order: each project with ``/project``, ``/project2`` and
    so on, and each home with ``~``. Other words stay, for example a user's name without a path."""

    def __init__(self, home: str) -> None:
        self._home = home
        self._names: dict[str, str] = {}
        self._pattern = re.compile("")
        self._learn("")

    def record(self, record: Record) -> Record:
        """The record with its payload redacted. Its hash stays that of the log."""
        self._learn(as_text(record.event.payload.get("directory")))
        fields = {**record.event.fields(), "payload": self.value(record.event.payload)}
        return record._replace(event=StreamEvent.trusted(fields))

    def past(self, past: Past) -> Past:
        """A session, each text of which is redacted before anything is cut from it."""
        for key, session in past.at().all.items():
            for (directory,) in past.story.sql(_DIRECTORIES, session=key, place=session.place):
                self._learn(directory)
        return Past(past.story.changed(self.value, self.record), past.session, past.family)

    def value(self, value: Any) -> Any:
        """A payload, or a part of one."""
        if isinstance(value, str):
            return self._pattern.sub(self._name, value) if "/" in value or "\\" in value else value
        if isinstance(value, dict):
            return {self.value(name): self.value(each) for name, each in value.items()}
        return [self.value(each) for each in value] if isinstance(value, list) else value

    def _learn(self, directory: str) -> None:
        directory = directory.rstrip("/\\")
        if directory in self._names or (not directory and self._names):
            return
        if directory:
            count = len(self._names) + 1
            self._names[directory] = "/project" if count == 1 else f"/project{count}"
        # A project may lie in another one, so the longest name comes first.
        names = [*sorted(self._names, key=len, reverse=True), *filter(None, [self._home.rstrip("/\\")])]
        exact = "|".join(map(re.escape, names))
        self._pattern = re.compile("|".join(filter(None, [f"(?:{exact})(?![\\w-]|\\.\\w)" if exact else "", _HOME])))

    def _name(self, found: re.Match[str]) -> str:
        return self._names.get(found[0], "~")
