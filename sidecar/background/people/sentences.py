"""The sentences that tell a person what waits, runs, failed and ended: what, in which project, and what can be done.
Pure.

Every surface shows these sentences: toasts, messages to a phone, the answer page, ``status``, ``top``, ``checkpoints``,
``intents``, ``log --follow`` and both forms of ``/background``. A surface only lays them out, and adds what it alone
knows, such as how to answer there. What was lost is worded in ``sidecar/read/losses.py``, in the same form.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from sidecar.background.hosts.identity import NOBODY
from sidecar.background.intents.lifecycle import ENDED
from sidecar.background.people.consent import PERMISSION, always_text
from sidecar.background.people.effects_in_doubt import DECISIONS
from sidecar.read.ask_text import on_one_line
from sidecar.read.wording import amount, cut_middle, moment, money, rough_span, visible

if TYPE_CHECKING:
    from sidecar.background.intents.state import Intent
    from sidecar.background.messages.message import Message

MAX_RESULT: Final = 200
"""Maximum length of a result within a sentence, in characters; the session and ``intents`` have all of it."""

MAX_OPTIONS: Final = 300

MAX_ASK: Final = 500
"""Maximum length of an ask within a line, in characters; ``checkpoints`` has all of it."""

MAX_LINE: Final = 120
"""Maximum length of one message in a message that joins several, in characters."""

TYPE_IT: Final = "Type your answer here, or use /background."
IN_LIST: Final = "Answer it in /background."


def who(work: str, directory: str) -> str:
    """``count things in shop``, ``shop``, or ``OpenCode`` if nothing is known. ``work`` is the title of background
    work, and ``directory`` the path of its project."""
    project = on_one_line(directory).replace("\\", "/").rstrip("/").rpartition("/")[2]
    work = on_one_line(work)
    return f"{work} in {project}" if work and project else work or project or "OpenCode"


def heading(known: Message) -> str:
    """Which work in which project asks for what kind of answer."""
    what = {
        "permission": "asks for permission",
        "ask": "asks",
        "effect": "does not know whether its effect happened",
    }.get(known.kind, "asks a question")
    return f"{who(known.work, known.directory)} {what}"


def how(known: Message) -> str:
    """How to answer in the terminal of the session that shows it."""
    is_typed = known.kind == "ask" and known.intent is None and not known.left_out
    return TYPE_IT if is_typed else IN_LIST


def asks(known: Message) -> str:
    """What is asked, by which work in which project, and what can be answered. The question's own line breaks stay."""
    parts = [f"{heading(known)}: {visible(known.text)}"]
    # The answers to a permission are always the same, so only what "always" would allow is said.
    if known.options and tuple(known.options) != PERMISSION:
        parts.append(f"[{cut_middle(' | '.join(map(on_one_line, known.options)), MAX_OPTIONS)[0]}]")
    if known.always:
        parts.append(f"(always allows: {visible(always_text(known))})")
    return " ".join(parts)


def in_message(known: Message, most: int) -> str:
    """What is asked, in a message. The id stays whole, and a text that is cut says where it can be read whole."""
    shown, left = cut_middle(asks(known), most - 150)
    where = f"\n`durable-stream checkpoints {known.id}` shows all of it." if left or known.left_out else ""
    return f"{shown} ({known.id}){where}"


def joined(texts: Iterable[str]) -> str:
    """Several messages as one, each on a line."""
    return "\n".join(cut_middle(on_one_line(each), MAX_LINE)[0] for each in texts)


def sentence(known: Message) -> str:
    """What is asked, since when, and what answers it, on one line."""
    return on_one_line(f"{cut_middle(asks(known), MAX_ASK)[0]} · {since(known.queued)} · {how_to_answer(known)}")


def how_to_answer(known: Message, on: str | None = None) -> str:
    """The command that answers, on another machine if one is named."""
    fixed = {"permission": PERMISSION, "effect": map(repr, DECISIONS)}
    named = known.id if on is None else f"--on {shlex.quote(on)} {known.id}"
    return f"`durable-stream checkpoints {named} --answer {'|'.join(fixed.get(known.kind, ('TEXT',)))}` answers it"


