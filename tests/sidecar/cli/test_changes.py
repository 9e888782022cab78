"""``changes``: which files agents changed, who approved what; and what is behind it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.translate import Translator
from sidecar.read.changes.changes import Edit, totals
from sidecar.read.changes.edits import diff_stat, file_changes, new_file_diff
from sidecar.read.story import reading
from sidecar.read.story.changes import Changes
from sidecar.read.story.moment import Moment
from streams.event import StreamEvent
from streams.identity import Identity, seeded_identity
from tests.sidecar.cli.helpers import RECORDINGS, damage, events_of, make_home, run
from tests.sidecar.read.story.playing import records_of, snapshot

DIFF = "--- a\n+++ a\n@@ -1,3 +1,3 @@\n same\n-old\n--- dashes\n+new\n+++ pluses\n"


def changes_of(events: list[StreamEvent]) -> Changes:
    """What these events changed."""
    records = records_of(events)
    story = snapshot(records)
    return Changes(Moment(story, {record.event.stream_id for record in records}, story.head))


class Session:
    """Events of one session, a second apart."""

    def __init__(self, identity: Identity, session: str = "ses_a") -> None:
        self._identity, self._session, self.events = identity, session, list[StreamEvent]()

    def add(self, type_: str, *, actor: str = "build", **payload: Any) -> StreamEvent:
        fields = {"type": type_, "stream_id": "ses_a", "actor": actor, "ts": 1_000_000 + 1000 * len(self.events)}
        source = {"agent": actor, "adapter": "test"}
        made = self._identity.stamp({**fields, "source": source, "payload": {"session": self._session, **payload}})
        self.events.append(made)
        return made

    def tool(self, tool: str, call: str, turn: str = "m1", **payload: Any) -> StreamEvent:
        return self.add(
            "execution.step", kind="tool", tool=tool, call=call, turn=turn, **{"status": "completed", **payload}
        )

    def ask(self, request: str, call: str, permission: str = "edit", turn: str = "m1", **payload: Any) -> None:
        self.add(
            "workflow.checkpoint", kind="permission", state="asked", request=request, call=call, turn=turn,
            permission=permission, **payload,
        )  # fmt: skip

    def answer(self, request: str, reply: str, **payload: Any) -> None:
        self.add("workflow.checkpoint", actor="user", kind="permission", state="replied", request=request,
                 reply=reply, **payload)  # fmt: skip


class TestEdits:
    def test_lines_are_counted_as_the_hunks_say(self) -> None:
        assert diff_stat(DIFF) == (2, 2)
        assert diff_stat(DIFF + DIFF) == (4, 4)
        assert diff_stat("") == diff_stat("+no hunk\n-none") == (0, 0)
        assert diff_stat(new_file_diff("a", "one\ntwo\n")) == diff_stat(new_file_diff("a", "one\ntwo")) == (2, 0)
        assert new_file_diff("a", "one").endswith("+one\n\\ No newline at end of file\n")

    @pytest.mark.parametrize(
        ("payload", "expected"),
        [
            ({"tool": "edit", "input": {"filePath": "/p/a"}, "metadata": {"diff": DIFF}}, [("/p/a", 2, 2)]),
            ({"tool": "edit", "metadata": {"filediff": {"file": "/p/a", "additions": 5, "deletions": 0}}},
             [("/p/a", 5, 0)]),
            ({"tool": "multiedit", "input": {"filePath": "/p/a"},
              "metadata": {"results": [{"filediff": {"file": "/p/a", "patch": DIFF}}, {"diff": DIFF}]}},
             [("/p/a", 2, 2), ("/p/a", 2, 2)]),
            ({"tool": "apply_patch", "metadata": {"diff": DIFF + DIFF, "files": [
                {"filePath": "/p/a", "relativePath": "a", "type": "update", "patch": DIFF, "additions": 2,
                 "deletions": 2},
                {"filePath": "/p/b", "movePath": "/p/c", "type": "move", "patch": "", "additions": 0, "deletions": 0},
                {"filePath": "/p/d", "type": "delete", "patch": "", "additions": 0, "deletions": 7}, 7, None]}},
             [("/p/a", 2, 2), ("/p/c", 0, 0), ("/p/d", 0, 7)]),
            ({"tool": "write", "input": {"filePath": "/p/a", "content": "x\ny\n"}, "metadata": {"exists": False}},
             [("/p/a", 2, 0)]),
            ({"tool": "write", "input": {"filePath": "/p/a", "content": "x"}, "metadata": {"exists": True}},
             [("/p/a", None, None)]),
            ({"tool": "write", "input": {"path": "a", "content": "x\ny\n"}, "metadata": {"truncated": False},
              "output": "Created file successfully: a"}, [("a", 2, 0)]),
            ({"tool": "write", "input": {"path": "a", "content": "x"}, "metadata": {"truncated": False},
              "output": "Wrote file successfully: a"}, [("a", None, None)]),
            ({"tool": "write", "input": {"filePath": "/p/a"}, "executed_input": {"filePath": "/p/b"}},
             [("/p/b", None, None)]),
            ({"tool": "edit", "status": "error", "input": {"filePath": "/p/a"}, "metadata": {"diff": DIFF}}, []),
            ({"tool": "bash", "metadata": {"diff": DIFF}}, []),
            ({"$sha256": "ab"}, []),
        ],
    )  # fmt: skip
    def test_every_tool_of_the_client(self, payload: dict[str, Any], expected: list[Any]) -> None:
        edits = [Edit("e", 0, "build", "edit", change, []) for change in file_changes(payload)]
        assert [(edit.change.file, edit.added, edit.removed) for edit in edits] == expected

    def test_what_a_person_was_shown_says_what_a_rewrite_changed(self) -> None:
        payload = {"tool": "write", "input": {"filePath": "/p/a", "content": "x"}, "metadata": {"exists": True}}
        assert [(d.additions, d.deletions, d.how) for d in file_changes(payload, DIFF)] == [(2, 2, "edit")]

    @pytest.mark.parametrize("odd", [None, 7, "text", [], [None], {}, {"a": [1]}, True, [{"file": 3}], -1])
    def test_no_shape_is_too_odd(self, odd: Any) -> None:
        for name in ("input", "metadata", "executed_input", "tool", "status"):
            file_changes({"tool": "edit", name: odd})
        for name in ("filediff", "diff", "files", "results", "exists", "filepath"):
            file_changes({"tool": "write", "input": {"filePath": "/a", "content": odd}, "metadata": {name: odd}})
        for name in ("file", "patch", "additions", "deletions"):
            file_changes({"tool": "edit", "metadata": {"filediff": {"file": "/a", "patch": DIFF, name: odd}}})


class TestChanges:
    @pytest.mark.parametrize("name", sorted(path.stem for path in RECORDINGS.glob("*.jsonl")))
    def test_every_recording(self, name: str) -> None:
        turns = changes_of(events_of(name, Translator(seeded_identity(2)))).turns(with_diffs=True)
        changed = [edit.change.file for turn in turns for edit in turn.edits]
        assert changed == (["/home/dev/project/a.txt"] * 2 if name == "write_edit" else [])
        decided = [decision.approval.reply for turn in turns for decision in turn.decisions]
        replies = {"permission_always": "always", "permission_reject": "reject", "permission_reject_message": "reject",
                   "run_permission": "reject"}  # fmt: skip
        asked = name.startswith("permission_") and name != "permission_aborted"
        assert decided == ([replies.get(name, "once")] if asked or name == "run_permission" else [])
        assert all(turn.prompt for turn in turns)

    def test_an_approved_edit_is_told_once_with_its_approval(self) -> None:
        session = Session(seeded_identity(1))
        session.add("human.input", actor="user", message="m1", parts=[{"type": "text", "text": "do it"}])
        session.ask("r1", "c1", permission="external_directory", patterns=["/q/*"])
        session.answer("r1", "always")
        session.ask("r2", "c1", patterns=["a"], metadata={"diff": DIFF})
        session.answer("r2", "once")
        session.tool("write", "c1", input={"filePath": "/q/a", "content": "x"}, metadata={"exists": True})
        session.ask("r3", "c2", patterns=["b"])
        session.answer("r3", "reject", message="not\nthis")
        session.tool("edit", "c2", status="error", input={"filePath": "/q/b"})
        session.ask("r4", "c1", turn="m2", patterns=["a"])
        session.tool("edit", "c1", turn="m2", input={"filePath": "/q/a"}, metadata={"diff": DIFF})
        changes = changes_of(session.events)
        first, second = changes.turns()
        (edit,) = first.edits
        assert (first.prompt, edit.added, edit.change.patch) == ("do it", 2, "")
        assert [approval.text for approval in edit.approvals] == [
            "approved always by user after 1.0s",
            "approved once by user after 1.0s",
        ]
        (rejected,) = first.decisions
        assert rejected.approval.text == "rejected by user after 1.0s: not this"
        assert second.turn == "m2" and [a.text for a in second.edits[0].approvals] == ["not answered"]
        assert not second.decisions
        assert totals([first, second]) == changes.totals() == {
            "files": 1, "added": 4, "removed": 4, "rewritten": 0, "approved": 0, "rejected": 1, "undone": 0, "turns": 2,
            "sessions": 1,
        }  # fmt: skip

    @pytest.mark.parametrize("second", ["/q/sub/a", "sub/a"])
    def test_twin_calls_do_not_share_what_they_asked_for(self, second: str) -> None:
        session = Session(seeded_identity(1))
        for request, file in (("r1", "/q/a"), ("r2", "/q/a"), ("r3", "/q/sub/a")):
            session.ask(request, "twin", metadata={"filepath": file})
        for request in ("r3", "r1", "r2"):
            session.answer(request, "once")
        for file in (second, "/q/a"):
            session.tool("edit", "twin", input={"filePath": file}, metadata={"diff": DIFF})
        (turn,) = changes_of(session.events).turns()
        told = [[approval.ask.request for approval in edit.approvals] for edit in turn.edits]
        assert told == [["r3"], ["r1", "r2"]] and not turn.decisions


@pytest.fixture(scope="module")
def edited(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Read only."""
    return make_home(
        tmp_path_factory.mktemp("changes") / "home", "write_edit", "permission_once", "permission_child", "chat"
    )


