"""The effects that the agent ``intents`` asks for, with their arguments. Pure. ``effects.py`` and
``copies/effects.py`` run them.
"""

from __future__ import annotations

from typing import Any, Final

from sidecar.agents.agent import Output
from sidecar.background.intents.state import Intent
from sidecar.background.intents.watch import noted
from sidecar.background.messages.person import SHOW, glance
from sidecar.background.people.sentences import who

CREATE, PROMPT, ABORT = "opencode.create", "opencode.prompt", "opencode.abort"
CHECK = "opencode.check"
ISOLATE, COLLECT = "copy.make", "copy.collect"

CONTINUE: Final = "The process that ran you ended in the middle of your work. Look at what is done, and continue."


def isolate(intent: Intent) -> Output:
    args: dict[str, Any] = {"intent": intent.id, "directory": intent.directory}
    args |= {"always": True} if intent.isolation == "copy" else {}
    args |= {"continues": intent.continues} if intent.continues else {}
    return effect(ISOLATE, intent.id, args, ["intent.starting", {"intent": intent.id}])


def create(intent: Intent, directory: str, step: list[Any], *, is_child: bool) -> Output:
    """The effect that creates the session of an intent in a directory, or finds the one that it continues. Then a toast
    says so, unless background work asked for the intent (``is_child``).
    """
    args = {
        "intent": intent.id,
        "title": intent.title,
        "directory": directory,
        "project": intent.directory,
        "parent": intent.parent,
        "agent": intent.agent,
        "rights": intent.rights,
    }
    if intent.continues:
        args["session"] = intent.continues["session"]
    about = {"parent": intent.parent, "title": intent.title, "child": is_child}
    if toast := glance(about, f"{who(intent.title, intent.directory)} started"):
        args["toast"] = toast
    return effect(CREATE, intent.id, args, step)


def prompt(intent: Intent, session: str, text: str) -> Output:
    model = intent.models[0] if intent.models else None
    args = {
        "session": session,
        "directory": intent.place,
        "text": text,
        "agent": intent.agent,
        "model": model,
        # A session that continues already has its prompt, so OpenCode may continue it by itself.
        "waits": text == CONTINUE,
    }
    if intent.said and text == intent.prompt:
        args["said"] = intent.said
    return effect(PROMPT, intent.id, args)


def check(intent: Intent, ts: int) -> Output:
    """The effect that checks an intent's session. The result includes what ``CHECKED`` names."""
    args = {"session": intent.session, "directory": intent.place, **noted(intent)}
    return effect(CHECK, intent.id, args, ["intent.checked", {"intent": intent.id, "ts": ts}])


def abort(intent: Intent, *, is_late: bool = False) -> Output:
    """The effect that stops the session of an intent. ``is_late``: OpenCode has just accepted a prompt and is about to
    begin a turn."""
    args: dict[str, Any] = {"session": intent.session, "directory": intent.place}
    args |= {"isolated": True} if intent.copy else {}
    return effect(ABORT, intent.id, args | ({"late": True} if is_late else {}))


def collect(intent: str, copy: dict[str, Any], *steps: list[Any], session: str | None, stop: bool) -> Output:
    """The effect that stores the changes in a copy and removes the copy; with ``stop``, it first stops the session."""
    args = {"intent": intent, "session": session, "stop": stop, "work": copy["directory"], "name": copy["name"]}
    return effect(COLLECT, intent, args, *steps)


def how_to_continue(intent: Intent) -> Output:
    """The effect that tells a person, who prompted the session of ended work, how the work can go on."""
    text = f"Its copy of the project is gone. In a terminal: durable-stream spawn --continue {intent.id} 'TEXT'"
    return effect(SHOW, intent.id, {"session": intent.session, "title": "This background work has ended", "text": text})


def effect(kind: str, node: str, args: dict[str, Any], *steps: list[Any]) -> Output:
    """The request of an effect, with the steps of intents that it is; see ``state.steps_of``."""
    return Output("effect.requested", args | ({"steps": list(steps)} if steps else {}), effect=kind, node=node)
