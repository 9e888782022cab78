"""Commands that ask another machine, through the sidecar of this one."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from sidecar.failure import Failure

if TYPE_CHECKING:
    from sidecar.cli.shared.command import Run

T = TypeVar("T")

OnOption = Annotated[
    str | None,
    typer.Option("--on", metavar="MACHINE", help="Ask this machine, over NATS, instead of this one."),
]

_AGAIN = "it is safe to run the same command again"


async def question(run: Run, machine: str, name: str, args: dict[str, Any] | None = None) -> Any:
    """What another machine answers now.

    Raises:
        Failure: the sidecar ended before it answered.
        RequestError: the machine is away (``machine-away``), or it refused.
    """
    from sidecar.cli.shared.control import ask

    asked = {"machine": machine, "name": name, "args": args or {}}
    return (await ask(run.home, "machine_ask", asked, _AGAIN))["value"]


async def request(
    run: Run, machine: str, name: str, args: dict[str, Any], *, key: str | None = None, session: str | None = None
) -> dict[str, Any] | None:
    """What another machine did; ``None`` if it is away, and does it later. Then the command says so.

    Raises: see ``question``.
    """
    from sidecar.cli.shared.control import ask

    asked = {"machine": machine, "name": name, "args": args, "key": key, "session": session}
    found = await ask(run.home, "machine_ask", asked, f"{_AGAIN} with the same `--key`" if key else _AGAIN)
    if not found["queued"]:
        return dict(found["value"])
    about = {"machine": machine, "queued": True, "request": found["id"]}
    run.out.result(about, f"queued: {machine} does not answer now; it is done when {machine} is back ({found['id']})")
    return None


def made(kind: type[T], row: dict[str, Any], **more: Any) -> T:
    """The dataclass of a row that another machine sent.

    Raises:
        Failure: the row is of another version.
    """
    names = {each.name for each in fields(kind)}  # type: ignore[arg-type]
    try:
        return kind(**{name: value for name, value in row.items() if name in names}, **more)
    except TypeError:
        raise Failure("bad-answer", "that machine runs another version; use one version on all machines") from None
