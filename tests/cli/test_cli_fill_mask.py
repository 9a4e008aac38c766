"""``fill-mask``: words for masks and likelihoods of texts, on the terminal, as JSON, and for whole files."""

import gzip

import pytest
from command_line import call, fails, ok, read_jsonl, write_jsonl

import tiny_models


@pytest.fixture(scope="session")
def masked(tmp_path_factory):
    """The folder of a tiny model with a masked language modelling head."""
    folder = tmp_path_factory.mktemp("masked") / "model"
    tiny_models.write_checkpoint(folder, architecture="BertForMaskedLM")
    return folder


def test_the_best_words_are_shown_with_their_probabilities(masked):
    outcome = ok("fill-mask", masked, "w5 [MASK] w7.", "w5 [MASK]", "--top", 3)
    lines = outcome.out.splitlines()
    assert len(lines) == 2 * (1 + 3)
    assert lines[0].split() == ["probability", "word", "text"]
    probability, word, *text = lines[1].split()
    assert 0 < float(probability) < 1
    assert text == ["w5", word, "w7."]


def test_json_has_fillings_and_words_for_each_mask(masked):
    outcome = call("fill-mask", masked, "w5 [MASK] w7 [MASK]", "--top", 2, "--json")
    answer = outcome.json()
    assert [len(filling["words"]) for filling in answer["fillings"]] == [2, 2]
    assert [len(words) for words in answer["masks"]] == [2, 2]
    assert answer["fillings"][0]["probability"] >= answer["fillings"][1]["probability"]
    assert answer["dropped_tokens"] == 0


def test_words_can_be_given(masked):
    outcome = call("fill-mask", masked, "w5 [MASK]", "--json", "--words", "w9", "w10")
    assert {filling["words"][0] for filling in outcome.json()["fillings"]} == {"w9", "w10"}


@pytest.mark.parametrize("kind", ["jsonl", "txt"])
def test_files_give_a_line_for_each_row(masked, tmp_path, kind):
    texts = ["w5 [MASK]", "w6 [MASK] w8"]
    if kind == "jsonl":
        data = write_jsonl(tmp_path / "t.jsonl.gz", [{"id": f"a{n}", "text": text} for n, text in enumerate(texts)])
    else:
        data = tmp_path / "t.txt.gz"
        data.write_bytes(gzip.compress("\n".join(texts).encode()))
    lines = call("fill-mask", masked, "--data", data).lines()
    assert "probability" in call("fill-mask", masked, "--data", data, terminal=True).out.splitlines()[0]
    assert [line.get("id") for line in lines] == (["a0", "a1"] if kind == "jsonl" else [None, None])
    alone = [call("fill-mask", masked, text, "--json").json()["fillings"] for text in texts]
    assert [line["fillings"][0]["words"] for line in lines] == [fillings[0]["words"] for fillings in alone]
    ok("fill-mask", masked, "--data", data, "--output", tmp_path / "out.jsonl")
    written = read_jsonl(tmp_path / "out.jsonl")
    assert written == lines


def test_likelihoods_of_texts(masked):
    table = ok("fill-mask", masked, "w5 w6 w7", "--pseudo-likelihood")
    assert "perplexity" in table.out
    answers = call("fill-mask", masked, "w5 w6 w7", "w9", "--pseudo-likelihood", "--whole-words", "--json").lines()
    assert [answer["tokens"] for answer in answers] == [3, 1]
    assert all(answer["log_likelihood"] < 0 for answer in answers)


def test_what_was_not_read_is_said(masked):
    whole = call("fill-mask", masked, "w5 [MASK]")
    assert "not read" not in whole.out + whole.err
    long = ok("fill-mask", masked, "w5 [MASK]", "w5 [MASK]" + " w6" * 15)
    assert "text 2 is too long: 1 token not read." in long.err
    cut = call("fill-mask", masked, "w5" + " w6" * 19, "--pseudo-likelihood", "--on-overflow", "truncate", "--quiet")
    assert "text 1 is too long: 4 tokens not read." in cut.err


def test_a_text_without_tokens_has_no_perplexity(masked):
    outcome = call("fill-mask", masked, "[SEP]", "--pseudo-likelihood")
    assert outcome.out.splitlines()[1].split() == ["0.0000", "0", "-", "[SEP]"]
    assert call("fill-mask", masked, "[SEP]", "--pseudo-likelihood", "--json").json()["perplexity"] is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ((), "nothing to read"),
        (("w5 [MASK]", "--data", "x.jsonl"), "got both"),
        (("w5 [MASK]", "--top", 0), "top"),
        (("w5 [MASK]", "--words", "w6", "--max-pieces", 2), "leave out max_pieces"),
        (("w5 [MASK]", "--whole-words"), "needs --pseudo-likelihood"),
        (("w5 [MASK]", "--output", "x.jsonl"), "--output needs --data"),
        (("w5 [MASK]", "--max-length", 40), "between 1 and the model's limit, 18"),
    ],
)
def test_command_lines_that_make_no_sense_end_with_2(masked, words, said):
    fails(2, said, "fill-mask", masked, *words)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("w5 w6",), "has no mask"),
        (("[MASK] " * 9,), "at most 8"),
        (("w5 [MASK]", "--words", "zebra"), "cannot spell the word 'zebra'"),
        (("[MASK]" + " w5" * 30, "--on-overflow", "error"), "limit of 18"),
    ],
)
def test_texts_that_cannot_be_worked_with_end_with_1(masked, words, said):
    fails(1, said, "fill-mask", masked, *words)


def test_a_model_without_the_head_says_how_to_get_one(files):
    outcome = fails(1, "bothways adapt --model", "fill-mask", files / "tiny", "w5 [MASK]")
    assert "train classification" not in outcome.err
