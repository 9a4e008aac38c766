"""Questions, contexts and answers out of rows; holding some of them out."""

import gzip
import json

import pytest

from bothways.errors import InvalidInput
from bothways.tasks.question_answering.questions import GoldAnswer, hold_out_contexts, read_questions
from bothways.tasks.question_answering.spec import QuestionColumns

CONTEXT = "In 2016 the Broncos won."
GOOD = {"id": "q1", "question": "Who won?", "context": CONTEXT}
BRONCOS = GoldAnswer("Broncos", 12)


def read(*rows, columns=None):
    return read_questions(list(rows), columns or QuestionColumns())


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([{"text": "Broncos", "start": 12}], (BRONCOS,)),
        ([{"text": "Broncos", "answer_start": 12}], (BRONCOS,)),
        (
            [{"text": "Broncos", "start": 12}, {"text": "the Broncos", "start": 8}],
            (BRONCOS, GoldAnswer("the Broncos", 8)),
        ),
        ({"text": ["Broncos", "2016"], "answer_start": [12, 3]}, (BRONCOS, GoldAnswer("2016", 3))),
        ([], ()),
        ({"text": [], "answer_start": []}, ()),
    ],
    ids=str,
)
def test_answers_are_read_in_every_form(answers, expected):
    (question,) = read({**GOOD, "answers": answers})
    assert question.text == ("Who won?", CONTEXT)
    assert question.label == expected


def test_columns_may_have_other_names():
    row = {"q": "Who won?", "passage": CONTEXT, "gold": [{"text": "2016", "start": 3}]}
    (question,) = read(row, columns=QuestionColumns("q", "passage", "gold"))
    assert question.label == (GoldAnswer("2016", 3),)


def test_a_squad_file_gives_the_questions_of_the_flat_rows(tmp_path):
    flat = [
        {**GOOD, "answers": [{"text": "Broncos", "start": 12}]},
        {**GOOD, "id": "q2", "question": "Who lost?", "answers": []},
    ]
    qas = [
        {"id": "q1", "question": "Who won?", "answers": [{"text": "Broncos", "answer_start": 12}]},
        {"id": "q2", "question": "Who lost?", "answers": [], "is_impossible": True},
    ]
    nested = {"version": "v2.0", "data": [{"title": "t", "paragraphs": [{"context": CONTEXT, "qas": qas}]}]}
    path = tmp_path / "dev-v2.0.json.gz"
    path.write_bytes(gzip.compress(json.dumps(nested).encode()))
    assert read_questions(path, QuestionColumns()) == read(*flat)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"answers": [{"text": "Broncos", "start": 11}]}, "'Broncos' at character 11 .* got ' Bronco'. .* at 12"),
        ({"answers": [{"text": "Panthers", "start": 12}]}, "does not contain the answer"),
        ({"answers": [{"text": "Broncos", "start": -12}]}, "at character -12"),
        ({"answers": [{"text": "won.", "start": 400}]}, "got ''. It starts at 20"),
        ({"answers": [{"text": " ", "start": 2}]}, "'answers' has an answer without text"),
        ({"answers": [{"text": "Broncos"}]}, "the start None"),
        ({"answers": [{"text": "Broncos", "start": True}]}, "the start True"),
        ({"answers": ["Broncos"]}, r"got a list whose element 1 is of type str \('Broncos'\)"),
        ({"answers": "Broncos"}, "'answers' must be a list of .*, got a value of type str"),
        ({"answers": None}, "the label in 'answers' is missing, got null.*--unlabelled drop"),
        ({"answers": {"text": ["Broncos"], "answer_start": []}}, "lists 'text' and 'answer_start' of equal length"),
        ({"answers": [], "context": ""}, "the text in 'context' is empty"),
        ({}, "no column 'answers'"),
    ],
    ids=str,
)
def test_a_bad_row_is_refused_with_its_place_and_id(changes, said):
    with pytest.raises(InvalidInput, match=rf"row 2 of the given list \(id 'q2'\).*{said}"):
        read({**GOOD, "answers": []}, {**GOOD, "id": "q2", **changes})


def asked(context, number):
    return [{"question": f"q{each}?", "context": context, "answers": []} for each in range(number)]


@pytest.mark.parametrize("seed", range(4))
def test_questions_on_one_context_are_held_out_together(seed):
    questions = read(*(row for context in "abcdefghij" for row in asked(context, 3)))
    stay, held = hold_out_contexts(questions, 0.2, seed)
    assert len(held) == 6
    assert not {each.text[1] for each in stay} & {each.text[1] for each in held}
    assert sorted(stay + held, key=questions.index) == questions
    assert (stay, held) == hold_out_contexts(questions, 0.2, seed)


def test_one_context_is_never_held_out_and_of_two_one_stays():
    with pytest.raises(InvalidInput, match="all questions have the same context"):
        hold_out_contexts(read(*asked("a", 5)), 0.5, 0)
    stay, held = hold_out_contexts(read(*asked("a", 2), *asked("b", 2)), 0.9, 0)
    assert len(stay) == len(held) == 2
