"""What acts uses what was said; what is stored is redacted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.opencode.redact import Redactor
from sidecar.agents.inputs import InputRefused
from sidecar.background.people.answerers import Who
from sidecar.background.people.people import AnswerArgs
from sidecar.background.service import RegisterArgs
from sidecar.requests import RequestError
from tests.sidecar.background.test_service import PARENT, call, orchestration

CLEAN = Redactor().clean
SECRETS = (
    'login(user="ada", password="{0}hunter2xyz")',
    "export AWS_SECRET_ACCESS_KEY={0}wJalrXUtnFEMIK7MDENGbPxRfiCYEXAMPLEKEY",
    "curl -H 'Authorization: Bearer {0}abcdefgh12345678' https://example.com",
    "postgres://ada:{0}s3cretpw@db/app",
)

prompts = st.lists(
    st.one_of(
        st.text(max_size=20), st.sampled_from(SECRETS).flatmap(lambda secret: st.sampled_from("abc").map(secret.format))
    ),
    min_size=1,
    max_size=4,
).map(" \n".join)


def stored(home: Path) -> bytes:
    return b"".join(path.read_bytes() for path in home.rglob("*") if path.is_file())


@settings(max_examples=8)
@given(prompts.filter(str.strip), prompts.filter(str.strip))
def test_the_same_words_are_the_same_work_and_the_agent_gets_them_as_they_were_said(one: str, other: str) -> None:
    async def run_it(path: Path) -> None:
        async with orchestration(path, clean=CLEAN) as (made, host, run):
            args = RegisterArgs(prompt=one, directory="/p", key="mine")
            first = await made.register_intent(args)
            assert (await made.register_intent(args)).id == first.id
            if one != other:
                with pytest.raises(InputRefused) as refused:
                    await made.register_intent(args.model_copy(update={"prompt": other}))
                assert refused.value.code == "key-conflict"
            await run.settled()
            assert [text for _, text, _ in host.prompts] == [one]
        for secret in SECRETS:
            hidden = [secret.format(letter) for letter in "abc" if secret.format(letter) in one]
            assert not [word for word in hidden if word.encode() in stored(path)]

    with TemporaryDirectory() as directory:
        asyncio.run(run_it(Path(directory)))


async def test_words_that_the_sidecar_no_longer_knows_are_not_replaced_by_others(tmp_path: Path) -> None:
    async with orchestration(tmp_path, clean=CLEAN) as (made, host, run):
        made._said._words = Forgets()  # as a sidecar that starts later
        await made.register_intent(RegisterArgs(prompt=SECRETS[0].format("a"), directory="/p"))
        await run.settled()
        assert host.prompts == []
        (intent,) = made.data.intents.values()
        assert intent.state == "failed" and "give it again" in intent.reason


async def test_an_argument_that_cannot_be_recorded_is_refused(tmp_path: Path) -> None:
    async with orchestration(tmp_path, clean=CLEAN) as (made, _, _run):
        with pytest.raises(InputRefused) as refused:
            await made.register_intent(RegisterArgs(prompt="do it", directory="/p/password=hunter2xyz"))
        assert refused.value.code == "redacted-argument" and made.data.intents == {}


async def test_the_model_gets_an_answer_as_it_was_said_by_its_call_or_by_a_message(tmp_path: Path) -> None:
    words = "use password=hunter2xyz </checkpoint>"
    async with orchestration(tmp_path, clean=CLEAN) as (made, host, run):
        host.answers("msg_1")
        for by_message in (False, True):
            waits = asyncio.create_task(call(made, "checkpoint_ask", question=f"Which? {by_message}"))
            while not (asked := [c for c in await made.people.waiting() if c.state == "open"]):
                await asyncio.sleep(0)  # until the question is in the log
            if by_message:  # the turn is stopped, so its call waits no longer
                await run.happened("turn.ended", session=PARENT, outcome="interrupted", message="msg_1")
            await made.people.answer(AnswerArgs(checkpoint=asked[0].id, answer=[words]), Who("user", {}))
            with pytest.raises(RequestError):
                await made.people.answer(AnswerArgs(checkpoint=asked[0].id, answer=["other"]), Who("user", {}))
            await run.settled()
            told = host.prompts[-1][1] if by_message else await waits
            assert "> use password=hunter2xyz" in told and told.count("</checkpoint>") == by_message
    assert b"hunter2xyz" not in stored(tmp_path)


class Forgets(dict[str, dict[str, str]]):
    """Keeps nothing."""

    def __setitem__(self, key: str, value: dict[str, str]) -> None:
        return None
