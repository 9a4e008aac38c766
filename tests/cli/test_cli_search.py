"""``bothways search``: modes, filters, updates and evaluation."""

import json
import re
import shutil

import pytest
from command_line import call, fails, ok, read_jsonl, saved_of, write_jsonl

import tiny_models
from bothways import SentenceEmbedder
from bothways.retrieval import updating

ROWS = [
    {"id": "d1", "text": "w5 w7 w9", "lang": "en", "year": 2001},
    {"id": "d2", "text": "w6 w8 w10", "lang": "en", "year": 2010},
    {"id": "d3", "text": "w11 w13 w15", "lang": "fr", "year": 2010},
    {"id": "d4", "text": "w12 w14 w16", "lang": "de", "year": None},
]


@pytest.fixture(scope="module")
def built_once(files, tmp_path_factory):
    folder = tmp_path_factory.mktemp("search")
    data = write_jsonl(folder / "corpus.jsonl.gz", ROWS)
    outcome = call(
        *("search", "build", "--model", files / "tiny", "--data", data, "--output", folder / "index"),
        *("--field", "lang", "--field", "year", "--quiet"),
    )
    assert (outcome.code, outcome.err) == (0, "")
    return folder / "index"


@pytest.fixture
def index(built_once, tmp_path):
    """An index of a test's own to change."""
    return shutil.copytree(built_once, tmp_path / "index")


def found(index, *words):
    outcome = ok("search", "query", index, *words, "--json")
    return [hit["id"] for hit in outcome.json()]


# Building and searching


def test_the_column_id_names_the_texts_where_there_is_one_and_fields_come_back(built_once):
    (hit,) = call("search", "query", built_once, "w13", "--mode", "lexical", "--json").json()
    assert hit.pop("score") > 0
    assert hit.pop("score_is") == "BM25"
    assert hit == {"rank": 1, "id": "d3", "text": "w11 w13 w15", "fields": {"lang": "fr", "year": 2010}}


@pytest.mark.parametrize("mode", [["dense"], ["hybrid"], ["hybrid", "--fusion", "reciprocal"], ["lexical"]])
def test_every_mode_finds_a_text_by_itself(built_once, mode):
    hits = call("search", "query", built_once, "w6 w8 w10", "--mode", *mode, "--json").json()
    assert (hits[0]["id"], hits[0]["text"]) == ("d2", "w6 w8 w10")
    assert [hit["rank"] for hit in hits] == [*range(1, len(hits) + 1)]
    assert mode != ["dense"] or hits[0]["score"] == pytest.approx(1, abs=1e-5)


def test_words_are_found_without_the_model(built_once, files):
    # Naming another model changes nothing for a search that needs none.
    assert found(built_once, "w7", "--mode", "lexical", "--model", files / "absent") == ["d1"]


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        (["lang=en"], {"d1", "d2"}),
        (["lang=fr", "lang=de"], {"d3", "d4"}),
        (["year=2010"], {"d2", "d3"}),
        (["year=2010", "lang=en"], {"d2"}),
        (["year>=2005"], {"d2", "d3"}),
        (["year>=2000", "year<=2005.5"], {"d1"}),
        (["year=null"], {"d4"}),
        (["lang=nl"], set()),
    ],
)
def test_filters_are_fields_with_values(built_once, filters, expected):
    words = [word for each in filters for word in ("--filter", each)]
    assert set(found(built_once, "w6", *words)) == expected


@pytest.mark.parametrize(
    ("words", "code", "problem"),
    [
        (["--filter", "lang"], 2, "must be field=value"),
        (["--filter", "year>=soon"], 2, "must have a number"),
        (["--filter", "year==2010"], 1, "no field 'year='.*Did you mean 'year'"),
        (["--filter", "lagn=en"], 1, "no field 'lagn'.*Did you mean 'lang'"),
        (["--mode", "both"], 2, "both"),
        (["--mode", "hybrid", "--dense-weight", "2"], 2, "2"),
    ],
)
def test_a_search_that_makes_no_sense_is_refused(built_once, words, code, problem):
    outcome = call("search", "query", built_once, "w6", *words)
    assert outcome.code == code
    assert re.search(problem, outcome.err)


