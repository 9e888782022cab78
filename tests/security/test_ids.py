"""Ids and texts from outside never become a path or a terminal control sequence."""

from __future__ import annotations

import asyncio
import json
import re
import unicodedata
from pathlib import Path
from typing import Any

import pytest

from bridge.opencode.capture.emitter import safe_key, safe_stream
from bridge.opencode.capture.translate import Origin, Token, Translator
from bridge.opencode.link.frames import HookItem
from sidecar.cli.printing.output import json_line
from sidecar.read.wording import one_line, printable
from sidecar.record.backlog import backlog
from streams.errors import InvalidEvent
from streams.event import StreamEvent, is_stream_id
from streams.identity import seeded_identity
from tests.sidecar.bad_stores import is_empty_beside
from tests.sidecar.cli.helpers import RECORDINGS, append, run
from tests.sidecar.cli.test_terminal import on_terminal
from tests.streams.builders import event

HOSTILE = {
    "parent": "../../../tmp/evil",
    "inner parent": "ses_a/../../evil",
    "absolute": "/etc/passwd",
    "NUL": "ses_\0evil",
    "line break": "ses_a\r\nSET-COOKIE: x",
    "escape": "ses_\x1b[2J",
    "drive": "C:\\Windows\\win.ini",
    "share": "\\\\host\\share",
    "stream of a file": "ses_a:$DATA",
    "unicode": "ses_ünïcode",
    "fullwidth dots": "．．/evil",
    "direction": "ses_\u202egpj",
    "lone surrogate": "ses_\ud800",
    "wildcard": "ses.*.>",
    "quote": "ses'; DROP TABLE records; --",
    "option": "--output=/tmp/evil",
    "empty": "",
    "blank": " ",
    "dots": "..",
    "long": "s" * 10_240,
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_hostile_session_becomes_a_digest(kind: str) -> None:
    assert not is_stream_id(HOSTILE[kind])
    with pytest.raises(InvalidEvent):
        StreamEvent.parse({**event("x").fields(), "stream_id": HOSTILE[kind]})
    stream = safe_stream(HOSTILE[kind])
    assert re.fullmatch(r"x-[0-9a-f]{32}", stream) and stream == safe_stream(HOSTILE[kind])
    assert is_stream_id(stream) and safe_key(f"turn:{HOSTILE[kind]}\n").isprintable()


def created(session: str, title: str = "t") -> HookItem:
    info = {"id": session, "title": title, "directory": "/d", "time": {"created": 1}}
    return HookItem(
        "event",
        1,
        {
            "event": {
                "id": f"evt_{session}",
                "type": "session.created",
                "properties": {"sessionID": session, "info": info},
            }
        },
        None,
    )


def test_no_id_ever_names_a_file(tmp_path: Path) -> None:
    """This includes allowed ids that look like paths: the store chooses its own file names."""
    translator = Translator(seeded_identity(1))
    sessions = [*HOSTILE.values(), "CON", "CON.", "nul", "a/b/c", "store.json", "head", "~root"]
    for seq, session in enumerate(sessions, 1):
        translator.feed(Token(Origin("ab" * 16, "cd" * 8), seq), created(session), seq)
    translator.tick(1e9)
    made = translator.drain().events
    assert len(made) >= len(sessions) - 1
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [[each] for each in made]))
    files = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    assert {re.sub(r"\d{20}", "N", file) for file in files} == {
        f"home/store/{name}" for name in ("store.json", "lock", "head", "log.db", "journal/N.jsonl")
    }
    assert len(run(home, "streams", "--json").objects()) == len({each.stream_id for each in made})


def files(place: Path) -> dict[Path, int]:
    found = (path for path in place.rglob("*") if path.is_file() and not is_empty_beside(path))
    return {path: path.lstat().st_mtime_ns for path in found}


@pytest.mark.parametrize("kind", ["parent", "absolute", "escape", "direction", "quote", "dots"])
def test_a_hostile_id_on_the_command_line_is_only_not_found(tmp_path: Path, kind: str) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    asyncio.run(append(home / "store", [[event("a")]]))
    before = files(tmp_path)
    for verb in ("log", "show", "export", "why"):
        if verb == "export" or HOSTILE[kind].strip():
            done = run(home, verb, "--", HOSTILE[kind])
            assert HOSTILE[kind] in ("", "..") or done.code == 1, (verb, done)
            drives_no_terminal(done.out + done.err)
    assert files(tmp_path) == before


def test_a_foreign_name_in_the_spool_is_no_spool(tmp_path: Path) -> None:
    for name in ("evil.json", "\x1b[2J", "a" * 200):
        (tmp_path / name).write_text("x")
    assert backlog(tmp_path)["files"] == 0


# --- what payloads say, on a terminal ---

