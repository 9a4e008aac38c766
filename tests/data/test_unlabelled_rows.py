"""Rows without a label: found in every form, refused with their number, or dropped; real classes stay classes."""

import math

import pytest

from bothways.data import label_set, number, read_examples, read_tagged
from bothways.data.label_rows import unlabelled_marks
from bothways.errors import InvalidInput, LabelsAmbiguous, RowsLeftOut
from bothways.retrieval.evaluation import read_candidates
from bothways.tasks.embedding.outputs import read_embedding_rows
from bothways.tasks.embedding.spec import LabelledTexts, ScoredPairs
from bothways.tasks.multiple_choice.outputs import ChoiceOutputs
from bothways.tasks.multiple_choice.spec import ChoiceColumns, ChoiceData
from bothways.tasks.question_answering.questions import read_questions
from bothways.tasks.question_answering.spec import QuestionColumns
from bothways.tasks.spec import AlikeLabelData

DROP = AlikeLabelData(unlabelled="drop")


def texts(*labels):
    return [{"text": f"text {place}", "label": label} for place, label in enumerate(labels)]


def kept(*labels, **options):
    return [each.label for each in read_examples(texts(*labels), unlabelled="drop", **options)]


@pytest.mark.parametrize(
    ("names", "marks"),
    [
        (["entailment", "neutral", "-"], ("-",)),  # SNLI as JSON Lines
        (["0", "1", "2", "-1"], ("-1",)),  # SNLI as integers
        (["0", "2", "-1"], ("-1",)),
        (["pos", "neg", "-1", "-"], ("-", "-1")),
        (["-1"], ("-1",)),  # a test set without its labels
        (["-", "-1"], ("-", "-1")),
        (["-1", "0", "1"], ()),  # sentiment
        (["-1", "1"], ()),
        (["-1", "0"], ()),
        (["-2", "-1", "0", "1", "2"], ()),
        (["-1", "-0.5", "0", "2.5"], ()),
        (["-", "+"], ()),
        (["-", "=", "+"], ()),
        (["-", "x"], ()),  # a mark or none
        (["sports", "world"], ()),
    ],
)
def test_names_that_stand_for_no_label_are_told_from_classes(names, marks):
    assert unlabelled_marks(names) == marks


def test_a_model_that_knows_the_class_decides():
    assert unlabelled_marks(["-1", "0", "1"], known=["0", "1"]) == ("-1",)
    assert unlabelled_marks(["-1", "0", "1", "2"], known=["-1", "0", "1", "2"]) == ()


@pytest.mark.parametrize("missing", [None, math.nan, "", " \u00a0", "-", "-1", -1, -1.0])
def test_a_row_without_a_label_is_refused_by_its_number_or_dropped(missing):
    labels = ["a", "b", missing, "c"] if isinstance(missing, str | None) else [0, 1, missing, 2]
    with pytest.raises(InvalidInput, match=r"^row 3 of the given list: .* is missing, got .*--unlabelled drop"):
        read_examples(texts(*labels))
    assert kept(*labels) == [str(each) for each in labels if each is not missing]


def test_the_message_counts_such_rows():
    with pytest.raises(InvalidInput, match=r"^row 2 .* is missing, as in 2 of 5 rows, got '-'.*If '-' is a class"):
        read_examples(texts("a", "-", "b", "-", "c"))
    with pytest.raises(InvalidInput, match=r"^row 1 .* as in 2 of 2 rows, got null\. No row has a label"):
        kept(None, None)


def test_classes_of_sentiment_stay_with_a_note():
    with pytest.warns(LabelsAmbiguous, match="-1, 0 and 1, which are taken as three classes"):
        assert kept(-1, 0, 1, -1) == ["-1", "0", "1", "-1"]
    assert kept(-1, 0, 1, known=("0", "1")) == ["0", "1"]
    assert kept("-", "+", "") == ["-", "+"]
    assert kept("nan", "eng", "deu", None) == ["nan", "eng", "deu"]  # Min Nan Chinese


