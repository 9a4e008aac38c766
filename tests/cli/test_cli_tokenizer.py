"""``bothways tokenizer train``: a vocabulary that the other commands read, and what is refused."""

import gzip

import pytest
from command_line import call

TEXT = "the cat sat on the mat\nand the dog ran\n\n" * 30


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "texts.txt.gz"
    path.write_bytes(gzip.compress(TEXT.encode()))
    return path


def train(data, output, *more):
    return call("tokenizer", "train", "--data", data, "--output", output, "--vocabulary", 400, *more)


@pytest.mark.parametrize("kind", ["wordpiece", "bpe", "unigram"])
def test_a_trained_tokenizer_is_read_by_tokenize_and_compared(kind, data, tmp_path):
    outcome = train(data, tmp_path / "tok", "--kind", kind)
    assert outcome.code == 0, outcome.err
    assert ", fewer than 400 as the texts have no more, from 30 documents" in outcome.err
    assert "next: bothways tokenize" in outcome.err
    (shown,) = call("tokenize", tmp_path / "tok", "the cat", "--json").lines()
    assert shown["tokens"][0] == "[CLS]"
    assert shown["windows"] == 1
    train(data, tmp_path / "other", "--kind", "bpe")
    compared = call("tokenize", "the cat", "--compare", tmp_path / "tok", tmp_path / "other", "--json").json()
    assert [each["unknown_rate"] for each in compared["tokenizers"]] == [0, 0]
    lines = call("tokenize", "the cat", "--compare", tmp_path / "tok", tmp_path / "other").out.splitlines()
    assert lines[0].split() == ["tokenizer", "pieces", "the", "cat"]
    assert lines[1].split()[1] == str(len(compared["texts"][0]["pieces"][str(tmp_path / "tok")]))


def test_several_files_and_folders_are_read(data, tmp_path):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.jsonl").write_text('{"text": "a zebra"}\n')
    outcome = train(data, tmp_path / "tok", tmp_path / "more", "--json")
    assert outcome.code == 2
    outcome = call(
        *("tokenizer", "train", "--data", data, tmp_path / "more", "--output", tmp_path / "tok"),
        *("--vocabulary", 400, "--json"),
    )
    found = outcome.json()
    assert found.pop("vocabulary") > 20
    assert found == {"kind": "wordpiece", "documents": 31, "output": str(tmp_path / "tok")}


def test_a_tokenizer_is_replaced_only_on_request(data, tmp_path):
    assert train(data, tmp_path / "tok").code == 0
    before = (tmp_path / "tok" / "tokenizer.json").read_bytes()
    refused = train(data, tmp_path / "tok", "--no-lowercase")
    assert refused.code == 1
    assert "--overwrite" in refused.err
    assert (tmp_path / "tok" / "tokenizer.json").read_bytes() == before
    assert train(data, tmp_path / "tok", "--overwrite", "--no-lowercase").code == 0
    assert (tmp_path / "tok" / "tokenizer.json").read_bytes() != before


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vocabulary", 3], "at least 64 tokens, got 3"),
        (["--kind", "bpe", "--vocabulary", 200], "at least 261 tokens, got 200"),
        (["--kind", "wordpieces"], "wordpiece"),
    ],
)
def test_settings_that_cannot_be_are_refused(data, tmp_path, options, words):
    outcome = call("tokenizer", "train", "--data", data, "--output", tmp_path / "tok", *options)
    assert outcome.code == 2
    assert words in outcome.err.replace("\n", " ")
    assert not (tmp_path / "tok").exists()


def test_data_without_words_leave_nothing_behind(tmp_path):
    (tmp_path / "empty.txt").write_text("\n\n")
    outcome = train(tmp_path / "empty.txt", tmp_path / "tok")
    assert outcome.code == 1
    assert "all of them are empty" in outcome.err
    assert not (tmp_path / "tok").exists()
    assert call("tokenizer", "train", "--data", tmp_path / "no.txt", "--output", tmp_path / "tok").code == 1