def how_it_stands(known: Message) -> str:
    """The state in words: ``answered, in OpenCode``, ``withdrawn: its turn ended``."""
    if known.state == "answered" and known.via.get("channel") == "opencode":
        return "answered, in OpenCode"
    return f"{known.state}: {known.why}" if known.state == "withdrawn" and known.why else known.state


def failure(intent: Intent) -> str:
    how_it_ended = ended(who(intent.title, intent.directory), intent.reason or "unknown", "")
    return f"{how_it_ended} · {moment(intent.ended or 0)} · `durable-stream intents {intent.id}` shows it"


def since(ts: int) -> str:
    """Since when something waits: ``since 22 Nov, 14:03``. ``ts`` is in ms UTC."""
    return f"since {moment(ts)}"


def ended(worker: str, reason: str, gist: str) -> str:
    """How background work ended, on one line: ``worker`` comes from ``who``, ``reason`` is why it failed, and ``gist``
    the beginning of its result."""
    how = f"failed: {reason}" if reason else "finished"
    line = on_one_line(gist)
    said = f": {line if len(line) <= MAX_RESULT else f'{line[:MAX_RESULT]} …'}" if line and not reason else ""
    return on_one_line(f"{worker} {how}{said}")


def unread(worker: str, intent: str, question: str) -> str:
    """An answer that background work did not read, on one line; ``worker`` comes from ``who``."""
    how = f"`durable-stream spawn --continue {intent} 'ANSWER'` goes on with it"
    return f"{worker} ended before it read your answer to: {cut_middle(on_one_line(question), MAX_RESULT)[0]}. {how}"


def state_of(intent: Intent) -> str:
    """An intent's state in a list: while it waits for somebody, for whom."""
    if intent.asks and intent.state not in ENDED:
        return "waiting for you"
    is_alone = intent.waits or (intent.state == "resuming" and not intent.prompting)
    return "waiting for OpenCode" if is_alone and intent.state not in ENDED else intent.state


def work(intent: Intent) -> str:
    """An intent on one line of a list: its work and project, and why it failed or what a person can still do."""
    remark = ""
    if intent.state in ("failed", "refused", "cancelled"):
        remark = on_one_line(intent.reason)
    elif intent.changes.get("saved") and not (intent.applied or intent.discarded):
        remark = "changes not applied"
    return " · ".join(filter(None, (who(intent.title, intent.directory), remark)))


def waits(intent: Intent, full: str, checkpoints: Iterable[Message]) -> list[dict[str, str]]:
    """Everything that an intent is waiting for: ``for`` (``answer``, ``place`` or ``opencode``), ``id`` and ``text``.

    ``full`` is the key of ``[phantom]`` whose limit is reached, if any.
    """
    if intent.state == "queued" and full:
        return [{"for": "place", "id": full, "text": f"a free place ([phantom] {full})"}]
    found = [{"for": "answer", "id": c.id, "text": on_one_line(asks(c))} for c in checkpoints if c.id in intent.asks]
    if state_of(intent) == "waiting for OpenCode":
        wanted = "you to say what it may do, because nobody knows which OpenCode asked for it"
        wanted = wanted if intent.environment == NOBODY else "an OpenCode that may do what the one that asked could"
        found.append({"for": "opencode", "id": "", "text": wanted})
    return found


def used(intent: Intent, now_ms: int) -> str:
    """The time that an intent has worked, its tokens and its cost; empty before the intent has started.

    If the intent has its own limit of tokens or cost, the limit follows the number.
    """
    if intent.started is None:
        return ""
    tokens, cost = amount(intent.tokens), money(intent.cost) if intent.cost else "$0"
    tokens += f" of {amount(intent.max_tokens)}" if intent.max_tokens else ""
    cost += f" of {money(intent.max_cost)}" if intent.max_cost else ""
    return f"{rough_span(intent.ran(now_ms))}, {tokens} tokens, {cost}"
