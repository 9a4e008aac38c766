"""Reading rows of retrieval-augmented systems: texts, labels in every spelling, renamed columns."""

import pytest

from bothways.errors import InvalidInput, UnreadColumn
from bothways.judging import DIMENSIONS, Triple, TripleColumns, label_of, read_triples

CONTEXT, FAITHFUL, RELEVANT = DIMENSIONS.values()
ROW = {"query": "Who?", "passage": "Ada did.", "answer": "Ada"}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *((each, 1) for each in (1, 1.0, "1", True, "Yes", "true", " yes ")),
        *((each, 0) for each in (0, 0.0, "0", False, "No", "FALSE")),
        *((each, None) for each in (None, "", "null", float("nan"))),
    ],
)
def test_labels_are_read_in_every_spelling(value, expected):
    assert label_of(value) == expected


@pytest.mark.parametrize("value", [2, "maybe", 0.5, [1]])
def test_another_label_is_refused_with_its_row_and_column(value):
    with pytest.raises(InvalidInput, match=r"row 1 .*column 'context_relevance': expected a label of 0 or 1.*got"):
        read_triples([{**ROW, "context_relevance": value}], CONTEXT)


def test_each_dimension_reads_its_own_pair():
    triple = Triple("Who?", "Ada did.", "Ada")
    assert CONTEXT.pair(triple) == ("Who?", "Ada did.")
    assert FAITHFUL.pair(triple) == ("Who? Ada", "Ada did.")
    assert RELEVANT.pair(triple) == ("Who?", "Ada")


def test_columns_can_be_renamed():
    columns = TripleColumns.named({"query": "Query", "passage": "Document", "context_relevance": "Label"})
    (found,) = read_triples([{"Query": "Who?", "Document": "Ada.", "Label": "Yes"}], CONTEXT, columns).triples
    assert (found.query, found.passage, found.answer, found.label) == ("Who?", "Ada.", "", 1)
    with pytest.raises(UnreadColumn, match="a judge has no column argument 'text'"):
        TripleColumns.named({"text": "x"})


def test_a_missing_column_is_named_with_those_there_are():
    with pytest.raises(InvalidInput, match=r"no column 'passage'. It has: 'query', 'answer'"):
        read_triples([{"query": "Who?", "answer": "Ada"}], CONTEXT)


def test_rows_without_an_answer_are_left_out_and_counted():
    read = read_triples([ROW, {**ROW, "answer": None}, {**ROW, "answer": " "}], FAITHFUL)
    assert (len(read.triples), read.incomplete) == (1, 2)
    with pytest.raises(InvalidInput, match="expected rows with query, answer and passage"):
        read_triples([{**ROW, "answer": ""}], FAITHFUL)
