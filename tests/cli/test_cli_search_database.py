"""``bothways search`` with an index in a PostgreSQL table."""

import re

import pytest
from command_line import fails, ok, write_jsonl

import tiny_models
from bothways.retrieval import open_index
from bothways.retrieval.postgres.retrievers import DenseRows

ROWS = [
    {"id": "d1", "text": "w5 w7 w9", "title": "One", "year": 2001},
    {"id": "d2", "text": "w6 w8 w10", "title": "Two", "year": 2010},
    {"id": "d3", "text": "w11 w13 w15", "title": "Three", "year": None},
]


@pytest.fixture
def built(postgres, files, tmp_path):
    """The address of an index of a test's own, in a database whose address has a password."""
    store, _, table = postgres.new_table().replace("postgres@", "postgres:s3cret@").partition("#")
    data = write_jsonl(tmp_path / "corpus.jsonl", ROWS)
    outcome = ok(
        *("search", "build", "--model", files / "tiny", "--data", data, "--store", store, "--table", table),
        *("--field", "title", "--field", "year"),
    )
    shown = f"{store}#{table}".replace(":s3cret", "")
    assert outcome.err.splitlines()[-2:] == [
        f"3 texts in {shown}",
        f"next: bothways search query '{shown}' 'some words'",
    ]
    assert "s3cret" not in outcome.out + outcome.err
    return f"{store}#{table}"


def found(index, *words):
    return [hit["id"] for hit in ok("search", "query", index, *words, "--json").json()]


@pytest.mark.parametrize("mode", [["dense"], ["hybrid"], ["hybrid", "--fusion", "reciprocal"], ["lexical"]])
def test_every_mode_finds_a_text_by_itself(built, mode):
    assert found(built, "w6 w8 w10", "--mode", *mode)[0] == "d2"
    assert found(built, "w6", "--mode", *mode, "--filter", "year<=2005") == ([] if mode == ["lexical"] else ["d1"])


def test_a_search_is_exact_if_asked(built, files, tmp_path, monkeypatch):
    approximate, scans = DenseRows._approximate, []
    monkeypatch.setattr(DenseRows, "_approximate", lambda *given: scans.append(given) or approximate(*given))
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"id": 1, "text": "w13"}])
    (tmp_path / "qrels.tsv").write_text("query_id\tdoc_id\trelevance\n1\td3\t2\n")
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [{"anchor": "w5 w7", "positive": "w5 w7 w9"}])
    asked = (
        ("query", built, "w6", "--mode", "dense"),
        ("evaluate", built, "--queries", queries, "--qrels", tmp_path / "qrels.tsv"),
        ("mine", built, "--data", pairs, "--share", 1),
    )
    for words in asked:
        ok("search", *words)
        assert scans
        scans.clear()
        ok("search", *words, "--exact")
        assert not scans
    for words in ((*asked[0][:-1], "lexical"), (*asked[1], "--mode", "bm25")):
        fails(2, "--exact is for searches by meaning", "search", *words, "--exact")
    data = write_jsonl(tmp_path / "corpus.jsonl", ROWS)
    ok("search", "build", "--model", files / "tiny", "--data", data, "--output", tmp_path / "index")
    outcome = ok("search", "query", tmp_path / "index", "w6", "--exact", "--json")
    assert "an index in files always compares all rows" in outcome.err
    assert [hit["id"] for hit in outcome.json()] == found(tmp_path / "index", "w6")


def test_a_hit_is_shown_with_its_score_title_and_passage(built):
    outcome = ok("search", "query", built, "w13", "--mode", "lexical")
    header, row = [line.split("\t") for line in outcome.out.splitlines()]
    assert header == ["score: IDF x ts_rank", "id", "title", "text"]
    assert row[1:] == ["d3", "Three", "w11 w13 w15"]
    assert "x IDF x ts_rank, each scaled" in ok("search", "query", built, "w13").out


def test_texts_are_added_and_deleted_and_the_facts_are_those_of_the_table(built, tmp_path):
    more = write_jsonl(tmp_path / "more.jsonl", [{"id": "d5", "text": "w20 w22", "title": "Five", "year": 1}])
    assert ok("search", "add", built, "--data", more, "--json").json() == {"added": 1, "texts": 4}
    assert found(built, "w22", "--mode", "lexical") == ["d5"]
    assert ok("search", "delete", built, "d5", "d1").err == "2 texts deleted, 2 in the index\n"
    fails(1, "no texts with these ids: 'd1'", "search", "delete", built, "d1")
    fails(1, "these ids already: 'd2'", "search", "add", built, "--data", write_jsonl(more, ROWS[1:]))
    facts = ok("search", "info", built, "--json").json()
    assert (facts["texts"], facts["fields"], facts["similarity"]) == (2, ["title", "year"], "cosine")
    assert re.search(r"texts +2\n", ok("search", "info", built).out)


