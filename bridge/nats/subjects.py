"""Builds and parses the subjects of the mirror and of the L0 protocol. Pure.

::

    evt.{project}.{log}.{stream}.{type}                                   a record
    cmd.{project}.{workspace}.{agent}.{type}                              a command
    cmd.{from}.{to}._home.{ask|answer}.{id}                               a request of a machine, its answer
    ask.{from}.{to}                                                       a question of a machine, answered at once
    dlq.{durable}.{subject}                                               a dead letter
    cg.{ver}.{project}.{channel}.{category}.{component}.{target}.{suffix} the L0 protocol

``escape`` makes one token of every name. Only the dots of a type or suffix
stay dots, so that ``execution.>`` is a valid filter. A token consists only of
``A-Za-z0-9_-~`` and ``%``, so no name can add a token, a wildcard, white
space or a line to a subject.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from typing import Final, Literal, get_args

from streams.bus.subjects import ONE, REST, SubjectError, check_pattern, check_subject

PROTOCOL_VERSION: Final = "v1"
EVENTS: Final = "MESHFORGE_EVENTS"
"""The stream that holds every record of every log, and the results of tools."""

CHANNEL: Final = "public"
"""The channel of everything captured. A channel says who may see a message, not where it is stored."""

WAKEUP: Final = "wakeup"
"""The suffix of the L0 message that announces a command."""

NO_PROJECT: Final = "_"
"""The project of records without one: the sidecar's own records, and the records of a session whose project is not
known yet."""

MAX_TOKEN: Final = 255
"""Maximum length of one escaped name, in characters. This limit keeps subjects below ``MAX_SUBJECT``."""

MAX_SUFFIX_TOKENS: Final = 4

Category = Literal["cmd", "evt", "str"]
Component = Literal["agent", "sys", "user", "tool"]
CATEGORIES: Final[tuple[str, ...]] = get_args(Category)
COMPONENTS: Final[tuple[str, ...]] = get_args(Component)

_SAFE = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-~")
_SAFE_TEXT = re.compile(r"[A-Za-z0-9_~-]+")
_ESCAPED = [chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in range(256)]
_READ = re.compile(r"%([0-9A-F]{2})|([A-Za-z0-9_~-]+)")

_EMPTY = "%_"
"""The token of the empty name; ``%`` is otherwise followed by two hex digits or, once, by ``~``."""

_SHORTENED = "%~"
_CONSUMER = "_consumer"
_DIGEST = 32


@lru_cache(maxsize=8192)
def escape(name: str) -> str:
    """Encode ``name`` as one token: its UTF-8 bytes, where all bytes except ``A-Za-z0-9_-~`` are written as ``%XX``.

    Different names have different tokens, and ``unescape`` restores any Unicode
    name, lone surrogates included. A token that would be longer than
    ``MAX_TOKEN`` is cut and ends in ``%~`` and 32 hex digits of the name's
    SHA-256. The same name still gives the same token, but the token cannot be decoded.
    """
    if _SAFE_TEXT.fullmatch(name) is not None and len(name) <= MAX_TOKEN:
        return name
    raw = name.encode("utf-8", "surrogatepass")
    if not raw:
        return _EMPTY
    token = "".join([_ESCAPED[byte] for byte in raw])
    return token if len(token) <= MAX_TOKEN else shorten(token, raw, MAX_TOKEN)


def shorten(token: str, raw: bytes, limit: int) -> str:
    """Cut an escaped text; the end is ``%~`` and 32 hex digits of the SHA-256 of ``raw``, the text itself."""
    head = token[: limit - len(_SHORTENED) - _DIGEST]
    cut = head.rfind("%", len(head) - 2)  # an escape such as ``%2F`` must not be cut in half
    return (head if cut < 0 else head[:cut]) + _SHORTENED + sha256(raw).hexdigest()[:_DIGEST]


def unescape(token: str) -> str:
    """Restore the name that ``escape`` encoded as ``token``.

    Raises:
        SubjectError: the token was shortened, or ``escape`` would write the name differently (so that the name would
            have two spellings).
    """
    if token == _EMPTY:
        return ""
    if _SHORTENED in token:
        raise SubjectError(token, "this token was shortened; only the message has the full name")
    raw, at = bytearray(), 0
    while at < len(token):
        found = _READ.match(token, at)
        if found is None:
            raise SubjectError(token, "not an escaped name: letters, digits, `_-~` and %XX are allowed")
        raw += bytes.fromhex(found[1]) if found[1] else found[2].encode()
        at = found.end()
    try:
        name = raw.decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise SubjectError(token, "not an escaped name: its decoded bytes are not UTF-8") from None
    if escape(name) != token:
        raise SubjectError(token, "not the form that `escape` gives this name")
    return name


@lru_cache(maxsize=1024)
def escape_dotted(name: str) -> str:
    """Encode ``name`` but keep its dots: each part between two dots becomes one token, even if the part is empty."""
    return ".".join([escape(part) for part in name.split(".")])


def unescape_dotted(tokens: str) -> str:
    """Restore the name that ``escape_dotted`` encoded. Raises the same ``SubjectError`` as ``unescape``."""
    return ".".join([unescape(token) for token in tokens.split(".")])


# --- the mirror's own subjects ---


@dataclass(frozen=True, slots=True)
class RecordSubject:
    project: str
    log: str
    stream: str
    type: str

    def __str__(self) -> str:
        return _written("evt", (self.project, self.log, self.stream), self.type)

    @classmethod
    def parse(cls, subject: str) -> RecordSubject:
        """The names in a record's subject. Raises ``SubjectError`` for any other subject."""
        return cls(*_names(subject, "evt.{project}.{log}.{stream}.{type}"))


