"""Training sentence embedders: cached gradients, what is learnt, resuming, saving, and data that are unusable."""

import json
import warnings

import numpy as np
import pytest
import torch

from bothways.checkpoints import load
from bothways.data import read_rows
from bothways.data.windows import WindowStore
from bothways.errors import CorruptCheckpoint, InvalidInput, TextsTruncated
from bothways.retrieval import SemanticSearch
from bothways.tasks import SentenceEmbedder
from bothways.tasks.backend import stored_windows
from bothways.tasks.embedding.losses import CoSENT, Distillation, Matryoshka, MultipleNegativesRanking, Triplet
from bothways.tasks.embedding.objective import (
    CachedMicroBatch,
    DrawnRows,
    EmbeddingObjective,
    GivenRows,
    StoredRows,
)
from bothways.tasks.embedding.outputs import EmbeddingRow, RowTexts, read_embedding_rows, with_usual_kind
from bothways.tasks.embedding.spec import (
    EmbeddingLearning,
    LabelledTexts,
    Pairs,
    PlainTexts,
    ScoredPairs,
    Triplets,
    kind_of,
    usual_kind,
)
from bothways.tasks.embedding.training import EmbeddingExamples
from bothways.tasks.embedding.vector_model import VectorModel
from bothways.tasks.heads.splits import TrainingData
from bothways.training.forecast import Forecast
from bothways.training.objective import Update
from bothways.training.state import seeded
from classifier_cases import without_dropout
from everyday import some_of
from tiny_models import edit_config, write_checkpoint


def text(number, words):
    return " ".join(f"w{5 + (number * 7 + place * (number + 3)) % 50}" for place in range(words))


def triplet_rows(count=12):
    """Texts of 1 to 40 words, so that some are read in several windows."""
    return [
        {"anchor": text(number, 1 + 3 * number), "positive": text(50 + number, 2), "negative": text(90 + number, 5)}
        for number in range(count)
    ]


def scored_rows(count=16):
    """The second text repeats the first one's word as often as the score says."""
    made = []
    for number in range(count):
        word, score = f"w{5 + number}", number % 4
        words = [word] * score + [f"w{30 + number}"] * (3 - score)
        made.append({"text_a": f"{word} {word} {word}", "text_b": " ".join(words), "score": score / 2})
    return made


def labelled_rows(count=24):
    return [
        {"text": f"w{5 + number % 3} w{20 + number} w{30 + number % 7}", "label": f"c{number % 3}"}
        for number in range(count)
    ]


def stored(embedder, rows, columns):
    read = [EmbeddingRow(tuple(row[name] for name in columns.texts), None, "a row", columns) for row in rows]
    known = RowTexts.of(read)
    store = stored_windows(embedder.fitted.backend, [text for row in read for text in row.text])
    return StoredRows(columns, known.texts_RK, known.identity_P, known.truth_R, store)


def gradients(objective, update):
    """Of one update, as the training loop computes them; and the loss."""
    objective.module.zero_grad()
    objective.module.train()
    update = objective.joined(update)
    total = 0.0
    for micro_batch in update.micro_batches:
        loss = objective.loss(micro_batch.payload) / update.weight
        loss.backward()
        total += loss.item()
    return {
        name: each.grad.clone() for name, each in objective.module.named_parameters() if each.grad is not None
    }, total


def objective_of(embedder, loss, tokens, rows=None):
    source = GivenRows(stored(embedder, rows or triplet_rows(), Triplets()))
    model = VectorModel.of(embedder.model, embedder.fitted.settings.poolings)
    return EmbeddingObjective(
        model, embedder.fitted.settings, source, loss, None, batch_size=12, tokens=tokens, seed=0, run_settings={}
    )


