"""The log of a run: JSON Lines, each line on disk as soon as it is written."""

import json
from io import FileIO
from pathlib import Path
from types import TracebackType
from typing import Self

from bothways.errors import OutOfDisk
from bothways.storage import OUT_OF_ROOM


class TrainingLog:
    """Writes one JSON object a line; without a path it writes nothing.

    Args:
        path: The file; missing parent folders are made, an older file is replaced.
        keep_lines: Of an older file keep this many lines and write on after them. A resumed run passes the number that
            were there at its checkpoint, so that what was logged after it, and will be again, is not there twice.
    """

    def __init__(self, path: Path | None, *, keep_lines: int = 0) -> None:
        self.lines = 0
        self._path = path
        self._stream: FileIO | None = None  # unbuffered: a failed write must not be tried again on closing
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            if keep_lines and path.exists():
                self.lines = _truncate(path, keep_lines)
                self._stream = path.open("ab", buffering=0)
            else:
                self._stream = path.open("wb", buffering=0)

    def write(self, event: str, **values: object) -> None:
        """Append one event.

        Raises:
            OutOfDisk: The line could not be written.
        """
        if self._stream is None:
            return
        rest = (json.dumps({"event": event, **values}, allow_nan=False) + "\n").encode()
        try:
            while rest:
                rest = rest[self._stream.write(rest) :]
        except OSError as error:
            if error.errno in OUT_OF_ROOM:
                raise OutOfDisk(
                    f"no space left for the training log {self._path} ({error.strerror}): free some and resume."
                ) from error
            raise
        self.lines += 1

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._stream is not None:
            self._stream.close()


def _truncate(path: Path, keep_lines: int) -> int:
    """Cut the file after ``keep_lines`` whole lines; how many there really were."""
    kept = 0
    with path.open("rb+") as stream:
        end = 0
        for line in stream:
            if kept == keep_lines or not line.endswith(b"\n"):
                break
            kept += 1
            end += len(line)
        stream.truncate(end)
    return kept
