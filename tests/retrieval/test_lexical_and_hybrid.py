"""Search by words, by words and meaning together, through filters, and with a second look."""

import math
import re
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from index_samples import ENCODER, built, random_vectors

from bothways.errors import InvalidInput, MissingDependency
from bothways.retrieval import (
    Among,
    Between,
    Hit,
    Hybrid,
    ReciprocalRank,
    Rerank,
    SearchIndex,
    Weighted,
    parse_filters,
    reranked,
)

TEXTS = [
    "The wing of a slender body in supersonic flow",
    "Boundary layers, boundary layers: laminar flow",
    "Cooking pasta",
    "a wing and a wing",
    "",
]


def index_of(texts, vectors=None, **settings):
    vectors = random_vectors(len(texts)) if vectors is None else vectors
    return SearchIndex.build(vectors, texts=texts, encoder=ENCODER, **settings)


def ids(hits):
    return [hit.id for hit in hits]


def bm25(texts, query, k1=1.2, b=0.75):
    """Robertson's sum with Lucene's idf, written out."""
    documents = [re.findall(r"\w+", text.lower()) for text in texts]
    mean = sum(map(len, documents)) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for word in re.findall(r"\w+", query.lower()):
            df = sum(word in each for each in documents)
            tf = document.count(word)
            if tf:
                idf = math.log(1 + (len(documents) - df + 0.5) / (df + 0.5))
                score += idf * tf / (tf + k1 * (1 - b + b * len(document) / mean))
        scores.append(score)
    return scores


# By words


@pytest.mark.parametrize("query", ["wing flow", "the wing WING", "boundary pasta unheard", "a"])
def test_scores_are_those_of_the_formula(query):
    index = index_of(TEXTS, language=None)
    expected = bm25(TEXTS, query)
    (hits,) = index.search_lexical([query], 10)
    assert ids(hits) == [str(row) for row in np.argsort(-np.array(expected), kind="stable") if expected[row] > 0]
    for hit in hits:
        assert hit.score == pytest.approx(expected[int(hit.id)], rel=1e-6)  # bm25s keeps float32


def test_words_are_compared_by_their_stems_in_the_language_of_the_index():
    assert ids(index_of(TEXTS).search_lexical(["cooks"], 5)[0]) == ["2"]
    assert ids(index_of(TEXTS, language=None).search_lexical(["cooks"], 5)[0]) == []
    french = index_of(["les chevaux mangeaient", "rien"], language="french")
    assert ids(french.search_lexical(["manger"], 5)[0]) == ["0"]


def test_a_text_without_a_word_of_the_query_is_no_hit():
    index = index_of(TEXTS)
    assert [ids(hits) for hits in index.search_lexical(["quantum", "", "pasta!", "...", "WING"], 9)] == [
        [],
        [],
        ["2"],
        [],
        ["3", "0"],
    ]


def test_equal_texts_come_in_row_order_alone_and_in_a_batch():
    index = index_of(["one wing", "two", "one wing", "one wing", "wing one"])
    together = index.search_lexical(["wing", "two", "one wing"], 3)
    assert ids(together[0]) == ["0", "2", "3"]
    assert [index.search_lexical([query], 3)[0] for query in ("wing", "two", "one wing")] == together


def test_an_index_of_texts_without_words_finds_nothing(tmp_path):
    index = index_of(["...", "!"])
    index.save(tmp_path / "index")
    for each in (index, SearchIndex.open(tmp_path / "index")):
        assert each.search_lexical(["word", "!"], 3) == [[], []]
        assert len(each.search_hybrid(["word"], random_vectors(1), 2)[0]) == 2


def test_a_language_without_a_stemmer_is_refused():
    with pytest.raises(InvalidInput, match=r"no stemmer for 'klingon'. Expected one of .*english"):
        built(2, language="klingon")


@pytest.mark.parametrize(("package", "name"), [("bm25s", "bm25s"), ("Stemmer", "PyStemmer")])
def test_building_without_the_lexical_packages_names_the_line_that_installs_them(monkeypatch, package, name):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=rf"'{name}'.*pip install 'bothways\[search\]'"):
        built(2)


# By both


def reference_hybrid(index, query, vector, fusion, depth):
    """Every row with its two scores, then the fusion written out."""
    dense = {hit.id: hit.score for hit in index.search(vector[None], len(index))[0]}
    lexical = {hit.id: hit.score for hit in index.search_lexical([query], len(index))[0]}
    by_meaning, by_words = list(dense)[:depth], list(lexical)[:depth]
    candidates = sorted({*by_meaning, *by_words}, key=int)

    def scaled(scores, id_):
        low, high = (end(scores.get(each, 0.0) for each in candidates) for end in (min, max))
        return (scores.get(id_, 0.0) - low) / (high - low) if high > low else float(scores is dense or high > 0)

    fused = {}
    for id_ in candidates:
        if isinstance(fusion, Weighted):
            fused[id_] = fusion.dense * scaled(dense, id_) + (1 - fusion.dense) * scaled(lexical, id_)
        else:
            places = [ranked.index(id_) + 1 for ranked in (by_meaning, by_words) if id_ in ranked]
            fused[id_] = sum(1 / (fusion.constant + place) for place in places)
    return sorted(fused.items(), key=lambda pair: (-round(pair[1], 9), int(pair[0])))


