"""What the commands say of a team's homes is what they say at home, with the machine's name."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from sidecar.home import Home
from sidecar.read import find_by_id
from sidecar.read.story import past
from sidecar.team.reading import Reading
from tests.postgres import Postgres
from tests.sidecar.cli.helpers import Done, run
from tests.sidecar.cli.test_terminal import ANSI, on_terminal
from tests.sidecar.team.homes import EVENTS, CopiedHome

MACHINES = ("ada", "bob")


class TwoHomes(NamedTuple):
    """Two homes, copied to a team, and one of a machine that only reads."""

    ada: Path
    bob: Path
    reader: Path

    def of(self, machine: str) -> Path:
        return self.ada if machine == "ada" else self.bob


@pytest.fixture(scope="module")
def team(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Postgres, TwoHomes]]:
    top = tmp_path_factory.mktemp("team")
    server = Postgres(fsync="off").start()
    made = TwoHomes(*(top / name for name in (*MACHINES, "reader")))
    for path in made:
        Home(path).create()

    streams = [*dict.fromkeys(event.stream_id for event in EVENTS)]

    async def fill() -> None:
        for number, name in enumerate(MACHINES):
            home = await CopiedHome(made.of(name) / "store", number + 1).open()
            await home.append([event for event in EVENTS if streams.index(event.stream_id) % 2 == number])
            if name == "ada":
                sizes = sorted(await home.log.sizes(), key=lambda each: -each.records)
                await home.log.prune({sizes[3].stream_id: 4}, at_ms=1)
                await home.log.forget([sizes[4].stream_id], at_ms=1)
                await home.level()
            home.ship(server.config(name))
            await home.log.close()

    asyncio.run(fill())
    (made.reader / "config.toml").write_text(f'[team]\ndatabase = "{server.address()}"\n')
    yield server, made
    server.close()


@pytest.fixture(autouse=True)
def running(monkeypatch: pytest.MonkeyPatch) -> None:
    """The team does not know which processes of another machine run."""
    for module in (find_by_id, past):
        monkeypatch.setattr(module, "still_runs", lambda pid, ts: True)


def sessions(home: Path) -> list[str]:
    """The sessions of a home with the most records."""
    streams = [each for each in run(home, "streams", "--json").objects() if each["turns"]]
    return [each["stream_id"] for each in sorted(streams, key=lambda each: -each["records"])]


def at_home(home: Path, machine: str, *words: str) -> tuple[list[dict[str, Any]], str]:
    """What a command says at home, and its notes."""
    done = run(home, *words, "--json")
    return [{"machine": machine, **each} for each in done.objects()], done.err


def rounded(value: Any) -> Any:
    """Sums of floats may differ in their last digit."""
    return json.loads(json.dumps(value), parse_float=lambda text: round(float(text), 7))


@pytest.mark.parametrize(
    "words",
    [
        ("streams", "--all"),
        ("costs",),
        ("costs", "--by", "session"),
        ("costs", "--by", "model"),
        ("costs", "--by", "project"),
        ("tree",),
        ("changes", "--limit", "12"),
        ("changes", "--diff"),
        ("query",),
        ("query", "--type", "execution.*"),
        ("query", "--type", "turn.ended", "--limit", "5"),
        ("query", "--actor", "user"),
        ("query", "tool", "--limit", "9"),
        ("query", "--since", "2020-01-01", "--type", "human.input"),
        ("log", "--after", "300"),
    ],
)
def test_all_homes_at_once(team: tuple[Postgres, TwoHomes], words: tuple[str, ...]) -> None:
    _, homes = team
    told = run(homes.reader, *words, "--team", "--json")
    found, notes = zip(*(at_home(homes.of(machine), machine, *words) for machine in MACHINES), strict=True)
    assert told.err == "".join(notes)
    assert told.code == 0
    assert rounded(told.objects()) == rounded([each for own in found for each in own]) != []


def test_a_session_is_found_on_whichever_machine_it_is(team: tuple[Postgres, TwoHomes]) -> None:
    _, homes = team
    for machine in MACHINES:
        own = homes.of(machine)
        other = homes.bob if machine == "ada" else homes.ada
        unique = [each for each in sessions(own) if each not in sessions(other)][:2]
        for session in unique:
            for words in (
                ("log", session),
                ("log", session, "--last", "3"),
                ("state", session),
                ("state", session, "--at", "5"),
                ("diff", session, "2", "9"),
                ("changes", session),
                ("tree", session),
            ):
                told = run(homes.reader, *words, "--team", "--json")
                assert told.code == 0, (words, told.err)
                assert rounded(told.objects()) == rounded(at_home(own, machine, *words)[0]), words
            read = run(homes.reader, "read", session, "--team", "--format", "markdown")
            assert read.out == run(own, "read", session, "--format", "markdown").out != ""


def test_only_one_machine(team: tuple[Postgres, TwoHomes]) -> None:
    _, homes = team
    told = run(homes.reader, "streams", "--machine", "bob").rows()
    assert told[0][0] == "machine"
    assert {row[0] for row in told[1:]} == {"bob"}
    both = run(homes.reader, "streams", "--team").rows()
    assert [row[0] for row in both].count("machine") == 1
    assert {row[0] for row in both[1:]} == set(MACHINES)


def codes(done: Done) -> tuple[int, str]:
    return done.code, done.err.rpartition("[")[2].strip().rstrip("]")


def test_what_cannot_be_read(team: tuple[Postgres, TwoHomes], tmp_path: Path) -> None:
    _, homes = team
    assert codes(run(homes.reader, "streams", "--machine", "eve")) == (1, "not-found")
    assert codes(run(homes.reader, "state", "ses_nowhere", "--team")) == (1, "not-found")
    assert codes(run(homes.ada, "streams", "--team")) == (1, "team-off")
    assert run(homes.reader, "log", "--team", "--follow").code == 2
    away = tmp_path / "away"
    shutil.copytree(homes.reader, away)
    (away / "config.toml").write_text('[team]\ndatabase = "postgresql://boss@127.0.0.1:1/postgres"\n')
    assert codes(run(away, "streams", "--team")) == (1, "team-unavailable")


def test_the_copies_prove_themselves(team: tuple[Postgres, TwoHomes]) -> None:
    server, homes = team
    done = run(homes.reader, "verify", "--team", "--json")
    summaries = [each["summary"] for each in done.objects()]
    assert done.code == 0
    for machine, summary in zip(MACHINES, summaries, strict=True):
        own = run(homes.of(machine), "verify", "--json").objects()[-1]["summary"]
        names = ("records", "streams", "head", "forgotten", "findings")
        assert [summary[name] for name in names] == [own[name] for name in names]
    ((ada,),) = server.ask("SELECT home FROM homes WHERE machine = 'ada'")
    (one, two) = (row[0] for row in server.ask("SELECT position FROM records WHERE home = %s LIMIT 2", ada))
    changes = {
        "corrupt": f"UPDATE records SET event = event || ' ' WHERE home = {ada} AND position = {one}",
        "tampered": f"UPDATE records SET hash = sha256(hash) WHERE home = {ada} AND position = {two}",
        "missing": f"UPDATE streams SET next_offset = next_offset + 1 WHERE home = {ada} AND id = 1",
    }
    for kind, statement in changes.items():
        server.ask(f"{statement} RETURNING 1")
        found = run(homes.reader, "verify", "--machine", "ada", "--json")
        assert found.code == 1
        assert kind in {each["finding"]["kind"] for each in found.objects() if "finding" in each}


def test_a_home_is_read_in_few_questions(team: tuple[Postgres, TwoHomes], monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a way to the server and back, so there must not be one for each session."""
    asked: list[str] = []
    execute = Reading.execute

    def counted(self: Reading, text: str, given: Any = (), /) -> Any:
        asked.append(text)
        return execute(self, text, given)

    monkeypatch.setattr(Reading, "execute", counted)
    for words in (("streams", "--limit", "20"), ("costs",), ("query", "--type", "turn.ended", "--limit", "5")):
        asked.clear()
        assert run(team[1].reader, *words, "--machine", "bob").code == 0
        assert len(asked) < 50, words


def test_a_moment_leaves_nothing_in_the_session(team: tuple[Postgres, TwoHomes]) -> None:
    """A pooler may give the next transaction another connection."""
    state = "SELECT current_setting('search_path'), coalesce(current_setting('durable_stream.home', true), '')"
    with closing(Reading(team[0].config())) as reading:
        homes = reading.homes()
        before = reading.execute(state).fetchall()
        for home in homes:
            reading.turn_to(home)
            assert reading.execute(state).fetchall() != before
        reading.let_go()
        assert reading.execute(state).fetchall() == before


def test_a_terminal_names_the_machines(team: tuple[Postgres, TwoHomes]) -> None:
    _, homes = team
    for words in (("tree", "--limit", "1"), ("streams", "--limit", "1")):
        lines = [ANSI.sub("", line) for line in on_terminal(homes.reader, *words, "--team", width=120).splitlines()]
        assert [line.split()[0] for line in lines if line.split()[:1] in (["ada"], ["bob"])] == [*MACHINES]
