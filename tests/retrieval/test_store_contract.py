"""One contract for an index in files and an index in a database."""

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
from index_samples import ENCODER, random_vectors

from bothways.errors import InvalidInput, OutputExists, UnknownModel
from bothways.retrieval import (
    Among,
    Between,
    Hybrid,
    ReciprocalRank,
    RowBatch,
    SearchIndex,
    SourceColumns,
    Weighted,
    build_index,
    building,
    changing,
    facts_of,
    open_index,
)

N = 40
VECTORS = random_vectors(N)
QUERIES = random_vectors(5, seed=7)
TEXTS = [f"The word{row % 7} of a text, word{row % 5} and word{row}." for row in range(N)]
IDS = [f"id {row}" for row in range(N)]
FIELDS = [{"row": row, "lang": ("en", "fr", None)[row % 3], "price": f"1,{row:03}"} for row in range(N)]
SOURCE = SourceColumns(("title", "text"), "id", {"csv": {"format": None, "encoding": "cp1252"}})


def batches(rows=range(N), vectors=VECTORS):
    """The rows in batches of seven."""
    rows = list(rows)
    for start in range(0, len(rows), 7):
        some = rows[start : start + 7]
        yield RowBatch(
            vectors[some], [TEXTS[row] for row in some], [IDS[row] for row in some], [FIELDS[row] for row in some]
        )


def in_memory(rows=range(N), encoder=ENCODER, vectors=VECTORS):
    return SearchIndex.build_from_batches(batches(rows, vectors), encoder=encoder)


@pytest.fixture(params=["files", "postgres"])
def place(request, tmp_path):
    """A place without an index."""
    files = request.param == "files"
    address = str(tmp_path / "index") if files else request.getfixturevalue("postgres").new_table()
    return SimpleNamespace(
        kind=request.param,
        address=address,
        build=lambda rows=None, **options: build_index(
            address, batches() if rows is None else rows, **{"encoder": ENCODER, **options}
        ),
        opened=lambda: open_index(address),
    )


def rows_of(index):
    return [*index.texts_of(index.ids).items()], index.search(QUERIES, N)


def ids(hits):
    return [hit.id for hit in hits]


# Building and opening


def test_an_index_is_opened_as_it_was_built(place):
    place.build(source=SOURCE, language="french", encoder=replace(ENCODER, name="a 'name' %s"))
    index = place.opened()
    assert (len(index), index.ids, index.field_names) == (N, tuple(IDS), ("row", "lang", "price"))
    assert (index.encoder.name, index.source, index.language) == ("a 'name' %s", SOURCE, "french")
    assert index.texts_of({"id 3", "absent"}) == {"id 3": TEXTS[3]}
    facts = facts_of(place.address)
    assert (facts.texts, facts.encoder, facts.fields, facts.language, facts.source) == (
        *(N, index.encoder, index.field_names, "french", SOURCE),
    )


def test_an_index_that_is_there_is_replaced_only_if_asked(place):
    with pytest.raises(UnknownModel):
        place.opened()
    place.build()
    with pytest.raises(OutputExists, match="already exists"), building(place.address):
        pass
    with pytest.raises(OutputExists, match="already exists"):
        place.build([RowBatch(VECTORS[:1], ["new"])])
    assert len(place.opened()) == N
    with building(place.address, overwrite=True):
        place.build([RowBatch(VECTORS[:1], ["new"])], overwrite=True)
    assert rows_of(place.opened())[0] == [("0", "new")]
    assert place.opened().field_names == ()


@pytest.mark.parametrize("failure", [RuntimeError, KeyboardInterrupt])
def test_a_build_that_fails_leaves_what_was_there(place, failure):
    def failing():
        yield from list(batches())[:2]
        raise failure

    for before in (False, True):
        if before:
            place.build()
        with pytest.raises(failure):
            place.build(failing(), overwrite=True)
        if not before:
            with pytest.raises(UnknownModel):
                place.opened()
    assert rows_of(place.opened()) == rows_of(in_memory())


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([], "at least one text"),
        (
            [RowBatch(VECTORS[:1], ["a"], ["x"]), RowBatch(VECTORS[:1], ["b"], ["x"])],
            "the id 'x' occurs in rows 0 and 1",
        ),
        ([RowBatch(VECTORS[:2], ["a", "b"], None, [{"x": 1}, {"y": 1}])], r"row 1 .* has the fields \['y'\]"),
        ([RowBatch(np.zeros((1, 8)), ["a"])], "all zeros"),
        ([RowBatch(VECTORS[:1, :4], ["a"])], "shape"),
    ],
)
def test_unusable_rows_are_refused_and_nothing_is_built(place, rows, problem):
    with pytest.raises(InvalidInput, match=problem):
        place.build(rows)
    with pytest.raises(UnknownModel):
        place.opened()


