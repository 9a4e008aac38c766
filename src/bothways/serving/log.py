"""The log of a server: one JSON object for each request, in a line on standard error."""

import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TextIO

import orjson


@dataclass(slots=True)
class RequestLog:
    """Writes lines to a stream; None writes nothing. A full disk loses lines, and never a request."""

    stream: TextIO | None = None

    def write(self, line: Mapping[str, object]) -> bool:
        """Write a line with the time of day (UTC); return False if it could not be written."""
        if self.stream is None:
            return True
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        try:
            self.stream.write(orjson.dumps({"time": now, **line}).decode() + "\n")
            self.stream.flush()
        except OSError:
            return False
        return True

    def failure(self, error: BaseException) -> None:
        """Write what failed, and where in the code; the message is left out, since it may quote texts."""
        frames = traceback.extract_tb(error.__traceback__)[-4:]
        where = [f"{frame.filename.rpartition('/')[2]}:{frame.lineno} {frame.name}" for frame in frames]
        self.write({"failure": type(error).__name__, "where": where})


def standard_error() -> RequestLog:
    """Return the log on standard error."""
    return RequestLog(sys.stderr)
