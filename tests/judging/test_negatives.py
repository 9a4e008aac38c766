"""Negatives that are made from passages and answers of other questions."""

import pytest

from bothways.errors import InvalidInput
from bothways.judging import DIMENSIONS, Triple
from bothways.judging.negatives import with_negatives

CONTEXT, FAITHFUL, RELEVANT = DIMENSIONS.values()
WORDS = ("lions", "trains", "castles", "rivers", "violins", "glaciers")


def positives(document=False):
    return [
        Triple(
            f"what of {word}?",
            f"a passage about {word}, number {part}",
            f"{word} {part}",
            document=word if document else None,
        )
        for word in WORDS
        for part in (1, 2)
    ]


@pytest.mark.parametrize("kind", ["weak", "strong", "both"])
@pytest.mark.parametrize("dimension", DIMENSIONS.values(), ids=list(DIMENSIONS))
def test_every_triple_gets_a_negative_that_is_right_for_no_one(dimension, kind):
    rows = [Triple(each.query + str(number), each.passage, each.answer) for number, each in enumerate(positives())]
    made = with_negatives(rows, dimension, kind, seed=1)
    assert [each.label for each in made] == [1] * len(rows) + [0] * len(rows)
    right = {dimension.pair(each) for each in rows}
    assert not right & {dimension.pair(each) for each in made[len(rows) :]}
    assert made == with_negatives(rows, dimension, kind, seed=1)


def test_a_strong_negative_is_of_the_same_document():
    rows = [
        Triple(f"{each.query} {n}", each.passage, each.answer, document=each.document)
        for n, each in enumerate(positives(document=True))
    ]
    for row, negative in zip(rows, with_negatives(rows, CONTEXT, "strong")[len(rows) :], strict=True):
        assert negative.passage != row.passage
        assert negative.passage.split()[3] == row.passage.split()[3]


def test_without_documents_a_strong_negative_is_the_nearest_by_words():
    rows = [Triple(f"{each.query} {n}", each.passage, each.answer) for n, each in enumerate(positives())]
    made = with_negatives(rows, CONTEXT, "strong")[len(rows) :]
    for row, negative in zip(rows, made, strict=True):
        assert negative.passage.split()[3] == row.passage.split()[3]


def test_an_answer_about_the_same_passage_is_not_taken():
    shared = [Triple(f"q{n}?", f"passage {n // 2}", f"answer {n}") for n in range(8)]
    for row, negative in zip(shared, with_negatives(shared, FAITHFUL, "weak")[8:], strict=True):
        assert int(negative.answer.split()[1]) // 2 != int(row.answer.split()[1]) // 2


def test_one_passage_alone_makes_no_negatives():
    rows = [Triple("q1?", "the only one"), Triple("q2?", "the only one")]
    with pytest.raises(InvalidInput, match="at least two different passages to make negatives from, got one"):
        with_negatives(rows, CONTEXT)
