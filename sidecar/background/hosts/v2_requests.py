"""Requests to a service of OpenCode 2, as 2.0.15 answers them. Every failure is a ``HostError`` that names the request.

Later versions may know other requests. They answer an unknown request with 404, or with a page that is not JSON.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any, Final
from urllib.parse import quote

from bridge.opencode.capture.shapes import mapping, text
from sidecar.agents.effects.outbound import outbound_headers
from sidecar.background.hosts.host import HostError
from sidecar.background.hosts.rights import Rule
from sidecar.background.hosts.v2_turn import is_prompt
from sidecar.record.opencode2.http import ServiceClient, ServiceError, ServiceGone
from sidecar.record.opencode2.registration import UnsafeService

ACTIVE: Final = "/api/session/active"
PAGE: Final = 200
"""How many messages are read at a time; the service accepts no larger number."""

RULES_LOOKS: Final = 30
RULES_SECONDS: Final = 0.1
"""How often, and with what pauses, the rules of an agent are read until they no longer change."""

PLUGIN_LOOKS: Final = 300
"""How often the plugins are read until they are loaded: their own code may take long."""

NOT_FOUND: Final = 404
CONFLICT: Final = 409


async def find(client: ServiceClient, path: str) -> Any:
    """The answer to a ``GET``; ``None`` if the service answers 404."""
    try:
        return await client.get(path)
    except ServiceError as error:
        if error.status == NOT_FOUND:
            return None
        raise refused("GET", path, error) from None
    except (ServiceGone, UnsafeService) as error:
        raise HostError(f"OpenCode 2 gave no usable answer to GET {path}: {error}") from None


async def get(client: ServiceClient, path: str) -> Any:
    """The answer to a ``GET`` of something that every service has."""
    found = await find(client, path)
    if not isinstance(found, dict):
        raise HostError(f"this version of OpenCode 2 does not support GET {path}", permanent=True)
    return found


async def info(client: ServiceClient, session: str) -> dict[str, Any] | None:
    found = await find(client, path_of(session))
    if found is None:
        await get(client, ACTIVE)  # fails if it is not the session but the whole interface that is not there
        return None
    return mapping(mapping(found).get("data"))


async def rules_of(client: ServiceClient, agent: str, directory: str) -> tuple[Rule, ...]:
    """The rules of an agent in a directory. When the directory is used for the first time, the service loads its agents
    and their rules after it answers, so read until nothing changes.
    """
    path = f"/api/agent/{quote(agent, safe='')}?location[directory]={quote(directory, safe='')}"
    before: Any = None
    for look in range(RULES_LOOKS):
        await asyncio.sleep(RULES_SECONDS if look else 0)
        found = await find(client, path)
        if found is not None and found == before:
            return rules(mapping(mapping(found).get("data")).get("permissions"))
        before = found
    raise HostError(f"OpenCode 2 has no agent {agent[:60]!a} for this project", permanent=True)


async def all_rules(client: ServiceClient, agent: str | None, directory: str) -> list[Rule]:
    """The rules of an agent in a directory, or of all if none is named."""
    if agent is not None:
        return list(await rules_of(client, agent, directory))
    found = mapping(await get(client, f"/api/agent?location[directory]={quote(directory, safe='')}"))
    return [rule for each in as_list(found.get("data")) for rule in rules(mapping(each).get("permissions"))]


async def plugins(client: ServiceClient, directory: str) -> list[str]:
    """The plugins that are loaded for a directory, without OpenCode's own. The list is empty until all are loaded,
    because OpenCode's own are in it."""
    path = f"/api/plugin?location[directory]={quote(directory, safe='')}"
    for look in range(PLUGIN_LOOKS):
        await asyncio.sleep(RULES_SECONDS if look else 0)
        found = [mapping(each) for each in as_list(mapping(await get(client, path)).get("data"))]
        if found:
            active = [each for each in found if mapping(each.get("state")).get("status") == "active"]
            named = [(mapping(each.get("source")), each.get("id")) for each in active]
            return [str(of.get("path") or of.get("target") or id_) for of, id_ in named if of.get("type") != "builtin"]
    raise HostError(f"OpenCode 2 loads no plugins for {directory}")


def rules(listed: Any) -> tuple[Rule, ...]:
    return tuple(Rule(each["action"], each["resource"], each["effect"]) for each in as_list(listed))


async def list_of(client: ServiceClient, session: str, what: str) -> list[dict[str, Any]]:
    """A list that belongs to a session; empty if there is no such session."""
    path = f"{path_of(session)}/{what}"
    found = await find(client, path)
    if found is None and await info(client, session) is not None:
        raise HostError(f"this version of OpenCode 2 does not support GET {path}", permanent=True)
    return [mapping(each) for each in as_list(mapping(found).get("data"))]


async def messages(client: ServiceClient, session: str, count: int = 0) -> list[dict[str, Any]]:
    """A session's messages from its newest prompt on, or all if it has no prompt; or the newest ``count``. Oldest
    first.
    """
    newest = list[dict[str, Any]]()
    async for found in _pages(client, session, f"order=desc&limit={count or PAGE}"):
        newest += found
        if count or any(map(is_prompt, found)):
            break
    return newest[::-1]


async def _pages(client: ServiceClient, session: str, query: str) -> AsyncIterator[list[dict[str, Any]]]:
    while query:
        page = mapping(await find(client, f"{path_of(session)}/message?{query}"))
        found = [mapping(each) for each in as_list(page.get("data"))]
        yield found
        following = mapping(page.get("cursor")).get("next") if found else None
        query = f"limit={PAGE}&cursor={quote(str(following), safe='')}" if following else ""


async def change(client: ServiceClient, method: str, path: str, body: dict[str, Any] | None = None) -> None:
    """Send a request that changes something. It is no error if the change was already made."""
    try:
        await send(client, method, path, body)
    except ServiceError as error:
        if error.status != CONFLICT:
            raise refused(method, path, error) from None


async def make(client: ServiceClient, path: str, body: dict[str, Any]) -> str:
    """Make a session. Returns its id."""
    made = text(mapping(mapping(await post(client, path, body)).get("data")).get("id"))
    if made is None:
        raise HostError(f"this version of OpenCode 2 does not support POST {path}", permanent=True)
    return made


async def post(client: ServiceClient, path: str, body: dict[str, Any]) -> Any:
    try:
        return await send(client, "POST", path, body)
    except ServiceError as error:
        raise refused("POST", path, error) from None


async def message_ids(client: ServiceClient, session: str) -> list[str]:
    """The ids of a session's messages, oldest first; without those that only mark the end of a turn."""
    pages = _pages(client, session, f"order=asc&limit={PAGE}")
    return [str(each.get("id")) async for page in pages for each in page if each.get("type") != "idle"]


async def send(client: ServiceClient, method: str, path: str, body: dict[str, Any] | None) -> Any:
    try:
        return await client.send(method, path, body, outbound_headers())
    except (ServiceGone, UnsafeService) as error:
        raise HostError(f"OpenCode 2 gave no usable answer to {method} {path}: {error}") from None


def refused(method: str, path: str, error: ServiceError) -> HostError:
    return HostError(f"OpenCode 2 answered {method} {path} with {error}", permanent=400 <= error.status < 500)


def path_of(session: str) -> str:
    return f"/api/session/{quote(session, safe='')}"


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