def test_a_language_that_there_is_not_is_refused(place):
    with pytest.raises(InvalidInput, match=r"klingon.*Expected one of.*english"):
        place.build(language="klingon")


# Searching


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_dense_hits_are_those_of_an_index_in_memory(place, similarity):
    encoder = replace(ENCODER, similarity=similarity)
    vectors = VECTORS * np.linspace(0.1, 30, N)[:, None].astype(np.float32)
    place.build(batches(vectors=vectors), encoder=encoder)
    expected, index = in_memory(encoder=encoder, vectors=vectors), place.opened()
    for exact, k in itertools.product((False, True), (1, 3, N, N + 5)):
        assert index.search(QUERIES, k, exact=exact) == expected.search(QUERIES, k)
    assert [index.search(query[None], 4)[0] for query in QUERIES] == index.search(QUERIES, 4)
    assert index.search(np.empty((0, 8), np.float32), 3) == []
    own = index.search(vectors, 1)
    assert similarity == "dot" or all(abs(hit.score - 1) < 1e-6 and hit.score <= 1 for (hit,) in own)


def test_equal_scores_come_in_the_order_of_the_rows(place):
    place.build([RowBatch(np.tile(VECTORS[:2], (20, 1)), ["same words"] * N)])
    index = place.opened()
    assert ids(index.search(VECTORS[:1], 25)[0]) == [*map(str, range(0, N, 2)), "1", "3", "5", "7", "9"]
    assert ids(index.search_lexical(["words"], 5)[0]) == ["0", "1", "2", "3", "4"]


FILTERS = [
    ([Among("lang", ("en",))], range(0, N, 3)),
    ([Among("lang", (None,)), Between("row", 5, 20)], [5, 8, 11, 14, 17, 20]),
    ([Between("price", low=1035)], range(35, N)),
    ([Among("row", (3.0, 4, True, "5"))], [3, 4]),
    ([Among("row", ())], []),
]


@pytest.mark.parametrize(("filters", "rows"), FILTERS)
def test_only_rows_that_pass_all_filters_are_found(place, filters, rows):
    place.build()
    index = place.opened()
    expected = {IDS[row] for row in rows}
    assert index.search(QUERIES, 9, filters=filters) == in_memory().search(QUERIES, 9, filters=filters)
    assert {hit.id for hit in index.search_lexical(["text"], N, filters=filters)[0]} == expected
    hybrid = index.search_hybrid(["text"], QUERIES[:1], N, filters=filters)
    assert set(ids(hybrid[0])) == expected


def test_rows_with_a_word_of_the_query_are_found_the_rarest_first(place):
    place.build()
    index = place.opened()
    for query in (
        "word1 word39",
        "WORD8, nothing",
        "it's 'quoted' \\ & | ! word3 :*",
        "nothing",
        "\0",
        "\ud800 word4",
    ):
        (hits,), (expected,) = index.search_lexical([query], N), in_memory().search_lexical([query], N)
        assert set(ids(hits)) == set(ids(expected))
        assert all(hit.score > 0 for hit in hits)
        assert [hit.rank for hit in hits] == [*range(1, len(hits) + 1)]
    (first, *_), _ = index.search_lexical(["word1 word39", "word4"], 3)
    assert (first.id, first.text, first.fields) == ("id 39", TEXTS[39], FIELDS[39])
    assert index.search_lexical([], 3) == []


