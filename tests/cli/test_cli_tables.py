"""What is printed for people: tables of predictions, explanations with bars, and what the scores of a search are."""

import re

import numpy as np
import pytest
from command_line import call, ok, rows, write_jsonl

from bothways.cli.printing import bar, described, print_rows
from bothways.retrieval import QueryEvidence, SemanticSearch, evidence_of

MANY = {"label": 0, "probability": 0.91, "probabilities": {"0": 0.91, "1": 0.06, "2": 0.02, "3": 0.01}, "windows": 1}


def plain(outcome):
    """The lines of an output, without the codes of a terminal."""
    return re.sub(r"\x1b\[\d*m", "", outcome.out).splitlines()


def test_a_terminal_gets_a_table_and_a_pipe_json_lines(run, tmp_path):
    shown = plain(call("predict", run, "w6 w8", "w5 w7", terminal=True))
    assert shown[0].split()[:4] == ["text", "label", "probability", "probabilities"]
    lines = ok("predict", run, "w6 w8", "w5 w7").lines()
    for row, line, text in zip(shown[1:], lines, ("w6 w8", "w5 w7"), strict=True):
        assert row.startswith(f"{text} {line['label']}")
        assert f"{line['probability']:.3f}" in row
    assert call("predict", run, "w6 w8", "w5 w7", "--json", terminal=True).lines() == lines
    data = write_jsonl(tmp_path / "d.jsonl", rows(120, 3))
    table = plain(call("predict", run, "--data", data, terminal=True))
    assert [line for line in table if line.startswith("id ")] == [table[0], table[51], table[102]]
    assert len(table) == 123


def test_cells_are_short_and_no_label_is_taken_for_nothing(capsys):
    print_rows([MANY, {**MANY, "label": False, "out_of_domain": True}, {"spans": [{"text": "Li", "label": "PER"}]}])
    head, first, second, third = capsys.readouterr().out.splitlines()
    assert head.split() == ["label", "probability", "probabilities", "out_of_domain", "spans"]
    assert first.split() == ["0", "0.910", "0", "0.910", "1", "0.060", "2", "0.020", "...", "-", "-"]
    assert (second.split()[0], second.split()[-2]) == ("False", "True")
    assert third.split() == ["-", "-", "-", "-", "Li", "PER"]
    assert described({"task": {"label": "a"}, "words": [{"text": "x", "tag": "O"}]}) == "task label: a, words: x/O"


def test_an_explanation_begins_with_the_probability_and_sorts_words(run):
    out = ok("explain", run, "w6 w5 w8 w6").out.splitlines()
    (line,) = ok("predict", run, "w6 w5 w8 w6").lines()
    assert out[0].startswith(f"label: {line['label']}, probability: {line['probability']:.3f}")
    assert out[0].endswith("calibrated probabilities)")
    weights = [abs(float(each.split()[0])) for each in out[4:-1]]
    assert weights == sorted(weights, reverse=True)
    assert bar(1.0) in out[4] or bar(-1.0) in out[4]
    other = {"even": "odd", "odd": "even"}[line["label"]]
    assert f"probability of {other}: " in ok("explain", run, "w6 w5 w8 w6", "--label", other).out.splitlines()[0]
    assert ok("explain", run, "w6 w8", "--json").json()["prediction"]["calibrated"] in (True, False)


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ([], "0.5 x cosine + 0.5 x BM25, each scaled to 0..1 over the candidates of the query"),
        (["--mode", "dense"], "cosine"),
        (["--mode", "bm25"], "BM25"),
        (["--fusion", "reciprocal"], "sum of reciprocal ranks"),
    ],
)
def test_a_search_says_what_its_scores_are(index, options, name):
    assert ok("search", "query", index, "w6", *options, "--json").json()[0]["score_is"] == name
    assert call("search", "query", index, "w6", *options, terminal=True).out.endswith(f"score: {name}\n")
    header, *hits = [line.split("\t") for line in ok("search", "query", index, "w6", *options).out.splitlines()]
    assert header == [f"score: {name}", "id", "text"]
    assert [len(hit) for hit in hits] == [3] * len(hits) != []
    assert all(float(hit[0]) > 0 for hit in hits)


# --- evidence ---


def test_nothing_fits_where_no_word_is_shared_and_random_letters_come_as_close():
    letters = tuple(np.linspace(0.1, 0.3, 19))
    for similarity, shares, fits in ((0.5, False, True), (0.29, False, True), (0.2, False, False), (0.2, True, True)):
        found = QueryEvidence(similarity, letters, shares)
        assert found.nothing_fits is not fits
        assert ("nothing fits" in found.summary()) is not fits
    assert QueryEvidence(0.2, letters, True).summary().startswith("perhaps only words fit")
    assert QueryEvidence(0.5, letters, False).p_value == pytest.approx(1 / 20)
    assert QueryEvidence(0.05, letters, False).p_value == 1
    assert QueryEvidence(None, (), False).summary() == ""


def test_evidence_is_that_of_the_index_and_its_filters(index):
    search = SemanticSearch.open(index, device="cpu")
    text = search.index.texts[3]
    found = evidence_of(search, text)
    assert found.similarity == pytest.approx(1, abs=1e-5)
    assert (found.alike, found.shares_words, len(found.meaningless)) == (0, True, 19)
    assert evidence_of(search, text) == found
    assert not evidence_of(search, "zzqx").shares_words
    assert found.meaningless == tuple(sorted(found.meaningless))
