"""What can be planted where git reads, so that git runs a program: each with a trap that tells that it ran.

``Plant.control`` is a git command that runs the program. Without one, git by itself never runs it, or not in a way that
a test can show; it is planted nevertheless.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tests.sidecar.background.projects import git, repository, write


class Plant(NamedTuple):
    """Settings that name a program as ``TRAP``."""

    name: str
    settings: Sequence[str] = ()
    control: Sequence[str] = ()
    given: str = ""
    """What the control reads."""
    only: str = ""
    """``user``: git reads it there only. ``new``: only new gits know it."""


def _driver(kind: str, name: str, *keys: str) -> list[str]:
    return [f"{kind}.{name}.{key} TRAP" for key in keys]


_ASK = "protocol=https\nhost=localhost\n\n"
_MISSING = "1234567812345678123456781234567812345678"
_PUSH = ("push", "-q", "evil", "HEAD:refs/heads/new")

SETTINGS = [
    Plant("fsmonitor", ["core.fsmonitor TRAP"], ["status"]),
    Plant("hooks-path", ["core.hooksPath HOOKS"], ["commit", "--allow-empty", "-m", "x"]),
    Plant(
        "configured-hook", ["hook.odd.event pre-commit", "hook.odd.command TRAP"], ["commit", "--allow-empty", "-mx"]
    ),
    Plant("index-hook", ["hook.i.event post-index-change", "hook.i.command TRAP"], ["read-tree", "HEAD"]),
    Plant(
        "refs-hook", ["hook.r.d.event reference-transaction", "hook.r.d.command TRAP"], ["update-ref", "refs/x", "HEAD"]
    ),
    Plant("clean", _driver("filter", "clean", "clean"), ["add", "--renormalize", "x.clean"]),
    Plant("smudge", _driver("filter", "smudge", "smudge"), ["checkout-index", "-f", "--prefix=out/", "x.smudge"]),
    Plant("process", _driver("filter", "process", "process"), ["checkout-index", "-f", "--prefix=out/", "x.process"]),
    Plant("textconv", _driver("diff", "textconv", "textconv"), ["diff", "HEAD~", "--", "x.textconv"]),
    Plant("diff-driver", _driver("diff", "command", "command"), ["diff", "HEAD~", "--", "x.command"]),
    Plant("diff-external", ["diff.external TRAP"], ["diff", "HEAD~", "--", "a.txt"]),
    Plant("merge-driver", _driver("merge", "merge", "driver"), ["merge", "-q", "theirs"]),
    Plant("pager", ["core.pager TRAP"], ["log"]),
    Plant("pager-of-diff", ["pager.diff TRAP"], ["diff", "HEAD~"]),
    Plant("editor", ["core.editor TRAP"], ["commit", "--amend"]),
    Plant("sequence-editor", ["sequence.editor TRAP"], ["rebase", "-i", "--autostash", "HEAD~"]),
    Plant("ssh", ["core.sshCommand TRAP"], ["ls-remote", "ssh://localhost/x"]),
    Plant("git-proxy", ["core.gitProxy TRAP"], ["ls-remote", "git://localhost/x"]),
    Plant("ask-pass", ["core.askPass TRAP"], ["credential", "fill"], _ASK),
    Plant("credential-helper", ["credential.helper TRAP"], ["credential", "fill"], _ASK),
    Plant("alternate-refs", ["core.alternateRefsCommand TRAP"], ["rev-list", "--alternate-refs"]),
    Plant("gpg", ["gpg.program TRAP"], ["commit", "-S", "--allow-empty", "-m", "x"]),
    Plant(
        "gpg-key", ["gpg.format ssh", "gpg.ssh.defaultKeyCommand TRAP"], ["commit", "-S", "--allow-empty", "-m", "x"]
    ),
    Plant(
        "signed-commits", ["commit.gpgSign true", "gpg.openpgp.program TRAP"], ["commit", "--allow-empty", "-m", "x"]
    ),
    Plant("alias", ["alias.odd !TRAP"], ["odd"]),
    Plant("alias-of-a-command", ["alias.diff-tree !TRAP"]),
    Plant("pack-objects", ["uploadpack.packObjectsHook TRAP"], ["clone", "-q", "file://HERE", "new"], only="user"),
    Plant("upload-pack", ["remote.evil.url OTHER", "remote.evil.uploadpack TRAP"], ["fetch", "evil"]),
    Plant("receive-pack", ["remote.evil.url OTHER", "remote.evil.receivepack TRAP"], _PUSH),
    Plant("ext", ["remote.evil.url ext::TRAP", "protocol.ext.allow always"], ["fetch", "evil"]),
    Plant(
        "promisor",
        [
            *("core.repositoryFormatVersion 1", "extensions.partialClone far", "remote.far.promisor true"),
            *("remote.far.url OTHER", "remote.far.uploadpack TRAP"),
        ],
        ["cat-file", "-p", _MISSING],
    ),
    Plant("submodule-update", ["submodule.mod.update !TRAP"], ["submodule", "update", "--force"]),
    Plant("diff-filter", ["interactive.diffFilter TRAP", "color.ui always"], ["add", "-p"], "q\n"),
    Plant("diff-tool", ["diff.tool odd", "difftool.odd.cmd TRAP"], ["difftool", "-y", "HEAD~"]),
    Plant("merge-tool", ["merge.tool odd", "mergetool.odd.cmd TRAP"]),
    Plant("trailer", ["trailer.odd.command TRAP"], ["interpret-trailers", "--trailer", "odd=1"], "text\n"),
    Plant("archive", ["tar.odd.command TRAP"], ["archive", "--format=odd", "HEAD"]),
    Plant("man", ["man.viewer odd", "man.odd.cmd TRAP"], ["help", "-m", "git"]),
    Plant(
        "browser",
        ["help.format web", "help.browser odd", "browser.odd.cmd TRAP", "help.htmlPath http://x"],
        ["help", "git"],
    ),
    Plant("template", ["init.templateDir TEMPLATE"], ["clone", "-q", "HERE", "new"], only="user"),
    Plant(
        "attributes", ["core.attributesFile ATTRIBUTES", *_driver("filter", "own", "clean")], ["hash-object", "x.own"]
    ),
    Plant("included", ["include.path INCLUDED"], ["status"]),
    Plant("included-if", ["includeIf.gitdir:**.path INCLUDED"], ["status"]),
    Plant("included-here", ["includeIf.onbranch:**.path INCLUDED"], ["status"]),
]
"""What stands in a configuration."""

HOOKS = (
    *("applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg"),
    *("commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update"),
    *("proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc"),
    *("post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change"),
)

VARIABLES = {
    **{"GIT_EXTERNAL_DIFF": "TRAP", "GIT_PAGER": "TRAP", "GIT_EDITOR": "TRAP", "GIT_SEQUENCE_EDITOR": "TRAP"},
    **{"GIT_SSH": "TRAP", "GIT_SSH_COMMAND": "TRAP", "GIT_ASKPASS": "TRAP", "SSH_ASKPASS": "TRAP", "EDITOR": "TRAP"},
    **{"GIT_PROXY_COMMAND": "TRAP", "GIT_EXEC_PATH": "PROGRAMS", "GIT_TEMPLATE_DIR": "TEMPLATE", "PAGER": "TRAP"},
    **{"GIT_DIR": "OTHER/.git", "GIT_WORK_TREE": "OTHER", "GIT_INDEX_FILE": "OTHER/.git/index", "VISUAL": "TRAP"},
    **{"GIT_COMMON_DIR": "OTHER/.git", "GIT_OBJECT_DIRECTORY": "OTHER/.git/objects", "GIT_NAMESPACE": "odd"},
    **{"GIT_ALTERNATE_OBJECT_DIRECTORIES": "OTHER/.git/objects", "GIT_ATTR_SOURCE": "HEAD", "GIT_PREFIX": "src/"},
    **{"GIT_DEFAULT_HASH": "sha256", "GIT_ICASE_PATHSPECS": "1", "GIT_REPLACE_REF_BASE": "refs/odd/"},
    **{"GIT_TRACE": "TRAPS/ran-trace", "GIT_TRACE2_EVENT": "TRAPS/ran-trace2", "GIT_TRACE_SETUP": "TRAPS/ran-setup"},
    **{"GIT_CONFIG": "INCLUDED", "GIT_CONFIG_GLOBAL": "INCLUDED", "GIT_CONFIG_SYSTEM": "INCLUDED", "GIT_FLUSH": "0"},
    **{"GIT_CONFIG_PARAMETERS": "'core.fsmonitor=TRAP'", "GIT_DIFF_OPTS": "-u0", "GIT_ADVICE": "0"},
    **{"GIT_TEST_DISALLOW_ABBREVIATED_OPTIONS": "1", "GIT_INDEX_VERSION": "4", "GIT_CEILING_DIRECTORIES": "/"},
}


class Traps:
    """Programs that tell that they ran."""

    def __init__(self, folder: Path, other: Path) -> None:
        self.folder, self.other = folder, other
        self._paths = {"TRAPS": folder, "OTHER": other, "HOOKS": folder / "hooks", "TEMPLATE": folder / "template"}
        self._paths |= {
            "ATTRIBUTES": folder / "attributes",
            "INCLUDED": folder / "included",
            "PROGRAMS": folder / "programs",
        }
        for name in HOOKS:
            self.program(name, folder / "hooks" / name)
            self.program(f"template/{name}", folder / "template/hooks" / name)
        self.program("git", folder / "programs/git")
        for name in ("fast-import", "check-ignore", "diff-tree", "cat-file", "ls-files", "merge-file"):
            self.program(f"git-{name}", folder / f"programs/git-{name}")
        write(folder / "attributes", "x.own filter=own\n")
        write(folder / "included", f"[core]\n\tfsmonitor = {self.program('included')}\n")

    def program(self, name: str, path: Path | None = None) -> Path:
        """A program that notes this name, and fails."""
        path = path or self.folder / "programs" / f"trap-{name}"
        if not path.exists():
            told = self.folder / "ran" / name.replace("/", "-")
            told.parent.mkdir(parents=True, exist_ok=True)
            write(path, f'#!/bin/sh\necho "$0 $*" >> "{told}"\nexit 1\n').chmod(0o755)
        return path

    def filled(self, text: str, name: str) -> str:
        """This text with the paths of the programs and of what else is planted."""
        for word in sorted(self._paths, key=len, reverse=True):
            text = text.replace(word, str(self._paths[word]))
        return text.replace("TRAP", str(self.program(name)))

    def settings(self, plant: Plant) -> list[tuple[str, str]]:
        pairs = (each.split(" ", 1) for each in plant.settings)
        return [(key, self.filled(value, plant.name)) for key, value in pairs]

    def text(self, plants: Sequence[Plant] = SETTINGS) -> str:
        """The settings of these plants, as a file of git's."""
        found = ""
        for plant in plants:
            for key, value in self.settings(plant):
                section, _, name = key.rpartition(".")
                head, _, below = section.partition(".")
                found += f'[{head} "{below}"]\n' if below else f"[{head}]\n"
                found += f'\t{name} = "{value}"\n'
        return found

    def variables(self) -> dict[str, str]:
        """The environment that names programs, other places and all settings."""
        pairs = [pair for plant in SETTINGS for pair in self.settings(plant)]
        found = {name: self.filled(value, name) for name, value in VARIABLES.items()}
        found |= {f"GIT_CONFIG_KEY_{number}": key for number, (key, _) in enumerate(pairs)}
        found |= {f"GIT_CONFIG_VALUE_{number}": value for number, (_, value) in enumerate(pairs)}
        return {**found, "GIT_CONFIG_COUNT": str(len(pairs))}

    @property
    def ran(self) -> list[str]:
        """What ran since this was last read."""
        found = sorted((self.folder / "ran").iterdir()) + sorted(self.folder.glob("ran-*"))
        names = [f"{each.name}: {each.read_text('utf-8', 'replace')}"[:200] for each in found]
        for each in found:
            each.unlink()
        return names