def test_an_unknown_language_is_wrong_usage_before_anything_is_read(files, tmp_path):
    words = ["--model", files / "absent", "--data", tmp_path / "absent", "--output", tmp_path / "index"]
    fails(2, "no stemmer for 'klingon'", "search", "build", *words, "--language", "klingon")


def test_an_id_that_comes_twice_is_named_with_file_and_line(files, index, tmp_path):
    rows = [{"id": "x", "text": "w5"}, {"id": "y", "text": "w6"}, {"id": "x", "text": "w7"}]
    fields = {"lang": "en", "year": 1}
    data = write_jsonl(tmp_path / "c.jsonl", [{**row, **fields} for row in rows])
    for words in (["build", "--model", files / "tiny", "--output", tmp_path / "new"], ["add", index]):
        fails(1, f"line 3 of '{data}': the id 'x' in 'id' is also the id of line 1", "search", *words, "--data", data)
    assert not (tmp_path / "new").exists()


def test_an_index_without_fields_says_how_to_build_one(files, tmp_path):
    data = write_jsonl(tmp_path / "c.jsonl", [{"text": "w5"}])
    ok("search", "build", "--model", files / "tiny", "--data", data, "--output", tmp_path / "i")
    fails(1, "search build --field year", "search", "query", tmp_path / "i", "w5", "--filter", "year=2010")


def test_a_hit_is_shown_with_its_title_and_a_passage(files, tmp_path):
    long = "w5 " * 100 + "w19 w20 " + "w7 " * 100
    rows = [{"text": long, "title": "A long one"}, {"text": "w21 w22", "title": None}]
    data = write_jsonl(tmp_path / "c.jsonl", rows)
    words = ["--model", files / "tiny", "--data", data, "--field", "title", "--output", tmp_path / "i"]
    ok("search", "build", *words)
    piped = call("search", "query", tmp_path / "i", "w19 w20", "--mode", "bm25")
    header, (score, name, title, passage) = [line.split("\t") for line in piped.out.splitlines()]
    assert header == ["score: BM25", "id", "title", "text"]
    assert (name, title) == ("0", "A long one")
    assert "w5 w19 w20 w7" in passage
    assert len(passage) <= 202
    (hit,) = call("search", "query", tmp_path / "i", "w19 w20", "--mode", "lexical", "--json").json()
    assert hit["text"] == long
    assert 0 < float(score) == pytest.approx(hit["score"], abs=1e-4)


def test_words_of_the_query_are_bold_on_a_terminal(built_once, monkeypatch):
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    shown = call("search", "query", built_once, "w13", "--mode", "lexical", terminal=True)
    assert "w11 \x1b[1mw13\x1b[0m w15" in shown.out


def test_search_is_hybrid_where_no_mode_is_named(built_once, judged):
    query = ("search", "query", built_once, "w6 w7 w13", "--json")
    assert call(*query).json() == call(*query, "--mode", "hybrid").json()
    assert call(*query).json() != call(*query, "--mode", "dense").json()
    evaluation = ("search", "evaluate", built_once, *judged)
    report = call(*evaluation, "--against", "dense", "--json").json()
    assert (report["mode"], report["against"][0]["mode"]) == ("hybrid", "dense")
    fails(2, "--against hybrid is the same as --mode", *evaluation, "--against", "hybrid")


def test_bm25_is_another_name_of_lexical_search(built_once, judged):
    assert found(built_once, "w6", "--mode", "bm25") == found(built_once, "w6", "--mode", "lexical")
    words = ["search", "evaluate", built_once, *judged]
    fails(2, "is the same as --mode", *words, "--mode", "bm25", "--against", "lexical")
    assert call(*words, "--mode", "bm25", "--against", "dense", "--json").json()["mode"] == "bm25"


