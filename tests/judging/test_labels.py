"""Human labels find the rows that they are of, or are refused by name."""

import pytest
from judging_cases import LABEL, triples, without

from bothways.errors import InvalidInput
from bothways.judging import DIMENSIONS, read_triples
from bothways.judging.labels import read_labels, with_labels

CONTEXT, _, RELEVANT = DIMENSIONS.values()


def systems(**rows):
    return {name: read_triples(without(each, LABEL), CONTEXT).triples for name, each in rows.items()}


def labels_of(found):
    return {name: [each.label for each in rows if each.label is not None] for name, rows in found.items()}


def test_labels_are_matched_by_id_alone():
    rows = triples(10)
    gold = [{"id": row["id"], LABEL: row[LABEL]} for row in rows[:4]]
    found = with_labels(systems(a=rows), read_labels(gold, CONTEXT), CONTEXT)
    assert labels_of(found) == {"a": [row[LABEL] for row in rows[:4]]}


def test_labels_are_matched_by_texts_where_there_is_no_id():
    rows = without(triples(10), "id")
    found = with_labels(systems(a=rows), read_labels(rows[3:5], CONTEXT), CONTEXT)
    assert labels_of(found) == {"a": [row[LABEL] for row in rows[3:5]]}


def test_the_same_id_in_two_systems_is_told_apart_by_texts_or_system():
    one, other = triples(6, seed=1), triples(6, seed=2)
    gold = [{**row, "system": name} for name, rows in (("a", one), ("b", other)) for row in without(rows, "passage")]
    found = with_labels(systems(a=one, b=other), read_labels(gold, CONTEXT), CONTEXT)
    assert labels_of(found) == {"a": [row[LABEL] for row in one], "b": [row[LABEL] for row in other]}
    # Rows of which the judge reads the same texts share a label.
    by_texts = with_labels(systems(a=one, b=other), read_labels(one, CONTEXT), CONTEXT)
    assert labels_of(by_texts)["a"] == [row[LABEL] for row in one]


def test_a_label_that_fits_different_rows_is_refused():
    one, other = triples(6, rate=1), triples(6, rate=0)
    gold = [{"id": "q1", LABEL: 1}]
    with pytest.raises(InvalidInput, match=r"id 'q1' fits 2 rows .of 'a', 'b'. with different texts"):
        with_labels(systems(a=one, b=other), read_labels(gold, CONTEXT), CONTEXT)


def test_labels_of_rows_that_are_not_there_are_named():
    gold = [{"id": f"x{number}", LABEL: 1} for number in range(8)]
    with pytest.raises(InvalidInput, match=r"8 of 8 are not there: id 'x0', id 'x1', .* and 3 more"):
        with_labels(systems(a=triples(10)), read_labels(gold, CONTEXT), CONTEXT)


def test_an_id_whose_texts_differ_is_of_another_row():
    gold = [{"id": "q1", "query": "another question", LABEL: 1}]
    with pytest.raises(InvalidInput, match="1 of 1 are not there: id 'q1'"):
        with_labels(systems(a=triples(10)), read_labels(gold, CONTEXT), CONTEXT)


def test_labels_of_a_system_that_is_not_there_are_refused():
    gold = [{**triples(1)[0], "system": "z"}]
    with pytest.raises(InvalidInput, match="expected a system of 'a', got 'z'"):
        with_labels(systems(a=triples(3)), read_labels(gold, CONTEXT), CONTEXT)


def test_two_labels_of_a_row_that_differ_are_refused():
    gold = [{"id": "q1", LABEL: 1}, {"id": "q1", LABEL: 0}]
    with pytest.raises(InvalidInput, match=r"expected one label for id 'q1', got 1 .* and 0"):
        with_labels(systems(a=triples(3)), read_labels(gold, CONTEXT), CONTEXT)


def test_a_file_without_labels_is_refused_with_its_columns():
    with pytest.raises(InvalidInput, match=r"human labels in the column 'context_relevance', got none in 3 rows.*'id'"):
        read_labels(without(triples(3), LABEL), CONTEXT)
