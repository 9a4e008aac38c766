"""Words and tags out of rows, and CoNLL files."""

import gzip
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways.data import Row, label_set, read_rows, read_tagged, write_rows
from bothways.data.columns import given_words, words_at
from bothways.errors import InvalidInput
from bothways.tasks.multiple_choice.spec import MULTIPLE_CHOICE
from bothways.tasks.question_answering.questions import read_questions
from bothways.tasks.question_answering.spec import QuestionColumns

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


def test_rows_of_document_marks_and_comments_are_no_texts():
    texts = [{"tokens": ["EU", "#"], "tags": ["B-ORG", "O"]}, {"tokens": ["# 7", "EU"], "tags": ["O", "B-ORG"]}]
    marks = [
        {"tokens": ["-DOCSTART-"], "tags": ["-X-"]},
        {"tokens": "-DOCSTART- -DOCSTART-", "tags": "O O"},
        {"tokens": ["# id 3 domain=en", "# text"], "tags": ["domain=en", "O"]},
    ]
    assert tagged(marks[0], texts[0], *marks[1:], texts[1]) == tagged(*texts)


@pytest.mark.parametrize("spell", [repr, json.dumps])
def test_strings_that_spell_lists_are_those_lists(spell):
    words, tags = ["EU", "it's", 'a "b"', "é\\"], ["B-ORG", "O", "O", "O"]
    assert tagged({"tokens": spell(words), "tags": spell(tags)}) == [(words, tuple(tags))]
    row = {"tokens": "[ EU ] [", "tags": "O O O O"}
    assert tagged(row) == [(["[", "EU", "]", "["], ("O",) * 4)]


@pytest.mark.parametrize(
    "spelled", ["['EU', rejects']", "['\\x']", "['EU' 'rejects', 'it']", "['EU''a']", "['EU' ... 'a']"]
)
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
        (
            {"tokens": ["a"], "tags": [4]},
            r"tags in 'tags' are numbers, got \[4\]. Expected their names: .*--labels",
        ),
        ({"tokens": ["a"], "tags": [" "]}, "tag 1 in 'tags' is empty"),
        ({"tokens": ["a", "\ud800"], "tags": ["O", "O"]}, r"word 2 in 'tokens' holds half of a surrogate pair"),
        ({"tokens": ["a"], "tags": ["B-\ud800"]}, r"tag 1 in 'tags' holds half of a surrogate pair \(U\+D800\)"),
        ({"tokens": "[]", "tags": "[]"}, "no words in 'tokens'"),
        ({"tokens": ["a"]}, "no column 'tags'"),
        ({"token": ["a"], "tags": ["O"]}, "no column 'tokens'.*Did you mean tokens='token'"),
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
    with pytest.raises(InvalidInput, match="only invisible characters"):
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


def words_and_tags(content, kind="conll"):
    rows = read_rows(io.BytesIO(content.encode()), format=kind)
    return [(row.values["tokens"], row.values["tags"]) for row in rows]


@pytest.mark.parametrize(
    "comment",
    [
        "# 7",
        "# id 3 domain=en",
        "# text = Peter likes",
        "# sent_id = 3",
        "# newdoc id = d1",
        "# id 3\tdomain=en",
        "#  12 ",
    ],
)
@pytest.mark.parametrize("columns", ["B-PER", "_ _ B-PER", "NNP B-NP x B-PER"])
@pytest.mark.parametrize("separator", [" ", "\t"])
def test_comments_are_no_words(comment, columns, separator):
    line = f"Peter {columns}".replace(" ", separator)
    outside = f"likes {columns[:-5]}O".replace(" ", separator)
    one = (["Peter", "likes"], ["B-PER", "O"])
    assert words_and_tags(f"{comment}\n\n{comment}\n{line}\n{outside}\n\n{comment}\n{line}\n{outside}\n") == [one, one]
    assert words_and_tags(f"{comment}\n{comment}\n{line}\n{outside}\n") == [one]