def test_words_without_quotes_are_one_query_and_the_command_says_so(built_once):
    bare = call("search", "query", built_once, "w6", "w7", "--json")
    assert bare.out == call("search", "query", built_once, "w6 w7", "--json").out
    assert 'searching for "w6 w7"; put several words in quotes' in bare.err
    for words in ([], [" "]):
        fails(2, "is empty. Give some", "search", "query", built_once, *words)


# Updates


def test_texts_are_added_and_deleted(index, tmp_path):
    more = write_jsonl(tmp_path / "more.jsonl", [{"id": "d5", "text": "w20 w22", "lang": "en", "year": 1}])
    assert call("search", "add", index, "--data", more, "--json").json() == {"added": 1, "texts": 5}
    assert found(index, "w22", "--mode", "hybrid", "--filter", "lang=en")[0] == "d5"
    gone = write_jsonl(tmp_path / "gone.jsonl", [{"id": "d5"}, {"id": "d1"}])
    assert call("search", "delete", index, "--data", gone, "--json").json() == {"deleted": 2, "texts": 3}
    outcome = call("search", "delete", index, "d2")
    assert (outcome.code, outcome.err) == (0, "1 text deleted, 2 in the index\n")
    assert found(index, "w7", "--mode", "lexical") == []
    assert set(found(index, "w6")) == {"d3", "d4"}


def test_an_update_that_is_refused_changes_nothing(index, tmp_path):
    before = (index / "index.json").read_bytes()
    known = write_jsonl(tmp_path / "known.jsonl", [{"id": "d1", "text": "w5", "lang": "en", "year": 1}])
    bare = write_jsonl(tmp_path / "bare.jsonl", [{"id": "d9", "text": "w5"}])
    tiny_models.write_checkpoint(tmp_path / "other", seed=1)
    for words, problem in (
        (["add", index, "--data", known], "has texts with these ids already: 'd1'"),
        (["add", index, "--data", bare], "no column 'lang'"),
        (["add", index, "--data", known, "--model", tmp_path / "other"], "fingerprint"),
        (["delete", index, "d1", "d7"], "no texts with these ids: 'd7'"),
        (["delete", index, "d1", "d2", "d3", "d4"], "instead of deleting all"),
    ):
        fails(1, problem, "search", *words)
    assert call("search", "delete", index).code == 2
    assert (index / "index.json").read_bytes() == before


# Reranking


@pytest.fixture(scope="module")
def judge(files, tmp_path_factory):
    """The folder of a tiny pair model that takes some passages for better ones."""
    from bothways.tasks import PairClassifier

    pairs = PairClassifier.from_pretrained(files / "tiny", device="cpu")
    rows = [{"text_a": "w6", "text_b": row["text"], "label": "no" if row["id"] == "d2" else "yes"} for row in ROWS]
    pairs.fit(rows, validation=rows, epochs=1, seed=1, show_progress=False)
    pairs.save(folder := tmp_path_factory.mktemp("judge") / "pairs")
    return folder


@pytest.mark.parametrize("mode", ["dense", "lexical"])
def test_a_reranker_decides_the_order_of_the_first_hits(built_once, judge, mode):
    words = ["w6 w7 w13 w14", "--mode", mode]
    yes = found(built_once, *words, "--reranker", judge, "--relevant", "yes")
    no = found(built_once, *words, "--reranker", judge, "--relevant", "no")
    assert yes == no[::-1]
    assert set(yes) == {"d1", "d2", "d3", "d4"}
    assert found(built_once, *words, "--reranker", judge, "--relevant", "no", "--top", 1) == no[:1]


