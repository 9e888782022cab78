"""What became of the prompt of a background session on OpenCode 2, from the session's messages. Pure.

Measured on 2.0.15. Most turns end with a message of the type ``idle`` that has the turn's outcome. What follows the
first such message after the prompt belongs to other turns: those of a person, of a shell command or of a notice. A turn
that succeeded without a finished answer is no end: it called no model. Two kinds of turns end without that message: a
turn in which a person refused a permission or dismissed a question, and a turn that was cut off by the end of its
service. The service continues both as soon as it has started again.

A turn may leave behind subagents and shell commands that run in the background. Each of them reports to the session
when it ends, and its report starts another turn; a subagent does so also after a restart and when it was deleted. The
work is over at the end of the first turn that leaves nothing running: an earlier answer may only say what was started.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from bridge.opencode.capture.shapes import mapping, text
from sidecar.background.hosts.host import State

MARK: Final = "prompt"
"""The field in the metadata of a message that says that this message is a prompt, and no notice."""

_OUTCOMES: Final[dict[str, State]] = {"succeeded": "answered", "failed": "failed", "interrupted": "aborted"}


class Turn(NamedTuple):
    """The state of the work for a prompt.

    ``answered``, ``failed``, ``aborted`` and ``stopped`` are the ends of the work; ``said`` is the answer or the error.
    ``waiting``: the last turn succeeded, but the subagents and commands ``running`` have not reported. ``cut``: the
    last answer was broken off by a person's refusal or by the end of the service. ``open``: the last answer is
    unfinished.
    """

    state: str
    said: str = ""
    running: tuple[str, ...] = ()


def is_prompt(message: dict[str, Any]) -> bool:
    return bool(mapping(mapping(message.get("metadata")).get("durable_stream")).get(MARK))


def turn_of(messages: Sequence[dict[str, Any]]) -> Turn | None:
    """What became of the newest prompt in these messages, which are in their order; ``None`` if none is a prompt."""
    start = next((n for n in reversed(range(len(messages))) if is_prompt(messages[n])), None)
    if start is None:
        return None
    state, last, running = "open", dict[str, Any](), dict[str, None]()
    for message in messages[start + 1 :]:
        match message.get("type"):
            case "assistant":
                is_aborted = mapping(message.get("error")).get("type") == "aborted"
                last, state = message, "cut" if is_aborted else "open"
                running |= dict.fromkeys(_launched(message))
            case "user" if state == "cut":
                return Turn("stopped")  # somebody's prompt after a refusal
            case "synthetic":
                about = mapping(message.get("metadata"))
                running.pop(str(about.get("childID") or about.get("shellID")), None)
                if state == "cut" and about.get("source"):
                    return Turn("stopped")  # a report after a refusal
                state = "open"  # a service that was back has continued the turn
            case "idle":
                outcome = _OUTCOMES.get(str(message.get("outcome")), "failed")
                if outcome == "answered" and state == "cut":
                    return Turn("stopped")  # a refused turn that ``V2Host.abort`` has closed
                if running and outcome == "answered":
                    state = "waiting"
                elif outcome != "answered" or (last.get("finish") and not last.get("error")):
                    return Turn(outcome, _error(last) if outcome == "failed" else said_in(last))
    return Turn(state, said_in(last), tuple(running))


def said_in(message: dict[str, Any]) -> str:
    return "\n".join(filter(None, (text(part.get("text")) for part in _parts(message) if part.get("type") == "text")))


def quiet_ms(last: dict[str, Any], recorded_ms: int, now: int) -> int:
    """How many ms ago the newest part of a session's last message began or ended; 0 while a tool is running.

    ``recorded_ms``: the time of the newest record. While a provider is being retried, the silence is counted from the
    time of that record.
    """
    times: list[Any] = [recorded_ms, *mapping(last.get("time")).values(), mapping(last.get("retry")).get("at")]
    for part in _parts(last):
        if mapping(part.get("state")).get("status") == "running":
            return 0
        times += mapping(part.get("time")).values()
    newest = max(int(each) for each in times if isinstance(each, (int, float)))
    return max(now - newest, 0) if newest else 0


def _launched(message: dict[str, Any]) -> Iterable[str]:
    """The subagents and shell commands that a step started and did not wait for."""
    for part in _parts(message):
        about = mapping(mapping(part.get("state")).get("metadata"))
        left = about.get("sessionID") or about.get("shellID")
        if about.get("status") == "running" and isinstance(left, str):
            yield left


def _error(message: dict[str, Any]) -> str:
    return text(mapping(message.get("error")).get("message")) or ""


def _parts(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content")
    return [mapping(part) for part in content] if isinstance(content, list) else []
