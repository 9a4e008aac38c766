"""Classifiers of pairs above a sentence embedder that read the texts of a pair apart, too: a baseline that was kept."""

import contextlib
import io
import json
import re
from typing import get_args
from unittest import mock

import numpy as np
import pytest
import torch
from above_embedders import STILL, BeyondReach, asked, logits, read_by
from opening import same_weights
from safetensors.torch import load_file

import bothways
from bothways import MultiTask, PairClassifier, SentenceEmbedder, TaskData, TextClassifier
from bothways.checkpoints import load
from bothways.choices import DetectorChoice
from bothways.encoder.head_kinds import MeanOfTokens, TextsOfPair
from bothways.encoder.heads import read_rows, texts_of_pairs
from bothways.errors import CorruptCheckpoint
from bothways.families import FAMILIES
from bothways.packing import PaddedRows, pack
from bothways.tasks.heads.training import APART, LINEAR
from bothways.tasks.readme import PLACE
from contract_cases import pair_rows, rows, write_embedder
from everyday import some_of
from tiny_models import edit_config

beginning_with_cls = pytest.mark.parametrize(
    "model_type",
    some_of(
        [name for name in FAMILIES if name != "xlnet"], "bert", "roberta", "distilbert", "deberta-v2", "modernbert"
    ),
)
START, SEPARATOR = 2, 3

pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")


# The texts of a pair


