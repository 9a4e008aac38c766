"""Two updates on one batch in a process of its own: the second has everything in memory that a long run has."""

import json
import sys

import torch

from bothways.advice.worker import random_texts, resident_bytes
from bothways.encoder import Encoder
from bothways.families import family_of
from bothways.training.loop import train
from bothways.training.objective import MicroBatch, Update
from bothways.training.options import TrainingOptions


class Toy:
    baseline, min_updates, identity = None, 0, {}

    def __init__(self, module, batch):
        self.module, self.batch = module, batch

    def updates_per_epoch(self):
        return 2

    def updates(self, _, start):
        step = Update((MicroBatch(self.batch, float(len(self.batch.lengths)), sum(self.batch.lengths)),))
        yield from [step] * (2 - start)

    def loss(self, payload):
        return self.module(payload).square().mean()

    def validate(self):
        return None


if __name__ == "__main__":
    job = json.load(sys.stdin)
    config = family_of(job["family"]).config(job["settings"])
    before = resident_bytes("VmRSS")
    batch = random_texts(job["batch"], job["lengths"][0], config.vocabulary)
    options = TrainingOptions(epochs=1, learning_rate=2e-5, precision="float32", show_progress=False)
    train(Toy(Encoder(config), batch), options)
    peak, threads = resident_bytes("VmHWM"), torch.get_num_threads()
    json.dump({"runtime_bytes": before, "peak_bytes": peak, "threads": threads, "speeds": []}, sys.stdout)
