"""The files of a home that OpenCode's terminals read and write: the status card, and each terminal's focus.

The card lists the background work that has not ended, and what is asked. OpenCode 2's terminal also shows the toasts in
this file, because OpenCode 2's service shows none. The file contains nothing that changes by itself, such as ages, so
it is written only when something has happened.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Final

from sidecar.background.intents.state import Intent
from sidecar.background.messages.message import Message
from sidecar.background.people import sentences
from sidecar.background.people.turn_alerts import Focus
from sidecar.processes import still_runs
from sidecar.read.ask_text import on_one_line
from sidecar.read.wording import cut_middle, one_line, visible
from streams.system.files import write_durably

log = logging.getLogger("sidecar.background")

NAME: Final = "background.json"
MOST: Final = 100
MAX_ASK: Final = 400
"""Maximum length of an ask on the screen, in characters; `/background` shows all of it."""

FOLDER: Final = "terminals"
MOST_FILES: Final = 100
MOST_BYTES: Final = 4096
_RANK: Final[tuple[Focus, ...]] = ("unknown", "away", "front")


def card_text(
    unfinished: Iterable[Intent], checkpoints: Iterable[Message], toasts: Iterable[Mapping[str, str]] = ()
) -> bytes:
    """The text of the file: ``agents``, ``asks`` and ``toasts``, oldest first. While an agent's time
    counts, it is the time since ``since``, in ms UTC; while it stands still, it is ``ran`` ms, and ``None`` before the
    start. Its ``asks`` counts what waits for a person. ``asks`` has no asks that OpenCode shows by itself.
    """
    waiting = [each for each in checkpoints if each.is_open]
    asks = [
        {"id": each.id, "session": each.to, "text": _ask(each)}
        for each in waiting
        if each.to is not None and (each.intent is not None or each.kind == "ask")
    ]
    agents = [
        {
            "id": intent.id,
            "title": one_line(visible(intent.title)),
            "state": intent.state,
            "ran": intent.ran_ms if intent.started is not None and intent.since is None else None,
            "since": intent.since - intent.ran_ms if intent.since is not None else None,
            "cost": round(intent.cost, 2),
            "asks": len(intent.asks),
            "parent": intent.parent,
            "session": intent.session,
            "root": intent.root,
        }
        for intent in unfinished
    ]
    return json.dumps({"agents": agents[-MOST:], "asks": asks[-MOST:], "toasts": list(toasts)}).encode()


def _ask(known: Message) -> str:
    """The lines that stay on the screen until the ask is answered."""
    said = cut_middle(on_one_line(sentences.asks(known)), MAX_ASK)[0]
    return f"{said}\n{sentences.how(known)} Waiting {sentences.since(known.queued)}."


_NOTHING: Final = card_text((), ())


class CardFile:
    """Keeps the file of one home up to date. If the file cannot be written, only the status card is missing."""

    def __init__(self, home: Path) -> None:
        self._path = home / NAME
        self._is_refused = False
        self.written = b"" if self._path.exists() else _NOTHING

    def write(self, text: bytes) -> None:
        try:
            write_durably(self._path, text)
        except OSError as error:
            if not self._is_refused:
                log.warning("OpenCode cannot show a status card: %s cannot be written (%s)", self._path, error.strerror)
            self._is_refused = True
        else:
            self.written, self._is_refused = text, False


def read_focus(home: Path) -> dict[str, Focus]:
    """The focus of each session that a terminal shows. A session in two terminals is in front if one of them is.
    ``unknown`` is the focus of a terminal that reports none.

    A file that cannot be read, or whose terminal has ended, says nothing.
    """
    found: dict[str, Focus] = {}
    for path in islice((home / FOLDER).glob("*.json"), MOST_FILES):
        try:
            if path.is_symlink() or (known := path.stat()).st_size > MOST_BYTES:
                continue
            state = json.loads(path.read_bytes())
            session, focus = state["session"], state["focus"]
            if not still_runs(int(path.stem), round(known.st_mtime * 1000)):
                path.unlink(missing_ok=True)  # a killed terminal leaves its file
                continue
        except (OSError, ValueError, TypeError, KeyError):
            continue
        if not isinstance(session, str):
            continue
        if focus in _RANK and _RANK.index(focus) >= _RANK.index(found.get(session, "unknown")):
            found[session] = focus
    return found
