"""Telling a person: stages, retries, quiet hours, and what counts as seen."""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from sidecar.background.effects import Repeatable, send
from sidecar.background.messages import person
from sidecar.background.messages.agent import NAME
from sidecar.background.messages.answers import ANSWER
from sidecar.background.messages.deliver import WAKE
from sidecar.background.messages.person import LOOK, SEND, SHOW
from sidecar.background.people.channels import ChannelError, Channels, channel_name, quiet_until
from sidecar.background.people.terminals import FOLDER, MOST_BYTES, read_focus
from sidecar.background.people.turn_alerts import OLD_MS, QUIET, Focus, why_not_raised, why_not_sent
from sidecar.notify_config import NotifyConfig, Turns
from streams.bus.command import Command
from streams.identity import seeded_identity
from streams.log.log import Log
from tests.memory import MemoryStore
from tests.sidecar.agents.kinds import Clock, Crash
from tests.sidecar.agents.support import until
from tests.sidecar.background.receiver import SECRET, Receiver
from tests.sidecar.background.support import Asked, Bench, Script, bench

# apprise imports `imghdr`, which Python 3.11 says will go.
pytestmark = pytest.mark.filterwarnings("ignore:'imghdr'")
PHONE = [["json:1"]]
HOUR = 3600.0
RESULT = {"to": "ses_1", "text": "done"}


def at(hour: int, minute: int = 0) -> int:
    return round(datetime(2026, 11, 23, hour, minute, tzinfo=UTC).timestamp() * 1000)


def ended(clock: Clock, *, after_s: float = 600.0, **about: Any) -> dict[str, Any]:
    """The payload of the end of background work."""
    created = clock.now_ms - round(after_s * 1000)
    known = {"intent": "int_1", "title": "tests", "parent": "ses_1", "created": created, "child": False}
    return {**known, "ts": clock.now_ms, **about}


def rules(**settings: Any) -> NotifyConfig:
    """Settings by which also what took no time is told."""
    return NotifyConfig(**{"min_seconds": 0} | settings)


async def test_a_phone_that_fails_twice_gets_the_message_once(tmp_path: Path) -> None:
    store = await Log.open(tmp_path / "store", seeded_identity(1))
    with Receiver(failing=2) as phone:
        channels = Channels(NotifyConfig(urls=(phone.url,)))
        agent = Asked(channels.stages, rules())
        async with bench(store, [agent], {SEND: Repeatable(partial(send, channels, str))}) as run:
            await run.happened("intent.completed", **ended(run.clock, parent=None))
            (alert,) = agent.data.messages.values()
            assert alert.channels == {channel_name(phone.url): "sent"}
            assert [taken["message"] for taken in phone.taken] == [alert.text]
            steps = await run.steps(NAME, SEND)
            assert steps.count("effect.failed") == 2
            assert steps[-1] == "effect.completed"
    await store.close()
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert files
    assert [path for path in files if SECRET.encode() in path.read_bytes()] == []


async def test_one_stage_after_another_until_somebody_saw_it() -> None:
    toast, send = Script({"shown": True}), Script({})
    agent = Asked([["desktop"], ["json:1", "ntfy:2"]], rules(escalate_after_seconds=60))
    async with bench(MemoryStore(), [agent], {SHOW: toast, SEND: send}) as run:
        await run.command(NAME, "message.raise", message="alr_1", to="ses_1", title="t", text="x")
        assert (len(toast.runs), send.runs) == (1, [])
        await run.tick(NAME, 59)
        assert send.runs == []
        await run.tick(NAME, 1)
        assert [args["channel"] for args in send.runs] == ["desktop"]
        await run.happened("human.input", session="ses_2")
        await run.tick(NAME, 60)
        assert [args["channel"] for args in send.runs[1:]] == ["json:1", "ntfy:2"]
        assert agent.data.messages["alr_1"].state == "sent"
        assert agent.deadline() is None
        await run.happened("human.input", session="ses_1")
        assert agent.data.messages["alr_1"].state == "seen"


