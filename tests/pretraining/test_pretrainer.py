"""Runs from a corpus to a saved encoder: by every recipe, resumed exactly, and refused where they make no sense."""

import itertools
import json
import math
from dataclasses import replace

import pytest
import torch
from pretraining_cases import HEADS, TEXTS, interrupted_after

from bothways import load
from bothways.data.shards import ShardSource, TokenCorpus, write_shards
from bothways.errors import InvalidInput, NotFitted, OutputExists
from bothways.families import FAMILIES
from bothways.pretraining.pretrainer import GENERATOR, Pretrainer
from bothways.pretraining.recipes import RECIPES, MaskedLanguageModelling
from bothways.pretraining.runs import course_options
from bothways.training.options import AdamW, Lamb
from everyday import some_of


@pytest.mark.parametrize("name", some_of(RECIPES, "electra", "deberta"))
def test_every_recipe_learns_and_is_saved(name, make, tmp_path):
    pretrainer, corpus = make(name)
    record = pretrainer.fit(corpus, updates=40, batch_size=8, learning_rate=3e-3, show_progress=False)
    assert record.updates == 40
    assert [each.update for each in record.validations] == list(range(4, 41, 4))
    assert record.losses[-1] < 0.8 * record.losses[0]
    pretrainer.save(tmp_path / "model")
    opened = load(tmp_path / "model", heads=HEADS.get(name, ("masked_lm",)), device="cpu")
    with torch.inference_mode():
        states = pretrainer.fitted.model(["the cat sat"]).last_hidden_state
        assert torch.equal(opened(["the cat sat"]).last_hidden_state, states)
    card = json.loads((tmp_path / "model/bothways.json").read_text())["card"]
    assert (card["recipe"], card["data"]["documents"]) == (name, len(TEXTS))
    assert card["metrics"] == record.validations[record.kept_epoch - 1].metrics
    assert (tmp_path / "model" / GENERATOR).is_dir() == name.startswith(("electra", "deberta-v3"))


def test_a_generator_fills_masks(make, tmp_path):
    from bothways import FillMask

    pretrainer, corpus = make("electra")
    pretrainer.fit(corpus, updates=2, batch_size=4, show_progress=False)
    pretrainer.save(tmp_path / "model")
    generator = FillMask.from_pretrained(tmp_path / "model" / GENERATOR, device="cpu")
    assert generator.has_head
    assert len(generator.predict(["the [MASK] sat"])) == 1


@pytest.mark.parametrize(
    ("name", "at"),
    some_of(
        list(itertools.product(["bert", "electra", "deberta-v3", "albert", "xlnet", "deberta"], [3, 7])),
        *(("electra", 7), ("xlnet", 7)),
    ),
)
def test_a_resumed_run_equals_one_that_was_not_interrupted(name, at, make, tmp_path, monkeypatch):
    options = {"updates": 12, "batch_size": 4, "show_progress": False, "checkpoint_every_updates": 1}
    (whole, corpus), (resumed, _) = make(name), make(name)
    expected = whole.fit(corpus, **options)
    options["checkpoints"] = tmp_path / "c"
    interrupted_after(monkeypatch, at, lambda: make(name)[0].fit(corpus, **options))
    record = resumed.fit(corpus, resume=True, **options)
    assert record.resumed_from in range(1, at + 1)
    assert record.losses == expected.losses
    assert [each.score for each in record.validations] == [each.score for each in expected.validations]
    pairs = zip(whole.fitted.model.encoder.parameters(), resumed.fitted.model.encoder.parameters(), strict=True)
    assert all(torch.equal(*each) for each in pairs)


