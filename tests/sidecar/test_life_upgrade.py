"""Shims and sidecars of different releases and protocols: the older one gives way, and nothing is lost."""

from __future__ import annotations

from sidecar.home import Home
from tests.sidecar.life import logged, recorded, release, run_as, shims, sidecars, start_as, status
from tests.sidecar.support import HANG_SECONDS, running, wait_for


async def test_a_newer_shim_makes_an_older_sidecar_leave_and_no_hook_is_lost(home: Home) -> None:
    old = start_as(release("0.0.9", protocol=0), home)
    assert running(home).version == "0.0.9"
    with shims(1, home.path) as (shim,):
        shim.tell("events", **{"from": 1}, count=300)
        assert old.wait(HANG_SECONDS) == 0
        shim.answer()
        counters = shim.until("acked", 300)
        assert running(home).version == "0.1.0" and counters["upgrades"] == 1 and counters["refusals"] == 0
    assert "exiting so that a newer plugin (0.1.0" in logged(home)
    assert await recorded(home) == dict.fromkeys(range(1, 301), 1)


async def test_where_the_older_sidecar_has_other_links_they_move_over_and_lose_nothing(home: Home) -> None:
    old = start_as(release("0.0.9"), home)
    running(home)
    patient = {"backoffMinMs": 20, "backoffMaxMs": 200}
    # What this one starts is not newer, so it has come to terms with the old sidecar.
    with shims(1, home.path, command=release("0.0.9"), **patient) as (content,):
        content.until("welcomes", 1)
        content.ask("events", **{"from": 1}, count=100)
        content.until("acked", 100)
        with shims(1, home.path, **patient) as (other,):
            other.ask("events", **{"from": 101}, count=100)
            other.until("acked", 100)
            content.ask("events", **{"from": 201}, count=100)
            content.until("acked", 200)
    old.wait(HANG_SECONDS)
    assert await recorded(home) == dict.fromkeys(range(1, 301), 1)


async def test_a_newer_shim_that_can_only_start_the_older_one_works_with_it(home: Home) -> None:
    with shims(1, home.path, command=release("0.0.9"), backoffMaxMs=100) as (shim,):
        shim.ask("events", **{"from": 1}, count=20)
        counters = shim.until("acked", 20)
        assert counters["upgrades"] == 3 and running(home).version == "0.0.9"
    assert await recorded(home) == dict.fromkeys(range(1, 21), 1)


async def test_a_sidecar_that_no_longer_speaks_the_shims_protocol_refuses_it_and_says_so_and_keeps_its_spool(
    home: Home,
) -> None:
    newer = release("9.0.0", protocol=9)
    start_as(newer, home)
    pid = running(home).pid
    with shims(1, home.path) as (shim,):
        shim.ask("events", **{"from": 1}, count=50)
        counters = shim.until("refusals", 1)
        assert (counters["connects"], counters["spawns"], counters["acked"]) == (1, 0, 0)
        told = run_as(newer, home, "status").stdout
        assert "0.1.0" in told and "link protocol 1" in told and "durable-stream install" in told, told
        doctor = run_as(newer, home, "doctor").stdout
        assert "link protocol 1" in doctor and "durable-stream install" in doctor, doctor
        assert "refused a plugin (0.1.0, pid" in logged(home)
        assert shim.ask("counters")["connects"] == 1, "it does not knock again and again"
        assert sum(1 for _ in home.spool_path.iterdir()) == 1
    # OpenCode is restarted with the plugin of the new release: here the sidecar is, which comes to the same.
    assert run_as(newer, home, "stop").returncode == 0
    with shims(1, home.path) as (shim,):
        shim.ask("events", **{"from": 51}, count=1)
        shim.until("acked", 1)
        wait_for(lambda: not list(home.spool_path.iterdir()), "the old spool is taken in")
    assert await recorded(home) == dict.fromkeys(range(1, 52), 1)
    assert pid not in sidecars(home)


def test_the_command_line_is_refused_in_words_by_a_sidecar_of_another_protocol_and_can_stop_it(home: Home) -> None:
    process = start_as(release("9.0.0", protocol=9), home)
    running(home)
    told = run_as(release("0.1.0"), home, "status")
    assert told.returncode == 1 and "speaks link protocol 9, but this client speaks 1" in told.stdout, told.stdout
    stopped = run_as(release("0.1.0"), home, "stop")
    assert stopped.returncode == 0 and "with SIGTERM" in stopped.stdout
    assert process.wait(HANG_SECONDS) == 0


def test_another_opencode_in_the_same_home_is_told_by_status_and_log_and_harms_nothing(home: Home) -> None:
    with shims(1, home.path) as (before,):
        before.until("welcomes", 1)
        before.ask("new", version="1.18.3")
        before.until("acked", 1)
    with shims(1, home.path) as (after,):
        after.ask("new", version="1.19.0")
        after.until("acked", 1)
        versions = [entry["version"] for entry in status(home)["opencode_versions"]]
    assert versions == ["1.19.0", "1.18.3"]
    assert "OpenCode 1.19.0 is connected; the last one was 1.18.3" in logged(home)
