"""What ``prune`` and ``forget`` share: doing it with a sidecar or without, and telling where else the records are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sidecar.cli.command import Failure, warn

if TYPE_CHECKING:
    from sidecar.home import Home

YesFlag = Annotated[bool, typer.Option("--yes", "-y", help="Do it; without it you are only told what would go.")]

SHOWN_STREAMS = 20


def kept_store(home: Home) -> str | None:
    """The store that the last move left, in words; ``None`` where nothing of it can hold payloads (any more)."""
    from streams.stores.copies import holds_payloads
    from streams.stores.directory import read_manifest

    manifest = read_manifest(home.store_path)
    if manifest is None or manifest.kept is None or not holds_payloads(home.store_path, manifest.kept.backend):
        return None
    return f"the old {manifest.kept.backend} store that the last move left"


def other_copies(home: Home) -> list[str]:
    """Where else than in the log its records may be: a prune does not reach there."""
    from sidecar.config import load_config

    found = []
    if (kept := kept_store(home)) is not None:
        told = f"{kept[0].upper()}{kept[1:]} still holds what was pruned since"
        found.append(f"{told}: `durable-stream migrate --discard-old` deletes it.")
    if load_config(home.config_path).nats.mode != "off":
        found.append(
            "The mirror holds what is pruned as long as its limits say: "
            "`durable-stream mirror rebuild` removes it there."
        )
    return found


async def ask(home: Home, method: str, args: dict[str, Any], cut_off: str) -> dict[str, Any]:
    """The running sidecar's answer; ``cut_off`` is what is said when it goes away meanwhile."""
    from sidecar.cli.control import control

    async with control(home, cut_off) as client:
        return dict(await client.request(method, args))


async def remove_by_ourselves(home: Home, work: Any) -> dict[str, Any]:
    """What ``work`` makes of an ``Upkeep``. No sidecar runs: hold the home as one would, so that none starts meanwhile.

    Raises:
        Failure: there is no log.
        StreamError, OSError, HomeLocked: it is refused; nothing was changed.
    """
    import asyncio

    from sidecar.cli.control import REMOVING, by_ourselves
    from sidecar.config import load_config
    from sidecar.upkeep import Upkeep, restore
    from streams.identity import system_identity
    from streams.log import Log
    from streams.stores.presence import located

    # Before any lock: what is refused, or was never a home, stays as it is.
    if await asyncio.to_thread(located, home.store_path) is None:
        raise Failure(f"there is no log in {home.store_path} yet: nothing to remove")
    config, identity = load_config(home.config_path), system_identity()
    with home.lock(), by_ourselves(REMOVING):
        log = await Log.open(home.store_path, identity, segment_bytes=config.store.segment_bytes, to_remove=True)
        try:
            warn(log.head_warning)
            state, kept = await restore(log)
            upkeep = Upkeep(log, state, lambda: True, identity.now_ms, kept=kept, config=config.store)
            return dict(await work(upkeep))
        finally:
            await log.close()


def records_text(count: int) -> str:
    """How many records, in words."""
    return "1 record" if count == 1 else f"{count} records"


def streams_text(count: int) -> str:
    """How many streams, in words."""
    return "1 stream" if count == 1 else f"{count} streams"
