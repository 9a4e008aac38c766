"""Pre-training that gets SIGKILL at 8 random moments and is resumed; one line of JSON of each to standard output.

``killed_pretraining.py FOLDER RECIPE``: the moments are calls that touch files, and losses of micro-batches.
"""

import hashlib
import json
import os
import random
import signal
import sys
from pathlib import Path

import torch
from pretraining_cases import TEXTS, corpus_of, tiny

from bothways.objectives.pretraining import PretrainingObjective
from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import RECIPES, scaled
from forking import forked
from killing import FILE_EVENTS

MOMENTS = 8


def moments(at):
    """Count moments from here on and end the process before one of them; returns the list that counts."""
    seen = []

    def count():
        seen.append(None)
        if len(seen) == at:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(lambda event, _: count() if event in FILE_EVENTS else None)
    usual = PretrainingObjective.loss

    def counted(self, payload):
        count()
        return usual(self, payload)

    PretrainingObjective.loss = counted
    return seen


def main(folder, name):
    torch.set_num_threads(1)
    recipe = RECIPES[name]
    # XLNet's memories need documents of several pieces.
    lines = 10 if name == "xlnet" else 1
    texts = ["\n".join(TEXTS[at : at + lines]) for at in range(0, len(TEXTS), lines)]
    tokenizer, corpus = corpus_of(folder, recipe.tokenizer, texts)

    def trained(place, resume=False, at=0):
        seen = moments(at)
        pretrainer = Pretrainer(tiny(scaled(recipe, "tiny")), tokenizer, device="cpu")
        kept = {"checkpoints": folder / place, "checkpoint_every_updates": 2, "resume": resume}
        record = pretrainer.fit(corpus, updates=8, batch_size=4, show_progress=False, **kept)
        weights = b"".join(each.numpy().tobytes() for each in pretrainer.fitted.model.encoder.state_dict().values())
        found = {"losses": record.losses, "scores": [each.score for each in record.validations]}
        found["weights"] = hashlib.sha256(weights).hexdigest()
        more = {"moments": len(seen), "resumed": record.resumed_from}
        (folder / f"{place}.json").write_text(json.dumps({"course": found, **more}))

    forked(1, lambda _: trained("whole"))
    whole = json.loads((folder / "whole.json").read_text())
    print(json.dumps(whole))
    for at in sorted(random.Random(name).sample(range(1, whole["moments"] + 1), MOMENTS)):
        place = f"killed {at}"
        killed = forked(1, lambda _, place=place, at=at: trained(place, at=at))
        again = forked(1, lambda _, place=place: trained(place, resume=True))
        found = json.loads((folder / f"{place}.json").read_text()) if again == [0] else {}
        print(json.dumps({"at": at, "codes": [*killed, *again], **found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
