"""Fine-tuning, predicting, calibrating and saving question answerers, and what they are given wrongly."""

import itertools
import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

from answering_cases import long_question, questions, write_pair_tokenizer
from bothways.compose.opening import open_trained
from bothways.errors import CorruptCheckpoint, InvalidInput, NotCalibrated, NotFitted, TextTooLong
from bothways.tasks import QuestionAnswerer, TextClassifier, compare
from bothways.tasks.question_answering.outputs import no_answer_index
from bothways.tasks.question_answering.spec import LONGEST_ANSWER, AnswerOpening
from bothways.training.options import AdamW
from tiny_models import edit_config, write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}
ASKED = ("w5", "w30 w5 w10 w11 w40")


def opened(folder, **options):
    return QuestionAnswerer.from_pretrained(folder, device="cpu", **options)


def fitted(folder, data=None, *, open_with=None, **options):
    answerer = opened(folder, **(open_with or {}))
    answerer.fit(data or questions(), **{"validation": questions(8), **QUICK, **options})
    return answerer


@pytest.fixture(scope="module")
def saved(tiny_bert, tmp_path_factory):
    """A trained model in a folder, made once; tests copy it to change it."""
    folder = tmp_path_factory.mktemp("answering") / "saved"
    fitted(tiny_bert).save(folder)
    return folder


@pytest.fixture
def answerer(saved):
    return opened(saved)


def test_answers_are_parts_of_the_context_at_their_places(answerer):
    context = "  w30\n\tw5  w10 w11   w40 "
    found = answerer.predict(("w5", context), top=4)
    assert len(found.answers) > 1
    for answer in found.answers:
        assert answer.text == context[answer.start : answer.end] == answer.text.strip() != ""
    borders = sorted((answer.start, answer.end) for answer in found.answers)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(borders))
    assert [each.score for each in found.answers] == sorted((each.score for each in found.answers), reverse=True)


def test_controls_in_front_of_a_context_move_no_answer(answerer):
    context = "w30 w5 w10 w11 w40"
    plain, behind = (answerer.predict(("w5", front + context)) for front in ("", "\x01\x02"))
    assert [each.text for each in behind.answers] == [each.text for each in plain.answers]
    assert [each.start for each in behind.answers] == [each.start + 2 for each in plain.answers]


def test_probabilities_go_with_the_scores_and_the_threshold_decides(answerer):
    low, high = (-1000.0, 1000.0)
    sure = answerer.predict(ASKED, top=3, threshold=low)
    assert sure.answer == sure.answers[0].text
    assert (sure.start, sure.end, sure.probability) == (
        sure.answers[0].start,
        sure.answers[0].end,
        sure.answers[0].probability,
    )
    assert sure.no_answer_probability == pytest.approx(0, abs=1e-9)
    ratio = np.exp(
        (sure.answers[1].score - sure.answers[0].score) / answerer.fitted.outputs.confidence.temperature.value
    )
    assert sure.answers[1].probability == pytest.approx(sure.answers[0].probability * ratio)
    none = answerer.predict(ASKED, top=3, threshold=high)
    assert (none.answer, none.start, none.end) == (None, None, None)
    assert none.probability == none.no_answer_probability == pytest.approx(1)
    assert [each.text for each in none.answers] == [each.text for each in sure.answers]
    for threshold in (sure.answers[0].score - 0.01, sure.answers[0].score + 0.01):
        assert (answerer.predict(ASKED, top=3, threshold=threshold).answer is None) is (
            threshold > sure.answers[0].score
        )


def test_the_twenty_best_spans_and_no_answer_share_one(answerer):
    found = answerer.predict(ASKED, max_answer_tokens=1, top=20)
    assert len(found.answers) == 5
    total = sum(each.probability for each in found.answers) + found.no_answer_probability
    assert total == pytest.approx(1)


def test_an_answer_has_no_more_tokens_than_asked_for(answerer):
    for longest in (1, 2, 3):
        answers = answerer.predict(ASKED, max_answer_tokens=longest, top=5).answers
        words = [len(each.text.split()) for each in answers]
        assert max(words) <= longest


def test_uncalibrated_probabilities_are_those_of_the_head(answerer):
    found = answerer.predict(ASKED, calibrated=False)
    calibrated = answerer.predict(ASKED, calibrated=True)
    assert calibrated == answerer.predict(ASKED)
    assert [each.score for each in found.answers] == [each.score for each in calibrated.answers]
    assert answerer.fitted.outputs.confidence.temperature.value != 1
    assert found.probability != calibrated.probability