def test_passages_that_a_reranker_cuts_are_counted_once_for_all_queries(built_once, judged, judge, tmp_path):
    from bothways.tasks import PairClassifier

    cutting = PairClassifier.from_pretrained(judge, device="cpu", max_length=6, on_overflow="truncate")
    cutting.save(tmp_path / "cutting")
    outcome = ok("search", "evaluate", built_once, *judged, "--reranker", tmp_path / "cutting", "--relevant", "yes")
    (said,) = [line for line in outcome.err.splitlines() if "truncated" in line]
    assert re.fullmatch(r"warning: 12 of 12 texts were truncated: \d\d tokens were not read\.", said)


def test_a_label_that_the_reranker_does_not_have_is_wrong_usage(built_once, judge):
    for words in (["--reranker", judge, "--relevant", "maybe"], ["--relevant", "yes"]):
        fails(2, "relevant", "search", "query", built_once, "w6", *words)


def test_an_index_is_not_replaced_while_it_is_updated(files, index, tmp_path):
    data = write_jsonl(tmp_path / "c.jsonl", [{"text": "w5"}])
    words = ["--model", files / "tiny", "--data", data, "--output", index, "--overwrite", "--quiet"]
    with updating(index):
        outcome = call("search", "build", *words)
    assert (outcome.code, found(index, "w7", "--mode", "lexical")) == (1, ["d1"])
    assert "another process is updating the index" in outcome.err
    ok("search", "build", *words)
    assert found(index, "w5", "--mode", "lexical") == ["0"]


# Evaluation


@pytest.fixture
def judged(tmp_path):
    """Two queries with an answer, and one that nobody judged; the second answer is not in the index."""
    queries = [{"id": 1, "text": "w13"}, {"id": 2, "text": "w6 w8"}, {"id": 3, "text": "w5"}]
    (tmp_path / "qrels.tsv").write_text("query_id\tdoc_id\trelevance\n1\td3\t2\n2\td2\t1\n2\tgone\t1\n")
    return ["--queries", write_jsonl(tmp_path / "queries.jsonl.gz", queries), "--qrels", tmp_path / "qrels.tsv"]


def test_a_mode_is_measured_with_intervals(built_once, judged):
    report = call("search", "evaluate", built_once, *judged, "--mode", "lexical", "--json").json()
    assert (report["mode"], report["queries"], report["unjudged"], report["missing_queries"]) == ("lexical", 2, 1, 0)
    assert (report["absent_documents"], report["against"]) == (1, [])
    for name, expected in {"map": 0.75, "recall@10": 0.75, "recall@100": 0.75}.items():
        # Of one query 1, of the other 0.5: a resample of both may draw either of them twice.
        assert (report[name], report[f"{name}_low"], report[f"{name}_high"]) == (expected, 0.5, 1.0)
    assert report["mrr"] == 1
    assert 0 < report["ndcg@10"] < 1


def test_queries_that_are_judged_and_not_asked_are_counted(built_once, judged, tmp_path):
    with (tmp_path / "qrels.tsv").open("a") as file:
        file.write("9\td1\t1\n")
    outcome = ok("search", "evaluate", built_once, *judged)
    assert "queries left out, since --queries lacks them: 1 of those in --qrels" in outcome.err


