"""The sentences of a transcript, which are the same in a terminal, in Markdown and in HTML. Pure.

The results may still contain hostile text; whoever writes the transcript must make them harmless.
"""

from __future__ import annotations

import json
from typing import Any, TypeVar

from sidecar.read.changes.approvals import Ask
from sidecar.read.changes.edits import Diff, short_path
from sidecar.read.fields import as_list, as_mapping
from sidecar.read.rendering.describe import spent, tool_text
from sidecar.read.rendering.markup import inside
from sidecar.read.rendering.timing import LEAST_SHOWN_MS
from sidecar.read.transcript.model import Call, Item, Notice, Prompt, Said, Session, Turn, asks_below, branches_below
from sidecar.read.wording import lasted, local_time

T = TypeVar("T")

FORGOTTEN = "(forgotten)"
NO_OUTPUT = "(no output)"
OUTPUT_LINES = 12
"""How many lines of an output, and of a child session's result, are shown by default."""
DIFF_LINES = 40

_TODO = {"completed": "✓", "in_progress": "▸", "cancelled": "✗"}
_FILE_TOOLS = frozenset({"read", "edit", "write", "multiedit", "patch", "apply_patch"})
_OUTCOMES = {
    "unknown": "no end was recorded",
    "stopped": "stopped after a tool",
    "continued": "continued after summing up",
}


def shortened(lines: list[T], most: int, *, full: bool = False) -> tuple[list[T], int, list[T]]:
    """The beginning of ``lines``, how many are left out, and the end, which often shows how a command went."""
    if full or len(lines) <= most + 1:  # a line that reports one omitted line would save nothing
        return lines, 0, []
    tail = most // 3
    return lines[: most - tail], len(lines) - most, lines[len(lines) - tail :]


def shortened_lines(lines: list[str], most: int, *, full: bool = False) -> list[str]:
    """``lines``, with one line in place of the lines that are left out."""
    head, hidden, tail = shortened(lines, most, full=full)
    return [*head, *([more_lines(hidden)] if hidden else []), *tail]


def shortened_text(text: str, most: int, *, full: bool = False) -> str:
    """``text``, with one line in place of the lines that are left out."""
    return "\n".join(shortened_lines(text.split("\n"), most, full=full))


def more_lines(count: int) -> str:
    """The line that replaces lines that are left out."""
    return f"… {count} more line{'s'[: count != 1]}"


def facts_of(session: Session) -> str:
    """When a session took place, and its turns: ``Sunday, 22 November 2026, 01:53 · 3 turns in 2 sessions``."""
    branches = branches_below(session.turns)
    parts = [session.turns, *(branch.turns for branch in branches)]
    count = sum(turn.started_ms is not None for part in parts for turn in part)
    turns = f"{count} turn{'s'[: count != 1]}"
    if branches:
        turns += f" in {1 + len({branch.session for branch in branches})} sessions"
    ended = f"session {session.ended}" if session.ended else ""
    return " · ".join(filter(None, (local_time(session.first_ms, "%A, %d %B %Y, %H:%M"), turns, ended)))


def prompt_text(prompt: Prompt) -> str:
    """A prompt in full, with the names of its files below it."""
    shell = f"!{prompt.shell}" if prompt.shell else ""
    files = "\n".join(f"[{name}]" for name in prompt.files)
    return "\n\n".join(filter(None, (prompt.command, shell, prompt.text, files)))


def prompt_facts(prompt: Prompt) -> str:
    """When a prompt was given, and whether it was undone later."""
    return local_time(prompt.ts, "%H:%M:%S") + (" · undone later" if prompt.undone else "")


def call_text(call: Call, directory: str) -> str:
    """What a tool was asked to do: the whole command, the path, the description."""
    given = call.input
    if call.tool == "bash" and isinstance(command := given.get("command"), str):
        return command
    if call.tool in _FILE_TOOLS:
        path = given.get("filePath") or given.get("path") or (call.diffs[0].file if len(call.diffs) == 1 else "")
        if isinstance(path, str) and path:
            return short_path(path, directory)
    if call.tool == "task":
        agent = call.child.agent if call.child is not None and call.child.agent else given.get("subagent_type")
        what = call.title or given.get("description") or (call.child.title if call.child is not None else "")
        return ": ".join(each for each in (agent, what) if isinstance(each, str) and each)
    if call.tool == "question":
        return ""
    return tool_text({"title": call.title, "input": given})


def failure_of(call: Call) -> str:
    """How a call failed: ``failed``, ``exit 1``; empty if it did not."""
    return "" if not call.failed else f"exit {call.exit}" if call.exit else "failed"