@pytest.mark.parametrize("between", [[SEPARATOR], [SEPARATOR, SEPARATOR]])
def test_each_text_is_as_if_it_were_read_alone(between):
    texts = [([5, 6], [7]), ([8], [9, 10, 11]), ([], [5]), ([4], [12])]
    pairs = [[START, *first, *between, *second, SEPARATOR] for first, second in texts]
    packed = pack(
        pairs,
        [
            [0] * (len(first) + 2) + [1] * (len(pair) - len(first) - 2)
            for pair, (first, _) in zip(pairs, texts, strict=True)
        ],
    )
    alone = [[START, *first, SEPARATOR] for first, _ in texts] + [[START, *second, SEPARATOR] for _, second in texts]
    expected, found = pack(alone), texts_of_pairs(packed, START, SEPARATOR)
    assert found.lengths == expected.lengths
    for name in ("ids_T", "types_T", "positions_T", "cu_seqlens"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
        assert getattr(found, name).dtype == getattr(expected, name).dtype


@pytest.mark.parametrize("left", [False, True])
def test_a_padded_batch_is_read_as_a_packed_one(tmp_path, left):
    model = load(write_embedder(tmp_path / "base"), device="cpu")
    pairs = [[START, 5, 6, SEPARATOR, 7, SEPARATOR], [START, 8, SEPARATOR, 9, 10, 11, 12, SEPARATOR]]
    packed = pack(pairs)
    longest = max(map(len, pairs))
    fill = [[0] * (longest - len(pair)) for pair in pairs]
    ids = torch.tensor([[*gap, *pair] if left else [*pair, *gap] for pair, gap in zip(pairs, fill, strict=True)])
    padded = PaddedRows.of(ids, (ids != 0).long())
    read = TextsOfPair(START, SEPARATOR)
    with torch.no_grad():
        one, other = (read_rows(read, model.encoder, batch) for batch in (packed, padded))
    assert one.shape == (2, 3 * 24 + 1)
    torch.testing.assert_close(one, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("pair", [[START], [START, SEPARATOR], [START, SEPARATOR, SEPARATOR], [START, 5, 6]])
def test_what_is_no_pair_is_read_all_the_same(tmp_path, pair):
    model = load(write_embedder(tmp_path / "base"), device="cpu")
    with torch.no_grad():
        rows_BK = read_rows(TextsOfPair(START, SEPARATOR), model.encoder, pack([pair, [START, 5, SEPARATOR]]))
    assert torch.isfinite(rows_BK).all()


def test_the_texts_are_compared_as_the_embedder_compares_them(saved, tmp_path):
    base = write_embedder(tmp_path / "base")
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    pairs = asked("pair")
    firsts, seconds = embedder.encode([first for first, _ in pairs]), embedder.encode([second for _, second in pairs])
    model = load(base, device="cpu")
    tokenizer = model.tokenizer
    packed = pack(
        [window.ids for text in tokenizer.encode(pairs, max_length=64) for window in text.windows],
        [window.types for text in tokenizer.encode(pairs, max_length=64) for window in text.windows],
    )
    with torch.no_grad():
        rows_BK = read_rows(TextsOfPair(tokenizer.cls_id, tokenizer.sep_id), model.encoder, packed).numpy()
    np.testing.assert_allclose(rows_BK[:, 24:48], np.abs(firsts - seconds), atol=1e-5)
    np.testing.assert_allclose(rows_BK[:, 48:72], firsts * seconds * 24**0.5, atol=1e-5)
    np.testing.assert_allclose(rows_BK[:, 72], 4 * (firsts * seconds).sum(1), atol=1e-5)


# Saved and opened


def test_the_encoder_is_as_it_was(saved):
    _, folder = saved(kind="apart")
    same_weights(*(load_file(path / "model.safetensors") for path in (folder.parent / "base", folder)))


@beginning_with_cls
def test_the_code_of_its_card_gives_the_same_logits_in_transformers(saved, model_type):
    classifier, folder = saved(model_type, "apart")
    card = (folder / "README.md").read_text()
    assert "Its encoder also opens in transformers" in card
    code = re.findall(r"```python\n(.*?)```", card, re.DOTALL)[1].replace(PLACE, str(folder))
    names = {}
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)
    given = names["first"], names["second"]
    np.testing.assert_allclose(
        (names["features"] @ names["head"]["linear.weight"].T + names["head"]["linear.bias"]).detach().numpy(),
        logits(classifier, [given]),
        rtol=0,
        atol=1e-5,
    )
    assert "tensor" in printed.getvalue()


def test_a_folder_that_does_not_say_how_texts_begin_is_refused(saved, tmp_path):
    classifier, _ = saved(kind="apart")
    classifier.save(tmp_path / "spoilt")
    edit_config(tmp_path / "spoilt", head_start_token_id="two")
    with pytest.raises(CorruptCheckpoint, match="as numbers"):
        PairClassifier.from_pretrained(tmp_path / "spoilt", device="cpu")


@pytest.mark.parametrize("detector", some_of(get_args(DetectorChoice), "neighbours", "mahalanobis_layers"))
def test_detectors_read_the_state_of_the_pair(tmp_path, detector):
    classifier = PairClassifier.from_pretrained(write_embedder(tmp_path / "base"), device="cpu", max_length=12)
    data = [{**row, "text_b": f"{row['text_b']} " + "w20 " * 20} for row in pair_rows("single")]
    with mock.patch("bothways.tasks.heads.training.Baseline", BeyondReach):
        assert classifier.fit(data, validation=data, detector=detector, **STILL).kept_epoch == 0
    classifier.save(tmp_path / "saved")
    texts = [(row["text_a"], row["text_b"]) for row in data]
    found = PairClassifier.from_pretrained(tmp_path / "saved", device="cpu").predict(texts)
    assert found == classifier.predict(texts)
    assert all(each.out_of_domain_score is not None for each in found)


# Used further


def test_a_classifier_of_texts_above_it_reads_the_mean(saved):
    classifier = TextClassifier.from_pretrained(saved(kind="apart")[1], device="cpu")
    classifier.fit(rows("single"), validation=rows("single"), **STILL)
    assert read_by(classifier) == MeanOfTokens()


@pytest.mark.slow  # every day: cross-encoders that were trained, without this baseline
def test_training_that_pays_gives_a_cross_encoder(tmp_path):
    classifier = PairClassifier.from_pretrained(write_embedder(tmp_path / "base"), device="cpu")
    # Whether both texts are the same word in another order: the texts themselves say the same of every row.
    data = [
        {"text_a": f"w{5 + n % 3} w9", "text_b": f"w{5 + n % 7} w9", "label": str(n % 3 == n % 7)} for n in range(84)
    ]
    record = classifier.fit(data, validation=data, epochs=40, batch_size=8, learning_rate=3e-3, show_progress=False)
    if record.kept_epoch:
        assert read_by(classifier) == MeanOfTokens()
    assert json.loads(json.dumps(classifier.card))["training"]["baseline"] == APART


def test_a_model_whose_texts_end_with_their_classification_token_reads_pairs_as_a_whole(tmp_path):
    classifier = PairClassifier.from_pretrained(write_embedder(tmp_path / "base", "xlnet"), device="cpu")
    record = classifier.fit(pair_rows("single"), validation=pair_rows("single"), **STILL)
    assert record.baseline == LINEAR
    assert read_by(classifier) == MeanOfTokens()


@pytest.mark.parametrize(
    ("task", "made", "texts", "detector"),
    [
        ("pairs", pair_rows, asked("pair"), "mahalanobis_layers"),
        ("classification", rows, asked(), "mahalanobis"),
    ],
)
def test_several_tasks_above_it_are_saved_and_opened(saved, tmp_path, task, made, texts, detector):
    model = MultiTask.from_pretrained(saved(kind="apart")[1], device="cpu")
    data = made("single")
    model.fit({name: TaskData(data, data, task=task, detector=detector) for name in ("one", "two")}, **STILL)
    model.save(tmp_path / "all")
    again = MultiTask.from_pretrained(tmp_path / "all", device="cpu")
    for name in ("one", "two"):
        found = again.part(name).predict(texts)
        assert found == model.part(name).predict(texts)
        assert [each[name] for each in again.predict(texts)] == found
        assert all(each.out_of_domain_score is not None for each in found)
        again.part(name).save(tmp_path / name)
        assert bothways.open_trained(tmp_path / name, device="cpu").predict(texts) == found