@pytest.mark.parametrize("name", some_of(RECIPES, "electra", "xlnet"))
def test_activation_checkpointing_changes_no_bit(name, make):
    (usual, corpus), (lean, _) = make(name), make(name)
    (usual_record, lean_record) = (
        pretrainer.fit(
            corpus, updates=4, batch_size=6, show_progress=False, activation_checkpointing=pretrainer is lean
        )
        for pretrainer in (usual, lean)
    )
    assert lean_record.losses == usual_record.losses
    weights = usual.fitted.model.encoder.state_dict()
    assert all(torch.equal(value, weights[key]) for key, value in lean.fitted.model.encoder.state_dict().items())


def test_a_changed_recipe_is_not_resumed_and_the_difference_said(make, tmp_path):
    first, corpus = make("roberta")
    options = {"batch_size": 4, "show_progress": False, "checkpoints": tmp_path / "c"}
    first.fit(corpus, updates=4, **options)
    with pytest.raises(OutputExists):
        make("roberta")[0].fit(corpus, updates=4, **options)
    changed, _ = make("roberta", task=MaskedLanguageModelling(replace(RECIPES["roberta"].task.masking, fraction=0.3)))
    with pytest.raises(InvalidInput, match=r"chosen tokens was 0\.15 and is now 0\.3"):
        changed.fit(corpus, updates=4, resume=True, **options)
    with pytest.raises(InvalidInput, match="updates was 4 and is now 5"):
        make("roberta")[0].fit(corpus, updates=5, resume=True, **options)


def test_options_override_the_recipe(make):
    pretrainer, _ = make("albert")
    usual = course_options(pretrainer.recipe.course, {})
    assert (usual.updates, usual.learning_rate, usual.optimizer) == (2000, 1e-3, AdamW(eps=1e-6))
    lamb = Lamb(weight_decay=0.0)
    given = course_options(pretrainer.recipe.course, {"learning_rate": 0.5, "seed": 3, "optimizer": lamb})
    assert (given.learning_rate, given.seed, given.optimizer, given.updates) == (0.5, 3, lamb, 2000)


def test_the_seed_decides_the_run(make):
    runs = []
    for seed in (1, 1, 2):
        pretrainer, corpus = make("bert")
        runs.append(pretrainer.fit(corpus, updates=2, batch_size=4, seed=seed, show_progress=False).losses)
    assert runs[0] == runs[1] != runs[2]
    assert all(math.isfinite(loss) for run in runs for loss in run)


def test_what_makes_no_sense_is_refused(make, corpora, trained_tokenizers, tmp_path):
    pretrainer, corpus = make("bert")
    with pytest.raises(NotFitted, match="call fit first"):
        pretrainer.save(tmp_path / "model")
    with pytest.raises(InvalidInput, match="updates or tokens, got epochs"):
        pretrainer.fit(corpus, epochs=3)
    with pytest.raises(InvalidInput, match="written with another tokenizer"):
        pretrainer.fit(corpora["bpe"])
    with pytest.raises(InvalidInput, match="at most 512 tokens, the limit of the recipe's model, got 2,000"):
        Pretrainer(pretrainer.recipe.changed(length=2000), trained_tokenizers["wordpiece"], device="cpu")


def test_of_one_document_nothing_is_held_out_and_none_is_left_for_next_sentences(trained_tokenizers, make, tmp_path):
    (tmp_path / "one.txt").write_text("the cat sat on the mat. and saw birds.\n")
    source, single = ShardSource([tmp_path / "one.txt"]), {}
    for kind in ("wordpiece", "bpe"):
        write_shards(source, tmp_path / kind, trained_tokenizers[kind], show_progress=False)
        single[kind] = TokenCorpus.open(tmp_path / kind)
    with pytest.raises(InvalidInput, match="next sentence prediction needs at least 2 documents"):
        make("bert")[0].fit(single["wordpiece"], updates=1, show_progress=False)
    pretrainer = make("roberta")[0]
    assert pretrainer.fit(single["bpe"], updates=2, show_progress=False).validations == ()
    assert pretrainer.fitted.card["metrics"] is None
    assert FAMILIES["roberta"] is pretrainer.fitted.model.family
