"""One event in full, for people: first the content, then the facts, and last the ids. Nothing is shown twice. Pure.

Payloads come from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from sidecar.read.asked import CHECKPOINT, what_is_asked
from sidecar.read.changes.edits import file_changes
from sidecar.read.fields import as_list, as_mapping, as_text, is_forgotten, is_number, with_cuts_told
from sidecar.read.markup import inside, unwrapped
from sidecar.read.wording import UNKNOWN, amount, lasted, local_time, money
from streams.event import StreamEvent

Kind = Literal["text", "aside", "command", "output", "diff", "bad"]

IDS: Final = (
    "session", "turn", "message", "assistant_message", "part", "call", "request", "parent", "child", "project", "root",
)  # fmt: skip
"""Fields of a payload that contain an id."""

_REPEATED: Final = ("preview", "display", "filediff", "diff", "files", "results", "interrupted", "parentSessionId")
"""Fields of a tool's metadata that repeat its output, its diff or its session in another form."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of the content."""

    kind: Kind
    text: str


@dataclass(slots=True)
class Detail:
    """``parts`` is the content, ``facts`` are labelled values, and ``rest`` holds all other fields."""

    parts: list[Part] = field(default_factory=list)
    facts: list[tuple[str, str]] = field(default_factory=list)
    rest: dict[str, Any] = field(default_factory=dict)
    ids: list[tuple[str, str]] = field(default_factory=list)


def detail(event: StreamEvent) -> Detail:
    """The detail of an event of any type."""
    left = with_cuts_told(event.payload)
    found = Detail()
    take = _CONTENT.get(event.type)
    if is_forgotten(left):
        found.parts.append(Part("aside", "(payload forgotten)"))
    elif take is not None:
        found.parts = [part for part in take(left) if part.text.strip()]
    _take_facts(left, found)
    for name in IDS:
        if isinstance(value := left.get(name), str):
            found.ids.append(("answer" if name == "assistant_message" else name, value))
            del left[name]
    said = {part.text.strip() for part in found.parts} | {value for _, value in found.ids} | {event.actor}
    found.rest = {key: kept for key, value in left.items() if (kept := _unsaid(value, said)) is not None}
    return found


def _take_facts(left: dict[str, Any], found: Detail) -> None:
    """Move durations, tokens, cost and model from ``left`` to the facts of ``found``."""
    started, ended = left.pop("started_ms", None), left.pop("ended_ms", None)
    took = left.pop("duration_ms", None)
    if is_number(started):
        found.facts.append(("started", local_time(int(started), "%H:%M:%S") + f".{int(started) % 1000:03}"))
        if is_number(ended) and not is_number(took):
            took = ended - started
    if is_number(took):
        found.facts.append(("took", lasted(took)))
    model = left.get("model")
    if isinstance(model, dict) and set(model) == {"provider", "model"}:
        del left["model"]
        found.facts.append(("model", f"{model['provider']}/{model['model']}"))
    tokens = left.get("tokens")
    if isinstance(tokens, dict) and all(map(is_number, tokens.values())):
        told = {name: UNKNOWN if amount(n) == UNKNOWN else n for name, n in left.pop("tokens").items() if n}
        counts = [f"{count} {name.replace('_', ' ')}" for name, count in told.items()]
        found.facts.append(("tokens", ", ".join(counts) or "none"))
    if is_number(left.get("cost")) and (cost := left.pop("cost")):
        found.facts.append(("cost", money(cost)))


def _input(left: dict[str, Any]) -> list[Part]:
    parts = left.get("parts")
    if not isinstance(parts, list):
        return []
    found, others = [], []
    for part in parts:
        told = as_mapping(part)
        kind = told.get("type")
        if kind == "text" and isinstance(told.get("text"), str):
            found.append(Part("aside" if told.get("synthetic") else "text", unwrapped(told["text"])))
        elif kind == "file":
            url = as_text(told.get("url"))
            where = "" if url.startswith("data:") else url
            found.append(Part("text", " ".join(filter(None, (f"[{as_text(told.get('filename')) or 'file'}]", where)))))
        elif kind == "agent":
            found.append(Part("text", f"@{as_text(told.get('name'))}"))
        else:
            others.append(part)
    left["parts"] = others
    return found


