"""The texts that a parent's model reads when background work has ended. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sidecar.orchestrator.intent_state import Intent

SHOWN_DIFF: Final = 4000
"""A longer diff is left out of the message; the model can read it with git."""

SHOWN_FILES: Final = 20


def told(intent: Intent, state: str, about: Mapping[str, Any]) -> str:
    """The message for an intent that ended in this state; ``about`` has the other fields of the intent's last event."""
    reason, result = str(about.get("reason", "")), str(about.get("result") or intent.result)
    head = f'<background-agent id="{intent.id}" state="{state}" title="{intent.title}">'
    body = (result or "(it gave no answer)") if state == "completed" else f"{reason}\n{result}".strip()
    changed = changes_text(intent, about.get("changes") or {})
    return "\n".join([head, body, *changed, *overlap_text(intent), "</background-agent>"])


def overlap_text(intent: Intent) -> list[str]:
    """A warning for each file that another agent also changed; empty if there is no such file."""
    shown = list(intent.overlaps.items())[:SHOWN_FILES]
    return [f"Warning: {by} changed {file}, too, while it ran. Check this file." for file, by in shown]


def changes_text(intent: Intent, changes: Mapping[str, Any]) -> list[str]:
    """Lines about what an intent changed in its worktree; empty if it had no worktree or changed nothing."""
    if error := changes.get("error"):
        return [f"Its changes could not be saved ({error}); they are in {intent.worktree.get('root')}."]
    if not changes.get("ref"):
        return kept_text(changes)
    base, ref = intent.worktree.get("base", ""), changes["ref"]
    files = [f"  {file_text(each)}" for each in changes["files"][:SHOWN_FILES]]
    if changes["count"] > SHOWN_FILES:
        files.append(f"  and {changes['count'] - SHOWN_FILES} more")
    lines = ["It changed these files in its own worktree, not here:", *files]
    if len(changes["diff"]) <= SHOWN_DIFF and not changes.get("is_cut"):
        lines.append(changes["diff"].rstrip("\n"))
    else:
        lines.append(f"`git diff {base[:12]} {ref}` shows the changes.")
    return [
        *lines,
        f"`durable-stream intents {intent.id} --apply` applies them here, if the user wants them.",
        *kept_text(changes),
    ]


def kept_text(changes: Mapping[str, Any]) -> list[str]:
    """Lines about what is only in a worktree that was kept; empty if the worktree was removed."""
    if not changes.get("kept"):
        return []
    some = changes["unsaved"]
    more = changes["unsaved_count"] - len(some)
    lines = [f"Its worktree was kept, because some of what is in it is not saved: {changes['kept']}"]
    lines += [f"  {each['file']} ({each['why']})" for each in some]
    return [*lines, f"  and {more} more"] if more else lines


def file_text(changed: Mapping[str, Any]) -> str:
    """One changed file, as ``src/a.py +3 -1``."""
    if changed.get("added") is None:
        return f"{changed['file']} (binary)"
    return f"{changed['file']} +{changed['added']} -{changed['removed']}"
