"""A scripted model: an OpenAI-compatible streaming server that follows the prompt's script.

The tests drive the real OpenCode client, and the client asks this server what the "model" says.
The script is in the **last user message** of a request:

=============================  ======================================================================
``CALL:tool {json}``           a tool call; several in one step are parallel calls
``SAY:text``                   answers with the rest of the line
``REASON:text``                streams the text (to the next marker) as reasoning before the answer
``THEN:``                      the rest is for the model's next step in the same turn
``CALLID:id``                  this and every later call of the session has this id (``CALLID:off``;
                              ``CALLID:empty`` is no id)
``HOLD:name``                  answers only after ``server.release(name)``
``SLEEP:s``                    waits before the first byte
``DRIP:n,s``                   n pieces of text with a pause of s seconds after each
``USAGE:n``                    reports n prompt tokens (more than the context: OpenCode compacts)
``HTTPERR:code[*n][,s]``       answers with that status (the first n times), and ``retry-after: s``
``CTXERR[:always]``            once (or always): 400, the context is too long
``CUT[:always]``               once (or always): ends the answer in the middle, without a finish reason
=============================  ======================================================================

Without ``SAY`` or ``CALL`` the answer echoes the prompt; after tool results it is
``RESULT<<first | second>>`` unless a ``THEN:`` step is left. Requests without tools (OpenCode asks so
for titles and summaries) ignore the script and get ``PLAIN_ANSWER``, unless ``server.answer`` overrides it;
so do requests for a summary by a template, which get a title of the template, too.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

HANG_LIMIT_S = 180.0
"""Longest wait for anything; only a hung test reaches it."""

PLAIN_ANSWER = "plain answer of the scripted model"
MODEL_ID = "mock-1"
SUMMARY_TITLE = "## Objective"
"""OpenCode 2 accepts a summary only if it follows its template, of which this is one title."""

_MARKER = re.compile(
    r"(?P<call>CALL:(?P<tool>[A-Za-z0-9_.-]+)[ \t]*)"
    r"|(?P<then>THEN:)"
    r"|SAY:(?P<say>(?:(?!THEN:)[^\n])*)"
    r"|REASON:(?P<reason>(?:(?!(?:CALL|SAY|THEN|HOLD|CALLID):)[^\n])*)"
    r"|CALLID:(?P<call_id>\S+)"
    r"|HOLD:(?P<hold>[\w.-]+)"
    r"|SLEEP:(?P<sleep>[\d.]+)"
    r"|DRIP:(?P<drip>\d+),(?P<pause>[\d.]+)"
    r"|USAGE:(?P<usage>\d+)"
    r"|HTTPERR:(?P<status>\d+)(?:\*(?P<times>\d+))?(?:,(?P<retry>\d+))?"
    r"|(?P<overflow>CTXERR(?::always)?)"
    r"|(?P<cut>\bCUT\b(?::always)?)"
)


@dataclass
class Step:
    """The model's actions in one answer."""

    calls: list[tuple[str, Any]] = field(default_factory=list)
    say: str | None = None
    reason: str | None = None
    call_id: str | None = None
    hold: str | None = None
    sleep_s: float = 0.0
    pieces: int = 2
    pause_s: float = 0.0
    usage: int = 10
    status: int | None = None
    status_times: int | None = None
    retry_after_s: int | None = None
    overflow: str | None = None
    cut: str | None = None


def parse_script(text: str) -> list[Step]:
    """The steps of a turn, in order; at least one, which may be empty.

    A call's JSON is skipped as a whole, so a ``task`` call can carry a script for its child.
    """
    if len(text) > 1 and text[0] == text[-1] == '"':
        # `opencode run "a b"` hands the text on with quotes around it and the inner ones escaped
        text = text[1:-1].replace('\\"', '"')
    steps = [Step()]
    at = 0
    decoder = json.JSONDecoder()
    while found := _MARKER.search(text, at):
        at = found.end()
        step = steps[-1]
        if found["then"]:
            steps.append(Step())
        elif found["call"]:
            arguments: Any = {}
            if text.startswith("{", at):
                arguments, at = decoder.raw_decode(text, at)
            step.calls.append((found["tool"], arguments))
        elif found["say"] is not None:
            step.say = found["say"].strip()
        elif found["reason"] is not None:
            step.reason = found["reason"].strip()
        elif found["call_id"]:
            step.call_id = found["call_id"]
        elif found["hold"]:
            step.hold = found["hold"]
        elif found["sleep"]:
            step.sleep_s = float(found["sleep"])
        elif found["drip"]:
            step.pieces, step.pause_s = int(found["drip"]), float(found["pause"])
        elif found["usage"]:
            step.usage = int(found["usage"])
        elif found["status"]:
            step.status = int(found["status"])
            step.status_times = int(found["times"]) if found["times"] else None
            step.retry_after_s = int(found["retry"]) if found["retry"] else None
        elif found["overflow"]:
            step.overflow = found["overflow"]
        elif found["cut"]:
            step.cut = found["cut"]
    return steps


