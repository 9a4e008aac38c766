"""Files that are cut into blocks, and jobs over them."""

import json
import os
import subprocess
import sys
from pathlib import Path

from bothways.data import read_rows
from bothways.data.formats import FileSettings
from bothways.jobs.blocks import blocks_of, plan
from bothways.jobs.files import found_files
from bothways.jobs.reading import chunks, lines_above

SOURCES = Path(__file__).resolve().parents[2] / "src"


def settings(**how):
    return FileSettings(**{"format": None, "encoding": None, **how})


def blocks_in(*paths, size=2**20, **how):
    """The blocks of files."""
    return list(blocks_of(plan(found_files([*map(str, paths)]), settings(**how), size)))


def read_in_blocks(*paths, size=2**20, columns=None, **how):
    """Line and values of the rows of files as their blocks give them, and line and reason of what is rejected."""
    rows, rejected = [], []
    blocks = blocks_in(*paths, size=size, **how)
    for block in blocks:
        above = lines_above(block.file.state.url, [each for each in blocks if each.file == block.file])[block.number]
        for chunk in chunks(block, columns):
            rows += [(row.number + above, row.values) for row in chunk.rows]
            rejected += [(each.line and each.line + above, each.reason) for each in chunk.rejected]
    return rows, rejected


def read_whole(path, **how):
    """Line and values of the rows of a file as `read_rows` gives them."""
    return [(row.number, row.values) for row in read_rows(str(path), **how)]


def written(path, content):
    """The path of a file with this content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def jsonl(path, rows):
    return written(path, "".join(json.dumps(row) + "\n" for row in rows))


def texts(count, start=0):
    """Rows with an id and a text of the words of tiny models."""
    return [
        {"id": f"r{n}", "text": " ".join(f"w{5 + (n * 7 + k) % 50}" for k in range(1 + n % 6))}
        for n in range(start, start + count)
    ]


def lines_in(path):
    return [json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines()]


def program(*words, **environment):
    """A process with the command line, in a group of its own."""
    command = [sys.executable, "-m", "bothways", *map(str, words)]
    path = os.pathsep.join([str(SOURCES), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,
    )


def leftovers(folder):
    """What unfinished outputs left behind."""
    return [path for path in folder.rglob("*") if path.name.startswith(".") or "unfinished" in path.name]
