"""Becomes the program it is told to, and dies with its parent where the system can do that (Linux).

Run as a script, not imported: ``child.py PARENT_PID PROGRAM ARGUMENTS…``. What
is between fork and exec of a process with threads had better be a program of its own.
"""

import os
import signal
import sys

_PR_SET_PDEATHSIG = 1

if __name__ == "__main__":
    if sys.platform == "linux":
        import ctypes

        # Kept across exec. SIGKILL, since a server that hangs would not heed anything else.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(sys.argv[1]):
        sys.exit("the parent has died")
    os.execv(sys.argv[2], sys.argv[2:])  # noqa: S606 - the sidecar's own command, no shell
