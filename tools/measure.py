"""Measures the tree: lines by room, classes and names that several share, words of the docs.

    python tools/measure.py [REVISION]

Counts the files that git tracks, of the working tree or of a revision. The product is all Python below ``streams``,
``bridge`` and ``sidecar``, and the plugin's JavaScript without its tests. The docs are ``docs/``, README and SECURITY.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePath

PRODUCT = ("streams", "bridge", "sidecar", "plugin-shim/src")
TESTS = ("tests", "plugin-shim/test")
PAGES = ("docs", "README.md", "SECURITY.md")


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], check=True, capture_output=True, text=True).stdout


def read(revision: str | None, below: tuple[str, ...], *endings: str) -> Iterator[tuple[PurePath, str]]:
    """Each tracked file below some folders that ends so, with its text."""
    listed = ["ls-tree", "-r", "--name-only", revision] if revision else ["ls-files"]
    for name in _git(*listed, "--", *below).splitlines():
        if name.endswith(endings):
            if revision:
                yield PurePath(name), _git("show", f"{revision}:{name}")
            else:
                with Path(name).open(encoding="utf-8") as file:
                    yield PurePath(name), file.read()


def room_of(path: PurePath) -> str:
    """The room that a line of the table counts: two levels, one for ``streams`` and the plugin."""
    depth = 1 if path.parts[0] in ("streams", "plugin-shim") else 2
    return "/".join(path.parts[:-1][:depth])


def main(revision: str | None = None) -> None:
    """Print the measures of the working tree or of a revision."""
    lines: Counter[str] = Counter()
    longest: list[tuple[int, str]] = []
    classes: Counter[str] = Counter()
    product = 0
    for path, text in read(revision, PRODUCT, ".py", ".js"):
        count = text.count("\n")
        product += count
        lines[room_of(path)] += count
        longest.append((count, str(path)))
        if path.suffix == ".py":
            classes.update(node.name for node in ast.walk(ast.parse(text)) if isinstance(node, ast.ClassDef))
    tests: Counter[str] = Counter()
    for path, text in read(revision, TESTS, ".py", ".js", ".mjs"):
        tests[room_of(path)] += text.count("\n")
    words = {str(path): len(text.split()) for path, text in read(revision, PAGES, ".md")}
    for title, table, total in (("product", lines, product), ("tests", tests, sum(tests.values()))):
        print(f"{title}: {total:,} lines")
        for room, count in sorted(table.items()):
            print(f"  {room:24} {count:7,}")
    shared = sorted(name for name, count in classes.items() if count > 1)
    print(f"classes: {sum(classes.values())}, {len(shared)} names shared: {', '.join(shared)}")
    print(f"files over 500 lines: {', '.join(name for count, name in sorted(longest) if count > 500) or 'none'}")
    print(f"docs: {sum(words.values()):,} words")
    for name, count in sorted(words.items()):
        print(f"  {name:24} {count:7,}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
