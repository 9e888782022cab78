"""Watch every call by which a store in this process changes the disk: to record, fail or slow it.

Python calls the functions of ``os``, which are replaced while ``watching`` lasts. SQLite calls its own file layer, the
VFS, whose function table is reached with ``ctypes``. So neither strace nor a compiler is needed. Only files below
``root`` are watched.

SQLite's shared-memory index (``-shm``) is mapped memory, so its changes are not seen; SQLite rebuilds it when opened.
"""

# pathlib is built on what is replaced here
# ruff: noqa: PTH100, PTH112, PTH116, PTH120
from __future__ import annotations

import ctypes
import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from threading import RLock
from typing import Any, Literal

Kind = Literal["create", "write", "sync", "truncate", "rename", "unlink", "mkdir", "rmdir", "sync directory"]


@dataclass(frozen=True, slots=True)
class Call:
    """One change to the disk, about to be made. ``file`` identifies a file even if it is renamed."""

    kind: Kind
    path: str
    file: int = 0
    offset: int = 0
    data: bytes = b""
    size: int = 0
    """The size after a truncation."""
    to: str = ""
    """The new name that a rename gives."""
    by: Literal["python", "sqlite"] = "python"


Watcher = Callable[[Call], None]
"""Called before each call. If it raises an ``OSError``, the call changes nothing and raises that error."""


class ShortWrite(OSError):
    """Raised by a watcher to make a write fail after its first ``size`` bytes."""

    def __init__(self, code: int, size: int) -> None:
        super().__init__(code, os.strerror(code))
        self.size = size


class _State:
    """The current watch; one at a time in a process."""

    watcher: Watcher | None = None
    root = ""
    lock = RLock()


@contextmanager
def watching(root: Path, watcher: Watcher) -> Iterator[None]:
    """Call ``watcher`` before each change below ``root``, from any thread."""
    assert _State.watcher is None, "one at a time"
    files = _PythonFiles()
    originals = {name: getattr(os, name) for name in _PythonFiles.REPLACED}
    library = _Sqlite.loaded()
    _State.root, _State.watcher = f"{root}/", watcher
    for name in originals:
        setattr(os, name, getattr(files, name))
    library.replace()
    try:
        yield
    finally:
        library.restore()
        for name, original in originals.items():
            setattr(os, name, original)
        _State.watcher = None


def _tell(call: Call) -> None:
    if _State.watcher is not None:
        _State.watcher(call)


_numbers: dict[tuple[int, int], int] = {}
_next_number = count(1)


def _number(path: str | int) -> int:
    """The number of an existing file, the same for Python and SQLite."""
    found = os.stat(path)
    place = (found.st_dev, found.st_ino)
    if place not in _numbers:
        _numbers[place] = next(_next_number)
    return _numbers[place]


def _created(path: str) -> None:
    """Note a new file: the disk may give it the number of a deleted one."""
    found = os.stat(path)
    _numbers[found.st_dev, found.st_ino] = next(_next_number)


def _is_watched(path: str) -> bool:
    return f"{path}/".startswith(_State.root)