@given(
    st.integers(1, 40),
    st.integers(1, 12),
    st.sampled_from([Weighted(0.0), Weighted(0.3), Weighted(), Weighted(1.0), ReciprocalRank(), ReciprocalRank(0)]),
    st.integers(0, 1000),
)
def test_hybrid_scores_are_those_of_the_formula(rows, depth, fusion, seed):
    generator = np.random.default_rng(seed)
    texts = [" ".join(f"w{word}" for word in generator.integers(0, 12, size=5)) for _ in range(rows)]
    index = index_of(texts, random_vectors(rows, seed))
    queries, vectors = ["w1 w2 w3", "w4", "nothing"], random_vectors(3, seed + 1)
    found = index.search_hybrid(queries, vectors, depth, mode=Hybrid(fusion, depth))
    for query, vector, hits in zip(queries, vectors, found, strict=True):
        expected = reference_hybrid(index, query, vector, fusion, depth)[:depth]
        np.testing.assert_allclose([hit.score for hit in hits], [score for _, score in expected], atol=1e-6)
        scores = dict(expected)
        assert all(abs(scores[hit.id] - hit.score) < 1e-6 for hit in hits if hit.id in scores)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: Weighted(1.5), "between 0 and 1, got 1.5"),
        (lambda: ReciprocalRank(-1), "at least 0, got -1"),
        (lambda: ReciprocalRank(math.nan), "at least 0, got nan"),
        (lambda: Hybrid(depth=0), "depth must be at least 1"),
        (lambda: Rerank(None, depth=0), "depth must be at least 1"),
        (lambda: built(3).search_hybrid(["a"], random_vectors(2), 1), "a vector for each query, got 2 for 1"),
        (lambda: built(3).search_lexical(["a"], 0), "k must be a whole number"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, problem):
    with pytest.raises(InvalidInput, match=problem):
        make()


# Filters

FIELDS = [
    {
        "lang": "en",
        "year": 2001,
        "written": "2001",
        "open": True,
        "note": None,
        "nothing": None,
        "thousands": "1,234,567.5",
    },
    {
        "lang": "en",
        "year": 2005.5,
        "written": " 2005.5",
        "open": False,
        "note": "x",
        "nothing": None,
        "thousands": "2\u202f010",
    },
    {"lang": "fr", "year": 2010, "written": "2010", "open": True, "note": None, "nothing": None, "thousands": "1'999"},
    {"lang": "de", "year": None, "written": "unknown", "open": True, "note": "1", "nothing": None, "thousands": "n/a"},
    {"lang": "de", "year": 1, "written": "1", "open": False, "note": None, "nothing": None, "thousands": "-1,000"},
]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ([], "01234"),
        ([Among("lang", ("en",))], "01"),
        ([Among("lang", ("fr", "de"))], "234"),
        ([Among("lang", ("de",)), Among("open", (True,))], "3"),
        ([Among("year", (2001.0, 2010))], "02"),
        ([Among("year", (True,))], ""),  # True is not 1
        ([Among("open", (1,))], ""),
        ([Among("note", (1,))], ""),  # nor is "1"
        ([Among("note", (None,))], "024"),
        ([Among("lang", ())], ""),
        ([Between("year", low=2001)], "012"),
        ([Between("year", high=2005.5)], "014"),
        ([Between("year", 2002, 2009)], "1"),
        ([Between("year", 2005.5, 2005.5)], "1"),
        ([Between("thousands", 1500)], "012"),
        ([Between("thousands", high=-999.5)], "4"),
        ([Between("written", 2001)], "012"),  # as a csv file has them
        ([Between("written", high=3)], "4"),
        ([Between("nothing", 0)], ""),
    ],
)
def test_filters_leave_the_rows_whose_fields_fit_in_every_mode(filters, expected):
    index = index_of(["same words"] * 5, fields=FIELDS)
    vector = random_vectors(1, seed=4)
    answers = [
        index.search(vector, 9, filters=filters),
        index.search_lexical(["words"], 9, filters=filters),
        index.search_hybrid(["words"], vector, 9, filters=filters),
        index.search_hybrid(["words"], vector, 9, filters=filters, mode=Hybrid(ReciprocalRank(), 2)),
    ]
    for (hits,) in answers:
        assert sorted(ids(hits)) == list(expected)
        assert [hit.rank for hit in hits] == list(range(1, len(expected) + 1))
        assert all(hit.fields == FIELDS[int(hit.id)] for hit in hits)
    # The best of the rows that pass, not those of the best rows that pass.
    assert index.search(vector, 1, filters=filters)[0] == answers[0][0][:1]


