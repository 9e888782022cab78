"""The home: one user's data directory, its token, and the lock of the sidecar that serves it.

Only the user can read the home: directories have mode 0700 and files 0600, whatever the umask. Files are opened without
following symbolic links, so that another user with access to the parent directory cannot replace a file by a link. All
methods are synchronous and quick; none needs a running loop.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, ClassVar, Final, NamedTuple

from sidecar.private_files import (
    HomeError,
    cannot_use,
    open_unfollowed,
    private_directory,
    read_private,
    write_new,
)
from sidecar.processes import mark_of
from streams.system import locks
from streams.system.files import write_durably

TOKEN: Final = re.compile(r"[0-9a-f]{64}")

_OUR_NAMES: Final = re.compile(r"store|spool|nats|terminals|sock|inspect\.html|(sidecar\.(json|log)|token)(\.\d+)?")
"""A directory with only these names counts as a home, because a plugin creates the spool or ``terminals`` first, and a
killed process may leave the other files."""


class HomeLocked(HomeError):
    """Another process is serving this home."""

    code: ClassVar[str] = "home-locked"


class HomeNotEmpty(HomeError):
    """A deterministic sidecar needs an empty log, and this home's log has records."""

    code: ClassVar[str] = "home-not-empty"


def _default() -> str:
    import platformdirs

    return platformdirs.user_data_dir("durable-stream", False)


class SidecarInfo(NamedTuple):
    """How to find the running sidecar: the content of ``sidecar.json``."""

    pid: int
    port: int
    boot: str
    version: str
    protocol: int
    started_ms: int
    process: str = ""
    """Distinguishes the process from a later one with the same pid (see ``mark_of``). Empty if the system does not
    provide it."""
    pid_space: str = ""
    net_space: str = ""
    """The namespaces in which ``pid`` and ``port`` count; empty if the system has none."""

    @property
    def still_runs(self) -> bool:
        """True if the process that wrote ``sidecar.json`` is certainly still running, or suspended."""
        return self.process != "" and mark_of(self.pid) == self.process


