"""Sentence embeddings: the same vectors as sentence-transformers, windows, saving, and settings that come back."""

import json

import numpy as np
import pytest
import torch

from bothways.data import read_rows
from bothways.errors import (
    CorruptCheckpoint,
    InvalidInput,
    TextsTruncated,
    TextTooLong,
    UnsupportedConfig,
)
from bothways.packing import pack, to_padded
from bothways.tasks import SentenceEmbedder
from bothways.tasks.embedding.vector_model import pool
from everyday import some_of
from tiny_models import edit_config, random_ids, write_checkpoint

TEXTS = [
    "The cat sat on the mat.",
    "a",
    "!?",
    "Naïve café, coöperate — 'quoted' “text”…",
    "東京は日本の首都です。",
    "Москва — столица России",
    "🙂🙃 emoji and \u200b zero width \u0301 marks",
    "[CLS] is spelled out, and so is [MASK]",
    "tabs\tand\nlines\r\nand   spaces",
    "word " * 60,
]
POOLINGS = {
    "mean": "mean",
    "cls": "cls",
    "max": "max",
    "weighted_mean": "weightedmean",
    "mean_sqrt_length": "mean_sqrt_len_tokens",
    "last": "lasttoken",
}


def sentence_transformer(folder, **options):
    library = pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
    return library.SentenceTransformer(str(folder), device="cpu", **options)


@pytest.fixture(scope="module")
def minilm(minilm_folder):
    return SentenceEmbedder.from_pretrained(minilm_folder, device="cpu")


@pytest.fixture(scope="module")
def oracle(minilm_folder):
    return sentence_transformer(minilm_folder)


def assert_close(found, expected, tolerance=1e-5):
    np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)


def test_vectors_equal_those_of_sentence_transformers(minilm, oracle):
    texts = [*TEXTS, "word " * 254]  # with the special tokens as many as are read at once
    assert_close(minilm.encode(texts), oracle.encode(texts))


@pytest.mark.parametrize("max_length", some_of([256, 40], 40))
def test_cut_texts_equal_those_of_sentence_transformers(minilm_folder, max_length):
    texts = [*TEXTS, "several words of a long text, " * 100]
    ours = SentenceEmbedder.from_pretrained(minilm_folder, device="cpu", max_length=max_length, on_overflow="truncate")
    theirs = sentence_transformer(minilm_folder)
    theirs.max_seq_length = max_length
    with pytest.warns(TextsTruncated, match=r"truncated: \d+ tokens were not read"):
        vectors = ours.encode(texts)
    assert_close(vectors, theirs.encode(texts))


@pytest.mark.parametrize("pooling", POOLINGS)
def test_each_pooling_equals_that_of_sentence_transformers(pooling):
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    packed = pack(random_ids((3, 1, 7, 7, 12, 3)))
    hidden_TH = torch.randn(len(packed.ids_T), 24, generator=torch.Generator().manual_seed(0))
    features = {
        "token_embeddings": to_padded(hidden_TH, packed.lengths),
        "attention_mask": to_padded(torch.ones(len(packed.ids_T)), packed.lengths),
    }
    expected_BH = modules.Pooling(24, POOLINGS[pooling])(features)["sentence_embedding"]
    assert_close(pool(hidden_TH, packed, pooling), expected_BH)


@pytest.mark.parametrize(
    "settings",
    [
        {"max_length": 30},
        {"unit_length": False},
        {"dimensions": 50},
        {"dimensions": 50, "unit_length": False},
        {"pooling": "first"},
        *(pytest.param({"pooling": pooling}, marks=pytest.mark.slow) for pooling in POOLINGS if pooling != "mean"),
    ],
    ids=str,
)
def test_a_saved_embedder_opens_in_sentence_transformers_with_the_same_vectors(minilm_folder, settings, tmp_path):
    ours = SentenceEmbedder.from_pretrained(minilm_folder, device="cpu", on_overflow="truncate", **settings)
    ours.save(tmp_path / "saved")
    theirs = sentence_transformer(tmp_path / "saved")
    assert theirs.max_seq_length == ours.fitted.settings.max_length
    assert_close(ours.encode(TEXTS), theirs.encode(TEXTS))


