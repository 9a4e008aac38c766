"""Runs of several processes that find each other as torchrun's do, forked from one that has imported torch once.

Reads lines ``[folder, mode, count]`` from standard input, and answers each with exit codes and what the processes said;
the losses of each go to its folder.
"""

import errno
import json
import os
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import torch
import torch._dynamo  # which an optimizer imports
from training_toys import Toy, mlp, settings

from bothways.training.loop import train
from bothways.training.workers import joined
from forking import forked

STOP_AT = 6
SPLITS = (3, 2, 2, 1)


def interrupted(number):
    """Send the process a signal in a certain call of the loss."""
    if number == STOP_AT:
        os.kill(os.getpid(), signal.SIGINT)


def gone(number):
    """End the process in a certain call of the loss, without a word."""
    if number == STOP_AT:
        os._exit(9)


def full():
    """Let the disk be full for this process after a few files."""
    real, calls = os.fsync, []

    def fsync(handle):
        calls.append(handle)
        if len(calls) > STOP_AT // 2:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(handle)

    os.fsync = fsync


def gone_within(seconds):
    """The process's threads, once those of the group are gone: they would abort the process at its end, now and then.

    The kernel lists a thread for some milliseconds after it was joined.
    """
    until = time.monotonic() + seconds
    while True:
        names = []
        for task in Path("/proc/self/task").glob("*/comm"):
            with suppress(FileNotFoundError, ProcessLookupError):  # gone between the listing and the reading
                names.append(task.read_text().strip())
        if not any("gloo" in name for name in names) or time.monotonic() > until:
            return names
        time.sleep(0.01)


def work(folder, mode):
    """Train as one of the processes."""
    with joined() as workers:
        if mode == "full" and workers.rank:
            full()
        last = workers.rank == workers.count - 1
        on_loss = {"interrupt": interrupted, "die": gone}.get(mode, lambda _: None) if last else lambda _: None
        dropout = 0.3 if "dropout" in folder.name else 0.0
        toy = Toy(
            module=mlp(dropout), splits=SPLITS, on_loss=on_loss, order_seed=4 if mode == "disagree" and last else 3
        )
        if last:  # the weights of the first process count
            toy.module[0].weight.data += mode != "plain"
        kept = {"checkpoints": folder / "c", "checkpoint_every_updates": 1, "log": folder / "log.jsonl"}
        kept["shard"] = "shard" in folder.name
        record = train(toy, settings(**kept, resume=mode == "resume"))
    summary = {"losses": record.losses, "scores": [each.score for each in record.validations]}
    weights = {name: value.tolist() for name, value in toy.module.state_dict().items()}
    left = gone_within(5.0)
    more = {
        "threads": left,
        "resumed_from": record.resumed_from,
        "interrupted": record.interrupted,
        "updates": record.updates,
    }
    (folder / f"{mode}-{workers.rank}.json").write_text(json.dumps({**summary, **more, "weights": weights}))


def ran(folder, mode, count):
    """Train in so many processes; their exit codes, and what they said."""
    said = [folder / f"{mode}-{rank}.txt" for rank in range(count)]

    def speaking(rank):
        with said[rank].open("w") as stream:
            os.dup2(stream.fileno(), sys.stderr.fileno())
        work(folder, mode)

    codes = forked(count, speaking)
    return codes, [each.read_text() for each in said]


def main():
    torch.set_num_threads(1)
    for line in sys.stdin:
        folder, mode, count = json.loads(line)
        print(json.dumps(ran(Path(folder), mode, count)), flush=True)


if __name__ == "__main__":
    main()