@pytest.mark.parametrize("kind", ["pairs", "triplets"])
def test_pairs_that_the_embedder_was_trained_on_are_counted_or_left_out(files, judged, tmp_path, kind):
    rows = [{"anchor": f"w{at} w{at + 1}", "positive": f"w{at + 2}"} for at in range(20, 30)]
    rows += [{"anchor": "W13", "positive": "w11  w13 w15"}, {"anchor": "w5", "positive": "w6 w8 w10"}]
    if kind == "triplets":
        rows = [{**row, "negative": f"w{at + 35}"} for at, row in enumerate(rows)]
    embedder = SentenceEmbedder.from_pretrained(files / "tiny", device="cpu")
    embedder.fit(rows, validation=rows[:2], updates=1, show_progress=False)
    embedder.save(tmp_path / "embedder")
    words = ("--model", tmp_path / "embedder", "--data", write_jsonl(tmp_path / "c.jsonl", ROWS), "--quiet")
    ok("search", "build", *words, "--output", tmp_path / "index")
    words = ("search", "evaluate", tmp_path / "index", *judged)
    # The second query has a relevant document that is not in the index.
    counts = {"rows": 2, "checked": 2, "shared": 1, "other_label": 0, "left_out": False}
    report = ok(*words, "--mode", "dense", "--json").json()
    assert (report["training_rows"], report["queries"]) == (counts, 2)
    said = "1 of 2 pairs of a query and a relevant document are training rows: the metrics look better"
    assert said in ok(*words).err
    dropped = ok(*words, "--shared", "drop", "--json").json()
    assert (dropped["training_rows"], dropped["queries"]) == ({**counts, "left_out": True}, 1)
    # BM25 has learnt nothing.
    assert "training_rows" not in ok(*words, "--mode", "lexical", "--json").json()


def test_fields_of_a_csv_file_are_filtered_as_numbers(files, tmp_path):
    (tmp_path / "c.csv").write_text("text,year,lang\nw5 w6,1999,en\nw5 w7,2021,fr\n")
    words = ["--model", files / "tiny", "--data", tmp_path / "c.csv", "--output", tmp_path / "index", "--quiet"]
    ok("search", "build", *words, "--field", "year", "--field", "lang")
    assert found(tmp_path / "index", "w5", "--filter", "year>=2020") == ["1"]
    assert found(tmp_path / "index", "w5", "--filter", "year<=2020") == ["0"]
    outcome = call("search", "query", tmp_path / "index", "w5", "--filter", "lang>=1")
    assert outcome.code != 0
    assert "the filter on 'lang' needs numbers, but that field has none: one of its values is 'en'" in outcome.err


def test_modes_are_compared_on_the_same_queries(built_once, judged):
    words = ["--mode", "hybrid", "--against", "dense", "--against", "lexical"]
    report = call("search", "evaluate", built_once, *judged, *words, "--json").json()
    assert [each["mode"] for each in report["against"]] == ["dense", "lexical"]
    for each in report["against"]:
        assert each["mrr_difference"] == pytest.approx(report["mrr"] - each["mrr"])
        ends = each["mrr_difference_low"], each["mrr_difference_high"]
        # Of two queries, a resample may draw either of them twice.
        assert sum(ends) == pytest.approx(2 * each["mrr_difference"])
    outcome = call("search", "evaluate", built_once, *judged, *words)
    assert "hybrid - lexical" in outcome.out.splitlines()[0]
    left_out = "queries left out, since no document is judged relevant: 1 of 3"
    assert outcome.err == f"relevant documents that are not in the index: 1\n{left_out}\n"
    quiet = call("search", "evaluate", built_once, *judged, *words, "--quiet")
    assert (quiet.out, quiet.err) == (outcome.out, "")


def test_reranking_is_compared_with_the_mode_that_it_reranks(built_once, judged, judge):
    words = ["--mode", "dense", "--against", "dense", "--reranker", judge, "--relevant", "yes"]
    report = call("search", "evaluate", built_once, *judged, *words, "--json").json()
    plain = call("search", "evaluate", built_once, *judged, "--mode", "dense", "--json").json()
    (other,) = report["against"]
    assert (other["mode"], other["mrr"]) == ("dense", plain["mrr"])
    assert report["recall@100"] == plain["recall@100"]
    assert report["mrr"] != plain["mrr"]
    assert "dense, reranked - dense" in call("search", "evaluate", built_once, *judged, *words).out