def _step(left: dict[str, Any]) -> list[Part]:
    if left.get("kind") != "tool":
        return []
    found: list[Part] = []
    changes = [change for change in file_changes(left) if change.patch and change.how != "replace"]
    given, metadata = dict(as_mapping(left.get("input"))), dict(as_mapping(left.get("metadata")))
    if command := as_text(given.pop("command", None)):
        found.append(Part("command", command))
    for name in ("prompt", "content", "oldString", "newString", "patchText"):
        text = as_text(given.get(name))
        if text and (changes or name in ("prompt", "content")):
            del given[name]
            if not changes:
                found.append(Part("text", text))
    if changes:
        given.pop("filePath", None)  # the diff names the file
    found += [Part("diff", change.patch) for change in changes]
    if output := as_text(left.pop("output", None)):
        found.append(Part("output", inside(output) or output))
    if error := as_text(left.pop("error", None)):
        found.append(Part("bad", error))
    for name in _REPEATED:
        if output or changes or name == "interrupted":
            metadata.pop(name, None)
    for name, fields in (("input", given), ("metadata", metadata)):
        if not isinstance(left.get(name), dict):
            continue
        del left[name]
        for key, value in fields.items():
            if value is not False and left.get(key) != value:
                left[f"{name} {key}" if key in left or key in IDS else key] = value
    if left.get("status") == "completed" or error:
        left.pop("status", None)
    del left["kind"]
    left.pop("tool", None)
    return found


def _checkpoint(left: dict[str, Any]) -> list[Part]:
    if left.get("state") != "asked":
        left.pop("state", None)
        answers, reply = left.pop("answers", None), as_text(left.pop("reply", None))
        said = [", ".join(map(as_text, a)) for a in as_list(answers) if isinstance(a, list)]
        return [Part("text", text) for text in (reply, *said, as_text(left.pop("message", None)))]
    del left["state"]
    questions = left.get("questions")
    if isinstance(questions, list):
        return [part for each in left.pop("questions") for part in _question(as_mapping(each))]
    asked, metadata = what_is_asked(left), dict(as_mapping(left.get("metadata")))
    command = as_text(metadata.pop("command", None))
    found = [Part("command" if command else "text", command or asked)]
    if diff := as_text(metadata.pop("diff", None)):
        found.append(Part("diff", diff))
        metadata.pop("files", None)
    if left.get("patterns") == [found[0].text] or not command:
        left.pop("patterns", None)
    if isinstance(left.get("metadata"), dict):
        left["metadata"] = metadata
    return found


def _question(asked: dict[str, Any]) -> list[Part]:
    found = [Part("text", as_text(asked.get("question")))]
    for option in as_list(asked.get("options")):
        told = as_mapping(option)
        said = ": ".join(filter(None, (as_text(told.get("label")), as_text(told.get("description")))))
        found.append(Part("aside", f"- {said}"))
    return found


def _error(left: dict[str, Any]) -> list[Part]:
    reason = as_text(left.pop("reason", None)) or as_text(left.get("message"))
    return [Part("bad", reason)]


def _output(left: dict[str, Any]) -> list[Part]:
    return [Part("aside" if left.pop("kind", None) == "reasoning" else "text", as_text(left.pop("text", None)))]


_CONTENT: dict[str, Callable[[dict[str, Any]], list[Part]]] = {
    "human.input": _input,
    "agent.input": _input,
    "execution.step": _step,
    "execution.output": _output,
    CHECKPOINT: _checkpoint,
    "agent.error": _error,
}


def _unsaid(value: Any, said: set[str]) -> Any:
    """``value`` without empty values and without the values in ``said``; ``None`` if nothing is left."""
    if isinstance(value, dict):
        kept = {key: inner for key, each in value.items() if (inner := _unsaid(each, said)) is not None}
        return kept or None
    if isinstance(value, list):
        return [inner for each in value if (inner := _unsaid(each, said)) is not None] or None
    if isinstance(value, str):
        return value if value.strip() and value.strip() not in said else None
    return value
