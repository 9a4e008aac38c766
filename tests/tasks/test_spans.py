"""Spans are those that trying all of them finds; targets and loss are those of the definitions."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bothways.data.windows import WindowStore
from bothways.tasks.question_answering.learner import SpanLoss, tokens_of
from bothways.tasks.question_answering.questions import GoldAnswer
from bothways.tasks.question_answering.spans import SpanScores
from bothways.text import EncodedText, Places, Window

WORDS = "ab c  def g hi jkl m nop"


def word_offsets(text):
    found, at = [], 0
    for word in text.split():
        at = text.index(word, at)
        found.append((at, at + len(word)))
        at += len(word)
    return found


def windows_of(context, room, stride, *, cls="first"):
    """A window as the tokenizer would make it: question of one token, context of words, special tokens."""
    offsets = word_offsets(context)
    starts = range(0, max(1, len(offsets) - stride), room - stride)
    made = []
    for start in starts:
        part = offsets[start : start + room]
        before, after = ([(0, 0), (0, 1), (0, 0)], [(0, 0)]) if cls == "first" else ([(0, 1), (0, 0)], [(0, 0)] * 2)
        sequences = ([None, 0, None], [None]) if cls == "first" else ([0, None], [None] * 2)
        spans = [*before, *part, *after]
        numbers = [*sequences[0], *[1] * len(part), *sequences[1]]
        made.append(Window([1] * len(spans), [0] * len(spans), start, spans, None, numbers))
    return made


def all_spans(context, rows, places, no_answer, longest):
    """Every span of every window with its score; of equals the best."""
    found = {}
    for row, place in zip(rows, places, strict=True):
        inside = np.flatnonzero(place.sequences_n == 1)
        for first in inside:
            for last in inside[(inside >= first) & (inside < first + longest)]:
                key = (int(place.begins_n[first]), int(place.ends_n[last]))
                score = row[first, 0] + row[last, 1] - row[no_answer].sum()
                found[key] = max(score, found.get(key, -np.inf))
    return sorted(((score, *key) for key, score in found.items()), reverse=True)


@pytest.mark.parametrize("cls", ["first", "last"])
@pytest.mark.parametrize(("room", "stride"), [(8, 0), (4, 2), (3, 1), (2, 1)])
@pytest.mark.parametrize("longest", [1, 3, 20])
def test_the_best_spans_are_those_of_trying_all(cls, room, stride, longest):
    places = [Places.of(window) for window in windows_of(WORDS, room, stride, cls=cls)]
    generator = np.random.default_rng(room)
    rows = [generator.normal(size=(len(each.begins_n), 2)) for each in places]
    no_answer = 0 if cls == "first" else -1
    expected = all_spans(WORDS, rows, places, no_answer, longest)
    scores = SpanScores(WORDS, rows, places, no_answer=no_answer, longest=longest)
    for count in (1, 5, 1000):
        found = scores.best(count)
        assert [(span.start, span.end) for span in found] == [span[1:] for span in expected[:count]]
        assert [span.score for span in found] == pytest.approx([span[0] for span in expected[:count]])
    apart = []
    for score, start, end in expected:
        if all(end <= span[1] or start >= span[2] for span in apart):
            apart.append((score, start, end))
    for count in (1, 2, 1000):
        found = scores.apart(count)
        assert [(span.start, span.end) for span in found] == [span[1:] for span in apart[:count]]
        assert [span.score for span in found] == pytest.approx([span[0] for span in apart[:count]])


@given(st.data())
def test_spans_have_no_white_space_around_them_and_are_different(data):
    context = "  a  bc "
    borders = data.draw(st.lists(st.integers(0, len(context)), min_size=2, max_size=8).map(sorted))
    begins, ends = np.array(borders[:-1], dtype=np.int32), np.array(borders[1:], dtype=np.int32)
    sequences = np.array([-1, *[1] * len(begins)], dtype=np.int8)
    places = Places(np.concatenate([[0], begins]), np.concatenate([[0], ends]), sequences, 0)
    size = 2 * len(sequences)
    rows = np.array(data.draw(st.lists(st.floats(-3, 3), min_size=size, max_size=size))).reshape(-1, 2)
    scores = SpanScores(context, [rows], [places], no_answer=0, longest=4)
    for found in (scores.best(20), scores.apart(20)):
        texts = [context[span.start : span.end] for span in found]
        assert all(text and text == text.strip() for text in texts)
        assert len({(span.start, span.end) for span in found}) == len(found)
        assert [span.score for span in found] == sorted((span.score for span in found), reverse=True)
    assert all(a.end <= b.start or b.end <= a.start for a in found for b in found if a != b)
    assert [span.score for span in scores.best(1)] == [span.score for span in scores.apart(1)]


def test_a_context_without_tokens_has_no_spans():
    places = Places(np.zeros(3, np.int32), np.zeros(3, np.int32), np.array([-1, 0, -1], np.int8), 0)
    scores = SpanScores("\u200b", [np.zeros((3, 2))], [places], no_answer=0, longest=5)
    assert scores.best(3) == scores.apart(3) == []


@pytest.mark.parametrize("answer", ["Cafe\u0301", "\u2764\ufe0f", "\u0915\u0947"])
def test_a_span_ends_behind_the_marks_of_its_last_character(answer):
    context = f"a {answer} b"
    end = 2 + len(answer)
    begins, ends = [0, 0, 2, end - 1, end + 1], [0, 1, end - 1, end, end + 2]
    # A tokenizer without a token for the mark, and one with a token of its own.
    for tokens in ([0, 1, 2, 4], [0, 1, 2, 3, 4]):
        sequences = np.array([-1, *[1] * (len(tokens) - 1)], np.int8)
        places = Places(np.array(begins)[tokens], np.array(ends)[tokens], sequences, 0)
        rows = np.full((len(tokens), 2), -9.0)
        rows[2] = 9
        scores = SpanScores(context, [rows], [places], no_answer=0, longest=5)
        found, apart = scores.best(20), scores.apart(20)
        assert context[found[0].start : found[0].end] == context[apart[0].start : apart[0].end] == answer
        assert answer[-1] not in {context[span.start : span.end] for span in found}
        assert all(a.end <= b.start or b.end <= a.start for a in apart for b in apart if a != b)


def test_spans_longer_than_the_context_take_no_memory():
    places = [Places.of(window) for window in windows_of(WORDS, 8, 0)]
    rows = [np.random.default_rng(0).normal(size=(len(each.begins_n), 2)) for each in places]
    found, expected = (
        SpanScores(WORDS, rows, places, no_answer=0, longest=longest).best(1000) for longest in (10**15, 8)
    )
    assert found == expected


# --- targets ---


def gold(text, context=WORDS):
    return GoldAnswer(text, context.index(text))


def stored(context, room, stride, cls="first", dropped=0):
    windows = tuple(windows_of(context, room, stride, cls=cls))
    return WindowStore.of([EncodedText(windows if not dropped else windows[:1], 9, dropped)])


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        # Windows: ab c def g | def g hi jkl | hi jkl m nop; three tokens stand before them.
        (gold("ab"), [(3, 3), None, None]),
        (gold("c  def"), [(4, 5), None, None]),
        (gold("ef g"), [(5, 6), (3, 4), None]),
        (gold("g hi"), [None, (4, 5), None]),
        (gold("nop"), [None, None, (6, 6)]),
        (gold(" hi "), [None, (5, 5), (3, 3)]),
        (gold(WORDS), [None, None, None]),
    ],
    ids=str,
)
def test_an_answer_has_its_tokens_in_every_window_that_holds_the_whole_of_it(answer, expected):
    places = [Places.of(window) for window in windows_of(WORDS, 4, 2)]
    assert len(places) == 3
    assert [tokens_of(answer, each, WORDS, last=each is places[-1]) for each in places] == expected


def test_characters_that_have_no_token_do_not_hide_an_answer():
    context = "\u200bone two\u200b"
    places = Places(np.array([0, 1, 5]), np.array([0, 4, 8]), np.array([-1, 1, 1], np.int8), 0)
    assert tokens_of(GoldAnswer(context, 0), places, context, last=True) == (1, 2)
    assert tokens_of(GoldAnswer("\u200b", 8), places, context, last=True) is None
    assert tokens_of(GoldAnswer(context, 0), places, context, last=False) is None


def test_a_mark_behind_the_last_token_of_a_window_does_not_hide_an_answer():
    context = "a Cafe\u0301 b"
    places = Places(np.array([0, 0, 2]), np.array([0, 1, 6]), np.array([-1, 1, 1], np.int8), 0)
    assert tokens_of(GoldAnswer("Cafe\u0301", 2), places, context, last=False) == (2, 2)
    assert tokens_of(GoldAnswer("Cafe\u0301 b", 2), places, context, last=False) is None


@pytest.mark.parametrize("cls", ["first", "last"])
def test_the_loss_is_the_cross_entropy_over_context_and_no_answer_shared_by_the_windows(cls):
    answers = (gold("def g"), gold("g"))
    store = stored(WORDS, 4, 2, cls)
    made = SpanLoss([WORDS], [answers], store, 0 if cls == "first" else -1)
    assert made.weights_W.tolist() == pytest.approx([1 / 3] * 3)
    lengths = store.lengths.tolist()
    scores = torch.randn(sum(lengths), 2, dtype=torch.float64, requires_grad=True)
    before = 3 if cls == "first" else 2
    targets = [([(2, 3), (3, 3)], 4), ([(0, 1), (1, 1)], 4), (None, 4)]
    expected, at = 0.0, 0
    for (spans, room), length in zip(targets, lengths, strict=True):
        part = scores[at : at + length]
        nowhere = part[0] if cls == "first" else part[-1]
        logs = torch.cat([part[before : before + room], nowhere[None]]).log_softmax(0)
        for first, last in spans or [(room, room)]:
            expected = expected - (logs[first, 0] + logs[last, 1]) / 2 / len(spans or [1]) / 3
        at += length
    loss = made.loss(scores, [0, 1, 2])
    torch.testing.assert_close(loss, expected, rtol=1e-6, atol=1e-6)
    (found,) = torch.autograd.grad(loss, scores, retain_graph=True)
    (wanted,) = torch.autograd.grad(expected, scores)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-6)
    # Tokens of the question can be neither start nor end.
    question = 1 if cls == "first" else 0
    assert found[question].tolist() == [0, 0]
    order = [2, 0]
    parts = scores.split(lengths)
    alone = sum(made.loss(parts[window], [window]) for window in order)
    together = made.loss(torch.cat([parts[window] for window in order]), order)
    torch.testing.assert_close(together, alone, rtol=1e-6, atol=1e-6)


def test_an_answer_behind_the_cut_is_no_answer():
    uncut = SpanLoss([WORDS], [(gold("nop"),)], stored(WORDS, 4, 2), 0)
    cut = SpanLoss([WORDS], [(gold("nop"),)], stored(WORDS, 4, 2, dropped=4), 0)
    none = SpanLoss([WORDS], [()], stored(WORDS, 4, 2, dropped=4), 0)
    assert cut.digest == none.digest != uncut.digest
