"""The card of a saved model of every task: data with checksums, seed, metrics with intervals, and limits."""

import json
import re

import pytest

from answering_cases import questions
from bothways import Ensemble
from bothways.tasks import FillMask, PairClassifier, QuestionAnswerer, SentenceEmbedder, TextClassifier, TextTagger
from bothways.tasks.embedding.losses import Distillation
from bothways.tasks.embedding.spec import LabelledTexts, Pairs, PlainTexts, ScoredPairs
from classifier_cases import rows, tagged, without_dropout
from pair_cases import scored
from tiny_models import write_checkpoint

ONCE = {"epochs": 1, "seed": 7}
TEXTS = [row["text"] for row in rows(12)]


def opened(kind, base):
    return kind.from_pretrained(base, device="cpu")


def embedder(base, data, held, columns, **options):
    made = opened(SentenceEmbedder, base)
    made.fit(data, validation=held, columns=columns, **ONCE, **options)
    return made


def distilled(base):
    texts, held = ([{"text": row["text"]} for row in rows(count)] for count in (12, 6))
    return embedder(base, texts, held, PlainTexts(), loss=Distillation(opened(SentenceEmbedder, base)))


def fitted(kind, base, data, held, **options):
    made = opened(kind, base)
    made.fit(data, validation=held, **ONCE, **options)
    return made


def found_pairs(count):
    return [{"anchor": text, "positive": f"w{30 + number}"} for number, text in enumerate(TEXTS[:count])]


# How each is trained, how many rows it learns from and is held against, and a metric that its card has.
CASES = {
    "classification": (lambda base: fitted(TextClassifier, base, rows(12), rows(6)), 12, 6, "accuracy"),
    "regression": (
        lambda base: fitted(PairClassifier, base, scored(12), scored(6), label="score", target="regression"),
        12,
        6,
        "spearman",
    ),
    "tagging": (lambda base: fitted(TextTagger, base, tagged(12), tagged(6)), 12, 6, "span_f1"),
    "answering": (lambda base: fitted(QuestionAnswerer, base, questions(12), questions(8)), 12, 8, "f1"),
    "masked_lm": (lambda base: fitted(FillMask, base, TEXTS, TEXTS[:5]), 12, 5, "perplexity"),
    "scored pairs": (lambda base: embedder(base, scored(12), scored(6), ScoredPairs()), 12, 6, "spearman"),
    "pairs": (lambda base: embedder(base, found_pairs(12), found_pairs(6), Pairs()), 12, 6, "mrr"),
    "labelled texts": (lambda base: embedder(base, rows(12), rows(6), LabelledTexts()), 12, 6, "mrr"),
    "distillation": (distilled, 12, 6, "spearman_with_teacher"),
}


EVALUATED = {
    "tagging": tagged(6),
    "masked_lm": TEXTS[:5],
    "scored pairs": scored(6),
    "classification": rows(6),
    "answering": questions(8),
}


def card_of(model, folder):
    model.save(folder)
    return json.loads((folder / "bothways.json").read_text())["card"]


def checksums(part):
    return {name: value for name, value in part.items() if name.endswith("_sha256")}


@pytest.mark.parametrize("case", CASES)
def test_a_saved_model_says_what_it_was_trained_on_how_good_it_is_and_what_that_does_not_say(base, tmp_path, case):
    train, training_rows, validation_rows, metric = CASES[case]
    model = train(without_dropout(base))
    card = card_of(model, tmp_path / "saved")
    assert card["data"]["training"]["rows"] == card["training_rows"] == training_rows
    assert card["data"]["validation"]["rows"] == card["validation_rows"] == validation_rows
    assert card["validation"] == "given"
    for part in card["data"].values():
        assert "tokens_sha256" in checksums(part)
        assert all(re.fullmatch("[0-9a-f]{64}", value) for value in checksums(part).values())
    assert checksums(card["data"]["training"]) != checksums(card["data"]["validation"])
    assert card["training"]["settings"]["seed"] == 7
    assert card["metrics"]["of"] == "the validation rows"
    assert {metric, f"{metric}_low", f"{metric}_high"} <= card["metrics"].keys()
    assert any("optimistic" in limit for limit in card["limits"])
    assert len(set(card["limits"])) == len(card["limits"]) >= 2
    assert card.get("teacher") == (str(base) if case == "distillation" else None)
    if case in EVALUATED:
        report = model.evaluate(EVALUATED[case], seed=7).to_dict()
        for name in (metric, f"{metric}_low", f"{metric}_high"):
            assert card["metrics"][name] == pytest.approx(report[name], abs=1e-5)