def test_a_long_context_is_read_to_its_end_and_a_cut_one_says_so(answerer, tiny_bert):
    row = long_question()
    words = row["context"].split()
    always = {"max_answer_tokens": 1, "top": 200, "threshold": -math.inf}
    found = answerer.predict((row["question"], row["context"]), **always)
    assert found.tokens_read.windows > 2
    assert found.tokens_read.dropped_tokens == 0
    # Of one token each they are all its words.
    assert [each.text for each in sorted(found.answers, key=lambda each: each.start)] == words
    cut = opened(tiny_bert, on_overflow="truncate")
    cut.fit([*questions(), row], validation=questions(8), **QUICK)
    reading = cut.predict((row["question"], row["context"])).tokens_read
    assert (reading.windows, reading.dropped_tokens) == (1, len(words) - (18 - 4))
    report = cut.evaluate([*questions(3), row], resamples=10)
    assert report.to_dict()["tokens_read"] == {
        "texts": 4,
        "in_windows": 0,
        "cut": 1,
        "dropped_tokens": reading.dropped_tokens,
    }
    assert "1 of 4 texts were truncated" in report.summary()
    assert compare(answerer, cut, [*questions(3), row], resamples=10).tokens_read[1] == report.tokens_read
    with pytest.raises(TextTooLong, match="limit of 18"):
        opened(tiny_bert, on_overflow="error").fit([*questions(), row], validation=questions(8), **QUICK)


def test_without_questions_without_an_answer_the_model_always_answers(tiny_bert, tmp_path):
    data = [row for row in questions(16) if row["answers"]]
    answerer = fitted(tiny_bert, data, validation=data)
    assert answerer.fitted.outputs.threshold is None
    found = answerer.predict([(row["question"], row["context"]) for row in questions(16)])
    assert all(each.answer and each.no_answer_probability is None for each in found)
    answerer.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    assert again.fitted.outputs.threshold is None
    assert again.predict(ASKED).to_dict()["no_answer_probability"] is None
    assert any("cannot decline: it always gives one" in limit for limit in again.card["limits"])
    assert again.evaluate(data, resamples=10).settings["squad_version"] == "1.1"


def test_the_threshold_is_that_of_the_best_f1_on_the_validation_data(answerer):
    validation = questions(8)
    f1 = answerer.evaluate(validation, resamples=10).f1.value
    best = answerer.fitted.outputs.threshold
    for threshold in np.linspace(best - 6, best + 6, 13).tolist():
        other = answerer._with(replace(answerer.fitted, outputs=replace(answerer.fitted.outputs, threshold=threshold)))
        assert other.evaluate(validation, resamples=10).f1.value <= f1 + 1e-9


def test_two_models_are_compared_by_f1(answerer, saved):
    data = questions(20)
    report, alone = compare(answerer, opened(saved), data, resamples=10), answerer.evaluate(data, resamples=10)
    assert report.n == 20
    assert report.metrics["f1"].first.value == pytest.approx(alone.f1.value)
    assert report.metrics["exact_match"].second.value == pytest.approx(alone.exact_match.value)
    assert report.tests[0].of == "f1"


def test_without_validation_data_a_tenth_is_held_out_with_its_contexts(tiny_bert):
    card = fitted(tiny_bert, questions(20), validation=None, epochs=1).card
    assert (card["training_rows"], card["validation_rows"]) == (18, 2)
    assert card["validation"] == "a tenth of the training data"
    assert sum(card["data"][part]["without_answer"] for part in ("training", "validation")) == 5
    assert not any("always gives one" in limit for limit in card["limits"])


def test_several_annotated_answers_and_the_longest_answer_are_kept(tiny_bert, tmp_path):
    data = questions()
    for row in data:
        if row["answers"]:
            text = row["answers"][0]["text"].split()[0]
            row["answers"].append({"text": text, "start": row["context"].index(text)})
    fitted(tiny_bert, data, validation=data, open_with={"max_answer_tokens": 7}).save(tmp_path / "saved")
    assert opened(tmp_path / "saved").fitted.outputs.max_answer_tokens == 7
    assert opened(tmp_path / "saved", max_answer_tokens=3).fitted.outputs.max_answer_tokens == 3


def test_fitting_again_goes_on_with_the_head(saved):
    answerer = opened(saved)
    before = answerer.predict(ASKED).answers
    answerer.fit(questions(), validation=questions(8), epochs=1, learning_rate=1e-9, optimizer=AdamW(weight_decay=0))
    assert answerer.predict(ASKED).answers[0].score == pytest.approx(before[0].score, abs=1e-3)


