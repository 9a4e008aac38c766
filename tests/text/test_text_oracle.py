"""Ids, token types and offsets are those of transformers, exactly."""

import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import tokenizers
from text_samples import ADVERSARIAL, random_texts, real_texts

from bothways.text import ByteLevelBPE, TextTokenizer, WordPiece, recipes

transformers = pytest.importorskip("transformers")

NO_LIMIT = 10**9


def assert_same(ours: TextTokenizer, theirs, texts: list) -> None:
    if isinstance(texts[0], tuple):
        expected = theirs(*map(list, zip(*texts, strict=True)), return_offsets_mapping=True, return_token_type_ids=True)
    else:
        expected = theirs(texts, return_offsets_mapping=True, return_token_type_ids=True)
    with_offsets = ours.encode(texts, max_length=NO_LIMIT, offsets=True)
    without = ours.encode(texts, max_length=NO_LIMIT)
    for index, (full, fast) in enumerate(zip(with_offsets, without, strict=True)):
        (window,), (quick,) = full.windows, fast.windows
        assert window.ids == expected["input_ids"][index], texts[index]
        assert window.types == expected["token_type_ids"][index], texts[index]
        assert window.offsets == [tuple(span) for span in expected["offset_mapping"][index]], texts[index]
        assert (quick.ids, quick.types) == (window.ids, window.types)
        assert full.tokens == len(window.ids) - theirs.num_special_tokens_to_add(pair=isinstance(texts[index], tuple))


def pairs_of(texts: list[str]) -> list[tuple[str, str]]:
    return list(zip(texts, reversed(texts), strict=True))


def unlimited(tokenizer):
    """transformers carries the file's truncation and padding; ours never does."""
    tokenizer.backend_tokenizer.no_truncation()
    tokenizer.backend_tokenizer.no_padding()
    return tokenizer


@pytest.fixture(scope="module")
def their_minilm(minilm_folder):
    return unlimited(transformers.AutoTokenizer.from_pretrained(minilm_folder))


@pytest.fixture(scope="module")
def vocab_only(minilm_folder, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("vocab")
    shutil.copy(minilm_folder / "vocab.txt", folder)
    return folder


def test_minilm_equals_transformers_on_adversarial_texts(minilm, their_minilm):
    assert_same(minilm, their_minilm, ADVERSARIAL + random_texts(2000))


def test_minilm_equals_transformers_on_pairs(minilm, their_minilm):
    assert_same(minilm, their_minilm, pairs_of(ADVERSARIAL + random_texts(500, seed=1)))


@pytest.mark.parametrize("name", ["sst2/test.jsonl.gz", "ag_news/test.jsonl.gz", "clinc150/test.jsonl.gz"])
def test_minilm_equals_transformers_on_real_texts(minilm, their_minilm, name):
    assert_same(minilm, their_minilm, real_texts(name, 1000))


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"do_lower_case": False},
        {"do_lower_case": False, "strip_accents": True},
        {"strip_accents": False},
        {"tokenize_chinese_chars": False},
    ],
    ids=str,
)
def test_a_vocab_txt_alone_equals_the_bert_tokenizer(vocab_only, tmp_path, options):
    shutil.copy(vocab_only / "vocab.txt", tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(options))
    ours = TextTokenizer.from_folder(tmp_path, WordPiece())
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert_same(ours, theirs, ADVERSARIAL + random_texts(300, seed=2))
    assert_same(ours, theirs, pairs_of(ADVERSARIAL))


def test_options_in_the_configuration_overrule_tokenizer_json(minilm_folder, tmp_path):
    for name in ("tokenizer.json", "vocab.txt"):
        shutil.copy(minilm_folder / name, tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False, "strip_accents": False}))
    theirs = unlimited(transformers.BertTokenizer.from_pretrained(tmp_path))
    assert_same(TextTokenizer.from_folder(tmp_path, WordPiece()), theirs, ["Älter HELLO", *ADVERSARIAL])


def test_renamed_special_tokens_are_followed(tmp_path):
    vocab = ["<p>", "<u>", "<c>", "<e>", "<m>", "hello", "there", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(vocab) + "\n")
    names = {"pad": "<p>", "unk": "<u>", "cls": "<c>", "sep": {"content": "<e>", "lstrip": True}, "mask": "<m>"}
    (tmp_path / "special_tokens_map.json").write_text(json.dumps({f"{k}_token": v for k, v in names.items()}))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "unk_token": "nonsense"}))
    ours = TextTokenizer.from_folder(tmp_path, WordPiece())
    assert (ours.pad_id, ours.unk_id, ours.cls_id, ours.sep_id, ours.mask_id) == (0, 1, 2, 3, 4)
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert_same(ours, theirs, ["hello <m>  <e> theres", "unknown <c>", ""])


