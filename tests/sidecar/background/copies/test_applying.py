"""What is applied to the user's files, and taken back: all or nothing, and no edit of the user's is lost, whenever it
is made and whenever the process is killed."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from signal import SIGKILL
from typing import Any, NamedTuple
from unittest import mock

import pytest

from sidecar.background.copies import applying
from sidecar.background.copies.copies import Copies
from tests.sidecar.background.copies.copying import ID, CopyError, Private, snapshot
from tests.sidecar.background.projects import repository, write

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.sidecar.background.copies.test_applying"])

LINES = "".join(f"{number}\n" for number in range(9))
FILES = {"f": LINES, "gone": "g\n", "s/x": LINES, "s/y": "y\n", "other": "o\n"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return repository(tmp_path / "project", FILES)


def agent(root: Path) -> None:
    """What the agent does in these tests: files are changed, removed and made."""
    write(root / "f", LINES + "agent\n")
    (root / "gone").unlink()
    write(root / "n/new")
    write(root / "s/x", LINES + "agent\n")
    (root / "link").symlink_to("s/x")


def worked(project: Path, place: Path, does: Callable[[Path], Any] = agent) -> Private:
    copy = Private(project, place)
    does(copy.root)
    copy.collect()
    return copy


@contextmanager
def at_step(number: int, do: Callable[[], object]) -> Iterator[list[str]]:
    """Do this just before the step with this number, of all that change a name or a file of the user's, or make the
    journal durable. Gives the steps."""
    steps: list[str] = []

    def stepping(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **more: Any) -> Any:
            if name == "replace" or (more.keys() & {"dir_fd", "src_dir_fd"} and not (name == "open" and len(args) < 3)):
                steps.append(name)
                if len(steps) == number:
                    do()
            return real(*args, **more)

        return step

    names = ("open", "rename", "replace", "link", "unlink", "mkdir", "rmdir", "symlink")
    with mock.patch.multiple(os, **{name: stepping(name, getattr(os, name)) for name in names}):
        yield steps


# --- what the user changed before ---

Case = tuple[Callable[[Path], Any], Callable[[Path], Any], str]


def _linked(at: str, text: str) -> Callable[[Path], Any]:
    def link(root: Path) -> None:
        (root / at).parent.mkdir(exist_ok=True)
        (root / at).unlink(missing_ok=True)
        (root / at).symlink_to(text)

    return link


def _moved_out(top: Path) -> None:
    (top / "s").rename(top.parent / "outside")
    (top / "s").symlink_to(top.parent / "outside")


def _same(top: Path) -> None:
    """Do nothing."""


CASES: dict[str, Case] = {
    "edit above": (agent, lambda top: write(top / "f", "user\n" + LINES), ""),
    "same edit": (agent, lambda top: write(top / "f", LINES + "agent\n"), ""),
    "mode and edit": (lambda root: (root / "f").chmod(0o755), lambda top: write(top / "f", "user\n"), ""),
    "link inside": (_linked("s/link", "../f"), _same, ""),
    "link to a directory": (_linked("link", "s"), _same, ""),
    "both edit a line": (agent, lambda top: write(top / "f", LINES + "user\n"), "apply-conflict"),
    "removed and edited": (agent, lambda top: write(top / "gone", "user\n"), "apply-conflict"),
    "edited and removed": (agent, lambda top: (top / "f").unlink(), "apply-conflict"),
    "both add": (agent, lambda top: write(top / "n/new", "user\n"), "apply-conflict"),
    "a file is a directory": (agent, lambda top: write(top / "link/x", "user\n"), "apply-conflict"),
    "a directory is a file": (agent, lambda top: write(top / "n", "user\n"), "apply-conflict"),
    "a directory is a link": (agent, _moved_out, "apply-conflict"),
    "no text": (
        lambda root: (root / "f").write_bytes(b"\0a"),
        lambda top: (top / "f").write_bytes(b"\0b"),
        "apply-conflict",
    ),
    "absolute link": (_linked("evil", "/etc/passwd"), _same, "apply-unsafe"),
    "link up": (_linked("evil", "../../etc"), _same, "apply-unsafe"),
    "link through a directory": (_linked("evil", "s/../../x"), _same, "apply-unsafe"),
    "link to the directory above": (_linked("evil", ".."), _same, "apply-unsafe"),
    "link into the repository": (_linked("evil", ".git/config"), _same, "apply-unsafe"),
    "link in a directory": (_linked("s/evil", "../../x"), _same, "apply-unsafe"),
    "link over a link of the user's": (_linked("evil", "out/passwd"), _linked("out", "/etc"), "apply-unsafe"),
}


@pytest.mark.parametrize("name", CASES)
def test_all_or_nothing_is_applied(name: str, project: Path, tmp_path: Path) -> None:
    does, user, code = CASES[name]
    copy = worked(project, tmp_path / "place", lambda root: (does(root), write(root / "zz")))
    user(project)
    before = snapshot(project)
    if code:
        with pytest.raises(CopyError) as raised:
            copy.apply()
        assert raised.value.code == code and snapshot(project) == before
        assert not (tmp_path / "outside/new").exists()
    else:
        assert "zz" in copy.apply() and (project / "zz").exists()
        copy.undo()
        assert snapshot(project) == before


@pytest.mark.parametrize("name", [".GIT/config", "s/.git/hooks/x", ".Git./x", "git~1/x", ".g\u200cit/config"])
def test_no_name_that_means_a_repository_on_some_disk_is_applied(name: str, project: Path, tmp_path: Path) -> None:
    copy = worked(project, tmp_path / "place", lambda root: (write(root / name), write(root / "zz")))
    copy.apply()
    assert not os.path.lexists(project / name) and (project / "zz").exists()


def test_later_edits_stay_when_it_is_taken_back(project: Path, tmp_path: Path) -> None:
    copy = worked(project, tmp_path / "place")
    with pytest.raises(CopyError) as raised:
        copy.undo()
    assert raised.value.code == "no-changes"
    copy.apply()
    write(project / "f", f"later\n{LINES}agent\n")
    (project / "s/y").unlink()
    copy.undo()
    assert snapshot(project) == {**snapshot(project), "gone": (False, b"g\n"), "f": (False, f"later\n{LINES}".encode())}
    assert not (project / "n").exists() and not (project / "s/y").exists()
    copy.apply()
    write(project / "f", f"{LINES}other words\n")
    before = snapshot(project)
    with pytest.raises(CopyError) as raised:
        copy.undo()
    assert raised.value.code == "apply-conflict" and snapshot(project) == before


def test_two_results_are_applied_at_once(project: Path, tmp_path: Path) -> None:
    first = worked(project, tmp_path / "first")
    second = worked(
        project, tmp_path / "second", lambda root: (write(root / "f", "second\n" + LINES), write(root / "2"))
    )

    async def both() -> list[list[str]]:
        return await asyncio.gather(*(each.copies.apply(ID) for each in (first, second, first, second)))

    done = asyncio.run(both())
    assert sorted(map(len, done)) == [0, 0, 2, 5], "each was applied once"
    assert (project / "f").read_text() == f"second\n{LINES}agent\n" and (project / "2").exists()
    first.undo()
    second.undo()
    assert {name: what[1].decode() for name, what in snapshot(project).items()} == FILES


# --- what the user changes meanwhile ---


class Edit(NamedTuple):
    """An edit of the user's in the middle, and whether it is still there."""

    do: Callable[[Path], Any]
    stays: Callable[[Path], bool]


