"""The ids that we give to messages of OpenCode 1. The recorded ids are those of a real session."""

from __future__ import annotations

from sidecar.background.hosts.v1_ids import message_id, part_ids

SESSION = "ses_df06b6e8fffeS1kYb2Vh5Yc0Qm"
FIRST, ANSWER = "msg_20f949171002bBkbi5YrqqaBg7", "msg_20f9495e1001Z7fFDeRNTkXvlC"


def test_a_message_sorts_after_every_other_one_and_before_what_opencode_makes_next() -> None:
    made = message_id(SESSION, [FIRST, ANSWER], "key")
    assert made is not None and len(made) == len(ANSWER)
    assert ANSWER < made < "msg_20f94aa38001vR1fOHUZIqNQ91"


def test_the_first_message_of_a_session_follows_the_sessions_creation() -> None:
    made = message_id(SESSION, [], "key")
    assert made is not None and made.startswith("msg_20f949170002")


def test_the_same_key_has_the_same_id_also_when_its_message_is_there() -> None:
    made = message_id(SESSION, [FIRST], "key")
    assert made is not None and made == message_id(SESSION, [FIRST], "key")
    assert message_id(SESSION, [FIRST, made, ANSWER], "key") == made
    assert message_id(SESSION, [FIRST], "other") != made


def test_the_time_in_an_id_begins_again_at_its_end() -> None:
    assert (message_id(SESSION, ["msg_ffffffffffffZ7fFDeRNTkXvlC"], "key") or "")[:16] == "msg_000000000000"
    assert part_ids("msg_ffffffffffffZ7fFDeRNTkXvlC", ["a", "b"])[1][:16] == "prt_000000000000"


def test_foreign_ids_are_left_to_opencode() -> None:
    assert message_id("session", [], "key") is None
    assert message_id(SESSION, ["imported"], "key") is None
