"""Processes that are killed by SIGKILL before one of their operations on files."""

import os
import signal
import sys

FILE_EVENTS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir"}


def killed_before_file_event(number, update):
    """Run ``update`` in a child that kills itself before its n-th call that touches files; whether it got that far."""
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
