"""The content of one event, in parts: texts, commands, diffs, errors. Pure.

Each function takes what it shows out of ``left``, a copy of the payload, so that nothing is shown twice. Payloads come
from other programs, so any field may be missing or have another type.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

from sidecar.read.ask_text import what_is_asked
from sidecar.read.changes.edits import file_changes
from sidecar.read.fields import as_list, as_mapping, as_text
from sidecar.read.rendering.markup import inside, unwrapped

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


def of_input(left: dict[str, Any]) -> list[Part]:
    """What a person or an agent said, with files and agents."""
    parts = left.get("parts")
    if not isinstance(parts, list):
        return []
    found, others = [], []
    for part in parts:
        fields = as_mapping(part)
        kind = fields.get("type")
        if kind == "text" and isinstance(fields.get("text"), str):
            found.append(Part("aside" if fields.get("synthetic") else "text", unwrapped(fields["text"])))
        elif kind == "file":
            url = as_text(fields.get("url"))
            where = "" if url.startswith("data:") else url
            found.append(
                Part("text", " ".join(filter(None, (f"[{as_text(fields.get('filename')) or 'file'}]", where))))
            )
        elif kind == "agent":
            found.append(Part("text", f"@{as_text(fields.get('name'))}"))
        else:
            others.append(part)
    left["parts"] = others
    return found


def of_step(left: dict[str, Any]) -> list[Part]:
    """What a tool was asked, what it changed and what it returned."""
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


def of_checkpoint(left: dict[str, Any]) -> list[Part]:
    """What was asked, or how it was answered."""
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
        fields = as_mapping(option)
        said = ": ".join(filter(None, (as_text(fields.get("label")), as_text(fields.get("description")))))
        found.append(Part("aside", f"- {said}"))
    return found


def of_error(left: dict[str, Any]) -> list[Part]:
    """Why something failed."""
    reason = as_text(left.pop("reason", None)) or as_text(left.get("message"))
    return [Part("bad", reason)]


def of_output(left: dict[str, Any]) -> list[Part]:
    """What a model said or thought."""
    return [Part("aside" if left.pop("kind", None) == "reasoning" else "text", as_text(left.pop("text", None)))]
