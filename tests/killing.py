"""Updates that die before one of their operations on files, as by SIGKILL."""

import os
import signal
import sys

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


class Killed(BaseException):
    """The end of an update that no handler can undo: until it is out, every further operation on files raises too."""


_left: list[int] = []
_watched: list[bool] = []


def _count(event, _arguments):
    # After the death nothing may touch a file any more; two names are exchanged through ctypes.
    if _left and (event in FILE_EVENTS or (_left[0] <= 0 and event == "ctypes.call_function")):
        _left[0] -= 1
        if _left[0] <= 0:
            raise Killed


def died_before_file_event(number, update):
    """Run ``update`` until just before its n-th operation on files; return whether it got that far."""
    if not _watched:
        _watched.append(True)
        sys.addaudithook(_count)
    _left.append(number)
    try:
        update()
    except Killed:
        return True
    finally:
        _left.clear()
    return False


def die():
    """End the update of `died_before_file_event` here."""
    _left[:] = [0]
    raise Killed


def killed_before_file_event(number, update):
    """Do the same in a child process that kills itself, which also loses what its buffers hold."""
    child = os.fork()
    if child == 0:
        seen = 0

        def count(event, _arguments):
            nonlocal seen
            if event in FILE_EVENTS:
                seen += 1
                if seen == number:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(count)
        update()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0
