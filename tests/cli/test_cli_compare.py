"""``bothways tokenize --compare``: tokenizers side by side."""

import re
import shutil

import pytest
from command_line import call, fails, write_jsonl


@pytest.fixture(scope="module")
def other(files, tmp_path_factory):
    """The tiny model again, with a vocabulary that lacks every word but w6."""
    folder = tmp_path_factory.mktemp("other") / "other"
    shutil.copytree(files / "tiny", folder)
    for path in folder.glob("tokenizer*.json"):
        path.unlink()
    (folder / "vocab.txt").write_text(
        "\n".join(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]", "w", "##6", "##8"]) + "\n"
    )
    return folder


def test_texts_are_shown_piece_by_piece_for_each_tokenizer(files, other):
    out = call("tokenize", "w6 w8", "--compare", files / "tiny", other).out
    lines = [re.sub(r" +", " ", line) for line in out.splitlines()]
    assert lines[0] == "tokenizer pieces w6 w8"
    assert f"{files / 'tiny'} 2 w6 w8" in lines
    assert f"{other} 4 w ##6 w ##8" in lines
    assert f"{other} 4 2.00 1.00 0.00% 0.00% 8 37.5%" in lines
    assert lines.index("tokenizer words with the most pieces pieces") < lines.index(f"{other} w6 2 w ##6")


def test_json_has_pieces_and_numbers(files, other):
    given = call("tokenize", "--compare", files / "tiny", other, "--json", "--", "w6 w8", "w6 x").json()
    assert [each["text"] for each in given["texts"]] == ["w6 w8", "w6 x"]
    assert given["texts"][1]["pieces"][str(other)] == ["w", "##6", "[UNK]"]
    first, second = given["tokenizers"]
    assert (first["name"], second["name"]) == (str(files / "tiny"), str(other))
    assert second["unknown_rate"] == 1 / 7
    assert second["unknown_word_rate"] == 1 / 4
    assert second["most_cut"][0] == {"word": "w6", "pieces": ["w", "##6"]}


def test_files_are_compared_without_showing_each_text(files, other):
    data = files / "test.jsonl.gz"
    given = call("tokenize", "--compare", files / "tiny", other, "--data", data, "--json").json()
    assert given["texts"] == []
    assert [each["texts"] for each in given["tokenizers"]] == [30, 30]
    out = call("tokenize", "--compare", files / "tiny", other, "--data", data).out
    assert out.startswith("tokenizer ")


def test_the_tables_fit_a_narrow_terminal(files, other, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = call("tokenize", "w6 w8", "--compare", files / "tiny", other).out
    plain = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert max(map(len, plain)) <= 100


def test_control_characters_do_not_reach_the_terminal(files, other):
    assert "\x1b" not in call("tokenize", "w6 \x1b[31mred", "--compare", files / "tiny", other).out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["w6", "--compare", "{tiny}"], "at least two different models"),
        (["w6", "--compare", "{tiny}", "{tiny}"], "at least two different models"),
        (["--compare", "{tiny}", "{other}"], "nothing to read"),
        (["w6", "--compare", "{tiny}", "{other}", "--data", "-"], "got both"),
        (["w6", "--compare", "{tiny}", "{other}", "--max-length", "9"], "cannot be used with --compare"),
        (["w6", "--compare", "{tiny}", "{other}", "--revision", "0" * 40], "NAME@COMMIT"),
        (["w6", "--compare"], "got none"),
        ([], "expected a model"),
    ],
    ids=str,
)
def test_a_comparison_that_makes_no_sense_is_used_wrongly(files, other, words, message):
    fails(2, message, "tokenize", *(word.format(tiny=files / "tiny", other=other) for word in words))


def test_a_pinned_name_is_looked_up_at_its_commit(files):
    outcome = fails(1, "download", "tokenize", "w6", "--compare", files / "tiny", "nobody/nothing@" + "0" * 40)
    assert "@" not in outcome.err


@pytest.mark.parametrize(("rows", "message"), [([{"txt": "w6"}], "text"), ([], "is empty")])
def test_bad_rows_are_named(files, other, tmp_path, rows, message):
    data = write_jsonl(tmp_path / "d.jsonl", rows)
    fails(1, message, "tokenize", "--compare", files / "tiny", other, "--data", data)
