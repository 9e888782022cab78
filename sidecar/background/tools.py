"""The tools that the model gets: their descriptions, arguments and answers.

OpenCode validates nothing, so every call is checked here. The file ``tools.json`` in the home tells the plugin what to
register; the plugin reads this file when it loads.
"""

from __future__ import annotations

from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from bridge.opencode.link.protocol import RequestError
from sidecar.background.reservations.agent import MAX_MINUTES, MOST_PATHS


class ToolArgs(BaseModel):
    """Base class of all tool arguments. Unknown arguments are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SpawnArgs(ToolArgs):
    """Start background work that survives restarts of the editor.

    Use it for work of minutes whose result your next step does not need; else use the task tool. Returns an intent id
    at once. The result comes as a message; do not poll.
    """

    prompt: str = Field(min_length=1, max_length=100_000, description="all that it must know")
    title: str = Field(min_length=1, max_length=100, description="three to six words")
    agent: str | None = Field(default=None, max_length=100, description="OpenCode agent to run")
    model: str | None = Field(
        default=None,
        max_length=500,
        description="provider/model, fallbacks after commas; default: yours or the agent's",
    )
    minutes: float | None = Field(default=None, gt=0, le=1440, description="time limit; default 60")
    tokens: int | None = Field(default=None, gt=0, description="the most it may use")
    cost: float | None = Field(default=None, gt=0, description="the same in dollars")
    isolation: Literal["copy", "shared"] | None = Field(
        default=None, description="edit a copy (default) or shared files"
    )
    on: str | None = Field(
        default=None, min_length=1, max_length=8192, description="another machine, as MACHINE:/directory/there"
    )


class StatusArgs(ToolArgs):
    """List background work of this session. Use it when the user asks; do not poll.

    Returns id, state, age, title.
    """

    unfinished: bool = Field(default=False, description="only what has not ended")


class IntentArgs(ToolArgs):
    """Arguments that name one intent."""

    intent: str = Field(min_length=1, max_length=100, description="its id")


class ResultArgs(IntentArgs):
    """Read a result of background work again. Do not poll: results arrive by themselves.

    Returns the text, or the state if it still runs.
    """


class CancelArgs(IntentArgs):
    """Stop background work. Use it when the work is no longer wanted. Do not use it because the work is slow.

    Returns at once.
    """


class NotifyArgs(ToolArgs):
    """Tell the user something now, on screen or phone. Use it for news they should not miss.

    Do not use it for questions: use checkpoint_ask. Returns where it was shown.
    """

    message: str = Field(min_length=1, max_length=500, description="one or two sentences")


class AskArgs(ToolArgs):
    """Ask the user for a decision. The question survives restarts.

    Use it when you cannot go on without them. Do not use it for news. Returns the answer or default; or, while nobody
    answers, an id for wait_for.
    """

    question: str = Field(min_length=1, max_length=2000, description="all they need to decide")
    options: list[str] = Field(default=[], max_length=10, description="suggestions")
    default: str = Field(default="", max_length=2000, description="the answer if nobody gives one")
    minutes: float = Field(default=1440, gt=0, le=43_200, description="to answer; default a day")


class WaitArgs(ToolArgs):
    """Wait for a signal, background work or a checkpoint. Use it when your next step needs it.

    Do not use it for what may come later: it arrives by itself. What happened before counts. Returns the payload,
    result or answer; or, after the time, that you may call again.
    """

    what: str = Field(min_length=1, max_length=200, description="id of an intent or checkpoint, or a signal's name")
    seconds: float = Field(default=60, gt=0, le=600, description="default 60, at most 600")


class ReadArgs(ToolArgs):
    """Read what happened in another recorded session of this project.

    Do not use it for this session. Returns the last lines: time, event, actor, what.
    """

    stream: str = Field(min_length=1, max_length=200, description="session id, or its beginning")
    last: int = Field(default=30, ge=1, le=200, description="lines; default 30")


class ReserveArgs(ToolArgs):
    """Reserve paths so that no other agent edits them. Use it before longer edits. Do not use it to read.

    Returns until when; or who holds them: split the work or wait.
    """

    paths: list[str] = Field(min_length=1, max_length=MOST_PATHS, description="files, folders or globs")
    why: str = Field(max_length=300, description="a few words")
    minutes: float = Field(default=60, gt=0, le=MAX_MINUTES, description="default 60, at most 480")


class ReleaseArgs(ToolArgs):
    """Release what you reserved. Use it once you are done there. Do not edit there afterwards. Returns the paths."""

    paths: list[str] = Field(default=[], max_length=MOST_PATHS, description="default: all")


WAIT_MS: Final = 610_000
"""How long, in ms, the plugin waits for a tool that may wait for a person: a little longer than the tool itself
waits."""

WAITING: Final = frozenset({"checkpoint_ask", "wait_for"})

TOOLS: Final[dict[str, type[ToolArgs]]] = {
    "agent_spawn": SpawnArgs,
    "intent_status": StatusArgs,
    "intent_result": ResultArgs,
    "intent_cancel": CancelArgs,
    "wait_for": WaitArgs,
    "notify_user": NotifyArgs,
    "checkpoint_ask": AskArgs,
    "stream_read": ReadArgs,
    "reserve": ReserveArgs,
    "release": ReleaseArgs,
}


ON: Final = "on"
"""The argument that a home without other machines does not show."""


def tools_json(*, machines: bool = False) -> dict[str, Any]:
    """What the plugin registers: by name, ``description``, ``args`` (property → JSON schema) and ``required``.
    ``machines``: whether there are other machines.

    ``wait_ms`` says how long a call may take, if that is longer than usual.
    """
    found = {name: _tool(args) | ({"wait_ms": WAIT_MS} if name in WAITING else {}) for name, args in TOOLS.items()}
    if not machines:
        del found["agent_spawn"]["args"][ON]
    return found


def check(name: str, given: dict[str, Any]) -> ToolArgs:
    """The checked arguments of a call.

    Raises:
        RequestError: an argument is missing, unknown or wrong.
    """
    model = TOOLS.get(name)
    if model is None:
        raise RequestError("bad-arguments", f"there is no tool {name[:50]!a}")
    try:
        # Models send null for arguments that they leave out.
        return model.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))[:50]}: {each['msg']}" for each in error.errors())
        raise RequestError("bad-arguments", f"wrong arguments for {name}: {faults}") from None


def _tool(args: type[ToolArgs]) -> dict[str, Any]:
    schema = args.model_json_schema()
    properties = {name: _plain(each) for name, each in schema.get("properties", {}).items()}
    description = " ".join((args.__doc__ or "").split())
    return {"description": description, "args": properties, "required": schema.get("required", [])}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A property's schema in its shortest form, because it costs the model tokens in every request."""
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    plain = {"type": options[0].get("type", "string"), "description": schema.get("description", "")}
    return plain | ({"items": {"type": "string"}} if plain["type"] == "array" else {})
