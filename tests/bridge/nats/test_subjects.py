"""Subjects of the mirror and of the L0 protocol: no name can add a token, a wildcard or a line."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bridge.nats.subjects import (
    MAX_TOKEN,
    CommandSubject,
    L0Subject,
    RecordSubject,
    agent_events_pattern,
    consumer_name,
    escape,
    log_pattern,
    stream_pattern,
    unescape,
)
from streams.bus.subjects import MAX_SUBJECT, SubjectError, check_subject, matches, overlap
from streams.event import EVENT_TYPE
from tests.streams.sizes import size

many = settings(max_examples=size("EXAMPLES", 200), deadline=None, derandomize=True, database=None)

names = st.text(st.characters(codec=None, categories=None), max_size=40)
"""Any Unicode, lone surrogates included."""

hostile = st.sampled_from(
    [
        *("", ".", "..", "*", ">", " ", "a.b", "a.*", "a.>", "\r\n", "x\r\nPUB evil 2\r\nhi", "\t", "\x00", "%", "%2E"),
        *("%_", "%~" + "0" * 32, "../../etc", "é", "e\u0301", "\u2028", "\u00a0", "$SYS", "_", "x" * 300, "." * 300),
        *("é" * 100, "中" * 2000, "%%", "evt", "cg"),
    ]
)
any_name = names | hostile

TOKEN = re.compile(r"([A-Za-z0-9_~-]|%[0-9A-F]{2}|%_|%~)+")


@many
@given(any_name)
def test_any_name_is_one_harmless_token_and_comes_back(name: str) -> None:
    token = escape(name)
    assert TOKEN.fullmatch(token) and len(token) <= MAX_TOKEN
    assert check_subject(token) == token
    if "%~" in token:
        with pytest.raises(SubjectError, match="shortened"):
            unescape(token)
    else:
        assert unescape(token) == name


@many
@given(any_name, any_name)
def test_different_names_have_different_tokens(one: str, other: str) -> None:
    assert (escape(one) == escape(other)) == (one == other)


def test_escaping_is_pinned() -> None:
    for name, token in {
        **{
            "ses_dff29deb2ffe": "ses_dff29deb2ffe",
            "agent/oracle": "agent%2Foracle",
            "": "%_",
            "_": "_",
            "a.b": "a%2Eb",
        },
        **{"*": "%2A", ">": "%3E", " ": "%20", "\r\n": "%0D%0A", "%": "%25", "ü": "%C3%BC", "😀": "%F0%9F%98%80"},
        **{"\ud800": "%ED%A0%80", "$SYS": "%24SYS"},
    }.items():
        assert escape(name) == token and unescape(token) == name


@pytest.mark.parametrize("unit", ["a", ".", "é", "a."])
def test_an_over_long_token_is_cut_and_still_its_own(unit: str) -> None:
    for length in (MAX_TOKEN - 1, MAX_TOKEN, MAX_TOKEN + 1, 10 * MAX_TOKEN):
        name = unit * (length // len(escape(unit))) + "a" * (length % len(escape(unit)))
        token = escape(name)
        if length <= MAX_TOKEN:
            assert len(token) == length and unescape(token) == name
            continue
        assert TOKEN.fullmatch(token) and len(token) <= MAX_TOKEN
        head, digest = token.split("%~")
        assert re.fullmatch(r"[0-9a-f]{32}", digest)
        assert len(re.findall(r"%(?![0-9A-F]{2})", head)) == 0, "no half escape"
        assert escape(name + "b") != token == escape(name)


def test_what_escape_does_not_write_is_not_read() -> None:
    for token in (
        *(
            "",
            "a.b",
            "a b",
            "%",
            "%2",
            "%2e",
            "%41",
            "%_a",
            "a%_",
            "%~",
            "%~" + "0" * 32,
            "é",
            "%FF",
            "%ED%A0",
            "a" * 300,
        ),
        *("a\r\n", "%ED%A0%BD%ED", "*", ">", "%C0%80", "%F0%9F%98"),
    ):
        with pytest.raises(SubjectError):
            unescape(token)


@many
@given(st.text(st.sampled_from("%AB2Ee0~_.*é9F"), max_size=8))
def test_reading_is_the_inverse_of_writing(token: str) -> None:
    """Any token that can be read is the only token of its name."""
    try:
        name = unescape(token)
    except SubjectError:
        return
    assert escape(name) == token


# The mirror's families

types = st.lists(st.text("aZ0_-", min_size=1, max_size=5), max_size=20).map(lambda parts: ".".join(["a", *parts]))


@many
@given(any_name, any_name, any_name, types)
def test_a_records_subject_is_sound_and_comes_back(project: str, log: str, stream: str, type_: str) -> None:
    made = RecordSubject(project, log, stream, type_)
    subject = str(made)
    assert EVENT_TYPE.fullmatch(type_)
    assert check_subject(subject) and len(subject) <= MAX_SUBJECT
    assert subject.split(".")[:1] == ["evt"] and subject.count(".") == 4 + type_.count(".")
    if "%~" not in subject:
        assert RecordSubject.parse(subject) == made
    assert matches("evt.>", subject) and matches(log_pattern(log), subject)
    assert matches(log_pattern(log, stream), subject)


@many
@given(any_name, any_name)
def test_a_rebuild_of_one_log_touches_no_other(one: str, other: str) -> None:
    assert overlap(log_pattern(one), log_pattern(other)) == (one == other)


def test_a_records_subject_is_pinned() -> None:
    made = RecordSubject("d4a1fe59", "01HF7YAT", "agent/oracle", "execution.step")
    assert str(made) == "evt.d4a1fe59.01HF7YAT.agent%2Foracle.execution.step"
    assert log_pattern("01HF7YAT") == "evt.*.01HF7YAT.*.>"
    assert log_pattern("01HF7YAT", "ses_a") == "evt.*.01HF7YAT.ses_a.>"


@many
@given(any_name, any_name, any_name)
def test_a_commands_subject_is_heard_by_its_agent_alone(workspace: str, agent: str, other: str) -> None:
    made = CommandSubject("p", workspace, agent, "run.now")
    subject = str(made)
    if "%~" not in subject:
        assert CommandSubject.parse(subject) == made
    assert (consumer_name(agent) == consumer_name(other)) == (agent == other)
    name = consumer_name(agent)
    assert name.endswith("_consumer") and len(name) <= 255 and not set(name) & set("./\\*> ")


# The L0 protocol's

suffixes = st.lists(any_name.filter(lambda name: "." not in name), min_size=1, max_size=4).map(".".join)


@many
@given(any_name, any_name, any_name, suffixes, st.sampled_from(["cmd", "evt", "str"]))
def test_an_l0_subject_has_its_eight_parts_and_comes_back(
    project: str, channel: str, target: str, suffix: str, category: str
) -> None:
    made = L0Subject(project, category, "agent", target, suffix, channel)  # type: ignore[arg-type]
    subject = str(made)
    assert "*" not in subject and ">" not in subject
    tokens = subject.split(".")
    assert len(tokens) == 8 + suffix.count(".") and tokens[0] == "cg" and tokens[4:6] == [category, "agent"]
    assert len(check_subject(subject)) <= MAX_SUBJECT
    if "%~" not in subject:
        assert L0Subject.parse(subject) == made
    assert matches(stream_pattern(category), subject)  # type: ignore[arg-type]
    for pattern in (agent_events_pattern(), agent_events_pattern(channel)):
        assert matches(pattern, subject) == (category == "evt"), pattern
    assert not matches(agent_events_pattern(ver="v2"), subject), "a pattern spans no versions"


def test_l0_subjects_are_pinned() -> None:
    step = L0Subject("d4a1", "evt", "agent", "ses_a", "step")
    assert str(step) == "cg.v1.d4a1.public.evt.agent.ses_a.step"
    assert step.short == "evt.agent.ses_a.step"
    assert str(L0Subject("p", "cmd", "sys", "pmo", "internal.x")) == "cg.v1.p.public.cmd.sys.pmo.internal.x"
    assert agent_events_pattern() == "cg.v1.*.*.evt.agent.*.>"
    assert stream_pattern("cmd") == "cg.v1.*.*.cmd.>"
    assert L0Subject.parse("cg.v9.p.c.evt.tool.t.s").ver == "v9", "another version is readable"


FOREIGN = {
    RecordSubject.parse: (
        *("evt.p.l.s", "cmd.p.l.s.t", "evt", "", "evt.p.l.s.", "evt.p.l.s.*", "evt.p.l.s.>", "evt.p..s.t"),
        *("evt.p.%41.s.t", "evt.p.l.s.t\r\nx", "evt.p.l.s t.x", "cg.v1.p.public.evt.agent.a.step"),
    ),
    CommandSubject.parse: ("evt.p.w.a.t", "cmd.p.w.a", "cmd.p.w.a.*", ""),
    L0Subject.parse: (
        *("cg.v1.p.public.evt.agent.a", "cg.v1.p.public.log.agent.a.s", "cg.v1.p.public.evt.robot.a.s", "evt.p.l.s.t"),
        *("cg.v1.p.public.evt.agent.*.s", "cg.v1.p.public.evt.agent.a.>", "cg.v1.p.public.evt.agent.a.b.c.d.e.f", ""),
        *("cg.v1.p.public.evt.agent.a.s\r\n", "cg.v1.p..evt.agent.a.s", "xx.v1.p.public.evt.agent.a.s"),
    ),
}


@pytest.mark.parametrize("parse", FOREIGN)
def test_what_is_no_such_subject_is_told(parse: Callable[[str], object]) -> None:
    for subject in FOREIGN[parse]:
        with pytest.raises(SubjectError):
            parse(subject)


def test_what_the_protocol_does_not_know_is_not_built() -> None:
    for category, component in (("log", "agent"), ("evt", "robot"), ("evt.x", "agent"), ("*", "agent")):
        with pytest.raises(SubjectError):
            str(L0Subject("p", category, component, "t", "s"))  # type: ignore[arg-type]
    with pytest.raises(SubjectError, match="parts"):
        str(L0Subject("p", "evt", "agent", "t", "a.b.c.d.e"))