@pytest.mark.parametrize(("pooling", "dimensions"), [("mean", None), ("weighted_mean", 64)])
def test_a_model_that_sentence_transformers_saved_opens_with_its_settings(minilm_folder, pooling, dimensions, tmp_path):
    theirs = sentence_transformer(minilm_folder, truncate_dim=dimensions)
    theirs[1].pooling_mode = POOLINGS[pooling]
    theirs.max_seq_length = 33
    theirs.save(str(tmp_path / "theirs"))
    ours = SentenceEmbedder.from_pretrained(tmp_path / "theirs", device="cpu", on_overflow="truncate")
    assert (ours.fitted.settings.pooling, ours.dimensions, ours.fitted.settings.max_length) == (
        pooling,
        dimensions or 384,
        33,
    )
    assert_close(ours.encode(TEXTS), theirs.encode(TEXTS))


EVERY_SETTING = {
    "pooling": "max",
    "unit_length": False,
    "dimensions": 7,
    "max_length": 11,
    "on_overflow": "truncate",
}


def test_every_setting_comes_back_from_a_saved_embedder(base, tmp_path):
    first = SentenceEmbedder.from_pretrained(base, device="cpu", **EVERY_SETTING)
    first.save(tmp_path / "saved")
    again = SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.fitted.settings == first.fitted.settings
    texts = ["w5 w6", "w7 " * 30]
    assert np.array_equal(again.encode(texts), first.encode(texts))
    again.save(tmp_path / "twice")
    assert SentenceEmbedder.from_pretrained(tmp_path / "twice", device="cpu").fitted.settings == first.fitted.settings


@pytest.mark.parametrize(("length", "kept"), [(10, 3), (6, 3), (5, None), (4, None), (3, None)])
def test_a_stride_that_shorter_windows_have_no_room_for_is_a_usual_one(base, tmp_path, length, kept):
    SentenceEmbedder.from_pretrained(base, device="cpu", max_length=10, stride=3).save(tmp_path / "saved")
    again = SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu", max_length=length)
    assert again.fitted.settings.stride == kept
    assert again.encode("w5 w6 w7 w8 w9 w10 w11 w12").shape == (again.dimensions,)


@pytest.mark.parametrize(
    ("name", "other"),
    [("pooling", "cls"), ("unit_length", True), ("dimensions", 24), ("max_length", 18), ("on_overflow", "error")],
)
def test_the_caller_overrules_a_saved_setting(base, tmp_path, name, other):
    SentenceEmbedder.from_pretrained(base, device="cpu", **EVERY_SETTING).save(tmp_path / "saved")
    again = SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu", **{name: other})
    assert getattr(again.fitted.settings, name) == other
    for kept in EVERY_SETTING.keys() - {name}:
        assert getattr(again.fitted.settings, kept) == EVERY_SETTING[kept]


def test_a_bare_encoder_is_averaged_over_all_that_it_reads(base):
    settings = SentenceEmbedder.from_pretrained(base, device="cpu").fitted.settings
    assert (settings.pooling, settings.unit_length, settings.dimensions) == ("mean", True, None)
    assert (settings.max_length, settings.on_overflow) == (18, "window")


def test_a_single_text_gives_a_vector_and_a_list_of_one_a_matrix(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    assert embedder.encode("w5 w6").shape == (24,)
    assert embedder.encode(["w5 w6"]).shape == (1, 24)
    assert embedder.encode([]).shape == (0, 24)
    assert np.array_equal(embedder.encode("w5 w6"), embedder.encode(["w5 w6"])[0])


def test_one_pair_gives_the_cosine_of_its_vectors_and_many_give_a_list(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    pairs = [("w5 w6", "w7"), ("w5", "w5")]
    found = embedder.predict(pairs)
    first_K, second_K = embedder.encode(["w5 w6", "w7"])
    assert [each.similarity for each in found] == pytest.approx([first_K @ second_K, 1.0], abs=1e-6)
    assert embedder.predict(pairs[0]) == embedder.predict(pairs[:1])[0]
    assert embedder.predict([]) == []
    assert embedder.predict([list(pair) for pair in pairs]) == found
    rows = read_rows([{"text_a": one, "text_b": other, "score": 1} for one, other in pairs])
    assert list(embedder.predict_stream(rows)) == found


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ("w5 w6", "a tuple of two texts, or a list"),
        ([("w5", "w6"), "w7"], "pair 2 must be a tuple of two texts"),
        (["w5", "w6"], "pair 1 must be a tuple of two texts, got str"),
        ([("w5", "w6"), ("w5", " ")], "second text of pair 2 is empty"),
    ],
)
def test_what_is_no_pair_has_no_similarity(base, pairs, said):
    with pytest.raises(InvalidInput, match=said):
        SentenceEmbedder.from_pretrained(base, device="cpu").predict(pairs)