@pytest.mark.parametrize("separator", [" ", "\t"])
def test_a_hash_with_a_tag_is_a_word(separator):
    content = "# O\n1 B-X\n#tag B-Y\n\n1 O\n# B-X\n\n# O\n\n#a=b O\n".replace(" ", separator)
    expected = [
        (["#", "1", "#tag"], ["O", "B-X", "B-Y"]),
        (["1", "#"], ["O", "B-X"]),
        (["#"], ["O"]),
        (["#a=b"], ["O"]),
    ]
    assert words_and_tags(content) == expected
    # Parts of speech: the tag of another word, or a word inside of a text.
    assert words_and_tags("5 NUM\n# SYM\n\n# SYM\n5 NUM\n") == [
        (["5", "#"], ["NUM", "SYM"]),
        (["#", "5"], ["SYM", "NUM"]),
    ]
    assert words_and_tags("#\tSYM\n5\tNUM\n") == [(["#", "5"], ["SYM", "NUM"])]


@pytest.mark.parametrize("content", ["# SYM\n5 NUM\n", "# 7\nPeter 1\nlikes 7\n", "# Anna\nAnna B-PER\n"])
def test_what_may_be_a_word_or_a_comment_is_refused(content):
    with pytest.raises(InvalidInput, match=r"line 1 of the given stream is '# .*': expected a word or a comment"):
        words_and_tags(content)


def test_documents_and_comments_are_skipped_in_conllu_too():
    word = "1\tGo\tgo\tVERB" + "\t_" * 6
    content = f"-DOCSTART-\n# newdoc\n# a\tb\n#\n{word}\n-DOCSTART- -X- O O\n{word}\n"
    assert words_and_tags(content, "conllu") == [(["Go"], ["VERB"])] * 2


WORDS = st.tuples(st.sampled_from(["#", "#x", "a", "# b", "="]), st.sampled_from("OBI"))


@given(st.lists(st.lists(WORDS, min_size=1, max_size=4), min_size=1, max_size=4))
@settings(max_examples=50, deadline=None)
def test_written_words_are_read_back_whatever_they_begin_with(tmp_path_factory, texts):
    path = tmp_path_factory.getbasetemp() / "hashes.conll"
    rows = [{"tokens": [word for word, _ in text], "tags": [tag for _, tag in text]} for text in texts]
    write_rows(path, rows, overwrite=True)
    assert words_and_tags(path.read_text()) == [(row["tokens"], row["tags"]) for row in rows]


@pytest.mark.parametrize(
    "words", ["('EU', 'rejects')", "('EU', \"rejects\",)", "['EU' 'rejects']", "['EU'\n 'rejects']"]
)
@pytest.mark.parametrize("tags", ["('B-ORG', 'O')", "['B-ORG' 'O']", '["B-ORG", "O"]', "B-ORG O"])
def test_cells_are_lists_as_json_python_and_numpy_print_them(words, tags):
    assert tagged({"tokens": words, "tags": tags}) == [(["EU", "rejects"], ("B-ORG", "O"))]


@pytest.mark.parametrize("cell", ["[1, 0]", "[1 0]", "[ 1 10]", "(1, 0)", "B-ORG,O", "B-ORG;O", "B-ORG|O", "B-ORG, O"])
def test_cells_that_are_no_list_of_strings_are_refused(cell):
    with pytest.raises(InvalidInput, match=r"row 1 .*'tags' (is|are numbers, got) .*\. Expected (.*list|their names)"):
        tagged({"tokens": "EU rejects", "tags": cell})
    with pytest.raises(InvalidInput, match=r"row 1 of .*'tokens' is 'Peter,likes'\. Expected a list of strings"):
        tagged({"tokens": "Peter,likes", "tags": cell})
    assert tagged({"tokens": "1,000 , '('", "tags": "CD , X"}) == [(["1,000", ",", "'('"], ("CD", ",", "X"))]


@pytest.mark.parametrize(
    "spell", [str, json.dumps, lambda choices: str(np.array(choices)), lambda each: str(tuple(each))]
)
def test_choices_answers_and_label_sets_in_cells_are_lists_too(spell):
    choices = ["It's 1, or", 'a "b"']
    row = Row(1, {"context": "c", "choices": spell(choices)})
    assert MULTIPLE_CHOICE.columns.read(row) == ("c", tuple(choices))
    assert label_set(spell(choices)) == tuple(choices)


@pytest.mark.parametrize("spell", [str, json.dumps])
@pytest.mark.parametrize("answers", [[{"text": "EU", "start": 0}], {"text": ["EU"], "answer_start": [0]}, []])
def test_answers_in_cells_are_objects(spell, answers):
    rows = [{"question": "Who?", "context": "EU rejects", "answers": given} for given in (answers, spell(answers))]
    as_values, as_text = read_questions(rows, QuestionColumns())
    assert as_values.label == as_text.label
