"""Trained tokenizers: reproducible, whole on every text, and the same to transformers."""

import subprocess
import sys

import pytest

from bothways.errors import InvalidInput
from bothways.text import TextTokenizer, recipes
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


@pytest.mark.parametrize("kind", ["wordpiece", "bpe"])
def test_another_process_trains_the_same(kind, tmp_path):
    code = (
        "import random, sys\n"
        "from bothways.text.training import train_tokenizer\n"
        "rng = random.Random(1)\n"
        "letters = 'abcdefghijklmnopqrstuvwxyz'\n"
        "texts = [' '.join(''.join(rng.choices(letters, k=5)) for _ in range(30)) for _ in range(50)]\n"
        f"sys.stdout.write(train_tokenizer(texts, {kind!r}, 600).to_str())"
    )
    first, second = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    )
    assert first == second
    assert len(first) > 1000


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
    with pytest.raises(InvalidInput, match="there is no word"):
        train_tokenizer(["", " \n"], kind, 1000)


def test_texts_that_can_be_read_once_are_refused_for_wordpiece():
    with pytest.raises(InvalidInput, match="reads the texts twice, got an iterator"):
        train_tokenizer(iter(["text"]), "wordpiece", 1000)
