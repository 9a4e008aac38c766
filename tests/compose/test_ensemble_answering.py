"""Ensembles of question answerers: spans of several models combined, when to give none, what stays exact."""

import itertools
import json
from collections import Counter

import numpy as np
import pytest
from ensemble_cases import reported

from answering_cases import long_question, questions, stored, write_pair_tokenizer
from bothways import Ensemble
from bothways.compose.ensembles.combining import Disagreement
from bothways.compose.opening import open_trained
from bothways.data import read_rows
from bothways.errors import CorruptCheckpoint, InvalidInput
from bothways.evaluation.metrics.question_answering import best_threshold, score_answers
from bothways.tasks import QuestionAnswerer, TextClassifier
from bothways.tasks.question_answering.outputs import spans_scored
from bothways.tasks.question_answering.spans import FoundSpans, Span
from bothways.tasks.scores import TokensRead
from contract_cases import DROPOUTS
from tiny_models import edit_config, write_checkpoint

FAMILIES = ("bert", "distilbert", "xlnet")
# Of families that differ, so do the lengths that they read at once.
LENGTHS = {"bert": 18, "distilbert": 12, "xlnet": 40}
WORDS = {"max_answer_tokens": 1, "top": 20}
ANSWERED = [row for row in questions(32) if row["answers"]]


