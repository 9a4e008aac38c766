"""Words that fill masks are spelt as the tokenizer spells them in the same text, whatever marks its pieces carry."""

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from bothways.errors import InvalidInput
from bothways.inference.queries import refused_tokens
from bothways.objectives.masking import Masker, Masking, NGramMasking, SpanMasking, WholeWordMasking
from bothways.tasks import FillMask
from bothways.tasks.masked_lm.masked_text import MaskReader
from bothways.text import TextTokenizer, recipes
from tiny_models import VOCABULARY, write_checkpoint

TEXTS = ["the cat sat on the unhappy mat, the happy cats sat still", "a cat (the cat) is happy and sat on mats"] * 20
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def byte_level(folder):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.model.save(str(folder))
    return TextTokenizer.from_folder(folder, recipes.ROBERTA)


def unigram(folder):
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()])
    tokenizer.decoder = decoders.Metaspace()
    special = [*SPECIAL[:4], AddedToken("<mask>", lstrip=True)]
    trainer = trainers.UnigramTrainer(vocab_size=40, special_tokens=special, unk_token="<unk>", show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextTokenizer.from_folder(folder, recipes.XLM_ROBERTA)


@pytest.fixture(scope="module", params=[byte_level, unigram], ids=["byte-level", "unigram"])
def tokenizer(request, tmp_path_factory):
    return request.param(tmp_path_factory.mktemp(request.param.__name__))


def test_pieces_that_begin_words_carry_the_mark(tokenizer):
    marks = tokenizer.word_marks
    assert marks.beginning is not None
    (encoded,) = tokenizer.encode(["a cat sat unhappy"], max_length=50)
    inner = tokenizer.tokens(encoded.windows[0].ids[2:-1])
    assert sum(not marks.continues(token) for token in inner) == 3


@pytest.mark.parametrize("mask", ["[MASK]", "<mask>"])
@pytest.mark.parametrize("word", ["cat", "unhappy", "mats,"])
@pytest.mark.parametrize("text", ["the {} sat", "{} sat on", "on the mat, the cat is (the {}", "sat the \n {}"])
def test_a_word_in_the_place_of_a_mask_gives_the_ids_of_the_text_with_the_word(tokenizer, text, word, mask):
    reader = MaskReader(tokenizer, 80, "window")
    read = reader.read(text.format(mask))
    (slot,) = read.slots
    filled = (*read.ids[: slot.place], *reader.spelt(word, slot), *read.ids[slot.place + 1 :])
    # A mask takes in all of the white space before it.
    (whole,) = tokenizer.encode([text.format(word).replace(" \n ", " ")], max_length=80)
    assert list(filled) == whole.windows[0].ids


def test_a_word_that_shares_a_piece_with_the_letters_before_it_is_refused(tmp_path):
    reader = MaskReader(byte_level(tmp_path), 80, "window")
    (slot,) = reader.read("the un[MASK] cat").slots
    with pytest.raises(InvalidInput, match="merges with 'the un'"):
        reader.spelt("happy", slot)


def test_a_filling_replaces_the_mask_in_the_text_as_it_was_written(tokenizer):
    reader = MaskReader(tokenizer, 80, "window")
    read = reader.read("The <mask>  of [MASK]!")
    assert read.filled(["cat", "x"], [False, False]) == "The cat  of x!"
    assert read.filled(["s", "x"], [True, False]) == "Thes  of x!"


def test_only_letters_and_digits_go_on_with_a_word_and_what_begins_one_spells_something(tokenizer):
    numbers = {token: number for number, token in tokenizer.vocabulary().items()}
    begins_V, continues_V = (~refused_tokens(tokenizer, len(numbers), among) for among in ("begins", "continues"))
    mark = tokenizer.word_marks.beginning
    assert not begins_V[numbers[mark]]
    assert begins_V[[number for token, number in numbers.items() if token.startswith(mark) and token != mark]].all()
    assert continues_V[numbers["s"]]
    for token in {",", "(", ")", ".", "-", "'", "\u010a", mark} & set(numbers):
        assert not continues_V[numbers[token]]
    assert not (begins_V & continues_V).any()
    assert not any(begins_V[number] or continues_V[number] for number in tokenizer.special_ids)
    if mark == "Ġ":  # bytes, of which letters of other scripts are made
        assert continues_V[numbers["Ã"]]
        assert continues_V[numbers["©"]]


PIECES = ("Ġ", "Ġun", "happy", "Ġunhappy", "Ġthe", "Ġcat", "s", "u", "n", ",", "\u010a", "Ġ(", "Ġu")


def test_words_of_several_pieces_end_before_punctuation_and_are_given_once(tmp_path):
    write_checkpoint(tmp_path, "roberta", architecture="RobertaForMaskedLM")
    names = [*SPECIAL, *PIECES]
    names += [f"v{number}" for number in range(len(names), VOCABULARY)]
    made = Tokenizer(models.BPE({name: number for number, name in enumerate(names)}, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens([*SPECIAL[:4], AddedToken("<mask>", lstrip=True)])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)])
    made.save(str(tmp_path / "tokenizer.json"))
    weights = load_file(tmp_path / "model.safetensors")
    for name in weights:
        if name.endswith(("lm_head.bias", "decoder.bias")):
            weights[name][[names.index(token) for token in (",", "\u010a", "Ġ")]] += 30
            weights[name][[names.index(token) for token in PIECES[:9]]] += 20
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    found = FillMask.from_pretrained(tmp_path, device="cpu").predict("Ġthe <mask> s", max_pieces=3, top=40)
    words = [each.word for each in found.masks[0]]
    assert len(words) == len(set(words)) == len(found.fillings)
    assert {"unhappy", "un", "cats", "uns"} <= set(words)
    assert all(word.isalnum() or word == "(" or word.startswith("(") for word in words)
    assert [each.log_probability for each in found.masks[0]] == sorted(
        (each.log_probability for each in found.masks[0]), reverse=True
    )


def wordpiece(folder):
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    trainer = trainers.WordPieceTrainer(vocab_size=40, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    tokenizer.save(str(folder / "tokenizer.json"))
    return TextTokenizer.from_folder(folder, recipes.BERT)


@pytest.mark.parametrize("unit", [WholeWordMasking(), SpanMasking(), NGramMasking()], ids=lambda unit: unit.name)
@pytest.mark.parametrize("make", [wordpiece, byte_level, unigram])
def test_masking_chooses_whole_words_of_a_trained_tokenizer(make, unit, tmp_path):
    tokenizer = make(tmp_path)
    text = " ".join(["the unhatched mats sat on happy cats"] * 4)
    (window,) = tokenizer.encode([text], max_length=200, offsets=True)[0].windows
    ids_n = np.array(window.ids, dtype=np.int32)
    # Words are what stands between spaces; 0 for special tokens.
    word_n = np.array([len(f"{text[:end]}.".split()) if end else 0 for _, end in window.offsets])
    masker = Masker(tokenizer, Masking(fraction=0.3, unit=unit), seed=1)
    assert len(ids_n) - 2 > len(text.split())
    for number in range(30):
        places = masker.training(ids_n, 0, number).places_M
        assert len(places)
        assert places.tolist() == np.flatnonzero(np.isin(word_n, word_n[places])).tolist()