@dataclass(frozen=True, slots=True)
class CommandSubject:
    project: str
    workspace: str
    agent: str
    type: str

    def __str__(self) -> str:
        return _written("cmd", (self.project, self.workspace, self.agent), self.type)

    @classmethod
    @lru_cache(maxsize=1024)  # an agent's commands have few subjects
    def parse(cls, subject: str) -> CommandSubject:
        """The names in a command's subject. Raises ``SubjectError`` for any other subject."""
        return cls(*_names(subject, "cmd.{project}.{workspace}.{agent}.{type}"))


def _written(head: str, names: tuple[str, str, str], type_: str) -> str:
    """The subject. Raises ``SubjectError`` if the type makes it too long, which no valid event type does."""
    return check_subject(".".join([head, *map(escape, names), escape_dotted(type_)]))


def _names(subject: str, form: str) -> list[str]:
    head, *names, type_ = _split(subject, 5, form)
    if head != form[:3]:
        raise SubjectError(subject, f"not of the form {form}")
    return [*map(unescape, names), unescape_dotted(type_)]


def log_pattern(log: str, stream: str | None = None) -> str:
    """The pattern for all records of one home's log, or of one of its streams."""
    return check_pattern(f"evt.{ONE}.{escape(log)}.{ONE if stream is None else escape(stream)}.{REST}")


def consumer_name(agent: str) -> str:
    """The name of an agent's durable pull consumer, ``{agent}_consumer``; at most ``MAX_TOKEN`` long."""
    token, limit = escape(agent), MAX_TOKEN - len(_CONSUMER)
    if len(token) > limit:
        token = shorten(token, agent.encode("utf-8", "surrogatepass"), limit)
    return token + _CONSUMER


def exclusive_name(log: str, durable: str) -> str:
    """The name of a durable that only the home of ``log`` may have, ``{log}_{durable}``; at most ``MAX_TOKEN`` long.

    Without a log, ``durable`` itself.
    """
    name = f"{escape(log)}_{durable}" if log else durable
    return name if len(name) <= MAX_TOKEN else shorten(name, name.encode(), MAX_TOKEN)


def agent_pattern(agent: str) -> str:
    """The pattern for an agent's commands, of any project and workspace."""
    return check_pattern(f"cmd.{ONE}.{ONE}.{escape(agent)}.{REST}")


# --- the subjects of machines ---

HOME: Final = "_home"
"""In the place of an agent, which no agent can be named."""

ASK: Final = "ask"


@dataclass(frozen=True, slots=True)
class MachineSubject:
    """A message between two machines: ``kind`` is ``ask`` or ``answer``, and ``id`` the request's.

    Both machines are tokens of the subject, so the server's permissions can say who may send as whom.
    """

    sender: str
    to: str
    kind: str
    id: str

    def __str__(self) -> str:
        return str(CommandSubject(self.sender, self.to, HOME, f"{self.kind}.{self.id}"))

    @classmethod
    def parse(cls, subject: str) -> MachineSubject:
        """The names in such a subject. Raises ``SubjectError`` for any other subject."""
        names = CommandSubject.parse(subject)
        kind, _, id_ = names.type.partition(".")
        if names.agent != HOME or not id_:
            raise SubjectError(subject, "not of the form cmd.{from}.{to}._home.{ask|answer}.{id}")
        return cls(names.project, names.workspace, kind, id_)


def machine_pattern(to: str) -> str:
    """The pattern for all requests and answers to a machine."""
    return check_pattern(f"cmd.{ONE}.{escape(to)}.{HOME}.{REST}")


