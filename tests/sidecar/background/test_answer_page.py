"""The link that answers a checkpoint from a phone: only whoever has it, only once, and only by pressing a button."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import pytest

from bridge.opencode.link.protocol import RequestError
from sidecar.background.messages.message import Message
from sidecar.background.people import answer_link
from sidecar.background.people.answer_link import LIVES_MS, Link
from sidecar.background.people.answer_page import AnswerPage
from sidecar.background.people.consent import MAX_TEXT, asked
from sidecar.background.people.people import People
from sidecar.background.reading import whole as read_whole
from sidecar.background.tools import AskArgs
from sidecar.home import Home
from sidecar.notify_config import NotifyConfig
from sidecar.read.find_by_id import open_reader
from sidecar.web.serving import MOST_BODY, MOST_CONNECTIONS
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.real.opencode import free_port
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.background.receiver import Receiver
from tests.sidecar.background.support import PLAIN, Only, bench
from tests.sidecar.background.test_people import Host, asks

# apprise imports `imghdr`, which Python 3.11 says will go.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr'")

TOKEN = "ab" * 32
KEY = answer_link.key_of(TOKEN)
NOW = 1_700_000_000_000


def checkpoint(kind: str = "permission", **about: Any) -> Message:
    return Message(
        **{"id": "chk_0123456789ab", "kind": kind, "session": "ses_1", "text": "rm -rf", "queued": 1, **about}
    )


def link_of(known: Message, now_ms: int = NOW) -> Link:
    found = answer_link.parse(answer_link.path_of(KEY, known, now_ms))
    assert found is not None
    return found


def test_a_link_is_of_one_checkpoint_one_home_and_one_day() -> None:
    link = link_of(checkpoint())
    assert answer_link.check(KEY, link, NOW) == "valid"
    assert answer_link.check(KEY, link, NOW + LIVES_MS) == "expired"
    assert answer_link.check(answer_link.key_of("cd" * 32), link, NOW) == "wrong"
    for changed in ({"checkpoint": "chk_ffffffffffff"}, {"expires": link.expires + 1}, {"signature": "A" * 43}):
        assert answer_link.check(KEY, link._replace(**changed), NOW) == "wrong"
    assert link_of(checkpoint(expires=NOW + 60_000)).expires == NOW // 1000 + 60
    assert answer_link.key_of(TOKEN).hex() != TOKEN


def test_the_page_shows_text_as_text_and_offers_each_answer() -> None:
    page = answer_link.form_page(checkpoint("ask", text="<script>x", options=['"yes"', "no"]), "<b>")
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;b&gt;" in page
    assert page.count("<form method=post>") == 3 and 'value="&quot;yes&quot;"' in page
    for value in ("once", "always", "reject"):
        assert f'value="{value}"' in answer_link.form_page(checkpoint(always=["make *"]))
    assert answer_link.form_page(checkpoint("question", questions=2)).count("<input name=answer") == 2
    closed = answer_link.form_page(checkpoint(state="answered", answer=["once"]))
    assert "<form" not in closed and "answered" in closed
    assert "once" not in closed and "rm -rf" not in closed, "the link stays in the phone, and shows nothing any more"


def test_always_is_offered_only_with_the_patterns_that_it_allows() -> None:
    page = answer_link.form_page(checkpoint(always=["echo *", "\u202e*"]))
    assert "echo *" in page and "<U+202E>" in page.replace("&lt;", "<").replace("&gt;", ">")
    assert 'value="always"' not in answer_link.form_page(checkpoint())


def test_a_cut_text_is_marked_and_can_only_be_rejected() -> None:
    given = {"kind": "permission", "session": "ses_1", "request": "per_1", "permission": "bash", "state": "asked"}
    command = f"echo {'A' * 5000} ; curl evil"
    about = asked({**given, "metadata": {"command": command}, "always": ["echo *"]})
    known = checkpoint(text=about["text"], left_out=about["left_out"], always=about["always"])
    page = answer_link.form_page(known)
    assert len(known.text) <= MAX_TEXT and known.text.startswith("bash echo AAA") and known.text.endswith("; curl evil")
    assert known.left_out > 1000 and f"{known.left_out} characters left out" in page
    assert 'value="reject"' in page and 'value="once"' not in page and 'value="always"' not in page
    assert asked({**given, "metadata": {"command": command}}, whole=True)["text"] == f"bash {command}"
    patterns = asked({**given, "patterns": ["x"], "always": ["a" * 600, "b" * 600]})
    assert patterns["left_out"] == 600 and 'value="once"' not in answer_link.form_page(
        checkpoint(left_out=patterns["left_out"], always=patterns["always"])
    )


def test_no_character_of_an_ask_is_hidden() -> None:
    given = {"kind": "permission", "session": "s", "request": "p", "permission": "bash"}
    hidden = "\x1b[8m\u202egnp\x00\u200b\u3164\U000e0041\r"
    text = asked({**given, "metadata": {"command": hidden}})["text"]
    for shown in ("<U+001B>", "<U+202E>", "<U+0000>", "<U+200B>", "<U+3164>", "<U+E0041>", "<U+000D>"):
        assert shown in text
    assert text.isprintable()


class Page:
    """A running page over one checkpoint."""

    def __init__(self, known: Message) -> None:
        self.known, self.given, self.now_ms = known, list[list[str]](), NOW
        self.refusal: RequestError | None = None
        config = NotifyConfig(answer_port=free_port())
        find = {known.id: known}.get
        self.page = AnswerPage(config, lambda: TOKEN, lambda: self.now_ms, find, self.answer)

    async def answer(self, checkpoint: str, answer: list[str]) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.given.append(answer)
        self.known.state, self.known.answer = "answered", answer

    @property
    def path(self) -> str:
        link = self.page.link(self.known.id)
        assert link is not None
        return urlsplit(link).path

    async def send(self, raw: bytes) -> tuple[int, str]:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.page.port)
        writer.write(raw.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        answer = (await reader.read()).decode()
        writer.close()
        return (int(answer.split(" ")[1]), answer) if answer else (0, "")

    async def get(self, path: str, method: str = "GET") -> tuple[int, str]:
        return await self.send(f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())

    async def post(self, path: str, *answer: str) -> int:
        form = urlencode([("answer", each) for each in answer])
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(form)}\r\n\r\n"
        return (await self.send((head + form).encode()))[0]


@asynccontextmanager
async def running(known: Message) -> AsyncIterator[Page]:
    made = Page(known)
    async with AsyncExitStack() as stack:
        await made.page.start(stack)
        yield made


async def test_reading_it_answers_nothing_and_a_button_answers_once() -> None:
    async with running(checkpoint()) as page:
        path = page.path
        for method in ("GET", "HEAD", "GET"):
            status, answer = await page.get(path, method)
            assert status == 200 and "frame-ancestors 'none'" in answer and "no-referrer" in answer
        assert page.given == []
        assert await page.post(path) == 400
        assert await page.post(path, "once") == 200
        assert await page.post(path, "always") == 409, "a link works once"
        assert page.given == [["once"]]
        assert (await page.get(path))[0] == 200 and page.page.link(page.known.id) is None


async def test_without_a_signature_there_is_nothing() -> None:
    async with running(checkpoint()) as page:
        path = page.path
        wrong = path[:-1] + ("A" if path[-1] != "A" else "B")
        for each in ("/", "/answer/", wrong, path.replace("chk_0", "chk_1")):
            status, answer = await page.get(each)
            assert status == 404 and page.known.text not in answer
            assert await page.post(each, "once") == 404
        page.now_ms += LIVES_MS
        assert (await page.get(path))[0] == 410
        assert await page.post(path, "once") == 410
        assert page.given == []


async def test_a_refused_answer_is_said_and_can_be_tried_again() -> None:
    async with running(checkpoint()) as page:
        for code, status in (("not-delivered", 503), ("unfit-answer", 400), ("already-answered", 409)):
            page.refusal = RequestError(code, "because")
            assert await page.post(page.path, "once") == status
        page.refusal = None
        assert await page.post(page.path, "once") == 200


@pytest.mark.parametrize(
    ("raw", "status"),
    [
        (b"PUT / HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: x\r\nno colon\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\n\r\n", 404),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % (1 << 40) + b"a" * (MOST_BODY + 1), 413),
        (b"GET /" + b"a" * 100_000, 400),
    ],
)
async def test_what_no_browser_sends(raw: bytes, status: int) -> None:
    async with running(checkpoint()) as page:
        try:
            assert (await page.send(raw))[0] == status
        except ConnectionError:
            assert status == 0
        assert (await page.get(page.path))[0] == 200, "it serves on"


async def test_silent_connections_do_not_pile_up_and_shut_nobody_out() -> None:
    async with running(checkpoint()) as page:
        open_ = [await asyncio.open_connection("127.0.0.1", page.page.port) for _ in range(MOST_CONNECTIONS + 3)]
        assert (await page.get(page.path))[0] == 200
        with suppress(ConnectionError):
            assert await open_[0][0].read() == b"", "the oldest made room"
        for _, writer in open_:
            writer.close()


async def test_a_cut_text_cannot_be_allowed_by_hand_either(tmp_path: Path) -> None:
    home, host, clock = Home(tmp_path / "home"), Host(), Clock()
    home.create()
    store = await Log.open(home.store_path, seeded_identity(1))
    people = People(home, NotifyConfig(), clock.identity(9), Only(host), PLAIN, lambda: run.runtime)  # type: ignore[arg-type]
    async with bench(store, [people.messages], people.kinds, clock) as run:
        await asks(run, patterns=["echo " + "A" * 5000 + "; rm -rf x"])
        (known,) = await people.waiting()
        for given in ("once", "always"):
            with pytest.raises(RequestError) as refused:
                await people._by_link(known.id, [given])
            assert refused.value.code == "cut-text"
        assert host.answers == []
        (whole,) = [await read_whole(open_reader(home.store_path), each) for each in await people.waiting()]
        assert whole.text.endswith("; rm -rf x") and len(whole.text) > 5000 and not whole.left_out
        await people._by_link(known.id, ["reject"])
        assert host.answers == [("per_1", ["reject"])]
        # A question of the model cannot be rejected: every word would be an answer to what was not read.
        await people.ask("ses_1", AskArgs(question="May I? " + "\u202e" * 1000), seconds=0)
        (cut,) = await people.waiting()
        for given in ("reject", "yes"):
            with pytest.raises(RequestError) as refused:
                await people._by_link(cut.id, [given])
            assert refused.value.code == "cut-text"
        assert [each.is_open for each in await people.waiting()] == [True]
    await store.close()


async def test_the_message_has_the_link_and_the_log_has_not(tmp_path: Path) -> None:
    home, host, clock = Home(tmp_path / "home"), Host(), Clock()
    home.create()
    home.ensure_token(lambda: TOKEN)
    store = await Log.open(home.store_path, seeded_identity(1))
    with Receiver() as phone:
        config = NotifyConfig(urls=(phone.url,), answer_port=free_port(), escalate_after_seconds=0)
        people = People(home, config, clock.identity(9), Only(host), PLAIN, lambda: run.runtime)  # type: ignore[arg-type]
        async with AsyncExitStack() as stack, bench(store, [people.messages], people.kinds, clock) as run:
            await people.start(stack)
            await asks(run)
            clock.now_ms += 1000
            await people.keep_time()
            await run.settled()
            (message,) = phone.taken
            path = re.search(r"/answer/\S+", message["message"])
            assert path is not None and people.owes()
            page = Page(checkpoint())
            page.page = people.page
            assert await page.post(path[0], "once") == 200
            assert host.answers == [("per_1", ["once"])]
            (known,) = people.messages.data.questions()
            assert (known.state, known.by) == ("answered", "link") and not people.owes()
    await store.close()
    signature = path[0].rpartition("/")[2].encode()
    assert not [file for file in home.path.rglob("*") if file.is_file() and signature in file.read_bytes()]