class _PythonFiles:
    """The functions of ``os`` that change files, reporting before they do."""

    REPLACED = (
        "open", "close", "write", "pwrite", "ftruncate", "fsync", "fdatasync", "fdopen",
        "replace", "rename", "unlink", "remove", "mkdir", "rmdir",
    )  # fmt: skip

    def __init__(self) -> None:
        self._real = {name: getattr(os, name) for name in self.REPLACED}
        self._open: dict[int, str] = {}

    def _path(self, path: Any, dir_fd: int | None = None) -> str:
        name = os.fspath(path)
        if isinstance(name, bytes):
            name = os.fsdecode(name)
        if dir_fd is not None:
            name = f"{self._open.get(dir_fd, '')}/{name}"
        return os.path.abspath(name)

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        where = self._path(path, dir_fd)
        if not _is_watched(where):
            return self._real["open"](path, flags, mode, dir_fd=dir_fd)  # type: ignore[no-any-return]
        is_new = bool(flags & os.O_CREAT) and not os.path.lexists(where)
        if is_new:
            _tell(Call("create", where))
        elif flags & os.O_TRUNC and os.stat(where).st_size:
            _tell(Call("truncate", where, _number(where)))
        fd: int = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        if is_new:
            _created(where)
        self._open[fd] = where
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        self._real["close"](fd)

    def write(self, fd: int, data: Any) -> int:
        if fd in self._open:
            appends = self._flags(fd) & os.O_APPEND
            offset = os.fstat(fd).st_size if appends else os.lseek(fd, 0, os.SEEK_CUR)
            self._told_write(fd, bytes(data), offset, lambda part: self._real["write"](fd, part))
        return self._real["write"](fd, data)  # type: ignore[no-any-return]

    def pwrite(self, fd: int, data: Any, offset: int) -> int:
        if fd in self._open:
            self._told_write(fd, bytes(data), offset, lambda part: self._real["pwrite"](fd, part, offset))
        return self._real["pwrite"](fd, data, offset)  # type: ignore[no-any-return]

    def _flags(self, fd: int) -> int:
        return fcntl.fcntl(fd, fcntl.F_GETFL)

    def _told_write(self, fd: int, data: bytes, offset: int, write: Callable[[bytes], Any]) -> None:
        try:
            _tell(Call("write", self._open[fd], _number(fd), offset, data))
        except ShortWrite as short:
            write(data[: short.size])
            raise

    def ftruncate(self, fd: int, size: int) -> None:
        if fd in self._open:
            _tell(Call("truncate", self._open[fd], _number(fd), size=size))
        self._real["ftruncate"](fd, size)

    def fsync(self, fd: int) -> None:
        self._told_sync(fd)
        self._real["fsync"](fd)

    def fdatasync(self, fd: int) -> None:
        self._told_sync(fd)
        self._real["fdatasync"](fd)

    def _told_sync(self, fd: int) -> None:
        if fd in self._open:
            where = self._open[fd]
            _tell(Call("sync directory", where) if os.path.isdir(where) else Call("sync", where, _number(fd)))

    def fdopen(self, fd: int, mode: str = "r", *rest: Any, **more: Any) -> Any:
        if fd in self._open and mode == "wb":
            return _File(self, fd)
        return self._real["fdopen"](fd, mode, *rest, **more)

    def replace(self, src: Any, dst: Any, **more: Any) -> None:
        self._rename("replace", src, dst, **more)

    def rename(self, src: Any, dst: Any, **more: Any) -> None:
        self._rename("rename", src, dst, **more)

    def _rename(self, name: str, src: Any, dst: Any, **more: Any) -> None:
        where = self._path(src)
        if _is_watched(where):
            _tell(Call("rename", where, _number(where), to=self._path(dst)))
        self._real[name](src, dst, **more)

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("unlink", path, dir_fd)

    def remove(self, path: Any, *, dir_fd: int | None = None) -> None:
        self._remove("remove", path, dir_fd)

    def _remove(self, name: str, path: Any, dir_fd: int | None) -> None:
        where = self._path(path, dir_fd)
        if _is_watched(where) and os.path.lexists(where):
            _tell(Call("unlink", where))
        self._real[name](path, dir_fd=dir_fd)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        where = self._path(path, dir_fd)
        if _is_watched(where) and not os.path.lexists(where) and os.path.isdir(os.path.dirname(where)):
            _tell(Call("mkdir", where))
        self._real["mkdir"](path, mode, dir_fd=dir_fd)

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        where = self._path(path, dir_fd)
        if _is_watched(where):
            _tell(Call("rmdir", where))
        self._real["rmdir"](path, dir_fd=dir_fd)


class _File:
    """Replaces the result of ``os.fdopen(fd, "wb")``, whose writes would be unseen; writes through ``os.write``."""

    def __init__(self, files: _PythonFiles, fd: int) -> None:
        self._files, self._fd = files, fd

    def __enter__(self) -> _File:
        return self

    def __exit__(self, *error: object) -> None:
        self._files.close(self._fd)

    def write(self, data: bytes) -> int:
        return self._files.write(self._fd, data)


# SQLite's file layer (https://sqlite.org/vfs.html); only what is replaced has a type

_OPEN = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_int)
)
_DELETE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int)
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_int64)
_TRUNCATE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int64)
_SYNC = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_int)


class _Vfs(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("file_size", ctypes.c_int),
        ("path_size", ctypes.c_int),
        ("next", ctypes.c_void_p),
        ("name", ctypes.c_char_p),
        ("app_data", ctypes.c_void_p),
        ("open", _OPEN),
        ("delete", _DELETE),
    )


class _Methods(ctypes.Structure):
    _fields_ = (
        ("version", ctypes.c_int),
        ("close", ctypes.c_void_p),
        ("read", ctypes.c_void_p),
        ("write", _WRITE),
        ("truncate", _TRUNCATE),
        ("sync", _SYNC),
        ("rest", ctypes.c_void_p * 13),
    )


_OK, _FULL = 0, 13
_IOERR_WRITE, _IOERR_FSYNC, _IOERR_TRUNCATE, _IOERR_DELETE, _CANTOPEN = 778, 1034, 1546, 2570, 14
_IS_LOG = 0x00000800 | 0x00004000 | 0x00080000
"""Journals of any kind: their first sync makes their name durable."""


def _code(error: OSError, code: int) -> int:
    return _FULL if error.errno == errno.ENOSPC else code