EVIL = "\x1b[2J\x1b]0;pwned\x07\x1b[5;7mX\x9b2K\r\x7f\x08\u202egpj\u2028\u2066"
SGR = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")
KEPT = {"type", "id", "sessionID", "messageID", "callID", "parentID", "partID", "status", "role", "requestID"}


def drives_no_terminal(said: str) -> None:
    wrong = re.findall(r"[^\n\t -~\u00a0-\u200d\u2010-\u2027\u202f-\u2065\u206a-\U0010ffff]", said)
    assert wrong == [], sorted(set(wrong))


def poisoned(value: Any, key: str = "") -> Any:
    if isinstance(value, dict):
        more = {f"k{EVIL}": EVIL} if key in ("input", "metadata") else {}
        return {k: poisoned(v, k) for k, v in value.items()} | more
    if isinstance(value, list):
        return [poisoned(item, key) for item in value]
    return value + EVIL if isinstance(value, str) and key not in KEPT else value


@pytest.fixture(scope="module")
def evil_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("evil") / "home"
    home.mkdir(mode=0o700)
    translator = Translator(seeded_identity(2))
    made: list[list[StreamEvent]] = []
    for name in ("task_child", "http_400", "permission_child", "compaction_manual", "abort_tool", "todo"):
        for number, line in enumerate((RECORDINGS / f"{name}.jsonl").read_text().splitlines(), 1):
            item = json.loads(line)
            if not item["hook"].startswith("__"):
                hook = HookItem(item["hook"], item["t"], poisoned(item.get("input")), poisoned(item.get("output")))
                translator.feed(Token(Origin("ab" * 16, name), number), hook, number / 1000)
                made.append(translator.drain().events)
    translator.tick(1e9)
    made.append(translator.drain().events)
    types = {each.type for batch in made for each in batch}
    assert {"lifecycle.session.created", "execution.step", "execution.output", "agent.error"} <= types
    asyncio.run(append(home / "store", made))
    return home


def ids(home: Path) -> tuple[str, list[str]]:
    records = run(home, "query", "--json").objects()
    stream = next(r["event"]["stream_id"] for r in records if r["event"]["type"] == "agent.spawned")
    # One of each type: the same code prints the others.
    return stream, list({record["event"]["type"]: record["event"]["id"] for record in records}.values())


@pytest.mark.parametrize("more", [[], ["--json"]], ids=["pipe", "json"])
def test_no_command_passes_an_escape_sequence_on(evil_home: Path, more: list[str]) -> None:
    stream, events = ids(evil_home)
    for verb in ("streams", "tree", "query", "changes", "verify", "status"):
        drives_no_terminal(run(evil_home, verb, *more).out)
    for verb in ("log", "export"):
        drives_no_terminal(run(evil_home, verb, stream, *more).out)
    for each in events:
        drives_no_terminal(run(evil_home, "show", each, *more).out)
    drives_no_terminal(run(evil_home, "why", events[-1], *more).out)


@pytest.mark.parametrize("verb", ["tree", "log", "show"])
def test_a_terminal_gets_our_own_colours_only(evil_home: Path, verb: str) -> None:
    stream, events = ids(evil_home)
    named = {"log": [stream], "show": [events[3]]}.get(verb, [])
    said = on_terminal(evil_home, verb, *named, width=100)
    # An ask shows the characters of an escape sequence by their numbers, so its letters may be there.
    assert "\x1b[5;7m" not in said and "\x1b]" not in said
    drives_no_terminal(SGR.sub("", said))


@pytest.mark.parametrize("text", [EVIL, "a\x1bPq\x1b\\b", "a\x1b", "\x1b[", "\x9dx\x9c", "\u2067a\u2069"])
def test_what_is_printed_is_printable(text: str) -> None:
    drives_no_terminal(printable(text) + one_line(text))
    line = json_line({"a": text, text: 1}).decode()
    drives_no_terminal(line)
    assert json.loads(line) == {"a": text, text: 1}


def test_no_format_character_is_printed_as_it_came() -> None:
    """Unicode's category decides, not a list: invisible text could hide or reorder visible text."""
    every = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) in ("Cc", "Cf", "Zl", "Zp")]
    assert {"\u061c", "\u200b", "\ufeff", "\u00ad", "\U000e0041"} < set(every)
    text = "a" + "".join(every) + "b"
    line = json_line({text: text})
    assert json.loads(line) == {text: text}
    left = set(line.decode()) | set(printable(text))
    assert left & set(every) <= {"\n", "\t", "\u200c", "\u200d"}, "only joiners, which spell words"


def test_json_keeps_what_a_person_can_read() -> None:
    line = json_line({"a": "für 修复 👩 ñ"}).decode()
    assert line == '{"a":"für 修复 👩 ñ"}\n'