@pytest.mark.parametrize("hours", [1, 25])
async def test_an_alert_that_had_no_way_to_a_person_uses_a_channel_that_is_configured_within_a_day(hours: int) -> None:
    store, phone, clock = MemoryStore(), Script({}), Clock()
    async with bench(store, [Asked([], rules())], {SEND: phone}, clock=clock) as run:
        for number in range(2):
            await run.command(NAME, "message.raise", message=f"alr_{number}", to=None, title="t", text="x")
        await run.tick(NAME, hours * HOUR)
    agent = Asked(PHONE, rules())
    async with bench(store, [agent], {SEND: phone}, clock=clock) as run:
        run._count = 100  # the keys of the first life's commands are known
        while (due := agent.deadline()) is not None and due <= run.clock.now_ms:
            await run.tick(NAME, 0)
        assert (len(phone.runs), agent.deadline()) == (hours == 1, None)
        assert {each.state for each in agent.data.messages.values()} == {"sent" if hours == 1 else "queued"}


@pytest.mark.parametrize("looks", [True, False])
async def test_a_result_in_a_history_is_seen_only_if_a_terminal_shows_it(looks: bool) -> None:
    toast, send = Script({"shown": True}), Script({})
    agent = Asked(PHONE, rules(escalate_after_seconds=60))
    kinds = {SHOW: toast, SEND: send, LOOK: Script({"looks": looks}), WAKE: Script({"status": "sent", "saved": True})}
    async with bench(MemoryStore(), [agent], kinds) as run:
        await run.happened("intent.failed", **ended(run.clock, reason="timeout", notice=RESULT))
        (glance,) = toast.runs
        assert glance["text"] == "tests failed: timeout" and agent.data.messages["ntc_1"].state == "seen"
        assert (agent.data.messages["alr_1"].state == "seen") == looks
        await run.tick(NAME, 60)
        await run.tick(NAME, 60)
        assert len(send.runs) == (not looks)
        assert not looks or toast.runs == [glance], "the result itself came first"


async def test_what_ends_within_half_a_minute_is_one_message_and_a_question_waits_for_nothing() -> None:
    send = Script({})
    agent = Asked([["desktop"], ["json:1", "ntfy:2"]], rules(escalate_after_seconds=60))
    kinds = {SEND: send, LOOK: Script({"looks": True}), WAKE: Script({"status": "absent"})}
    async with bench(MemoryStore(), [agent], kinds) as run:
        for number in range(4):
            about = {"intent": f"int_{number}", "parent": None} | ({"notice": RESULT} if number == 2 else {})
            await run.happened("intent.completed", **ended(run.clock, **about))
        assert [args["text"] for args in send.runs] == ["tests finished (int_0)"]
        question = {"message": "chk_q", "kind": "ask", "text": "May I?", "intent": None}
        await run.command(NAME, "asked", **question)
        assert send.runs[-1]["text"] == "OpenCode asks: May I? (chk_q)" and len(send.runs) == 2
        await run.tick(NAME, 29)
        assert len(send.runs) == 2
        await run.tick(NAME, 1)
        assert (send.runs[2]["title"], send.runs[2]["text"].count("\n")) == ("OpenCode: 3 messages", 2)
        await run.command(NAME, "message.return", message="ntc_2", session="ses_1", call="")
        await run.tick(NAME, 60)
        urls = [(args["channel"], args["title"]) for args in send.runs[3:] if "chk_q" not in args["text"]]
        assert urls == [(channel, "OpenCode: 3 messages") for channel in ("json:1", "ntfy:2")]
        assert all(alert.stages == [] for alert in agent.data.messages.values() if alert.is_open)