def test_an_evaluation_that_makes_no_sense_is_refused(built_once, judged, tmp_path):
    assert call("search", "evaluate", built_once, *judged, "--mode", "dense", "--against", "dense").code == 2
    for content, problem, names in (
        ("1 0 elsewhere 1\n", "the index has none of the 1 documents", ("d1", "elsewhere")),
        ("7 0 d1 1\n", "none of the 3 queries has a relevant document", ("1", "7")),
        ("1 0 d1 0\n", "no document is judged relevant", ()),
    ):
        (tmp_path / "qrels.tsv").write_text(content)
        outcome = fails(1, problem, "search", "evaluate", built_once, *judged)
        assert str(tmp_path / "qrels.tsv") in outcome.err
        assert all(repr(name) in outcome.err for name in names)
    twice = write_jsonl(tmp_path / "twice.jsonl", [{"id": "1", "text": "w5"}, {"id": 1, "text": "w6"}])
    fails(1, "line 2 of", "search", "evaluate", built_once, "--queries", twice, "--qrels", tmp_path / "qrels.tsv")


# Hard negatives


def test_hard_negatives_are_written_as_triplets_or_labelled_pairs(built_once, tmp_path):
    data = write_jsonl(tmp_path / "pairs.jsonl", [{"anchor": "w5 w7", "positive": "w5 w7 w9"}])
    words = ("search", "mine", built_once, "--data", data, "--share", 1, "--per-query", 2)
    (row,) = [json.loads(line) for line in call(*words).out.splitlines()]
    assert list(row) == ["anchor", "positive", "negative_1", "negative_2"]
    assert (row["anchor"], row["positive"]) == ("w5 w7", "w5 w7 w9")
    negatives = list(dict.fromkeys([row["negative_1"], row["negative_2"]]))
    assert set(negatives) <= {row["text"] for row in ROWS} - {"w5 w7 w9"}
    outcome = call(*words, "--rows", "pairs", "--output", tmp_path / "labelled.jsonl")
    assert f"rows from 1 in {tmp_path / 'labelled.jsonl'}\nnext: bothways train pairs --model" in outcome.err
    labelled = read_jsonl(tmp_path / "labelled.jsonl")
    assert labelled[0] == {"text_a": "w5 w7", "text_b": "w5 w7 w9", "label": "yes"}
    assert [row["text_b"] for row in labelled[1:]] == negatives
    assert {row["label"] for row in labelled[1:]} <= {"no"}


@pytest.fixture(scope="module")
def passages(files, tmp_path_factory):
    """An index of passages, and a file of queries and answers under other names than training reads."""
    folder = tmp_path_factory.mktemp("passages")
    texts = [f"w{5 + number} w{20 + number}" for number in range(12)]
    data = write_jsonl(folder / "texts.jsonl", [{"text": text} for text in texts])
    words = ("--model", files / "tiny", "--data", data, "--output", folder / "index", "--quiet")
    ok("search", "build", *words)
    asked = [{"question": text.split()[0], "answer": text} for text in texts]
    return folder / "index", write_jsonl(folder / "asked.jsonl", asked)


@pytest.mark.parametrize(("per_query", "ending"), [(1, "csv"), (3, "jsonl"), (11, "csv")])
def test_an_embedder_is_trained_on_mined_rows_without_further_options(files, passages, tmp_path, per_query, ending):
    index, asked = passages
    mined = tmp_path / f"mined.{ending}"
    words = ("--data", asked, "--anchor", "question", "--positive", "answer", "--output", mined, "--share", 1)
    outcome = ok("search", "mine", index, *words, "--per-query", per_query)
    assert f"next: bothways train embedding --model {files / 'tiny'} --train {mined} --output runs/embedder" in (
        outcome.err
    )
    trained = ok(
        *("train", "embedding", "--model", files / "tiny", "--train", mined, "--output", tmp_path / "run"),
        *("--epochs", 1, "--device", "cpu", "--json"),
    )
    assert "mrr" in trained.json()["validation"]
    negatives = ["negative"] if per_query == 1 else [f"negative_{number + 1}" for number in range(per_query)]
    columns = saved_of(tmp_path / "run")["card"]["columns"]
    assert columns == {"anchor": "anchor", "positive": "positive", "negative": negatives}
    assert "mrr" in call("evaluate", tmp_path / "run", "--data", mined, "--json").json()