def _append(top: Path) -> None:
    if (top / "f").exists():
        with (top / "f").open("a") as file:
            file.write("user\n")
        write(top / "noted", "it was made")


def _append_and_conflict(top: Path) -> None:
    _append(top)
    write(top / "t", "other\n").replace(top / "s/x")


def _is_appended(top: Path) -> bool:
    found = (each for each in top.iterdir() if each.is_file() and each.name != "noted")
    return not (top / "noted").exists() or any("user" in each.read_text() for each in found)


def _replace(top: Path) -> None:
    write(top / "t", "user\n").replace(top / "f")


def _link_out(top: Path) -> None:
    shutil.move(top / "s", top.parent / "outside")
    (top / "s").symlink_to(top.parent / "outside")


def _create(top: Path) -> None:
    if not (top / "n/new").exists():
        write(top / "n/new", "user\n")
        write(top / "noted", "it was made")


EDITS = {
    "append": Edit(_append, _is_appended),
    "append and conflict": Edit(_append_and_conflict, _is_appended),
    "replace": Edit(_replace, lambda top: (top / "f").read_text() == "user\n"),
    "remove": Edit(lambda top: (top / "f").unlink(missing_ok=True), lambda top: True),
    "create": Edit(_create, lambda top: not (top / "noted").exists() or (top / "n/new").read_text() == "user\n"),
    "link": Edit(
        _link_out, lambda top: not any("agent" in (top.parent / f"outside/{each}").read_text() for each in "y")
    ),
}
TOUCHED = {"f", "n/new", "s", "s/x", "s/y", "t", "noted", "n"}