async def test_a_message_can_be_acted_on_away_from_the_laptop() -> None:
    send = Script({})
    agent = Asked(PHONE, rules(escalate_after_seconds=0))
    work = {
        "work": "tidy up",
        "directory": "/home/ada/shop",
        "intent": "int_1",
        "options": ["once", "always", "reject"],
    }
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:
        asked = {"message": "chk_1", "kind": "permission", "text": "rm -rf build", "always": ["rm *"], **work}
        await run.command(NAME, "asked", **asked)
        asked = {**asked, "message": "chk_2", "kind": "ask", "text": "x" * 900, "always": [], "options": ["a", "b"]}
        await run.command(NAME, "asked", **asked)
        gist = {"title": "tidy up", "directory": "/home/ada/shop", "gist": "all 12 tests\npass"}
        await run.happened("intent.completed", **ended(run.clock, intent="int_9", parent=None, **gist))
    permission, cut, done = (args["text"] for args in send.runs)
    assert permission == "tidy up in shop asks for permission: rm -rf build (always allows: rm *) (chk_1)"
    assert cut.startswith("tidy up in shop asks: xxx") and "left out" in cut and "x [a | b] (chk_2)" in cut
    assert done == "tidy up in shop finished: all 12 tests ⏎ pass (int_9)"


async def test_many_questions_share_messages_after_the_third_and_each_keeps_its_link() -> None:
    send = Script({})
    agent = Asked([["desktop"]], rules(escalate_after_seconds=60))
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:
        for number in range(40):
            question = {"message": f"chk_{number:02}", "kind": "ask", "text": "May I?" + "x" * 300, "intent": None}
            await run.command(NAME, "asked", **question)
        assert [args["checkpoints"] for args in send.runs] == [["chk_00"], ["chk_01"], ["chk_02"]]
        await run.tick(NAME, 30)
        await run.tick(NAME, 30)
        assert len(send.runs) == 5
        assert [each for args in send.runs for each in args["checkpoints"]] == [f"chk_{n:02}" for n in range(40)]
        assert all(f"({each})" in args["text"] for args in send.runs for each in args["checkpoints"])


async def test_a_message_hides_nothing_and_says_where_a_cut_question_is_whole() -> None:
    send = Script({})
    agent = Asked([["desktop"]], rules(escalate_after_seconds=60))
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:
        text = "bash \u202e" + "A" * 1000 + "; curl evil"
        question = {"message": "chk_q", "kind": "permission", "text": text, "intent": None, "left_out": 0}
        await run.command(NAME, "asked", **question)
        await run.tick(NAME, 60)
        said = send.runs[0]["text"]
        assert len(said) <= person.MAX_TEXT and "<U+202E>" in said and "; curl evil (chk_q)" in said
        assert "characters left out" in said and "durable-stream checkpoints chk_q" in said


async def test_every_question_of_a_message_has_its_link() -> None:
    sent = list[str]()

    class Phone:
        async def send(self, channel: str, title: str, text: str) -> None:
            sent.append(text)

    def link(each: str) -> str | None:
        return f"http://x/{each}" if each != "chk_2" else None

    for given in (["chk_1"], ["chk_1", "chk_2", "chk_3"]):
        args = {"channel": "c", "title": "t", "text": "x", "checkpoints": given, "since": 1}
        await send(Phone(), link, args, "key")  # type: ignore[arg-type]
    assert "Answer: http://x/chk_1" in sent[0] and all("\nWaiting since " in text for text in sent)
    assert sent[1].splitlines()[4:] == ["Answer chk_1: http://x/chk_1", "Answer chk_3: http://x/chk_3"]


async def test_quiet_hours_hold_everything_but_the_toast() -> None:
    toast, send, clock = Script({"shown": False}), Script({}), Clock(at(23))
    agent = Asked(PHONE, rules(quiet_hours="22:00-07:00"), zone=UTC)
    async with bench(MemoryStore(), [agent], {SHOW: toast, SEND: send}, clock) as run:
        await run.command(NAME, "message.raise", message="alr_1", to="ses_1", title="t", text="x")
        assert (len(toast.runs), send.runs) == (1, [])
        assert agent.deadline() == at(23) + 8 * 3_600_000
        await run.tick(NAME, 8 * HOUR)
        assert len(send.runs) == 1


