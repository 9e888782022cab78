"""The product's Python files as syntax trees, for tests that judge the code itself."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]


@cache
def trees(folder: str) -> dict[str, ast.Module]:
    """Each file below a folder of the checkout, by its path from there. Do not change a tree: others get the same.

    CPython 3.11 compares the depth of the stack before and after it makes a tree, and sometimes finds another one in
    the stack of a test ("AST constructor recursion depth mismatch"). So a thread, whose stack is fresh, parses.
    """
    paths = sorted((ROOT / folder).rglob("*.py"))
    with ThreadPoolExecutor(1) as fresh:
        made = fresh.map(ast.parse, (path.read_text() for path in paths))
        return dict(zip((str(path.relative_to(ROOT)) for path in paths), made, strict=True))


def nodes(folder: str) -> Iterator[ast.AST]:
    """Every node of every file below a folder."""
    for tree in trees(folder).values():
        yield from ast.walk(tree)
