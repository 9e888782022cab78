"""The page over a team shows what the page of each home shows, with the machine's name."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import pytest
from playwright.sync_api import expect
from starlette.applications import Starlette

from sidecar.inspector.data import Data
from sidecar.inspector.search import MOST_SESSIONS
from sidecar.inspector.server import build
from sidecar.inspector.team import TeamData
from sidecar.inspector.together import TOGETHER
from sidecar.read.find_by_id import open_reader
from sidecar.team.reading import Reading
from streams.identity import seeded_identity
from streams.log.reader import LogReader
from tests.postgres import Postgres
from tests.sidecar.cli.helpers import run
from tests.sidecar.inspector.conftest import WAIT_MS, aside, chromium, inspecting
from tests.sidecar.team.homes import CopiedHome
from tests.sidecar.team.test_reading import MACHINES, TwoHomes, rounded, running, team

__all__ = ["running", "team"]

NOW = 1_800_000_000_000


async def nothing(*_: Any) -> dict[str, Any]:
    return {}


Pages = dict[str, Starlette]


@pytest.fixture
async def pages(team: tuple[Postgres, TwoHomes]) -> AsyncIterator[Pages]:
    """The page over the team, and that of each of its homes, by the machine."""
    server, homes = team
    own = {
        name: Data(homes.of(name), open_reader(homes.of(name) / "store"), lambda: NOW, nothing, nothing)
        for name in MACHINES
    }
    readings: list[Reading] = []

    def open_team() -> Reading:
        readings.append(Reading(server.config()))
        return readings[-1]

    of_team = {"team": TeamData(open_team, lambda: NOW), "one machine": TeamData(open_team, lambda: NOW, only="ada")}
    yield {**{name: build(data) for name, data in own.items()}, **{name: build(each) for name, each in of_team.items()}}
    for each in readings:
        each.close()
    for data in own.values():
        await data.reader.close()


async def asked(page: Starlette, path: str) -> tuple[int, Any]:
    """The status and the answer of a page."""
    path, _, query = f"/api/{path}".partition("?")
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "GET", "path": path, "query_string": query.encode(), "headers": []}
    await page({**scope, "root_path": "", "http_version": "1.1"}, receive, send)
    return sent[0]["status"], rounded(json.loads(sent[1]["body"]))


async def got(page: Starlette, path: str) -> Any:
    status, answer = await asked(page, path)
    assert status == 200, (path, answer)
    return answer


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("sessions", "sessions"),
        ("search", "groups"),
        ("search?q=file", "groups"),
        ("search?q=failed", "groups"),
        ("search?q=failed+since:9999d", "groups"),
        ("search?q=since:9999d", "groups"),
        ("search?q=tool:bash", "groups"),
        ("search?q=agent:b+model:mock", "groups"),
        ("work", "hosts"),
        ("costs?days=0&by=session", "sums"),
    ],
)
async def test_the_rows_of_all_homes(pages: Pages, path: str, name: str) -> None:
    found = (await got(pages["team"], path))[name]
    own = [{"machine": machine, **row} for machine in MACHINES for row in (await got(pages[machine], path))[name]]
    assert len(found) == (min(len(own), MOST_SESSIONS) if name == "groups" else len(own)) > 0
    assert [row for row in found if row not in own] == []


@pytest.mark.parametrize("text", ["", "since:9999d", "failed", "file"])
async def test_a_search_counts_the_sessions_of_all_homes_or_of_a_machine(pages: Pages, text: str) -> None:
    own = {machine: await got(pages[machine], f"search?q={text}") for machine in MACHINES}
    found = await got(pages["team"], f"search?q={text}")
    assert found["total"] == sum(each["total"] for each in own.values())
    if text in ("", "since:9999d"):
        times = [each["last_ts"] for each in found["groups"]]
        assert times == sorted(times, reverse=True)
    for machine in MACHINES:
        only = await got(pages["team"], f"search?q={text}+machine:{machine}")
        assert (only["total"], only["faults"]) == (own[machine]["total"], [])
        assert {each["machine"] for each in only["groups"]} == {machine}


VIEWS = ("head", "conversation?first=0&marks=0", "timeline?width=900", "columns", "files", "events")


async def test_a_session_is_shown_as_at_home(pages: Pages) -> None:
    for machine in MACHINES:
        rows = (await got(pages[machine], "sessions"))["sessions"]
        for row in sorted(rows, key=lambda each: -each["records"])[:4]:
            begin, end = row["first_ts"], row["last_ts"]
            middle = f"timeline?width=900&from={begin + (end - begin) // 3}&to={begin + (end - begin) // 2}"
            for what in (*VIEWS, middle, "head?at=5", "timeline?width=900&at=9"):
                path = f"s/{row['stream_id']}/{what}"
                asked_for = f"{path}{'&' if '?' in path else '?'}machine={machine}"
                assert await got(pages["team"], asked_for) == await got(pages[machine], path), path


async def test_one_machine_is_shown_alone(pages: Pages, team: tuple[Postgres, TwoHomes]) -> None:
    found = (await got(pages["one machine"], "sessions"))["sessions"]
    assert len(found) == len((await got(pages["ada"], "sessions"))["sessions"]) and found[0]["machine"] == "ada"
    assert (await asked(pages["one machine"], f"s/{found[0]['stream_id']}/head?machine=bob"))[1]["code"] == "no-log"
    refused = run(team[1].reader, "inspect", "--no-browser", "--machine", "eve")
    assert (refused.code, "[not-found]" in refused.err) == (1, True)


async def test_what_cannot_be_shown_or_done(pages: Pages) -> None:
    found = (await got(pages["ada"], "sessions"))["sessions"][0]["stream_id"]
    for path, code in (
        ("s/ses_nowhere/head", (404, "not-found")),
        ("sessions", (200, None)),
        (f"s/{found}/head?machine=eve", (404, "no-log")),
        ("diff/int_1", (409, "team-only-read")),
    ):
        status, answer = await asked(pages["team"], path)
        assert (status, answer.get("code")) == code, path
    own = [[turn["stream_id"] for turn in (await got(pages[name], "sessions"))["sessions"]] for name in MACHINES]
    for machine, other, streams in zip(MACHINES, MACHINES[::-1], own, strict=True):
        alone = next(each for each in streams if each not in own[MACHINES.index(other)])
        assert (await asked(pages["team"], f"s/{alone}/head?machine={other}"))[0] == 404
        assert (await asked(pages["team"], f"s/{alone}/head?machine={machine}"))[0] == 200


def costs(day: str, **by_model: float) -> dict[str, Any]:
    """What the page on costs shows of a home, whose models cost something on one day."""
    together = sum(by_model.values())
    each = {"key": day, "cost": together, "steps": 2, "sessions": 1, "tokens": {"input": 5, "total": 5}}
    used = [[cost, 1] for cost in by_model.values()]
    days = {"models": [*by_model], "days": [{"day": day, "used": used}, {"day": "2026-03-03", "used": []}]}
    turns = [{"stream_id": day, "cost": together}]
    about = {"by": "day", "range": 7, "is_partial": False, "weeks": [together, 1.0]}
    return {**about, **days, "turns": turns, "sums": [each], "total": each | {"key": ""}}


def test_costs_are_added_up() -> None:
    one = costs("2026-03-01", a=1.0, b=2.0, c=3.0, d=4.0)
    two = costs("2026-03-02", a=9.0, e=5.0, f=6.0, g=7.0)
    three = costs("2026-03-02", g=0.5)
    homes = [("ada", one), ("bob", two), ("bob", three)]
    found = TOGETHER["costs"](homes, {})
    assert [(each["key"], each["cost"], each["sessions"]) for each in found["sums"]] == [
        ("2026-03-01", 10.0, 1),
        ("2026-03-02", 27.5, 2),
    ]
    assert (found["total"]["cost"], found["total"]["tokens"]) == (37.5, {"input": 15, "total": 15})
    assert found["models"] == ["a", "g", "f", "e", "d", "c", None]
    assert [[used[0] for used in each["used"]] for each in found["days"]] == [
        [1.0, 0.0, 0.0, 0.0, 4.0, 3.0, 2.0],
        [9.0, 7.5, 6.0, 5.0, 0.0, 0.0, 0],
        [0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0],
    ]
    assert found["weeks"] == [37.5, 3.0]
    assert [each["machine"] for each in found["turns"]] == ["bob", "ada", "bob"]
    machines = TOGETHER["costs"](homes, {"by": "machine"})["sums"]
    assert [(each["key"], each["cost"]) for each in machines] == [("bob", 27.5), ("ada", 10.0)]


def test_the_page_in_a_browser(team: tuple[Postgres, TwoHomes]) -> None:
    server, homes = team

    with chromium() as browser, inspecting(homes.reader, "--team") as served:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(served.link)
        rows, chosen = page.locator(".row:not(.heads)"), page.get_by_role("combobox", name="machine")
        expect(page.locator(".of-team")).to_be_visible()
        expect(chosen.locator("option")).to_have_count(3)
        chosen.select_option("bob")
        expect(rows.locator(".machine").first).to_have_text("bob")
        assert {*rows.locator(".machine").all_inner_texts()} == {"bob"}
        rows.first.click()
        expect(page).to_have_url(re.compile(r"/s/.*machine=bob"))
        page.get_by_role("link", name="Events").click()
        page.locator(".events [data-row]").first.click()
        expect(page.get_by_role("button", name="Copy as JSON")).to_be_visible()
        expect(page.get_by_role("button", name="Fork here")).to_have_count(0)
        page.goto(f"{served.base}/costs?by=machine&days=0")
        expect(page.locator(".sums tbody tr")).to_have_count(2)
        page.goto(f"{served.base}/health")
        expect(page.get_by_role("heading", name="2 machines")).to_be_visible()
        page.goto(f"{served.base}/?machine=ada")
        expect(page.locator(".group").first).to_be_visible()
        aside(asyncio.run, one_more(homes, server))
        expect(page.locator(".title", has_text="Just begun")).to_be_visible()
        page.close()


def test_a_postgres_that_is_slow_or_away_is_said(team: tuple[Postgres, TwoHomes]) -> None:
    server, homes = team
    with chromium() as browser, inspecting(homes.reader, "--team") as served:
        page = browser.new_page()
        page.set_default_timeout(WAIT_MS)
        page.goto(served.link)
        rows, said = page.locator(".row:not(.heads)"), page.locator("#damage")
        expect(rows.first).to_be_visible()
        expect(said).to_be_hidden()
        server.signal(signal.SIGSTOP)
        page.get_by_role("link", name="Costs").click()
        expect(said).to_contain_text("not answered")
        server.signal(signal.SIGCONT)
        expect(page.locator(".sums").first).to_be_visible()
        expect(said).to_be_hidden()
        server.kill()
        expect(said).to_be_visible()  # without a click
        expect(page.locator(".sums").first).to_be_visible()
        page.get_by_role("link", name="Sessions").click()
        expect(page.locator("main .empty")).to_be_visible()
        server.start()
        expect(rows.first).to_be_visible()
        expect(said).to_be_hidden()
        page.close()


class Stuck:
    """A team whose Postgres does not answer until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def homes(self, machine: str | None = None, /) -> list[Any]:
        assert self.go.wait(WAIT_MS / 1000)
        return []

    def turn_to(self, home: Any, /) -> None: ...

    def let_go(self) -> None: ...

    def reader(self, home: Any, /) -> LogReader:
        raise NotImplementedError


async def test_an_answer_is_not_waited_for_without_end() -> None:
    stuck = Stuck()
    page = build(TeamData(lambda: stuck, lambda: NOW, patience=0.01))
    for _ in range(3):
        status, answer = await asked(page, "sessions")
        assert (status, answer["code"]) == (409, "team-unavailable")
    stuck.go.set()
    assert (await asked(build(TeamData(lambda: stuck, lambda: NOW)), "sessions"))[1]["code"] == "no-log"


async def one_more(homes: TwoHomes, server: Postgres) -> None:
    """Record one more session on ada's machine, and copy it."""
    home = await CopiedHome(homes.ada / "store", 1).open()
    about = {"stream_id": "ses_more", "actor": "build", "source": {"agent": "build", "adapter": "opencode"}}
    given = {"session": "ses_more", "title": "Just begun", "directory": "/shop", "lineage": "root", "agent": "build"}
    identity = seeded_identity(77)
    await home.append([identity.stamp({**about, "type": "lifecycle.session.created", "payload": given})])
    home.ship(server.config("ada"))
    await home.log.close()
