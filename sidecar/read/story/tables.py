"""The tables of the story: their columns, and their rows in memory until a transaction writes them.

Numbers of records are positions in the log. A *version* of a row holds from record ``born`` until before record
``died``; ``died`` is ``NULL`` while it holds. All versions have one ``key``, which is the ``id`` of the first. A fact
that happens once in the life of a row has a column of its own, such as ``till``, and makes no version: a reader
compares it with its moment. Sums are those so far, so a sum at any record is one row. Times are in ms since 1970; times
and positions that are not known yet are ``NULL``. Long texts stay in the records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any, Final, Generic, TypeVar, get_args

import msgspec
from msgspec.structs import astuple, fields, replace

STORY_VERSION: Final = 5
"""Version of the tables and of the rules. Tables of another version are made again."""

ALIVE: Final = "born <= :n AND (died IS NULL OR died > :n)"
"""The versions of rows that held after record ``n``."""


class Row(msgspec.Struct):
    """A row of a table with ids of its own."""

    id: int = 0


class Version(Row):
    """A row that holds from one record until before another."""

    key: int = 0
    born: int = 0
    died: int | None = None


class Moment(msgspec.Struct):
    """Each record. ``number`` and ``count`` say how many records its place and its session have up to it; ``first`` and
    ``last`` are the earliest and the latest time of the session's records until then, and ``since`` and ``until`` those
    of its place; ``waited`` is how long the session's asks took that had ended, in ms. Of the place's records until
    then, ``forgotten`` are forgotten, ``cut`` have a text that was too long to keep whole, and ``news`` is the last
    one about its session. ``next`` is the place's next record."""

    n: int = 0
    place: int = 0
    session: int | None = None
    number: int = 0
    count: int = 0
    ts: int = 0
    first: int = 0
    last: int = 0
    since: int = 0
    until: int = 0
    waited: int = 0
    forgotten: int = 0
    cut: int = 0
    news: int = 0
    next: int | None = None


class Place(Version):
    """A stream. ``directory`` is the one that its session works for, and ``ran_in`` the one in which background work
    ran instead; ``boot`` names the OpenCode process that recorded last. ``first`` is its first record, and ``moved``
    says how often its session was moved. A place that a session belongs to is ``used``."""

    stream: str = ""
    first: int = 0
    directory: str = ""
    project: str = ""
    boot: str = ""
    ran_in: str = ""
    moved: int = 0
    used: int = 0


class Session(Version):
    """A session. It is ``named`` once one of its own records came: ``first`` is that one. ``place`` is the key of its
    stream, ``parent`` and ``fork`` are names of sessions, ``up`` is the span of the call that started it. ``label`` is
    the title that a person gave. It ``rests`` while no turn runs. ``run`` is the span of its latest turn, which the
    process ``pid`` began, and ``begun`` the time of its first turn."""

    name: str = ""
    named: int = 0
    place: int = 0
    parent: str | None = None
    known: int = 1
    announced: int = 0
    ended: str | None = None
    title: str = ""
    label: str = ""
    pinned: int = 0
    agent: str = ""
    role: str = ""
    model: str = ""
    directory: str = ""
    fork: str | None = None
    background: int = 0
    rests: int = 0
    up: int | None = None
    first: int | None = None
    trace: str | None = None
    run: int | None = None
    begun: int | None = None
    pid: int = 0


class Turn(Version):
    """What follows one message. ``branch`` is the branch of its session in which it was said; ``first`` is the record
    that bore its first version; ``asked`` is the prompt on one line."""

    session: int = 0
    message: str = ""
    first: int = 0
    branch: int | None = None
    agent: str = ""
    model: str = ""
    trigger: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    outcome: str = ""
    error: str = ""
    asked: str = ""


class Item(Version):
    """The items of a turn, in the order of keys, from record ``at``. A call that runs has a ``call`` and no
    ``till``; ``till`` is the record of its result. ``ref``: the branch of a call, the span of an ask, the prompt of an
    undo."""

    turn: int = 0
    kind: str = ""
    at: int = 0
    till: int | None = None
    ref: int | None = None
    call: str | None = None
    text: str = ""


class Undone(Version):
    """A message that was undone; one that was ``removed`` stays so."""

    session: int = 0
    message: str = ""
    removed: int = 0


