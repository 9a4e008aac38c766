"""Fine-tuning on pairs of texts: what is read of them, what comes back, and what is refused."""

import json

import numpy as np
import pytest

from bothways.errors import InvalidInput, TextTooLong
from bothways.tasks import PairClassifier, TextClassifier
from bothways.tasks.backend import stored_windows
from bothways.tasks.classification.learner import LabelLearner
from bothways.tasks.classification.spec import LabelFitting
from bothways.tasks.columns import PairColumns
from bothways.tasks.heads.splits import TrainingData, split_fit_options
from classifier_cases import scored as logits_of
from pair_cases import pairs, scored

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6, "validation": pairs(8, first=40)}
LONG = " ".join(f"w{5 + place % 50}" for place in range(40))


def opened(folder, **options):
    return PairClassifier.from_pretrained(folder, device="cpu", **options)


@pytest.fixture(scope="module")
def fitted(tiny_bert):
    classifier = opened(tiny_bert)
    classifier.fit(pairs(), **QUICK)
    return classifier


def fit(folder, data, **options):
    opened(folder).fit(data, **{**QUICK, "validation": data, **options})


def test_a_pair_is_read_as_two_segments_in_their_order(fitted):
    store = stored_windows(fitted.backend, [("w5 w6", "w7"), ("w7", "w5 w6")])
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


def test_of_a_long_pair_the_second_text_is_cut_into_windows_and_the_first_repeated(fitted):
    found = fitted.predict(("w5 w6", LONG))
    assert found.tokens_read.windows > 2
    assert found.tokens_read.dropped_tokens == 0
    windows = fitted.model.tokenizer.encode([("w5 w6", LONG)], max_length=18)[0].windows
    assert len(windows) == found.tokens_read.windows
    assert all(window.ids[1:3] == [5, 6] for window in windows)


GOOD = pairs(6)


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"text_a": "w5", "label": "same"}, "row 7 .* no column 'text_b'"),
        ({"text_a": " ", "text_b": "w5", "label": "same"}, "row 7 .* 'text_a' is only white space"),
        ({"text_a": None, "text_b": "w5", "label": "same"}, "row 7 .* 'text_a' is null"),
        ({"text_a": "w5", "text_b": "w5"}, "row 7 .* no column 'label'"),
    ],
)
def test_a_row_that_is_no_pair_is_refused_with_its_place(tiny_bert, row, said):
    with pytest.raises(InvalidInput, match=said):
        fit(tiny_bert, [*GOOD, row])


@pytest.mark.parametrize("score", ["high", True])
def test_a_score_that_is_no_number_is_refused(tiny_bert, score):
    with pytest.raises(InvalidInput, match=r"row 25 .* the label in 'score'"):
        fit(
            tiny_bert, [*scored(), {"text_a": "w5", "text_b": "w6", "score": score}], label="score", target="regression"
        )


def test_a_pair_among_many_may_be_a_list(fitted):
    pairs = [("w5 w6", "w5"), ("w7", "w8 w9")]
    found = fitted.predict(pairs)
    listed = [list(pair) for pair in pairs]
    assert fitted.predict(listed) == fitted.predict(tuple(listed)) == fitted.predict([listed[0], pairs[1]]) == found
    assert fitted.predict(listed[:1]) == fitted.predict(pairs[:1])
    assert list(fitted.predict_stream(iter(listed))) == found
    with pytest.raises(InvalidInput, match="pair 1 must be a tuple of two texts, got str: 'w5'"):
        fitted.predict(["w5", "w6"])


@pytest.mark.parametrize("bad", ["w5 w6", ("w5",), ["w5", "w6", "w7"], ["w5", 3], None])
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


def test_a_score_is_a_number_to_predict(tiny_bert):
    model = opened(tiny_bert)
    assert split_fit_options(model, {"score": "score"}) == split_fit_options(
        model, {"label": "score", "target": "regression"}
    )


def test_pairs_with_the_same_first_text_are_held_out_together(tiny_bert):
    queries = [{"text_a": f"w{5 + number // 4}", "text_b": f"w{10 + number % 40}"} for number in range(80)]
    data = [{**row, "score": number // 4, "label": "ab"[number % 2]} for number, row in enumerate(queries)]
    model = opened(tiny_bert).backend

    def read(data, columns, target):
        """The encoded labels to learn from, and those held out."""
        learning = LabelFitting(target=target)
        learner, *parts = LabelLearner.from_data(model, TrainingData(data, seed=3), columns, learning, None)
        return [learner.outputs.encode(part) for part in parts]

    training, held = read(data, PairColumns(label="score"), "regression")
    assert len(held) == 8
    assert not set(held) & set(training)
    _, held = read(data, PairColumns(), "single")
    assert np.bincount(held).tolist() == [4, 4]
    _, held = read([{**row, "text_a": "w5"} for row in data], PairColumns(), "single")
    assert len(held) == 8


@pytest.mark.parametrize("options", [{"label": "label"}, {"target": "multi"}])
def test_a_score_beside_labels_is_refused(tiny_bert, options):
    with pytest.raises(InvalidInput, match="cannot be combined with label or the target 'multi'"):
        fit(tiny_bert, scored(), score="score", **options)


@pytest.mark.parametrize("pair", [(LONG, "w6"), ("w6", LONG), (LONG, LONG)])
def test_whichever_text_is_long_all_of_it_is_read(fitted, pair):
    short, found = fitted.predict([("w5", "w6"), pair])
    assert (short.tokens_read.windows, found.tokens_read.dropped_tokens) == (1, 0)
    assert found.tokens_read.windows > 1
    assert fitted.evaluate([{"text_a": pair[0], "text_b": pair[1], "label": "same"}], resamples=2).n == 1


def test_a_long_pair_is_refused_or_cut_on_request(tiny_bert):
    classifier = opened(tiny_bert, on_overflow="truncate")
    classifier.fit(pairs(), **QUICK)
    reading = classifier.predict(("w5", LONG)).tokens_read
    assert (reading.windows, reading.dropped_tokens) == (1, 40 - 14)
    with pytest.raises(TextTooLong):
        opened(tiny_bert, on_overflow="error").fit(
            [*pairs(), {"text_a": "w5", "text_b": LONG, "label": "same"}], **QUICK
        )


@pytest.mark.parametrize("texts", [(), ("w5",), ("w5", "w6", "w7")])
def test_typed_texts_must_be_two(fitted, texts):
    with pytest.raises(InvalidInput, match=f"expected two texts, the first text and the second text, got {len(texts)}"):
        fitted.columns.rows_of(texts)


def test_a_pair_classifier_opened_for_single_texts_does_not_take_over_its_columns(fitted, tmp_path):
    fitted.save(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "bothways.json").read_text())["task"] == "pairs"
    assert TextClassifier.from_pretrained(tmp_path / "saved").columns == TextClassifier.spec.columns
