"""An embedder and its index together: queries are texts."""

import shutil

import numpy as np
import pytest

from bothways import SemanticSearch, SentenceEmbedder
from bothways.data import Row
from bothways.errors import InvalidInput, OutputExists
from bothways.retrieval import Among, Dense, Hybrid, Lexical, Rerank

TEXTS = [
    "A cat sleeps on the sofa.",
    "Interest rates rose again.",
    "The striker scored twice.",
    "A kitten plays with wool.",
]


@pytest.fixture(scope="module")
def embedder(minilm_folder):
    return SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2", device="cpu", dimensions=100)


@pytest.fixture(scope="module")
def search(embedder):
    """An index by the embedder, which no test changes."""
    return SemanticSearch.build(embedder, TEXTS, ids=["a", "b", "c", "d"])


@pytest.fixture(scope="module")
def tiny(tiny_bert):
    """An embedder that knows no meanings."""
    return SentenceEmbedder.from_pretrained(tiny_bert, device="cpu")


def test_the_nearest_text_is_found_with_its_cosine(search, embedder):
    best, second = search.search("a pet cat", k=2, mode=Dense())
    assert {best.id, second.id} == {"a", "d"}
    query_K, text_K = embedder.encode(["a pet cat", best.text])
    assert best.score == pytest.approx(float(query_K @ text_K), abs=1e-6)


def test_several_queries_get_an_answer_each_and_a_single_one_the_same(search):
    answers = search.search(["football", "central bank"], k=1)
    assert [hits[0].id for hits in answers] == ["c", "b"]
    (alone,) = search.search("football", k=1)
    assert alone.id == "c"
    # Another batch, another order of summation.
    assert alone.score == pytest.approx(answers[0][0].score, abs=1e-5)


def test_a_saved_search_opens_with_its_model_and_answers_the_same(search, tmp_path):
    search.save(tmp_path / "index")
    again = SemanticSearch.open(tmp_path / "index", device="cpu")
    assert again.embedder.dimensions == 100
    assert again.search("a pet cat", k=3) == search.search("a pet cat", k=3)  # the same batch: the same bits
    with pytest.raises(OutputExists):
        search.save(tmp_path / "index")


def test_a_model_that_was_moved_can_be_named(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "one")
    embedder = SentenceEmbedder.from_pretrained(tmp_path / "one", device="cpu")
    SemanticSearch.build(embedder, ["w5 w6", "w7", "w8 w9"]).save(tmp_path / "index")
    (tmp_path / "one").rename(tmp_path / "two")
    found = SemanticSearch.open(tmp_path / "index", model=tmp_path / "two", device="cpu").search("w7", k=1)
    assert found[0].id == "1"


def test_texts_are_read_later_as_they_were_when_the_index_was_built(tiny_bert, tmp_path):
    options = {"max_length": 6, "on_overflow": "truncate"}
    embedder = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu", **options)
    text = " ".join(f"w{word}" for word in range(5, 25))
    SemanticSearch.build(embedder, [text]).save(tmp_path / "index")
    opened = SemanticSearch.open(tmp_path / "index", device="cpu")
    opened.add([text])
    np.testing.assert_array_equal(*opened.index.vectors_ND)
    otherwise = SemanticSearch.open(tmp_path / "index", device="cpu", max_length=12, on_overflow="window")
    assert otherwise.embedder.fitted.settings.max_length == 12
    otherwise.add([text])
    assert not np.allclose(*otherwise.index.vectors_ND)


def test_a_model_with_the_same_weights_and_another_vocabulary_is_refused(tiny_bert, tmp_path):
    shutil.copytree(tiny_bert, tmp_path / "tiny")
    embedder = SentenceEmbedder.from_pretrained(tmp_path / "tiny", device="cpu")
    SemanticSearch.build(embedder, ["w5 w6", "w7"]).save(tmp_path / "index")
    path = tmp_path / "tiny" / "tokenizer.json"
    path.write_text(path.read_text().replace('"w5"', '"held"').replace('"w6"', '"w5"').replace('"held"', '"w6"'))
    with pytest.raises(InvalidInput, match="is another one: its vocabulary is"):
        SemanticSearch.open(tmp_path / "index", device="cpu")


def test_an_index_of_another_embedder_is_refused(search, minilm_folder):
    other = SentenceEmbedder.from_pretrained(minilm_folder, device="cpu", pooling="max", dimensions=100)
    with pytest.raises(InvalidInput, match="pooling"):
        SemanticSearch(other, search.index)


def test_texts_may_come_from_a_stream(tiny):
    built = SemanticSearch.build(tiny, (text for text in TEXTS))
    np.testing.assert_allclose(built.index.vectors_ND, tiny.encode(TEXTS), atol=1e-6)


