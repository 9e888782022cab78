"""The texts that a parent's model reads when background work has ended. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from sidecar.background.intents.state import Intent
from sidecar.background.messages.wording import inline, message, quoted
from sidecar.read.fields import as_text
from sidecar.read.rendering.markup import QUOTES

SHOWN_DIFF: Final = 4000
"""A longer diff is left out of the message."""

SHOWN_FILES: Final = 20

MAX_REASON: Final = 1000
MAX_LEFT: Final = 200

MAX_RESULT: Final = 16 * 1024
"""Maximum length of a result that an intent keeps, in characters."""


def result_of(said: Any, session: str) -> str:
    """What background work answered, as it is stored and shown everywhere. A long answer is cut, and says so itself."""
    text, mark = as_text(said), f"\n[cut here; `durable-stream read {session}` prints all that was recorded]"
    return text if len(text) <= MAX_RESULT else text[: MAX_RESULT - len(mark)] + mark


def notice_text(intent: Intent, state: str, about: Mapping[str, Any]) -> str:
    """The message for an intent that ended in this state; ``about`` has the other fields of the intent's last event."""
    reason, result = str(about.get("reason", "")), str(about.get("result") or intent.result)
    lines = [] if state == "completed" else [f"Reason: {inline(reason, MAX_REASON) or 'unknown'}"]
    if result:
        lines += [QUOTES, quoted(result)]
    elif state == "completed":
        lines.append("It gave no answer.")
    changes = about.get("changes") or {}
    if intent.resumes:
        often = "once" if intent.resumes == 1 else f"{intent.resumes} times"
        often += ", because OpenCode did not answer any more" if intent.hangs else ""
        lines.append(f"Note: it was interrupted {often}{'; no tool ran after that' if intent.steps <= 1 else ''}.")
    lines += changes_text(intent, changes)
    left = dict.fromkeys([*about.get("left", ()), *changes.get("ended", ())])
    lines += [f"Note: it left this running, which was stopped: {inline(each, MAX_LEFT)}" for each in left]
    lines += [f"Note: {inline(note)}" for note in notes_text(intent)]
    lines += [inline(line) for line in overlap_text(intent)]
    return message("background-agent", {"id": intent.id, "state": state, "title": intent.title}, lines)


def cause_text(error: Mapping[str, Any]) -> str:
    """Why OpenCode or a provider failed, on one line and the cause first: ``HTTP 401: invalid key``. ``error`` is the
    payload of ``agent.error``."""
    status, name = error.get("status"), str(error.get("name") or "unknown error")
    said = str(error.get("reason") or name).partition("\n")[0]
    return f"HTTP {status}: {said}" if status and f"HTTP {status}" not in said else said


def notes_text(intent: Intent) -> list[str]:
    """What was not in the intent's copy, though it is in the user's directory."""
    left_out = ", ".join(intent.copy.get("left_out", ()))
    return [f"its copy was without {left_out}"] if left_out else []


def overlap_text(intent: Intent) -> list[str]:
    """A warning for each file that another agent also changed; empty if there is no such file."""
    shown = list(intent.overlaps.items())[:SHOWN_FILES]
    return [f"Warning: {by} changed {file}, too, while it ran. Check this file." for file, by in shown]


def named(intent: Intent) -> str:
    """An intent as the commands that a text names take it: with the machine that did it, if it is another one."""
    on = intent.asked_by.get("on")
    return f"{intent.id} --on {shlex.quote(inline(on))}" if on else intent.id


def changes_text(intent: Intent, changes: Mapping[str, Any]) -> list[str]:
    """Lines about what an intent changed in its copy; empty if it had no copy or changed nothing."""
    if error := changes.get("error"):
        root = inline(str(intent.copy.get("root")))
        return [f"Its changes could not be saved ({inline(str(error))}); they are in {root}."]
    if not changes.get("saved"):
        return kept_copy_text(changes)
    files = [f"> {inline(file_text(each))}" for each in changes["files"][:SHOWN_FILES]]
    if changes["count"] > SHOWN_FILES:
        files.append(f"and {changes['count'] - SHOWN_FILES} more")
    lines = ["It changed these files in its own copy, not here:", *files]
    if len(changes["diff"]) <= SHOWN_DIFF and not changes.get("is_cut"):
        lines += ["The changes:", quoted(changes["diff"].rstrip("\n"))]
    else:
        lines.append(f"`durable-stream intents {named(intent)} --diff` shows the changes.")
    return [
        *lines,
        f"`durable-stream intents {named(intent)} --apply` applies them here, if the user wants them.",
        *kept_copy_text(changes),
    ]


def kept_copy_text(changes: Mapping[str, Any]) -> list[str]:
    """Lines about what is only in a copy that was kept; empty if the copy was removed."""
    if not changes.get("kept"):
        return []
    some = changes["unsaved"]
    more = changes["unsaved_count"] - len(some)
    lines = [f"Its copy was kept, because some of what is in it is in no result: {inline(changes['kept'])}"]
    lines += [f"> {inline(each['file'])} ({inline(each['why'])})" for each in some]
    return [*lines, f"  and {more} more"] if more else lines


def file_text(changed: Mapping[str, Any]) -> str:
    """One changed file, as ``src/a.py +3 -1``. A symbolic link is named as one."""
    if kind := changed.get("kind"):
        return f"{changed['file']} ({kind})"
    if changed.get("added") is None:
        return f"{changed['file']} (binary)"
    return f"{changed['file']} +{changed['added']} -{changed['removed']}"