def test_a_classifier_fine_tuned_to_answer_opens_with_two_outputs(tiny_bert, tmp_path):
    rows = [{"text": f"w{5 + number % 3}", "label": "abc"[number % 3]} for number in range(9)]
    classifier = TextClassifier.from_pretrained(tiny_bert, device="cpu")
    classifier.fit(rows, validation=rows, epochs=1)
    classifier.save(tmp_path / "classifier")
    fitted(tmp_path / "classifier").save(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert not {"id2label", "label2id", "num_labels", "problem_type"} & settings.keys()
    assert isinstance(open_trained(tmp_path / "saved", device="cpu"), QuestionAnswerer)


def test_the_place_for_no_answer_is_where_the_tokenizer_puts_it(tmp_path):
    for model_type, expected in (("bert", 0), ("roberta", 0), ("xlnet", -1)):
        write_checkpoint(tmp_path / model_type, model_type)
        write_pair_tokenizer(tmp_path / model_type, model_type)
        assert no_answer_index(opened(tmp_path / model_type).model.tokenizer) == expected


# --- what is not usable ---


def test_a_tokenizer_without_a_place_for_no_answer_is_refused(base):
    path = base / "tokenizer.json"
    content = json.loads(path.read_text())
    content["post_processor"] = None
    path.write_text(json.dumps(content))
    with pytest.raises(InvalidInput, match=r"needs a '\[CLS\]' token"):
        opened(base)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (["w5", "w6", "w7", "w8"], r"got list\[str, str, str, \.\.\.\]: "),
        (("w5",), "question 2 must be a tuple of a question and its context, got tuple"),
        (("w5", ""), "the context of question 2 is empty"),
        ((" ", "w5"), "question 2 is empty"),
    ],
    ids=str,
)
def test_what_is_no_question_is_refused_by_its_number(answerer, bad, said):
    with pytest.raises(InvalidInput, match=said):
        answerer.predict([ASKED, bad])


def test_more_answers_can_be_asked_for_in_a_call(answerer):
    context = "  w30\n\tw5  w10 w11   w40 "
    more = answerer.predict(("w5", context), top=3)
    assert len(more.answers) == 3
    assert answerer.predict([("w5", context)], top=3) == [more]
    assert list(answerer.predict_stream([("w5", context)], top=3)) == [more]
    once = answerer.predict(("w5", context))
    assert once.answers == more.answers[:1]
    assert answerer.predict(("w5", context), top=1) == once
    with pytest.raises(InvalidInput, match="top must be at least 1"):
        answerer.predict(("w5", context), top=0)


def test_a_question_that_leaves_no_room_is_refused(answerer):
    with pytest.raises(TextTooLong, match="leaves no room for both"):
        answerer.predict(("w5 " * 20, "w6 w7"))


def test_answers_that_are_not_at_their_place_are_refused_before_training(tiny_bert):
    bad = {**questions(1)[0], "id": "odd", "answers": [{"text": "w5", "start": 2}]}
    with pytest.raises(InvalidInput, match=r"row 13 of the given list \(id 'odd'\): expected the answer 'w5' at"):
        fitted(tiny_bert, [*questions(12), bad])
    with pytest.raises(InvalidInput, match=r"\(id 'odd'\)"):
        fitted(tiny_bert, validation=[bad])


def test_calibration_that_is_not_there_is_not_made_up(tiny_bert):
    answerer = fitted(tiny_bert, calibration=None, epochs=1)
    assert answerer.fitted.outputs.confidence.temperature is None
    with pytest.raises(NotCalibrated, match="is not calibrated"):
        answerer.predict(ASKED, calibrated=True)


def test_answers_longer_than_a_saved_model_may_have_are_refused(tiny_bert):
    assert AnswerOpening(max_answer_tokens=LONGEST_ANSWER).max_answer_tokens == LONGEST_ANSWER
    with pytest.raises(InvalidInput, match="max_answer_tokens must be at least 1 and at most 100,000, got 100,001"):
        opened(tiny_bert, max_answer_tokens=LONGEST_ANSWER + 1)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_answer_tokens", 0),
        ("max_answer_tokens", 2.5),
        ("temperature", {"value": 0, "slope": 0}),
    ],
)
def test_a_damaged_value_in_bothways_json_is_refused(saved, tmp_path, name, value):
    shutil.copytree(saved, tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(CorruptCheckpoint, match=name):
        opened(tmp_path / "saved")


def test_an_encoder_without_a_trained_head_is_no_answerer(base):
    edit_config(base, architectures=["BertModel"])
    with pytest.raises(NotFitted, match="Train it for one of the tasks"):
        open_trained(base)
