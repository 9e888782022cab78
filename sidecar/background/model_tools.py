"""Tools of other processes that the model sees: those of ``[worker.tools]`` that have a description.

A call of the model becomes a command for an agent of this home, which asks for the effect of the tool's name. So the
call and its result are in the log like those of any agent, and a call that OpenCode sends again is not made again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any, Final

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.agent import EFFECT_REQUESTED, Agent, Output
from sidecar.agents.effects.ledger import StepRecord
from sidecar.agents.runtime import Runtime
from sidecar.background.own_agent import OwnAgent
from sidecar.config import RemoteTool
from streams.bus.command import Command
from streams.event import StreamEvent

LOOK_SECONDS: Final = 0.05
"""How often a call looks whether its effect has ended."""

SPARE_MS: Final = 15_000
"""How much longer than the tool itself the plugin waits for a tool, in ms."""

CALL: Final = "call"


class _Caller(OwnAgent[dict[str, Any]]):
    """It has no state: what it asked for is in the log."""

    def receive(self, event: StreamEvent) -> list[Output]:
        if event.type != CALL:
            return []
        given = event.payload
        return [Output(EFFECT_REQUESTED, given["args"], effect=given["tool"], node=given["call"])]

    def apply(self, event: StreamEvent) -> None:
        return


class ModelTools:
    """The tools that the model sees, and the agent that calls them."""

    def __init__(self, log_id: str, tools: Mapping[str, RemoteTool]) -> None:
        self.tools = {name: tool for name, tool in tools.items() if tool.description}
        # Each home has an agent of its own, because another home must not own it.
        self._agent = _Caller(f"tools-{log_id.lower()}", dict)

    @property
    def agents(self) -> tuple[Agent, ...]:
        return (self._agent,) if self.tools else ()

    def specs(self) -> dict[str, Any]:
        """The tools in the form of ``tools_json``."""
        return {
            name: {
                "description": tool.description,
                "args": {each: {"type": arg.type, "description": arg.description} for each, arg in tool.args.items()},
                "required": [each for each, arg in tool.args.items() if arg.required],
                "wait_ms": round(tool.timeout_seconds * 1000) + SPARE_MS,
            }
            for name, tool in self.tools.items()
        }

    async def call(
        self,
        runtime: Runtime,
        name: str,
        args: dict[str, Any],
        key: str,
        turn: str,
        *,
        actor: str,
        traceparent: str,
        project: str | None = None,
    ) -> str:
        """Call a tool; return its result as text. ``runtime`` runs ``agents``;
        ``key`` identifies the call, ``turn`` the message that led to it;
        ``project`` is that of the session.

        Raises:
            RequestError: the arguments do not fit, or the tool failed.
            InputRefused, AgentFailed, StreamError: the call could not be recorded.
        """
        given = _checked(name, self.tools[name], args)
        payload = {"tool": name, "args": given, "call": key}
        place = {"project": project} if project else {}
        command = Command(
            f"call:{key}", CALL, payload, actor=actor, correlation_id=turn, traceparent=traceparent, metadata=place
        )
        handled = await runtime.command(self._agent.name, command)
        asked = [record.event for record in handled.records if record.event.type == EFFECT_REQUESTED]
        if not asked:
            raise RequestError("call-repeated", "this call was already made; its result is in the log")
        step = await _ended(runtime, asked[0].payload)
        if step.status != "completed":
            raise RequestError("tool-failed", f"{name}: {step.error}")
        return step.result if isinstance(step.result, str) else json.dumps(step.result, ensure_ascii=False)


async def _ended(runtime: Runtime, request: dict[str, Any]) -> StepRecord:
    while True:
        step = await runtime.effects.ledger.get_last_by_key(request["run"], request["key"])
        if step is not None and step.final:
            return step
        await asyncio.sleep(LOOK_SECONDS)


def _checked(name: str, tool: RemoteTool, args: dict[str, Any]) -> dict[str, Any]:
    given = {each: value for each, value in args.items() if value is not None}
    unknown = sorted(given.keys() - tool.args.keys())
    missing = sorted(each for each, arg in tool.args.items() if arg.required and each not in given)
    wrong = [
        each
        for each, value in given.items()
        if each in tool.args and not isinstance(value, _TYPES[tool.args[each].type])
    ]
    for what, names in (("unknown", unknown), ("missing", missing), ("of a wrong type", wrong)):
        if names:
            raise RequestError("bad-arguments", f"wrong arguments for {name}: {what}: {', '.join(names)[:200]}")
    return given


_TYPES: Final[dict[str, Any]] = {
    "string": str,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}