class TestCommand:
    def test_json_is_an_object_for_each_turn(self, edited: Path) -> None:
        found = run(edited, "changes", "--json").objects()
        assert [bool(turn["files"]) for turn in found] == [True, False, False]
        (file,) = found[0]["files"]
        assert (file["file"], file["added"], file["removed"]) == ("/home/dev/project/a.txt", 2, 1)
        assert [edit["tool"] for edit in file["edits"]] == ["write", "edit"] and "diff" not in file["edits"][0]
        (decision,) = found[1]["decisions"]
        assert (decision["asked"], decision["reply"], decision["by"]) == ("echo ask once", "once", "user")
        assert found[2]["session"] != found[2]["stream_id"], "of a child session"
        assert run(edited, "changes", "--json", "--limit", "1").objects() == found[-1:]
        of_stream = run(edited, "changes", found[1]["stream_id"], "--json").objects()
        assert of_stream == found[1:2]
        assert run(edited, "changes", found[2]["session"], "--json").objects() == found[2:]
        at = str(found[1]["ts"])
        assert run(edited, "changes", "--since", at, "--json").objects() == found[1:]
        assert run(edited, "changes", "--until", at, "--json").objects() == found[:1]

    def test_a_pipe_gets_a_header_and_a_line_for_each_edit_and_decision(self, edited: Path) -> None:
        header, *rows = run(edited, "changes").rows()
        assert {len(row) for row in rows} == {len(header)} and len(rows) == 4
        told = [dict(zip(header, row, strict=True)) for row in rows]
        assert [(t["action"], t["added"], t["removed"]) for t in told[:2]] == [("write", "1", "0"), ("edit", "1", "1")]
        assert told[2]["what"] == "echo ask once" and re.fullmatch(r"approved once by user after \d+ms",
                                                                   told[2]["approval"])  # fmt: skip

    def test_diffs_alone_in_a_pipe(self, edited: Path) -> None:
        out = run(edited, "changes", "--diff").out
        assert out.startswith("--- /dev/null\n+++ /home/dev/project/a.txt\n") and diff_stat(out) == (2, 1)

    def test_nothing_changed_is_no_error(self, edited: Path) -> None:
        done = run(edited, "changes", "--since", "2100-01-01")
        assert (done.code, done.out) == (0, "") and done.err

    def test_records_that_no_table_has_yet_are_told_of(self, edited: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        assert "doctor" not in run(edited, "changes").err
        monkeypatch.setattr(reading, "MOST_ABOVE", 3)
        for command, code in {"changes": 0, "streams": 0, "read": 1}.items():
            done = run(edited, command)
            assert done.code == code and "doctor" in done.err, done

    def test_what_stands_before_damage_is_printed(self, tmp_path: Path) -> None:
        home = make_home(tmp_path / "home", "write_edit", "chat")
        (last,) = (record["position"] for record in run(home, "query", "pong", "--json").objects()[-1:])
        damage(home, last)
        done = run(home, "changes", "--json")
        assert done.code == 1 and "checksum" in done.err and len(done.objects()) == 1