class Span(Version):
    """What takes time: a ``turn``, a call of the ``model`` or of a ``tool``, a ``wait`` for an answer, a ``pause``.

    It starts by record ``at``, in the turn's span ``up``, which is the session's turn ``number``. Record ``till`` ends
    it: only then ``end`` and ``state`` count. ``result`` is the record that says how (a result, an answer, the end of a
    turn), and ``about`` the one that announced it: the start of a turn that names a model, the spawning of an agent.
    ``marked``: the record of a turn's first failure; for a wait, that its ask was imported and nobody waits.
    ``total``: how long the turns before took. ``turn`` is the message of a turn, or the one that a wait names, and
    ``of`` the key of the turn that a wait is about. ``reply``, from record ``result`` on, is the outcome of a turn, or
    the answer to a permission: ``once``, ``always``, ``reject``, ``withdrawn`` or ``answered``; ``shown`` is the first
    record of a step that needed the permission and changed a file.
    """

    session: int = 0
    kind: str = ""
    at: int = 0
    start: int = 0
    up: int | None = None
    turn: str = ""
    of: int = 0
    call: str = ""
    request: str = ""
    number: int = 0
    total: int = 0
    till: int | None = None
    end: int | None = None
    state: str = ""
    result: int | None = None
    reply: str = ""
    shown: int | None = None
    about: int | None = None
    marked: int | None = None


class Step(msgspec.Struct):
    """The step of record ``n``, with sums so far: of its session (``s_``), its turn (``t_``), and its turn's span
    (``r_``, inference only). Tokens are JSON; of a step, only of one of inference. ``partial``: its OpenCode tells no
    steps of titles and compactions."""

    n: int = 0
    ts: int = 0
    session: int = 0
    turn: int = 0
    run: int | None = None
    kind: str = ""
    model: str = ""
    agent: str = ""
    cost: float = 0.0
    tokens: str | None = None
    partial: int = 0
    s_steps: int = 0
    s_cost: float = 0.0
    s_tokens: str = "{}"
    t_steps: int = 0
    t_cost: float = 0.0
    t_tokens: str = "{}"
    r_steps: int = 0
    r_cost: float = 0.0


class Edit(Row):
    """A file that the step of record ``n`` changed in a ``turn``. The counts of lines are ``NULL`` if the old content
    is not known."""

    n: int = 0
    session: int = 0
    turn: int = 0
    file: str = ""
    tool: str = ""
    added: int | None = None
    removed: int | None = None
    how: str = ""


class Allowed(Row):
    """The span of an ask that the step of record ``n`` needed, and the item of the call below which it is shown."""

    n: int = 0
    ask: int = 0
    below: int | None = None


class Branch(Row):
    """From record ``born`` on, the turns of a session are shown below an item, ``call``, of the session ``above``."""

    session: int = 0
    above: int = 0
    call: int = 0
    title: str = ""
    agent: str = ""
    born: int = 0


class Spawn(Row):
    """A turn started a session, which may not be known; ``span`` is the call that did."""

    n: int = 0
    turn: int = 0
    child: str = ""
    span: int | None = None


class Mark(Row):
    """The ``number``-th turn, ask, error or edit of a session."""

    n: int = 0
    session: int = 0
    kind: str = ""
    number: int = 0


class Gap(Row):
    """Record ``n`` says what was lost: in the session of a ``place``, or in any session of the process ``boot``."""

    n: int = 0
    ts: int = 0
    place: int | None = None
    boot: str = ""
    reason: str = ""
    lost: int = 0


# --- what only the rules look up ---


class Input(Row):
    """An input of a person or an agent; ``asked`` while no turn has it."""

    session: int = 0
    message: str = ""
    asked: str | None = None


class Reply(Row):
    """A message of the model, and the message of the turn that it belongs to. The newest row of a message counts."""

    session: int = 0
    message: str = ""
    turn: str = ""


class Started(Row):
    """A call that ended and started a session or may have started one; ``background``: it did not wait for it."""

    session: int = 0
    turn: str = ""
    call: str = ""
    child: str = ""
    background: int = 0
    item: int = 0
    span: int = 0


class Live(msgspec.Struct):
    """What the rules keep of a session besides its rows, as JSON. ``id`` is the session's key; 0 is the log itself."""

    id: int = 0
    state: str = ""


R = TypeVar("R", bound=msgspec.Struct)

ROWS: Final[dict[str, type[Any]]] = {
    row.__name__.lower(): row
    for row in (
        *(Moment, Place, Session, Turn, Item, Undone, Span, Step, Edit, Allowed, Branch, Spawn, Mark, Gap),
        *(Input, Reply, Started, Live),
    )
}
"""The rows of each table, by the table's name. The first column is the table's primary key."""

