"""Fine-tuning on pairs of texts: what is read of them, what comes back, and what is refused."""

import json

import numpy as np
import pytest

from bothways.compose.opening import open_trained
from bothways.errors import InvalidInput, TextTooLong
from bothways.tasks import PairClassifier, TextClassifier
from bothways.tasks.classification.learner import LabelLearner
from bothways.tasks.classification.spec import LabelFitting
from bothways.tasks.columns import PairColumns
from bothways.tasks.splits import TrainingData
from classifier_cases import scored as logits_of
from pair_cases import RELATIONS, pairs, scored
from tiny_models import write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6, "validation": pairs(8, first=40)}
LONG = " ".join(f"w{5 + place % 50}" for place in range(40))


def opened(folder, **options):
    return PairClassifier.from_pretrained(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pairs")
    write_checkpoint(folder)
    classifier = opened(folder)
    classifier.fit(pairs(), **QUICK)
    return classifier


def fit(folder, data, **options):
    opened(folder).fit(data, **{**QUICK, "validation": data, **options})


def test_a_pair_is_read_as_two_segments_in_their_order(fitted):
    store = fitted.backend.stored([("w5 w6", "w7"), ("w7", "w5 w6")])
    first, second = (store.pack([index]) for index in (0, 1))
    assert first.types_T.tolist() == [0, 0, 0, 0, 1, 1]
    assert second.types_T.tolist() == [0, 0, 0, 1, 1, 1]
    assert sorted(first.ids_T.tolist()) == sorted(second.ids_T.tolist())
    (one, other), _ = logits_of(
        fitted,
        [
            {"text_a": "w5 w6", "text_b": "w7", "label": "same"},
            {"text_a": "w7", "text_b": "w5 w6", "label": "same"},
        ],
    )
    assert not np.allclose(one, other, atol=1e-4)


def test_one_pair_gives_one_prediction_and_many_give_a_list(fitted):
    one = fitted.predict(("w5 w6", "w5"))
    assert one.label in RELATIONS
    assert fitted.predict([("w5 w6", "w5")]) == [one]
    assert fitted.predict([]) == []
    assert list(fitted.predict_stream(iter([("w5 w6", "w5")]))) == [one]


def test_of_a_long_pair_the_second_text_is_cut_into_windows_and_the_first_repeated(fitted):
    found = fitted.predict(("w5 w6", LONG))
    assert found.tokens_read.windows > 2
    assert found.tokens_read.dropped_tokens == 0
    windows = fitted.model.tokenizer.encode([("w5 w6", LONG)], max_length=18)[0].windows
    assert len(windows) == found.tokens_read.windows
    assert all(window.ids[1:3] == [5, 6] for window in windows)


def test_a_saved_pair_classifier_comes_back_as_one_with_its_columns(base, tmp_path):
    renamed = [{"left": row["text_a"], "right": row["text_b"], "same": row["label"]} for row in pairs()]
    classifier = opened(base, merge="max", stride=2)
    classifier.fit(renamed, **{**QUICK, "validation": renamed}, text_a="left", text_b="right", label="same")
    classifier.save(tmp_path / "saved")
    again = open_trained(tmp_path / "saved", device="cpu")
    assert isinstance(again, PairClassifier)
    assert again.outputs.merge == "max"
    assert again.columns == classifier.columns
    asked = [(row["left"], row["right"]) for row in renamed] + [("w5", LONG)]
    assert again.predict(asked) == classifier.predict(asked)
    assert again.evaluate(renamed, resamples=5).to_dict() == classifier.evaluate(renamed, resamples=5).to_dict()
    with pytest.raises(InvalidInput, match="no column 'text_a'"):
        again.evaluate(renamed, text_a="text_a")


def test_numbers_are_predicted_of_pairs(base, tmp_path):
    data = scored()
    classifier = opened(base)
    classifier.fit(data, **{**QUICK, "validation": data}, label="score", target="regression")
    classifier.save(tmp_path / "saved")
    value = opened(tmp_path / "saved").predict(("w5", "w5")).value
    assert value == classifier.predict(("w5", "w5")).value
    found = classifier.predict([(row["text_a"], row["text_b"]) for row in data])
    errors = [each.value - row["score"] for each, row in zip(found, data, strict=True)]
    assert classifier.evaluate(data, resamples=5).mse.value == pytest.approx(np.mean(np.square(errors)))


def test_a_report_says_how_many_pairs_were_read_in_windows(fitted):
    data = [*pairs(4), {"text_a": "w5", "text_b": LONG, "label": "other"}]
    report = fitted.evaluate(data, resamples=5)
    assert report.to_dict()["tokens_read"] == {"texts": 5, "in_windows": 1, "cut": 0, "dropped_tokens": 0}
    assert "1 of 5 texts were read in several windows" in report.summary()


GOOD = pairs(6)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text_a": "w5", "label": "same"}, "row 7 .* no column 'text_b'"),
        ({"text_b": "w5", "label": "same"}, "row 7 .* no column 'text_a'"),
        ({"text_a": "w5", "text_b": "", "label": "same"}, "row 7 .* 'text_b' is empty"),
        ({"text_a": " ", "text_b": "w5", "label": "same"}, "row 7 .* 'text_a' is only white space"),
        ({"text_a": None, "text_b": "w5", "label": "same"}, "row 7 .* 'text_a' is null"),
        ({"text_a": ["w5"], "text_b": "w5", "label": "same"}, "row 7 .* 'text_a' is of type list"),
        ({"text_a": "w5", "text_b": "w5"}, "row 7 .* no column 'label'"),
    ],
)
def test_a_row_that_is_no_pair_is_refused_with_its_place(base, row, said):
    with pytest.raises(InvalidInput, match=said):
        fit(base, [*GOOD, row])


