"""Sentence bounds by rule, and that nothing but white space lies between sentences."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.text.words import sentence_spans

CASES = {
    "One. Two! Three? Four": ["One.", "Two!", "Three?", "Four"],
    "Dr. J. K. Rowling came to the U.S. on Jan. 5. Then she left.": [
        "Dr. J. K. Rowling came to the U.S. on Jan. 5.",
        "Then she left.",
    ],
    'He said: "Stop!" Then he left... and came back.': ['He said: "Stop!"', "Then he left... and came back."],
    "3.5 is less than 4. See Fig. 3 (p. 7).": ["3.5 is less than 4.", "See Fig. 3 (p. 7)."],
    "a line\nanother\n\n third": ["a line", "another", "third"],
    "他走了。她说：“好！”然后回家。": ["他走了。", "她说：“好！”", "然后回家。"],  # noqa: RUF001
    "Was? Ja, z.B. Hunde. Gut.": ["Was?", "Ja, z.B. Hunde.", "Gut."],
    " \n ": [],
    "": [],
}


@pytest.mark.parametrize("text", CASES)
def test_sentences_of_examples(text):
    assert [text[begin:end] for begin, end in sentence_spans(text)] == CASES[text]


@given(st.text(alphabet=st.sampled_from(list("aB1 .!?\n\t\"')。")), max_size=80))
def test_sentences_are_ascending_and_leave_out_white_space_alone(text):
    spans = sentence_spans(text)
    outside = list(text)
    at = 0
    for begin, end in spans:
        assert at <= begin < end
        assert text[begin:end] == text[begin:end].strip()
        outside[begin:end] = " " * (end - begin)
        at = end
    assert not "".join(outside).strip()