@pytest.mark.parametrize("ids", [["a", "b", "c"], ["a", "b", "c", "d", "e"], ["a", "b", "c", "a"]])
def test_ids_that_do_not_fit_are_refused(tiny, ids):
    with pytest.raises(InvalidInput, match="id"):
        SemanticSearch.build(tiny, TEXTS, ids=ids)


@pytest.mark.parametrize("mode", [Dense(), Lexical(), Hybrid()])
def test_an_empty_query_is_refused_in_every_mode(search, mode):
    for query in ("", " \n"):
        with pytest.raises(InvalidInput, match="query 1 is empty or only white space"):
            search.search(query, mode=mode)
    with pytest.raises(InvalidInput, match="query 2 is empty"):
        search.search(["wool", "\u200b\ufeff"], mode=mode)
    for other in (None, 3, {"wool"}):
        with pytest.raises(InvalidInput, match=r"expected a query, or a list of queries, got (NoneType|int|set)"):
            search.search(other, mode=mode)
    with pytest.raises(InvalidInput, match="expected a string for query 2, got NoneType: None"):
        search.search(["wool", None], mode=mode)


class Backwards:
    """The later, the better."""

    def __init__(self):
        self.passages = 0

    def score(self, _query, passages):
        self.passages += len(passages)
        return np.arange(len(passages), dtype=np.float64)


@pytest.mark.parametrize(("mode", "best"), [(Dense(), "ad"), (Lexical(), "d"), (Hybrid(), "d")])
def test_each_mode_finds_by_what_it_looks_at(search, mode, best):
    hits = search.search("kittens and wool", k=2, mode=mode)
    assert hits[0].id in best
    assert search.search(["kittens and wool", "rates"], k=2, mode=mode)[1][0].id == "b"


def test_a_search_is_hybrid_where_no_mode_is_named(search):
    queries = ["kittens and wool", "rates"]
    assert search.search(queries) == search.search(queries, mode=Hybrid()) != search.search(queries, mode=Dense())


def test_a_search_without_an_embedder_finds_by_words_alone(search):
    words = SemanticSearch(None, search.index)
    assert words.search("wool", mode=Lexical()) == search.search("wool", mode=Lexical())
    for mode in (None, Dense(), Hybrid()):
        with pytest.raises(InvalidInput, match="opened without its model"):
            words.search("wool", mode=mode)


def test_what_is_no_mode_is_refused(search):
    for query in ("a pet", ["a pet"]):
        with pytest.raises(InvalidInput, match=r"expected Dense\(\), Lexical\(\) or Hybrid\(\) .*, got 'hybrid'"):
            search.search(query, mode="hybrid")


def test_one_string_is_not_taken_for_several(search, tiny):
    with pytest.raises(InvalidInput, match="several texts, got one string"):
        SemanticSearch.build(tiny, TEXTS[0])
    with pytest.raises(InvalidInput, match="several ids, got one string"):
        search.add(["x", "y"], ids="xy")


def test_a_reranker_sees_the_first_hits_and_decides_their_order(search):
    judge = Backwards()
    plain = search.search("a pet cat", k=3)
    found = search.search("a pet cat", k=2, rerank=Rerank(judge, depth=3))
    assert [hit.id for hit in found] == [plain[2].id, plain[1].id]
    assert (judge.passages, found[0].score) == (3, 2.0)
    assert len(search.search("a pet cat", k=4, rerank=Rerank(judge, depth=3))) == 4
    assert search.search("unheard", k=4, mode=Lexical(), rerank=Rerank(judge)) == []


def test_texts_are_added_with_fields_and_found_through_filters(tiny):
    search = SemanticSearch.build(tiny, TEXTS[:2], ids=["a", "b"], fields=[{"n": 1}, {"n": 2}])
    search.add(iter(TEXTS[2:]), ids=["c", "d"], fields=({"n": 3} for _ in range(2)))
    assert search.search(TEXTS[3], k=9, filters=[Among("n", (3,))])[0].id == "d"
    assert len(search.search("a pet cat", k=9, filters=[Among("n", (2, 3))])) == 3
    with pytest.raises(InvalidInput, match="the index has texts with these ids already: 'c'"):
        search.add(["x"], ids=["c"], fields=[{"n": 3}])
    with pytest.raises(InvalidInput, match="one mapping of fields for each text, but there are more"):
        search.add(["x"], ids=["x"], fields=[{"n": 3}, {"n": 4}])
    assert len(search.index) == 4


def test_an_embedder_that_was_trained_since_is_no_longer_that_of_the_index(tiny_bert):
    embedder = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu", dimensions=16)
    search = SemanticSearch.build(embedder, TEXTS)
    pairs = [{"text_a": TEXTS[0], "text_b": text, "score": number} for number, text in enumerate(TEXTS[1:])]
    embedder.fit(pairs, validation=pairs, epochs=1)
    for use in (lambda: search.search("a pet"), lambda: search.add(["A dog barks."])):
        with pytest.raises(InvalidInput, match="trained after the index"):
            use()
    assert search.search("rates", mode=Lexical())[0].text == TEXTS[1]