def test_added_tokens_keep_their_ids_and_flags(vocab_only, tmp_path):
    shutil.copy(vocab_only / "vocab.txt", tmp_path)
    flags = {"rstrip": False, "single_word": False, "normalized": False}
    decoder = {
        "30523": {"content": "<tag>", "lstrip": True, "special": False, **flags},
        "30522": {"content": "<ent>", "lstrip": False, "special": True, **flags},
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": decoder}))
    ours = TextTokenizer.from_folder(tmp_path, WordPiece())
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert ours.token(30522) == "<ent>"
    assert 30522 in ours.special_ids
    assert 30523 not in ours.special_ids
    assert_same(ours, theirs, ["an <ent> and a   <tag> here", *ADVERSARIAL])


def test_legacy_added_tokens_json_is_read(vocab_only, tmp_path):
    shutil.copy(vocab_only / "vocab.txt", tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps({"Brandname": 30522}))
    theirs = transformers.BertTokenizer.from_pretrained(tmp_path)
    assert_same(TextTokenizer.from_folder(tmp_path, WordPiece()), theirs, ["a Brandname brandname", *ADVERSARIAL])


@pytest.mark.parametrize("options", [{}, {"add_prefix_space": True}, {"trim_offsets": False}], ids=str)
def test_vocab_json_and_merges_equal_the_roberta_tokenizer(roberta_folder, tmp_path, words, options):
    for name in ("vocab.json", "merges.txt"):
        shutil.copy(roberta_folder / name, tmp_path)
    # RoBERTa's published files give the mask its space; transformers' bare default does not.
    mask = {"__type": "AddedToken", "content": "<mask>", "lstrip": True, "normalized": False}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**options, "mask_token": mask}))
    ours = TextTokenizer.from_folder(tmp_path, ByteLevelBPE())
    theirs = transformers.RobertaTokenizer.from_pretrained(tmp_path)
    texts = ADVERSARIAL + random_texts(500, seed=3) + words
    assert_same(ours, theirs, texts)
    assert_same(ours, theirs, pairs_of(texts))


def test_debertas_merges_equal_transformers_on_single_texts(deberta_folder, words):
    ours = TextTokenizer.from_folder(deberta_folder, recipes.DEBERTA)
    theirs = transformers.DebertaTokenizer.from_pretrained(deberta_folder)
    assert_same(ours, theirs, ADVERSARIAL + random_texts(500, seed=6) + words)
    assert ours.special_ids == frozenset(theirs.all_special_ids)


def test_debertas_pairs_have_one_separator_as_in_the_converter_of_transformers(deberta_folder, tmp_path):
    """The class of transformers 5 puts two between the texts; the model was trained with one."""
    from transformers.convert_slow_tokenizer import DebertaConverter

    vocabulary = json.loads((deberta_folder / "vocab.json").read_text())
    merges = [tuple(line.split(" ")) for line in (deberta_folder / "merges.txt").read_text().splitlines()[1:]]
    slow = SimpleNamespace(
        encoder=vocabulary,
        bpe_ranks=dict.fromkeys(merges),
        add_prefix_space=False,
        convert_tokens_to_ids=vocabulary.__getitem__,
    )
    theirs = DebertaConverter(slow).converted()
    ours = TextTokenizer.from_folder(deberta_folder, recipes.DEBERTA)
    pairs = [pair for pair in pairs_of(ADVERSARIAL) if "[" not in pair[0] + pair[1]]
    for encoded, expected in zip(
        ours.encode(pairs, max_length=NO_LIMIT, offsets=True), theirs.encode_batch(pairs), strict=True
    ):
        window = encoded.windows[0]
        assert (window.ids, window.types, window.offsets) == (expected.ids, expected.type_ids, expected.offsets)
    (tmp_path / "source").mkdir()
    for name in ("vocab.json", "merges.txt"):
        (tmp_path / "source" / name).write_bytes((deberta_folder / name).read_bytes())
    ours = TextTokenizer.from_folder(tmp_path / "source", recipes.DEBERTA)
    assert_same(ours, save_and_open(ours, tmp_path / "saved", "deberta"), pairs)