def call_facts(call: Call) -> list[str]:
    """How a call went: its failure, ``a.png, 3.1 KiB``, ``+3 −1``, ``1.2s``."""
    facts = [failure_of(call)] if call.failed else []
    if call.status == "running":
        facts.append("not finished")
    facts += call.files
    facts += [diff_facts(diff) for diff in call.diffs] if len(call.diffs) == 1 else []
    if call.duration_ms is not None and call.duration_ms >= LEAST_SHOWN_MS:
        waited = max((ask.waited_ms or 0 for ask in call.asks), default=0)
        facts.append(lasted(call.duration_ms - min(waited, call.duration_ms)))
    return facts


def diff_facts(diff: Diff) -> str:
    """How much a file changed: ``+3 −1``, ``new file, +12``."""
    how = {"edit": "", "new": "new file, ", "replace": "written whole, "}[diff.how]
    return f"{how}+{diff.additions}" + (f" −{diff.deletions}" if diff.deletions or diff.how == "edit" else "")


def call_output(call: Call, *, full: bool = False) -> str:
    """The output of a call, but not the content of a file that was read, and not "applied successfully"."""
    if call.error:
        return call.error
    if call.diffs or call.tool == "question" or (call.tool == "task" and call_result(call)):
        return ""
    if call.tool == "todowrite":
        return "\n".join(_todo(as_mapping(one)) for one in as_list(call.input.get("todos")))
    if call.tool == "read" and not full:
        return ""
    output = call.output.strip("\n").expandtabs()
    return "" if output.strip() == NO_OUTPUT else output


def output_text(call: Call, command: str, output: str, *, full: bool = False) -> str:
    """What stands in the box of a call: for a command, the command and its output; else the output. Shortened."""
    shown = shortened_text(output, OUTPUT_LINES, full=full)
    return "\n".join(filter(None, (f"$ {command}", shown))) if call.tool == "bash" else shown


def call_input(call: Call) -> str:
    """The whole input of a call; empty if ``call_text`` already shows all of it."""
    if call.tool in {"bash", "question", "todowrite"} or call.diffs or len(call.input) <= 1:
        return ""
    return json.dumps(call.input, ensure_ascii=False, indent=2, default=str)


def call_result(call: Call) -> str:
    """What a child session answered, in Markdown."""
    if found := inside(call.output):
        return found
    if call.error:
        return ""
    turns = call.child.turns if call.child is not None else []
    answers = [item.text for turn in turns for item in turn.items if isinstance(item, Said) and item.kind == "answer"]
    return answers[-1] if answers else ""


def _todo(todo: dict[str, Any]) -> str:
    return f"{_TODO.get(str(todo.get('status')), '·')} {todo.get('content', '')}"


def asked_text(ask: Ask) -> str:
    """Exactly what was asked: ``bash git push``, or the questions with the answers that were offered."""
    if ask.questions:
        return "\n".join(
            question.text + (f" ({' / '.join(question.options)})" if question.options else "")
            for question in ask.questions
        )
    return " ".join(filter(None, (ask.permission, " ; ".join(ask.wanted))))


def is_about(ask: Ask, call: Call) -> bool:
    """True if the heading of the call already shows what was asked."""
    return ask.permission == call.tool and ask.wanted == [call.input.get("command")]


def waiting_in(turns: list[Turn]) -> list[Ask]:
    """What is waiting for a person in these turns and in the child sessions below them."""
    return [ask for ask in asks_below(turns) if ask.state == "waiting"]


def turn_facts(turn: Turn) -> str:
    """Which model answered, and what: ``anthropic/opus``, ``anthropic/opus · compaction``."""
    trigger = "" if turn.trigger in ("prompt", "unknown") else turn.trigger
    return " · ".join(filter(None, (turn.model, trigger)))


def turn_end(turn: Turn) -> str:
    """How a turn ended: ``completed · 10 steps · 5.2s · 2.2k in, 25 out``; empty for a turn that never began."""
    if turn.started_ms is None and not turn.outcome:
        return ""
    outcome = _OUTCOMES.get(turn.outcome, turn.outcome) or "still open"
    said = [outcome if not turn.error else f"{outcome} ({turn.error})"]
    if turn.steps:
        said.append(f"{turn.steps} step{'s'[: turn.steps != 1]}")
    if turn.started_ms is not None and turn.ended_ms is not None:
        said.append(lasted(turn.ended_ms - turn.started_ms))
    return " · ".join(filter(None, [*said, spent({"tokens": turn.tokens, "cost": turn.cost})]))


def split_at_end(turn: Turn) -> tuple[list[Item], list[Item]]:
    """The items of a turn, and the notices after its end."""
    end = turn.ended_ms
    later: list[Item] = [item for item in turn.items if isinstance(item, Notice) and end is not None and item.ts > end]
    return [item for item in turn.items if not any(item is each for each in later)] if later else turn.items, later


def notice_text(notice: Notice) -> str:
    if notice.what == "forgotten":
        return f"{notice.count} record{'s'[: notice.count != 1]} {FORGOTTEN}"
    return f"{notice.what}: {notice.text}" if notice.what in ("error", "gap", "undone", "redone") else notice.text