def test_hybrid_search_combines_both_rankings(place):
    place.build()
    index, words = place.opened(), ["word3", "word4 word5", "nothing", "word38", "word0"]
    dense, lexical = index.search(QUERIES, N), index.search_lexical(words, N)
    assert [ids(hits) for hits in index.search_hybrid(words, QUERIES, 9, mode=Hybrid(Weighted(1.0)))] == [
        ids(hits)[:9] for hits in dense
    ]
    mode = Hybrid(ReciprocalRank(10), depth=N)
    for hits, near, matching in zip(index.search_hybrid(words, QUERIES, 9, mode=mode), dense, lexical, strict=True):
        ranks = [{hit.id: hit.rank for hit in found} for found in (near, matching)]
        expected = {id_: sum(1 / (10 + of[id_]) for of in ranks if id_ in of) for id_ in IDS}
        assert {hit.id: hit.score for hit in hits} == {hit.id: pytest.approx(expected[hit.id]) for hit in hits}
        assert min(hit.score for hit in hits) == pytest.approx(sorted(expected.values())[-9])


@pytest.mark.parametrize(
    ("search", "problem"),
    [
        (lambda index: index.search(QUERIES, 0), "k must be a whole number of at least 1, got 0"),
        (lambda index: index.search_lexical(["a"], True), "k must be a whole number"),
        (lambda index: index.search(QUERIES[:, :3], 1), r"shape \(rows, 8\)"),
        (lambda index: index.search(np.full((1, 8), np.nan), 1), "query 0 .* NaN"),
        (lambda index: index.search_hybrid(["a"], QUERIES, 1), "a vector for each query, got 5 for 1"),
        (
            lambda index: index.search(QUERIES, 1, filters=[Among("lnag", ("en",))]),
            "no field 'lnag'.*Did you mean 'lang'",
        ),
        (
            lambda index: index.search(QUERIES, 1, filters=[Between("lang", 1)]),
            "needs numbers, but that field has none",
        ),
        (lambda index: index.search(QUERIES, 1, filters=Among("lang", ("en",))), "expected a list of filters"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(place, search, problem):
    place.build()
    with pytest.raises(InvalidInput, match=problem):
        search(place.opened())


def test_a_passage_has_the_words_of_the_query_marked(place):
    long = "nothing here " * 40 + "a supersonic wing, and wings " + "more of it " * 40
    place.build([RowBatch(VECTORS[:3], [long, "nothing of a wing", "nothing"])])
    passage = place.opened().passage("the wing nothing", long, width=100)
    assert len(passage.text) <= 102
    assert {text for text, marked in passage.parts() if marked} == {"wing", "wings", "nothing"}
    assert place.opened().passage("else", "a  text") == replace(passage, text="a text", marked=())


# Changing


def test_an_index_that_was_changed_answers_as_one_built_anew(place):
    place.build(batches(range(25)))
    with changing(place.address) as index:
        index.add_batches(batches(range(25, N)))
    with changing(place.address) as index:
        index.delete(["id 0", "id 17", "id 39"])
    kept = [row for row in range(N) if row not in (0, 17, 39)]
    assert rows_of(place.opened()) == rows_of(in_memory(kept))
    words = ["word3 word4", "word29", "word1", "word2 word28", "word0"]
    anew = replace_place(place, batches(kept))
    for index in (place.opened(),):
        assert index.search_lexical(words, 9) == anew.search_lexical(words, 9)
        assert index.search_hybrid(words, QUERIES, 9) == anew.search_hybrid(words, QUERIES, 9)


def replace_place(place, rows):
    """Another index of the same kind."""
    return build_index(f"{place.address}_anew", rows, encoder=ENCODER)


def test_rows_without_ids_are_numbered_on_from_the_highest_number(place):
    place.build([RowBatch(VECTORS[:2], ["a", "b"]), RowBatch(VECTORS[2:3], ["c"])])
    with changing(place.address) as index:
        index.delete(["0"])
    with changing(place.address) as index:
        index.add_batches([RowBatch(VECTORS[:1], ["d"]), RowBatch(VECTORS[:1], ["e"])])
    assert place.opened().ids == ("1", "2", "3", "4")


ONE = random_vectors(1)


@pytest.mark.parametrize(
    ("update", "problem"),
    [
        (
            lambda index: index.add_batches([RowBatch(ONE, ["a"], ["id 2"], FIELDS[:1])]),
            "these ids already: 'id 2'. Delete",
        ),
        (lambda index: index.add_batches([RowBatch(ONE, ["a"], ["x"], FIELDS[:1])] * 2), "the id 'x' occurs in rows"),
        (lambda index: index.add_batches([RowBatch(ONE[:, :3], ["a"], None, FIELDS[:1])]), r"shape \(rows, 8\)"),
        (lambda index: index.add_batches([]), "at least one text"),
        (
            lambda index: index.add_batches([RowBatch(ONE, ["a"])]),
            r"has the fields \['lang', 'price', 'row'\], got \[\]",
        ),
        (lambda index: index.delete(["id 1", "absent"]), r"no texts with these ids: 'absent'\.$"),
        (lambda index: index.delete(map(str, range(2, 9))), r"these ids: '2', '3', '4' and 4 more"),
        (lambda index: index.delete(["id 1", 7]), r"no texts with these ids: 7\.$"),
        (lambda index: index.delete(["\0"]), r"no texts with these ids: '\\x00'\.$"),
        (lambda index: index.delete(IDS), "instead of deleting all"),
        (lambda index: index.delete("id 1"), r"expected several ids, got one string"),
    ],
)
def test_an_update_that_cannot_be_made_leaves_the_index_as_it_was(place, update, problem):
    place.build()
    with pytest.raises(InvalidInput, match=problem), changing(place.address) as index:
        update(index)
    assert rows_of(place.opened()) == rows_of(in_memory())


def test_of_two_changes_at_the_same_time_the_second_is_refused(place):
    place.build()

    def slow():
        yield next(batches())._replace(ids=[f"new {row}" for row in range(7)])
        with (
            pytest.raises(InvalidInput, match="another process is updating the index"),
            changing(place.address) as other,
        ):
            other.delete(["id 1"])
        assert len(place.opened()) == N  # searches go on

    with changing(place.address) as index:
        index.add_batches(slow())
    assert len(place.opened()) == N + 7


def test_searches_of_many_threads_see_the_rows_before_or_after_each_change(place):
    place.build()
    index = place.opened()
    extra = [RowBatch(random_vectors(9, seed=3), ["an extra word0"] * 9, [f"x{row}" for row in range(9)], FIELDS[:9])]
    began, done, answers = threading.Barrier(9, timeout=60), threading.Event(), []

    def search(hits_of):
        began.wait()
        while True:
            last = done.is_set()
            (hits,) = hits_of(index)
            answers.append(frozenset(ids(hits)) & frozenset(extra[0].ids))
            assert all(hit.text == (TEXTS[int(hit.id[3:])] if hit.id[0] == "i" else "an extra word0") for hit in hits)
            if last:
                return len(hits)

    dense, lexical, hybrid = (
        lambda index: index.search(QUERIES[:1], 99),
        lambda index: index.search_lexical(["word0"], 99),
        lambda index: index.search_hybrid(["word0"], QUERIES[:1], 99),
    )
    with ThreadPoolExecutor(8) as threads:
        found = [threads.submit(search, each) for each in (dense, lexical, hybrid) * 2 + (dense, lexical)]
        began.wait()
        try:
            for _ in range(6):
                index.add_batches(extra)
                index.delete(extra[0].ids)
        finally:
            done.set()
        with_word = sum("word0" in text for text in TEXTS)
        assert [each.result() for each in found] == [N, with_word, N] * 2 + [N, with_word]
    assert set(answers) <= {frozenset(), frozenset(extra[0].ids)}


def test_threads_that_search_at_once_answer_as_one_does(place):
    place.build()
    index = place.opened()
    words = [f"word{row} word{row % 7}" for row in range(N)]

    def answers(row):
        (hit, *_), *_ = index.search_hybrid(words[row : row + 1], VECTORS[row : row + 1], 5)
        return index.search(VECTORS[row : row + 1], 5), hit, index.passage(words[row], hit.text)

    alone = [answers(row) for row in range(N)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(answers, [*range(N)] * 3)) == alone * 3


def test_an_index_is_copied_into_a_folder(place, tmp_path):
    place.build(source=SOURCE, language="french")
    place.opened().save(tmp_path / "copy")
    copy = SearchIndex.open(tmp_path / "copy")
    assert (copy.ids, copy.source, copy.language) == (tuple(IDS), SOURCE, "french")
    assert [ids(hits) for hits in copy.search(QUERIES, N)] == [ids(hits) for hits in in_memory().search(QUERIES, N)]
    with pytest.raises(OutputExists):
        place.opened().save(tmp_path / "copy")