def machine_of(pattern: str) -> str | None:
    """The machine of such a pattern; ``None`` for any other."""
    head, _, rest = pattern.partition(f"cmd.{ONE}.")
    token, dot, end = rest.partition(f".{HOME}.")
    return unescape(token) if not head and dot and end == REST and "." not in token else None


def question_subject(sender: str, to: str) -> str:
    """Where a machine asks another one what it answers at once; no stream stores it."""
    return check_subject(f"{ASK}.{escape(sender)}.{escape(to)}")


def question_pattern(to: str) -> str:
    """The pattern for all questions to a machine."""
    return check_pattern(f"{ASK}.{ONE}.{escape(to)}")


def asker_of(subject: str) -> str:
    """The machine that sent a question. Raises ``SubjectError`` for any other subject."""
    head, sender, _ = _split(subject, 3, "ask.{from}.{to}")
    if head != ASK:
        raise SubjectError(subject, "not of the form ask.{from}.{to}")
    return unescape(sender)


# --- the L0 protocol's subjects ---


@dataclass(frozen=True, slots=True)
class L0Subject:
    """``cg.{ver}.{project}.{channel}.{category}.{component}.{target}.{suffix}``.

    ``suffix`` names the operation or the event. The dots of a suffix stay dots, as in ``cmd.sys.pmo.internal.*``, so a
    subject may have more than eight tokens.
    """

    project: str
    category: Category
    component: Component
    target: str
    suffix: str
    channel: str = CHANNEL
    ver: str = PROTOCOL_VERSION

    def __str__(self) -> str:
        """The subject. Raises ``SubjectError`` for an unknown category or component, or too many suffix parts."""
        check_kind(self.category, self.component, self.suffix)
        return check_subject(
            f"cg.{escape(self.ver)}.{escape(self.project)}.{escape(self.channel)}."
            f"{self.category}.{self.component}.{escape(self.target)}.{escape_dotted(self.suffix)}"
        )

    @property
    def short(self) -> str:
        """The subject without version, project and channel, as in the documents: ``evt.agent.{target}.step``."""
        return f"{self.category}.{self.component}.{escape(self.target)}.{escape_dotted(self.suffix)}"

    @classmethod
    def parse(cls, subject: str) -> L0Subject:
        """The names in an L0 subject, of any version. Raises ``SubjectError`` for any other subject."""
        form = "cg.{ver}.{project}.{channel}.{category}.{component}.{target}.{suffix}"
        head, ver, project, channel, category, component, target, suffix = _split(subject, 8, form)
        if head != "cg":
            raise SubjectError(subject, "it is not a subject of the L0 protocol, because it does not begin with `cg`")
        suffix = unescape_dotted(suffix)
        check_kind(category, component, suffix)
        return cls(
            project=unescape(project),
            category=category,  # type: ignore[arg-type]  # checked above
            component=component,  # type: ignore[arg-type]
            target=unescape(target),
            suffix=suffix,
            channel=unescape(channel),
            ver=unescape(ver),
        )


def agent_events_pattern(channel: str | None = None, ver: str = PROTOCOL_VERSION) -> str:
    """The pattern for the L0 events of agents, in one channel or in any.

    A pattern never spans versions, because their payloads differ.
    """
    return check_pattern(f"cg.{escape(ver)}.{ONE}.{ONE if channel is None else escape(channel)}.evt.agent.{ONE}.{REST}")


def stream_pattern(category: Category, ver: str = PROTOCOL_VERSION) -> str:
    """The subjects of an L0 stream: ``cg.{ver}.*.*.{category}.>``."""
    return check_pattern(f"cg.{escape(ver)}.*.*.{category}.>")


def check_kind(category: str, component: str, suffix: str) -> None:
    """Raise ``SubjectError`` if category or component is unknown, or the suffix has too many parts."""
    if category not in CATEGORIES:
        raise SubjectError(category, f"the L0 protocol has no such category: use one of {', '.join(CATEGORIES)}")
    if component not in COMPONENTS:
        raise SubjectError(component, f"the L0 protocol has no such component: use one of {', '.join(COMPONENTS)}")
    if suffix.count(".") >= MAX_SUFFIX_TOKENS:
        raise SubjectError(suffix, f"a suffix must have at most {MAX_SUFFIX_TOKENS} parts")


def _split(subject: str, parts: int, form: str) -> list[str]:
    """Split a subject at its dots into ``parts`` pieces; the last piece keeps the remaining dots."""
    tokens = check_subject(subject).split(".", parts - 1)
    if len(tokens) < parts:
        raise SubjectError(subject, f"too few tokens for {form}")
    return tokens
