"""Trainings whose processes Ray Train starts, as ``torchrun`` would: each worker runs the words of the command.

The command itself computes nothing. The output of the first worker comes to it through an actor, and Ctrl-C goes the
same way to the workers, which then write a checkpoint. If a worker dies, Ray starts all of them again, and they resume.
"""

import io
import math
import os
import re
import sys
import tempfile
import threading
import time
import traceback
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from bothways.cli.options import usage_error
from bothways.cli.printing import FAILED, interrupted_code, note
from bothways.errors import PROCESS_ENDED, InvalidInput, MissingDependency, WorkerLost
from bothways.interrupts import Interrupts, interrupt
from bothways.ray_cluster import be_quiet, connected, reason

if TYPE_CHECKING:
    from ray.actor import ActorHandle
    from ray.train.torch import TorchTrainer

    from bothways.cli.training.run import RunOptions

    Main = Callable[[Sequence[str]], int]

_RESTARTS = 3
# Seconds between two looks at the output, for the first worker to end after an error of another one, and for collective
# operations, as while one process encodes a corpus.
_LOOK, _GRACE, _PATIENCE = 0.2, 5.0, 2 * 24 * 3600
# Seconds after which the command says that it is waiting for the cluster.
_WAITING = 60.0
# Exit code of a worker that ended because another one was gone.
_LOST = -1
_SETTINGS = {
    "RAY_TRAIN_V2_ENABLED": "1",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "600",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
}
_OPTION = re.compile(r"--(ray|workers)(=.*)?", re.DOTALL)
_AGAIN = "The same command with --resume goes on from the last checkpoint."


def train_on_ray(given: "RunOptions", words: Sequence[str], main: "Main") -> int:
    """Run a command in workers of Ray Train, and return its exit code.

    Raises:
        MissingDependency: Ray is not installed.
        InvalidInput: There is no cluster, or it has too few GPUs.
        WorkerLost: Workers died again and again, or Ray gave up.
    """
    if given.ray is None:
        raise usage_error("--workers is for Ray: give --ray too, or start the processes with torchrun.")
    if "RANK" in os.environ:
        raise usage_error("--ray starts the processes itself, as torchrun does: drop one of the two.")
    if any(re.fullmatch("(--[^=]*=)?-", each) for each in words):
        raise usage_error("standard input (-) does not reach the processes that Ray starts: give a file.")
    be_quiet()
    os.environ.update(_SETTINGS)
    try:
        import ray
        import ray.train.torch
    except ImportError as error:
        raise MissingDependency.of("ray", extra="ray", purpose="training on Ray") from error
    with tempfile.TemporaryDirectory() as folder, connected(ray, given.ray):
        if ray.util.client.ray.is_connected():
            raise InvalidInput(
                "RAY_ADDRESS: no training goes through Ray's client (ray://...). Run it on a machine of the cluster."
            )
        trainer = _trainer(ray, given, words, folder)
        here = {ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()}
        relay = ray.remote(num_cpus=0, label_selector=here)(Relay).remote()
        work = partial(run_worker, relay=relay, folder=Path.cwd(), words=without_ray(words), main=main)
        try:
            return _followed(ray, relay, trainer(work))
        except ray.exceptions.RayError as error:
            raise WorkerLost(f"Ray gave the training up: {reason(error)} {_AGAIN}") from error


def without_ray(words: Sequence[str]) -> list[str]:
    """Return the words of a command without ``--ray`` and ``--workers``.

    >>> without_ray(["adapt", "--ray", "local", "--workers=2", "--", "--ray"])
    ['adapt', '--', '--ray']
    """
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if word == "--":
            return [*kept, word, *rest]
        if (option := _OPTION.fullmatch(word)) is None:
            kept.append(word)
        elif option[2] is None:
            next(rest, None)
    return kept


def resuming(words: Sequence[str]) -> list[str]:
    """Return the words of a command with ``--resume``.

    >>> resuming(["adapt", "--", "-1.txt"])
    ['adapt', '--resume', '--', '-1.txt']
    """
    end = list(words).index("--") if "--" in words else len(words)
    return [*words[:end], "--resume", *words[end:]]


def _trainer(
    ray: ModuleType, given: "RunOptions", words: Sequence[str], folder: str
) -> "Callable[[Callable[[], None]], TorchTrainer]":
    """Return a maker of trainers for the cores or GPUs of the cluster."""
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    resources = ray.cluster_resources()
    on_cpu = re.search(r"--device[= ]cpu\b", " ".join(words))
    gpus = 0 if on_cpu else int(resources.get("GPU", 0))
    workers = given.workers or gpus or sum(each["Alive"] for each in ray.nodes())
    if 0 < gpus < workers:
        raise InvalidInput(f"expected at most --workers {gpus}, the GPUs of the cluster, got {workers}.")
    cores = resources.get("CPU", 1.0)
    threads = os.environ.get("OMP_NUM_THREADS") or str(max(1, int(cores / workers)))
    note(f"Ray starts {workers} processes with {threads} threads each.")
    # A run that replaces another one must not resume that one.
    restarts = 0 if given.overwrite else _RESTARTS
    return partial(
        TorchTrainer,
        scaling_config=ScalingConfig(
            num_workers=workers,
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": min(1.0, int(100 * cores / workers) / 100)},
            placement_strategy="SPREAD",
        ),
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpus else "gloo", timeout_s=_PATIENCE),
        run_config=RunConfig(
            storage_path=folder,
            failure_config=FailureConfig(max_failures=restarts),
            worker_runtime_env={"env_vars": {"OMP_NUM_THREADS": threads}},
        ),
    )


