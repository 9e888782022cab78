"""What the tests of background work share."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha1
from pathlib import Path
from typing import Any

from sidecar.inspector.data import Data
from sidecar.read.find_by_id import open_reader
from tests.real.durable import EXECUTABLE, PLUGIN, DurableStream, wait_until
from tests.real.model_server import ModelServer
from tests.real.opencode import RealOpenCode
from tests.real.opencode2 import RealOpenCode2
from tests.real.terminal import COLUMNS, DOWN, ENTER, Terminal
from tools.install_opencode import VERSION_2, binary_path


@contextmanager
def with_plugin(
    binary: Path, model: ModelServer, durable: DurableStream, settings: str = "", **options: Any
) -> Iterator[RealOpenCode]:
    """An OpenCode with the plugin and the tools, on a home whose ``config.toml`` is ``settings``."""
    if settings:
        durable.home.mkdir(mode=0o700)
        (durable.home / "config.toml").write_text(settings)
    durable.start()  # the sidecar says which tools there are
    plugins = {PLUGIN: durable.plugin()}
    with RealOpenCode(binary, model.port, plugins=plugins, plugin_scope="global", **options) as opencode:
        durable.terminal = opencode.environment()
        yield opencode


@contextmanager
def two_with_plugin(
    model: ModelServer, durable: DurableStream, command: Path = EXECUTABLE, config: dict[str, Any] | None = None
) -> Iterator[RealOpenCode2]:
    """A service of OpenCode 2 with the plugin, which starts sidecars with ``command``; all of them end with it."""
    plugins = {PLUGIN: durable.plugin(command=command)}
    with RealOpenCode2(
        binary_path(VERSION_2), model.port, config=config, plugins=plugins, plugin_scope="global"
    ) as opencode:
        yield opencode  # type: ignore[misc]
        durable.end_with(opencode)


def spawn(prompt: str, title: str = "count things", **more: Any) -> str:
    """A script that starts background work, and ends its turn."""
    return f"{spawns(prompt, title, **more)}THEN: SAY:started"


def spawns(prompt: str, title: str = "count things", **more: Any) -> str:
    """A script's call that starts background work."""
    return f"CALL:agent_spawn {json.dumps({'prompt': prompt, 'title': title, **more})}"


def intents(durable: DurableStream, root: str | None = None) -> list[dict[str, Any]]:
    """The intents of a root, or all of the home, oldest first."""
    return [intent for intent in durable.lines("intents") if root in (None, intent["root"])]


def one(durable: DurableStream, state: str, root: str | None = None) -> dict[str, Any]:
    """The only intent of a root, or of the home, once it is in this state."""
    wait_until(lambda: [i["state"] for i in intents(durable, root)] == [state], f"an intent that is {state}")
    return intents(durable, root)[0]


def ended(durable: DurableStream, intent: str) -> list[dict[str, Any]]:
    """The intent of this id, once it has ended."""

    def found() -> list[dict[str, Any]]:
        return [each for each in intents(durable) if each["id"] == intent and each["ended"] is not None]

    wait_until(lambda: bool(found()), "the end of an intent")
    return found()


def window(client: RealOpenCode, *arguments: str, columns: int = COLUMNS) -> Terminal:
    """OpenCode's terminal in the project."""
    environment = client.environment() | {"PWD": str(client.project)}
    return Terminal([str(client.binary), *arguments], client.project, environment, columns=columns)


def snapshots_elsewhere(client: RealOpenCode) -> list[Path]:
    """The snapshots that OpenCode keeps of other directories than the project."""
    own = sha1(str(client.project).encode(), usedforsecurity=False).hexdigest()
    kept = Path(client.environment()["XDG_DATA_HOME"], "opencode", "snapshot")
    return [each for each in kept.glob("*/*") if each.name != own]


def only(durable: DurableStream, kind: str, *, background: bool = True) -> dict[str, Any]:
    """The one thing that waits for a person, and for background work, once its intent is known, too."""

    def waits() -> bool:
        rows = durable.lines("checkpoints")
        return [each["kind"] for each in rows] == [kind] and (rows[0]["intent"] is not None) == background

    wait_until(waits, f"a {kind} that waits")
    return durable.lines("checkpoints")[0]


def answers(durable: DurableStream, session: str) -> list[tuple[str, str, str | None]]:
    """Of each answer in a session's records: the request, who answered, and the request that it was answered with."""
    found = [record["event"] for record in durable.log(session)]
    found = [each for each in found if each["type"] == "workflow.checkpoint" and each["payload"]["state"] != "asked"]
    return [(each["payload"]["request"], each["actor"], each["payload"].get("with")) for each in found]


def assert_typing_answers(screen: Terminal, durable: DurableStream, project: str) -> None:
    """What the session in front asks stays on screen, with its options, until the person types an answer."""
    ask = json.dumps({"question": "Ship it?", "options": ["now", "never"]})
    screen.press(f"CALL:checkpoint_ask {ask}".encode())
    screen.wait_for("checkpoint_ask")
    screen.press(ENTER)
    asked = f"{project} asks: Ship it? [now | never]"
    screen.wait_for(asked)
    screen.wait_for("Type your answer here")
    screen.press(b"now, please")
    screen.wait_for("now, please")
    screen.press(ENTER)
    wait_until(lambda: durable.lines("checkpoints") == [], "the answer")
    (known,) = [each for each in durable.lines("checkpoints", "--all") if each["kind"] == "ask"]
    assert (known["answer"], known["by"]) == (["now, please"], "user")
    screen.wait_until(lambda lines: not any(asked in line for line in lines), "an empty foot")


