"""A worktree is ready to work in: submodules and files of Git LFS are there, and what is not there is told."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path

import pytest

from sidecar.background.intents.state import intent_of
from sidecar.background.intents.texts import told
from sidecar.background.worktrees.worktrees import Worktree, Worktrees
from tests.sidecar.background.projects import ID, added, collected, git, repository, tree, write

MODULES = ("libs/mod", "libs/mod/modules/inner")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a submodule, in which there is another one."""
    inner = repository(tmp_path / "inner", {"deep.txt": "deep\n"})
    module = repository(tmp_path / "module", {"m.txt": "module\n", ".gitignore": "built/\n"})
    git(module, "submodule", "add", "-q", str(inner), "inner")
    git(module, "commit", "-qm", "inner")
    path = repository(tmp_path / "project", {"a.txt": "one\n"})
    git(path, "submodule", "add", "-q", str(module), "libs/mod")
    git(path, "submodule", "--quiet", "update", "--init", "--recursive")
    git(path, "commit", "-qm", "with a submodule")
    return path


def result(made: Worktree) -> str:
    """What the parent's model reads."""
    intent = intent_of({"intent": ID, "prompt": "p", "title": "t", "directory": "/p", "ts": 1})
    intent.worktree = made._asdict()
    return told(intent, "completed", {"result": "done"})


async def test_submodules_are_there_without_a_network(worktrees: Worktrees, project: Path, tmp_path: Path) -> None:
    for each in ("module", "inner"):
        shutil.rmtree(tmp_path / each)
    before = tree(project)
    settings = [(project / ".git/modules" / each / "config").read_text() for each in MODULES]
    made = await added(worktrees, project)
    root = Path(made.root)
    assert (root / "libs/mod/m.txt").read_text() == "module\n" and made.left_out == [] == made.notes
    assert (root / "libs/mod/inner/deep.txt").read_text() == "deep\n"
    assert git(root, "status", "--short", "--ignored") == ""
    git(root, "submodule", "--quiet", "update", "--init", "--recursive")  # as many tools do; it finds all there
    found = await collected(worktrees, made)
    assert (found["ref"], found.get("kept")) == ("", None) and not root.exists()
    assert tree(project) == before and git(project, "status", "--short") == ""
    assert settings == [(project / ".git/modules" / each / "config").read_text() for each in MODULES]


@pytest.mark.parametrize("name", ["libs/mod/new.txt", "libs/mod/inner/deep.txt"])
async def test_work_in_a_submodule_is_kept(name: str, worktrees: Worktrees, project: Path) -> None:
    made = await added(worktrees, project)
    write(Path(made.root, name))
    found = await collected(worktrees, made)
    assert {"file": "libs/mod", "why": "a submodule"} in found["unsaved"]
    assert Path(found["kept"], name).read_text() == "by the agent\n"
    again = await collected(worktrees, made)
    assert again == found


async def test_a_submodule_that_is_not_here_is_told(worktrees: Worktrees, project: Path, tmp_path: Path) -> None:
    write(project / "libs/mod/inner/deep.txt", "newer\n")
    git(project / "libs/mod/inner", "commit", "-qam", "only here")
    git(project / "libs/mod", "commit", "-qam", "only here")
    git(project, "commit", "-qam", "newer")
    clone = tmp_path / "clone"
    git(tmp_path, "clone", "-q", str(project), str(clone))
    made = await added(worktrees, clone)
    assert made.left_out == ["libs/mod"] and "libs/mod" in result(made)
    assert list(Path(made.root, "libs/mod").iterdir()) == []


@pytest.mark.parametrize("how", ["elsewhere", "link", "directory"])
async def test_a_submodule_whose_repository_is_elsewhere_is_not_used(
    how: str, worktrees: Worktrees, project: Path, tmp_path: Path
) -> None:
    other = repository(tmp_path / "other", {"m.txt": "module\n"})
    git(project / "libs/mod", "fetch", "-q", str(other))
    link, kept = project / "libs/mod/.git", project / ".git/modules/libs/mod"
    if how == "elsewhere":
        link.write_text(f"gitdir: {other}/.git\n")
    elif how == "link":
        shutil.move(kept, tmp_path / "moved")
        kept.symlink_to(tmp_path / "moved")
    else:
        link.unlink()
        shutil.move(kept, link)
    made = await added(worktrees, project)
    assert made.left_out == ["libs/mod"] and list(Path(made.root, "libs/mod").iterdir()) == []


