"""Only one process at a time runs a job."""

import json
import os
import platform
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from bothways.errors import BothwaysError, InvalidInput, OutputExists
from bothways.jobs import files
from bothways.jobs.files import joined
from bothways.storage import disk_errors, held

# Stores have no locks: who runs the job says so every few seconds in a small file, and is believed a few times as long.
BEAT = "driver.json"
_SECONDS, _BELIEVED = 10.0, 40.0


@contextmanager
def held_by_one(folder: str) -> Iterator[None]:
    """Hold an output folder, which is created, while a job runs.

    Raises:
        InvalidInput: Another process holds it.
    """
    if not files.is_remote(folder):
        path = Path(folder)
        known = path.exists()
        if known and not path.is_dir():
            raise OutputExists(f"expected {folder!r} to be a folder, but it is a file. Choose another path.")
        with disk_errors(path, path):
            path.mkdir(parents=True, exist_ok=True)
        try:
            with held(folder, _refusal(folder)):
                yield
        except BaseException:
            if not known and not any(path.iterdir()):
                path.rmdir()
            raise
        return
    files.check_place(folder)
    if is_held(folder):
        raise InvalidInput(_refusal(folder))
    mark = uuid.uuid4().hex
    _beat(folder, mark)
    if _read(folder).get("mark") != mark:  # another one came at the same moment
        raise InvalidInput(_refusal(folder))
    try:
        with repeatedly(lambda: _beat(folder, mark), _SECONDS):
            yield
    finally:
        with suppress(InvalidInput, OSError):  # it is not believed for long
            files.remove(joined(folder, BEAT))


@contextmanager
def repeatedly(action: Callable[[], None], seconds: float) -> Iterator[None]:
    """Do something every few seconds until the block ends; if it fails, the next time may do."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(seconds):
            with suppress(BothwaysError, OSError):
                action()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def is_held(folder: str) -> bool:
    """Return True if a process holds an output folder."""
    if not files.is_remote(folder):
        try:
            with held(folder, "held"):
                return False
        except InvalidInput:
            return Path(folder).is_dir()
    written = _read(folder).get("time", 0.0)
    return isinstance(written, float) and abs(time.time() - written) < _BELIEVED


def _refusal(folder: str) -> str:
    return (
        f"another process is running the job in {folder!r}. Wait until it is done, or choose another output folder; if "
        f"it was killed, its hold on an object store ends within {_BELIEVED:.0f} seconds."
    )


def _read(folder: str) -> dict[str, object]:
    content = files.read(joined(folder, BEAT))
    try:
        known = json.loads(content or b"{}")
    except ValueError:
        known = {}
    return known if isinstance(known, dict) else {}


def _beat(folder: str, mark: str) -> None:
    known = {"mark": mark, "host": platform.node(), "process": os.getpid(), "time": time.time()}
    files.write(joined(folder, BEAT), json.dumps(known).encode())