@pytest.mark.parametrize(
    ("loss", "pooling"),
    [
        (MultipleNegativesRanking(symmetric=True), "mean"),
        (Triplet(), "cls"),
        (Matryoshka(MultipleNegativesRanking(), (24, 7)), "max"),
    ],
)
def test_gradient_caching_gives_the_gradient_of_one_big_batch(base, loss, pooling):
    embedder = SentenceEmbedder.from_pretrained(without_dropout(base), device="cpu", pooling=pooling)
    whole, small = (objective_of(embedder, loss, tokens) for tokens in (10_000, 30))
    (one,), (many,) = list(whole.updates(0, 0)), list(small.updates(0, 0))
    assert (len(one.micro_batches), len(many.micro_batches) > 10) == (1, True)
    assert many.weight == pytest.approx(one.weight) == 12
    expected, expected_loss = gradients(whole, one)
    found, found_loss = gradients(small, many)
    assert found_loss == pytest.approx(expected_loss, abs=1e-5)
    assert found.keys() == expected.keys()
    assert max(each.abs().max() for each in expected.values()) > 1e-2
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-5)


def test_with_dropout_both_passes_drop_the_same(base):
    edit_config(base, hidden_dropout_prob=0.3, attention_probs_dropout_prob=0.2)
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    objective = objective_of(embedder, MultipleNegativesRanking(), tokens=30)
    (update,) = list(objective.updates(0, 0))
    with seeded(4):
        found, _ = gradients(objective, update)
    # The same without a cache: one graph through all micro-batches, drawing from the same generators.
    objective.module.zero_grad()
    with seeded(4):
        parts = [each.payload for each in update.micro_batches]
        vectors_WH = torch.cat([objective.model(part.packed) for part in parts])
        order = np.argsort([place for part in parts for place in part.places])
        objective.batch_loss(vectors_WH[order], parts[0].plan).backward()
    expected = {name: each.grad for name, each in objective.module.named_parameters() if each.grad is not None}
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=0, atol=1e-5)
    with seeded(5):
        other, _ = gradients(objective, update)
    assert any(not torch.allclose(other[name], found[name], atol=1e-4) for name in found)


def test_the_generators_stand_after_both_passes_where_one_pass_leaves_them(base):
    edit_config(base, hidden_dropout_prob=0.3)
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    objective = objective_of(embedder, MultipleNegativesRanking(), tokens=30)
    (update,) = list(objective.updates(0, 0))
    with seeded(4):
        gradients(objective, update)
        after = torch.rand(3)
    with seeded(4):
        for part in update.micro_batches:
            objective.model(part.payload.packed)
        assert torch.equal(torch.rand(3), after)


