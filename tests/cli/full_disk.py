"""Commands that write, on a disk that fills up: ``full_disk.py DISK FILES`` mounts a small file system at DISK.

It has to run where it may mount one (``unshare -rm``), prints a JSON object for each command and each amount of room
that was left, and is gone with the process.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from command_line import call, write_jsonl


def commands(files, run, index, disk):
    """Words of the commands that write, by name; ``add`` and ``delete`` change a copy of the index at ``disk``."""
    more = write_jsonl(files / "more.jsonl", [{"text": f"w{n} w7", "id": f"n{n}"} for n in range(5, 25)])
    pairs = [{"text_a": f"w{n} w7", "text_b": f"w{n} w8", "score": 0.5} for n in range(5, 15)]
    data = ("--data", files / "test.jsonl.gz")
    train = ("--epochs", 1, "--device", "cpu", "--output", disk / "new" / "run", "--train")
    tiny = ("--model", files / "tiny")
    return {
        "search build": ["search", "build", *tiny, *data, "--output", disk / "new" / "index"],
        "search add": ["search", "add", disk / "index", "--data", more],
        "search delete": ["search", "delete", disk / "index", "--id", "r1", "r2"],
        "predict": ["predict", run, *data, "--output", disk / "new" / "o.jsonl"],
        "predict to csv.gz": ["predict", run, *data, "--output", disk / "new" / "o.csv.gz", "--keep"],
        "embed": ["embed", files / "tiny", *data, "--output", disk / "new" / "o.npy"],
        "embed to jsonl": ["embed", files / "tiny", *data, "--output", disk / "new" / "o.jsonl"],
        "evaluate --report": ["evaluate", run, *data, "--report", disk / "new" / "o.html"],
        "export": ["export", run, "--format", "safetensors", "--output", disk / "new" / "export"],
        "export to ONNX": ["export", run, "--format", "onnx", "--output", disk / "new" / "export"],
        "ensemble": ["ensemble", run, run, "--output", disk / "new" / "ensemble"],
        "train": ["train", "classification", *tiny, *train, files / "train.jsonl.gz"],
        "pretrain": [
            *("pretrain", "--recipe", "modernbert", "--tokenizer", tiny[1], "--length", 24, "--batch-size", 4),
            *("--updates", 2, "--device", "cpu", "--output", disk / "new" / "run", *data),
        ],
        "train embedding": [
            *("train", "embedding", *tiny, "--no-checkpoints", *train),
            write_jsonl(files / "pairs.jsonl", pairs),
        ],
    }


def contents(folder):
    """Path and bytes of everything in a folder, but for what fills it and what an unfinished training goes on from."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
        if path.name != "filler" and not any(part.endswith((".checkpoints", ".shards")) for part in path.parts)
    }


def unfinished(folder):
    """Temporary files and folders, wherever they lie."""
    return sorted(str(path) for path in folder.rglob(".*") if path.name.endswith((".unfinished", ".replaced")))


def begin(disk, index, name):
    """Empty the disk, but for an index where the command changes one."""
    for path in disk.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if name in ("search add", "search delete"):
        shutil.copytree(index, disk / "index")


def fill(disk, left):
    """Leave so much room."""
    found = os.statvfs(disk)
    with (disk / "filler").open("wb", buffering=0) as stream:
        stream.write(bytes(max(0, found.f_bavail * found.f_frsize - left)))


def works(disk, name):
    """Whether the index that a command says to have written can be searched."""
    if not name.startswith("search"):
        return True
    index = disk / "new" / "index" if name == "search build" else disk / "index"
    return call("search", "query", index, "w6", "--mode", "hybrid", "--json").code == 0


def tried(disk, index, name, words, left):
    """Run a command with so much room; what came of it."""
    begin(disk, index, name)
    fill(disk, left)
    before = contents(disk)
    outcome = call(*words)
    whole = works(disk, name) if outcome.code == 0 else contents(disk) in (before, {**before, "new": None})
    return {
        "name": name,
        "left": left,
        "code": outcome.code,
        "said": outcome.err,
        "whole": whole,
        "rest": unfinished(disk),
    }


def main(disk, files, run, index):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=96m", "tmpfs", disk], check=True)
    for name, words in commands(files, run, index, disk).items():
        begin(disk, index, name)
        empty = os.statvfs(disk).f_bfree
        done = call(*words)
        assert done.code == 0, (name, done.err)
        pages = empty - os.statvfs(disk).f_bfree
        # Every page of a small output; of a larger one, as many places.
        for left in sorted({round(max(pages, 8) * step / 8) for step in range(8)}):
            print(json.dumps(tried(disk, index, name, words, left * 4096)), flush=True)


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