async def test_a_link_in_a_submodule_leads_nowhere(worktrees: Worktrees, project: Path, tmp_path: Path) -> None:
    secret = write(tmp_path / "secret", "secret")
    (project / "libs/mod/out").symlink_to(secret)
    (project / "libs/mod/near").symlink_to("../../a.txt")
    git(project / "libs/mod", "add", ".")
    git(project / "libs/mod", "commit", "-qm", "links")
    git(project, "commit", "-qam", "links")
    made = await added(worktrees, project)
    module = Path(made.root, "libs/mod")
    assert made.left_out == ["libs/mod/out"] and not (module / "out").is_symlink()
    assert (module / "near").read_text() == "one\n" and git(module, "status", "--short") == ""
    assert (await collected(worktrees, made)).get("kept") is None


async def test_files_of_git_lfs_are_pointers_without_the_program_and_that_is_told(
    worktrees: Worktrees, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = b"\x00large" * 1000
    digest = hashlib.sha256(content).hexdigest()
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"
    project = repository(tmp_path / "project", {"big.bin": pointer, "a.txt": "one\n", "fake.txt": pointer})
    write(project / ".gitattributes", "*.bin filter=lfs diff=lfs merge=lfs -text\n")
    git(project, "add", ".gitattributes")
    git(project, "commit", "-qm", "lfs")
    for key, value in (("clean", "git-lfs clean -- %f"), ("process", "git-lfs filter-process"), ("required", "true")):
        git(project, "config", f"filter.lfs.{key}", value)
    (project / "big.bin").write_bytes(content)
    write(project / ".git/lfs/objects" / digest[:2] / digest[2:4] / digest).write_bytes(content)
    made = await added(worktrees, project)
    assert Path(made.root, "big.bin").read_text() == pointer
    assert "big.bin" in made.notes[0] and "git-lfs" in result(made)
    write(Path(made.root, "a.txt"))
    assert [each["file"] for each in (await collected(worktrees, made))["files"]] == ["a.txt"]
    programs = write(tmp_path / "bin/git-lfs", "#!/bin/sh\nexit 1\n").parent
    (programs / "git-lfs").chmod(0o755)
    monkeypatch.setenv("PATH", str(programs), prepend=":")
    made = await added(worktrees, project)
    assert Path(made.root, "big.bin").read_bytes() == content and made.notes == []
    assert Path(made.root, "fake.txt").read_text() == pointer
    assert (await collected(worktrees, made)).get("kept") is None
    shutil.rmtree(project / ".git/lfs")
    made = await added(worktrees, project)
    assert Path(made.root, "big.bin").read_text() == pointer and "big.bin" in made.notes[0]


@pytest.mark.parametrize("where", [".git/hooks", ".husky"])
async def test_a_hook_that_does_not_run_is_told(where: str, worktrees: Worktrees, tmp_path: Path) -> None:
    project = repository(tmp_path / "project")
    if where != ".git/hooks":
        git(project, "config", "core.hooksPath", where)
    ran = tmp_path / "ran"
    hook = write(project / where / "post-checkout", f"#!/bin/sh\ntouch {ran}\n")
    assert (await added(worktrees, project)).notes == [], "git would not run it either"
    hook.chmod(0o755)
    made = await added(worktrees, project)
    assert str(hook) in made.notes[0] and "post-checkout" in result(made) and not ran.exists()
    hook.write_text('#!/bin/sh\ncommand -v git-lfs >/dev/null || { exit 2; }\ngit lfs post-checkout "$@"\n')
    assert (await added(worktrees, project)).notes == [], "Git LFS has such a hook in each of its repositories"


CONFIG = '{\n  // mine\n  "permission": {"bash": "ask"}\n}\n'
BY_OPENCODE = CONFIG.replace("{", '{\n  "$schema": "https://opencode.ai/config.json",', 1)


@pytest.mark.parametrize("name", ["opencode.json", ".opencode/opencode.jsonc"])
async def test_what_opencode_writes_into_its_configuration_is_no_change_of_the_agent(
    name: str, worktrees: Worktrees, tmp_path: Path
) -> None:
    project = repository(tmp_path / "project", {name: CONFIG, "a.txt": "one\n"})
    made = await added(worktrees, project)
    write(Path(made.root, name), BY_OPENCODE)
    found = await collected(worktrees, made)
    assert (found["ref"], found.get("kept")) == ("", None)
    made = await added(worktrees, project)
    write(Path(made.root, name), BY_OPENCODE.replace("ask", "deny"))
    found = await collected(worktrees, made)
    assert "$schema" not in found["diff"] and '+  "permission": {"bash": "deny"}' in found["diff"]
    assert await worktrees.apply(ID, str(project), made._asdict(), found["commit"])
    assert (project / name).read_text() == CONFIG.replace("ask", "deny")
