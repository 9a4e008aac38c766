"""Rows for training a judge: held-out rows share nothing with the rest, negatives are wrong, bad data are refused."""

import pytest
from judging_cases import LABEL, triples, without

from bothways.errors import InvalidInput
from bothways.judging import DIMENSIONS, Triple
from bothways.judging.training_rows import make_negatives, prepare

CONTEXT, FAITHFUL, _ = DIMENSIONS.values()
WORDS = ("lions", "trains", "castles", "rivers", "violins", "glaciers")


def texts(rows, column):
    return {row.values[column] for row in rows}


def test_held_out_rows_share_neither_query_nor_passage():
    rows = triples(60)
    # The passage of a bad row is that of another question, and each question is asked twice.
    rows += [{**row, "passage": rows[number - 1]["passage"], LABEL: 0} for number, row in enumerate(rows)][::2]
    data = prepare(rows, CONTEXT, seed=3)
    assert data.validation
    for column in ("query", "passage"):
        assert not texts(data.training, column) & texts(data.validation, column)
    assert data.shared_passages == 0


def test_passages_that_a_validation_file_shares_are_said():
    rows = triples(40)
    data = prepare(rows, CONTEXT, validation=rows[:10])
    assert data.shared_passages == 10
    assert any("optimistic" in note for note in data.notes)


def test_the_same_pair_counts_once():
    rows = triples(40)
    data = prepare(rows + rows, CONTEXT)
    assert data.repeated == 40
    assert len(data.training) + len(data.validation) == 40


def test_rows_without_any_label_are_good_ones_and_negatives_are_made():
    data = prepare(without(triples(60, rate=1), LABEL), CONTEXT)
    assert data.made == 60
    labels = [row.values[LABEL] for row in data.training + data.validation]
    assert labels.count("1") == labels.count("0") == 60
    assert any("were made" in note for note in data.notes)


def test_negatives_can_be_added_to_labels():
    data = prepare(triples(60), CONTEXT, negatives="weak")
    good = sum(row[LABEL] for row in triples(60))
    assert 0 < data.made <= good


def test_a_mistake_leads_back_to_its_line():
    data = prepare(triples(40), CONTEXT)
    assert {row.where for row in data.training} < {f"row {number} of the given list" for number in range(1, 41)}


def test_no_labels_and_no_negatives_are_refused():
    with pytest.raises(InvalidInput, match=r"expected labels in the column 'context_relevance' .* got none in 20 rows"):
        prepare(without(triples(20), LABEL), CONTEXT, negatives="none")


@pytest.mark.parametrize(("rate", "remedy"), [(1, "or generate negatives"), (0, "learns from both")])
def test_labels_of_one_class_are_refused(rate, remedy):
    with pytest.raises(InvalidInput, match=f"expected labels 0 and 1 .* got {rate} in all 20.*{remedy}"):
        prepare(triples(20, rate=rate), CONTEXT)


def test_a_judge_of_faithfulness_reads_query_and_answer_as_one_text():
    data = prepare(triples(40, label="answer_faithfulness"), FAITHFUL)
    row = data.training[0].values
    assert row.keys() == {"query_and_answer", "passage", "answer_faithfulness"}
    assert row["query_and_answer"].split()[-1].startswith("w")


# --- negatives ---


def positives(document=False):
    return [
        Triple(
            f"what of {word} {part}?",
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
    rows = positives()
    made = make_negatives(rows, dimension, kind, seed=1)
    assert [each.label for each in made] == [0] * len(rows)
    assert not {dimension.pair(each) for each in rows} & {dimension.pair(each) for each in made}
    assert made == make_negatives(rows, dimension, kind, seed=1)


def test_a_strong_negative_is_of_the_same_document():
    rows = positives(document=True)
    for row, negative in zip(rows, make_negatives(rows, CONTEXT, "strong"), strict=True):
        assert negative.passage != row.passage
        assert negative.passage.split()[3] == row.passage.split()[3]


def test_without_documents_a_strong_negative_is_the_nearest_by_words():
    rows = positives()
    for row, negative in zip(rows, make_negatives(rows, CONTEXT, "strong"), strict=True):
        assert negative.passage.split()[3] == row.passage.split()[3]


def test_an_answer_about_the_same_passage_is_not_taken():
    shared = [Triple(f"q{n}?", f"passage {n // 2}", f"answer {n}") for n in range(8)]
    for row, negative in zip(shared, make_negatives(shared, FAITHFUL, "weak"), strict=True):
        assert int(negative.answer.split()[1]) // 2 != int(row.answer.split()[1]) // 2


def test_one_passage_alone_makes_no_negatives():
    rows = [Triple("q1?", "the only one"), Triple("q2?", "the only one")]
    with pytest.raises(InvalidInput, match="at least two different passages to generate negatives from, got one"):
        make_negatives(rows, CONTEXT)