@dataclass(frozen=True)
class ModelRequest:
    """One request of OpenCode to the model, as received."""

    number: int
    """1, 2, 3, … over the server's life."""
    session: str
    """OpenCode's session id (it sends it as a header); empty when the header is absent."""
    headers: dict[str, str]
    """Names in lower case."""
    body: dict[str, Any]

    @property
    def has_tools(self) -> bool:
        """False for OpenCode's own requests: titles and summaries."""
        return bool(self.body.get("tools"))

    @property
    def user_text(self) -> str:
        """The text of the last user message; empty if there is none."""
        return next((_text(m) for m in reversed(self.messages) if m.get("role") == "user"), "")

    @property
    def messages(self) -> list[dict[str, Any]]:
        """All messages of the request, including the system's."""
        return list(self.body.get("messages", []))

    def since_user(self) -> list[dict[str, Any]]:
        """The messages after the last user message: earlier steps of this turn and their results."""
        after: list[dict[str, Any]] = []
        for message in reversed(self.messages):
            if message.get("role") == "user":
                break
            after.insert(0, message)
        return after


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", "") for part in content if isinstance(part, dict))
    return content or ""


class ModelServer:
    """The scripted model on a free loopback port; a context manager.

    ``requests`` grows as requests arrive. ``answer``, if set, is called first and may return the
    ``Step`` for a request (also for one without tools), or None to leave it to the script.
    Leaving the context releases every hold and stops the server.
    """

    def __init__(self) -> None:
        self.requests: list[ModelRequest] = []
        self.errors: list[BaseException] = []
        self.answer: Callable[[ModelRequest], Step | None] | None = None
        self._changed = threading.Condition()
        self._held: Counter[str] = Counter()
        self._released: set[str] = set()
        self._closing = threading.Event()
        self._call_ids: dict[str, str] = {}
        self._failures: Counter[tuple[str, str]] = Counter()
        self._answers = itertools.count(1)
        self._server = _Server(("127.0.0.1", 0), _handler(self))
        self._thread = threading.Thread(target=self._server.serve_forever, name="model", daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> ModelServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._closing.set()
            self._changed.notify_all()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(HANG_LIMIT_S)

    def release(self, name: str) -> None:
        """Let all current and later requests held as ``name`` continue. Idempotent."""
        with self._changed:
            self._released.add(name)
            self._changed.notify_all()

    def wait_held(self, name: str, timeout: float = HANG_LIMIT_S) -> None:
        """Wait until a request waits in ``HOLD:name``: the model "thinks".

        Raises:
            TimeoutError: no such request arrived within ``timeout`` seconds.
            ValueError: ``name`` was released before, so that nothing waits in it.
        """
        if name in self._released:
            raise ValueError(f"{name!r} was released: hold another name")
        self._wait(lambda: self._held[name] > 0, f"a request held as {name!r}", timeout)

    def of(self, session: str) -> list[ModelRequest]:
        """The requests of one session so far, including those for titles and summaries."""
        return [request for request in self.requests if request.session == session]

    def report(self) -> str:
        """The newest requests, for a test that failed."""
        lines = [f"{r.number} {r.session} tools={r.has_tools} {r.user_text[:200]!r}" for r in self.requests[-20:]]
        return "\n".join([*lines, *map(repr, self.errors)])

    def _wait(self, condition: Callable[[], bool], what: str, timeout: float) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: condition() or self._closing.is_set(), timeout):
                raise TimeoutError(f"the scripted model waited {timeout} s for {what}")
            if not condition():
                raise RuntimeError(f"the scripted model was closed while a test waited for {what}")

    # What follows runs in the threads of the requests.

    def _receive(self, headers: dict[str, str], body: dict[str, Any]) -> ModelRequest:
        with self._changed:
            request = ModelRequest(len(self.requests) + 1, headers.get("x-session-id", ""), headers, body)
            self.requests.append(request)
            self._changed.notify_all()
        return request

    def _plan(self, request: ModelRequest) -> Step:
        """The step that answers this request; returns after holds and pauses."""
        step = (self.answer(request) if self.answer else None) or self._scripted(request)
        if step.hold:
            with self._changed:
                self._held[step.hold] += 1
                self._changed.notify_all()
                self._changed.wait_for(lambda: step.hold in self._released or self._closing.is_set())
                self._held[step.hold] -= 1
        if step.sleep_s:
            self._closing.wait(step.sleep_s)
        return step

    def _scripted(self, request: ModelRequest) -> Step:
        if SUMMARY_TITLE in request.user_text:
            return Step(say=f"{SUMMARY_TITLE}\n{PLAIN_ANSWER}")
        if not request.has_tools:
            return Step(say=PLAIN_ANSWER)
        steps = parse_script(request.user_text)
        done = request.since_user()
        results = [_text(message) for message in done if message.get("role") == "tool"]
        number = sum(1 for message in done if message.get("role") == "assistant")
        if number < len(steps):
            step = steps[number]
        elif results:
            step = Step(say="RESULT<<" + " | ".join(results) + ">>")
        else:
            step = steps[-1]
        if step.say is None and not step.calls:
            step.say = "echo: " + request.user_text[-200:]
        if step.call_id:
            self._call_ids[request.session] = step.call_id
        if step.status is not None and self._over(request, "status", step.status_times):
            step.status = None
        if step.cut and self._over(request, "cut", None if ":" in step.cut else 1):
            step.cut = None
        if step.overflow and self._over(request, "overflow", None if ":" in step.overflow else 1):
            step.overflow = None
        return step

    def _over(self, request: ModelRequest, kind: str, times: int | None) -> bool:
        """True if a failure that happens ``times`` times a session has happened often enough."""
        with self._changed:
            self._failures[request.session, kind] += 1
            return times is not None and self._failures[request.session, kind] > times

    def _tool_calls(self, session: str, answer: int, step: Step) -> list[dict[str, Any]]:
        fixed = self._call_ids.get(session, "off")
        return [
            {
                "index": index,
                "id": f"call_{answer}_{index}" if fixed == "off" else "" if fixed == "empty" else fixed,
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(arguments)},
            }
            for index, (name, arguments) in enumerate(step.calls)
        ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print nothing; a handler's exceptions are in ``ModelServer.errors``."""