class Relay:
    """An actor between the workers and the command that started them."""

    def __init__(self) -> None:
        self._written: list[tuple[int, str, str]] = []
        self._begun: set[int] = set()
        self._codes: dict[int, int] = {}
        self._signal: int | None = None

    def begin(self, rank: int) -> bool | None:
        """Return False for a worker that begins, True for one that begins again, None if the command ends."""
        if self._signal or self._codes.get(0, _LOST) >= 0 or any(code > 0 for code in self._codes.values()):
            return None
        again = rank in self._begun
        self._codes.pop(rank, None)
        self._begun.add(rank)
        return again

    def write(self, rank: int, stream: str, text: str) -> None:
        """Take a text that a worker writes."""
        self._written.append((rank, stream, text))

    def end(self, rank: int, code: int) -> None:
        """Take the exit code of a worker."""
        self._codes[rank] = code

    def interrupt(self, number: int) -> None:
        """Note that the command was interrupted."""
        self._signal = number

    def signal(self) -> int | None:
        """Return the number of the signal that interrupted the command, or None."""
        return self._signal

    def take(self) -> tuple[list[tuple[int, str, str]], dict[int, int], int]:
        """Return the output of workers since the last call, exit codes of those that ended, how many have begun."""
        written, self._written = self._written, []
        return written, dict(self._codes), len(self._begun)


class _Voice(io.TextIOBase):
    """Standard output or standard error of a worker."""

    def __init__(self, send: Callable[[str], object]) -> None:
        self._send = send
        self.lost = False

    def write(self, text: str) -> int:
        if PROCESS_ENDED in text:
            self.lost = True  # the workers begin again, or the command ends with its own message
        else:
            self._send(text)
        return len(text)


def run_worker(*, relay: "ActorHandle", folder: Path, words: Sequence[str], main: "Main") -> None:
    """Run the command in a worker of Ray Train.

    Raises:
        RuntimeError: The command failed, so that Ray ends the other workers.
    """
    import ray
    from ray import train

    rank = train.get_context().get_world_rank()
    if (again := ray.get(relay.begin.remote(rank))) is None:
        return
    os.chdir(folder)
    ended = threading.Event()
    threading.Thread(target=_listen, args=(ray, relay, ended), daemon=True).start()
    out, err = (_Voice(partial(relay.write.remote, rank, name)) for name in ("stdout", "stderr"))
    with redirect_stdout(out), redirect_stderr(err):
        if again:
            note("A process was lost: the training goes on from the last checkpoint.", always=True)
        try:
            code = main(resuming(words) if again else words)
        except BaseException:
            traceback.print_exc()
            code = FAILED
    ended.set()
    ray.get(relay.end.remote(rank, _LOST if err.lost and code else code))
    if 0 < code < interrupted_code(None):
        raise RuntimeError(f"the command ended with exit code {code}.")


def _listen(ray: ModuleType, relay: "ActorHandle", ended: threading.Event) -> None:
    """Pass an interruption of the command on to the training."""
    while not ended.wait(_LOOK):
        if (number := ray.get(relay.signal.remote())) is not None:
            interrupt(number)
            return


def _followed(ray: ModuleType, relay: "ActorHandle", trainer: "TorchTrainer") -> int:
    """Print what the first worker prints until the training ends, and return its exit code."""
    ended: list[Exception | None] = []
    threading.Thread(target=_fit, args=(trainer, ended), daemon=True).start()
    errors: defaultdict[int, str] = defaultdict(str)
    until, told, over = math.inf, False, False
    waiting = time.monotonic() + _WAITING
    with Interrupts() as interrupts:
        while not over:
            time.sleep(_LOOK)
            over = bool(ended) or time.monotonic() > until
            written, codes, begun = ray.get(relay.take.remote())
            if not begun and time.monotonic() > waiting:
                note("no process has begun yet: the cluster may be full, see 'ray status'. Still waiting.", always=True)
                waiting = math.inf
            for rank, stream, text in written:
                errors[rank] += text if stream == "stderr" else ""
                if rank == 0:
                    print(text, end="", file=getattr(sys, stream), flush=True)
            failed = {rank: code for rank, code in codes.items() if 0 < code < interrupted_code(None)}
            if failed:
                until = min(until, time.monotonic() + (0 if 0 in failed else _GRACE))
            if interrupts.requested and not told:
                relay.interrupt.remote(interrupts.received)
                told, over = True, over or not begun
    if failed:
        _print_others(errors)
        return int(failed.get(0) or max(failed.values()))
    if codes.get(0, _LOST) == _LOST and ended and ended[0] is not None:
        raise WorkerLost(f"Ray gave the training up: {reason(ended[0])} {_AGAIN}") from ended[0]
    code: int = codes.get(0, _LOST)
    return interrupted_code(interrupts.received) if code == _LOST else code


def _print_others(errors: Mapping[int, str]) -> None:
    """Print errors of other workers that are not those of the first, each once."""
    shown = set(errors.get(0, "").splitlines())
    for line in dict.fromkeys(line for each in errors.values() for line in each.splitlines()):
        if line not in shown:
            print(line, file=sys.stderr)


def _fit(trainer: "TorchTrainer", ended: list[Exception | None]) -> None:
    try:
        trainer.fit()
        ended.append(None)
    except Exception as error:
        ended.append(error)