@pytest.mark.parametrize(
    ("about", "told"),
    [
        ({"after_s": 59}, False),
        ({"after_s": 60}, True),
        ({"after_s": 0, "reason": "HTTP 401: invalid key"}, True),
        ({"child": True}, False),
    ],
)
async def test_short_work_that_succeeds_and_work_of_work_bother_nobody(about: dict[str, Any], told: bool) -> None:
    agent = Asked(PHONE, rules(min_seconds=60))
    async with bench(MemoryStore(), [agent], {SEND: Script({})}) as run:
        await run.happened("intent.failed" if "reason" in about else "intent.completed", **ended(run.clock, **about))
        assert bool(agent.data.messages) == told


@pytest.mark.parametrize(
    ("about", "toasts"),
    [
        ({"kind": "permission", "intent": "int_1"}, 1),
        ({"kind": "ask", "intent": None}, 1),
        ({"kind": "permission", "intent": None}, 0),
    ],
)
async def test_what_opencode_shows_by_itself_gets_no_toast(about: dict[str, Any], toasts: int) -> None:
    toast, send = Script({"shown": True}), Script({})
    agent = Asked(PHONE, rules(escalate_after_seconds=60))
    async with bench(MemoryStore(), [agent], {SHOW: toast, SEND: send, ANSWER: Script({"status": "answered"})}) as run:
        opened = {"message": "chk_1", "text": "bash make", "to": "ses_1", **about}
        await run.command(NAME, "asked", **opened)
        assert (len(toast.runs), len(send.runs)) == (toasts, 0)
        await run.tick(NAME, 60)
        assert len(send.runs) == 1
        await run.command(NAME, "message.answer", message="chk_1", answer=["once"], by="user", key="k", ask={})
        known = agent.data.messages["chk_1"]
        assert (known.state, known.due) == ("answered", None)


@pytest.mark.parametrize(("point", "sent"), [("effect-started", 1), ("effect-done", 2)])
async def test_a_message_whose_attempt_was_cut_off_is_sent_again(point: str, sent: int) -> None:
    """So a phone gets it at least once: twice if the process ended after it was sent and before that was recorded."""

    def stop(reached: str) -> None:
        if reached == point:
            raise Crash

    store, send = MemoryStore(), Script({})
    async with bench(store, [Asked(PHONE, rules())], {SEND: send}, stop=stop) as run:
        raised = {"message": "alr_1", "to": None, "title": "t", "text": "x"}
        await run.runtime.command(NAME, Command("c1", "message.raise", raised))
        await run.runtime.command(NAME, Command("c2", "tick", {"now": run.clock.now_ms}))
        await until(lambda: bool(run.runtime.view.effects))
        await run.settled()
    agent = Asked(PHONE, rules())
    async with bench(store, [agent], {SEND: send}, seed=4) as run:
        await run.settled()
        assert len(send.runs) == sent
        assert agent.data.messages["alr_1"].channels == {"json:1": "sent"}


async def turn(run: Bench, seconds: float, outcome: str = "completed", message: str = "msg_1", **about: Any) -> None:
    """A person begins a turn, which ends after that many seconds."""
    await run.happened("human.input", session="ses_1", message=message)
    run.clock.now_ms += round(seconds * 1000)
    ended = {"session": "ses_1", "message": message, "outcome": outcome, "title": "fix it", **about}
    await run.happened("turn.ended", **ended)


async def test_an_ordinary_turn_rings_once_if_it_was_long_and_nobody_is_looking() -> None:
    toast, send = Script({"shown": True}), Script({})
    agent = Asked(PHONE, NotifyConfig(turns="unless-in-front"))
    async with bench(MemoryStore(), [agent], {SHOW: toast, SEND: send}) as run:
        await turn(run, 59, message="msg_short")
        await turn(run, 61, "aborted", message="msg_aborted")
        run.facts = {"focus": {"ses_1": "front"}}
        await turn(run, 61, message="msg_front")
        assert (agent.data.messages["alr_msg_front"].state, send.runs) == ("seen", [])
        run.facts = {"focus": {"ses_1": "away"}}
        await turn(run, 61)
        assert [args["text"] for args in send.runs] == ["fix it finished (ses_1)"]
        await run.happened("turn.ended", session="ses_1", message="msg_1", outcome="completed")
        run.clock.now_ms += 60_000
        await turn(run, 61, "failed", message="msg_2", error={"name": "APIError"})
        assert [args["text"] for args in send.runs[1:]] == ["fix it failed: APIError (ses_1)"]
        assert agent.data.messages["alr_msg_1"].state == "seen", "a person wrote there since"
        assert (agent.data.turns, toast.runs) == ({}, [])