def refused(durable: DurableStream, *arguments: str) -> str:
    """The code with which a command ends."""
    done = durable._run(*arguments)
    assert done.returncode == 1, done.stdout
    return done.stderr.strip().rpartition("[")[2].rstrip("]")


def assert_shown_from_prompt_to_wake(durable: DurableStream, intent: dict[str, Any]) -> None:
    """The page shows below the prompt of a session what its background work did, up to what woke the session."""

    async def shown() -> dict[str, Any]:
        reader = open_reader(durable.home / "store")
        data = Data(durable.home, reader, lambda: 0, refusing, refusing)
        found = await data.event(asked)
        await reader.close()
        return found

    async def refusing(*_: Any) -> dict[str, Any]:
        raise AssertionError("a page that is only looked at asks the sidecar for nothing")

    types = [(record["event"]["type"], record["event"]["id"]) for record in durable.log(intent["parent"])]
    asked = next(name for type_, name in types if type_ == "human.input")
    found = asyncio.run(shown())
    ways = iter(row["session"] for row in found["effects"])
    assert all(each in ways for each in (intent["parent"], "", intent["session"], "", intent["parent"])), found
    ids = {found["row"]["id"], *(row["id"] for row in found["effects"])}
    assert {row["above"] for row in found["effects"]} <= ids


def planted(ran: Path) -> dict[str, str]:
    """Settings of a repository, written with the write tool alone, which make ``ran`` if git runs there."""
    return {
        ".git/config": f'[core]\n\tfsmonitor = "touch {ran}; false"\n[filter "e"]\n\tclean = "touch {ran}; cat"\n',
        ".gitattributes": "* filter=e\n",
    }


def cancel_from_the_list(screen: Terminal, durable: DurableStream) -> None:
    """In the open list, cancel the first work that runs, and wait until its card is gone."""
    screen.wait_for("Running")
    screen.press(ENTER)
    screen.wait_for("Cancel it")
    screen.press(DOWN)
    screen.press(DOWN)
    screen.press(ENTER)
    screen.wait_for("Cancel this?")
    screen.press(DOWN)
    screen.press(ENTER)
    screen.wait_for("is being cancelled")
    wait_until(lambda: intents(durable)[-1]["state"] == "cancelled", "a cancelled intent")
    screen.wait_until(lambda lines: not any("in background" in line for line in lines), "no card")


MOST_RECORDS = 24
"""How many records the agents write for one piece of background work, from the call that asks to the parent's wake."""


def assert_few_records(durable: DurableStream, intent: dict[str, Any]) -> None:
    """The agents' records about an undisturbed intent, without its conversation, are few. Prints them by stream."""
    known, found = {intent["id"], intent["session"], intent["parent"], f"ntc_{intent['id'][4:]}"}, Counter[str]()
    for record in durable.lines("query"):
        event = record["event"]
        named = {event["causation_id"], *re.findall(r"\w+", json.dumps(event["payload"]))}
        if event["stream_id"].startswith("agent/") and known & named:
            known.add(event["id"])
            found[f"{event['stream_id']} {event['type']}"] += 1
    print(intent["id"], found.total(), *(f"{count:>3} {what}" for what, count in sorted(found.items())), sep="\n")
    assert found.total() <= MOST_RECORDS


def of_session(durable: DurableStream, session: str) -> list[dict[str, Any]]:
    """The records of one session, without its children's."""
    return [r for r in durable.log(session) if r["event"]["payload"].get("session") == session]


def assert_one_chain(durable: DurableStream, intent: dict[str, Any]) -> None:
    """From a person's prompt to an intent's result and to the message that told its parent: one chain of causes, in one
    trace. And the parent's log says that it started the session."""
    events = [record["event"] for record in durable.lines("query")]
    by_id = {event["id"]: event for event in events}
    parent, session = intent["parent"], intent["session"]
    (done,) = [e for e in events if e["type"] == "intent.completed" and e["payload"]["intent"] == intent["id"]]
    wait_until(lambda: of_type(durable, parent, "agent.input"), "the message to the parent")
    (woken,) = of_type(durable, parent, "agent.input")
    for event in (done, woken):
        chain = [event]
        while chain[-1]["causation_id"] in by_id:
            chain.append(by_id[chain[-1]["causation_id"]])
        types = [each["type"] for each in chain]
        assert types[-1] == "human.input" and chain[-1]["payload"]["session"] == parent, types
        assert "intent.register" in types and len({each["traceparent"][3:35] for each in chain}) == 1, chain
    (spawned,) = of_type(durable, parent, "agent.spawned")
    assert spawned["payload"]["child"] == session and spawned["payload"]["turn"] == intent["turn"] != ""
    (created,) = of_type(durable, session, "lifecycle.session.created")
    assert created["causation_id"] == spawned["id"]


def of_type(durable: DurableStream, session: str, type_: str) -> list[dict[str, Any]]:
    """The events of one type and one session, oldest first."""
    found = [record["event"] for record in durable.lines("query", "--type", type_)]
    return [event for event in found if event["payload"].get("session") == session]
