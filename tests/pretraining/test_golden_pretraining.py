"""The loss of every update of a tiny run of each objective of pre-training is that in `golden_pretraining.json`.

What moves them on purpose writes the file anew and says so in its commit:

    PYTHONPATH=src:tests:tests/pretraining python tests/pretraining/test_golden_pretraining.py
"""

import json
import tempfile
from pathlib import Path

import pytest
from distilling_cases import corpus_of, embedder_teacher, encoder_teacher, masked_lm_teacher, texts
from pretraining_cases import tiny

from bothways.pretraining.courses import BatchWarmup
from bothways.pretraining.distiller import Distiller
from bothways.pretraining.pretrainer import Pretrainer
from bothways.pretraining.recipes import RECIPES, scaled
from bothways.text import TextTokenizer, recipes
from tiny_models import write_tokenizer

GOLDEN = Path(__file__).with_name("golden_pretraining.json")
# As in `tests/training/test_golden_losses.py`, where it is measured.
TOLERANCE = 5e-4
QUICK = {
    "updates": 8,
    "learning_rate": 1e-3,
    "batch_size": 6,
    "seed": 5,
    "precision": "float32",
    "show_progress": False,
}
# The recipe whose objective it is.
RECIPE = {
    "masked LM and next sentence": "bert",
    "masked LM and sentence order": "albert",
    "replaced tokens": "electra",
    "replaced tokens, gradients disentangled": "deberta-v3",
    "permutation LM": "xlnet",
    "masked LM with a decoder": "deberta",
    "masked LM, growing batch": "modernbert",
}
TEACHER = {
    "distillation of predictions and states": masked_lm_teacher,
    "distillation of states": encoder_teacher,
    "distillation of vectors and states": embedder_teacher,
}


def losses_of(case, folder):
    """Train a tiny model afresh, and return the loss of each update."""
    if case in TEACHER:
        (folder / "teacher").mkdir()
        distiller = Distiller.from_pretrained(TEACHER[case](folder / "teacher"), layers=2, length=16, device="cpu")
        corpus = corpus_of(folder, distiller.student.model.tokenizer)
        return list(distiller.fit(corpus, **QUICK).losses)
    recipe = RECIPES[RECIPE[case]]
    write_tokenizer(folder, "bert")
    tokenizer = TextTokenizer.from_folder(folder, recipes.TRAINED)
    growing = {"batch_warmup": BatchWarmup(1, updates=6)} if case.endswith("growing batch") else {}
    run = Pretrainer(tiny(scaled(recipe, "tiny")), tokenizer, device="cpu")
    return list(run.fit(corpus_of(folder, tokenizer, texts(60)), **QUICK, **growing).losses)


@pytest.mark.parametrize("case", [*RECIPE, *TEACHER])
def test_the_losses_of_a_run_are_those_that_were_written(case, tmp_path):
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert losses_of(case, tmp_path) == pytest.approx(golden[case], rel=TOLERANCE)


def write():
    """Write the losses of every case."""
    found = {}
    for case in [*RECIPE, *TEACHER]:
        with tempfile.TemporaryDirectory() as folder:
            found[case] = losses_of(case, Path(folder))
    lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(each)}" for name, each in found.items())
    GOLDEN.write_text("{\n" + lines + "\n}\n", encoding="utf-8")


if __name__ == "__main__":
    write()
