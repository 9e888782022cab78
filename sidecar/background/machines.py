"""Background work across machines, in the sidecar: what it may do, and what comes back of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from bridge.opencode.link.protocol import RequestError
from sidecar.agents.effects.runner import EffectKind
from sidecar.agents.runtime import Runtime
from sidecar.background import elsewhere
from sidecar.background.effects import Repeatable
from sidecar.background.elsewhere import Elsewhere
from sidecar.background.hosts.host import HostError
from sidecar.background.hosts.hosts import Hosts
from sidecar.background.hosts.rights import Rights
from sidecar.background.intents.registration import check_agent
from sidecar.background.intents.state import State
from sidecar.background.intents.works import Works
from sidecar.background.messages.agent import NAME
from sidecar.link.links import ShimConnection
from streams.bus.command import Command


def rights_unknown(session: str | None, error: HostError) -> RequestError:
    why = f"what the session {session} may do is not known, so the work may do nothing: {error}"
    return RequestError("rights-unknown", why)


class OtherMachines:
    """``data`` returns the state of the agent ``intents``, and ``others`` the other machines."""

    def __init__(
        self,
        hosts: Hosts,
        works: Works,
        data: Callable[[], State],
        runtime: Callable[[], Runtime],
        others: Callable[[], Elsewhere] | None,
    ) -> None:
        self._hosts, self._works, self._data = hosts, works, data
        self._runtime, self._others = runtime, others
        self.kinds: Mapping[str, EffectKind] = {elsewhere.TELL: Repeatable(self._tell)}

    @property
    def others(self) -> Elsewhere:
        """Raises ``RequestError`` if there are none."""
        if self._others is None:
            raise RequestError("nats-off", "this home reaches no other machine")
        return self._others()

    # --- work that a session here asks for ---

    async def about(
        self,
        session: str | None,
        wanted: str | None,
        agent: str | None = None,
        link: ShimConnection | None = None,
        *,
        is_person: bool = True,
    ) -> dict[str, Any]:
        """What work on another machine must know of the session here that asks for it: ``rights``, ``session``,
        ``root`` and ``depth``; nothing, if none does. ``wanted`` is the agent that the work is to run, if it is named;
        for the others see ``register_intent``.

        Raises:
            RequestError: what the session may do is not known (``rights-unknown``), or it may not start that agent.
        """
        if session is None:
            return {}
        host = self._hosts.of(session)
        try:
            rights = await host.rights(session, agent, link)
        except HostError as error:
            raise rights_unknown(session, error) from None
        if wanted not in (None, rights.agent):
            check_agent(rights.effect(host.starts, wanted or ""), wanted or "", is_person=is_person)
        root, depth = self._works.chain(session)
        version = 1 if host is self._hosts.one else 2
        asks = {"session": session, "root": root, "depth": depth}
        return {"rights": {"opencode": version, **rights.as_json()}, **asks}

    async def told(
        self, name: str, ask: str, machine: str, session: str | None, asked: int, args: Mapping[str, Any]
    ) -> None:
        """Tell the session that asked for work on another machine how the work ended, or a person what it asks.

        Idempotent. ``ask`` is the id of the request, and ``asked`` its time, in ms UTC.

        Raises:
            RequestError: the arguments describe neither.
            InputRefused, AgentFailed, StreamError: nothing was recorded.
        """
        heir = self._data().heir(session, asked)
        if name == elsewhere.ASKS:
            payload = elsewhere.asked(args, machine, heir)
            command = Command(f"asks:{machine}:{payload['message']}", "message.raise", payload, sender="sidecar")
        else:
            payload = elsewhere.told(args, machine, ask, heir, asked)
            command = Command(f"wake:{ask}", "work.ended", payload, sender="sidecar")
        await self._runtime().command(NAME, command)

    # --- work that another machine asks for ---

    def rights_of(self, given: Mapping[str, Any] | None) -> Rights | None:
        """What the session may do that asks on another machine; ``None`` if none does.

        Raises:
            RequestError: its rules mean nothing here (``rights-unknown``).
        """
        if given is None:
            return None
        ours = 1 if self._hosts.new(None) is self._hosts.one else 2
        if (theirs := given.get("opencode")) != ours:
            why = f"the session that asks has the rules of OpenCode {theirs}, and work there runs on OpenCode {ours}"
            raise RequestError("rights-unknown", f"{why}; open OpenCode {theirs} alone there, or ask from a terminal")
        return Rights.of(given)

    async def _tell(self, args: dict[str, Any], key: str) -> dict[str, Any]:
        """``machine.tell``: has another machine told about work that it asked for. Result: ``{}``."""
        await self.others.tell(args["machine"], args["name"], args["args"], f"{args['name']}:{args['key']}")
        return {}