@pytest.mark.parametrize("score", ["high", None, float("nan"), [1.0], True])
def test_a_score_that_is_no_number_is_refused(base, score):
    with pytest.raises(InvalidInput, match=r"row 25 .* the label in 'score'"):
        fit(base, [*scored(), {"text_a": "w5", "text_b": "w6", "score": score}], label="score", target="regression")


def test_a_label_that_training_did_not_have_is_refused(fitted):
    with pytest.raises(InvalidInput, match=r"labelled 'third', .* knows 'other', 'same'"):
        fitted.evaluate([{"text_a": "w5", "text_b": "w6", "label": "third"}])


def test_a_pair_among_many_may_be_a_list(fitted):
    pairs = [("w5 w6", "w5"), ("w7", "w8 w9")]
    found = fitted.predict(pairs)
    listed = [list(pair) for pair in pairs]
    assert fitted.predict(listed) == fitted.predict(tuple(listed)) == fitted.predict([listed[0], pairs[1]]) == found
    assert fitted.predict(listed[:1]) == fitted.predict(pairs[:1])
    assert list(fitted.predict_stream(iter(listed))) == found
    with pytest.raises(InvalidInput, match="pair 1 must be a tuple of two texts, but it is str: 'w5'"):
        fitted.predict(["w5", "w6"])


@pytest.mark.parametrize("bad", ["w5 w6", ("w5",), ("w5", "w6", "w7"), ["w5"], ["w5", "w6", "w7"], ["w5", 3], None])
def test_what_is_no_pair_is_refused_by_its_number(fitted, bad):
    with pytest.raises(InvalidInput, match="pair 2 must be a tuple of two texts"):
        fitted.predict([("w5", "w6"), bad])


@pytest.mark.parametrize(("side", "pair"), [("first", ("", "w5")), ("second", ("w5", " "))])
def test_a_pair_with_an_empty_side_is_refused(fitted, side, pair):
    with pytest.raises(InvalidInput, match=f"the {side} text of pair 1 is empty or only white space"):
        fitted.predict(pair)
    with pytest.raises(InvalidInput, match=f"the {side} text of pair 2 is empty or only white space"):
        fitted.predict([("w5", "w6"), pair])
    with pytest.raises(InvalidInput, match=f"the {side} text of pair 1 is empty"):
        list(fitted.predict_stream(iter([pair])))


