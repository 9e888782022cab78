"""``streams``, ``tree``, ``log``, ``show``, ``query``, ``why``, ``export``: what they print, and how they fail."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from streams.identity import seeded_identity
from streams.log.log import Log
from tests.sidecar.cli.helpers import append, command, damage, environment, make_home, run, run_process
from tests.streams.builders import event

READERS = (["streams"], ["tree"], ["query"], ["changes"], ["costs"], ["status"], ["verify"])


def stream_with(home: Path, type_: str) -> str:
    return str(run(home, "query", "--type", type_, "--json").objects()[0]["event"]["stream_id"])


def find(home: Path, *filters: str) -> dict[str, Any]:
    found: dict[str, Any] = run(home, "query", *filters, "--json").objects()[0]["event"]
    return found


class TestStreams:
    def test_json_is_newest_first_as_on_a_terminal_with_all_figures(self, recorded_home: Path) -> None:
        done = run(recorded_home, "streams", "--json")
        assert done.code == 0
        found = done.objects()
        first = found[0]
        assert set(first) >= {
            "stream_id", "records", "first_ts", "last_ts", "status", "title", "sessions", "turns", "cost", "tokens",
        }  # fmt: skip
        written = [r["event"]["stream_id"] for r in run(recorded_home, "query", "--json").objects()]
        assert [s["stream_id"] for s in found] == list(dict.fromkeys(reversed(written)))
        assert sum(s["records"] for s in found) == len(run(recorded_home, "query", "--json").objects())

    def test_a_time_that_cannot_be_true_takes_its_place_by_position(self, tmp_path: Path) -> None:
        home = tmp_path / "home"
        home.mkdir(mode=0o700)
        old, new, wrong = 1_700_000_000_000, 1_750_000_000_000, {"ahead": 4_102_444_800_000, "back": 1_000}
        times = [("old", old), *wrong.items(), ("new", new), *((f"{name} again", ts) for name, ts in wrong.items())]
        records = [event(key, ts=ts, type_="human.input", payload={"session": "ses_a", "n": key}) for key, ts in times]

        async def written() -> None:
            log = await Log.open(home / "store", seeded_identity(1))
            await log.append(records)
            await log.close()

        asyncio.run(written())
        keys = [key for key, _ in times]
        for verb in (["log", "ses_a"], ["log", "ses_a", "--last", "9"], ["query"], ["query", "--limit", "9"]):
            for words, found in ((["--since", str(new)], keys[3:]), (["--until", str(new)], keys[:3])):
                told = run(home, *verb, *words, "--json").objects()
                assert [one["event"]["payload"]["n"] for one in told] == found, (verb, words)

    def test_pipe_gets_newest_first_without_ansi_or_boxes(self, recorded_home: Path) -> None:
        done = run_process(recorded_home, "streams", FORCE_COLOR="1")
        header, *rows = done.rows()
        assert header[:2] == ["stream", "status"] and {len(row) for row in rows} == {len(header)}
        assert [row[0] for row in rows] == [s["stream_id"] for s in run(recorded_home, "streams", "--json").objects()]
        assert not re.search(r"\x1b|[│─┃━…]", done.out)

    def test_an_open_turn_is_active(self, tmp_path: Path) -> None:
        home = make_home(tmp_path / "home", "sigterm_while_busy")
        assert run(home, "streams", "--json").objects()[0]["status"] == "active"

    def test_limit_keeps_the_newest(self, recorded_home: Path) -> None:
        for verb, last in (("streams", slice(2)), ("tree", slice(-2, None))):
            everything = run(recorded_home, verb, "--json").objects()
            assert run(recorded_home, verb, "--limit", "2", "--json").objects() == everything[last]


class TestTree:
    def test_json_nests_the_child_below_the_turn_that_started_it(self, recorded_home: Path) -> None:
        stream = stream_with(recorded_home, "agent.spawned")
        roots = run(recorded_home, "tree", stream, "--json").objects()
        assert len(roots) == 1
        turn = roots[0]["turns"][0]
        assert (turn["outcome"], turn["steps"], turn["sessions"][0]["agent"]) == ("completed", 3, "general")
        assert turn["sessions"][0]["turns"][0]["steps"] == 3
        assert turn["duration_ms"] == turn["ended_ms"] - turn["started_ms"] > 0
        assert roots[0]["sessions"] == []

    def test_pipe_is_indented_text(self, recorded_home: Path) -> None:
        out = run(recorded_home, "tree", stream_with(recorded_home, "agent.spawned")).out.splitlines()
        assert [len(line) - len(line.lstrip()) for line in out] == [0, 2, 4, 6]


class TestLog:
    def test_json_gives_records_in_order(self, recorded_home: Path) -> None:
        stream = stream_with(recorded_home, "agent.spawned")
        records = run(recorded_home, "log", stream, "--json").objects()
        assert [r["offset"] for r in records] == list(range(len(records)))
        assert all(set(r) == {"event", "offset", "position", "hash"} for r in records)
        assert {r["event"]["stream_id"] for r in records} == {stream}

    def test_without_a_stream_it_is_the_newest_session(self, recorded_home: Path, empty: Path) -> None:
        newest = run(recorded_home, "query", "--json").objects()[-1]["event"]["stream_id"]
        told = run(recorded_home, "log", "--json")
        assert {r["event"]["stream_id"] for r in told.objects()} == {newest}
        assert newest in told.err and told.err.count("\n") == 1
        assert run(empty, "log").code == 1

    def test_from_is_an_offset(self, recorded_home: Path) -> None:
        stream = stream_with(recorded_home, "agent.spawned")
        records = run(recorded_home, "log", stream, "--from", "5", "--json").objects()
        assert records[0]["offset"] == 5
        assert run(recorded_home, "log", stream, "--from", "5000", "--json").objects() == []

    def test_pipe_says_what_happened_without_cutting(self, recorded_home: Path) -> None:
        rows = run(recorded_home, "log", stream_with(recorded_home, "agent.error"), COLUMNS="20").rows()
        assert all(len(row) == 7 for row in rows)
        assert rows[0] == ["time", "stream", "offset", "event", "actor", "type", "text"]
        assert rows[4][5:] == ["agent.error", "error: APIError HTTP 400: scripted error"]
        assert rows[1][0].startswith("2026-11-22T01:19:11.") and rows[1][0].endswith("Z")

    @pytest.mark.parametrize("cut", [slice(0, 20), slice(-6, None)], ids=["prefix", "suffix"])
    def test_a_unique_part_of_the_id_is_enough(self, recorded_home: Path, cut: slice) -> None:
        stream = stream_with(recorded_home, "agent.spawned")
        assert run(recorded_home, "log", stream[cut], "--json").objects()[0]["event"]["stream_id"] == stream

    def test_either_end_of_an_event_id_is_enough(self, recorded_home: Path) -> None:
        event = find(recorded_home, "--type", "agent.error")
        for part in (event["id"][:-1], event["id"][-6:]):
            assert run(recorded_home, "show", part, "--json").objects()[0]["event"] == event

    def test_unknown_stream_names_near_ones(self, recorded_home: Path) -> None:
        stream = stream_with(recorded_home, "agent.spawned")
        done = run(recorded_home, "log", stream[:-2] + "xx")
        assert (done.code, done.out) == (1, "")
        assert "[not-found]" in done.err and stream in done.err
        assert done.err.startswith("durable-stream: ") and done.err.count("\n") == 1

    @pytest.mark.parametrize("verb", ["read", "state", "diff", "log", "show"])
    def test_what_no_id_begins_or_ends_with_finds_nothing(self, recorded_home: Path, verb: str) -> None:
        events = [each["event"] for each in run(recorded_home, "query", "--json").objects()]
        ids = {each["id"] if verb == "show" else each["payload"]["session"] for each in events}
        inner = {each[-10:][at : at + n] for each in ids for n in (1, 3, 4) for at in (0, 4)}
        wrong = [part for part in inner if not any(each.startswith(part) or each.endswith(part) for each in ids)]
        assert wrong
        for part in wrong[:20]:
            done = run(recorded_home, verb, *[events[0]["stream_id"]] * (verb == "diff"), part)
            assert (done.code, done.out) == (1, "") and "[not-found]" in done.err, part

    @pytest.mark.parametrize("cut", [slice(None), slice(0, 20), slice(-6, None)], ids=["whole", "prefix", "suffix"])
    def test_of_a_child_session_only_what_it_did(self, recorded_home: Path, cut: slice) -> None:
        child = find(recorded_home, "--type", "agent.spawned")["payload"]["child"]
        records = run(recorded_home, "log", child[cut], "--json").objects()
        assert {r["event"]["payload"]["session"] for r in records} == {child}
        stream = records[0]["event"]["stream_id"]
        whole = run(recorded_home, "log", stream, "--json").objects()
        assert records == [r for r in whole if r["event"]["payload"]["session"] == child]
        assert run(recorded_home, "tree", child[cut], "--json").objects()[0]["session"] == child

    def test_where_a_stream_is_asked_for_a_child_session_is_told_where_it_is(self, recorded_home: Path) -> None:
        spawned = find(recorded_home, "--type", "agent.spawned")
        for verb in (["export", spawned["payload"]["child"]], ["query", "--stream", spawned["payload"]["child"]]):
            done = run(recorded_home, *verb)
            assert done.code == 1 and spawned["stream_id"] in done.err

    def test_reader_that_goes_away_ends_it_quietly(self, recorded_home: Path) -> None:
        stream = stream_with(recorded_home, "agent.spawned")
        shell = f"{' '.join(command(recorded_home, 'log', stream))} | true; echo ${{PIPESTATUS[0]}}"
        done = subprocess.run(["bash", "-c", shell], capture_output=True, text=True, env=environment(), timeout=30)
        assert done.stderr == ""
        assert done.stdout.strip() in ("0", "141")


class TestLinkedStreams:
    """Two streams of one family; the second was unknown at first, then joined."""

    @pytest.fixture
    def linked(self, tmp_path: Path) -> Path:
        identity = seeded_identity(3)

        def told(stream: str, type_: str, **payload: Any) -> Any:
            return event(stream=stream, type_=type_, identity=identity, payload={"session": stream, **payload})

        made = [
            told("ses_root", "lifecycle.session.created", lineage="root"),
            told("ses_lost", "lifecycle.session.resumed", lineage="unknown"),
            told("ses_lost", "execution.output", kind="text", text="early"),
            told("ses_root", "execution.output", kind="text", text="between"),
            told("ses_other", "lifecycle.session.created", lineage="root"),
            told("ses_lost", "lineage.linked", parent="ses_root", root="ses_root"),
            told("ses_root", "execution.output", kind="text", text="late"),
        ]
        asyncio.run(append(tmp_path / "home" / "store", [[e] for e in made]))
        return tmp_path / "home"

    def test_log_shows_the_family_in_position_order(self, linked: Path) -> None:
        for member in ("ses_root", "ses_lost"):
            records = run(linked, "log", member, "--json").objects()
            assert [r["position"] for r in records] == [0, 1, 2, 3, 5, 6]

    def test_only_leaves_the_family_out(self, linked: Path) -> None:
        records = run(linked, "log", "ses_root", "--only", "--json").objects()
        assert [r["position"] for r in records] == [0, 3, 6]

    def test_streams_name_the_root_of_a_joined_one(self, linked: Path) -> None:
        found = {s["stream_id"]: s["root"] for s in run(linked, "streams", "--json").objects()}
        assert found == {"ses_root": None, "ses_lost": "ses_root", "ses_other": None}

    def test_export_holds_the_family(self, linked: Path, tmp_path: Path) -> None:
        file = tmp_path / "out.jsonl"
        assert run(linked, "export", "ses_root", "--output", str(file)).code == 0
        header, *records, end = [json.loads(line) for line in file.read_text().splitlines()]
        assert (header["streams"], end["records"], len(records)) == (["ses_root", "ses_lost"], 6, 6)


def session_event(stream: str, session: str, parent: str | None, identity: Any, **more: Any) -> Any:
    about: dict[str, Any] = {"identity": identity, "payload": {"session": session, "parent": parent}}
    return event(stream=stream, type_="lifecycle.session.created", **about, **more)


def test_sessions_that_descend_from_each_other_do_not_hang_anything(tmp_path: Path) -> None:
    identity = seeded_identity(4)
    made = [session_event("ses_a", "ses_a", "ses_b", identity), session_event("ses_b", "ses_b", "ses_a", identity)]
    asyncio.run(append(tmp_path / "store", [made]))
    assert [root["session"] for root in run(tmp_path, "tree", "--json").objects()] == ["ses_a"]
    assert len(run(tmp_path, "log", "ses_b").rows()) == 3
    assert run(tmp_path, "streams").code == 0


def test_why_follows_causes_into_other_streams_and_ends_in_a_circle(tmp_path: Path) -> None:
    identity = seeded_identity(5)
    first = session_event("ses_a", "ses_a", None, identity)
    second = session_event("ses_b", "ses_b", None, identity, causation_id=first.id)
    third = session_event("ses_a", "ses_c", None, identity, causation_id=second.id)
    circle = identity.ulid()
    fourth = session_event("ses_a", "ses_d", None, identity, id=circle, causation_id=circle)
    asyncio.run(append(tmp_path / "store", [[first, second, third, fourth]]))
    chain = [r["event"]["id"] for r in run(tmp_path, "why", third.id, "--json").objects()]
    assert chain == [first.id, second.id, third.id]
    assert [r["event"]["id"] for r in run(tmp_path, "why", circle, "--json").objects()] == [circle]


class TestShowAndWhy:
    def test_show_names_cause_effects_and_the_whole_payload(self, recorded_home: Path) -> None:
        event = find(recorded_home, "--type", "turn.started")
        out = run(recorded_home, "show", event["id"][-8:].lower()).out
        assert re.search(rf"^cause +{event['causation_id'][-6:]} input: SAY:pong$", out, re.M)
        assert len(re.findall(r"^effect ", out, re.M)) >= 3
        assert re.search(r"^model +mock/mock-1$", out, re.M) and f"event        {event['id']}\n" in out
        assert re.search(r"effect +\w{6} turn end: completed · \d step · \d", out), "with its duration"

    def test_show_begins_with_what_was_done_and_says_nothing_twice(self, recorded_home: Path, tmp_path: Path) -> None:
        step = find(recorded_home, "--type", "execution.step", "--text", "echo ask once")
        lines = run(recorded_home, "show", step["id"]).out.splitlines()
        assert lines[:4] == ["bash  execution.step", "$ echo ask once", "ask once", ""]
        assert sum("echo ask once" in line for line in lines) == 1
        assert any(re.fullmatch(r"approval +approved once by user after \d+ms \(bash\)", line) for line in lines)
        assert any(re.fullmatch(r"waited +\d+ms for you", line) for line in lines)
        edited = make_home(tmp_path / "home", "write_edit")
        edit = find(edited, "--type", "execution.step", "--text", "Edit applied")
        assert run(edited, "show", edit["id"]).out.startswith(
            "edit  execution.step\n--- /home/dev/project/a.txt\n+++ /home/dev/project/a.txt\n@@ -1,1 +1,1 @@\n-hello\n"
        )

    def test_show_raw_prints_every_field_as_it_is_stored(self, recorded_home: Path) -> None:
        event = find(recorded_home, "--type", "agent.error")
        out = run(recorded_home, "show", event["id"], "--raw").out
        assert all(re.search(rf"^ *{re.escape(name)}:", out, re.M) for name in (*event, *event["payload"], "hash"))

    @pytest.mark.parametrize("verb", ["show", "why"])
    def test_unknown_event(self, recorded_home: Path, verb: str) -> None:
        event = find(recorded_home, "--type", "agent.error")
        done = run(recorded_home, verb, event["id"][:-1] + "!")
        assert (done.code, done.out) == (1, "") and "[not-found]" in done.err
        assert event["id"][:12] in done.err

    def test_why_walks_to_the_input(self, recorded_home: Path) -> None:
        spawned = find(recorded_home, "--type", "agent.spawned")
        child = find(recorded_home, "--type", "lifecycle.session.created", "--text", spawned["payload"]["child"])
        types = [r["event"]["type"] for r in run(recorded_home, "why", child["id"], "--json").objects()]
        assert types == ["human.input", "turn.started", "agent.spawned", "lifecycle.session.created"]

    def test_why_says_that_a_cause_is_unknown(self, recorded_home: Path) -> None:
        compaction = find(recorded_home, "--type", "turn.started", "--text", "compaction")
        assert f"(the cause of {compaction['id']}: unknown)" in run(recorded_home, "why", compaction["id"]).err

    @pytest.mark.parametrize("recording", ["permission_once", "permission_reject", "question_replied"])
    def test_why_shows_what_a_step_asked_for_and_the_answer_before_it(self, tmp_path: Path, recording: str) -> None:
        home = make_home(tmp_path / "home", recording)
        step = find(home, "--type", "execution.step", "--text", "call_")
        chain = [r["event"] for r in run(home, "why", step["id"], "--json").objects()]
        assert [(e["type"], e["payload"].get("state")) for e in chain] == [
            ("human.input", None),
            ("turn.started", None),
            ("workflow.checkpoint", "asked"),
            ("workflow.checkpoint", "replied"),
            ("execution.step", None),
        ]
        answer = chain[3]
        told = [r["event"]["id"] for r in run(home, "why", answer["id"], "--json").objects()]
        assert told == [event["id"] for event in chain[:4]], "an ask that is a cause anyway comes once"


class TestQuery:
    def test_types_repeat_and_take_a_star(self, recorded_home: Path) -> None:
        done = run(recorded_home, "query", "--type", "agent.error", "--type", "turn.*", "--json")
        assert {r["event"]["type"] for r in done.objects()} == {"agent.error", "turn.started", "turn.ended"}

    def test_actor_stream_text_and_times(self, recorded_home: Path) -> None:
        error = find(recorded_home, "--type", "agent.error")
        stream = error["stream_id"]
        found = run(recorded_home, "query", "--stream", stream[-8:], "--json").objects()
        assert {r["event"]["stream_id"] for r in found} == {stream}
        found = run(recorded_home, "query", "--actor", "user", "--json").objects()
        assert {r["event"]["actor"] for r in found} == {"user"}
        assert run(recorded_home, "query", "--text", "SCRIPTED", "--json").objects()[0]["event"]["id"] == error["id"]
        moment = str(error["ts"])
        assert run(recorded_home, "query", "--type", "agent.error", "--since", moment, "--json").objects()
        assert not run(recorded_home, "query", "--type", "agent.error", "--until", moment, "--json").objects()

    def test_a_bare_word_is_a_text(self, recorded_home: Path) -> None:
        assert (
            run(recorded_home, "query", "SCRIPTED", "--json").objects()
            == run(recorded_home, "query", "--text", "scripted", "--json").objects()
            != []
        )
        assert run(recorded_home, "query", "one", "--text", "two").code == 2

    def test_nothing_found_is_no_error(self, recorded_home: Path) -> None:
        done = run(recorded_home, "query", "--type", "no.such")
        assert (done.code, done.out, done.err) == (0, "", "No event matches.\n")
        done = run(recorded_home, "query", "--type", "no.such", "--limit", "3", "--json")
        assert (done.code, done.out, done.err) == (0, "", "No event matches.\n")


class TestBadLogs:
    @pytest.mark.parametrize("arguments", READERS, ids=lambda a: a[0])
    def test_an_empty_home_is_no_error_and_stays_untouched(self, empty: Path, arguments: list[str]) -> None:
        for more in ([], ["--json"]):
            done = run(empty, *arguments, *more)
            if arguments[0] == "verify":
                # The user wants a check, perhaps of a backup; a home that does not exist must not pass it.
                assert (done.code, done.out) == (1, "")
                assert f"the home {empty} does not exist, so nothing was verified" in done.err
                continue
            assert done.code == 0
            if arguments[0] == "status":
                assert done.out and not done.err
            else:
                assert done.out == "" and done.err.count("\n") == 1 and "durable-stream install" in done.err
        assert not empty.exists()

    @pytest.mark.parametrize(
        "arguments",
        [["log", "ses_", "--last", "9"], ["tree"], ["query"]],
        ids=" ".join,
    )
    def test_what_stands_before_a_fault_is_printed(self, tmp_path: Path, arguments: list[str]) -> None:
        home = make_home(tmp_path / "home", "chat")
        sound = run(home, *arguments).out.splitlines()
        damage(home, 5)
        done = run(home, *arguments)
        assert done.code == 1 and "(position 5)" in done.err and done.err.endswith(" [log-damaged]\n"), done.err
        said = done.out.splitlines()
        if arguments[0] in ("log", "query"):
            assert len(said) == 6 < len(sound) and said == sound[:6]
        else:
            assert len(said) == len(sound) and said != sound
        assert run(home, *arguments, "--json").out.startswith("{")
