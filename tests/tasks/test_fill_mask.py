"""Masks are filled with what the model says, searched for and scored as the documentation has it."""

import itertools
from concurrent.futures import ThreadPoolExecutor

import pytest
from mask_cases import Oracle, masked_lm

from bothways.errors import TextTooLong
from bothways.tasks.masked_lm.masked_text import MaskReader

EXACT = 1e-5


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A tiny model of whole words, and its oracle."""
    folder = tmp_path_factory.mktemp("plain") / "model"
    return masked_lm(folder), Oracle(folder)


@pytest.fixture(scope="module")
def pieces(tmp_path_factory):
    """A tiny model whose words may have several pieces, and its oracle."""
    folder = tmp_path_factory.mktemp("pieces") / "model"
    return masked_lm(folder, pieces=True), Oracle(folder)


def ordinary(oracle):
    return [number for number in range(61) if number not in oracle.special]


def test_words_for_one_mask_have_their_softmax_and_no_special_token_is_among_them(plain):
    model, oracle = plain
    ids = oracle.ids("w5 w6 [MASK] w7")
    logs = oracle.logs(ids, ids.index(oracle.mask))
    expected = sorted(((float(logs[number]), number) for number in ordinary(oracle)), reverse=True)[:7]
    answer = model.predict("w5 w6 [MASK] w7", top=7)
    assert [word.pieces[0] for word in answer.masks[0]] == [f"w{number}" for _, number in expected]
    assert [word.log_probability for word in answer.masks[0]] == pytest.approx([log for log, _ in expected], abs=EXACT)
    assert answer.fillings[0].text == f"w5 w6 w{expected[0][1]} w7"
    assert answer.fillings[0].probability == pytest.approx(float(logs[expected[0][1]].exp()), abs=EXACT)


def test_every_ordinary_token_is_given_when_all_are_asked_for(plain):
    model, oracle = plain
    words = [filling.words[0] for filling in model.predict("w5 [MASK]", top=1000).fillings]
    assert sorted(words) == sorted(f"w{number}" for number in ordinary(oracle))


def test_two_masks_are_filled_together_with_the_best_of_all_pairs(plain):
    model, oracle = plain
    ids = oracle.ids("w5 [MASK] w9 w9 [MASK] w6")
    first, second = (place for place, number in enumerate(ids) if number == oracle.mask)
    logs = {}
    for here, there in ((first, second), (second, first)):
        alone = oracle.logs(ids, here)
        for one in ordinary(oracle):
            filled = [one if place == here else number for place, number in enumerate(ids)]
            behind = oracle.logs(filled, there)
            for other in ordinary(oracle):
                pair = (one, other) if here == first else (other, one)
                logs[pair] = logs.get(pair, 0.0) + float(alone[one] + behind[other]) / 2
    best = sorted(logs, key=logs.get, reverse=True)[:5]
    answer = model.predict("w5 [MASK] w9 w9 [MASK] w6", top=5, beam=60)
    assert [filling.words for filling in answer.fillings] == [tuple(f"w{number}" for number in pair) for pair in best]
    assert [filling.log_probability for filling in answer.fillings] == pytest.approx(
        [logs[pair] for pair in best], abs=EXACT
    )
    assert answer.fillings[0].text == f"w5 w{best[0][0]} w9 w9 w{best[0][1]} w6"


def test_masks_together_are_not_the_best_words_of_each_alone(plain):
    model, _ = plain
    answer = model.predict("w5 [MASK] w9 w9 [MASK] w6", top=1)
    alone = tuple(words[0].word for words in answer.masks)
    texts = [f"w5 [MASK] w{number} w9 [MASK] w6" for number in range(10, 30)]
    answers = [answer, *model.predict(texts, top=1)]
    assert any(one.fillings[0].words != tuple(words[0].word for words in one.masks) for one in answers), alone


def test_three_masks_are_scored_in_three_orders(plain):
    model, oracle = plain
    words = ("w11", "w12", "w13")
    answer = model.predict("[MASK] w9 [MASK] w7 [MASK]", words=words, top=27)
    ids = oracle.ids("[MASK] w9 [MASK] w7 [MASK]")
    places = [place for place, number in enumerate(ids) if number == oracle.mask]
    surest = sorted(range(3), key=lambda slot: -max(float(oracle.logs(ids, places[slot])[int(w[1:])]) for w in words))
    orders = {(0, 1, 2), (2, 1, 0), tuple(surest)}
    expected = {}
    for fill in itertools.product((11, 12, 13), repeat=3):
        spelt = [[(place, number)] for place, number in zip(places, fill, strict=True)]
        chains = [oracle.chain(ids, spelt, order) for order in orders]
        expected[tuple(f"w{number}" for number in fill)] = sum(chains) / len(orders)
    found = {filling.words: filling.log_probability for filling in answer.fillings}
    assert found == pytest.approx(expected, abs=EXACT)
    assert list(found) == sorted(found, key=found.get, reverse=True)


def test_a_word_of_two_pieces_takes_two_masks_and_is_filled_from_left_to_right(pieces):
    model, oracle = pieces
    tokens = oracle.model.tokenizer.vocabulary()
    ids = oracle.ids("the [MASK] sat")
    place = ids.index(oracle.mask)
    begins = [number for number in ordinary(oracle) if not tokens[number].startswith("##")]
    continues = [number for number in ordinary(oracle) if tokens[number].startswith("##")]
    logs = oracle.logs(ids, place)
    expected = {(number,): float(logs[number]) for number in begins}
    two = [*ids[:place], oracle.mask, *ids[place:]]
    first = oracle.logs(two, place)
    for begin in begins:
        second = oracle.logs([*two[:place], begin, *two[place + 1 :]], place + 1)
        expected |= {(begin, number): float(first[begin] + second[number]) for number in continues}
    best = sorted(expected, key=expected.get, reverse=True)[:40]
    answer = model.predict("the [MASK] sat", top=40, max_pieces=2, beam=100)
    assert [word.pieces for word in answer.masks[0]] == [tuple(tokens[number] for number in one) for one in best]
    assert [word.log_probability for word in answer.masks[0]] == pytest.approx(
        [expected[one] for one in best], abs=EXACT
    )
    assert any(len(one) == 2 for one in best)
    for word in answer.masks[0]:
        assert word.word == word.pieces[0] + "".join(piece.removeprefix("##") for piece in word.pieces[1:])


def test_given_words_of_several_pieces_are_scored_by_all_of_them(pieces):
    model, oracle = pieces
    answer = model.predict("the [MASK] sat", words=["unhappy", "cat", "Cats"], top=9)
    ids = oracle.ids("the [MASK] sat")
    place = ids.index(oracle.mask)
    number_of = {token: number for number, token in oracle.model.tokenizer.vocabulary().items()}
    spelt = {"unhappy": ("un", "##happy"), "cat": ("cat",), "Cats": ("cats",)}
    expected = {}
    for word, parts in spelt.items():
        masked = [*ids[:place], *[oracle.mask] * len(parts), *ids[place + 1 :]]
        fill = [[(place + index, number_of[part]) for index, part in enumerate(parts)]]
        expected[word] = oracle.chain(masked, fill, (0,))
    found = {filling.words[0]: filling.log_probability for filling in answer.fillings}
    assert found == pytest.approx(expected, abs=EXACT)
    assert "the unhappy sat" in [filling.text for filling in answer.fillings]


def test_a_piece_that_goes_on_with_a_word_is_joined_to_it(pieces):
    model, _ = pieces
    texts = {filling.words[0]: filling.text for filling in model.predict("the cat [MASK] sat", top=100).fillings}
    assert texts["s"] == "the cats sat"
    assert texts["un"] == "the cat un sat"


def test_eight_threads_at_once_get_what_one_gets(pieces):
    _, oracle = pieces
    texts = ["the [MASK] sat", "a [MASK] [MASK] sat", "un[MASK] the [MASK]"]
    expected = masked_lm(oracle.model.folder).predict(texts, max_pieces=2)
    shared = masked_lm(oracle.model.folder)  # whose vocabulary nobody has looked at yet
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: shared.predict(texts, max_pieces=2), range(16)))
    assert found == [expected] * 16


# --- long texts ---

WORDS = [f"w{5 + place % 50}" for place in range(60)]


@pytest.mark.parametrize(("place", "kept"), [(0, (0, 16)), (30, (22, 38)), (59, (44, 60))])
def test_of_a_long_text_the_window_around_the_mask_is_read(plain, place, kept):
    model, _ = plain
    words = [*WORDS[:place], "[MASK]", *WORDS[place + 1 :]]
    answer = model.predict(" ".join(words))
    expected = model.predict(" ".join(words[slice(*kept)]))
    assert [filling.words for filling in answer.fillings] == [filling.words for filling in expected.fillings]
    assert [filling.probability for filling in answer.fillings] == pytest.approx(
        [filling.probability for filling in expected.fillings], abs=EXACT
    )
    assert answer.dropped_tokens == 60 - 16
    assert answer.fillings[0].text.split()[:place] == WORDS[:place]


def test_room_is_left_for_the_pieces_of_longer_words(pieces):
    model, _ = pieces
    text = "the cat " * 20 + "[MASK]" + " sat a" * 20
    for options in ({"max_pieces": 3}, {"words": ["unhappy", "cat"]}):
        answer = model.predict(text, **options)
        room = 16 - (2 if "max_pieces" in options else 1)
        assert answer.dropped_tokens == 81 - room
        assert answer.fillings


def test_cutting_keeps_the_beginning(plain):
    _, oracle = plain
    cutting = masked_lm(oracle.model.folder, on_overflow="truncate")
    answer = cutting.predict("w5 [MASK] " + " ".join(WORDS))
    expected = cutting.predict("w5 [MASK] " + " ".join(WORDS[:14]))
    assert [filling.words for filling in answer.fillings] == [filling.words for filling in expected.fillings]
    assert answer.dropped_tokens == 62 - 16


def test_cutting_on_the_left_keeps_the_end(plain):
    _, oracle = plain
    cutting = masked_lm(oracle.model.folder, on_overflow="truncate_left")
    answer = cutting.predict(" ".join(WORDS) + " [MASK] w5")
    expected = cutting.predict(" ".join(WORDS[-14:]) + " [MASK] w5")
    assert [filling.words for filling in answer.fillings] == [filling.words for filling in expected.fillings]
    assert answer.dropped_tokens == 62 - 16
    with pytest.raises(TextTooLong, match="mask 1 of text 1 comes before the last 16 tokens"):
        cutting.predict("[MASK] " + " ".join(WORDS))


# --- how words are spelt where a mask stands ---


def reader(tokenizer):
    return MaskReader(tokenizer, 50, "window")


@pytest.mark.parametrize(
    ("text", "word", "expected"),
    [
        ("the [MASK] sat", "unhappy", ("un", "##happy")),
        ("[MASK] sat", "Cats", ("cats",)),
        ("[MASK] [MASK]", "cat", ("cat",)),
        ("([MASK]", "cat", ("cat",)),
        ("h[MASK]", "a", ("##a",)),
    ],
)
def test_words_are_spelt_as_they_stand_in_the_text(pieces, text, word, expected):
    _, oracle = pieces
    tokenizer = oracle.model.tokenizer
    read = reader(tokenizer).read(text)
    assert tuple(tokenizer.tokens(reader(tokenizer).spelt(word, read.slots[-1]))) == expected