def test_minus_one_is_a_number_of_a_regression():
    assert kept(-1, "-1", 0.5, "", "-", "NaN", None, math.nan, convert=number) == [-1, -1, 0.5]
    with pytest.raises(InvalidInput, match=r"^row 2 .* is missing, got 'nan'"):
        read_examples(texts("1.5", "nan"), convert=number)


def test_an_empty_set_of_labels_is_a_label():
    assert kept("a|b", "", [], None, "-", "c", convert=label_set) == [("a", "b"), (), (), ("c",)]


def test_rows_without_tags():
    rows = [{"tokens": "Li left", "tags": tags} for tags in ("B-PER O", None, "", [], "[]", ["B-PER", "O"])]
    assert [each.label for each in read_tagged(rows, unlabelled="drop")] == [("B-PER", "O")] * 2
    with pytest.raises(InvalidInput, match=r"^row 2 .*'tags' is missing, as in 4 of 6 rows"):
        list(read_tagged(rows))


def test_questions_that_were_not_annotated_are_no_questions_without_an_answer():
    rows = [{"question": "Who?", "context": "Li left.", "answers": answers} for answers in ([], None, "", "[]")]
    assert [each.label for each in read_questions(rows, QuestionColumns(), "drop")] == [(), ()]
    with pytest.raises(InvalidInput, match=r"^row 2 .*'answers' is missing, as in 2 of 4 rows, got null.*--unlabelled"):
        read_questions(rows, QuestionColumns())


@pytest.mark.parametrize(
    "read",
    [
        lambda: kept("a", None, "b", "-", "c"),
        lambda: [
            *read_tagged([{"tokens": "Li", "tags": tags} for tags in ("O", "", "O", None, "O")], unlabelled="drop")
        ],
        lambda: read_candidates(
            [{"text_a": "q", "text_b": "p", "label": grade} for grade in (1, None, 0, "-", 2)], unlabelled="drop"
        ),
    ],
    ids=["texts", "words", "candidates"],
)
def test_a_note_says_how_many_rows_were_dropped(read):
    with pytest.warns(RowsLeftOut, match=r"^left out 2 of 5 rows for lack of a label in '\w+'; the first is row 2 of"):
        read()


def test_a_row_without_the_column_has_no_label_where_such_rows_are_dropped():
    rows = [{"text": "a"}, *texts("x", "y")]
    assert [each.label for each in read_examples(rows, unlabelled="drop")] == ["x", "y"]
    for unlabelled in ("error", "drop"):
        with pytest.raises(InvalidInput, match=r"^row 1 .* no column 'lable'. It has: 'text'"):
            read_examples(rows, label="lable", unlabelled=unlabelled)


def test_rows_of_embedders():
    pairs = [{"text_a": "a", "text_b": "b", "score": score} for score in (-1.0, None, "", 2)]
    assert [each.label for each in read_embedding_rows(pairs, ScoredPairs(), DROP)] == [-1, 2]
    assert [each.label for each in read_embedding_rows(texts(0, 1, 2, -1), LabelledTexts(), DROP)] == ["0", "1", "2"]
    with pytest.raises(InvalidInput, match=r"^row 2 .*'score' is missing"):
        read_embedding_rows(pairs, ScoredPairs())


def test_rows_of_multiple_choice():
    rows = [{"context": "a", "choices": ["x", "y"], "label": label} for label in (0, None, "", "-", -1, "-1", 1)]
    drop = ChoiceData(unlabelled="drop")
    assert [each.label for each in ChoiceOutputs().read(rows, ChoiceColumns(), drop)] == [0, 1]
    with pytest.raises(InvalidInput, match=r"^row 2 .* is missing, as in 5 of 7 rows, got null"):
        ChoiceOutputs().read(rows, ChoiceColumns())
    numbers = [{"context": "a", "choices": ["-1", "-"], "label": label} for label in ("-1", "-")]
    assert [each.label for each in ChoiceOutputs().read(numbers, ChoiceColumns(), drop)] == [0, 1]
