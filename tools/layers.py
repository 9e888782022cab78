"""Check the layer rule: what each package may import, and the source of time and randomness.

    python tools/layers.py

Only a file's syntax tree counts: all import statements at any depth, and every use of a name.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]

PACKAGES = ("streams", "bridge", "sidecar")

LIBRARIES: dict[str, frozenset[str]] = {
    "streams": frozenset({"pydantic", "typing_extensions", "orjson", "msgspec", "aiofiles", "ulid"}),
    "bridge": frozenset({"pydantic", "msgspec", "orjson", "ahocorasick_rs", "nats"}),
    "sidecar/agents": frozenset({"pydantic"}),
}
"""Libraries that a package or room may import next to the standard library; ``sidecar``: any declared one."""

_STREAMS = ("streams", "streams/bus", "streams/log")
_LINK, _CAPTURE = "bridge/opencode/link", "bridge/opencode/capture"
_CAPTURE_2 = "bridge/opencode/capture/v2"
_NATS = ("bridge/nats", "bridge/nats/jetstream", "bridge/nats/l0", "bridge/nats/mirror")
_JETSTREAM = "bridge/nats/jetstream"
_ROOMS = tuple(
    f"sidecar/{room}" for room in ("agents", "background", "care", "install", "link", "mirror", "record", "team")
)

FOLDERS: dict[str, tuple[str, ...]] = {
    "streams": (),
    "streams/bus": ("streams",),
    "streams/stores": ("streams",),
    "streams/stores/sqlite": ("streams", "streams/stores"),
    "streams/stores/journal": ("streams", "streams/stores", "streams/stores/sqlite"),
    "streams/log": (
        "streams",
        "streams/stores",
        "streams/stores/sqlite",
        "streams/stores/journal",
    ),
    "bridge": (),
    "bridge/opencode": (),
    _LINK: ("streams",),
    "bridge/opencode/redact": ("streams",),
    _CAPTURE: ("streams", _LINK),
    _CAPTURE_2: ("streams", _LINK, _CAPTURE),
    "bridge/nats": ("streams", "streams/bus"),
    "bridge/nats/jetstream": ("streams", "streams/bus", "bridge/nats"),
    "bridge/nats/l0": ("streams", "streams/bus", "bridge/nats"),
    "bridge/nats/mirror": ("streams", "streams/bus", *_NATS[:3]),
    "sidecar/install": ("streams", "sidecar"),
    "sidecar/web": (),
    "sidecar/link": (*_STREAMS, _LINK, "sidecar"),
    "sidecar/record": (*_STREAMS, _LINK, _CAPTURE, _CAPTURE_2, "sidecar", "sidecar/link"),
    "sidecar/read": (*_STREAMS, _CAPTURE, "sidecar"),
    "sidecar/agents": ("streams", "streams/bus"),
    "sidecar/mirror": (
        *_STREAMS,
        *_NATS,
        _LINK,
        "sidecar",
        "sidecar/agents",
        "sidecar/link",
    ),
    "sidecar/background": (
        *_STREAMS,
        _LINK,
        _CAPTURE,
        "sidecar",
        "sidecar/agents",
        "sidecar/install",
        "sidecar/link",
        "sidecar/read",
        "sidecar/record",
        "sidecar/web",
    ),
    "sidecar/team": (*_STREAMS, "sidecar", "sidecar/agents", "sidecar/read"),
    "sidecar/care": (
        *_STREAMS,
        _JETSTREAM,
        _LINK,
        _CAPTURE,
        "sidecar",
        "sidecar/background",
        "sidecar/install",
        "sidecar/link",
        "sidecar/mirror",
        "sidecar/read",
        "sidecar/record",
        "sidecar/web",
    ),
    "sidecar/inspector": (
        *_STREAMS,
        _LINK,
        _CAPTURE,
        "sidecar/background",
        "sidecar/link",
        "sidecar/read",
        "sidecar/web",
    ),
    "sidecar/cli": (
        *_STREAMS,
        _JETSTREAM,
        _LINK,
        "sidecar",
        *(
            f"sidecar/{room}"
            for room in (
                *("agents", "background", "care", "inspector", "install", "link", "mirror", "read", "record"),
                "team",
            )
        ),
    ),
    "sidecar": (
        *_STREAMS,
        _JETSTREAM,
        _LINK,
        _CAPTURE,
        "bridge/opencode/redact",
        "sidecar/read",
        *_ROOMS,
    ),
}
"""Which folders of ours each folder may import, next to itself. Nothing above ``streams/log`` knows a backend.