class _Sqlite:
    """The functions of SQLite's default VFS that change files."""

    _one: _Sqlite | None = None

    @classmethod
    def loaded(cls) -> _Sqlite:
        if cls._one is None:
            cls._one = cls()
        return cls._one

    def __init__(self) -> None:
        import _sqlite3

        # The library that Python's own module uses, be it linked into it or next to it.
        library = ctypes.CDLL(getattr(_sqlite3, "__file__", None))
        library.sqlite3_vfs_find.restype = ctypes.POINTER(_Vfs)
        library.sqlite3_vfs_find.argtypes = [ctypes.c_char_p]
        library.sqlite3_initialize()
        self._vfs: _Vfs = library.sqlite3_vfs_find(None).contents
        self._real_open = _OPEN(ctypes.cast(self._vfs.open, ctypes.c_void_p).value or 0)
        self._real_delete = _DELETE(ctypes.cast(self._vfs.delete, ctypes.c_void_p).value or 0)
        self._open, self._delete = _OPEN(self._on_open), _DELETE(self._on_delete)
        self._replaced: dict[int, _Methods] = {}
        """Keyed by the address of SQLite's own table. Never dropped, because a file may still point to it."""
        self._callbacks: list[Any] = []
        self._paths: dict[int, str] = {}
        self._unnamed: set[int] = set()

    def replace(self) -> None:
        self._vfs.open, self._vfs.delete = self._open, self._delete

    def restore(self) -> None:
        self._vfs.open, self._vfs.delete = self._real_open, self._real_delete

    def _on_open(self, vfs: int, name: int | None, file: int, flags: int, out: Any) -> int:
        path = os.fsdecode(ctypes.string_at(name)) if name else ""
        if not path or not _is_watched(path):
            return self._real_open(vfs, name, file, flags, out)  # type: ignore[no-any-return]
        is_new = not os.path.lexists(path)
        if is_new and flags & 4:  # SQLITE_OPEN_CREATE
            try:
                _tell(Call("create", path, by="sqlite"))
            except OSError:
                return _CANTOPEN
        code: int = self._real_open(vfs, name, file, flags, out)
        if code == _OK:
            if is_new:
                _created(path)
            self._paths[file] = path
            if flags & 4 and flags & _IS_LOG:  # whether it was there or not
                self._unnamed.add(file)
            else:
                self._unnamed.discard(file)
            methods = ctypes.cast(file, ctypes.POINTER(ctypes.c_void_p))
            if methods[0] is not None:
                methods[0] = ctypes.addressof(self._ours(methods[0]))
        return code

    def _ours(self, address: int) -> _Methods:
        found = self._replaced.get(address)
        if found is not None:
            return found
        real = _Methods.from_address(address)
        ours = self._replaced[address] = _Methods.from_buffer_copy(real)
        write, truncate, sync = real.write, real.truncate, real.sync

        def on_write(file: int, data: int, size: int, offset: int) -> int:
            try:
                self._tell("write", file, offset=offset, data=lambda: ctypes.string_at(data, size))
            except ShortWrite as short:
                write(file, data, short.size, offset)
                return _code(short, _IOERR_WRITE)
            except OSError as error:
                return _code(error, _IOERR_WRITE)
            return write(file, data, size, offset)  # type: ignore[no-any-return]

        def on_truncate(file: int, size: int) -> int:
            try:
                self._tell("truncate", file, size=size)
            except OSError as error:
                return _code(error, _IOERR_TRUNCATE)
            return truncate(file, size)  # type: ignore[no-any-return]

        def on_sync(file: int, flags: int) -> int:
            try:
                self._tell("sync", file)
                if file in self._unnamed and _State.watcher is not None:
                    self._unnamed.discard(file)
                    _tell(Call("sync directory", os.path.dirname(self._paths[file]), by="sqlite"))
            except OSError as error:
                return _code(error, _IOERR_FSYNC)
            return sync(file, flags)  # type: ignore[no-any-return]

        ours.write, ours.truncate, ours.sync = _WRITE(on_write), _TRUNCATE(on_truncate), _SYNC(on_sync)
        self._callbacks += [ours.write, ours.truncate, ours.sync, real]
        self._replaced[ctypes.addressof(ours)] = ours
        return ours

    def _tell(self, kind: Kind, file: int, *, data: Callable[[], bytes] | None = None, **more: Any) -> None:
        path = self._paths.get(file, "")
        # A file of an earlier watching that is still open may lie elsewhere.
        if _State.watcher is None or not path or not _is_watched(path) or path.endswith("-shm"):
            return
        content = data() if data is not None else b""
        _tell(Call(kind, path, _number(path), data=content, by="sqlite", **more))

    def _on_delete(self, vfs: int, name: bytes, sync: int) -> int:
        path = os.fsdecode(name)
        if _is_watched(path) and os.path.lexists(path) and not path.endswith("-shm"):
            try:
                _tell(Call("unlink", path, by="sqlite"))
            except OSError:
                return _IOERR_DELETE
        code: int = self._real_delete(vfs, name, sync)
        if code == _OK and sync and _is_watched(path):
            _tell(Call("sync directory", os.path.dirname(path), by="sqlite"))
        return code