@pytest.mark.parametrize("bad", ["w5 w6", None, 3])
def test_what_is_neither_a_pair_nor_many_is_refused(fitted, bad):
    with pytest.raises(InvalidInput, match=f"a tuple of two texts, or a list of such tuples, got {type(bad).__name__}"):
        fitted.predict(bad)


def test_a_score_is_a_number_to_predict(base):
    named, spelt = opened(base), opened(base)
    options = {**QUICK, "validation": scored(8, first=40)}
    named.fit(scored(), score="score", **options)
    spelt.fit(scored(), label="score", target="regression", **options)
    assert named.outputs.target.kind == "regression"
    assert named.columns == spelt.columns
    assert named.predict(("w5 w6", "w5")) == spelt.predict(("w5 w6", "w5"))


def test_pairs_with_the_same_first_text_are_held_out_together(base):
    queries = [{"text_a": f"w{5 + number // 4}", "text_b": f"w{10 + number % 40}"} for number in range(80)]
    data = [{**row, "score": number // 4, "label": "ab"[number % 2]} for number, row in enumerate(queries)]
    model = opened(base).backend

    def read(data, columns, target):
        """The encoded labels to learn from, and those held out."""
        learning = LabelFitting(target=target)
        learner, *parts = LabelLearner.from_data(model, TrainingData(data), columns, learning, 3, None)
        return [learner.outputs.encode(part) for part in parts]

    training, held = read(data, PairColumns(label="score"), "regression")
    assert len(held) == 8
    assert not set(held) & set(training)
    _, held = read(data, PairColumns(), "single")
    assert np.bincount(held).tolist() == [4, 4]
    _, held = read([{**row, "text_a": "w5"} for row in data], PairColumns(), "single")
    assert len(held) == 8


@pytest.mark.parametrize("options", [{"label": "label"}, {"target": "multi"}])
def test_a_score_beside_labels_is_refused(base, options):
    with pytest.raises(InvalidInput, match="cannot be combined with label or the target 'multi'"):
        fit(base, scored(), score="score", **options)


@pytest.mark.parametrize("pair", [(LONG, "w6"), ("w6", LONG), (LONG, LONG)])
def test_whichever_text_is_long_all_of_it_is_read(fitted, pair):
    short, found = fitted.predict([("w5", "w6"), pair])
    assert (short.tokens_read.windows, found.tokens_read.dropped_tokens) == (1, 0)
    assert found.tokens_read.windows > 1
    assert fitted.evaluate([{"text_a": pair[0], "text_b": pair[1], "label": "same"}], resamples=2).n == 1


def test_pairs_with_a_long_first_text_are_learnt_from(base):
    data = [*pairs(), {"text_a": LONG, "text_b": "w6", "label": "same"}]
    assert opened(base).fit(data, **QUICK).updates > 0


def test_a_long_pair_is_refused_or_cut_on_request(base):
    classifier = opened(base, on_overflow="truncate")
    classifier.fit(pairs(), **QUICK)
    reading = classifier.predict(("w5", LONG)).tokens_read
    assert (reading.windows, reading.dropped_tokens) == (1, 40 - 14)
    with pytest.raises(TextTooLong):
        opened(base, on_overflow="error").fit([*pairs(), {"text_a": "w5", "text_b": LONG, "label": "same"}], **QUICK)


@pytest.mark.parametrize("texts", [(), ("w5",), ("w5", "w6", "w7")])
def test_typed_texts_must_be_two(fitted, texts):
    with pytest.raises(InvalidInput, match=f"expected two texts, the first text and the second text, got {len(texts)}"):
        fitted.columns.rows_of(texts)


def test_a_pair_classifier_opened_for_single_texts_does_not_take_over_its_columns(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "bothways.json").read_text())["task"] == "pairs"
    assert TextClassifier.from_pretrained(tmp_path / "saved").columns == TextClassifier.spec.columns