def test_kept_dimensions_are_the_leading_ones_at_unit_length(base):
    whole = SentenceEmbedder.from_pretrained(base, device="cpu", unit_length=False).encode(["w5 w6", "w8"])
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", dimensions=5)
    assert embedder.dimensions == 5
    expected = whole[:, :5] / np.linalg.norm(whole[:, :5], axis=1, keepdims=True)
    assert_close(embedder.encode(["w5 w6", "w8"]), expected, 1e-6)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max", "weighted_mean", "mean_sqrt_length"])
def test_the_windows_of_a_long_text_are_averaged_by_length_or_maximised(base, pooling):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", pooling=pooling, unit_length=False)
    long = " ".join(f"w{5 + place % 50}" for place in range(41))
    windows = embedder.model.tokenizer.encode([long], max_length=18)[0].windows
    vectors = []
    for window in windows:
        packed = pack([window.ids])
        with torch.no_grad():
            vectors.append(pool(embedder.model.encoder(packed), packed, pooling)[0].double().numpy())
    lengths = np.array([len(window.ids) for window in windows])
    assert len(set(lengths)) > 1
    stacked = np.stack(vectors)
    expected = stacked.max(0) if pooling == "max" else (stacked * lengths[:, None]).sum(0) / lengths.sum()
    assert_close(embedder.encode(long), expected)


@pytest.fixture
def xlnet(tmp_path):
    """The folder of a tiny bare XLNet, whose [CLS] stands at the end."""
    write_checkpoint(tmp_path / "xlnet", "xlnet")
    return tmp_path / "xlnet"


RAGGED = ["w5", "w6 w7 w8 w9", "w10 w11 " * 8]


@pytest.mark.parametrize(("model_type", "place"), [("bert", 0), ("modernbert", 0), ("xlnet", -1)])
def test_cls_pooling_reads_the_classification_token_where_the_tokenizer_puts_it(model_type, place, tmp_path):
    write_checkpoint(tmp_path / "base", model_type)
    embedder = SentenceEmbedder.from_pretrained(tmp_path / "base", device="cpu", pooling="cls", unit_length=False)
    tokenizer = embedder.model.tokenizer
    assert tokenizer.cls_is_last is (place == -1)
    for text, vector in zip(RAGGED[:2], embedder.encode(RAGGED[:2]), strict=True):
        (window,) = tokenizer.encode([text], max_length=18)[0].windows
        assert window.ids[place] == tokenizer.cls_id
        with torch.no_grad():
            hidden_TH = embedder.model.encoder(pack([window.ids], [window.types]))
        assert_close(vector, hidden_TH[place])


@pytest.mark.parametrize("pooling", some_of(POOLINGS, "mean", "cls"))
def test_a_saved_xlnet_gives_the_same_vectors_in_sentence_transformers(xlnet, pooling, tmp_path):
    ours = SentenceEmbedder.from_pretrained(xlnet, device="cpu", pooling=pooling)
    ours.save(tmp_path / "saved")
    theirs = sentence_transformer(tmp_path / "saved")
    assert theirs.tokenizer.padding_side == "left"
    assert_close(ours.encode(RAGGED), theirs.encode(RAGGED))
    theirs.save(str(tmp_path / "theirs"))
    again = SentenceEmbedder.from_pretrained(tmp_path / "theirs", device="cpu")
    # The [CLS] of an XLNet is its last token.
    assert again.fitted.settings.pooling == ("cls" if pooling == "last" else pooling)


