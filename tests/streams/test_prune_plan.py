"""What a policy removes from a log's streams."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from streams.log.prune_plan import CAP_SHARE, HOUR_MS, RECENT_MS, PruneRequest, make_plan
from streams.retention import StreamSize

NOW = 1_800_000_000_000
DAY = 24 * HOUR_MS


def size(name: str, *, days: float, records: int = 10, bytes_: int = 1000, first: int = 0) -> StreamSize:
    """A stream whose last record is ``days`` old."""
    last = NOW - round(days * DAY)
    return StreamSize(name, first, first + records, records, bytes_, last - HOUR_MS, last)


OLD, MIDDLE, NEW = size("ses_old", days=40), size("ses_middle", days=20), size("ses_new", days=0.1)
LOG = [NEW, OLD, MIDDLE]


def names(items: list) -> list[str]:  # type: ignore[type-arg]
    return [item.stream_id for item in items]


def test_age_takes_what_is_older_whole() -> None:
    plan = make_plan(LOG, {}, PruneRequest(older_than_ms=30 * DAY), now_ms=NOW)
    assert plan.offsets == {"ses_old": 10}
    assert (plan.cuts[0].why, plan.records, plan.bytes) == ("age", 10, 1000)
    assert names(make_plan(LOG, {}, PruneRequest(older_than_ms=0), now_ms=NOW).cuts) == [
        "ses_old",
        "ses_middle",
        "ses_new",
    ]


def test_a_cap_takes_the_oldest_until_there_is_room() -> None:
    log = [size(f"ses_{n}", days=40 - n) for n in range(10)]
    plan = make_plan(log, {}, PruneRequest(max_bytes=8000), now_ms=NOW)
    assert names(plan.cuts) == ["ses_0", "ses_1", "ses_2"]  # to nine tenths, not just below
    assert {item.why for item in plan.cuts} == {"size"}
    assert not make_plan(log, {}, PruneRequest(max_bytes=10_000), now_ms=NOW).cuts


def test_a_cap_is_about_the_disk() -> None:
    log = [size(f"ses_{n}", days=40 - n) for n in range(10)]
    assert len(make_plan(log, {}, PruneRequest(max_bytes=10_000), now_ms=NOW, disk_bytes=20_000).cuts) == 6
    assert not make_plan(log, {}, PruneRequest(max_bytes=5000), now_ms=NOW, disk_bytes=4000).cuts


def test_a_cap_leaves_what_was_written_to_within_a_day_and_says_so() -> None:
    plan = make_plan(LOG, {}, PruneRequest(max_bytes=100), now_ms=NOW)
    assert names(plan.cuts) == ["ses_old", "ses_middle"]
    assert [(item.stream_id, item.why) for item in plan.kept] == [("ses_new", "its last record is less than a day old")]


def test_what_is_needed_stays_and_says_why_whatever_is_requested() -> None:
    request = PruneRequest(older_than_ms=DAY, max_bytes=1, streams=("ses_old",))
    plan = make_plan(LOG, {"ses_old": "a turn is in progress"}, request, now_ms=NOW)
    assert names(plan.cuts) == ["ses_middle"]
    assert ("ses_old", "a turn is in progress") in [(item.stream_id, item.why) for item in plan.kept]


def test_named_streams_go_in_any_case_and_unknown_ones_are_told() -> None:
    request = PruneRequest(streams=("ses_new", "nobody", "ses_new", "system"))
    log = [*LOG, size("system", days=1), size("gone", days=1, records=0, first=5)]
    plan = make_plan(log, {}, request, now_ms=NOW, uncapped=("system",))
    assert (names(plan.cuts), plan.unknown) == (["system", "ses_new"], ["nobody"])
    assert make_plan(log, {}, PruneRequest(streams=("gone",)), now_ms=NOW).unknown == ["gone"]


def test_a_size_cap_leaves_alone_what_is_uncapped_and_age_does_not() -> None:
    log = [*LOG, size("system", days=300)]
    capped = make_plan(log, {}, PruneRequest(max_bytes=1), now_ms=NOW, uncapped=("system",))
    assert names(capped.cuts) == ["ses_old", "ses_middle"]
    aged = make_plan(log, {}, PruneRequest(older_than_ms=DAY), now_ms=NOW, uncapped=("system",))
    assert "system" in names(aged.cuts)


@given(
    st.lists(st.tuples(st.floats(0, 100), st.integers(0, 50), st.integers(0, 10**6)), max_size=20),
    st.one_of(st.none(), st.integers(0, 100 * DAY)),
    st.one_of(st.none(), st.integers(0, 10**7)),
    st.sets(st.integers(0, 19)),
)
def test_any_policy(given_: list[tuple[float, int, int]], age: int | None, cap: int | None, needed: set[int]) -> None:
    """No needed stream goes; none both goes and stays; a cap is met as far as streams may go."""
    log = [size(f"s{n}", days=d, records=r, bytes_=b) for n, (d, r, b) in enumerate(given_)]
    reasons = {f"s{n}": "needed" for n in needed}
    plan = make_plan(log, reasons, PruneRequest(age, cap), now_ms=NOW)
    cuts, kept = set(names(plan.cuts)), set(names(plan.kept))
    assert not cuts & set(reasons) and not cuts & kept and set(plan.offsets) == cuts
    assert len(plan.cuts) == len(cuts) and len(plan.kept) == len(kept)
    if cap is not None:
        left = [s for s in log if s.records and s.stream_id not in cuts]
        held = sum(s.bytes for s in left)
        assert held <= cap or all(s.stream_id in reasons or NOW - s.last_ts < RECENT_MS for s in left)
        assert not plan.cuts or age is not None or sum(s.bytes for s in log if s.records) > cap * CAP_SHARE
