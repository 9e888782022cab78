"""The inspector on one port of the loopback interface: pages, data and live news."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from bridge.opencode.link.protocol import RequestError
from sidecar.inspector.access import Access
from sidecar.inspector.around import file_history
from sidecar.inspector.data import Data
from sidecar.inspector.team import TeamData
from sidecar.link.client import ClientError
from sidecar.read.find_by_id import SelectError
from sidecar.read.past.drawing import STYLE
from sidecar.read.transcript.html import ANSWERS
from sidecar.web.serving import body_of, listen, serving
from streams.errors import StreamError

PAGE: Final = Path(__file__).with_name("page")
POLICY: Final = "script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; form-action 'none'"
PULSE_SECONDS: Final = 15.0
"""How often an open page hears that nothing has happened, so that a closed one is noticed."""

_MEDIA: Final = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}

_encode: Final = msgspec.json.Encoder()


def _answer(value: Any, status: int = 200) -> Response:
    return Response(_encode.encode(value), status, media_type="application/json")


def _failed(code: str, text: str, status: int) -> Response:
    return _answer({"code": code, "error": text}, status)


def _number(request: Request, name: str) -> int | None:
    given = request.query_params.get(name)
    return int(given) if given is not None and given.isascii() and given.isdigit() and len(given) < 16 else None


def _moment(request: Request, name: str) -> int | None:
    """How many records there are after the event whose number is given; an event's number counts from 0."""
    number = _number(request, name)
    return None if number is None else number + 1


EVERYWHERE: Final = frozenset({"sessions", "search", "work"})
"""Requests that are about all machines, also on the page of one machine's session."""

Shown = Data | TeamData

Read = Callable[[Data, Request], Awaitable[Any]]
"""What answers a request from a home: returns a response, or the value that the answer has as JSON."""


def _reading(shown: Shown, name: str, read: Read) -> Callable[[Request], Awaitable[Any]]:
    """Reads the home that has what the request names; or all of them, if their answers can be put ``TOGETHER``."""

    async def found(request: Request) -> Any:
        machine = None if name in EVERYWHERE else request.query_params.get("machine")
        return await shown.ask(lambda data: read(data, request), machine, name, dict(request.query_params))

    return found


def _answering(shown: Shown, read: Callable[[Request], Awaitable[Any]]) -> Callable[[Request], Awaitable[Response]]:
    """A handler whose errors become JSON that says what happened. Each answer says where the log is damaged, or up to
    where it is known."""

    async def handle(request: Request) -> Response:
        answer = await judged(request)
        for name, text in shown.warnings.items():
            if text is not None:
                answer.headers[name] = quote(text)
        return answer

    async def judged(request: Request) -> Response:
        try:
            found = await read(request)
            return found if isinstance(found, Response) else _answer(found)
        except SelectError as error:
            return _failed(error.code, str(error), 404)
        except RequestError as error:
            return _failed(error.code, str(error), 409)
        except (StreamError, ClientError) as error:
            return _failed(getattr(error, "code", "unavailable"), str(error), 503)

    return handle


