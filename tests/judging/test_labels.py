"""Human labels find the rows that they are of, or are refused by name."""

import pytest
from judging_cases import LABEL, triples, without

from bothways.errors import InvalidInput
from bothways.judging import DIMENSIONS, read_triples
from bothways.judging.labels import read_labels, with_labels

CONTEXT, _, RELEVANT = DIMENSIONS.values()


def systems(**rows):
    return {name: read_triples(without(each, LABEL), CONTEXT).triples for name, each in rows.items()}


def matched(rows, gold):
    """The rows with their labels, where every label has a row."""
    found, own = with_labels(rows, read_labels(gold, CONTEXT), CONTEXT)
    assert not any(own.values())
    return found


def labels_of(found):
    return {name: [each.label for each in rows if each.label is not None] for name, rows in found.items()}


def test_labels_are_matched_by_id_alone():
    rows = triples(10)
    gold = [{"id": row["id"], LABEL: row[LABEL]} for row in rows[:4]]
    found = matched(systems(a=rows), gold)
    assert labels_of(found) == {"a": [row[LABEL] for row in rows[:4]]}


def test_labels_are_matched_by_texts_where_there_is_no_id():
    rows = without(triples(10), "id")
    found = matched(systems(a=rows), rows[3:5])
    assert labels_of(found) == {"a": [row[LABEL] for row in rows[3:5]]}


def test_the_same_id_in_two_systems_is_told_apart_by_texts_or_system():
    one, other = triples(6, seed=1), triples(6, seed=2)
    gold = [{**row, "system": name} for name, rows in (("a", one), ("b", other)) for row in without(rows, "passage")]
    found = matched(systems(a=one, b=other), gold)
    assert labels_of(found) == {"a": [row[LABEL] for row in one], "b": [row[LABEL] for row in other]}
    # Rows of which the judge reads the same texts share a label.
    by_texts = matched(systems(a=one, b=other), one)
    assert labels_of(by_texts)["a"] == [row[LABEL] for row in one]


@pytest.mark.parametrize(
    ("rows", "gold", "said"),
    [
        (
            {"a": triples(6, rate=1), "b": triples(6, rate=0)},
            [{"id": "q1", LABEL: 1}],
            r"id 'q1' matches 2 rows .of 'a', 'b'. with different texts",
        ),
        (
            {"a": triples(10)},
            [{"id": f"x{number}", LABEL: 1} for number in range(8)],
            r"own query and passage, but 8 of 8 do neither: id 'x0', id 'x1', .* and 3 more",
        ),
        # Other texts with the same id are another row, and so are the same texts with another id.
        (
            {"a": triples(10)},
            [{"id": "q1", "query": "another", LABEL: 1}, {"id": "x", "query": triples(2)[1]["query"], LABEL: 1}],
            "2 of 2 do neither: id 'q1', id 'x'",
        ),
        # A row of its own has all texts, not blank ones.
        ({"a": triples(3)}, [{"query": "new", "passage": " ", LABEL: 1}, *triples(2)], "1 of 3 do neither: row 1"),
        (
            {"a": triples(10)},
            [*triples(3), {**triples(5)[4], "passage": "another passage"}],
            r"row 4 .*: expected the passage of id 'q4' as in the data \(row 5 .*\), got another one: 'another p",
        ),
        (
            {"a": triples(3), "b": triples(3)},
            [{"query": "new", "passage": "own", LABEL: 1}],
            "not among the data, so expected one of the systems 'a', 'b' in its column system",
        ),
        (
            {"a": triples(3)},
            [{"query": "new", "passage": "own", LABEL: each} for each in (1, 0)],
            r"row 2 .*: expected one label for row 2 .* \(query 'new'\), got 1 \(row 1 .*\) and 0",
        ),
        ({"a": triples(3)}, [{**triples(1)[0], "system": "z"}], "expected one of the systems 'a', got 'z'"),
        ({"a": triples(3)}, [{"id": "q1", LABEL: each} for each in (1, 0)], r"one label for id 'q1', got 1 .* and 0"),
    ],
)
def test_labels_that_fit_no_row_or_different_ones_are_refused(rows, gold, said):
    with pytest.raises(InvalidInput, match=said):
        with_labels(systems(**rows), read_labels(gold, CONTEXT), CONTEXT)


def test_labelled_rows_that_are_not_among_the_data_are_rows_of_their_own():
    data = {"a": triples(6), "b": triples(6, seed=1)}
    others = [{**row, "id": f"x{at}", "query": f"{row['query']} again"} for at, row in enumerate(triples(5, seed=2))]
    gold = [{**row, "system": "b"} for row in [*others, others[0]]] + [{**triples(1)[0], "system": "a"}]
    found, own = with_labels(systems(**data), read_labels(gold, CONTEXT), CONTEXT)
    assert labels_of(found) == {"a": [triples(1)[0][LABEL]], "b": []}
    assert [(each.id, each.label) for each in own["b"]] == [(row["id"], row[LABEL]) for row in others]
    assert own["a"] == []


def test_rows_of_their_own_may_be_numbered_like_the_data_if_no_label_matches_by_id():
    others = [{**row, "query": f"{row['query']} again"} for row in triples(5, seed=2)]
    found, own = with_labels(systems(a=triples(6)), read_labels(others, CONTEXT), CONTEXT)
    assert labels_of(found) == {"a": []}
    assert len(own["a"]) == 5
    with pytest.raises(InvalidInput, match="expected the query of id 'q1' as in the data"):
        with_labels(systems(a=triples(6)), read_labels([triples(1)[0], *others[1:]], CONTEXT), CONTEXT)


def test_a_file_without_labels_is_refused_with_its_columns():
    with pytest.raises(InvalidInput, match=r"human labels in the column 'context_relevance', got none in 3 rows.*'id'"):
        read_labels(without(triples(3), LABEL), CONTEXT)