@pytest.mark.parametrize("name", EDITS)
def test_no_edit_is_lost_that_is_made_meanwhile(name: str, project: Path, tmp_path: Path) -> None:
    copy, edit = worked(project, tmp_path / "place"), EDITS[name]
    before = snapshot(project)
    shutil.copytree(project, tmp_path / "kept", symlinks=True)
    shutil.copytree(copy.result, tmp_path / "result")
    copy.apply()
    applied = snapshot(project)
    step, refused = 0, 0
    while True:
        step += 1
        for place, template in ((project, "kept"), (copy.result, "result"), (tmp_path / "outside", "")):
            shutil.rmtree(place, ignore_errors=True)
            if template:
                shutil.copytree(tmp_path / template, place, symlinks=True)
        said = ""
        with at_step(step, lambda: edit.do(project)) as steps:
            try:
                copy.apply()
            except CopyError as error:
                assert error.code == "apply-conflict"
                refused, said = refused + 1, str(error)
        if len(steps) < step:
            break
        after = snapshot(project)
        assert edit.stays(project), (step, steps[step - 1])
        for each in (before.keys() | applied.keys()) - TOUCHED:
            assert after.get(each) == (before if said else applied).get(each), (step, steps[step - 1], each)
        assert all(each in said for each in after if "durable-stream" in each), (step, steps[step - 1])
        assert not (copy.result / "steps.json").exists()
    assert step > 20 and (refused > 3 or name == "remove")


# --- kills ---


def killed(place: Path, does: str, step: int) -> None:
    """Run in a process of its own, which is killed at this step."""
    with at_step(step, lambda: os.kill(os.getpid(), SIGKILL)):
        asyncio.run(getattr(Copies(place), does)(ID))


def run_until(place: Path, does: str, step: int) -> bool:
    """Whether the process was killed."""
    process = CONTEXT.Process(target=killed, args=(place, does, step))
    process.start()
    process.join()
    assert process.exitcode in (0, -SIGKILL)
    return process.exitcode != 0


@pytest.mark.parametrize("does", ["apply", "undo"])
def test_all_or_nothing_is_done_whenever_it_is_killed(does: str, project: Path, tmp_path: Path) -> None:
    copy = worked(project, tmp_path / "place")
    before = snapshot(project)
    copy.apply()
    after = snapshot(project)
    if does == "apply":
        copy.undo()
    step, kinds = 1, set()
    while run_until(tmp_path / "place", does, step):
        kinds.add(snapshot(project) in (before, after))
        if step % 2:
            asyncio.run(copy.copies.recover())
            assert snapshot(project) in (before, after), step
        copy.apply()
        assert snapshot(project) == after, step
        copy.undo()
        assert snapshot(project) == before, step
        if does == "undo":
            copy.apply()
        step += 1
    assert step > 20 and kinds == {True, False}


def test_no_edit_is_lost_that_is_made_after_a_kill(project: Path, tmp_path: Path) -> None:
    copy = worked(project, tmp_path / "place")
    shutil.copytree(project, tmp_path / "kept", symlinks=True)
    shutil.copytree(copy.result, tmp_path / "result")
    step = 1
    while run_until(tmp_path / "place", "apply", step):
        _append(project)
        try:
            asyncio.run(copy.copies.recover())
            copy.apply()
        except CopyError as error:
            assert error.code == "apply-conflict"
        assert _is_appended(project), step
        for place, template in ((project, "kept"), (copy.result, "result")):
            shutil.rmtree(place)
            shutil.copytree(tmp_path / template, place, symlinks=True)
        step += 1
    assert step > 20


def test_a_disk_that_is_full_changes_nothing(project: Path, tmp_path: Path) -> None:
    copy = worked(project, tmp_path / "place")
    before = snapshot(project)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with mock.patch.object(applying, "write_all", full), pytest.raises(CopyError):
        copy.apply()
    assert snapshot(project) == before
    assert copy.apply()
