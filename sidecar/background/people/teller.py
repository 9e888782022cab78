"""The sentences that tell a person what waits and what ended: what, in which project, and what can be answered. Pure.

Every surface shows these sentences: toasts, messages to a phone, the answer page, ``top``, ``checkpoints`` and both
forms of ``/background``. A surface adds only what it alone knows, such as the time or how to answer there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sidecar.background.people.consent import PERMISSION, always_text
from sidecar.read.asked import on_one_line
from sidecar.read.wording import cut_middle, visible

if TYPE_CHECKING:
    from sidecar.background.people.checkpoints import Checkpoint

MAX_RESULT: Final = 200
"""Maximum length of a result within a sentence, in characters; the session and ``intents`` have all of it."""

MAX_OPTIONS: Final = 300

TYPE_IT: Final = "Type your answer here, or use /background."
IN_LIST: Final = "Answer it in /background."


def who(work: str, directory: str) -> str:
    """``count things in shop``, ``shop``, or ``OpenCode`` if nothing is known. ``work`` is the title of background
    work, and ``directory`` the path of its project."""
    project = on_one_line(directory).replace("\\", "/").rstrip("/").rpartition("/")[2]
    work = on_one_line(work)
    return f"{work} in {project}" if work and project else work or project or "OpenCode"


def heading(known: Checkpoint) -> str:
    """Which work in which project asks for what kind of answer."""
    what = {"permission": "asks for permission", "ask": "asks"}.get(known.kind, "asks a question")
    return f"{who(known.work, known.directory)} {what}"


def how(known: Checkpoint) -> str:
    """How to answer in the terminal of the session that is told."""
    is_typed = known.kind == "ask" and known.intent is None and not known.left_out
    return TYPE_IT if is_typed else IN_LIST


def asks(known: Checkpoint) -> str:
    """What is asked, by which work in which project, and what can be answered. The question's own line breaks stay."""
    parts = [f"{heading(known)}: {visible(known.text)}"]
    # The answers to a permission are always the same, so only what "always" would allow is said.
    if known.options and tuple(known.options) != PERMISSION:
        parts.append(f"[{cut_middle(' | '.join(map(on_one_line, known.options)), MAX_OPTIONS)[0]}]")
    if known.always:
        parts.append(f"(always allows: {visible(always_text(known))})")
    return " ".join(parts)


def ended(worker: str, reason: str, gist: str) -> str:
    """How background work ended, on one line: ``worker`` comes from ``who``, ``reason`` is why it failed, and ``gist``
    the beginning of its result."""
    how = f"failed: {reason}" if reason else "finished"
    line = on_one_line(gist)
    said = f": {line if len(line) <= MAX_RESULT else f'{line[:MAX_RESULT]} …'}" if line and not reason else ""
    return on_one_line(f"{worker} {how}{said}")
