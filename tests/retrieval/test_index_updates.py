"""Adding and deleting rows, and what is on disk when the process that does it is killed."""

import pytest
from index_samples import ENCODER, built, random_vectors

from bothways.errors import InvalidInput, UnknownModel
from bothways.retrieval import Among, SearchIndex, updating
from killing import died_before_file_event


def ids_of(hits):
    return [[hit.id for hit in of_query] for of_query in hits]


def rows_of(index):
    return list(zip(index.ids, index.texts, index.vectors_ND.tolist(), strict=True))


# Adding and deleting


def test_an_index_that_was_updated_answers_as_one_built_anew():
    vectors, queries = random_vectors(30), random_vectors(6, seed=3)
    texts = [f"w{row % 7} w{row % 5} w{row}" for row in range(30)]
    ids = [f"id {row}" for row in range(30)]
    fields = [{"row": row} for row in range(30)]
    index = SearchIndex.build(vectors[:20], texts=texts[:20], ids=ids[:20], fields=fields[:20], encoder=ENCODER)
    index.search_lexical(["w3"], 3)  # prepared before the update
    index.add(vectors[20:], texts=texts[20:], ids=ids[20:], fields=fields[20:])
    index.delete(["id 0", "id 17", "id 29"])
    kept = [row for row in range(30) if row not in (0, 17, 29)]
    anew = SearchIndex.build(
        vectors[kept],
        texts=[texts[row] for row in kept],
        ids=[ids[row] for row in kept],
        fields=[fields[row] for row in kept],
        encoder=ENCODER,
    )
    assert index.search(queries, 9) == anew.search(queries, 9)
    words = ["w3 w4", "w29", "w1", "w2 w28", "w0", "w6"]
    assert index.search_lexical(words, 9) == anew.search_lexical(words, 9)
    assert index.search_hybrid(words, queries, 9) == anew.search_hybrid(words, queries, 9)
    assert index.search(queries, 9, filters=[Among("row", (21, 17))])[0][0].id == "id 21"


def test_an_update_is_on_disk_once_it_is_saved(tmp_path):
    built(3).save(tmp_path / "index")
    index = SearchIndex.open(tmp_path / "index")
    index.add(random_vectors(2, seed=1), texts=["new", "newer"])
    index.delete(["1"])
    assert len(SearchIndex.open(tmp_path / "index")) == 3
    index.save(tmp_path / "index", overwrite=True)
    again = SearchIndex.open(tmp_path / "index")
    assert again.ids == ("0", "2", "3", "4")
    assert rows_of(again) == rows_of(index)
    assert ids_of(again.search_lexical(["newer"], 5)) == [["4"]]


def test_rows_without_ids_are_numbered_on_from_the_highest_number():
    index = built(3)
    index.delete(["0"])
    index.add(random_vectors(2, seed=1), texts=["a", "b"])
    assert index.ids == ("1", "2", "3", "4")


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (
            lambda index: index.add(random_vectors(1), texts=["a"], ids=["2"]),
            "these ids already: '2'. Delete",
        ),
        (lambda index: index.add(random_vectors(2), texts=["a", "b"], ids=["x", "x"]), "the id 'x' occurs in rows"),
        (lambda index: index.add(random_vectors(1, dimensions=3), texts=["a"]), r"shape \(rows, 8\)"),
        (lambda index: index.add(random_vectors(0), texts=[]), "at least one text"),
        (
            lambda index: index.add(random_vectors(1), texts=["a"], fields=[{"x": 1}]),
            r"fields \[\], got \['x'\]",
        ),
        (lambda index: index.delete(["1", "absent"]), r"no texts with these ids: 'absent'\.$"),
        (lambda index: index.delete(map(str, range(2, 9))), r"these ids: '3', '4', '5' and 3 more"),
        (lambda index: index.delete(["0", "1", "2"]), "instead of deleting all"),
        (lambda index: index.delete("12"), r"expected several ids, got one string: write \['12'\]"),
    ],
)
def test_an_update_that_cannot_be_made_leaves_the_index_as_it_was(update, problem):
    index = built(3)
    before = rows_of(index)
    with pytest.raises(InvalidInput, match=problem):
        update(index)
    assert rows_of(index) == before


def test_of_two_updates_at_the_same_time_the_second_is_refused(tmp_path):
    built(3).save(tmp_path / "index")
    folder = tmp_path / "index"
    with updating(folder), pytest.raises(InvalidInput, match="another process is updating"), updating(folder):
        pass
    with updating(folder):
        built(4).save(folder, overwrite=True)
    with updating(folder):
        assert len(SearchIndex.open(folder)) == 4
    with pytest.raises(UnknownModel), updating(tmp_path):
        pass


# Killed


def test_an_update_killed_before_any_of_its_file_operations_leaves_the_old_index_or_the_new(tmp_path):
    folder = tmp_path / "index"
    old, new = built(3), built(3)
    new.add(random_vectors(2, seed=1), texts=["a", "b"])
    new.delete(["1"])
    new.search_lexical(["a"], 1)  # prepared here, once
    old.save(folder)
    found = []
    number = 1
    while died_before_file_event(number, lambda: new.save(folder, overwrite=True)):
        opened = SearchIndex.open(folder)
        assert rows_of(opened) in (rows_of(old), rows_of(new)), number
        found.append(len(opened))
        number += 2
        # The next update clears away what the killed one left.
        old.save(folder, overwrite=True)
        assert len(list(folder.iterdir())) == 2
        assert list(tmp_path.iterdir()) == [folder]
    assert number > 20
    assert found == sorted(found), "once the new index is there it stays"
    assert set(found) == {3, 4}
    assert rows_of(SearchIndex.open(folder)) == rows_of(new)