def _handler(model: ModelServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing; the requests are in ``ModelServer.requests``."""

        def do_GET(self) -> None:
            self._json(200, {"object": "list", "data": [{"id": MODEL_ID, "object": "model"}]})

        def do_POST(self) -> None:
            self.close_connection = True
            try:
                body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
                headers = {name.lower(): value for name, value in self.headers.items()}
                request = model._receive(headers, body)
                self._reply(request, model._plan(request))
            except ConnectionError:
                pass  # OpenCode gave the request up: an abort, or its process was killed
            except BaseException as error:
                model.errors.append(error)
                raise

        def _reply(self, request: ModelRequest, step: Step) -> None:
            if step.overflow:
                text = "This model's maximum context length is 32000 tokens. Please reduce the length."
                return self._error(400, text, "invalid_request_error", "context_length_exceeded")
            if step.status is not None:
                return self._error(step.status, "scripted error", "mock", "mock", step.retry_after_s)
            if not request.body.get("stream"):
                raise ValueError("the scripted model only streams")
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            for item in self._chunks(request, step):
                self.wfile.write(b"data: " + item.encode() + b"\n\n")
                self.wfile.flush()

        def _chunks(self, request: ModelRequest, step: Step) -> Iterator[str]:
            number = next(model._answers)

            def chunk(delta: dict[str, Any], finish: str | None = None) -> str:
                choice = {"index": 0, "delta": delta, "finish_reason": finish}
                return json.dumps(frame | {"choices": [choice]})

            frame = {
                "id": f"chatcmpl-{number}",
                "object": "chat.completion.chunk",
                "created": 0,
                "model": request.body.get("model", MODEL_ID),
            }
            yield chunk({"role": "assistant", "content": ""})
            if step.reason:
                yield chunk({"reasoning_content": step.reason})
            for index, piece in enumerate(_pieces(step.say or "", step.pieces)):
                yield chunk({"content": piece})
                if step.cut and index == 0:
                    return
                if step.pause_s:
                    model._closing.wait(step.pause_s)
            if calls := model._tool_calls(request.session, number, step):
                yield chunk({"tool_calls": calls})
            yield chunk({}, "tool_calls" if calls else "stop")
            usage = {"prompt_tokens": step.usage, "completion_tokens": 5, "total_tokens": step.usage + 5}
            yield json.dumps(frame | {"choices": [], "usage": usage})
            yield "[DONE]"

        def _error(self, status: int, message: str, kind: str, code: str, retry_after_s: int | None = None) -> None:
            self._json(status, {"error": {"message": message, "type": kind, "code": code}}, retry_after_s)

        def _json(self, status: int, value: Any, retry_after_s: int | None = None) -> None:
            data = json.dumps(value).encode()
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(data)))
            if self.close_connection:  # said, so that OpenCode does not send its next request over this connection
                self.send_header("connection", "close")
            if retry_after_s is not None:
                self.send_header("retry-after", str(retry_after_s))
            self.end_headers()
            self.wfile.write(data)

    return Handler


def _pieces(text: str, count: int) -> list[str]:
    """``text`` in at most ``count`` pieces of similar length; none for an empty text."""
    size = max(1, -(-len(text) // count))
    return [text[at : at + size] for at in range(0, len(text), size)]