@pytest.mark.parametrize("content", [{"pooling_mode_cls_token": True}, {"pooling_mode": "cls"}])
def test_the_first_token_of_an_xlnet_is_not_its_cls(xlnet, content):
    (xlnet / "1_Pooling").mkdir()
    (xlnet / "1_Pooling" / "config.json").write_text(json.dumps(content))
    assert SentenceEmbedder.from_pretrained(xlnet, device="cpu").fitted.settings.pooling == "first"


def test_a_vector_does_not_depend_on_its_neighbours(minilm):
    texts = [*TEXTS, "long " * 700]
    together = minilm.encode(texts)
    for index, text in enumerate(texts):
        assert_close(minilm.encode(text), together[index])
    assert_close(minilm.encode(texts[::-1])[::-1], together)
    assert_close(minilm.encode(texts, max_tokens=1), together)


def test_options_of_a_call_make_other_vectors_and_leave_the_embedder_as_it_is(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    texts = ["w5 w6", "w7"]
    for settings in ({"pooling": "max"}, {"dimensions": 5}, {"unit_length": False}):
        opened = SentenceEmbedder.from_pretrained(base, device="cpu", **settings)
        for found in (
            embedder.encode(texts, **settings),
            np.stack(list(embedder.encode_stream(texts, **settings))),
        ):
            np.testing.assert_array_equal(found, opened.encode(texts))
    assert embedder.fitted.settings == SentenceEmbedder.from_pretrained(base, device="cpu").fitted.settings
    with pytest.raises(InvalidInput, match="dimensions must lie between 1 and 24, got 25"):
        embedder.encode(texts, dimensions=25)


def test_many_texts_may_come_as_an_array_or_a_generator(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    texts = ["w5 w6", "w7"]
    expected = embedder.encode(texts)
    for given in (tuple(texts), np.array(texts), np.array(texts, dtype=object), (text for text in texts)):
        np.testing.assert_array_equal(embedder.encode(given), expected)


def test_the_similarity_of_many_texts_is_the_matrix_of_their_cosines(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", unit_length=False)
    first, second = ["w5 w6", "w7", "w8"], ["w9", "w7"]
    vectors_NK, vectors_MK = embedder.encode(first), embedder.encode(second)
    found = embedder.similarity(first, second)
    assert found.shape == (3, 2)
    lengths = np.linalg.norm(vectors_NK, axis=1)[:, None] * np.linalg.norm(vectors_MK, axis=1)
    assert_close(found, vectors_NK @ vectors_MK.T / lengths)
    assert found[1, 1] == pytest.approx(1.0)
    assert_close(found[0, 0], embedder.predict((first[0], second[0])).similarity)
    np.testing.assert_array_equal(embedder.similarity(vectors_NK, vectors_MK), found)
    np.testing.assert_array_equal(embedder.similarity(first, vectors_MK), found)
    assert embedder.similarity("w5 w6", second).shape == (1, 2)
    with pytest.raises(InvalidInput, match="expected vectors of equal length, got 24 and 7"):
        embedder.similarity(first, vectors_MK[:, :7])


def test_an_embedder_says_what_it_is(base):
    assert repr(SentenceEmbedder.from_pretrained(base, device="cpu", dimensions=7)) == (
        f"SentenceEmbedder({str(base)!r}, pooling='mean', dimensions=7)"
    )


@pytest.mark.slow
def test_a_text_of_a_megabyte_is_read_to_its_end(base):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    text = ("w5 w6 w7" + 40 * " ") * 21_000
    assert len(text) > 1_000_000
    vector = embedder.encode(text)
    assert np.linalg.norm(vector) == pytest.approx(1, abs=1e-5)
    assert not np.allclose(vector, embedder.encode(text[: len(text) // 2] + "w50 " * 30_000), atol=1e-3)


def test_long_texts_are_refused_on_request(base):
    with pytest.raises(TextTooLong):
        SentenceEmbedder.from_pretrained(base, device="cpu", on_overflow="error").encode("w5 " * 17)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"pooling": "median"}, "pooling must be one of"),
        ({"dimensions": 0}, "dimensions must lie between 1 and 24, got 0"),
        ({"dimensions": 25}, "dimensions must lie between 1 and 24, got 25"),
        ({"max_length": 0}, "max_length must lie between 1 and the model's limit, 18, got 0"),
        ({"max_length": 19}, "max_length must lie between 1 and the model's limit, 18, got 19"),
        ({"on_overflow": "cut"}, "on_overflow must be one of"),
    ],
)
def test_a_setting_out_of_range_is_refused(base, settings, words):
    with pytest.raises(InvalidInput, match=words):
        SentenceEmbedder.from_pretrained(base, device="cpu", **settings)


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_token_budget_below_one_is_refused(base, tokens):
    with pytest.raises(InvalidInput, match="tokens must be at least 1"):
        SentenceEmbedder.from_pretrained(base, device="cpu").encode("w5", max_tokens=tokens)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("pooling", "median"),
        ("dimensions", 0),
        ("dimensions", 25),
        ("max_length", 19),
        ("on_overflow", "cut"),
    ],
)
def test_a_damaged_setting_of_a_saved_embedder_is_refused(base, tmp_path, name, value):
    SentenceEmbedder.from_pretrained(base, device="cpu").save(tmp_path / "saved")
    path = tmp_path / "saved" / "bothways.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), name: value}))
    with pytest.raises(CorruptCheckpoint, match=f"bothways.json must give {name} as"):
        SentenceEmbedder.from_pretrained(tmp_path / "saved", device="cpu")