def test_an_index_is_evaluated_and_mined(built, tmp_path):
    queries = write_jsonl(tmp_path / "queries.jsonl", [{"id": 1, "text": "w13"}, {"id": 2, "text": "w6 w8"}])
    (tmp_path / "qrels.tsv").write_text("query_id\tdoc_id\trelevance\n1\td3\t2\n2\td2\t1\n2\tgone\t1\n")
    words = ("--queries", queries, "--qrels", tmp_path / "qrels.tsv")
    report = ok("search", "evaluate", built, *words, "--mode", "lexical", "--against", "dense", "--json").json()
    assert (report["mrr"], report["absent_documents"], report["queries"]) == (1, 1, 2)
    (tmp_path / "qrels.tsv").write_text("1 0 elsewhere 1\n")
    outcome = fails(1, "the index has none of the 1 documents", "search", "evaluate", built, *words)
    assert "s3cret" not in outcome.err
    pairs = write_jsonl(tmp_path / "pairs.jsonl", [{"anchor": "w5 w7", "positive": "w5 w7 w9"}])
    (row,) = ok("search", "mine", built, "--data", pairs, "--share", 1, "--per-query", 2).lines()
    assert {row["negative_1"], row["negative_2"]} == {"w6 w8 w10", "w11 w13 w15"}


def test_options_of_files_are_remembered(postgres, files, tmp_path):
    address = postgres.new_table()
    store, _, table = address.partition("#")
    for name, text in (("one", "text\nw5 é\n"), ("two", "text\nw6 é\n")):
        (tmp_path / f"{name}.csv").write_bytes(text.encode("cp1252"))
    words = ("--model", files / "tiny", "--data", tmp_path / "one.csv", "--encoding", "cp1252")
    ok("search", "build", *words, "--store", store, "--table", table)
    assert "--encoding cp1252" in ok("search", "add", address, "--data", tmp_path / "two.csv").err
    assert found(address, "é", "--mode", "lexical") == ["0", "1"]


def test_an_index_of_another_model_is_refused_with_what_differs(built, tmp_path):
    tiny_models.write_checkpoint(tmp_path / "other", seed=1)
    more = write_jsonl(tmp_path / "more.jsonl", [{"id": "d5", "text": "w20", "title": "Five", "year": 1}])
    for words in (["query", built, "w5"], ["add", built, "--data", more]):
        outcome = fails(1, "its weights fingerprint is", "search", *words, "--model", tmp_path / "other")
        assert "s3cret" not in outcome.err
    assert len(open_index(built)) == 3


def test_a_table_is_replaced_only_if_asked(built, files, tmp_path):
    store, _, table = built.partition("#")
    words = ["--model", files / "tiny", "--data", write_jsonl(tmp_path / "c.jsonl", [{"text": "w5"}])]
    words += ["--store", store, "--table", table]
    outcome = fails(1, "already exists. Choose another table", "search", "build", *words)
    assert "s3cret" not in outcome.err
    assert ok("search", "build", *words, "--overwrite", "--json").json()["output"] == built.replace(":s3cret", "")
    assert found(built, "w5") == ["0"]


def test_mistakes_are_named_without_the_password(built, files, tmp_path):
    near = f"{built}x"
    assert "s3cret" not in fails(1, "Did you mean", "search", "query", near, "w5").err
    assert "s3cret" not in fails(1, "cannot connect to", "search", "info", re.sub(r":\d+/", ":1/", built)).err
    assert "s3cret" not in fails(1, "expected a table", "search", "info", built.partition("#")[0]).err
    store, _, table = built.partition("#")
    build = ("search", "build", "--model", files / "absent", "--data", tmp_path / "absent")
    expected = "either --output FOLDER or --store postgresql://host/database --table NAME"
    for place in (
        [],
        ["--store", store],
        ["--table", table],
        ["--output", built],
        ["--output", tmp_path / "index", "--store", store, "--table", table],
    ):
        assert "s3cret" not in fails(2, expected, *build, *place).err
    fails(2, "--store must be the URL of a database", *build, "--store", tmp_path, "--table", table)
    fails(2, "--store must be the URL of a database", *build, "--store", built, "--table", table)
    fails(2, "expected a table as table or schema.table", *build, "--store", store, "--table", "a b")
    fails(1, "no language 'klingon'", *build, "--store", store, "--table", "new", "--language", "klingon")


def test_an_index_in_a_table_is_served(built):
    from bothways.serving.models import open_models
    from bothways.serving.settings import Opening

    for given in (built, f"mine={built}"):
        ((name, search),) = open_models([], [given], Opening(device="cpu")).indexes.items()
        assert name == ("mine" if given.startswith("mine=") else built.partition("#")[2])
        assert search.search("w6 w8 w10", 1)[0].id == "d2"