def trained(folder, base, data, *, seed, epochs=1, **options):
    answerer = QuestionAnswerer.from_pretrained(base, device="cpu", **options)
    answerer.fit(data, validation=data, epochs=epochs, learning_rate=1e-2, batch_size=6, seed=seed)
    answerer.save(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Answerers of three families, some that always answer, and a classifier."""
    folder = tmp_path_factory.mktemp("answerers")
    for number, family in enumerate(FAMILIES):
        write_checkpoint(folder / family, family, seed=number)
        write_pair_tokenizer(folder / family, family)
        edit_config(folder / family, **dict.fromkeys(DROPOUTS, 0.0))
        reading = {"max_length": LENGTHS[family]}
        trained(folder / f"{family}-qa", folder / family, questions(24), seed=number, epochs=6, **reading)
    for seed in (1, 2):
        trained(folder / f"always-{seed}", folder / "bert", ANSWERED, seed=seed)
    classifier = TextClassifier.from_pretrained(folder / "bert", device="cpu")
    labelled = [{"text": f"w{5 + number % 2}", "label": "ab"[number % 2]} for number in range(6)]
    classifier.fit(labelled, validation=labelled, epochs=1)
    classifier.save(folder / "labels")
    return folder


@pytest.fixture
def members(runs):
    return [runs / f"{family}-qa" for family in FAMILIES]


def asked(data):
    return list(read_rows(data))


def word_answers(folder, data):
    """Of a member that gives single words: probabilities of each word by its place, and of no answer (None)."""
    answerer = open_trained(folder, device="cpu")
    given = [(row["question"], row["context"]) for row in data]
    return [
        {(each.start, each.end): each.probability for each in found.answers} | {None: found.no_answer_probability}
        for found in answerer.predict(given, **WORDS)
    ]


@pytest.mark.parametrize("method", ["mean", "vote"])
def test_spans_have_the_combined_probabilities_of_members_of_different_families(members, method):
    data = questions(12)
    ensemble = Ensemble.of(members, method=method, device="cpu")
    own = [word_answers(folder, data) for folder in members]
    differing = 0
    for number, found in enumerate(ensemble.predict_stream(asked(data), **WORDS)):
        expected = Counter()
        for answers in own:
            expected.update({place: value / len(own) for place, value in answers[number].items()})
        chosen = [max(answers[number], key=answers[number].get) for answers in own]
        if method == "vote":
            expected = {place: (value + chosen.count(place)) / (len(own) + 1) for place, value in expected.items()}
        answers = found.together.answers
        assert {(each.start, each.end) for each in answers} == expected.keys() - {None}
        for each in answers:
            assert each.probability == pytest.approx(expected[each.start, each.end], abs=1e-5)
        assert found.together.no_answer_probability == pytest.approx(expected[None], abs=1e-5)
        best = max(expected, key=expected.get)
        assert (None if best is None else best[0]) == found.together.start
        assert found.disagreement.differing == pytest.approx(np.mean([each != best for each in chosen]))
        differing += found.disagreement.differing > 0
        rows_MK = np.array([[answers[number].get(place, 0) for place in expected] for answers in own])
        mixed_K = rows_MK.mean(axis=0)
        entropy = [-(row[row > 0] * np.log(row[row > 0])).sum() for row in (mixed_K, *rows_MK)]
        assert found.disagreement.information == pytest.approx(entropy[0] - np.mean(entropy[1:]), abs=1e-5)
    assert 0 < differing < len(data)


def test_equal_members_answer_as_one_of_them_and_agree(runs, members):
    data = [*questions(8), long_question()]
    for folder in (members[1], runs / "always-1"):
        alone = list(open_trained(folder, device="cpu").predict_stream(asked(data)))
        ensemble = Ensemble.of([folder] * 2, device="cpu")
        for found, expected in zip(ensemble.predict_stream(asked(data)), alone, strict=True):
            together = found.together
            assert (together.answer, together.start, together.end) == (expected.answer, expected.start, expected.end)
            assert together.probability == pytest.approx(expected.probability, abs=1e-9)
            assert together.no_answer_probability == pytest.approx(expected.no_answer_probability, abs=1e-9)
            assert together.tokens_read == expected.tokens_read
            assert found.disagreement.differing == 0
            assert found.disagreement.information == pytest.approx(0, abs=1e-9)


def test_answers_are_parts_of_the_context_that_do_not_overlap(members):
    ensemble = Ensemble.of(members, device="cpu")
    context = "  w30\n\tw5  w10 w11   w40 w12 w13 "
    [found] = ensemble.predict_stream(asked([{"question": "w5", "context": context}]), top=3)
    answers = found.together.answers
    assert 2 <= len(answers) <= 3  # as many as were asked for, where the members know of so many apart
    for answer in answers:
        assert answer.text == context[answer.start : answer.end] == answer.text.strip() != ""
    borders = sorted((answer.start, answer.end) for answer in answers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(borders))
    assert [each.probability for each in answers] == sorted((each.probability for each in answers), reverse=True)
    json.dumps(found.to_dict())


def test_threshold_and_temperature_are_learnt_from_held_out_questions(members, tmp_path):
    held = [*questions(36), long_question()]
    ensemble = Ensemble.of(members, calibrate=held, device="cpu")
    plain = list(Ensemble.of(members, device="cpu").predict_stream(asked(held)))
    best = [each.together.answers[0] for each in plain]
    scores = score_answers([each.text for each in best], [[gold["text"] for gold in row["answers"]] for row in held])
    expected = best_threshold(np.array([each.score for each in best]), scores.f1_N, scores.has_answer_N)
    assert ensemble.fitted.facts()["no_answer_threshold"] == pytest.approx(expected)
    assert ensemble.temperature is not None
    assert ensemble.card["calibration_rows"] == 37
    for found, answer in zip(ensemble.predict_stream(asked(held)), best, strict=True):
        assert (found.together.answer is None) is (answer.score <= ensemble.fitted.facts()["no_answer_threshold"])
    before = Ensemble.of(members, device="cpu").evaluate(held, resamples=5)
    assert ensemble.evaluate(held, resamples=5).f1.value >= before.f1.value


def test_a_saved_ensemble_comes_back_the_same(members, tmp_path):
    ensemble = Ensemble.of(members, method="vote", calibrate=questions(36), device="cpu")
    ensemble.save(tmp_path / "ens")
    again = open_trained(tmp_path / "ens", device="cpu")
    assert again.fitted.facts() | {"members": []} == ensemble.fitted.facts() | {"members": []}
    data = asked([*questions(6), long_question()])
    found = list(again.predict_stream(data))
    assert found == list(ensemble.predict_stream(data))
    # The one that reads least at once needs most windows.
    alone = [open_trained(folder, device="cpu").predict_stream(data[-1:]) for folder in members]
    assert found[-1].together.tokens_read.windows == max(next(each).tokens_read.windows for each in alone) > 1


def test_members_that_always_answer_make_an_ensemble_that_does(runs, members):
    always = [runs / "always-1", runs / "always-2"]
    without = [row for row in questions(16) if not row["answers"]]
    for calibrate in (None, ANSWERED):
        ensemble = Ensemble.of(always, calibrate=calibrate, device="cpu")
        assert ensemble.fitted.facts()["no_answer_threshold"] is None
        for found in ensemble.predict_stream(asked(without)):
            assert found.together.answer
            assert found.together.no_answer_probability is None
    with_others = Ensemble.of([always[0], members[0]], device="cpu")
    assert with_others.fitted.facts()["no_answer_threshold"] == 0


def test_a_report_has_the_ensemble_its_members_and_their_disagreement(members):
    ensemble, data = Ensemble.of(members, calibrate=questions(36), device="cpu"), [*questions(12), long_question()]
    content, found = reported(ensemble, members, data, ["exact_match", "f1"])
    golds = [[gold["text"] for gold in row["answers"]] for row in data]
    scores = score_answers([each.together.answer or "" for each in found], golds)
    assert content["exact_match"] == pytest.approx(scores.exact_N.mean())
    assert content["f1"] == pytest.approx(scores.f1_N.mean())
    assert content["tokens_read"]["in_windows"] == sum(each.together.tokens_read.windows > 1 for each in found) > 0


def test_a_member_that_finds_no_span_is_sure_that_there_is_no_answer(members):
    outputs = Ensemble.of(members[:2], device="cpu").fitted.outputs
    span, read = Span(0, 2, 1.0), TokensRead(1, 0)
    none, some = (spans_scored(FoundSpans("w5 w6", spans, spans), read) for spans in ((), (span,)))
    [both] = outputs.decide([outputs.combine([none, none])])
    found = both.together
    assert (found.answer, found.answers, found.probability) == (None, (), 1)
    assert both.disagreement == Disagreement(0.0, 0.0)
    [both] = outputs.decide([outputs.combine([none, some])])
    found = both.together
    assert found.answer is None
    assert found.no_answer_probability == pytest.approx((1 + 1 / (1 + np.e)) / 2)
    assert found.answers[0].probability == pytest.approx(1 - found.no_answer_probability)


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["bert-qa", "xlnet-qa"], {"method": "stacked"}, "by 'mean' or 'vote', not by 'stacked': stacking needs"),
        (["bert-qa", "labels"], {}, r"a model for question-answering and .* one for classification \(single\)"),
        (["bert-qa", "xlnet-qa"], {"calibrate": [{"question": "w5", "context": "w6"}]}, "no column 'answers'"),
    ],
)
def test_what_cannot_be_combined_is_refused(runs, names, options, said):
    with pytest.raises(InvalidInput, match=said):
        Ensemble.of([runs / name for name in names], device="cpu", **options)


def test_a_stacking_of_answers_is_refused(members, tmp_path):
    change = {"method": "stacked", "weights": [1.0, 1.0], "biases": []}
    Ensemble.of(members[:2], calibrate=questions(12), device="cpu").save(tmp_path / "ens")
    (tmp_path / "ens" / "bothways.json").write_text(json.dumps(stored(tmp_path / "ens") | change))
    with pytest.raises(CorruptCheckpoint, match="method as 'mean' or 'vote'"):
        Ensemble.from_pretrained(tmp_path / "ens", device="cpu")