def build(shown: Shown) -> Starlette:
    """The application, without ``Access``."""

    # Read once, so that an update of the package does not mix two versions of the page.
    files = {file.name: file.read_bytes() for file in PAGE.iterdir() if file.is_file()}
    if shown.is_team:  # it has no buttons that change something
        files["index.html"] = files["index.html"].replace(b"<html ", b"<html data-team ", 1)

    async def page(request: Request) -> Response:
        name = request.path_params.get("file", "index.html")
        if name not in files:
            return _failed("not-found", "the page has no such file", 404)
        return Response(files[name], media_type=_MEDIA[Path(name).suffix])

    async def missing(request: Request, error: Exception) -> Response:
        if request.url.path.startswith(("/api/", "/page/")):
            return _failed("not-found", "there is nothing at this address", 404)
        return Response(files["index.html"], 404, media_type="text/html")

    async def style(request: Request) -> Response:
        return Response(STYLE + ANSWERS, media_type="text/css")

    async def search(data: Data, request: Request) -> Any:
        return await data.search(request.query_params.get("q", "").strip()[:200])

    async def session(data: Data, request: Request) -> Any:
        name, what = request.path_params["name"], request.path_params["what"]
        at, marks = _moment(request, "at"), _number(request, "marks")
        # A page that names its marks gets the head with the view, as of the same state of the log.
        match what:
            case "head":
                return await data.session(name, at, marks or 0)
            case "conversation":
                event = request.query_params.get("event")
                return await data.conversation(name, at, _number(request, "first"), marks, event)
            case "timeline":
                width, begin, end = (_number(request, each) for each in ("width", "from", "to"))
                return await data.timeline(name, at, width or 0, begin, end, marks)
            case "columns":
                return await data.columns(name)
            case "files":
                return await data.files(name, at, _moment(request, "since") or 0, marks)
            case "events":
                return await data.events(name, at, _number(request, "first") or 0, marks)
        return _failed("not-found", "a session has no such view", 404)

    async def compare(data: Data, request: Request) -> Any:
        one, other = (request.query_params.get(side, "") for side in ("a", "b"))
        return await data.compare(one, other, _moment(request, "at"), _moment(request, "to"))

    async def live(request: Request) -> Response:
        return StreamingResponse(news(shown), media_type="text/event-stream")

    async def act(request: Request) -> Any:
        body = await body_of(request)
        if body is None:
            return _failed("too-large", "the request is too large", 413)
        try:
            args = json.loads(body)
        except ValueError:
            args = None
        if not isinstance(args, dict) or request.headers.get("content-type") != "application/json":
            return _failed("bad-request", "send one JSON object", 400)
        return await shown.act(request.path_params["action"], args)

    pages = ["/", "/s/{name}", "/s/{name}/{tab}", "/e/{name}", "/work", "/costs", "/health"]
    pages += ["/compare/{a}", "/compare/{a}/{b}"]
    reads: dict[str, Read] = {
        "sessions": lambda data, request: data.sessions(),
        "search": search,
        "s/{name}/{what}": session,
        "e/{name}": lambda data, request: data.event(request.path_params["name"]),
        "call/{name}": lambda data, request: data.call(request.path_params["name"]),
        "file": lambda data, request: file_history(data.reader, request.query_params.get("path", "")),
        "compare": compare,
        "work": lambda data, request: data.work(),
        "diff/{name}": lambda data, request: data.diff(request.path_params["name"]),
        "costs": lambda data, request: data.costs(request.query_params.get("by", "day"), _number(request, "days") or 0),
        "health": lambda data, request: data.health(),
    }
    return Starlette(
        routes=[
            *(Route(path, page) for path in pages),
            *(Route(f"/api/{path}", _answering(shown, _reading(shown, path, read))) for path, read in reads.items()),
            Route("/api/live", live),
            Route("/api/do/{action}", _answering(shown, act), methods=["POST"]),
            Route("/page/told.css", style),
            Route("/page/{file}", page),
        ],
        exception_handlers={404: missing},
    )


async def news(shown: Shown) -> AsyncIterator[bytes]:
    """Server-sent events: the position of the log's last record, whenever it changes."""
    last, quiet = None, 0.0
    while True:
        head = await asyncio.to_thread(shown.head)
        if head != last:
            last, quiet = head, 0.0
            yield b"event: head\ndata: " + str(head).encode() + b"\n\n"
        elif quiet >= PULSE_SECONDS:
            quiet = 0.0
            yield b": still here\n\n"
        await asyncio.sleep(shown.look_seconds)
        quiet += shown.look_seconds


async def serve(shown: Shown, nonce: Callable[[], str], port: int, ready: Callable[[Access], None]) -> None:
    """Serve the page until cancelled; ``ready`` is called once the port is open.

    Raises:
        OSError: the port is in use.
    """
    listener = listen("127.0.0.1", port)
    access = Access(build(shown), nonce, listener.getsockname()[1])
    async with serving(access, listener, POLICY):
        ready(access)
        await shown.warm()
        await asyncio.Event().wait()