# Rows instead of texts

ROWS = [
    {"id": name, "text": text, "year": 2020 + place}
    for place, (name, text) in enumerate(zip("abcd", TEXTS, strict=True))
]


def kept_of(search):
    return [(hit.id, hit.text, dict(hit.fields)) for hit in search.search("a pet cat", k=4)]


@pytest.mark.parametrize(
    "rows",
    [
        ROWS,
        tuple(ROWS),
        (row for row in ROWS),
        [{"id": row["id"], "text": row["text"], "fields": {"year": row["year"]}} for row in ROWS],
        [Row(number, row) for number, row in enumerate(ROWS)],
        [row | {"year": np.int64(row["year"]), "text": np.str_(row["text"])} for row in ROWS],
    ],
    ids=["dicts", "tuple", "stream", "with fields", "rows", "numpy"],
)
def test_dicts_are_texts_with_their_ids_and_fields(tiny, rows):
    apart = SemanticSearch.build(tiny, TEXTS, ids=list("abcd"), fields=[{"year": row["year"]} for row in ROWS])
    built = SemanticSearch.build(tiny, rows)
    assert kept_of(built) == kept_of(apart)
    assert [hit.id for hit in built.search("a pet cat", k=4, filters=[Among("year", (2023,))])] == ["d"]


def test_rows_of_a_frame_and_of_a_dataset_are_dicts(tiny):
    expected = kept_of(SemanticSearch.build(tiny, ROWS))
    pandas, datasets = pytest.importorskip("pandas"), pytest.importorskip("datasets")
    for table in (pandas.DataFrame(ROWS), datasets.Dataset.from_list(ROWS)):
        assert kept_of(SemanticSearch.build(tiny, table)) == expected
    frame = pandas.DataFrame(ROWS)
    by_columns = SemanticSearch.build(tiny, frame["text"], ids=frame["id"], fields=frame[["year"]])
    assert kept_of(by_columns) == expected


def test_dicts_are_added_under_the_fields_of_the_index(tiny):
    search = SemanticSearch.build(tiny, ROWS[:2])
    search.add(ROWS[2:])
    assert sorted(kept_of(search)) == sorted(kept_of(SemanticSearch.build(tiny, ROWS)))
    with pytest.raises(InvalidInput, match="fields"):
        search.add([{"id": "e", "text": "Snow.", "month": 1}])


def test_dicts_without_id_are_numbered_and_whole_numbers_are_ids(tiny):
    numbered = SemanticSearch.build(tiny, [{"text": text} for text in TEXTS])
    assert numbered.search(TEXTS[2], k=1)[0].id == "2"
    named = SemanticSearch.build(tiny, [{"text": text, "id": 10 + n} for n, text in enumerate(TEXTS)])
    assert named.search(TEXTS[2], k=1)[0].id == "12"


@pytest.mark.parametrize(
    ("rows", "problem"),
    [
        ([{"id": "a", "text": "x"}, {"text": "y"}], r"row 1 \(counted from 0\) has no column 'id'"),
        ([{"text": "x"}, {"id": "b", "text": "y"}], r"row 1 \(counted from 0\) has the fields \['id'\]"),
        ([{"text": "x"}, {"txt": "y"}], r"has no column 'text'. It has: 'txt'. Rename 'txt' to 'text'"),
        ([{"text": "x"}, {"text": None}], r"row 1 \(counted from 0\): 'text' is null"),
        ([{"text": "x"}, "y"], r"expected row 1 \(counted from 0\) to be a dict, like the rows before it, got str"),
        (
            [{"text": "x", "id": None}],
            r"row 0 \(counted from 0\): expected a string or a whole number as the id, got None",
        ),
        ([{"text": "x", "tags": ["a"]}], "the field 'tags' of row 0"),
        ([{"text": "x", "fields": {"a": 1}, "b": 2}], "the field 'fields' of row 0"),
        ({"text": "x"}, "expected a list of texts, got dict"),
    ],
)
def test_dicts_that_do_not_fit_are_refused(tiny, rows, problem):
    with pytest.raises(InvalidInput, match=problem):
        SemanticSearch.build(tiny, rows)


@pytest.mark.parametrize("beside", [{"ids": ["a"]}, {"fields": [{"year": 1}]}])
def test_ids_and_fields_beside_dicts_are_refused(tiny, beside):
    with pytest.raises(InvalidInput, match="expected ids and fields either in the dicts or as separate arguments"):
        SemanticSearch.build(tiny, [{"text": "x"}], **beside)