def test_a_number_in_another_notation_is_refused_and_not_passed_over():
    for odd in ("1,5", "1.234,5", "12 kg", "$5", "1,23,456"):
        index = index_of(["same words"] * 2, fields=[{"n": "2"}, {"n": odd}])
        with pytest.raises(InvalidInput, match=rf"one of its values is '{re.escape(odd)}': write it as 1234.5"):
            index.search(random_vectors(1), 1, filters=[Between("n", 1)])


def test_a_hit_without_a_rival_has_the_highest_scores():
    index, vector = index_of(["same words"]), random_vectors(1, seed=4)
    assert [hit.score for hit in index.search_hybrid(["words"], vector, 5)[0]] == [1.0]
    assert [hit.score for hit in index.search_hybrid(["other"], vector, 5)[0]] == [0.5]  # no word of the query


@pytest.mark.parametrize(
    ("fields", "name", "problem"),
    [
        (FIELDS, "yaer", r"no field 'yaer'. It has: 'lang', 'year', .*Did you mean 'year'"),
        (None, "x", "without fields"),
    ],
)
def test_a_filter_on_an_unknown_field_names_those_there_are(fields, name, problem):
    with pytest.raises(InvalidInput, match=problem):
        index_of(["t"] * 5, fields=fields).search(random_vectors(1), 1, filters=[Among(name, ("a",))])


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: [Between("open", 0, 1)], "'open' needs numbers, but that field has none: one of its values is True"),
        (lambda: [Between("lang", 0, 1)], "one of its values is 'en'"),
        (lambda: [Between("year", "2003")], "'year' expects numbers as low and high, got '2003'"),
        (lambda: [Between("year", high=math.nan)], "got nan"),
        (lambda: [Among("lang", "en")], r"expects a tuple of values, got 'en': write Among\('lang', \('en',\)\)"),
        (lambda: [Among("year", 2001)], "got 2001"),
        (lambda: [Between("year", 5, 4)], "low end that is not above the high end, got 5 and 4, which no value passes"),
        (lambda: parse_filters(["year>=5", "year<=9", "year<=4"]), "got 5 and 4"),
        (lambda: Among("lang", ("en",)), "expected a list of filters"),
        (lambda: ["lang"], "expected a list of filters"),
    ],
)
def test_a_filter_that_could_only_find_nothing_is_refused(make, problem):
    index = index_of(["same words"] * 5, fields=FIELDS)
    with pytest.raises(InvalidInput, match=problem):
        index.search(random_vectors(1), 1, filters=make())


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ([{"a": 1}, {"b": 2}], r"row 1 .* has the fields \['b'\]; expected those of the first row, \['a'\]"),
        ([{"a": 1}], "2 ids and 1 fields"),
        ([{"a": 1}, {"a": [1]}], "'a' of row 1 .* must be a string, a number, a boolean or None, got list"),
        ([{"a": math.nan}, {"a": 1}], "'a' of row 0 .* is nan"),
        ([{"a": "\ud800"}, {"a": 1}], "'a' of row 0 .* surrogate"),
    ],
)
def test_unusable_fields_are_refused(fields, problem):
    with pytest.raises(InvalidInput, match=problem):
        index_of(["a", "b"], fields=fields)


# A second look


class ByLength:
    """Takes longer passages for better ones."""

    def __init__(self):
        self.asked = []

    def score(self, query, passages):
        self.asked.append((query, list(passages)))
        return np.array([len(passage) for passage in passages], dtype=np.float32)


def test_the_first_hits_are_put_into_the_rerankers_order_and_the_rest_follows():
    hits = [Hit(str(row), "x" * length, 0.5, row + 1, {"n": row}) for row, length in enumerate([3, 9, 5, 9, 99])]
    judge = ByLength()
    found = reranked(hits, "why", Rerank(judge, depth=4))
    assert [(hit.id, hit.score, hit.rank) for hit in found] == [
        *[("1", 9.0, 1), ("3", 9.0, 2), ("2", 5.0, 3), ("0", 3.0, 4)],
        ("4", 0.5, 5),
    ]
    assert found[0].fields == {"n": 1}
    assert judge.asked == [("why", [hit.text for hit in hits[:4]])]
    assert reranked([], "why", Rerank(judge)) == []


def test_a_forked_process_that_is_killed_while_words_are_counted_stops_no_other():
    code = """
import os, signal
from bothways.retrieval.lexical import LexicalIndex

LexicalIndex.build(["one text"], "english")
from tqdm.auto import tqdm

if not (child := os.fork()):
    tqdm.get_lock().acquire()
    os.kill(os.getpid(), signal.SIGKILL)
os.waitpid(child, 0)
print(len(LexicalIndex.build(["a text", "another"], "english")))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "2\n"
