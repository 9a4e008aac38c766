"""A small objective for the tests of the training loop; as a script, runs that are killed.

``training_toys.py FOLDER POINT...`` trains in one process for each point, which gets SIGKILL there. Checkpoints and
log.jsonl go to FOLDER/POINT.
"""

import json
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from bothways.evaluation.report import Validation
from bothways.training import checkpoints
from bothways.training.loop import train
from bothways.training.objective import Baseline, MicroBatch, Update
from bothways.training.options import TrainingOptions
from forking import forked

Rows = Tensor  # indices into the data
EXAMPLES, WIDTH = 40, 6


def mlp(dropout: float = 0.0) -> nn.Sequential:
    """The same initial weights each time, whatever the global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 3))


@dataclass
class Toy:
    """Classification of random points; ``splits`` are the micro-batch sizes of an update."""

    module: nn.Module = field(default_factory=mlp)
    splits: Sequence[int] = (8,)
    scores: Sequence[float] | None = None
    standard_error: float = 0.0
    order_seed: int = 3
    on_loss: Callable[[int], None] = lambda _: None
    on_validate: Callable[[int], None] = lambda _: None
    baseline: Baseline | None = None
    min_updates: int = 0
    loss_calls: int = 0
    validations: int = 0
    seen: list[dict[str, Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        generator = torch.Generator().manual_seed(0)
        self.points = torch.randn(EXAMPLES, WIDTH, generator=generator)
        self.labels = torch.randint(0, 3, (EXAMPLES,), generator=generator)

    @property
    def identity(self) -> dict[str, int]:
        return {"order_seed": self.order_seed}

    def updates_per_epoch(self) -> int:
        return EXAMPLES // sum(self.splits)

    def updates(self, epoch: int, start: int) -> Iterator[Update[Rows]]:
        order = torch.randperm(EXAMPLES, generator=torch.Generator().manual_seed(1000 * self.order_seed + epoch))
        for rows in order.split(sum(self.splits))[start:]:
            yield Update(tuple(MicroBatch(part, len(part), 10 * len(part)) for part in rows.split(list(self.splits))))

    def loss(self, payload: Rows) -> Tensor:
        self.loss_calls += 1
        self.on_loss(self.loss_calls)
        return nn.functional.cross_entropy(self.module(self.points[payload]), self.labels[payload], reduction="sum")

    def validate(self) -> Validation | None:
        assert not self.module.training
        assert not torch.is_grad_enabled()
        self.validations += 1
        self.on_validate(self.validations)
        loss = float(nn.functional.cross_entropy(self.module(self.points), self.labels))
        # FSDP divides the weights again when they are asked for.
        self.seen.append({name: value.clone() for name, value in self.module.state_dict().items()})
        if self.scores is None:
            return Validation({"loss": loss}, score=-loss)
        return Validation(
            {"scripted": 1.0}, score=self.scores[self.validations - 1], standard_error=self.standard_error
        )


class Unvalidated(Toy):
    """There is nothing to validate on."""

    def validate(self) -> Validation | None:
        return None


def settings(**changes: object) -> TrainingOptions:
    usual = {"epochs": 3, "learning_rate": 0.01, "precision": "float32", "log_every_updates": 2}
    return TrainingOptions(**{**usual, **changes})


def run_settings(**changes: object) -> TrainingOptions:
    """Of the runs that are killed: 15 updates, a checkpoint every third and after each epoch of 5."""
    return settings(checkpoint_every_updates=3, **changes)


def weights_of(toy: Toy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in toy.module.state_dict().items()}


def equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def events(path: Path) -> list[dict[str, object]]:
    """The lines of a log."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


class CrashError(Exception):
    pass


def at(call: int, act: Callable[[], object]) -> Callable[[int], None]:
    """Act in one call of the loss or of the validation."""
    return lambda now: act() if now == call else None


def crash_at(call: int) -> Callable[[int], None]:
    def crash() -> None:
        raise CrashError

    return at(call, crash)


def sigint_at(call: int, number: int = signal.SIGINT) -> Callable[[int], None]:
    return at(call, lambda: os.kill(os.getpid(), number))


def crashed(toy: Toy, chosen: TrainingOptions, call: int) -> None:
    """Train until a call of the loss fails."""
    toy.on_loss = crash_at(call)
    with suppress(CrashError):
        train(toy, chosen)
        raise AssertionError("expected a crash")


def kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(kill_at: str, toy: Toy) -> None:
    """Arrange for SIGKILL at one point of the run."""
    if kill_at == "before the first checkpoint":
        toy.on_loss = at(2, kill)
    elif kill_at == "in an update":
        toy.on_loss = at(9, kill)
    elif kill_at == "in validation":
        toy.on_validate = at(2, kill)
    elif kill_at == "in the middle of a checkpoint":
        write, calls = checkpoints.write_tensors, [0]

        def half(path: Path, tensors: dict[str, Tensor]) -> None:
            calls[0] += 1
            write(path, tensors)
            if calls[0] == 7:
                os.truncate(path, path.stat().st_size // 2)
                kill()

        checkpoints.write_tensors = half
    elif kill_at == "before the older checkpoint is removed":
        remove = shutil.rmtree
        shutil.rmtree = lambda path, **more: kill() if path.name == "checkpoint-00000003" else remove(path, **more)
    else:
        raise ValueError(kill_at)


def run_until_killed(folder: Path, point: str) -> None:
    toy = Toy(mlp(dropout=0.3))
    arm(point, toy)
    train(toy, run_settings(log=folder / "log.jsonl", checkpoints=folder / "checkpoints"))


def main(folder: Path, *points: str) -> None:
    torch.set_num_threads(1)
    for point in points:
        (code,) = forked(1, lambda _, point=point: run_until_killed(folder / point, point))
        print(code)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
