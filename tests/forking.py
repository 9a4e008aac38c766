"""Processes forked from one that has imported torch, which find each other as those of torchrun do; free ports."""

import os
import socket
import sys


def free_port():
    """A port of this machine that no process listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def forked(count, work):
    """Call ``work`` with the rank in each of so many processes; their exit codes, 1 after an error that was shown."""
    children, port = [], free_port()
    for rank in range(count):
        child = os.fork()
        if child == 0:
            os.environ |= {"WORLD_SIZE": str(count), "RANK": str(rank), "LOCAL_RANK": str(rank)}
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            code = 0
            try:
                work(rank)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                code = 1
            sys.stderr.flush()
            os._exit(code)
        children.append(child)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