FILES = {"src/m.py": "one\ntwo\nthree\n", "m.py": "other\n", "a.txt": "a\n"}
DRIVERS = ("clean", "smudge", "process", "textconv", "command", "merge", "own", "info")


def target(place: Path) -> Path:
    """A repository in which every plant has what it is for: attributes, another branch, a submodule, alternates."""
    other = repository(place / "other")
    top = repository(place / "project", {**FILES, **{f"x.{name}": f"{name}\n" for name in DRIVERS}})
    rules = {
        name: f"x.{name} filter={name} diff={name} merge={name}\n" for name in DRIVERS if name not in ("own", "info")
    }
    write(top / ".gitattributes", "".join(rules.values()))
    git(top, "submodule", "add", "-q", str(other), "mod")
    git(top, "add", "--all")
    git(top, "commit", "-qm", "attributes and a submodule")
    git(top, "checkout", "-qb", "theirs")
    write(top / "x.merge", "theirs\n")
    git(top, "commit", "-qam", "theirs")
    git(top, "checkout", "-q", "-")
    for name in ("a.txt", *(f"x.{name}" for name in DRIVERS)):
        write(top / name, f"second {name}\n")
    git(top, "commit", "-qam", "second")
    write(top / ".git/objects/info/alternates", f"{other}/.git/objects\n")
    return top


def control(top: Path, plant: Plant, traps: Traps, home: Path) -> list[str]:
    """What runs if git is used by itself where this is planted, and nothing else."""
    here = shutil.copytree(top, top.parent / "control", symlinks=True)
    try:
        place = home / ".gitconfig" if plant.only == "user" else here / ".git/config"
        was = place.read_text() if place.exists() else ""
        write(place, was + "[user]\n\tname = t\n\temail = t@t\n[protocol]\n\tallow = always\n" + traps.text([plant]))
        write(here / "x.clean", "changed\n")
        traps.ran  # noqa: B018 - forgets what making it ran
        reader, writer = os.openpty()  # a terminal, because only there git starts a pager
        try:
            subprocess.run(
                ["git", *(each.replace("HERE", str(here)) for each in plant.control)],
                cwd=here,
                input=plant.given.encode(),
                stdout=writer,
                stderr=subprocess.DEVNULL,
                env={**os.environ, "PAGER": "cat", "TERM": "xterm", "GIT_TERMINAL_PROMPT": "0"},
                timeout=30,
                check=False,
            )
        finally:
            os.close(writer)
            os.close(reader)
        write(place, was) if was else place.unlink()
    finally:
        shutil.rmtree(here)
    return traps.ran