async def test_a_turn_that_would_not_ring_alone_does_not_ring_in_a_message_that_joins_others() -> None:
    send = Script({})
    agent = Asked(PHONE, rules(turns="away", min_seconds=0))
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:
        for number in range(2):
            await run.happened("intent.completed", **ended(run.clock, intent=f"int_{number}", parent=None))
        run.facts = {"focus": {"ses_1": "away", "ses_2": "away"}}
        for session, message in (("ses_1", "msg_1"), ("ses_2", "msg_2")):
            await run.happened("human.input", session=session, message=message)
            about = {"session": session, "message": message, "outcome": "completed", "title": session}
            await run.happened("turn.ended", **about)
        run.facts = {"focus": {"ses_2": "away"}}
        await run.tick(NAME, 30)
        texts = [args["text"] for args in send.runs]
        assert len(texts) == 2 and "int_1" in texts[1] and "ses_2" in texts[1] and "ses_1" not in texts[1]
        assert agent.data.messages["alr_msg_1"].state == "seen"


async def test_a_turn_that_nobody_began_or_that_is_told_as_history_does_not_ring() -> None:
    send = Script({})
    agent = Asked(PHONE, rules(turns="always"))
    async with bench(MemoryStore(), [agent], {SEND: send}) as run:
        await run.happened("agent.input", session="ses_1", message="msg_1")
        await run.happened("turn.ended", session="ses_1", message="msg_1", outcome="completed")
        await run.happened("human.input", metadata={"history": True}, session="ses_1", message="msg_2")
        await run.happened("turn.ended", session="ses_1", message="msg_2", outcome="completed")
        assert (send.runs, agent.data.messages) == ([], {})


@pytest.mark.parametrize(
    ("hours", "now", "ends"),
    [
        ("", at(3), None),
        ("22:00-07:00", at(21, 59), None),
        ("22:00-07:00", at(22), at(7) + 86_400_000),
        ("22:00-07:00", at(6, 59), at(7)),
        ("22:00-07:00", at(7), None),
        ("12:30-13:30", at(13), at(13, 30)),
        ("00:00-00:00", at(5), None),
    ],
)
def test_the_end_of_the_quiet_hours(hours: str, now: int, ends: int | None) -> None:
    assert quiet_until(hours, now, UTC) == ends


async def test_the_desktop_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = tmp_path / "heard"
    tool = tmp_path / "notify-send"
    tool.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {heard}\n')
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.platform", "linux")
    channels = Channels(NotifyConfig(desktop=True))
    await channels.send("desktop", "a title", "--help $(x) <a href='http://evil'>")
    body = "--help $(x) &lt;a href='http://evil'&gt;"
    assert heard.read_text().split("|")[-3:] == ["a title", body, ""], "a desktop would make a link of it"
    tool.unlink()
    with pytest.raises(ChannelError):
        await channels.send("desktop", "a title", "a text")


async def test_a_url_that_apprise_does_not_know_is_not_shown() -> None:
    url = f"nonsense://{SECRET}"
    with pytest.raises(ChannelError) as failed:
        await Channels(NotifyConfig(urls=(url,))).send(channel_name(url), "t", "x")
    assert SECRET not in str(failed.value)
    assert SECRET not in channel_name(url)


