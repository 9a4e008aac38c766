"""Words and tags out of rows, and CoNLL files."""

import gzip
import json

import pytest

from bothways.data import Row, read_rows, read_tagged
from bothways.data.columns import given_words, words_at
from bothways.errors import InvalidInput

CONLL = """\
-DOCSTART- -X- -X- O

EU NNP I-NP B-ORG
rejects VBZ I-VP O

Peter NNP I-NP B-PER
"""


def tagged(*rows):
    return [(row.words.listed(), row.label) for row in read_tagged(list(rows))]


def test_words_and_tags_are_lists_or_strings_with_white_space():
    expected = [(["EU", "rejects"], ("B-ORG", "O"))]
    assert tagged({"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}) == expected
    assert tagged({"tokens": "EU rejects", "tags": "B-ORG\tO"}) == expected


@pytest.mark.parametrize("spell", [repr, json.dumps])
def test_strings_that_spell_lists_are_those_lists(spell):
    words, tags = ["EU", "it's", 'a "b"', "é\\"], ["B-ORG", "O", "O", "O"]
    assert tagged({"tokens": spell(words), "tags": spell(tags)}) == [(words, tuple(tags))]
    row = {"tokens": "[ EU ] [", "tags": "O O O O"}
    assert tagged(row) == [(["[", "EU", "]", "["], ("O",) * 4)]


@pytest.mark.parametrize("spelled", ["['EU' 'rejects']", "['EU'\n 'rejects']", "['EU', rejects']", "['\\x']"])
def test_strings_that_only_look_like_lists_are_refused(spelled):
    with pytest.raises(InvalidInput, match=r"row 1 of .*'tokens': expected a list in JSON notation, got .*\. Put"):
        tagged({"tokens": spelled, "tags": "O O"})


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"tokens": ["a", "b"], "tags": ["O"]}, "row 1 of the given list has 2 words in 'tokens' but 1 tags in 'tags'"),
        ({"tokens": ["a", ""], "tags": ["O", "O"]}, "word 2 in 'tokens' is empty"),
        ({"tokens": [], "tags": []}, "no words in 'tokens'"),
        ({"tokens": "  ", "tags": "O"}, "no words in 'tokens'"),
        ({"tokens": None, "tags": []}, "'tokens' is null"),
        ({"tokens": 3, "tags": []}, "'tokens' is of type int. Expected a list"),
        ({"tokens": ["a", 3], "tags": ["O", "O"]}, "item 2 in 'tokens' is 3, of type int"),
        ({"tokens": ["a"], "tags": [4]}, "item 1 in 'tags' is 4, of type int"),
        ({"tokens": ["a"], "tags": [" "]}, "tag 1 in 'tags' is empty"),
        ({"tokens": ["a", "\ud800"], "tags": ["O", "O"]}, r"word 2 in 'tokens' holds half of a surrogate pair"),
        ({"tokens": ["a"], "tags": ["B-\ud800"]}, r"tag 1 in 'tags' holds half of a surrogate pair \(U\+D800\)"),
        ({"tokens": "[]", "tags": "[]"}, "no words in 'tokens'"),
        ({"tokens": ["a"]}, "no column 'tags'"),
        ({"token": ["a"], "tags": ["O"]}, "no column 'tokens'.*Did you mean 'token'"),
    ],
)
def test_rows_that_are_not_usable_are_refused_by_number(row, said):
    with pytest.raises(InvalidInput, match=said):
        tagged(row)


def test_a_row_without_words_is_read_as_a_raw_text():
    row = Row(1, {"text": "EU rejects."})
    assert given_words(row, "tokens", ("text",)).listed() == ["EU", "rejects", "."]
    both = Row(1, {"text": "EU rejects.", "tokens": ["EU", "rejects."]})
    assert given_words(both, "tokens", ("text",)).listed() == ["EU", "rejects."]
    with pytest.raises(InvalidInput, match="neither a column 'tokens' of words nor a column 'text'"):
        given_words(Row(1, {"body": "x"}), "tokens", ("text",))
    with pytest.raises(InvalidInput, match="only white space"):
        given_words(Row(1, {"text": " \n"}), "tokens", ("text",))
    with pytest.raises(InvalidInput, match="its text has no visible character"):
        given_words(Row(1, {"text": "\u200b\u00ad"}), "tokens", ("text",))


@pytest.mark.parametrize("name", ["t.conll", "t.conll.gz"])
@pytest.mark.parametrize("separator", [" ", "\t"])
@pytest.mark.parametrize("end", ["\n", "\r\n", "\n\n\n"])
def test_conll_files_are_read_by_their_first_and_last_column(tmp_path, name, separator, end):
    content = (CONLL.replace(" ", separator).rstrip("\n") + end).encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    rows = list(read_tagged(tmp_path / name))
    assert [(row.words.listed(), row.label) for row in rows] == [
        (["EU", "rejects"], ("B-ORG", "O")),
        (["Peter"], ("B-PER",)),
    ]
    assert rows[0].where == f"the text on line 3 of {str(tmp_path / name)!r}"


def test_a_word_with_a_space_stands_between_tabs(tmp_path):
    (tmp_path / "t.conll").write_text("New York\tB-LOC\n\u00a0\tO\n")
    [row] = read_rows(tmp_path / "t.conll")
    assert words_at(row, "tokens").listed() == ["New York", "\u00a0"]


@pytest.mark.parametrize(
    ("content", "said"),
    [("EU B-ORG\nrejects\n", "line 2 .* has 1 columns, but the text that starts on line 1 has 2"), ("EU\n", "line 1")],
)
def test_lines_of_other_columns_are_refused(tmp_path, content, said):
    (tmp_path / "t.conll").write_text(content)
    with pytest.raises(InvalidInput, match=said):
        list(read_rows(tmp_path / "t.conll"))
