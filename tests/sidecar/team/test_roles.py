"""The roles of docs/team.md: each machine writes its own home only, and a reader nothing."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from sidecar.team.claims import TeamClaims
from sidecar.team.errors import TeamRefused
from sidecar.team.log import open_log
from tests.postgres import Postgres
from tests.sidecar.team.homes import EVENTS, CopiedHome, differences
from tests.streams.builders import event

PAGE = Path(__file__).parents[3] / "docs" / "team.md"
SEARCH, ANEW, ROLES, LOGINS, AGENTS = re.findall(r"^```sql\n(.*?)```", PAGE.read_text(), re.DOTALL | re.MULTILINE)


@pytest.fixture(scope="module")
def guarded() -> Iterator[Postgres]:
    """A Postgres with the tables that the owner makes, and with the page's roles."""
    found = Postgres(fsync="off").start()
    made = subprocess.run([sys.executable, "-m", "sidecar.team.schema"], capture_output=True, text=True, check=True)
    with found.connect() as connection:
        for text in (made.stdout, ROLES, LOGINS, LOGINS.replace("ada", "bob").replace("grace", "heidi"), AGENTS):
            connection.execute(text.encode())
    yield found
    found.close()


def refused(postgres: Postgres, user: str, statement: str) -> bool:
    """Whether a role may not run a statement, which changes nothing."""
    address = postgres.address(user=user)
    with psycopg.connect(address, options="-csearch_path=durable_stream") as connection:
        try:
            connection.execute(statement.encode())
        except psycopg.errors.InsufficientPrivilege:
            return True
        finally:
            connection.rollback()
    return False


async def test_each_machine_copies_its_own_home(guarded: Postgres, home: CopiedHome, tmp_path: Path) -> None:
    other = await CopiedHome(tmp_path / "other", 2).open()
    for each, user in ((home, "ada"), (other, "bob")):
        await each.append(EVENTS[:300])
        each.ship(guarded.config(user, user=user))
        await each.log.forget([EVENTS[0].stream_id], at_ms=1)
        await each.log.prune({EVENTS[1].stream_id: 3}, at_ms=1)
        await each.append(EVENTS[300:400])
        each.ship(guarded.config(user, user=user))
        assert list(differences(guarded, each.store, each.log_id)) == []
    await other.log.close()
    await home.append(EVENTS[400:450])
    with pytest.raises(TeamRefused):
        home.ship(guarded.config("ada", user="bob"))
    homes = dict(guarded.ask("SELECT machine, home FROM homes"))
    ada, bob = homes["ada"], homes["bob"]
    own = f"DELETE FROM step WHERE home = {ada}"
    assert not refused(guarded, "ada", own)
    may_not = [
        f"DELETE FROM step WHERE home = {bob}",
        f"UPDATE homes SET head = 5 WHERE home = {bob}",
        f"UPDATE records SET event = '' WHERE home = {bob}",
        f"INSERT INTO copied VALUES ({bob}, 'x', 1)",
        f"UPDATE records SET home = {bob} WHERE home = {ada}",
        f"UPDATE records SET hash = '' WHERE home = {ada}",
        f"UPDATE homes SET owner = 'bob' WHERE home = {ada}",
        f"DELETE FROM homes WHERE home = {ada}",
        "INSERT INTO homes (log_id, machine, owner) VALUES ('x', 'x', 'bob')",
        "UPDATE about SET version = '9'",
        "TRUNCATE records",
        "CREATE TABLE durable_stream.x (a INT)",
    ]
    assert [text for text in may_not if not refused(guarded, "ada", text)] == []
    assert [text for text in (own, *may_not) if not refused(guarded, "grace", text)] == []
    assert not refused(guarded, "grace", "SELECT * FROM records, step")
    # A home that is deleted is copied anew.
    with guarded.connect() as connection:
        connection.execute(ANEW.replace("the home''s id", home.log_id).encode())
    assert guarded.ask("SELECT 1 FROM records WHERE home = %s", ada) == []
    home.ship(guarded.config("ada", user="ada"))
    assert list(differences(guarded, home.store, home.log_id)) == []


async def test_the_teams_log_is_written_by_its_functions_alone(guarded: Postgres) -> None:
    log = await open_log(guarded.config(user="ada"))
    await log.append([event("a"), event("b", stream="agent/b")])
    await log.advance("x", 1)
    claims = TeamClaims(log, "one")
    claim = await claims.take("run", "key")
    assert (await log.cursor("x"), [record.position async for record in log.read_all()]) == (1, [0, 1])
    writes = [
        "DELETE FROM records WHERE home = 0",
        "UPDATE records SET event = '' WHERE home = 0",
        "UPDATE streams SET next_offset = 0 WHERE home = 0",
        "INSERT INTO streams VALUES (0, 99, 'agent/c', 0, '')",
        "UPDATE homes SET head = 0 WHERE home = 0",
        "INSERT INTO hints VALUES (0, 'cursor', 'y', 1, 1, '')",
        "DELETE FROM claims WHERE home = 0",
        "INSERT INTO claims VALUES (0, '', 'me', now())",
    ]
    for user in ("ada", "bob", "heidi"):
        assert [text for text in writes if not refused(guarded, user, text)] == []
    calls = [
        "SELECT append(" + "'{}', " * 13 + "false, NULL, NULL)",
        "SELECT keep_hint('cursor', 'x', 1, 0, '')",
        "SELECT claim('{}', '{}', 1)",
        "SELECT renew('{}', '{}', 1)",
        "SELECT release('', '')",
    ]
    for user in ("bob", "heidi"):
        assert [text for text in calls if not refused(guarded, user, text)] == []
    assert [text for text in calls[1:] if refused(guarded, "ada", text)] == []
    await claim.release()
    await claims.close()
    await log.close()
    log = await open_log(guarded.config(user="bob"))
    with pytest.raises(TeamRefused):
        await log.append([event("c")])
    await log.close()
