"""What a person is asked to allow, and who may allow it: the rule is that a person consents to what was shown. Pure.

So every character of an ask is visible, a text that must be cut keeps its beginning and its end and says what
is missing, and whoever sees only a cut text can reject it but not allow it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sidecar.read.wording import cut_middle, visible

if TYPE_CHECKING:
    from sidecar.background.messages.message import Message

MAX_TEXT: Final = 4000
"""Maximum length of a question that the state keeps, in characters. The log has the whole text."""

MAX_ALWAYS: Final = 1000
"""Maximum length of the patterns that the state keeps, in characters, all patterns together."""

PERMISSION: Final = ("once", "always", "reject")
"""The answers to a permission."""


def asked(given: dict[str, Any], *, whole: bool = False) -> dict[str, Any]:
    """What a captured ``workflow.checkpoint`` asks, in the form that ``message.queued`` keeps; with ``whole``,
    nothing is cut.

    Every character is visible, so that no surface can show the person something else.
    """
    questions = [each for each in _list(given.get("questions")) if isinstance(each, dict)]
    metadata = given.get("metadata") if isinstance(given.get("metadata"), dict) else {}
    assert isinstance(metadata, dict)
    if questions:
        labels = [_labels(each) for each in questions]
        # One list cannot hold the options of several questions, so each question's text names its own options.
        lines = [str(each.get("question", "")) for each in questions]
        if len(questions) > 1:
            lines = [f"{line} ({', '.join(own)})" if own else line for line, own in zip(lines, labels, strict=True)]
        kind, text, options = "question", "\n".join(lines), labels[0] if len(questions) == 1 else []
    else:
        what = metadata.get("command") or " ; ".join(map(str, _list(given.get("patterns"))))
        kind, text = str(given.get("kind") or "permission"), f"{given.get('permission', '')} {what}"
        options = list(PERMISSION)
    text, always, left = visible(text).strip(), [visible(str(each)) for each in _list(given.get("always"))], 0
    if not whole:
        (text, left), (always, more) = cut_middle(text, MAX_TEXT), _cut(always)
        left += more
    return {
        "kind": kind,
        "session": str(given.get("session")),
        "request": str(given.get("request")),
        "text": text,
        "options": options,
        "always": always,
        "left_out": left,
        "questions": max(len(questions), 1),
        "fixed": [_labels(each) if each.get("custom") is False else [] for each in questions],
    }


def _cut(patterns: list[str]) -> tuple[list[str], int]:
    """The patterns, cut to ``MAX_ALWAYS`` characters, and how many characters were left out."""
    room, shown = MAX_ALWAYS, list[str]()
    for number, pattern in enumerate(patterns):
        if len(pattern) > room:
            left = sum(map(len, patterns[number:]))
            return [*shown, f"… {left} characters left out …"], left
        room -= len(pattern) + 1
        shown.append(pattern)
    return shown, 0


def may_answer(known: Message, answer: list[str], most: int = MAX_TEXT) -> bool:
    """Whether a surface that shows at most ``most`` characters of a text may give this answer: it may reject every
    request, and allow or answer only what it shows whole."""
    is_whole = not known.left_out and len(known.text) <= most
    return is_whole or (known.kind != "ask" and answer[:1] == ["reject"])


def always_text(known: Message) -> str:
    """What ``always`` would allow, in words; empty if OpenCode named no patterns."""
    return " ; ".join(known.always)


def _labels(question: dict[str, Any]) -> list[str]:
    return [visible(str(each.get("label"))) for each in _list(question.get("options")) if isinstance(each, dict)]


def answer_of(given: dict[str, Any]) -> list[str]:
    """The answer in a captured ``workflow.checkpoint``."""
    if given.get("state") == "rejected":
        return ["reject"]
    if given.get("answers") is not None:
        return [", ".join(map(str, one)) if isinstance(one, list) else str(one) for one in _list(given["answers"])]
    return [str(given.get("reply", ""))]


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
