"""What every ``Host`` must do, on a real OpenCode. A subclass gives the host, a directory and the scripted model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from sidecar.background.effects import HostActs
from sidecar.background.hosts import v1, v2
from sidecar.background.hosts.host import Part
from sidecar.background.hosts.v1 import V1Host
from sidecar.background.hosts.v2 import V2Host
from tests.real.model_server import HANG_LIMIT_S, MODEL_ID, ModelServer
from tests.sidecar.background.support import PLAIN, Only

MODEL = f"mock/{MODEL_ID}"
QUESTIONS = [
    {
        "question": f"Which {what}?",
        "header": what,
        "options": [{"label": label, "description": label} for label in ("Blue", "Red")],
    }
    for what in ("door", "window")
]


def asking(tool: str) -> dict[str, Any]:
    """The configuration in which a tool asks first."""
    return {"permission": {tool: "ask"}}


class HostContract:
    """``host``, ``directory`` and ``model`` are set by the subclass before each test, and so is ``phantoms``."""

    host: V1Host | V2Host
    directory: str
    model: ModelServer
    phantoms: set[str]
    """The sessions that the host takes for background work; the contract adds those it creates."""
    shell: str
    """The name of the tool that runs a command; it asks for a permission."""

    async def own(self) -> str:
        """A new session of the user's own."""
        raise NotImplementedError

    async def asked(self, session: str, kind: str) -> list[str]:
        """The permissions, or questions, that wait for an answer in a session, as OpenCode says."""
        raise NotImplementedError

    async def children(self, session: str) -> list[str]:
        """The children of a session, as OpenCode says."""
        raise NotImplementedError

    # --- shared by the tests ---

    async def new(self, intent: str, parent: str | None = None) -> str:
        about: dict[str, Any] = {"directory": self.directory, "parent": parent}
        session = await self.host.create(intent, title="t", **about)
        assert await self.host.create(intent, title="t", **about) == session
        self.phantoms.add(session)
        return session

    async def users(self) -> str:
        """A new session of the user's own, once the host knows where it lives."""
        session = await self.own()
        await until(lambda: self.is_status(session, "idle"))
        return session

    async def say(self, session: str, *texts: str, key: str, reply: bool = True) -> bool:
        parts = [Part(text, f"{session}:{key}:{number}", is_prompt=True) for number, text in enumerate(texts)]
        return await self.host.prompt(session, parts, directory=self.directory, model=MODEL, reply=reply)

    async def holds(self, session: str, key: str) -> bool:
        return await self.host.holds(session, f"{session}:{key}", directory=self.directory)

    async def is_state(self, session: str, state: str) -> bool:
        return (await self.host.look(session, directory=self.directory)).state == state

    async def answered(self, session: str) -> str:
        """What the model said, once its turn is over."""
        await until(lambda: self.is_state(session, "answered"))
        return (await self.host.look(session, directory=self.directory)).text

    async def is_status(self, session: str, status: str) -> bool:
        return await self.host.status(session) == status

    def calls(self, session: str) -> int:
        """How often the model was called for an answer in a session."""
        return sum(request.has_tools for request in self.model.of(session))

    async def one_asked(self, session: str, kind: str) -> str:
        await until(lambda: self.asked(session, kind))
        (request,) = await self.asked(session, kind)
        return request

    # --- sessions ---

    async def test_one_intent_has_one_session_however_often_it_is_created(self) -> None:
        session = await self.new("int_once")
        again = await self.host.create("int_once", title="t", directory=self.directory, parent=None)
        assert again == session

    async def test_a_session_is_a_child_of_the_one_that_started_it_unless_that_is_lacked(self) -> None:
        parent = await self.users()
        session = await self.new("int_child", parent)
        assert await self.children(parent) == ([] if "children" in self.host.lacks else [session])

    async def test_a_session_that_is_gone_is_told_apart(self) -> None:
        assert await self.is_state("ses_ds2nowhere", "gone")

    # --- messages ---

    async def test_a_message_with_a_key_is_there_once(self) -> None:
        session = await self.new("int_message")
        assert not await self.holds(session, "once:0")
        assert await self.say(session, "SAY:once", key="once")
        await until(lambda: self.holds(session, "once:0"))
        assert not await self.say(session, "SAY:once", key="once")
        assert await self.answered(session) == "once"
        assert not await self.say(session, "SAY:once", key="once")
        assert self.calls(session) == 1

    async def test_a_message_that_is_sent_twice_at_once_is_there_once(self) -> None:
        session = await self.users()
        await self.once(session, "SAY:first", "first")
        await self.once(session, "SAY:second", "second")

    async def once(self, session: str, text: str, answer: str) -> None:
        """Send it twice at once; the model answers once."""
        before = self.calls(session)
        await asyncio.gather(*(self.say(session, "a note", text, key=answer) for _ in range(2)))
        await until(lambda: self.is_last(session, answer))
        assert not await self.say(session, "a note", text, key=answer)
        await until(lambda: self.is_status(session, "idle"))
        assert self.calls(session) == before + 1

    async def is_last(self, session: str, answer: str) -> bool:
        look = await self.host.look(session, directory=self.directory)
        return (look.state, look.text) == ("answered", answer)

    async def test_a_wake_counts_as_kept_only_once_the_history_has_it(self) -> None:
        session = await self.users()
        args = {"session": session, "texts": [{"key": f"{session}:wake:0", "text": "SAY:awake"}], "wake": True}
        acts = HostActs(Only(self.host), PLAIN, print)
        assert await acts.wake(args, "key") == {"status": "sent", "saved": True}
        assert await self.holds(session, "wake:0")
        await until(lambda: self.is_called(session))
        await until(lambda: self.is_status(session, "idle"))
        assert await acts.wake(args, "key") == {"status": "sent", "saved": True}
        assert self.calls(session) == 1

    async def is_called(self, session: str) -> bool:
        return self.calls(session) > 0

    async def test_a_note_wakes_nobody_until_the_next_message(self) -> None:
        session = await self.users()
        assert await self.say(session, "SAY:only a note", key="note", reply=False)
        await until(lambda: self.holds(session, "note:0"))
        assert await self.host.status(session) == "idle"
        assert self.calls(session) == 0
        assert await self.say(session, "SAY:awake", key="wake")
        assert await self.answered(session) == "awake"
        assert self.calls(session) == 1
        assert "only a note" in json.dumps(self.model.of(session)[-1].body)

    # --- forks ---

    async def test_a_fork_has_the_messages_before_one_and_runs_nothing_by_itself(self) -> None:
        session = await self.users()
        for text in ("one", "two"):
            assert await self.say(session, f"SAY:{text}", key=text)
            await until(lambda text=text: self.is_last(session, text))  # type: ignore[misc]
        ids = await self.ids(session)
        assert len(ids) == 4
        whole, fork = [await self.host.fork(session, each, directory=self.directory) for each in (None, ids[2])]
        assert (len(await self.ids(whole)), len(await self.ids(fork))) == (4, 2)
        await until(lambda: self.is_status(fork, "idle"))
        assert self.calls(whole) == self.calls(fork) == 0
        assert await self.host.prompt(fork, [Part("SAY:three", "")], directory=self.directory, model=MODEL)
        await until(lambda: self.is_called(fork))
        await until(lambda: self.is_status(fork, "idle"))
        said = json.dumps(self.model.of(fork)[-1].body)
        assert "SAY:one" in said and "SAY:two" not in said
        assert await self.ids(session) == ids

    async def test_a_session_that_is_gone_has_no_messages_and_a_new_one_can_begin(self) -> None:
        session = await self.users()
        assert await self.host.message_ids("ses_0nowhere", directory=self.directory) is None
        begun = await self.host.begin(session, "t", directory=self.directory)
        assert await self.ids(begun) == []

    async def ids(self, session: str) -> list[str]:
        found = await self.host.message_ids(session, directory=self.directory)
        assert found is not None
        return found

    # --- work ---

    async def test_a_session_at_work_is_busy_until_it_is_stopped(self) -> None:
        session = await self.new("int_stopped")
        await until(lambda: self.is_status(session, "idle"))
        assert await self.say(session, "HOLD:contract SAY:never", key="stopped")
        await until(lambda: self.is_status(session, "busy"))
        assert await self.is_state(session, "busy")
        await self.host.abort(session, directory=self.directory)
        await until(lambda: self.is_status(session, "idle"))
        await until(lambda: self.is_state(session, "aborted"))
        self.model.release("contract")
        await self.host.abort(session, directory=self.directory)  # nothing runs: no error

    async def test_a_session_is_silent_while_the_model_is_and_not_while_a_tool_runs(self) -> None:
        session = await self.users()
        assert await self.say(session, f"{self.command('echo asked')} THEN: HOLD:silent SAY:over", key="silent")
        request = await self.one_asked(session, "permission")
        looks = [await self.quiet(session) for _ in range(3)]
        assert looks == [0, 0, 0]
        assert await self.answer(session, request, "permission", ["once"]) == "answered"
        await asyncio.to_thread(self.model.wait_held, "silent")
        await until(lambda: self.quiet(session))
        before = await self.quiet(session)
        await until(lambda: self.is_quieter(session, before))
        self.model.release("silent")
        assert await self.answered(session) == "over"

    async def quiet(self, session: str) -> int:
        """For how many ms a busy session shows no activity."""
        look = await self.host.look(session, directory=self.directory)
        assert look.state == "busy"
        return look.quiet_ms

    async def is_quieter(self, session: str, before: int) -> bool:
        return await self.quiet(session) > before

    async def test_a_turn_that_failed_is_over(self) -> None:
        session = await self.new("int_failed")
        assert await self.say(session, "HTTPERR:400", key="failed")
        await until(lambda: self.is_state(session, "failed"))

    async def test_a_session_that_lost_its_prompt_is_told_apart(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(v1, "_SAVED_SECONDS", 0.0)
        monkeypatch.setattr(v2, "SETTLE_SECONDS", 0.0)
        assert await self.is_state(await self.new("int_unprompted"), "unprompted")

    # --- people ---

    async def test_a_permission_takes_one_answer(self) -> None:
        session = await self.users()
        assert await self.say(session, self.command("echo allowed"), key="once")
        request = await self.one_asked(session, "permission")
        assert await self.answer(session, request, "permission", ["once"]) == "answered"
        assert "allowed" in await self.answered(session)
        assert await self.answer(session, request, "permission", ["reject"]) == "gone"

    async def test_the_model_reads_why_a_permission_was_refused(self) -> None:
        session = await self.users()
        assert await self.say(session, self.command("echo refused"), key="reject")
        request = await self.one_asked(session, "permission")
        assert await self.answer(session, request, "permission", ["reject", "use the other one"]) == "answered"
        said = await self.answered(session)
        assert ("use the other one" in said) is ("reasons" not in self.host.lacks)

    async def test_a_question_takes_one_answer(self) -> None:
        session, request = await self.questioned()
        assert await self.answer(session, request, "question", ["Red", "none of them"]) == "answered"
        said = await self.answered(session)
        assert '"Which door?"="Red"' in said and '"Which window?"="none of them"' in said
        assert await self.answer(session, request, "question", ["Red", "Red"]) == "gone"

    async def test_a_question_is_refused(self) -> None:
        session, request = await self.questioned()
        assert await self.answer(session, request, "question", ["reject"]) == "answered"
        await until(lambda: self.is_status(session, "idle"))
        assert await self.asked(session, "question") == []

    async def questioned(self) -> tuple[str, str]:
        session = await self.users()
        assert await self.say(session, f"CALL:question {json.dumps({'questions': QUESTIONS})}", key="question")
        return session, await self.one_asked(session, "question")

    def command(self, command: str) -> str:
        return f"CALL:{self.shell} {json.dumps({'command': command, 'description': 'd'})}"

    async def answer(self, session: str, request: str, kind: str, answer: Sequence[str]) -> str:
        return await self.host.answer(session, request, kind, list(answer))

    async def test_a_toast_is_shown_unless_that_is_lacked(self) -> None:
        session = await self.users()
        assert await self.host.toast(session, "title", "text") is ("toasts" not in self.host.lacks)


async def until(condition: Callable[[], Awaitable[Any]]) -> None:
    """Ask again until it holds; what it asks is another process."""
    async with asyncio.timeout(HANG_LIMIT_S):
        while not await condition():
            await asyncio.sleep(0.05)
