"""The gardener: one agent for each time that a session's steps fail too often, and none for what its own agents do."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from sidecar.agents.agent import Output
from sidecar.background.gardener import NAME, PER_DAY, ROOT, GardenerAgent
from sidecar.background.intents.intent_effects import CREATE, PROMPT
from sidecar.background.intents.intents import IntentAgent
from sidecar.config import PhantomConfig
from streams.event import StreamEvent
from tests.memory import MemoryStore
from tests.sidecar.agents.kinds import Clock
from tests.sidecar.background.support import Script, bench
from tests.streams.builders import event

DAY = 24 * 3_600_000


class Garden:
    """A gardener alone, with what it returned."""

    def __init__(self) -> None:
        self.roots: dict[str, str] = {}
        """The roots of background work, by its sessions."""
        self.agent = GardenerAgent(
            lambda session: self.roots.get(session, ""),
            lambda session: f"env of {session}",
        )
        self.returned = list[Output]()
        self._events = Clock().identity(1)
        self.now = 1_700_000_000_000

    def happened(self, type_: str, **payload: Any) -> list[Output]:
        outputs = self.agent.receive(self._event(type_, payload))
        for output in outputs:
            if output.to is None:
                self.agent.apply(self._event(output.type, output.payload))
        self.returned += outputs
        return outputs

    def _event(self, type_: str, payload: dict[str, Any]) -> StreamEvent:
        self.now += 1
        return event(type_=type_, ts=self.now, identity=self._events, payload=payload)

    def turn(self, session: str, good: int, bad: int) -> list[Output]:
        for _ in range(bad):
            self.happened("execution.step", session=session, kind="tool", status="error")
        return self.happened("turn.ended", session=session, steps=good + bad, outcome="completed")

    def created(self, session: str, parent: str | None = None) -> None:
        self.happened("lifecycle.session.created", session=session, parent=parent, directory="/d")

    @property
    def started(self) -> list[dict[str, Any]]:
        return [output.payload for output in self.returned if output.type == "intent.register"]


def test_an_excursion_gets_one_agent_until_the_session_was_well_again() -> None:
    garden = Garden()
    garden.created("ses_1")
    garden.turn("ses_1", good=8, bad=1)
    assert not garden.started
    outputs = garden.turn("ses_1", good=0, bad=20)
    assert [(output.type, output.to) for output in outputs] == [
        ("gardener.turn", None),
        ("agent.correction", None),
        ("intent.register", "intents"),
    ]
    (given,) = garden.started
    assert (given["parent"], given["directory"], given["root"], given["wake"]) == ("ses_1", "/d", ROOT, False)
    assert given["environment"] == "env of ses_1", "it may do what the session's process may do"
    garden.turn("ses_1", good=0, bad=5)
    for _ in range(2):  # It is no better than 0.2 yet.
        garden.turn("ses_1", good=10, bad=0)
    garden.turn("ses_1", good=0, bad=30)
    assert len(garden.started) == 1
    for _ in range(5):
        garden.turn("ses_1", good=10, bad=0)
    garden.turn("ses_1", good=0, bad=60)
    assert len(garden.started) == 2


def test_a_day_has_its_limit() -> None:
    garden = Garden()
    for number in range(PER_DAY + 2):
        garden.created(f"ses_{number}")
        garden.turn(f"ses_{number}", good=0, bad=20)
    assert len(garden.started) == PER_DAY
    garden.now += DAY
    garden.created("ses_9")
    garden.turn("ses_9", good=0, bad=20)
    assert len(garden.started) == PER_DAY + 1


@given(st.lists(st.tuples(st.sampled_from(["turn", "child", "boot"]), st.integers(0, 9), st.integers(0, 30))))
def test_it_never_counts_its_own(moves: list[tuple[str, int, int]]) -> None:
    garden = Garden()
    garden.created("ses_user")
    garden.turn("ses_user", good=0, bad=20)
    assert [register["root"] for register in garden.started] == [ROOT]
    garden.roots["own_0"] = ROOT
    own = ["own_0"]
    for what, which, bad in moves:
        session, new = own[which % len(own)], f"own_{len(own)}"
        if what == "turn":
            garden.turn(session, good=0, bad=bad)
        elif what == "boot":
            garden.happened("lifecycle.session.resumed", session=session, directory="/d")
        else:
            garden.roots[new] = ROOT
            garden.created(new, parent=session)
            own.append(new)
    assert len(garden.started) == 1
    assert set(garden.agent.data.sessions) == {"ses_user"}


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=40))
def test_between_two_agents_for_a_session_its_rate_was_calm(turns: list[tuple[int, int]]) -> None:
    garden = Garden()
    garden.created("ses_1")
    was_calm = True
    for good, bad in turns:
        garden.now += DAY  # the limit of a day must not hide an agent too many
        outputs = garden.turn("ses_1", good, bad)
        if any(output.type == "agent.correction" for output in outputs):
            assert was_calm
            was_calm = False
        was_calm = was_calm or any(output.payload.get("calm") for output in outputs)


async def test_its_agent_runs_like_any_other_and_its_state_is_loaded_again() -> None:
    create, prompt = Script({"session": "ses_bg"}), Script({})
    gardener, intents = GardenerAgent(), IntentAgent(PhantomConfig())
    async with bench(MemoryStore(), [gardener, intents], {CREATE: create, PROMPT: prompt}) as run:
        await run.happened("lifecycle.session.created", session="ses_1", directory="/d")
        for _ in range(12):
            await run.happened("execution.step", session="ses_1", kind="tool", status="error")
        await run.happened("turn.ended", session="ses_1", steps=12, outcome="completed")
        (args,) = create.runs
        assert (args["parent"], args["directory"], args["agent"]) == ("ses_1", "/d", "plan")
        assert "agent.correction" in await run.types(NAME)
        await run.settled()
        assert intents.data.intents[intents.data.sessions["ses_bg"]].root == ROOT
    again = GardenerAgent()
    again.load(gardener.state())
    assert again.state() == gardener.state()