async def test_a_program_of_the_users_takes_a_message(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    command = ["/bin/sh", "-c", f'{{ echo "$TITLE"; cat; }} > {taken}']
    channels = Channels(NotifyConfig(command=tuple(command), urls=("json://127.0.0.1:1",)))
    assert channels.stages[1][0] == "command" == channels.names[0]
    await channels.send("command", "the title", "the text")
    assert taken.read_text() == "the title\nthe text"
    with pytest.raises(ChannelError, match="code 3"):
        await Channels(NotifyConfig(command=("/bin/sh", "-c", "exit 3"))).send("command", "t", "x")
    with pytest.raises(ChannelError, match=r"`command` in \[notify\]"):
        await Channels(NotifyConfig(command=("/nowhere/it",))).send("command", "t", "x")


@pytest.mark.parametrize(
    ("turns", "outcome", "took_ms", "why"),
    [
        ("off", "failed", 900_000, "off"),
        ("away", "aborted", 900_000, "aborted"),
        ("away", "completed", 59_999, "short"),
        ("away", "completed", 60_000, ""),
        ("away", "failed", 59_999, "short"),
        ("always", "failed", 60_000, ""),
        ("always", "completed", 59_999, "short"),
        ("unless-in-front", "interrupted", 60_000, ""),
        ("unless-in-front", "stopped", 60_000, ""),
    ],
)
def test_which_turns_are_worth_a_message(turns: Turns, outcome: str, took_ms: int, why: str) -> None:
    assert why_not_raised(NotifyConfig(turns=turns), outcome, took_ms) == why
    assert not why or why in QUIET


@pytest.mark.parametrize(
    ("turns", "focus", "age_ms", "why"),
    [
        ("away", "away", 0, ""),
        ("away", "front", 0, "in-front"),
        ("away", "unknown", 0, "focus-unknown"),
        ("unless-in-front", "away", 0, ""),
        ("unless-in-front", "front", 0, "in-front"),
        ("unless-in-front", "unknown", 0, ""),
        ("always", "front", 0, ""),
        ("always", "unknown", OLD_MS, ""),
        ("always", "away", OLD_MS + 1, "old"),
    ],
)
def test_where_the_terminal_is_decides(turns: Turns, focus: Focus, age_ms: int, why: str) -> None:
    assert why_not_sent(NotifyConfig(turns=turns), focus, age_ms) == why
    assert not why or why in QUIET


def test_only_terminals_that_run_and_tell_their_focus_count(tmp_path: Path) -> None:
    assert read_focus(tmp_path) == {}
    folder = tmp_path / FOLDER
    folder.mkdir()

    def told(pid: int, session: object, focus: str) -> None:
        (folder / f"{pid}.json").write_text(json.dumps({"session": session, "focus": focus}))

    told(os.getpid(), "ses_1", "away")
    assert read_focus(tmp_path) == {"ses_1": "away"}
    told(os.getppid(), "ses_1", "front")
    assert read_focus(tmp_path) == {"ses_1": "front"}, "one of two terminals is in front"
    told(2**22 + 1, "ses_2", "front")
    told(os.getpid(), None, "front")
    told(os.getppid(), ["ses_1"], "x" * MOST_BYTES)
    (folder / "7.json").write_text("[")
    assert read_focus(tmp_path) == {}
    assert not (folder / f"{2**22 + 1}.json").exists(), "the file of a terminal that was killed"


async def test_what_a_session_and_its_children_cost_is_told_at_the_limit_and_at_each_doubling() -> None:
    toast, send = Script({"shown": True}), Script({})
    agent = Asked(PHONE, rules(cost=5.0, escalate_after_seconds=1))
    async with bench(MemoryStore(), [agent], {SHOW: toast, SEND: send}) as run:

        async def told(cost: object, session: str = "ses_1", stream: str = "ses_1") -> int:
            await run.happened("execution.step", stream=stream, session=session, kind="inference", cost=cost)
            return len(agent.data.messages)

        costs = [(4.5, 0), (0.4, 0), (0.2, 1), (4.8, 1), ("much", 1), (None, 1), (0.2, 2), (5.0, 2), (60.0, 3)]
        for cost, alerts_ in costs:
            assert await told(cost, f"ses_child{alerts_}") == alerts_, cost
        assert await told(4.9, "ses_2", "ses_2") == 3, "another session has its own sum"
        await run.tick(NAME, 1)
        assert {args["session"] for args in toast.runs} == {"ses_1"} and len(toast.runs) == 3 and send.runs