class Home:
    """The paths of one home, and operations on its files. The constructor touches no file.

    ``path`` (``--home``) wins over ``DURABLE_STREAM_HOME``, which wins over the
    platform's data directory.
    """

    def __init__(self, path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> None:
        self.path = Path(path or environ.get("DURABLE_STREAM_HOME") or _default()).expanduser().resolve()
        self.config_path = self.path / "config.toml"
        self.token_path = self.path / "token"
        self.metrics_token_path = self.path / "metrics.token"
        self.otel_path = self.path / "otel.json"
        self.lock_path = self.path / "sidecar.lock"
        self.info_path = self.path / "sidecar.json"
        self.log_path = self.path / "sidecar.log"
        self.store_path = self.path / "store"
        self.spool_path = self.path / "spool"
        self.nats_path = self.path / "nats"

    def create(self) -> None:
        """Create the home's directories with mode 0700, and set that mode on existing ones. Idempotent.

        Raises:
            HomeError: a directory belongs to another user, holds foreign files, or cannot be created.
        """
        self.check_owner()
        self.check_kind()
        for path in (self.path, self.store_path, self.spool_path):
            private_directory(path)

    def was_used(self) -> bool:
        """True if a sidecar or the user has written to this home before."""
        return any(os.path.lexists(path) for path in (self.token_path, self.lock_path, self.config_path))

    def check_owner(self) -> None:
        """Refuse another user's home before anything is written there. A home that does not exist yet is accepted.

        Raises:
            HomeError: another user owns the home. Root is refused, too, because the owner could not write files that
                root created.
        """
        try:
            owner = self.path.stat().st_uid
        except OSError:
            return  # the directory is missing or not accessible, which the next operation reports
        if owner != os.geteuid():
            raise HomeError(
                self.path, f"the directory is owned by user {owner}, not by you", "choose another home with `--home`"
            )

    def check_kind(self) -> None:
        """Refuse a path that is not a home, before it is used as one.

        These are accepted: a missing or empty directory, a directory with only a spool or a configuration, and a
        restored store.

        Raises:
            HomeError: the path is a file, or a directory with other files.
        """
        try:
            is_file = self.path.exists() and not self.path.is_dir()
            is_foreign = self.path.is_dir() and not self._is_ours()
        except OSError:
            return  # the directory is not accessible, which the next operation reports
        if is_file:
            raise HomeError(
                self.path, "it is a file, not a directory", "choose another home with `--home`, or move it away"
            )
        if is_foreign:
            raise HomeError(
                self.path,
                "it contains other files and is not a Durable Stream home",
                "choose another home with `--home`",
            )

    # --- the token ---

    def ensure_token(self, generate: Callable[[], str]) -> str:
        """Return the token; create it if there is none. ``generate`` returns 64 random hex characters.

        Two processes may call this at the same time; both then get the token that was written first.

        Raises:
            HomeError: see ``read_token``, or the token cannot be written.
        """
        if not os.path.lexists(self.token_path):
            token = generate()
            if TOKEN.fullmatch(token) is None:
                raise ValueError("a token is 64 hex characters")
            draft = self.token_path.with_name(f"token.{os.getpid()}")
            try:
                draft.unlink(missing_ok=True)
                write_new(draft, token + "\n")
                # Use a hard link, not a rename, because linking fails if the token exists. No reader sees half a token.
                os.link(draft, self.token_path)
            except FileExistsError:
                return self.read_token()
            except OSError as error:
                raise cannot_use("write", self.token_path, error) from None
            finally:
                draft.unlink(missing_ok=True)
        return self.read_token()

    def read_token(self) -> str:
        """Return the token, after checking that its file is a regular file, owned by this user, and inaccessible to
        other users.

        Raises:
            HomeError: the token's file is missing, or one of the checks failed.
        """
        path = self.token_path
        renew = "remove the token file; the next start of the sidecar creates a new one"
        try:
            content, why = read_private(path)
        except FileNotFoundError:
            raise HomeError(
                path, "it does not exist", "to create it, start the sidecar once: `durable-stream serve`"
            ) from None
        except OSError as error:
            if path.is_symlink():
                raise HomeError(path, "the token is a symbolic link", renew) from None
            raise cannot_use("read", path, error) from None
        if why:
            raise HomeError(path, f"the token is {why}", renew)
        text = content.decode("ascii", "replace").strip()
        if TOKEN.fullmatch(text) is None:
            raise HomeError(path, "the token is not 64 hex characters", renew)
        return text

    # --- the sidecar ---

    def lock(self) -> IO[bytes]:
        """Become this home's only sidecar, until the returned file is closed or the process ends.

        Raises:
            HomeLocked: another sidecar holds the lock; raised within a fraction of a second.
            HomeError: the lock file cannot be opened.
        """
        descriptor = self._open_lock()
        if locks.take(descriptor):
            return os.fdopen(descriptor, "rb")
        os.close(descriptor)
        raise self._locked()

    def refuse_locked(self) -> None:
        """Raise ``HomeLocked`` if another process holds the lock, without taking it."""
        if self.is_locked():
            raise self._locked()

    def _locked(self) -> HomeLocked:
        other = self.read_info()
        if other is not None and is_alive(other.pid):
            hint = "use that sidecar, or stop it with `durable-stream stop`"
            return HomeLocked(self.path, f"another sidecar (pid {other.pid}) is already serving this home", hint)
        # The holder is unknown: most likely a sidecar that is starting or stopping.
        hint = "wait a few seconds, or stop that sidecar with `durable-stream stop`; then try again"
        return HomeLocked(self.path, "another sidecar is serving this home", hint)

    def write_info(self, info: SidecarInfo) -> None:
        """Write the file that tells others how to reach the sidecar.

        Readers see the old or the new content, never a mixture.
        """
        draft = self.info_path.with_name(f"sidecar.json.{os.getpid()}")
        try:
            draft.unlink(missing_ok=True)
            write_durably(self.info_path, json.dumps(info._asdict()).encode() + b"\n", draft=draft)
        except OSError as error:
            raise cannot_use("write", self.info_path, error) from None

    def read_info(self) -> SidecarInfo | None:
        """Read ``sidecar.json``, which may be out of date; ``None`` if it is missing, invalid or not private."""
        try:
            content, why = read_private(self.info_path)
            if why:  # another user who can write the file could redirect us to a port of theirs
                return None
            fields = json.loads(content)
            info = SidecarInfo(**{name: fields[name] for name in SidecarInfo._fields})
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None
        numbers = (info.pid, info.port, info.protocol, info.started_ms)
        texts = (info.boot, info.version, info.process, info.pid_space, info.net_space)
        if not all(type(value) is int for value in numbers) or not all(type(text) is str for text in texts):
            return None
        return info if info.pid > 0 and 0 < info.port < 65536 else None

    def remove_info(self, boot: str | None = None) -> None:
        """Delete ``sidecar.json``; with ``boot``, only if the sidecar with this boot wrote the file. Idempotent."""
        if boot is None or ((info := self.read_info()) is not None and info.boot == boot):
            self.info_path.unlink(missing_ok=True)

    def unlocked(self) -> SidecarInfo | None:
        """A sidecar whose process is provably running although nobody holds the lock, because its lock file was
        deleted.

        The holder of the lock may call this, too: any other running sidecar has then lost the lock.
        """
        info = self.read_info()
        return info if info is not None and info.pid != os.getpid() and info.still_runs else None

    def running(self) -> SidecarInfo | None:
        """The sidecar that is serving this home: its process is running and the lock is held."""
        info = self.read_info()
        return info if info is not None and is_alive(info.pid) and self.is_locked() else None

    def is_locked(self) -> bool:
        """True if a process holds the lock; that process may be a sidecar that is starting or stopping."""
        try:
            descriptor = self._open_lock(create=False)
        except HomeError:
            return False
        try:
            return locks.is_held(descriptor)
        finally:
            os.close(descriptor)

    # --- files ---

    def _open_lock(self, create: bool = True) -> int:
        # Without ``create``, open the file read-only, so that the lock can also be checked on a read-only mount.
        flags = os.O_RDWR | os.O_CREAT if create else os.O_RDONLY
        try:
            descriptor = open_unfollowed(self.lock_path, flags)
        except OSError as error:
            raise cannot_use("open", self.lock_path, error) from None
        if create:
            os.fchmod(descriptor, 0o600)
        return descriptor

    def _is_ours(self) -> bool:
        """True if the directory was used as a home, holds a restored store, or holds only names that a home has.

        The content of ``store/`` is checked when the store is opened.
        """
        # List the names before looking for signs of use, because a sidecar that is just starting may write in between.
        names = [path.name for path in self.path.iterdir()]
        if self.was_used() or (self.store_path / "store.json").exists():
            return True
        return all(map(_OUR_NAMES.fullmatch, names))


def is_alive(pid: int) -> bool:
    """True if a process with this pid exists: the original one, or a later one with the same pid."""
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