A room of ``sidecar`` counts as one folder with all that is below it. ``sidecar`` itself is both: its bottom
(``BOTTOM``) is what every room stands on, the rest composes the rooms.
"""

BOTTOM = frozenset(
    {
        "__init__",
        "components",
        "config",
        "config_faults",
        "failure",
        "home",
        "notify_config",
        "private_files",
        "processes",
        "registry",
    }
    | {"version"}
)
"""Modules of ``sidecar`` that its rooms may import; a command may import all."""

ONLY_IN: dict[str, tuple[str, ...]] = {
    "aiofiles": ("streams/stores/journal/*.py",),
    "fcntl": ("streams/system/locks.py", "streams/stores/disk.py"),
    "ulid": ("streams/identity.py",),
    "websockets": ("sidecar/link/server.py", "sidecar/link/connection.py", "sidecar/link/client.py"),
    "nats": ("bridge/nats/jetstream/client*.py",),
    "sqlite3": (
        "streams/stores/sqlite/*.py",
        "streams/derived.py",
        "sidecar/care/resting_sessions.py",
        "sidecar/read/story/*.py",
    ),
    "aiosqlite": (),
    "prometheus_client": ("sidecar/care/metrics.py",),
    "uvicorn": ("sidecar/web/serving.py",),
    "starlette": (
        "sidecar/web/serving.py",
        "sidecar/inspector/*.py",
        "sidecar/background/people/answer_page.py",
        "sidecar/care/scraping.py",
    ),
    "apprise": ("sidecar/background/people/channels.py",),
    "psycopg": ("sidecar/team/*.py",),
}
"""Modules that belong to a few files of all packages, because their errors and types must not spread."""

IMPURE_MODULES = frozenset({"random", "secrets", "uuid", "ulid"})
MAKER = "streams.identity.system_identity"
IMPURE_NAMES = frozenset(
    {
        MAKER,
        "time.time",
        "time.time_ns",
        "time.localtime",
        "time.gmtime",
        "time.ctime",
        "time.strftime",
        "datetime.now",
        "datetime.utcnow",
        "datetime.today",
        "date.today",
        "os.urandom",
        "os.getrandom",
    }
)
IMPURE_LASTS = frozenset(name.rpartition(".")[2] for name in IMPURE_NAMES)
JUDGED = (ast.Import, ast.ImportFrom, ast.Call, ast.Attribute, ast.Name)
IDENTITY = "streams/identity.py"
"""The one source of wall clock, randomness and ids."""

MAKERS = {
    "sidecar/app.py": "makes the sidecar's identity, and passes it to every part",
    "sidecar/cli/shared/identity.py": "makes the identity of a command",
}
"""The only files that make an identity of the system's clock and randomness; all others get one."""


def faults_in(path: str, source: str) -> list[str]:
    """Every violation in one file, as ``path:line: what``. ``path`` is relative to the repository."""
    return _faults_of(path, *_read(source))


def _faults_of(path: str, tree: ast.Module, nodes: list[ast.AST]) -> list[str]:
    faults = [] if ast.get_docstring(tree) else [f"{path}:1: no module docstring"]
    for line, module in _imports(nodes, path):
        top = module.split(".")[0]
        if top in PACKAGES:
            faults += [f"{path}:{line}: {fault}" for fault in _breach(path, module)]
            continue
        room = next((room for room in LIBRARIES if path.startswith(f"{room}/")), None)
        if room is not None and top not in sys.stdlib_module_names and top not in LIBRARIES[room]:
            faults.append(f"{path}:{line}: {room} must not import {module}")
        if top in ONLY_IN and not any(fnmatch(path, pattern) for pattern in ONLY_IN[top]):
            faults.append(f"{path}:{line}: {module} is imported in {', '.join(ONLY_IN[top]) or 'no file'} only")
    if path != IDENTITY:
        impure = [(line, what) for line, what in _impurities(nodes, path) if path not in MAKERS or what != MAKER]
        faults += [f"{path}:{line}: {what} outside {IDENTITY}" for line, what in impure]
    return faults


