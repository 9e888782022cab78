"""The link that answers a checkpoint from a phone, and the page behind it. Pure.

A link contains its checkpoint, the second at which the link expires, and a signature of both. The key for the signature
is derived from the home's token; the token cannot be computed from the key. A checkpoint takes only one answer, so a
link works only once.

Only a ``POST`` request answers a checkpoint. Programs that preview or prefetch links send only ``GET`` requests, so
such programs cannot give an answer.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from base64 import urlsafe_b64encode
from html import escape
from typing import Final, Literal, NamedTuple
from urllib.parse import parse_qs

from sidecar.background.messages.message import Message
from sidecar.background.people import sentences
from sidecar.background.people.consent import always_text, may_answer
from sidecar.read.wording import visible

LIVES_MS: Final = 24 * 3_600_000
"""How long a link works, unless its checkpoint ends earlier."""

MAX_ANSWERS: Final = 50
MAX_ANSWER: Final = 4000
"""Maximum length of one answer, in characters."""

_PURPOSE: Final = b"durable-stream answer link 1"
_PATH: Final = re.compile(r"/answer/(chk_[0-9a-f]{1,64})/([0-9]{1,12})/([A-Za-z0-9_-]{43})")


class Link(NamedTuple):
    """The parts of a link's path. ``expires`` is in seconds UTC."""

    checkpoint: str
    expires: int
    signature: str


def key_of(token: str) -> bytes:
    """The key that signs a home's links: HMAC-SHA256 of the key's purpose, keyed with the home's token."""
    return hmac.new(token.encode(), _PURPOSE, hashlib.sha256).digest()


def path_of(key: bytes, known: Message, now_ms: int) -> str:
    expires = min(known.expires or now_ms + LIVES_MS, now_ms + LIVES_MS) // 1000
    return f"/answer/{known.id}/{expires}/{_sign(key, known.id, expires)}"


def parse(path: str) -> Link | None:
    """The parts of a request's path; ``None`` if the path is not the path of a link.

    A prefix that a tunnel added before the link's path is ignored.
    """
    found = _PATH.search(path)
    if found is None or found.end() != len(path):
        return None
    return Link(found[1], int(found[2]), found[3])


def check(key: bytes, link: Link, now_ms: int) -> Literal["valid", "expired", "wrong"]:
    """Whether a link was signed with this key and has not expired. Compares in constant time."""
    if not hmac.compare_digest(link.signature, _sign(key, link.checkpoint, link.expires)):
        return "wrong"
    return "valid" if now_ms < link.expires * 1000 else "expired"


def _sign(key: bytes, checkpoint: str, expires: int) -> str:
    digest = hmac.new(key, f"{checkpoint} {expires}".encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).rstrip(b"=").decode()


def answers(known: Message, body: bytes) -> list[str]:
    """The answer in a submitted form; empty if there is none.

    Raises:
        ValueError: the body is not a form of the answer page.
    """
    fields = parse_qs(body.decode("utf-8"), keep_blank_values=True, max_num_fields=MAX_ANSWERS + 1)
    given = [text[:MAX_ANSWER] for text in fields.get("answer", [])]
    message = fields.get("message", [""])[0].strip()
    if known.kind == "permission" and given == ["reject"] and message:
        return ["reject", message[:MAX_ANSWER]]
    return given


def form_page(known: Message, problem: str = "") -> str:
    """The page on which a person answers; for a closed checkpoint, it shows how it was answered."""
    alert = f"<p class=bad>{escape(problem)}</p>" if problem else ""
    if not known.is_open:
        # The link stays in the phone's history, so from now on it shows neither the question nor the answer.
        return _page(f"<h1>OpenCode asked</h1>{alert}<p>It is {escape(known.state)}. There is nothing to do.</p>")
    since = f"<p>Waiting {sentences.since(known.queued)}.</p>"
    head = f"<h1>{escape(sentences.heading(known))}</h1>{since}<pre>{escape(visible(known.text))}</pre>{alert}"
    if may_answer(known, ["once"]):
        return _page(head + _forms(known))
    seen = (
        f"{known.left_out} characters are left out, so nothing can be allowed here. To read it whole and to answer it, "
        f"run `durable-stream checkpoints {known.id}`."
    )
    return _page(f"{head}<p class=bad>{escape(seen)}</p>{_reject(known)}")


def _reject(known: Message) -> str:
    if known.kind == "permission":
        return _form('<input name=message placeholder="A message for the model (optional)">', "reject", "Reject")
    return _form("", "reject", "Dismiss the question") if known.kind == "question" else ""


def _forms(known: Message) -> str:
    if known.kind == "permission":
        # "Always" allows more than what is shown above, so it is offered only with the patterns that it allows.
        covers = f"Allow always: {visible(always_text(known))}"
        always = _form("", "always", covers) if known.always else ""
        return _form("", "once", "Allow once") + always + _reject(known)
    chosen = "".join(_form("", option, option) for option in known.options)
    if known.kind == "effect":
        return chosen
    number = known.questions if known.kind == "question" else 1
    fields = "<input name=answer required placeholder='Your answer'>" * number
    own = f"<form method=post>{fields}<button>Send</button></form>"
    return chosen + own + _reject(known)


def _form(fields: str, value: str, label: str) -> str:
    button = f'<button name=answer value="{escape(value)}">{escape(label)}</button>'
    return f"<form method=post>{fields}{button}</form>"


def text_page(text: str) -> str:
    return _page(f"<p>{escape(text)}</p>")


def _page(body: str) -> str:
    return f"<!doctype html><html lang=en><head>{_HEAD}</head><body>{body}</body></html>"


_HEAD: Final = (
    '<meta charset=utf-8><meta name=viewport content="width=device-width,initial-scale=1"><meta name=robots '
    "content=noindex><title>OpenCode waits for you</title><style>"
    "body{font:17px/1.5 system-ui,sans-serif;max-width:34em;margin:2em auto;padding:0 1em;color-scheme:light dark}"
    "h1{font-size:1.2em}pre{white-space:pre-wrap;overflow-wrap:anywhere;border-left:3px solid;padding-left:1em}"
    "button,input{font:inherit;width:100%;box-sizing:border-box;padding:.7em;margin:.3em 0}.bad{font-weight:bold}"
    "</style>"
)
