"""``prune`` and ``forget``, which the home's sidecar carries out."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from sidecar.home import Home
from sidecar.read.wording import counted
from streams.bus.command import Command
from streams.errors import StoreUnavailable
from streams.event import StreamEvent
from streams.identity import seeded_identity, system_identity
from streams.log.log import Log
from tests.searching import files_with
from tests.sidecar.agents.agents import Counter
from tests.sidecar.agents.support import running as runtime_of
from tests.sidecar.cli.helpers import MAY_REMOVE, RECORDINGS, append, make_home, run, run_and_stop
from tests.sidecar.life import end_sidecars
from tests.sidecar.test_spools import dead_pid, spool
from tests.streams.builders import event

NAMES = ("chat", "task_child", "http_400")


@pytest.fixture
def marked_home(tmp_path: Path) -> Iterator[Path]:
    """Sessions of a few recordings, each with a unique word in a payload."""
    home = make_home(tmp_path / "home", *NAMES)
    batch = [event(f"mark-{name}", stream=name, payload={"text": f"MARK-{name}"}) for name in streams(home)]
    asyncio.run(append(home / "store", [batch]))
    (home / "config.toml").write_text(MAY_REMOVE)
    yield home
    end_sidecars(Home(home))


def streams(home: Path) -> dict[str, int]:
    return {s["stream_id"]: s["records"] for s in run(home, "streams", "--json").objects()}


def sessions_of(home: Path, stream: str) -> set[str]:
    found = (each["event"]["payload"].get("session") for each in run(home, "log", stream, "--json").objects())
    return {session for session in found if session is not None}


class TestPrune:
    def test_it_wants_to_be_told_what(self, marked_home: Path) -> None:
        assert run(marked_home, "prune").code == 2
        for wrong in (["--older-than", "soon"], ["--older-than", "2026-11-22"], ["--max-bytes", "many"]):
            done = run(marked_home, "prune", *wrong)
            assert done.code == 2 and repr(wrong[1]) in done.err, done.err

    def test_no_file_of_the_home_keeps_it_and_the_mirror_is_named(self, marked_home: Path) -> None:
        stream = next(iter(streams(marked_home)))
        (marked_home / "config.toml").write_text(f'{MAY_REMOVE}[nats]\nmode = "embedded"\n')
        for more in ([], ["--yes"]):
            done = run(marked_home, "prune", "--stream", stream, *more)
            assert done.code == 0 and "mirror rebuild" in done.err, done
        assert files_with(marked_home, f"MARK-{stream}") == []
        gone = run(marked_home, "forget", stream, "--yes")
        assert gone.code == 0 and "mirror rebuild" in gone.err, gone
        assert run(marked_home, "verify").code == 0

    def test_without_yes_it_tells_and_changes_nothing(self, marked_home: Path) -> None:
        before = run(marked_home, "query", "--json").out
        told = run(marked_home, "prune", "--older-than", "1s")
        assert told.code == 0 and "would remove" in told.out and "--yes" in told.err
        assert len(told.rows()) == len(streams(marked_home)) + 2, "a heading and the sum"
        titles = {s["stream_id"]: s["title"] for s in run(marked_home, "streams", "--json").objects()}
        assert {row[0]: row[-1] for row in told.rows()[1:-1]} == titles
        plan = run(marked_home, "prune", "--older-than", "1s", "--json").objects()[0]
        assert plan["done"] is None and plan["plan"]["records"] == sum(streams(marked_home).values())
        assert run(marked_home, "query", "--json").out == before

    def test_what_is_pruned_already_is_no_failure_and_what_never_was_is_one(self, marked_home: Path) -> None:
        first, second, *_ = streams(marked_home)
        assert run(marked_home, "prune", "--stream", first, "--yes").code == 0
        for more in ([], ["--yes"]):
            again = run(marked_home, "prune", "--stream", first, *more)
            assert again.code == 0 and again.err == "Nothing to remove.\n", again
            assert again.out.startswith(f"{first}: its first") and "left to remove" in again.out, again
        both = run(marked_home, "prune", "--stream", first, "--stream", second, "--yes", "--json").objects()[0]
        assert both["plan"]["unknown"] == [first] and both["done"]["streams"] == 1
        for command in (["prune", "--stream"], ["forget"]):
            wrong = run(marked_home, *command, f"{first}x", "--yes")
            assert wrong.code == 1 and wrong.err.endswith(" [not-found]\n"), wrong
        assert run(marked_home, "prune", "--older-than", "1s", "--yes").code == 0 and streams(marked_home) == {}
        for command in (["prune", "--stream"], ["forget"]):
            several = run(marked_home, *command, "ses_", "--yes")
            assert several.code == 1 and several.err.endswith(" [ambiguous]\n"), several
        assert run(marked_home, "forget", first, "--yes", "--json").objects() == [
            {"streams": [first], "done": {"records": 0, "bytes": 0, "streams": 0}}
        ]

    def test_an_empty_home(self, empty: Path) -> None:
        done = run(empty, "prune", "--older-than", "1d", "--yes")
        assert done.code == 1 and "nothing to remove" in done.err and not empty.exists()

    def test_every_command_counts_alike_what_is_left(self, marked_home: Path) -> None:
        counts = streams(marked_home)
        first, second, *others = sorted(counts, key=lambda name: counts[name])[::-1]
        cut_to = counts[second] - 1

        async def prune() -> None:
            log = await Log.open(marked_home / "store", system_identity())
            await log.prune({first: counts[first], second: cut_to}, at_ms=1)
            await log.close()

        asyncio.run(prune())
        left, gone = sum(counts[name] for name in others) + 1, counts[first] + cut_to
        held = f"{left} records ({gone} pruned) in {counted(len(others) + 1, 'stream')}"
        assert f" {held}" in run(marked_home, "status").out
        assert f"all {held} verified" in run(marked_home, "verify").out
        assert f"{left} records ({gone} pruned)" in run(marked_home, "doctor").out
        told = {stream["stream_id"]: stream for stream in run(marked_home, "streams", "--json").objects()}
        assert sum(stream["records"] for stream in told.values()) == left and len(told) == len(others) + 1
        assert told[second]["pruned"] == cut_to and not any(told[name]["pruned"] for name in others)
        assert f"({cut_to} pruned)" in run(marked_home, "streams").out

    def test_one_that_was_cut_off_is_told_and_all_count_alike(
        self, marked_home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        first, second, *_ = counts = streams(marked_home)

        async def cut_off() -> None:
            log = await Log.open(marked_home / "store", system_identity())
            with monkeypatch.context() as patched:
                patched.setattr("streams.stores.sqlite.removed.CHUNK", 2)
                patched.setattr("streams.stores.sqlite.removal.SqliteRemover._empty", fails)
                patched.setattr("streams.stores.sqlite.cursors_and_snapshots.Hints.forget_snapshots", fails)
                with pytest.raises(StoreUnavailable, match="could not be pruned completely"):
                    await log.prune({first: counts[first], second: counts[second] - 1}, at_ms=1)
            await log.close()

        def fails(*_: object) -> None:
            raise OSError(5, "cut off")

        asyncio.run(cut_off())
        told = run(marked_home, "status")
        assert "a prune or forget was interrupted" in told.out
        listed = run(marked_home, "streams", "--json")
        assert "a prune or forget was interrupted" in listed.err
        left = sum(stream["records"] for stream in listed.objects())
        held = f"{left} records ({sum(counts.values()) - left} pruned) in {counted(len(listed.objects()), 'stream')}"
        assert f" {held}" in told.out and f"1 finding in {held}" in run(marked_home, "verify").out
        asyncio.run(append(marked_home / "store", []))  # as the next start
        told = run(marked_home, "status")
        assert f" {held}" in told.out and "interrupted" not in told.out and run(marked_home, "streams").err == ""


def test_a_log_without_records_is_not_called_unused(marked_home: Path) -> None:
    assert run_and_stop(marked_home, "prune", "--older-than", "1s", "--yes").code == 0
    for has_agents in (False, True):
        if has_agents:
            asyncio.run(_only_agents(Home(marked_home)))
        for command in (["streams"], ["tree"], ["log"], ["read"]):
            assert "has been pruned" in run(marked_home, *command).err, command


def test_what_only_agents_recorded_is_not_called_pruned(home: Home) -> None:
    asyncio.run(_only_agents(home))
    for command in (["streams"], ["tree"], ["log"], ["read"], ["costs"]):
        told = run(home.path, *command).err
        assert told and "pruned" not in told, command


async def _only_agents(home: Home) -> None:
    log = await Log.open(home.store_path, seeded_identity(1))
    async with runtime_of(log, Counter) as runtime:
        await runtime.command("counter", Command("k", "add", {"by": 1}))
    await log.close()


class TestForget:
    def test_a_child_session_alone_and_what_system_holds_of_a_session(self, marked_home: Path) -> None:
        root = next(name for name in streams(marked_home) if len(sessions_of(marked_home, name)) == 2)
        (child,) = sessions_of(marked_home, root) - {root}
        stray = [
            event(
                "of-root", type_="opencode.odd", stream="system", payload={"deep": [{"ID": root}], "text": "STRAY-ROOT"}
            ),
            event(
                "of-child", type_="opencode.odd", stream="system", payload={"id": f"x:{child}", "text": "STRAY-CHILD"}
            ),
            event("of-none", type_="opencode.odd", stream="system", payload={"id": "ses_other", "text": "STRAY-OTHER"}),
        ]
        asyncio.run(append(marked_home / "store", [stray]))
        records = run(marked_home, "log", root, "--json").objects()
        # The session above holds what the child was asked, also where the call began, and what it answered.
        called = {each["event"]["payload"]["part"] for each in records if "child" in each["event"]["payload"]}
        own = [
            each
            for each in records
            if each["event"]["payload"].get("session") == child or each["event"]["payload"].get("part") in called
        ]
        assert "execution.step.started" in {each["event"]["type"] for each in own}
        assert len({each["event"]["payload"]["session"] for each in own}) == 2
        told = run(marked_home, "forget", child)
        assert told.code == 0 and f"{len(own) + 1} records" in told.out and child in told.out, told
        assert run(marked_home, "forget", child, "--yes").code == 0
        after = run(marked_home, "log", root, "--json").objects()
        for each in after:
            is_gone = set(each["event"]["payload"]) == {"$sha256"}
            assert is_gone is (each["position"] in {one["position"] for one in own}), each
        assert files_with(marked_home, "STRAY-CHILD") == [] != files_with(marked_home, "STRAY-ROOT")
        assert run(marked_home, "verify").code == 0
        assert run(marked_home, "forget", root, "--yes").code == 0
        assert files_with(marked_home, "STRAY-ROOT") == [] != files_with(marked_home, "STRAY-OTHER")
        assert all(
            set(each["event"]["payload"]) == {"$sha256"} for each in run(marked_home, "log", root, "--json").objects()
        )
        assert run(marked_home, "verify").code == 0

    def test_without_yes_it_tells_of_a_turn_under_way(self, marked_home: Path) -> None:
        now = system_identity().now_ms()
        payload = {"session": "ses_busy", "message": "msg_1"}
        batch = [
            event(
                "made", type_="lifecycle.session.created", stream="ses_busy", ts=now, payload={"session": "ses_busy"}
            ),
            event("begun", type_="turn.started", stream="ses_busy", ts=now, payload=payload),
        ]
        asyncio.run(append(marked_home / "store", [batch]))
        for serving in (False, True):
            if serving:
                assert run(marked_home, "play", str(RECORDINGS / "deletion.jsonl")).code == 0
            told = run(marked_home, "forget", "ses_busy")
            assert told.code == 0 and "would forget the payloads of 2 records" in told.out, told
            assert (
                "would be refused now, because a turn is in progress in ses_busy: wait until the turn has ended."
                in told.err
            )
            assert "Nothing was changed." in told.err and "--yes" not in told.err
            refused = run(marked_home, "forget", "ses_busy", "--json").objects()[0]["refused"]
            assert len(refused) == 1 and "a turn is in progress in ses_busy" in refused[0]
        done = run(marked_home, "forget", "ses_busy", "--yes")
        assert done.code == 1 and done.err.endswith(" [still-needed]\n"), "the sidecar's code comes over the link"
        other = next(name for name in streams(marked_home) if name != "ses_busy")
        free = run(marked_home, "forget", other)
        assert "refused" not in free.err and "--yes" in free.err, free

    def test_an_agents_stream_is_refused_and_unchanged(self, marked_home: Path) -> None:
        own, now = ("agent/counter", "agent/counter/effects"), system_identity().now_ms()
        made = [event(each, type_="counter.said", stream=each, payload={"n": 7}, ts=now) for each in own]
        asyncio.run(append(marked_home / "store", [made]))
        for stream in own:
            preview = run(marked_home, "forget", stream, "--json").objects()[0]
            assert len(preview["refused"]) == 1 and stream in preview["refused"][0]
            done = run(marked_home, "forget", stream, "--yes")
            assert done.code == 1 and done.err.endswith(" [agents-memory]\n"), done
            (kept,) = run(marked_home, "log", stream, "--json").objects()
            assert kept["event"]["payload"] == {"n": 7}

    def test_it_says_first_what_would_go(self, marked_home: Path) -> None:
        counts = streams(marked_home)
        sessions = {s["stream_id"]: s["sessions"] for s in run(marked_home, "streams", "--json").objects()}
        parent = next(name for name, count in sessions.items() if count > 1)
        would = run(marked_home, "forget", parent, "--json").objects()[0]
        assert (would["streams"], would["records"], would["done"]) == ([parent], counts[parent], None)
        assert would["sessions"][0]["id"] == parent and len(would["sessions"]) == sessions[parent] == 2
        assert [s["parent"] for s in would["sessions"]] == [None, parent] and would["sessions"][0]["title"]
        told = run(marked_home, "forget", parent)
        assert f"would forget the payloads of {counts[parent]} records in {parent} and its child session" in told.out
        assert told.rows()[2][1:] == ["child", would["sessions"][1]["title"]]
        assert run(marked_home, "forget", parent, "--yes").code == 0
        again = run(marked_home, "forget", parent)
        assert again.code == 0 and "payloads of 0 records" in again.out and again.err == "Nothing to forget.\n"
        again = run(marked_home, "forget", parent, "--yes")
        assert again.code == 0 and f"the payloads in {parent} have already been forgotten" in again.out

    def test_nothing_of_it_stays_and_the_log_verifies(self, marked_home: Path) -> None:
        counts = streams(marked_home)
        for stream in counts:
            word = f"MARK-{stream}"
            assert files_with(marked_home, word)
            done = run(marked_home, "forget", stream, "--yes")
            assert done.code == 0 and f"forgot the payloads of {counts[stream]} records" in done.out
            assert not files_with(marked_home, word)
        assert streams(marked_home) == counts
        assert run(marked_home, "verify").code == 0
        assert "(payload forgotten)" in run(marked_home, "log", next(iter(counts))).out
        for name in ("tree", "status", "streams"):
            assert run(marked_home, name).code == 0

    def test_the_prompt_of_background_work_goes_with_its_session(self, marked_home: Path) -> None:
        """The record with the prompt is older than the session, and does not name it."""
        identity, made = seeded_identity(5), []

        def own(kind: str, **payload: object) -> None:
            about = {"stream_id": "agent/intents", "actor": "intents", "metadata": {"role": "output"}}
            source = {"agent": "intents", "adapter": "runtime"}
            said = {"type": kind, "source": source, "payload": {"intent": "int_0123", "ts": 1, **payload}}
            made.append(identity.stamp({**about, **said}))

        own("intent.created", prompt="MARK-prompt", title="MARK-title", parent=None, root="int_0123", directory="/p")
        own("intent.starting", session="ses_work")
        own("intent.started", session="ses_work")
        own("intent.completed", result="MARK-result")
        work = event("work", stream="ses_work", payload={"session": "ses_work", "text": "MARK-work"})
        asyncio.run(append(marked_home / "store", [made, [work]]))
        words = ("MARK-prompt", "MARK-title", "MARK-result", "MARK-work")
        assert all(files_with(marked_home, word) for word in words)
        done = run_and_stop(marked_home, "forget", "ses_work", "--yes")
        assert done.code == 0, done
        assert [word for word in words if files_with(marked_home, word)] == []
        assert run(marked_home, "verify").code == 0

    def test_what_a_dead_opencode_left_in_the_spool_is_forgotten_too(self, marked_home: Path, tmp_path: Path) -> None:
        whole = make_home(tmp_path / "whole", "chat")
        stream = next(iter(streams(whole)))
        payloads = [record["event"]["payload"] for record in run(whole, "query", "--json").objects()]
        told = next(payload["text"] for payload in payloads if payload.get("text"))
        mine = tmp_path / "mine"
        mine.mkdir(mode=0o700)
        (mine / "config.toml").write_text(MAY_REMOVE)
        asyncio.run(append(mine / "store", [[event("first", stream=stream)]]))
        (mine / "spool").mkdir(mode=0o700)
        spool(mine / "spool", dead_pid())
        assert files_with(mine, told)
        assert run(mine, "forget", stream, "--yes").code == 0
        end_sidecars(Home(mine))
        assert streams(mine)[stream] > 1 and files_with(mine, told) == []
        assert run(mine, "verify").code == 0


class TestPin:
    def test_prune_spares_a_pinned_session_by_age_size_and_name_until_it_is_unpinned(self, marked_home: Path) -> None:
        first, *others = streams(marked_home)
        assert run(marked_home, "pin", first, "--json").objects()[0]["pinned"] is True
        assert run(marked_home, "stop").code == 0
        for how in (("--older-than", "0s"), ("--max-bytes", "1B"), ("--stream", first)):
            plan = run(marked_home, "prune", *how, "--json").objects()[0]["plan"]
            kept = {item["stream_id"]: item["why"] for item in plan["kept"]}
            assert kept.get(first) == "it is pinned" and first not in {cut["stream_id"] for cut in plan["cuts"]}
        done = run(marked_home, "prune", "--older-than", "0s", "--yes", "--json").objects()[0]
        assert {cut["stream_id"] for cut in done["plan"]["cuts"]} == set(others)
        assert set(streams(marked_home)) == {first}
        assert run(marked_home, "unpin", first, "--json").objects()[0]["pinned"] is False
        assert run(marked_home, "prune", "--stream", first, "--yes").code == 0
        assert first not in streams(marked_home)

    def test_what_a_person_says_of_a_session_makes_it_no_newer(self, marked_home: Path) -> None:
        def told() -> list[tuple[str, str]]:
            return [(each["stream_id"], each["last_ts"]) for each in run(marked_home, "streams", "--json").objects()]

        before, oldest = told(), told()[-1][0]
        for said in (("pin", oldest), ("unpin", oldest), ("name", oldest, "mine")):
            assert run(marked_home, *said).code == 0
        assert run(marked_home, "stop").code == 0
        assert told() == before
        plan = run(marked_home, "prune", "--older-than", "1d", "--json").objects()[0]["plan"]
        assert oldest in {cut["stream_id"] for cut in plan["cuts"]}
        assert run(marked_home, "name", oldest, "x" * 201).code == 2
        marks = run(marked_home, "query", "--type", "stream.*", "--actor", "user", "--json").objects()
        assert len(marks) == 3

    def test_pin_and_name_are_events_that_every_list_shows_and_an_export_keeps(
        self, marked_home: Path, tmp_path: Path
    ) -> None:
        name, own = next(iter(streams(marked_home))), "The payment bug"
        before = shown(marked_home, name)
        assert run(marked_home, "pin", name).code == run(marked_home, "name", name, own).code == 0
        assert run(marked_home, "stop").code == 0
        types = [each["event"]["type"] for each in run(marked_home, "query", "--type", "stream.*", "--json").objects()]
        assert types == ["stream.pinned", "stream.named"]
        assert shown(marked_home, name) == (own, True, own, True)
        assert own in run(marked_home, "read", name).out and "(pinned)" in run(marked_home, "streams").out
        file, other = tmp_path / "session.jsonl", tmp_path / "other"
        assert run(marked_home, "export", name, "--output", str(file)).code == 0
        assert run_and_stop(other, "import", str(file)).code == 0
        assert shown(other, name) == (own, True, own, True)
        assert run(marked_home, "unpin", name).code == run(marked_home, "name", name, "").code == 0
        assert shown(marked_home, name) == before and before[1] is False
        wrong = run(marked_home, "pin", "ses_none")
        assert (wrong.code, wrong.err[-12:]) == (1, "[not-found]\n")

    def test_the_name_stays_while_opencode_changes_its_title(self, tmp_path: Path) -> None:
        def told(title: str) -> StreamEvent:
            payload = {"session": "ses_a", "title": title}
            return event(title, stream="ses_a", type_="opencode.session.renamed", payload=payload)

        def named(text: str) -> StreamEvent:
            return event(f"named {text}", stream="ses_a", type_="stream.named", payload={"name": text})

        begun = event("made", stream="ses_a", type_="lifecycle.session.created", payload={"session": "ses_a"})
        batches = [[begun], [told("first")], [named("mine")], [told("second")], [named("ours")], [named("")]]
        for title, batch in zip(("", "first", "mine", "mine", "ours", "second"), batches, strict=True):
            asyncio.run(append(tmp_path / "store", [batch]))
            assert run(tmp_path, "streams", "--json").objects()[0]["title"] == title


def shown(home: Path, name: str) -> tuple[str, bool, str, bool]:
    """The title of a stream and whether it is pinned, as `streams` and `tree` have it."""
    (listed,) = (row for row in run(home, "streams", "--json").objects() if row["stream_id"] == name)
    (tree,) = run(home, "tree", name, "--json").objects()
    return listed["title"], listed["pinned"], tree["title"], tree["pinned"]
