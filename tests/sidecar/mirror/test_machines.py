"""Machines on one server: what one asks, another does once if it may, also after it was away. Real server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import nats
import orjson
import pytest

from bridge.nats.jetstream import streams as keeping
from bridge.nats.jetstream.options import ConnectOptions
from bridge.nats.jetstream.sessions import Sessions
from bridge.nats.jetstream.stream_plan import COMMANDS, DEAD
from bridge.opencode.link.protocol import RequestError
from sidecar.mirror.asking import Asks
from streams.identity import seeded_identity
from streams.store import NOTHING
from tests.memory import MemoryStore
from tests.mirrors import unsynced
from tests.nats_servers import TOKEN, RealServer, real_server
from tests.sidecar.mirror.machines import Machine, living

MAY = {"laptop": ("spawn", "cancel")}
LARGE = {"rows": ["ä" * 1000] * 3000}
"""Larger than several messages."""


async def test_a_request_is_done_once_with_the_right_to_do_so_and_its_answer_comes_back(
    server: RealServer, sessions: Sessions
) -> None:
    laptop, desk = Machine("laptop"), Machine("my desk", MAY)
    async with living(server, laptop, desk):
        given = {"prompt": "p", "key": "mine"}
        rights = ({"agent": "build"}, {"agent": "build"}, {"agent": "plan"})
        answers = await asyncio.gather(
            *(laptop.ask("my desk", "spawn", {**given, "rights": each}, "k1") for each in rights)
        )
        assert [(each["status"], each["value"]) for each in answers] == [("accepted", {"id": "int_1"})] * 3
        ((machine, name, args),) = desk.done
        assert (machine, name, args["prompt"]) == ("laptop", "spawn", "p") and desk.bys == ["user"]
        assert args["key"] not in ("mine", "k1"), "a machine does not choose a key of this one"
        for name, args, code in (("signal", {}, "not-allowed"), ("cancel", {"intent": "int_none"}, "no-intent")):
            answer = await laptop.ask("my desk", name, args, f"key {name}")
            assert (answer["status"], answer["error_code"]) == ("rejected", code)
        with pytest.raises(RequestError) as refused:
            await laptop.ask("my desk", "spawn", {"prompt": "other"}, "k1")
        assert refused.value.code == "key-conflict"
    assert len(desk.done) == 1 and laptop.asks.pending == {}
    assert (await laptop.types()).count("request.returned") == 3
    assert (await keeping.facts(await sessions.get(), COMMANDS)).messages == 0


async def test_while_a_machine_is_away_requests_wait_and_are_done_once_when_it_is_back(
    server: RealServer, sessions: Sessions
) -> None:
    laptop, desk = Machine("laptop"), Machine("desk", MAY)
    async with living(server, desk):
        pass
    async with living(server, laptop):
        assert await laptop.ask("desk", "spawn", {"prompt": "p"}, "k", 0.2) is None
        assert [each["machine"] for each in laptop.machines.status()["waiting"]] == ["desk"]
        with pytest.raises(RequestError) as away:
            await laptop.machines.question("desk", "intents", {})
        assert away.value.code == "machine-away" and "1 of your requests" in str(away.value)
        assert await laptop.ask("desk", "spawn", {"prompt": "never"}, "other", 0.2) is None
        unwanted = next(each for each in laptop.asks.pending.values() if each.args["prompt"] == "never")
        await laptop.machines.withdraw(unwanted)
    async with living(server, laptop):  # it was restarted, and sends again what has no answer
        assert await laptop.ask("desk", "spawn", {"prompt": "p"}, "k", 0.2) is None
    assert (await keeping.facts(await sessions.get(), COMMANDS)).messages == 1
    async with living(server, desk):  # the one that asked is away now
        while not desk.done:
            await asyncio.sleep(0.01)
    async with living(server, laptop):
        answer = await laptop.ask("desk", "spawn", {"prompt": "p"}, "k")
    assert answer["value"] == {"id": "int_1"} and len(desk.done) == 1


async def test_a_question_is_answered_at_once_whatever_its_size_and_stored_nowhere(
    server: RealServer, sessions: Sessions
) -> None:
    laptop, desk = Machine("laptop"), Machine("desk")
    async with living(server, laptop, desk):
        while not desk.machines.counts["read"]:
            try:
                assert await laptop.machines.question("desk", "intents", {}) == {"rows": []}
            except RequestError as error:
                assert error.code == "machine-away"  # it does not hear yet
        desk.answer = LARGE
        found = await asyncio.gather(*(laptop.machines.question("desk", "intents", {}) for _ in range(3)))
        assert found == [LARGE] * 3
        for machine, name, code in (("desk", "prune", "unknown-request"), ("nobody", "intents", "machine-away")):
            with pytest.raises(RequestError) as refused:
                await laptop.machines.question(machine, name, {})
            assert refused.value.code == code
        await laptop.machines.check_known("desk")
        with pytest.raises(RequestError) as unknown:
            await laptop.machines.check_known("nobody")
        assert unknown.value.code == "no-machine" and "desk" in str(unknown.value)
    assert await laptop.types() == await desk.types() == []


async def test_what_redaction_hides_does_not_leave_the_machine() -> None:
    store = MemoryStore()
    asks = Asks(store, seeded_identity(1), lambda args: {**args, "prompt": "[redacted]"})
    with pytest.raises(RequestError) as refused:
        await asks.send("desk", "spawn", {"prompt": "the password"}, "k")
    assert refused.value.code == "redacted-argument" and store.head == NOTHING


async def test_what_nobody_asked_for_is_refused_and_counted(server: RealServer, sessions: Sessions) -> None:
    laptop = Machine("laptop")
    client = await nats.connect(f"nats://127.0.0.1:{server.port}", token=TOKEN)
    async with living(server, laptop):
        id_ = await laptop.asks.send("desk", "spawn", {"prompt": "p"}, "k")
        stream = client.jetstream()
        forged = orjson.dumps({"status": "accepted", "value": {"id": "int_6"}})
        await stream.publish(f"cmd.other.laptop._home.answer.{id_}", forged)
        await stream.publish("cmd.desk.laptop._home.answer.abc", forged)
        for body in (b"not JSON", b"[]", b'{"name": 1}'):
            await stream.publish("cmd.desk.laptop._home.ask.abc", body)
        await stream.publish("cmd.desk.laptop._home.else.abc", b"{}")
        await client.publish("ask.desk.laptop", b"not JSON")
        async with asyncio.timeout(20):
            while (
                laptop.machines.counts["unasked"] < 2 or (await keeping.facts(await sessions.get(), DEAD)).messages < 4
            ):
                await asyncio.sleep(0.01)
        assert laptop.asks.pending.keys() == {id_} and await laptop.types() == ["request.sent"]
    await client.close()


def user(name: str) -> dict[str, Any]:
    """A user of the server, as the page on teams advises."""
    own = [f"cmd.{name}.*._home.>", f"ask.{name}.*"]
    publish = ["$JS.API.>", "$JS.ACK.>", "_INBOX.>", "evt.>", "cg.>", "dlq.>", *own]
    permissions = {"publish": {"allow": publish}, "subscribe": {"allow": ["_INBOX.>", f"ask.*.{name}"]}}
    return {"user": name, "password": "secret", "permissions": permissions}


async def test_with_a_user_for_each_machine_nobody_sends_as_another(tmp_path: Path) -> None:
    users = {"users": [user("laptop"), user("desk")]}
    with real_server(tmp_path, jetstream=unsynced(tmp_path), authorization=users) as server:
        laptop, desk = Machine("laptop"), Machine("desk", MAY)
        for each in (laptop, desk):
            each.options = ConnectOptions((f"nats://{each.name}:secret@127.0.0.1:{server.port}",))
        async with living(server, laptop, desk):
            assert (await laptop.ask("desk", "spawn", {"prompt": "p"}, "k"))["status"] == "accepted"
            desk.answer = LARGE
            assert await laptop.machines.question("desk", "intents", {}) == LARGE
            refused = asyncio.Event()

            async def erred(error: Exception) -> None:
                if "permissions violation" in str(error).lower():
                    refused.set()

            address = f"nats://desk:secret@127.0.0.1:{server.port}"
            client = await nats.connect(address, error_cb=erred)
            body = orjson.dumps({"name": "spawn", "args": {"prompt": "forged"}})
            await client.publish("cmd.laptop.desk._home.ask.abc", body)
            await asyncio.wait_for(refused.wait(), 20)
            await client.close()
        assert [args["prompt"] for _, _, args in desk.done] == ["p"]