def test_tags_that_change_have_another_checksum_and_texts_the_same(base):
    first = fitted(TextTagger, base, tagged(12), tagged(6)).card["data"]["training"]
    turned = [{**row, "tags": [*row["tags"][:-1], "B-PER"]} for row in tagged(12)]
    second = fitted(TextTagger, base, turned, tagged(6)).card["data"]["training"]
    assert first["tokens_sha256"] == second["tokens_sha256"]
    assert first["tags_sha256"] != second["tags_sha256"]
    assert first["words"] == sum(len(row["tags"]) for row in tagged(12))


@pytest.mark.parametrize("held", [scored(2), [{**row, "score": 1.0} for row in scored(5)]], ids=["two", "constant"])
def test_held_out_pairs_without_a_correlation_train_and_leave_the_card_without_metrics(base, held):
    made = embedder(base, scored(12), held, ScoredPairs())
    assert made.card["metrics"] is None
    assert any("a correlation" in limit for limit in made.card["limits"])
    numbers = fitted(PairClassifier, base, scored(12), held, label="score", target="regression")
    assert "mse_low" in numbers.card["metrics"]
    assert "pearson" not in numbers.card["metrics"]


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Two saved models of each of the tasks that ensembles are made of."""
    folder = tmp_path_factory.mktemp("members")
    write_checkpoint(folder / "base")
    made = {}
    for name in ("classification", "tagging", "answering"):
        CASES[name][0](folder / "base").save(folder / name)
        made[name] = [folder / name] * 2
    return made


ENSEMBLES = {
    "classification": (rows(18), "accuracy", "labels_sha256"),
    "tagging": (tagged(18), "span_f1", "tags_sha256"),
    "answering": (questions(18), "f1", "answers_sha256"),
}


@pytest.mark.parametrize("task", ENSEMBLES)
def test_the_card_of_an_ensemble_says_what_it_was_calibrated_on_and_how_good_it_is(members, tmp_path, task):
    held, metric, truth = ENSEMBLES[task]
    ensemble = Ensemble.of(members[task], calibrate=held, device="cpu")
    card = card_of(ensemble, tmp_path / "ensemble")
    assert card["method"] == "mean"
    assert [each["member"] for each in card["members"]] == [str(folder) for folder in members[task]]
    assert all(0 <= each[metric] <= 1 for each in card["members"])
    part = card["data"]["calibration"]
    assert part["rows"] == card["calibration_rows"] == 18
    assert len(part["texts_sha256"]) == len(part[truth]) == 64
    report = ensemble.evaluate(held).to_dict()
    assert card["metrics"]["of"] == "the calibration rows"
    for name in (metric, f"{metric}_low", f"{metric}_high"):
        assert card["metrics"][name] == pytest.approx(report[name])
    assert any("optimistic" in limit and "the calibration of the ensemble" in limit for limit in card["limits"])
    other = Ensemble.of(members[task], calibrate=held[:12], device="cpu").card["data"]["calibration"]
    assert other["texts_sha256"] != part["texts_sha256"]


def test_an_ensemble_whose_members_tell_texts_from_elsewhere_does_not_say_that_it_cannot(members):
    said = {
        task: any("does not detect texts" in limit for limit in Ensemble.of(folders, device="cpu").card["limits"])
        for task, folders in members.items()
    }
    assert said == {"classification": False, "tagging": True, "answering": True}


def test_an_ensemble_without_calibration_says_so(members, tmp_path):
    ensemble = Ensemble.of(members["classification"], method="vote", device="cpu")
    card = card_of(ensemble, tmp_path / "ensemble")
    assert (card["method"], card["calibration_rows"], card["data"], card["metrics"]) == ("vote", 0, {}, None)
    assert any("no calibration rows were given" in limit for limit in card["limits"])
    assert Ensemble.from_pretrained(tmp_path / "ensemble", device="cpu").card == card


def test_a_card_says_that_a_model_was_trained_before(base, tmp_path):
    classifier = opened(TextClassifier, base)
    for before in (None, 1):
        classifier.fit(rows(), validation=rows(6), **ONCE)
        assert (classifier.card["base_model"], classifier.card.get("trained_before")) == (str(base), before)
    resumed = opened(TextClassifier, base)
    resumed.fit(rows(), validation=rows(6), checkpoints=tmp_path / "run", resume=True, **ONCE)
    assert "trained_before" not in resumed.card
    resumed.fit(rows(), validation=rows(6), **ONCE)
    assert resumed.card["trained_before"] == 1
    other = opened(SentenceEmbedder, base)
    pairs = [{**row, "score": float(number)} for number, row in enumerate(scored())]
    other.fit(pairs, validation=pairs, **ONCE)
    other.save(tmp_path / "saved")
    other.fit(pairs, validation=pairs, **ONCE)
    assert other.card["base_model"] == str(tmp_path / "saved")
    assert "trained_before" not in other.card
