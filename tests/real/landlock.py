"""Run a program that may write only beneath one directory (and /dev), by Landlock: landlock.py WRITABLE PROGRAM ..."""

from __future__ import annotations

import ctypes
import os
import struct
import sys

_CREATE, _ADD, _RESTRICT = 444, 445, 446
_WRITE = sum(1 << bit for bit in (1, 4, 5, 6, 7, 8, 9, 10, 11, 12))
_NO_NEW_PRIVS = 38
_libc = ctypes.CDLL(None, use_errno=True)


def call(*arguments: object) -> int:
    done = int(_libc.syscall(*arguments))
    if done < 0:
        raise OSError(ctypes.get_errno(), "Landlock")
    return done


def restrict(writable: str) -> None:
    rules = call(_CREATE, struct.pack("QQ", _WRITE, 0), 8, 0)
    for place in (writable, "/dev"):
        call(_ADD, rules, 1, struct.pack("=Qi", _WRITE, os.open(place, os.O_PATH)), 0)
    _libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    call(_RESTRICT, rules, 0)


if __name__ == "__main__":
    restrict(sys.argv[1])
    os.execvp(sys.argv[2], sys.argv[2:])
