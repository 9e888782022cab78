"""The tools that the model gets: their descriptions, arguments and answers.

OpenCode validates nothing, so every call is checked here. ``tools.json`` in the home tells the
plugin what to register; it reads the file when it loads.

Source: seed 004, 5 ("Migrate Tools"); DESIGN 11.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError


class ToolArgs(BaseModel):
    """The base of every tool's arguments; unknown ones are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)


class SpawnArgs(ToolArgs):
    """Start background work that survives restarts of the editor, and go on at once.

    Use it for work that takes minutes and whose result you do not need for your next step. Do not use it for
    something you must know now: use the task tool. Returns an intent id at once. When the work ends, this session
    gets the result as a message; do not poll.
    """

    prompt: str = Field(min_length=1, max_length=100_000, description="everything the background agent must know")
    title: str = Field(min_length=1, max_length=100, description="three to six words for the user")
    agent: str | None = Field(default=None, max_length=100, description="OpenCode agent; default: build")
    model: str | None = Field(default=None, max_length=200, description="provider/model; default: yours")
    minutes: float | None = Field(default=None, gt=0, le=1440, description="stop it after this long; default 60")


class StatusArgs(ToolArgs):
    """List background work of this session: state, age, title. Use it when the user asks what is running."""


class IntentArgs(ToolArgs):
    """Arguments that name one intent."""

    intent: str = Field(min_length=1, max_length=100, description="the id that agent_spawn returned")


class ResultArgs(IntentArgs):
    """Read the result of background work that has ended. Results arrive by themselves; use this to read one again."""


class CancelArgs(IntentArgs):
    """Stop background work. Use it when the user no longer wants it."""


class NotifyArgs(ToolArgs):
    """Tell the user something now, as a short message on the screen. Use it for news they should not miss.

    It does not ask anything and nothing comes back.
    """

    message: str = Field(min_length=1, max_length=500, description="one or two sentences")


TOOLS: Final[dict[str, type[ToolArgs]]] = {
    "agent_spawn": SpawnArgs,
    "intent_status": StatusArgs,
    "intent_result": ResultArgs,
    "intent_cancel": CancelArgs,
    "notify_user": NotifyArgs,
}


class BadToolCall(ValueError):
    """The model called a tool wrongly; the text tells it what to change."""


def tools_json() -> dict[str, Any]:
    """What the plugin registers: by name, ``description``, ``args`` (property → JSON schema) and ``required``."""
    return {name: _tool(args) for name, args in TOOLS.items()}


def check(name: str, given: dict[str, Any]) -> ToolArgs:
    """The checked arguments of a call.

    Raises:
        BadToolCall: an argument is missing, unknown or wrong.
    """
    model = TOOLS.get(name)
    if model is None:
        raise BadToolCall(f"there is no tool {name[:50]!a}")
    try:
        # Models send null for what they leave out.
        return model.model_validate({key: value for key, value in given.items() if value is not None})
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, each['loc']))[:50]}: {each['msg']}" for each in error.errors())
        raise BadToolCall(f"wrong arguments for {name}: {faults}") from None


def _tool(args: type[ToolArgs]) -> dict[str, Any]:
    schema = args.model_json_schema()
    properties = {name: _plain(each) for name, each in schema.get("properties", {}).items()}
    description = " ".join((args.__doc__ or "").split())
    return {"description": description, "args": properties, "required": schema.get("required", [])}


def _plain(schema: dict[str, Any]) -> dict[str, Any]:
    """A property's schema in its shortest form: it costs the model tokens in every request."""
    options = [each for each in schema.get("anyOf", [schema]) if each.get("type") != "null"]
    return {"type": options[0].get("type", "string"), "description": schema.get("description", "")}
