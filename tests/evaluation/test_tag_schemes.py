"""Tags and spans: every scheme reads what it writes, and spans are those of seqeval."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bothways.errors import InvalidInput
from bothways.evaluation.tag_schemes import (
    SCHEMES,
    TagSpan,
    check_tags,
    complete,
    converted,
    fault_of,
    scheme_of,
    scheme_of_names,
    spans_of,
    tags_of,
)

WITH_SPANS = tuple(scheme for scheme in SCHEMES if scheme != "plain")
LABELS = ("PER", "work-of-art", "X", "_")
PREFIXES = {"BIO": "BI", "IOB1": "BI", "BIOES": "BIES", "BILOU": "BILU"}


@st.composite
def texts_with_spans(draw):
    """How many words, and spans that do not overlap."""
    spans, place = [], 0
    for gap, length, label in draw(
        st.lists(st.tuples(st.integers(0, 2), st.integers(1, 4), st.sampled_from(LABELS)), max_size=5)
    ):
        spans.append(TagSpan(label, place + gap, place + gap + length))
        place += gap + length
    return place + draw(st.integers(0, 2)), spans


@pytest.mark.parametrize("scheme", WITH_SPANS)
@given(texts_with_spans())
def test_a_scheme_reads_the_spans_that_it_wrote(scheme, text):
    words, spans = text
    tags = tags_of(spans, words, scheme)
    assert len(tags) == words
    assert spans_of(tags, scheme) == spans
    assert fault_of(tags, scheme) is None
    assert set(tags) <= set(complete(LABELS, scheme))
    assert converted(tags, scheme, "BIOES") == tags_of(spans, words, "BIOES")


@pytest.mark.parametrize("scheme", WITH_SPANS)
@given(texts_with_spans())
def test_spans_are_those_of_seqeval(scheme, text):
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    schemes = pytest.importorskip("seqeval.scheme")
    words, spans = text
    tags = tags_of(spans, words, scheme)
    spans, tags = [span for span in spans if span.label != "_"], [tag if len(tag) > 1 else "O" for tag in tags]
    theirs = {"BIO": schemes.IOB2, "IOB1": schemes.IOB1, "BIOES": schemes.IOBES, "BILOU": schemes.BILOU}[scheme]
    strict = [(each.tag, each.start, each.end) for each in schemes.Entities([tags], theirs).entities[0]]
    assert [tuple(span) for span in spans_of(tags, scheme)] == strict
    if scheme != "BILOU":  # which seqeval reads in its strict mode only
        lenient = [(label, start, end + 1) for label, start, end in labeling.get_entities(tags)]
        assert [tuple(span) for span in spans_of(tags, scheme)] == lenient


@given(st.lists(st.sampled_from(["O", "B-PER", "I-PER", "B-X", "I-X"]), max_size=12))
def test_tags_in_no_order_are_read_as_by_the_script_of_conll(tags):
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    expected = [(label, start, end + 1) for label, start, end in labeling.get_entities(tags)]
    assert [tuple(span) for span in spans_of(tags, "BIO")] == expected


@pytest.mark.parametrize(
    ("texts", "scheme"),
    [
        (["O B-PER I-PER", "B-LOC B-LOC"], "BIO"),
        (["O I-PER I-PER", "I-LOC B-LOC"], "IOB1"),
        (["O S-PER", "B-LOC I-LOC E-LOC"], "BIOES"),
        (["O U-PER", "B-LOC L-LOC"], "BILOU"),
        (["NOUN VERB", "-LRB- X"], "plain"),
        (["O PER", "LOC O"], "plain"),
        (["O O", "O"], "plain"),
        (["O VB-D", "NN PRP$ B"], "plain"),
        (["O NN_S VB_S"], "plain"),
        (["b-per i-per"], "plain"),
        (["O b-per", "NN"], "plain"),
        (["B-PER O", "S"], None),
    ],
)
def test_the_scheme_is_seen_from_the_tags(texts, scheme):
    listed = [(text.split(), f"line {number}") for number, text in enumerate(texts, start=1)]
    if scheme is None:
        with pytest.raises(InvalidInput, match="line 2 has the tag 'S'"):
            scheme_of(listed)
    else:
        assert scheme_of(listed) == scheme


@pytest.mark.parametrize("preferred", WITH_SPANS)
def test_the_models_own_scheme_is_taken_where_tags_leave_it_open(preferred):
    assert scheme_of([(["O", "O"], "line 1")], preferred) == preferred
    assert scheme_of([(["O", "S-PER"], "line 1")], preferred) == ("BIOES")


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (
            ["B-PER", "O I-PER B-PER O B-PER"],
            r"line 2 .* 'I-PER' at word 2, after 'O', which BIO .* Write 'B-PER' there, or .* plain",
        ),
        (["I-PER", "B-PER I-LOC B-LOC B-PER"], r"line 1 has the tag 'I-PER' at word 1, at the beginning, which BIO"),
        (["S-PER", "B-PER O"], r"line 2 has the tag 'B-PER' at word 1, at the beginning, which BIOES"),
        (
            ["B-PER", "M-PER E-PER"],
            r"line 2 has the tag 'M-PER'. The prefixes of all tags are B, E, M.* 'I-' for 'M-'",
        ),
        (["O", "B-PER PERSON"], r"line 2 has the tag 'PERSON'. The prefixes of all tags are none, B"),
    ],
)
def test_tags_of_no_scheme_are_refused_by_text_and_word(texts, said):
    with pytest.raises(InvalidInput, match=said):
        scheme_of([(text.split(), f"line {number}") for number, text in enumerate(texts, start=1)])


@pytest.mark.parametrize(
    ("texts", "tag", "right"),
    [
        (["o", "b-per i-per"], "b-per", "B-per"),
        (["O B_PER", "I_PER"], "B_PER", "B-PER"),
        (["O PER-B PER-I"], "PER-B", "B-PER"),
        (["o per:s per:b per:e"], "per:s", "S-per"),
        (["O i-work-of-art"], "i-work-of-art", "I-work-of-art"),
    ],
)
@pytest.mark.parametrize("preferred", [None, "BIO"])
def test_tags_that_are_almost_those_of_spans_are_refused_with_how_to_write_them(texts, tag, right, preferred):
    listed = [(text.split(), f"line {number}") for number, text in enumerate(texts, start=1)]
    with pytest.raises(InvalidInput, match=rf"line \d has the tag '{tag}'.* expected '{right}'.*'plain'.*--scheme"):
        scheme_of(listed, preferred)
    assert scheme_of(listed, "plain") == "plain"


def test_plain_tags_have_no_spans():
    assert spans_of(["B-PER", "NOUN"], "plain") == []
    assert fault_of(["I-PER"], "plain") is None
    check_tags([(["I-PER"], "line 1")], "plain")
    with pytest.raises(InvalidInput, match="plain tags encode no spans"):
        converted(["NOUN"], "plain", "BIO")
    with pytest.raises(InvalidInput, match="plain tags encode no spans"):
        tags_of([], 2, "plain")


@pytest.mark.parametrize(
    ("names", "scheme"),
    [
        (["O", "B-PER", "I-PER"], "BIO"),
        (["I-PER", "O"], "BIO"),
        (["O", "B-PER", "I-PER", "E-PER", "S-PER"], "BIOES"),
        (["O", "B-PER", "L-PER", "U-PER"], "BILOU"),
        (["NOUN", "VERB"], "plain"),
        (["O", "PER"], "plain"),
        (["B-PER", "I-PER"], "plain"),
        (["O", "B-PER", "M-PER"], "plain"),
        (["O", "B-PER", "S-PER"], "plain"),
        (["O", "B", "I"], "BIO"),
        (["O", "B", "I", "E", "S"], "BIOES"),
        (["O", "B", "L", "U"], "BILOU"),
        (["O", "S"], "plain"),
        (["O", "B", "N"], "plain"),
        (["O", "B", "B-PER", "I-PER"], "plain"),
    ],
)
def test_the_scheme_of_a_model_is_seen_from_its_labels(names, scheme):
    assert scheme_of_names(names) == scheme


def test_the_advice_for_a_tag_that_does_not_fit_works():
    stray = [(["B-PER", "O"], "row 1"), (["O", "I-PER"], "row 2")]
    with pytest.raises(InvalidInput, match=r"row 2 has the tag 'I-PER'.* Write 'B-PER' there, or .*--scheme plain"):
        scheme_of(stray)
    check_tags(stray, "plain")
    with pytest.raises(InvalidInput, match=r"Write 'B-PER' there\.$"):  # a model of spans reads no plain tags
        scheme_of(stray, "BIO")
    assert scheme_of([stray[0], (["O", "B-PER"], "row 2")]) == "BIO"
    older = [(["I-PER", "B-PER", "I-PER"], "row 1")]
    with pytest.raises(InvalidInput, match=r"All tags are valid in the scheme 'IOB1': choose it \(--scheme IOB1\)\.$"):
        check_tags(older, "BIO")
    check_tags(older, "IOB1")
    with pytest.raises(InvalidInput, match=r"'MISC'.* Others begin with 'I-', so correct this tag") as caught:
        scheme_of([(["I-PER", "MISC"], "row 1")])
    assert "plain" not in str(caught.value)


def test_an_odd_tag_among_spans_is_no_reason_for_plain_tags():
    with pytest.raises(InvalidInput, match=r"'domain=en'.* correct this tag: its line may be") as caught:
        scheme_of([(["B-X", "O"], "row 1"), (["domain=en", "B-X"], "row 2")])
    assert "plain" not in str(caught.value)


@given(st.lists(st.sampled_from("OBI"), max_size=12))
def test_bare_tags_are_spans_of_one_type_as_in_seqeval(tags):
    labeling = pytest.importorskip("seqeval.metrics.sequence_labeling")
    expected = [(label, start, end + 1) for label, start, end in labeling.get_entities(tags)]
    assert [tuple(span) for span in spans_of(tags, "BIO")] == expected


@pytest.mark.parametrize(
    ("tags", "scheme"),
    [("OBIO", "BIO"), ("IOIB", "IOB1"), ("BIESO", "BIOES"), ("BILUO", "BILOU"), ("SOEN", "plain"), ("SOO", "plain")],
)
@pytest.mark.parametrize("spell", [str, str.lower, lambda tag: tag if tag == "O" else f"{tag}-"])
def test_the_scheme_of_bare_tags_is_recognised_however_they_are_spelled(tags, scheme, spell):
    assert scheme_of([([spell(tag) for tag in tags], "line 1")]) == scheme
    assert scheme_of([([spell(tag) for tag in tags], "line 1")], "plain") == "plain"


def test_bare_tags_beside_typed_ones_are_refused():
    with pytest.raises(InvalidInput, match=r"line 1 has the tag 'B'"):
        scheme_of([(["B-PER", "O", "B"], "line 1")])