_INDEXES: Final = (
    *("moment(place)", "moment(session)", "moment(news) WHERE next IS NULL"),
    *("place(stream)", "place(key)", "place(boot)", "place(directory, project, used) WHERE died IS NULL"),
    *("session(name, born)", "session(name) WHERE died IS NULL"),
    *("session(key, born)", "session(place, key)", "session(place) WHERE died IS NULL", "session(parent)"),
    *("session(fork) WHERE died IS NULL AND fork IS NOT NULL", "session(key) WHERE died IS NULL AND background = 1"),
    *("turn(session, born)", "turn(session, born) WHERE born = first", "turn(key)", "turn(session, message)"),
    *("item(turn, key, born, died)", "item(key)"),
    *("item(turn) WHERE call IS NOT NULL", "item(ref) WHERE kind = 'ask'"),
    "undone(session, message)",
    *(
        "span(session, kind, at)",
        "span(session, at)",
        "span(session, at) WHERE id <> key",
        "span(key)",
        "span(session) WHERE till IS NULL AND died IS NULL",
    ),
    *("span(session, request) WHERE kind = 'wait'", "span(session, call) WHERE kind = 'wait'"),
    "span(session, result, shown, reply, of) WHERE kind = 'wait' AND reply <> ''",
    *("step(session)", "step(turn)", "step(run)"),
    *("edit(session, turn, n)", "allowed(n)", "allowed(ask)", "allowed(below)"),
    *("branch(session)", "branch(above)", "branch(call)"),
    *("spawn(turn)", "spawn(child)", "mark(session, kind, n)"),
    *("input(session, message)", "reply(session, message)"),
    *("started(session, call)", "started(child)"),
)

_TYPES: Final = {int: "INTEGER", str: "TEXT", float: "REAL"}


@cache
def columns(name: str) -> tuple[str, ...]:
    """The columns of a table, each with its type."""
    found: list[str] = []
    for column in fields(ROWS[name]):
        kind, *never = get_args(column.type) or (column.type,)
        found.append(f"{column.name} {_TYPES[kind]} {'PRIMARY KEY' if not found else '' if never else 'NOT NULL'}")
    return tuple(found)


def create(db: sqlite3.Connection) -> None:
    """Create the tables and their indexes, empty."""
    for name in ROWS:
        db.execute(f"CREATE TABLE {name} ({', '.join(columns(name))}) STRICT")
    for number, index in enumerate(_INDEXES):
        db.execute(f"CREATE INDEX story_{number} ON {index}")


class Table(Generic[R]):
    """Rows that a transaction writes once, however often they changed in it. Queries see them, too."""

    def __init__(self, db: sqlite3.Connection, row: type[R], into: Callable[[str], str]) -> None:
        """``into`` is asked once, before the first row is written: to which table, by the name that queries read."""
        self._db, self._row, self._name, self._into = db, row, row.__name__.lower(), into
        self._has_key = issubclass(row, Version)
        self._changed: dict[int, Any] = {}

    @cached_property
    def _sql(self) -> str:
        marks = ",".join("?" * len(self._row.__struct_fields__))
        return f"INSERT OR REPLACE INTO {self._into(self._name)} VALUES ({marks})"  # noqa: S608

    @cached_property
    def _last(self) -> int:
        newest = f"SELECT max({self._row.__struct_fields__[0]}) FROM main.{self._name}"  # noqa: S608
        return self._db.execute(newest).fetchone()[0] or 0

    def add(self, row: R) -> R:
        """Take a new row, and give it the next id, which is also the key of a first version."""
        new: Any = row
        self._last += 1
        new.id = self._last
        if self._has_key:
            new.key = self._last
        self._changed[self._last] = new
        return row

    def put(self, number: int, row: R) -> None:
        """Take a row with its own primary key."""
        self._changed[number] = row

    def change(self, row: R, n: int, **new: Any) -> None:
        """Make a new version from record ``n`` on, if anything is new."""
        now: Any = row
        if all(getattr(now, name) == value for name, value in new.items()):
            return
        if now.born != n:
            self._changed[now.id] = replace(now, died=n)
            self._last += 1
            now.id, now.born = self._last, n
        self.set(row, **new)

    def set(self, row: R, **new: Any) -> None:
        """Change a row without a new version."""
        now: Any = row
        for name, value in new.items():
            setattr(now, name, value)
        self._changed[now.id] = now

    def find(self, where: str, *given: Any) -> R | None:
        """The first row of a query, which no other object in memory may stand for; ``None`` if there is none."""
        self.write()
        found = self._db.execute(f"SELECT * FROM {self._name} WHERE {where} LIMIT 1", given).fetchone()  # noqa: S608
        return self._row(*found) if found is not None else None

    def all(self, where: str, *given: Any) -> list[R]:
        """The rows of a query: see ``find``."""
        self.write()
        return [self._row(*each) for each in self._db.execute(f"SELECT * FROM {self._name} WHERE {where}", given)]  # noqa: S608

    def write(self) -> None:
        """Write the rows that changed."""
        if self._changed:
            self._db.executemany(self._sql, map(astuple, self._changed.values()))
            self._changed.clear()
