"""Runs the given program so that it dies with its parent, on systems that support this (Linux).

This file is run as a script, not imported: ``child.py PARENT_PID LOCK PROGRAM ARGUMENTS…``. The script is a separate
program, because a process with threads must not run code between fork and exec.

LOCK is the descriptor of a locked file, into which this writes its pid. The program inherits it, and so holds the lock
until it ends.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        import ctypes

        # Let the kernel kill this process when the sidecar dies, even after ``exec``. A hanging server ignores signals
        # other than SIGKILL.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has died")
    os.truncate(int(sys.argv[2]), 0)
    os.write(int(sys.argv[2]), b"%d" % os.getpid())
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606 - the sidecar's own command, no shell