def test_the_mask_takes_in_its_space_without_any_configuration(roberta):
    (window,) = roberta.encode(["tu <mask>"], max_length=20)[0].windows
    assert window.ids == [roberta.cls_id, *roberta.encode(["tu"], max_length=20)[0].windows[0].ids[1:-1],
                          roberta.mask_id, roberta.sep_id]  # fmt: skip


def test_tokenizer_json_of_a_unigram_equals_the_library(unigram, unigram_folder, words):
    theirs = unlimited(transformers.PreTrainedTokenizerFast(tokenizer_file=str(unigram_folder / "tokenizer.json")))
    texts = ADVERSARIAL + random_texts(300, seed=4) + words
    assert_same(unigram, theirs, texts)
    assert_same(unigram, theirs, pairs_of(texts))


def test_a_tokenizer_without_a_template_still_types_its_pairs(tmp_path):
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "a": 1, "b": 2}, unk_token="<unk>"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.save(str(tmp_path / "tokenizer.json"))
    ours = TextTokenizer.from_folder(tmp_path, recipes.XLM_ROBERTA)
    expected = library.encode("a b", "b a")
    (window,) = ours.encode([("a b", "b a")], max_length=9)[0].windows
    assert (window.ids, window.types) == (expected.ids, expected.type_ids)
    assert window.types == [0, 0, 1, 1]


def save_and_open(ours: TextTokenizer, folder: Path, model_type: str):
    ours.save(folder)
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    return unlimited(transformers.AutoTokenizer.from_pretrained(folder))


def test_a_saved_minilm_opens_in_transformers_and_keeps_its_files(minilm, minilm_folder, tmp_path):
    assert_same(minilm, save_and_open(minilm, tmp_path, "bert"), ADVERSARIAL)
    for name in ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt"):
        assert (tmp_path / name).read_bytes() == (minilm_folder / name).read_bytes()


def test_a_tokenizer_built_from_vocab_txt_opens_in_transformers(vocab_only, tmp_path):
    recipe = WordPiece(lowercase=False)
    ours = TextTokenizer.from_folder(vocab_only, recipe)
    theirs = save_and_open(ours, tmp_path, "bert")
    assert type(theirs).__name__.startswith("Bert")
    assert_same(ours, theirs, ADVERSARIAL)
    assert_same(TextTokenizer.from_folder(tmp_path, WordPiece()), theirs, ADVERSARIAL)


def test_a_tokenizer_built_from_merges_opens_in_transformers(roberta, words, tmp_path):
    theirs = save_and_open(roberta, tmp_path, "roberta")
    assert type(theirs).__name__.startswith("Roberta")
    assert_same(roberta, theirs, ADVERSARIAL + words)
    assert_same(TextTokenizer.from_folder(tmp_path, ByteLevelBPE()), theirs, ADVERSARIAL + words)


def test_a_tokenizer_json_without_settings_opens_in_transformers(minilm_folder, unigram, words, tmp_path):
    assert_same(unigram, save_and_open(unigram, tmp_path / "unigram", "xlm-roberta"), ADVERSARIAL + words)
    # Cased in the file, with no settings beside it: a class that assumes lower case must not be named.
    cased = json.loads((minilm_folder / "tokenizer.json").read_text())
    cased["normalizer"]["lowercase"] = False
    (tmp_path / "cased").mkdir()
    (tmp_path / "cased" / "tokenizer.json").write_text(json.dumps(cased))
    ours = TextTokenizer.from_folder(tmp_path / "cased", WordPiece())
    assert_same(ours, save_and_open(ours, tmp_path / "saved", "bert"), ["HELLO There", *ADVERSARIAL])


def test_special_ids_are_those_of_transformers(minilm, their_minilm):
    assert minilm.special_ids == frozenset(their_minilm.all_special_ids)
    assert len(minilm.vocabulary()) == len(their_minilm)


def test_decode_gives_back_what_the_library_gives(minilm, minilm_folder):
    library = tokenizers.Tokenizer.from_file(str(minilm_folder / "tokenizer.json"))
    (window,) = minilm.encode(["Hello, tokenizers!"], max_length=20)[0].windows
    assert minilm.decode(window.ids) == library.decode(window.ids) == "hello, tokenizers!"
    assert minilm.decode(window.ids, skip_special=False).startswith("[CLS]")
    assert minilm.tokens(window.ids)[:3] == ["[CLS]", "hello", ","]