def test_triplets_repeat_negatives_where_fewer_are_found_and_leave_out_rows_without_any(passages, tmp_path):
    index, _ = passages
    pairs = [{"anchor": "w5", "positive": f"w{5 + number} w{20 + number}"} for number in range(10)]
    pairs += [{"anchor": "w6", "positive": "w6 w21"}]
    data = write_jsonl(tmp_path / "pairs.jsonl", pairs)
    words = ("search", "mine", index, "--data", data, "--per-query", 3, "--depth", 12)
    found = call(*words, "--share", 1).lines()
    row = next(row for row in found if row["anchor"] == "w5")
    assert {row["negative_1"], row["negative_2"], row["negative_3"]} <= {"w15 w30", "w16 w31"}
    assert call(*words, "--share", 0.0001).lines() == []


def test_a_reranker_is_trained_on_mined_pairs_without_further_options(files, passages, tmp_path):
    index, asked = passages
    mined = tmp_path / "mined.jsonl"
    words = ("--data", asked, "--anchor", "question", "--positive", "answer", "--output", mined, "--rows", "pairs")
    ok("search", "mine", index, *words)
    options = ("--model", files / "tiny", "--train", mined, "--output", tmp_path / "run", "--epochs", 1)
    ok("train", "pairs", *options, "--device", "cpu")


def test_mined_rows_do_not_replace_those_that_they_are_mined_for(built_once, tmp_path):
    data = write_jsonl(tmp_path / "pairs.jsonl", [{"anchor": "w5", "positive": "w7"}])
    outcome = call("search", "mine", built_once, "--data", data, "--output", data)
    assert (outcome.code, json.loads(data.read_text())) == (2, {"anchor": "w5", "positive": "w7"})
    assert "--output is the same file as --data" in outcome.err


def test_mining_deeper_than_it_looks_is_bad_usage(built_once, tmp_path):
    data = write_jsonl(tmp_path / "pairs.jsonl", [{"anchor": "w5", "positive": "w6"}])
    fails(2, "depth", "search", "mine", built_once, "--data", data, "--per-query", 5, "--depth", 2)


# Candidates


def test_a_model_is_judged_by_how_it_ranks_candidates(files, tmp_path):
    rows = [
        {"text_a": f"w{5 + query}", "text_b": f"w{5 + other}", "label": "yes" if query == other else "no"}
        for query in range(3)
        for other in range(3)
    ]
    data = write_jsonl(tmp_path / "candidates.jsonl", rows)
    found = call("evaluate", files / "tiny", "--data", data, "--task", "ranking", "--json").json()
    assert found["queries"] == 3
    assert found["map"] == 1  # a text is most like itself
    assert found["ranked_by"] == "cosine"
    printed = call("evaluate", files / "tiny", "--data", data, "--task", "ranking", "--relevant", "yes").out
    assert printed.startswith("ranked by: cosine\n")
    assert "ndcg@10" in printed
    trained = ("--model", files / "tiny", "--train", data, "--epochs", 1, "--device", "cpu", "--output", tmp_path / "r")
    ok("train", "pairs", *trained, "--quiet")
    judged = call("evaluate", tmp_path / "r", "--data", data, "--task", "ranking", "--json").json()
    assert judged["ranked_by"] == "cross-encoder"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--relevant", "yes"], "--task ranking"),
        (["--task", "ranking", "--report", "page.html"], "cannot be used with --task ranking"),
        (["--task", "ranking", "--tokens", "words"], "does not read --tokens"),
    ],
)
def test_options_that_do_not_go_with_candidates_are_bad_usage(files, tmp_path, words, expected):
    data = write_jsonl(tmp_path / "candidates.jsonl", [{"text_a": "w5", "text_b": "w6", "label": "yes"}])
    fails(2, expected, "evaluate", files / "tiny", "--data", data, *words)
