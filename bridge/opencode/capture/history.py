"""Turns old sessions of OpenCode 1, as its API returns them, back into the hooks that were called at the time. Pure.

If a session ended before the log began, only its final messages and their parts can be read. The messages give the same
events, with the same keys, as a recording at that time would have, except for what OpenCode does not keep (asks,
retries). The events' metadata says ``history``.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from typing import Any

from bridge.opencode.capture.shapes import is_copy, mapping, number, text
from bridge.opencode.link.frames import HookItem

HISTORY_INSTANCE = sha256(b"history").hexdigest()[:16]
"""The plugin instance that history is attributed to; no real plugin has it."""


def session_items(info: dict[str, Any], messages: list[dict[str, Any]]) -> Iterator[HookItem]:
    """The hooks of one session, oldest first. The messages of its parent must come first."""
    created = _at(info, 0)
    session = text(info.get("id")) or ""
    yield _event("session.created", created, {"sessionID": session, "info": info})
    yield from turn_items(session, messages, created)


def turns_of(messages: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The messages of a session, by the user message that they answer. The user message comes first in its list."""
    turns: dict[str, list[dict[str, Any]]] = {}
    for message in messages:
        about = mapping(message.get("info"))
        if about.get("role") == "user" and (user := text(about.get("id"))) is not None:
            turns[user] = [message]
        elif (answered := text(about.get("parentID"))) in turns:
            turns[answered].append(message)
    return turns


def turn_items(session: str, messages: list[dict[str, Any]], last: int = 0) -> Iterator[HookItem]:
    """The hooks of these messages, oldest first. ``last`` is the time, in ms UTC, for messages without a time."""
    answering: str | None = None
    for message in messages:
        about, parts = mapping(message.get("info")), message.get("parts")
        parts = [part for part in map(mapping, parts) if part] if isinstance(parts, list) else []
        at = _at(about, last)
        if about.get("role") == "user":
            yield from _idle(session, last, answering)
            answering = None
            if _is_prompt(parts) and not is_copy(about, at):
                yield HookItem("chat.message", at, {"sessionID": session}, {"message": about, "parts": parts})
            else:
                yield from _updates(session, about, parts, at)
        else:
            answering = text(about.get("parentID")) or answering
            last = number(mapping(about.get("time")).get("completed")) or at
            # The first update begins the turn. The error comes after the parts, as in OpenCode's live hooks.
            begun = {**about, "error": None, "time": {**mapping(about.get("time")), "completed": None}}
            yield _event("message.updated", at, {"sessionID": session, "info": begun})
            yield from _parts(session, parts, at)
            yield _event("message.updated", last, {"sessionID": session, "info": about})
        last = max(last, at)
    yield from _idle(session, last, answering)


def _is_prompt(parts: list[dict[str, Any]]) -> bool:
    """False for the user messages that OpenCode makes for a compaction, and for the note of a ``!`` command."""
    kinds = {part.get("type") for part in parts}
    synthetic = bool(parts) and all(part.get("synthetic") for part in parts)
    return "compaction" not in kinds and not synthetic


def _updates(session: str, about: dict[str, Any], parts: list[dict[str, Any]], at: int) -> Iterator[HookItem]:
    yield _event("message.updated", at, {"sessionID": session, "info": about})
    yield from _parts(session, parts, at)


def _parts(session: str, parts: list[dict[str, Any]], at: int) -> Iterator[HookItem]:
    for part in parts:
        time = mapping(part.get("time")) or mapping(mapping(part.get("state")).get("time"))
        ended = number(time.get("end")) or number(time.get("start")) or at
        yield _event("message.part.updated", ended, {"sessionID": session, "part": part, "time": ended})


def _idle(session: str, at: int, answering: str | None) -> Iterator[HookItem]:
    if answering is not None:
        yield from (_event("session.idle", at, {"sessionID": session}) for _ in range(2))


def _at(about: dict[str, Any], otherwise: int) -> int:
    return number(mapping(about.get("time")).get("created")) or otherwise


def _event(type_: str, at: int, properties: dict[str, Any]) -> HookItem:
    return HookItem("event", at, {"event": {"type": type_, "properties": properties}})
