"""Pre-training in several processes, sharded or not: ``several_processes.py FOLDER COUNTS LAYOUTS RECIPE``.

A recipe is trained by one process, then by as many as each of the counts (``2,4``) says, without dropout; prints a
line of JSON for each. A run of several processes stops halfway and is resumed by the number before it, or by as many.
"""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import pytest
import torch
import torch._dynamo  # before the processes part, that each does not do it by itself
from pretraining_cases import corpus_of, tiny

from bothways.objectives.pretraining import PretrainingObjective
from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import RECIPES, scaled
from bothways.training.workers import joined
from forking import forked
from tiny_models import switch_off_dropout

UPDATES, STOP_AT = 6, 3


def stopping():
    """Send this process SIGINT in the loss of a certain update."""
    usual, seen = PretrainingObjective.updates, []

    def updates(self, epoch, start):
        for each in usual(self, epoch, start):
            seen.append(None)
            if len(seen) == STOP_AT:
                os.kill(os.getpid(), signal.SIGINT)
            yield each

    PretrainingObjective.updates = updates


class Runs:
    """Runs of a recipe in several processes; each leaves a file for each of them."""

    def __init__(self, folder, name):
        self.folder, self.name = folder, name
        (folder / f"{name} corpus").mkdir()
        self.tokenizer, self.corpus = corpus_of(folder / f"{name} corpus", RECIPES[name].tokenizer)

    def train(self, rank, place, **options):
        """Train as one of the processes."""
        pretrainer = Pretrainer(tiny(scaled(RECIPES[self.name], "tiny")), self.tokenizer, device="cpu")
        kept = {"checkpoints": self.folder / f"{place}.checkpoints", "show_progress": False}
        record = pretrainer.fit(self.corpus, updates=UPDATES, batch_size=6, **kept, **options)
        weights = torch.cat([each.flatten() for each in pretrainer.fitted.model.encoder.state_dict().values()])
        if place == self.name:
            torch.save(weights, self.folder / f"{self.name}.pt")
        found = {"losses": record.losses, "scores": [each.score for each in record.validations]}
        found["away"] = float((weights - torch.load(self.folder / f"{self.name}.pt")).abs().max())
        more = {"resumed": record.resumed_from, "interrupted": record.interrupted}
        (self.folder / f"{place} {rank}.json").write_text(json.dumps({**found, **more}))

    def run(self, count, place, *, stop=False, **options):
        """Train in so many processes and print what came of it."""

        def work(rank):
            if stop:
                stopping()
            with joined():
                self.train(rank, place, **options)

        codes = forked(count, work)
        found = [json.loads((self.folder / f"{place} {rank}.json").read_text()) for rank in range(count)]
        print(json.dumps({"name": self.name, "place": place, "codes": codes, "found": found}), flush=True)

    def run_all(self, counts, layouts):
        """Train by one process; by others up to the middle, and on from there by as many and by the number before."""
        self.run(1, self.name)
        for before, count in zip([1, *counts], counts, strict=False):
            for layout in layouts:
                shard, stopped = layout == "sharded", f"{self.name} {count} {layout}"
                self.run(count, stopped, stop=True, shard=shard)
                for again in (before, count):
                    place = f"{stopped}, resumed by {again}"
                    shutil.copytree(self.folder / f"{stopped}.checkpoints", self.folder / f"{place}.checkpoints")
                    # Layers may be computed again from some update on, here where they are sharded.
                    self.run(again, place, shard=shard, resume=True, activation_checkpointing=shard)


def main(folder, counts, layouts, name):
    torch.set_num_threads(1)
    # Each process would draw its own.
    switch_off_dropout(pytest.MonkeyPatch())
    Runs(folder, name).run_all([int(count) for count in counts.split(",")], layouts.split(","))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
