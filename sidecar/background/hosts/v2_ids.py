"""Ids for background sessions and their messages on OpenCode 2, which accepts each id only once. Pure.

A background session is recognised by its id. Its metadata would not do, because OpenCode 2 copies a session's metadata
to every fork and to every child of the session.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final

_PHANTOM: Final = "ses_ds2"


def session_id(intent: str) -> str:
    return _PHANTOM + sha256(intent.encode()).hexdigest()[:20]


def is_phantom(session: str) -> bool:
    return session.startswith(_PHANTOM)


def message_id(key: str) -> str:
    return f"msg_{sha256(key.encode()).hexdigest()[:26]}"
