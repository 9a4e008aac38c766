"""Decoding: the best of the sequences that a scheme can write, and never another."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from bothways.data import TaggedRow
from bothways.errors import InvalidInput
from bothways.evaluation.tag_schemes import complete, fault_of
from bothways.tasks.tagging.tag_set import TagSet
from bothways.text import Words

SETS = {scheme: TagSet(complete(("LOC", "PER"), scheme), scheme) for scheme in ("BIO", "IOB1", "BIOES", "BILOU")}
scores = st.floats(-30, 30, width=32)


@st.composite
def scored_texts(draw, tags):
    """Scores of the words of a few texts, and how many words each has."""
    lengths = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    return draw(arrays.arrays(np.float64, (sum(lengths), tags), elements=scores)), lengths


@pytest.mark.parametrize("scheme", SETS)
@given(data=st.data())
@settings(max_examples=60)
def test_no_broken_span_ever_comes_out(scheme, data):
    tag_set = SETS[scheme]
    scores_MC, lengths = data.draw(scored_texts(len(tag_set.labels)))
    tags = [tag_set.labels[number] for number in tag_set.decode(scores_MC, lengths)]
    ends = list(itertools.accumulate(lengths))
    for length, end in zip(lengths, ends, strict=True):
        assert fault_of(tags[end - length : end], scheme) is None


@pytest.mark.parametrize("scheme", SETS)
@given(data=st.data())
@settings(max_examples=30)
def test_what_comes_out_is_the_best_of_all_sequences_that_can_be_written(scheme, data):
    tag_set = TagSet(complete(("X",), scheme), scheme)
    words, tags = data.draw(st.integers(1, 4)), len(tag_set.labels)
    scores_WC = data.draw(arrays.arrays(np.float64, (words, tags), elements=scores))
    valid = [
        path
        for path in itertools.product(range(tags), repeat=words)
        if fault_of([tag_set.labels[number] for number in path], scheme) is None
    ]
    best = max(scores_WC[np.arange(words), list(path)].sum() for path in valid)
    decoded_W = tag_set.decode(scores_WC, [words])
    assert scores_WC[np.arange(words), decoded_W].sum() == pytest.approx(best)


@given(data=st.data())
def test_texts_do_not_meddle_with_each_other(data):
    tag_set = SETS["BIOES"]
    scores_MC, lengths = data.draw(scored_texts(len(tag_set.labels)))
    together, end = tag_set.decode(scores_MC, lengths), 0
    for length in lengths:
        alone = tag_set.decode(scores_MC[end : end + length], [length])
        np.testing.assert_array_equal(together[end : end + length], alone)
        end += length


def test_plain_tags_are_each_the_best_of_their_word():
    scores_MC = np.random.default_rng(0).normal(size=(20, 4))
    np.testing.assert_array_equal(TagSet(tuple("abcd"), "plain").decode(scores_MC, [12, 8]), scores_MC.argmax(1))


@pytest.mark.parametrize(
    ("around", "said"),
    [
        (("B-PER", "I-PER"), ["B-PER", "I-PER", "I-PER"]),
        (("B-PER", "O"), ["B-PER", "O", "O"]),
        (("O", "B-PER"), ["O", "O", "B-PER"]),
        (("B-PER", "B-LOC"), ["B-PER", "O", "B-LOC"]),
    ],
)
def test_a_word_that_was_not_read_follows_its_neighbours(around, said):
    tag_set = SETS["BIO"]
    scores_WC = np.full((3, len(tag_set.labels)), -9.0)
    scores_WC[0, tag_set.labels.index(around[0])] = 0
    scores_WC[2, tag_set.labels.index(around[1])] = 0
    scores_WC[1] = tag_set.unseen_C
    assert [tag_set.labels[number] for number in tag_set.decode(scores_WC, [3])] == said


def test_a_model_without_a_tag_for_first_words_begins_spans_with_the_others():
    tag_set = TagSet(("O", "I-PER"), "BIO")
    scores_WC = np.array([[0.0, 5], [0, 5], [5, 0], [0, 5]])
    numbers = tag_set.decode(scores_WC, [4])
    assert numbers.tolist() == [1, 1, 0, 1]
    assert [tuple(span) for span in tag_set.spans_of_texts(numbers, [4])[0]] == [("PER", 0, 2), ("PER", 3, 4)]


def test_a_scheme_of_spans_needs_a_tag_outside_of_them():
    with pytest.raises(InvalidInput, match="needs the tag 'O' among the labels"):
        TagSet(("B-PER", "I-PER"), "BIO")


@pytest.mark.parametrize(
    ("labels", "scheme", "unused"),
    [
        ("O B-X I-X", "BIOES", "'B-X', 'I-X'"),
        ("O B-X I-X", "BILOU", "'B-X', 'I-X'"),
        ("O B-X", "IOB1", "'B-X'"),
        ("O B-X E-X S-X", "BIO", "'E-X', 'S-X'"),
        ("O B-X E-X S-X B-Y S-Y", "BIOES", "'B-Y'"),
        ("O PER", "BIO", "'PER'"),
    ],
)
def test_a_scheme_that_the_tags_cannot_write_is_refused(labels, scheme, unused):
    with pytest.raises(InvalidInput, match=rf"no valid {scheme} sequence contains {unused}\."):
        TagSet(tuple(labels.split()), scheme)


@pytest.mark.parametrize(
    ("labels", "scheme"),
    [("O I-X", "BIO"), ("O B-X", "BIO"), ("O I-X", "IOB1"), ("O B-X E-X", "BIOES"), ("O U-X B-Y L-Y", "BILOU")],
)
def test_a_scheme_needs_no_tags_that_training_data_may_lack(labels, scheme):
    assert TagSet(tuple(labels.split()), scheme).span_labels


def test_training_rows_call_for_all_tags_of_their_labels():
    rows = [TaggedRow(Words.of_list(["a", "b"]), ("O", "B-Z")), TaggedRow(Words.of_list(["c"]), ("B-A",))]
    assert TagSet.of_rows(rows, "BIO").labels == ("O", "B-A", "I-A", "B-Z", "I-Z")
    assert TagSet.of_rows(rows, "plain").labels == ("B-A", "B-Z", "O")
    assert TagSet.of_rows(rows, "BIO").span_labels == ("A", "Z")