def _breach(path: str, module: str) -> Iterator[str]:
    """The violation, if a file must not import one of our modules."""
    mine, theirs = _room(path.rpartition("/")[0]), _room(_folder_of(module))
    package = path.split("/")[0]
    if theirs == mine:
        return
    if theirs not in FOLDERS.get(mine, ()):
        yield f"{package} must not import {module}: {mine} may not know {theirs}"
    elif theirs == "sidecar" != module and mine != "sidecar/cli" and module.split(".")[1] not in BOTTOM:
        yield f"{package} must not import {module}: a room may not know what composes it"


def _room(folder: str) -> str:
    if folder == "streams/system":
        return "streams"  # every room may use the operating system's files and locks as it uses the envelope
    return "/".join(folder.split("/")[:2]) if folder.startswith("sidecar/") else folder


@cache
def _folder_of(module: str) -> str:
    """The folder of a module, or of a name in it."""
    parts = module.split(".")
    while parts and not (ROOT.joinpath(*parts)).is_dir():
        parts.pop()
    return "/".join(parts)


def _read(source: str) -> tuple[ast.Module, list[ast.AST]]:
    """The tree of a file, and all of it that can be a fault."""
    tree = ast.parse(source)
    return tree, [node for node in ast.walk(tree) if isinstance(node, JUDGED)]


def _imports(nodes: list[ast.AST], path: str) -> Iterator[tuple[int, str]]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            # A relative import stays in its package as far as its dots reach.
            parts = path.split("/")[: -node.level] if node.level else []
            base = ".".join([*parts, *([node.module] if node.module else [])])
            yield node.lineno, base or "<beyond the top>"
        elif isinstance(node, ast.Call) and _name(node.func) in (
            "__import__",
            "importlib.import_module",
            "import_module",
        ):
            first = node.args[0] if node.args else None
            is_known = isinstance(first, ast.Constant) and isinstance(first.value, str)
            yield node.lineno, first.value if is_known else "<computed>"


def _impurities(nodes: list[ast.AST], path: str) -> Iterator[tuple[int, str]]:
    aliases: dict[str, str] = {}
    for node in nodes:
        if isinstance(node, ast.Import):
            aliases |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom) and node.module:
            aliases |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    for line, module in _imports(nodes, path):
        if module.split(".")[0] in IMPURE_MODULES:
            yield line, module
    for node in nodes:
        if isinstance(node, ast.Attribute | ast.Name):
            last = node.attr if isinstance(node, ast.Attribute) else aliases.get(node.id, node.id).rpartition(".")[2]
            if last not in IMPURE_LASTS:
                continue
            first, _, rest = _name(node).partition(".")
            full = ".".join(filter(None, [aliases.get(first, first), rest]))
            if any(full == name or full.endswith(f".{name}") for name in IMPURE_NAMES):
                yield node.lineno, full


def _name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        inner = _name(node.value)
        return f"{inner}.{node.attr}" if inner else ""
    return node.id if isinstance(node, ast.Name) else ""


def files() -> list[str]:
    return [str(path.relative_to(ROOT)) for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def breaches() -> list[str]:
    """Every violation in the product, and every import that is allowed and that no file needs."""
    used: dict[str, set[str]] = {}
    faults: list[str] = []
    for path in files():
        tree, nodes = _read((ROOT / path).read_text())
        faults += _faults_of(path, tree, nodes)
        for _, module in _imports(nodes, path):
            if module.split(".")[0] in PACKAGES:
                used.setdefault(_room(path.rpartition("/")[0]), set()).add(_room(_folder_of(module)))
    for folder, allowed in FOLDERS.items():
        needless = sorted(set(allowed) - used.get(folder, set()) - set(_STREAMS))
        faults += [f"{folder}: no file imports {room}, so it need not be allowed" for room in needless]
    return faults


if __name__ == "__main__":
    sys.exit("\n".join(breaches()) or None)