def test_a_cached_batch_keeps_no_graph(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    objective = objective_of(embedder, MultipleNegativesRanking(), tokens=30)
    (update,) = list(objective.updates(0, 0))
    for each in objective.joined(update).micro_batches:
        assert isinstance(each.payload, CachedMicroBatch)
        assert not each.payload.gradient_BH.requires_grad
        assert not each.payload.value.requires_grad


@pytest.mark.parametrize("settings", [{}, {"pooling": "max"}, {"dimensions": 7}, {"unit_length": False}], ids=str)
def test_the_vectors_that_are_trained_are_those_that_are_given(base, settings):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", **settings)
    rows = triplet_rows()
    texts = [row[name] for row in rows for name in Triplets().texts]
    data = stored(embedder, rows, Triplets())
    objective = objective_of(embedder, MultipleNegativesRanking(), tokens=40)
    found = objective.vectors_of(data)
    np.testing.assert_allclose(found, embedder.encode(texts), rtol=0, atol=1e-6)


def test_rows_are_spread_evenly_and_all_are_used(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    objective = objective_of(embedder, MultipleNegativesRanking(), tokens=10_000, rows=triplet_rows(13))
    updates = list(objective.updates(0, 0))
    assert objective.updates_per_epoch() == len(updates) == 2
    batches = [each.micro_batches[0].payload.plan.rows.texts_RK for each in updates]
    assert [len(each) for each in batches] == [7, 6]
    assert sorted(np.concatenate(batches)[:, 0].tolist()) == list(range(0, 39, 3))
    assert isinstance(updates[0], Update)


# --- labelled texts ---


def drawn_rows(labels, **options):
    texts = len(labels)
    empty = WindowStore(*(np.zeros(0, dtype=np.int64),) * 5)
    data = StoredRows(LabelledTexts(), np.arange(texts)[:, None], np.arange(texts), np.array(labels), empty)
    return DrawnRows(data, **{"pairs": 1, "negatives": False, "seed": 0, **options})


def test_texts_are_paired_within_their_label_and_anew_in_each_epoch():
    labels = [0] * 6 + [1] * 3 + [2]
    source = drawn_rows(labels, pairs=2, negatives=True)
    first, again, second = source.epoch(0), source.epoch(0), source.epoch(1)
    assert np.array_equal(first.texts_RK, again.texts_RK)
    assert not np.array_equal(first.texts_RK, second.texts_RK)
    assert len(first.texts_RK) == source.count == 18
    assert len({tuple(row) for row in first.texts_RK[:, :2].tolist()}) == 18
    for (anchor, positive, negative), label in zip(first.texts_RK, first.truth_R, strict=True):
        assert labels[anchor] == labels[positive] == label != labels[negative]
        assert anchor != positive


@pytest.mark.parametrize(
    ("labels", "words"),
    [([0, 0, 0], "texts of at least two labels"), ([0, 1, 2], "a label with at least two texts")],
)
def test_labels_that_make_no_pairs_are_refused(labels, words):
    with pytest.raises(InvalidInput, match=words):
        drawn_rows(labels)


# --- the whole way ---


class Tiny:
    """A teacher whose vectors say how many words two texts share."""

    name = "a tiny teacher"

    def encode(self, texts, *, show_progress=None):
        del show_progress
        vectors = np.zeros((len(texts), 61), dtype=np.float32)
        for row, each in enumerate(texts):
            for word in each.split():
                vectors[row, int(word[1:])] += 1
        return vectors


CASES = {
    "scored pairs": (ScoredPairs(), scored_rows(), None, "spearman", 0.8),
    "pairs": (Pairs(), triplet_rows(), None, "mrr", 1.0),
    "triplets": (Triplets(), triplet_rows(), None, "mrr", 1.0),
    # Which looks at the negative of its own row only.
    "triplets by margin": (Triplets(), triplet_rows(), Triplet(), "mrr", 0.4),
    "labelled texts": (LabelledTexts(), labelled_rows(), None, "mrr", 1.0),
    "labelled texts by margin": (LabelledTexts(), labelled_rows(), Triplet(), "mrr", 1.0),
    "matryoshka": (LabelledTexts(), labelled_rows(), Matryoshka(MultipleNegativesRanking(), (24, 6)), "mrr", 1.0),
    "a teacher": (PlainTexts(), labelled_rows(), Distillation(Tiny()), "spearman_with_teacher", 0.65),
}


def fitted(base, case, **options):
    columns, rows, loss, _, _ = CASES[case]
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    settings = {"epochs": 25, "learning_rate": 3e-3, "batch_size": 12, **options}
    return embedder, embedder.fit(rows, validation=rows, columns=columns, loss=loss, **settings)


# The golden losses of tests/training have every loss every day.
@pytest.mark.parametrize("case", some_of(CASES, "a teacher"))
def test_a_few_rows_are_learnt_by_heart(base, case):
    embedder, record = fitted(without_dropout(base), case)
    metric, least = CASES[case][3:]
    best = max(each.metrics[metric] for each in record.validations)
    assert record.validations[0].metrics[metric] < best
    assert best >= least
    assert embedder.columns == CASES[case][0]


@pytest.mark.parametrize("case", ["scored pairs", "pairs", "triplets", "labelled texts"])
def test_evaluation_agrees_with_the_validation(base, case):
    columns, rows, _, metric, _ = CASES[case]
    embedder, record = fitted(base, case, epochs=2)
    report = embedder.evaluate(rows, resamples=10)
    (kept,) = (each.metrics[metric] for each in record.validations if each.epoch == record.kept_epoch)
    assert report.to_dict()[metric] == pytest.approx(kept, abs=1e-6)
    assert report.to_dict() == embedder.evaluate(rows, columns=columns, resamples=10).to_dict()


def test_an_embedder_that_training_makes_worse_is_left_as_it_was(base, tmp_path):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    texts = [text(number, 4) for number in range(12)]
    before = embedder.encode(texts)
    # Each text finds itself with another end from the start; far too large steps end that.
    near = [{"anchor": each, "positive": f"{each.rpartition(' ')[0]} w{40 + at}"} for at, each in enumerate(texts)]
    record = embedder.fit(triplet_rows(), validation=near, columns=Pairs(), epochs=2, learning_rate=10.0, batch_size=6)
    assert (record.kept_epoch, record.baseline) == (0, "embedder before the training")
    start, *later = (each.metrics["mrr"] for each in record.validations)
    assert start > max(later)
    assert record.validations[0].standard_error == 0  # it counts in full
    np.testing.assert_array_equal(embedder.encode(texts), before)
    assert embedder.card["training"]["kept_epoch"] == 0
    assert embedder.card["metrics"]["mrr"] == pytest.approx(start)
    embedder.save(tmp_path / "saved")
    np.testing.assert_array_equal(
        SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu").encode(texts), before
    )


def test_names_of_columns_say_which_kind_of_rows_they_are_of(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    rows = [{"question": row["anchor"], "answer": row["positive"]} for row in triplet_rows()]
    embedder.fit(rows, validation=rows, anchor="question", positive="answer", epochs=1)
    assert embedder.columns == Pairs("question", "answer")
    assert embedder.evaluate(rows, resamples=10).n == len(rows)
    assert embedder.evaluate(triplet_rows(), anchor="anchor", positive="positive", resamples=10).n == len(rows)
    assert embedder.evaluate(labelled_rows(), label="label", resamples=10).n == len(labelled_rows())
    assert embedder.with_columns(text_a="one", text_b="other").columns == ScoredPairs("one", "other")
    texts = [{"body": row["text"]} for row in labelled_rows()]
    embedder.fit(texts, validation=texts, text="body", loss=Distillation(Tiny()), epochs=1)
    assert embedder.columns == PlainTexts(("body",))
    with pytest.raises(InvalidInput, match="columns= or column names, not both"):
        embedder.fit(rows, columns=Pairs(), anchor="question")


def test_the_duration_is_estimated_before_a_teacher_embeds_the_texts(base, monkeypatch, capsys):
    announced = []
    monkeypatch.setattr(Forecast, "before", lambda self, *given: announced.append((self, *given)))
    _, before = fitted(base, "a teacher", epochs=20, show_progress=False)
    _, record = fitted(base, "a teacher", epochs=20, show_progress=True)
    assert record.losses == before.losses, "measuring changes nothing"
    ((one, seconds, tokens, teaching),) = announced
    assert (one.epochs, one.total) == (20, record.updates)
    assert min(seconds, tokens, teaching, one.reads.cost) > 0
    shown = capsys.readouterr().err.splitlines()
    assert shown.index("measuring the speed of this machine") < shown.index("embedding the texts with the teacher")


def test_matryoshka_vectors_are_good_when_they_are_cut(base, tmp_path):
    embedder, _ = fitted(without_dropout(base), "matryoshka")
    embedder.save(tmp_path / "saved")
    short = SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu", dimensions=6)
    assert short.evaluate(labelled_rows(), resamples=10).mrr.value == 1.0
    assert short.fitted.facts() == {
        "pooling": "mean",
        "dimensions": 6,
        "loss": "ranking",
        "matryoshka": [24, 6],
    }


def weights(embedder):
    return {name: value.clone() for name, value in embedder.model.encoder.state_dict().items()}


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def test_two_runs_of_one_seed_are_equal_to_the_bit(base):
    edit_config(base, hidden_dropout_prob=0.2)
    runs = [fitted(base, "labelled texts", epochs=1, seed=seed, max_tokens=20) for seed in (1, 1, 2)]
    first, second, other = (weights(embedder) for embedder, _ in runs)
    # These name the first place where two runs part, if they ever do.
    assert not any(record.interrupted for _, record in runs)
    assert runs[0][1].losses == runs[1][1].losses
    assert runs[0][1].validations == runs[1][1].validations
    assert same(first, second)
    assert not same(first, other)


class StopError(Exception):
    pass


def test_a_resumed_run_is_the_run_that_was_not_interrupted(base, tmp_path, monkeypatch):
    """With dropout, cached gradients, rows drawn anew in each epoch, and a stop in the middle of an epoch."""
    edit_config(base, hidden_dropout_prob=0.2, attention_probs_dropout_prob=0.1)
    options = {"epochs": 3, "batch_size": 6, "max_tokens": 20, "checkpoint_every_updates": 1}
    whole, record = fitted(base, "labelled texts", **options)
    calls = []

    def stopping(self, update):
        calls.append(update)
        if len(calls) == 7:  # the third update of the second epoch
            raise StopError
        return usual(self, update)

    usual = EmbeddingObjective.joined
    with monkeypatch.context() as patch:
        patch.setattr(EmbeddingObjective, "joined", stopping)
        with pytest.raises(StopError):
            fitted(base, "labelled texts", checkpoints=tmp_path / "checkpoints", **options)
    resumed, continued = fitted(base, "labelled texts", checkpoints=tmp_path / "checkpoints", resume=True, **options)
    assert continued.resumed_from == 6
    assert continued.losses == record.losses
    assert same(weights(resumed), weights(whole))


def test_a_run_is_not_resumed_with_another_loss(base, tmp_path):
    options = {"epochs": 1, "checkpoints": tmp_path / "checkpoints"}
    fitted(base, "labelled texts", **options)
    with pytest.raises(InvalidInput, match="loss was"):
        fitted(base, "labelled texts by margin", resume=True, **options)


# --- what is held out ---


@pytest.mark.parametrize("columns", [Pairs(), Triplets(), ScoredPairs("anchor", "positive", "score")], ids=str)
def test_rows_with_the_same_first_text_are_held_out_together(columns):
    """As they are where several negatives were found for each pair."""
    rows = [
        {"anchor": f"w{number // 3}", "positive": f"w9{number // 3}", "negative": f"n{number}", "score": number}
        for number in range(60)
    ]
    examples = EmbeddingExamples.read(TrainingData(rows, seed=2), columns, EmbeddingLearning())
    assert (len(examples.training), len(examples.held_out)) == (54, 6)
    learnt, held = ({row.text[0] for row in part} for part in (examples.training, examples.held_out))
    assert (len(held), learnt & held) == (2, set())


def small_labels(labels, each):
    return [
        {"text": f"w{5 + label % 40} w{20 + text}", "label": f"c{label}"}
        for label in range(labels)
        for text in range(each)
    ]


@pytest.mark.parametrize(("labels", "each"), [(10, 3), (10, 2), (2, 12), (7, 40)])
def test_labels_with_few_texts_are_held_out_so_that_something_can_be_found(base, labels, each):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    for seed in range(5):
        data = TrainingData(small_labels(labels, each), seed=seed)
        examples = EmbeddingExamples.read(data, LabelledTexts(), EmbeddingLearning())
        assert examples.unmeasured is None
        assert len(examples.held_out) == max(4, labels * each // 10)
    record = embedder.fit(small_labels(labels, each), columns=LabelledTexts(), epochs=1)
    assert [each.epoch for each in record.validations] == [0, 1]
    assert embedder.card["validation"] == "a tenth of the training data"
    assert embedder.card["metrics"]["mrr_low"] <= embedder.card["metrics"]["mrr"]


@pytest.mark.parametrize("rows", [small_labels(3, 4), small_labels(2, 2) + small_labels(40, 1)[2:]])
def test_labelled_texts_of_which_none_can_be_held_out_are_all_learnt_from_and_the_card_says_so(base, rows):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    record = embedder.fit(rows, columns=LabelledTexts(), epochs=2)
    assert (record.kept_epoch, record.validations) == (None, ())
    card = embedder.card
    assert (card["validation"], card["training_rows"], card["metrics"]) == ("none", len(rows), None)
    assert any("no rows were held out, since too few texts share a label" in limit for limit in card["limits"])


@pytest.mark.parametrize(
    ("labels", "words"), [("abc", "every label occurs once"), ("aaa", "all texts have the same label")]
)
def test_validation_texts_that_say_nothing_are_refused_before_the_training(base, labels, words):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    held = [{"text": f"w{5 + number}", "label": label} for number, label in enumerate(labels)]
    with pytest.raises(InvalidInput, match=f"the validation data allow no metric: {words}"):
        embedder.fit(labelled_rows(), validation=held, columns=LabelledTexts(), epochs=1)
    assert embedder.model.trainings == 0


# --- saving ---


def test_what_was_trained_and_not_saved_has_no_fingerprint(base, tmp_path):
    embedder, _ = fitted(base, "pairs", epochs=1)
    with pytest.raises(InvalidInput, match="save it before indexing"):
        SemanticSearch.build(embedder, ["w5 w6"])
    embedder.save(tmp_path / "saved")
    search = SemanticSearch.build(embedder, ["w5 w6", "w7"])
    search.save(tmp_path / "index")
    assert SemanticSearch.open(tmp_path / "index").search("w7", k=1)[0].text == "w7"


def test_an_unusable_training_leaves_the_embedder_as_it_was(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    before = embedder.fitted.fingerprint()
    with pytest.raises(InvalidInput):
        embedder.fit(scored_rows(), loss=MultipleNegativesRanking())
    assert embedder.fitted.fingerprint() == before
    assert embedder.card == {}


@pytest.mark.parametrize("columns", [{"text_a": 3, "text_b": "b", "score": "s"}, {"other": "x"}, ["text"]], ids=str)
def test_damaged_columns_of_a_card_are_refused(base, tmp_path, columns):
    SentenceEmbedder.from_pretrained(base, device="cpu").save(tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "card": {"columns": columns}}))
    with pytest.raises(CorruptCheckpoint, match="the columns of its card"):
        SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu")


# --- predictions ---


def test_similarities_say_how_much_of_both_texts_was_read(base):
    # A window of six tokens has room for four words.
    one, other = ("w5 w6", "w7 " * 9), ("w8 " * 6, "w9 " * 5)
    cutting = SentenceEmbedder.from_pretrained(base, device="cpu", max_length=6, on_overflow="truncate")
    found = cutting.predict([one, other])
    assert [(each.tokens_read.windows, each.tokens_read.dropped_tokens) for each in found] == [(1, 5), (1, 2 + 1)]
    rows = [dict(zip(("text_a", "text_b"), each, strict=True)) for each in (one, other)]
    assert list(cutting.predict_stream(read_rows(rows))) == found
    assert found[0].to_dict() == {"similarity": found[0].similarity, "windows": 1, "dropped_tokens": 5}
    whole = SentenceEmbedder.from_pretrained(base, device="cpu", max_length=6, stride=0)
    assert [(each.windows, each.dropped_tokens) for each in [whole.predict(one).tokens_read]] == [(3, 0)]


@pytest.mark.parametrize("columns", [ScoredPairs(), Pairs("text_a", "text_b")])
def test_reports_on_vectors_count_texts_that_are_cut(base, columns):
    rows = [{"text_a": f"w{5 + each} " * 6, "text_b": f"w{5 + each}", "score": each % 3} for each in range(6)]
    cutting = SentenceEmbedder.from_pretrained(base, device="cpu", max_length=6, on_overflow="truncate")
    with warnings.catch_warnings():
        warnings.simplefilter("error", TextsTruncated)
        report = cutting.evaluate(rows, columns=columns, resamples=5)
    assert report.to_dict()["tokens_read"] == {"texts": 12, "in_windows": 0, "cut": 6, "dropped_tokens": 12}
    assert report.summary().endswith("6 of 12 texts were truncated: 12 tokens were not read")


def test_an_embedder_of_single_texts_compares_nothing(base):
    embedder, _ = fitted(base, "labelled texts", epochs=1)
    with pytest.raises(InvalidInput, match="expected rows of two texts to compare"):
        embedder.columns.rows_of(["w5", "w6"])
    with pytest.raises(InvalidInput, match="expected two texts to compare, got 1"):
        SentenceEmbedder.from_pretrained(base, device="cpu").columns.rows_of(["w5"])


# --- data that are unusable ---


@pytest.mark.parametrize(
    ("columns", "rows", "words"),
    [
        (ScoredPairs(), [{"text_a": "w5", "text_b": "", "score": 1}], "row 1 .*the text in 'text_b' is empty"),
        (ScoredPairs(), [{"text_a": "w5", "score": 1}], "no column 'text_b'"),
        (ScoredPairs(), [{"text_a": "w5", "text_b": "w6", "score": "high"}], "'score': expected a finite number"),
        (ScoredPairs(), [{"text_a": "w5", "text_b": "w6", "score": None}], "'score' is missing, got null"),
        (ScoredPairs("a", "a"), [{"a": "w5", "score": 1}], "must be in different columns"),
        (LabelledTexts(), [{"text": "w5", "label": "x"}] * 8, "texts of at least two labels"),
        (LabelledTexts(), [{"text": "w5", "label": ""}], "'label' is missing, got ''"),
        (Pairs(), [{"anchor": "w5", "positive": "w6"}], "none can be held out"),
        (PlainTexts(), [{"text": "w5"}] * 8, "give a teacher"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_rows_are_refused_with_their_place(base, columns, rows, words):
    with pytest.raises(InvalidInput, match=words):
        SentenceEmbedder.from_pretrained(base, device="cpu").fit(rows, columns=columns, epochs=1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"batch_size": 1}, "batch_size must be at least 2"),
        ({"pairs_per_text": 2}, "pairs_per_text needs labelled texts"),
        ({"loss": Matryoshka(CoSENT(), (25,))}, "between 1 and 24, got 25"),
        ({"loss": Triplet()}, "the triplet loss needs triplets or labelled texts"),
    ],
)
def test_unusable_settings_are_refused(base, options, words):
    with pytest.raises(InvalidInput, match=words):
        SentenceEmbedder.from_pretrained(base, device="cpu").fit(scored_rows(), **options)


def test_a_vector_that_is_cut_has_no_longer_matryoshka(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", dimensions=8)
    with pytest.raises(InvalidInput, match="between 1 and 8, got 9"):
        embedder.fit(scored_rows(), loss=Matryoshka(CoSENT(), (9,)))


def test_texts_that_are_cut_are_counted(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", on_overflow="truncate")
    with pytest.warns(TextsTruncated, match=r"\d+ tokens were not read"):
        embedder.fit(triplet_rows(), validation=triplet_rows(2), columns=Pairs(), epochs=1)


@pytest.mark.parametrize(
    ("rows", "columns", "words"),
    [
        ([{"text": "w5"}], PlainTexts(), "texts alone cannot be evaluated"),
        (
            [{"text": f"w{5 + each}", "label": str(each)} for each in range(3)],
            LabelledTexts(),
            "every label occurs once",
        ),
    ],
)
def test_rows_that_measure_nothing_are_refused(base, rows, columns, words):
    with pytest.raises(InvalidInput, match=words):
        SentenceEmbedder.from_pretrained(base, device="cpu").evaluate(rows, columns=columns)


@pytest.mark.parametrize(
    ("given", "kind"),
    [
        ({}, ScoredPairs()),
        ({"text_a": "one", "text_b": "two"}, ScoredPairs("one", "two")),
        ({"positive": "answer"}, Pairs(positive="answer")),
        ({"anchor": "question"}, Pairs(anchor="question")),
        ({"negative": ("n1", "n2")}, Triplets(negative=("n1", "n2"))),
        ({"label": "kind"}, LabelledTexts(label="kind")),
        ({"text": ("title", "body")}, LabelledTexts(text=("title", "body"))),
        ({"teacher": True}, PlainTexts()),
        ({"text": ("one", "two"), "teacher": True}, PlainTexts(("one", "two"))),
    ],
    ids=str,
)
def test_the_columns_tell_the_kind_of_data(given, kind):
    assert kind_of(**given) == kind


@pytest.mark.parametrize(
    ("there", "kind"),
    [
        (["text_a", "text_b", "score"], ScoredPairs()),
        (["text_a", "text_b", "anchor", "positive"], ScoredPairs()),
        (["anchor", "positive", "id"], Pairs()),
        (["anchor", "positive", "negative", "text", "label"], Triplets()),
        (["negative_10", "anchor", "negative_2", "positive"], Triplets(negative=("negative_2", "negative_10"))),
        (["anchor", "positive", "negatives", "negative_x"], Pairs()),
        (["anchor", "positive", "score"], ScoredPairs("anchor", "positive")),
        (["anchor", "positive", "label"], ScoredPairs("anchor", "positive", "label")),
        (["anchor", "positive", "negative", "score"], Triplets()),
        (["label", "text"], LabelledTexts()),
        (["text"], ScoredPairs()),
    ],
    ids=str,
)
def test_the_columns_that_are_there_tell_the_kind_of_data(there, kind):
    assert usual_kind(there) == kind


def test_a_pair_with_a_score_is_no_pair_that_belongs_together():
    source, kind = with_usual_kind([{"anchor": "a", "positive": "b", "score": "0"}])
    assert [row.label for row in read_embedding_rows(source, kind)] == [0.0]
    rows = [{"anchor": "a", "positive": "b", "label": "contradiction"}]
    with pytest.raises(InvalidInput, match=r"'label': expected .* number.* Drop 'label' to read all rows as pairs"):
        read_embedding_rows(*with_usual_kind(rows))


def test_a_fit_that_names_no_column_learns_from_the_kind_of_rows_there_are(base, tmp_path):
    rows = [{**row, "negative_1": row["negative"]} for row in triplet_rows()]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    kinds = []
    with (tmp_path / "rows.jsonl").open() as stream:
        for data in (rows, tmp_path / "rows.jsonl", stream):
            embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
            kinds.append((embedder.fit(data, epochs=1).updates, embedder.columns))
    assert len(set(kinds)) == 1
    assert kinds[0][1] == Triplets(negative=("negative", "negative_1"))
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    embedder.fit(rows, columns=Pairs(), epochs=1)
    assert embedder.columns == Pairs()
    with pytest.raises(TypeError, match="negatives"):
        embedder.fit(tmp_path / "absent.jsonl", negatives="negative")
    with pytest.raises(InvalidInput, match="no column 'anchor'"):  # as in the training before
        embedder.fit([{"first": "w5", "second": "w6"}])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"text_a": "one", "positive": "two"}, r"got text_a, positive\."),
        ({"label": "one", "score": "two"}, "expected columns of one kind of rows"),
        ({"score": "one", "teacher": True}, "With a teacher, name only text"),
    ],
    ids=str,
)
def test_columns_of_several_kinds_are_refused(given, words):
    with pytest.raises(InvalidInput, match=words):
        kind_of(**given)


def test_an_embedder_teaches_another_of_another_width(base, tmp_path):
    write_checkpoint(tmp_path / "student", "distilbert")
    rows = [{"text": each["text"]} for each in labelled_rows()]
    teacher = SentenceEmbedder.from_pretrained(base, device="cpu", dimensions=11)
    student = SentenceEmbedder.from_pretrained(tmp_path / "student", device="cpu")
    loss = Matryoshka(Distillation(teacher), (24, 6))
    record = student.fit(rows, validation=rows, columns=PlainTexts(), loss=loss, epochs=8, learning_rate=3e-3)
    scores = [each.metrics["spearman_with_teacher"] for each in record.validations]
    assert max(scores) > scores[0]
    assert student.card["loss"] == "distillation"
    assert load(tmp_path / "student").config.hidden == 24
