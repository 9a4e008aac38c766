"""Trained tokenizers: reproducible, whole on every text, the same to transformers; and their comparison."""

import math
import subprocess
import sys

import pytest
from text_samples import ADVERSARIAL, news_texts, random_texts
from tokenizers import Tokenizer, models, pre_tokenizers

from bothways.errors import InvalidInput
from bothways.text import CutWord, TextTokenizer, WordPiece, compare_tokenizers, recipes, text_pieces
from bothways.text.training import LEAST_VOCABULARY, train_tokenizer, write_trained_tokenizer

KINDS = ("wordpiece", "bpe", "unigram")
SAMPLES = ["Tu ba ko, minéren so!", "", "a\tb\n世界 quaqua [MASK] x", "👩‍🚀 ﬁ Ⅷ"]


@pytest.fixture(scope="module", params=KINDS)
def trained(request, words, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    write_trained_tokenizer(train_tokenizer(words, request.param, 400), folder)
    return request.param, folder, TextTokenizer.from_folder(folder, recipes.TRAINED)


def test_its_size_and_special_tokens_are_as_asked_for(trained):
    _, _, tokenizer = trained
    assert len(tokenizer.vocabulary()) <= 400
    special = (tokenizer.pad_id, tokenizer.unk_id, tokenizer.cls_id, tokenizer.sep_id, tokenizer.mask_id)
    assert special == (0, 1, 2, 3, 4)
    assert tokenizer.special_ids == set(range(5))
    assert sorted(tokenizer.vocabulary()) == list(range(len(tokenizer.vocabulary())))


def test_words_of_the_corpus_are_never_unknown(trained, words):
    _, _, tokenizer = trained
    for encoded in tokenizer.encode(words[:50], max_length=10_000):
        ids = encoded.windows[0].ids
        assert ids[0] == tokenizer.cls_id
        assert ids[-1] == tokenizer.sep_id
        assert tokenizer.unk_id not in ids


def test_the_mask_takes_in_the_space_before_it_where_that_belongs_to_words(trained):
    kind, _, tokenizer = trained
    (encoded,) = tokenizer.encode(["ba [MASK] ko"], max_length=50)
    before = encoded.windows[0].ids[: encoded.windows[0].ids.index(4)]
    assert before == tokenizer.encode(["ba"], max_length=50)[0].windows[0].ids[:-1], kind


def test_transformers_opens_it_with_the_same_ids(trained, words):
    transformers = pytest.importorskip("transformers")
    _, folder, tokenizer = trained
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    for text in [*SAMPLES, *words[:20]]:
        (ours,) = tokenizer.encode([text], max_length=10_000)
        assert theirs(text)["input_ids"] == ours.windows[0].ids
    (pair,) = tokenizer.encode([("ba ko", "mi")], max_length=50)
    assert theirs("ba ko", "mi")["input_ids"] == pair.windows[0].ids
    assert theirs("ba ko", "mi")["token_type_ids"] == pair.windows[0].types
    roles = (theirs.pad_token_id, theirs.unk_token_id, theirs.cls_token_id, theirs.sep_token_id, theirs.mask_token_id)
    assert roles == (0, 1, 2, 3, 4)


TRAINING = """
import random
from bothways.text.training import train_tokenizer
rng = random.Random(1)
texts = [" ".join("".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=5)) for _ in range(30)) for _ in range(50)]
made = "".join(train_tokenizer(texts, kind, 600).to_str() for kind in ("wordpiece", "bpe"))
"""


def test_another_process_trains_the_same():
    here = {}
    exec(TRAINING, here)
    code = TRAINING + "print(made, end='')"
    there = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert there == here["made"]
    assert len(there) > 2000


@pytest.mark.parametrize("kind", KINDS)
def test_capitals_are_kept_or_not_as_asked_for(kind, words):
    texts = [*words, "Ärger Ärger ärger ÄRGER Arger"] * 2
    lowered = train_tokenizer(texts, kind, 500, lowercase=True)
    kept = train_tokenizer(texts, kind, 500, lowercase=False)
    assert lowered.encode("Ärger").ids == lowered.encode("arger").ids
    assert kept.encode("Ärger").ids != kept.encode("arger").ids


def test_letters_that_do_not_fit_are_the_rare_ones():
    texts = ["abc abc abd " * 20 + chr(number) for number in range(0x4E00, 0x4E40)]
    tokenizer = train_tokenizer(texts, "wordpiece", 64)
    assert tokenizer.get_vocab_size() <= 64
    assert tokenizer.encode("abc").ids
    assert "[UNK]" not in tokenizer.encode("cab abd").tokens


@pytest.mark.parametrize("kind", KINDS)
def test_what_cannot_be_learnt_from_is_refused(kind):
    with pytest.raises(InvalidInput, match=rf"at least {LEAST_VOCABULARY[kind]} tokens, got 3"):
        train_tokenizer(["text"], kind, 3)
    with pytest.raises(InvalidInput, match="all of them are empty"):
        train_tokenizer(["", " \n"], kind, 1000)


def test_texts_that_can_be_read_once_are_refused_for_wordpiece():
    with pytest.raises(InvalidInput, match="reads the texts twice, got an iterator"):
        train_tokenizer(iter(["text"]), "wordpiece", 1000)


@pytest.fixture
def tiny(tmp_path) -> TextTokenizer:
    """Knows "play", "##ing", "##ed", "a" and the full stop."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "play", "##ing", "##ed", "a", "."]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    return TextTokenizer.from_folder(tmp_path, WordPiece())


def one(tokenizer, texts, **options):
    (summary,) = compare_tokenizers({"it": tokenizer}, texts, **options)
    return summary


def test_pieces_words_and_unknowns_are_counted(tiny):
    summary = one(tiny, ["Playing a game.", "  played\n", ""])
    assert summary.name == "it"
    assert (summary.texts, summary.words, summary.characters) == (3, 4, len("Playingagame.played"))
    assert (summary.pieces, summary.unknown_pieces, summary.unknown_words) == (7, 1, 1)
    assert (summary.vocabulary, summary.used) == (10, 6)
    assert summary.pieces_per_word == 7 / 4
    assert summary.characters_per_piece == 19 / 7
    assert summary.unknown_rate == 1 / 7
    assert summary.unknown_word_rate == 1 / 4
    assert summary.used_share == 6 / 10


def test_words_of_most_pieces_come_first_and_whole_ones_not_at_all(tiny):
    summary = one(tiny, ["a played. playing played", "playing..."])
    assert summary.most_cut == (
        CutWord("playing...", ("play", "##ing", ".", ".", ".")),
        CutWord("played.", ("play", "##ed", ".")),
        CutWord("played", ("play", "##ed")),
        CutWord("playing", ("play", "##ing")),
    )
    assert one(tiny, ["a played. playing"], most_cut=1).most_cut == (CutWord("played.", ("play", "##ed", ".")),)
    assert one(tiny, ["a played. playing"], most_cut=0).most_cut == ()


@pytest.mark.parametrize("fixture", ["minilm", "roberta", "unigram"])
def test_every_piece_belongs_to_a_word_or_to_the_end(request, fixture, words):
    """Counted over all texts, and added up over texts read one by one."""
    tokenizer = request.getfixturevalue(fixture)
    texts = [text for text in news_texts()[:20] + words[:20] + random_texts(40) if text.strip()]
    whole = one(tokenizer, texts)
    parts = [one(tokenizer, [text]) for text in texts]
    for name in ("words", "characters", "pieces", "unknown_pieces", "unknown_words"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts)
    assert whole.words == sum(len(text.split()) for text in texts)
    assert whole.characters == sum(len("".join(text.split())) for text in texts)
    assert whole.pieces == sum(tokenizer.encode([text], max_length=10**9)[0].tokens for text in texts)
    assert whole.pieces == sum(len(text_pieces(tokenizer, text)) for text in texts)


@pytest.mark.parametrize("fixture", ["minilm", "roberta", "unigram"])
def test_the_pieces_of_a_word_are_those_that_spell_it(request, fixture):
    tokenizer = request.getfixturevalue(fixture)
    text = "unimaginable, hippopotamuses ran"
    for cut in one(tokenizer, [text]).most_cut:
        spelt = "".join(cut.pieces).replace("##", "").replace("Ġ", "").replace("▁", "")
        assert spelt == cut.word or "<unk>" in cut.pieces


def test_blocks_do_not_change_the_numbers(minilm, monkeypatch):
    texts = ADVERSARIAL + random_texts(40, seed=3)
    expected = one(minilm, texts)
    monkeypatch.setattr("bothways.text.comparison._BLOCK", 7)
    assert one(minilm, iter(texts)) == expected


def test_summaries_come_in_the_order_of_the_tokenizers(minilm, roberta):
    summaries = compare_tokenizers({"b": roberta, "a": minilm}, news_texts()[:20])
    assert [summary.name for summary in summaries] == ["b", "a"]
    assert summaries[0].words == summaries[1].words
    assert summaries[0].pieces != summaries[1].pieces


def test_a_tokenizer_without_an_unknown_token_has_none(tmp_path):
    library = Tokenizer(models.BPE(vocab={"a": 0, "b": 1}, merges=[]))
    library.pre_tokenizer = pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    summary = one(TextTokenizer.from_folder(tmp_path, recipes.XLM_ROBERTA), ["ab ba"])
    assert (summary.unknown_pieces, summary.unknown_words, summary.pieces) == (0, 0, 4)


def test_texts_without_words_give_zeros_and_no_division(tiny):
    summary = one(tiny, ["", " \n"])
    rates = ("pieces_per_word", "characters_per_piece", "unknown_rate", "unknown_word_rate", "used_share")
    assert [getattr(summary, rate) for rate in rates] == [0.0] * 5
    assert not any(math.isnan(getattr(summary, rate)) for rate in rates)


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        ([], {}, "expected texts"),
        ("one text", {}, "put it into a list"),
        (["fine", 3], {}, "text 2 .*int"),
        (["\ud800"], {}, "surrogate"),
        (["a"], {"most_cut": -1}, "most_cut.*-1"),
    ],
    ids=str,
)
def test_what_cannot_be_compared_is_said(tiny, texts, options, message):
    with pytest.raises(InvalidInput, match=message):
        compare_tokenizers({"it": tiny}, texts, **options)


def test_no_tokenizers_is_an_error():
    with pytest.raises(InvalidInput, match="at least one tokenizer"):
        compare_tokenizers({}, ["a"])


def test_the_number_of_a_bad_text_counts_from_the_first_block(tiny):
    texts = ["a"] * 600 + [("a", 1)]
    with pytest.raises(InvalidInput, match="text 601 "):
        compare_tokenizers({"it": tiny}, texts)