def test_an_embedder_with_a_module_that_is_not_built_is_refused(base):
    modules = [
        {"idx": index, "name": str(index), "path": "", "type": f"sentence_transformers.models.{kind}"}
        for index, kind in enumerate(["Transformer", "Pooling", "LSTM", "Normalize"])
    ]
    (base / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(UnsupportedConfig, match="lists LSTM, which is not supported"):
        SentenceEmbedder.from_pretrained(base, device="cpu")


@pytest.mark.parametrize("content", ["", "{", "[1]", '[{"idx": 0}]', "3"])
def test_a_damaged_list_of_modules_is_refused(base, content):
    (base / "modules.json").write_text(content)
    with pytest.raises(CorruptCheckpoint, match=r"modules\.json"):
        SentenceEmbedder.from_pretrained(base, device="cpu")


@pytest.mark.parametrize(
    "content",
    [
        {"pooling_mode": "median"},
        {"pooling_mode": []},
        {"pooling_mode": 3},
        {"pooling_mode": ["mean", "median"]},
    ],
    ids=str,
)
def test_a_pooling_that_is_not_built_is_refused(base, content):
    (base / "1_Pooling").mkdir()
    (base / "1_Pooling" / "config.json").write_text(json.dumps(content))
    with pytest.raises(UnsupportedConfig, match=r"chooses the pooling .*, which is not supported"):
        SentenceEmbedder.from_pretrained(base, device="cpu")


def test_a_stored_length_beyond_the_model_is_brought_down_to_it(base):
    (base / "sentence_bert_config.json").write_text('{"max_seq_length": 512}')
    assert SentenceEmbedder.from_pretrained(base, device="cpu").fitted.settings.max_length == 18


def test_the_fingerprint_tells_models_apart_by_their_weights(base, tmp_path):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu")
    embedder.save(tmp_path / "copy")
    copy = SentenceEmbedder.from_pretrained(tmp_path / "copy", device="cpu")
    copy.save(tmp_path / "second")
    again = SentenceEmbedder.from_pretrained(tmp_path / "second", device="cpu")
    assert copy.fitted.fingerprint() == again.fitted.fingerprint()
    with torch.no_grad():
        copy.model.encoder.embedding.tokens.weight[7, 3] += 1
    copy.save(tmp_path / "changed")
    changed = SentenceEmbedder.from_pretrained(tmp_path / "changed", device="cpu")
    assert changed.fitted.fingerprint() != copy.fitted.fingerprint()


def test_a_folder_without_a_configuration_of_its_own_keeps_its_encoder_settings(base, tmp_path):
    edit_config(base, initializer_range=0.05, finetuning_task="kept")
    SentenceEmbedder.from_pretrained(base, device="cpu").save(tmp_path / "saved")
    settings = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert (settings["initializer_range"], settings["finetuning_task"]) == (0.05, "kept")
