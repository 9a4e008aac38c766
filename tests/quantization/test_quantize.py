"""Models in int8, of every family: what they say, that they open as they were, and what is refused."""

import json
import shutil
import sys

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import save_file

from bothways import load
from bothways.checkpoints.files import INT8_WEIGHTS, read_int8, read_safetensors
from bothways.encoder import int8, linear
from bothways.encoder.int8 import ANY_PAIR, SMALL_PAIR, Int8Weight
from bothways.encoder.linear import BFloat16Weight, held
from bothways.errors import CorruptCheckpoint, IncompatibleWeights, InvalidInput, OutputExists
from bothways.products import has_bfloat16_product
from bothways.quantization import quantize
from bothways.quantization.rounding import cosines
from bothways.tasks import SentenceEmbedder, TextClassifier
from everyday import some_families
from tiny_models import FIRST_WORD, VOCABULARY, write_checkpoint


def texts(count=40, seed=0):
    generator = np.random.default_rng(seed)
    words = range(FIRST_WORD, VOCABULARY)
    return [" ".join(f"w{word}" for word in generator.choice(words, generator.integers(2, 14))) for _ in range(count)]


def vectors(folder, given):
    return SentenceEmbedder.from_pretrained(folder, device="cpu", pooling="mean").encode(given)


@pytest.fixture(scope="module")
def quantized(tmp_path_factory):
    folder = tmp_path_factory.mktemp("quantized")
    write_checkpoint(folder / "bert")
    quantize(folder / "bert", folder / "int8", texts(), cosine=0.9)
    return folder / "int8"


@pytest.fixture
def folder(quantized, tmp_path):
    """A copy of a quantized BERT, to be changed."""
    return shutil.copytree(quantized, tmp_path / "int8")


@some_families("bert", "albert", "deberta-v2", "modernbert", "xlnet")
def test_a_model_in_int8_keeps_the_vectors_says_what_it_lost_and_opens_with_the_chosen_layers(model_type, tmp_path):
    write_checkpoint(tmp_path / "model", model_type)
    given = texts()
    found = quantize(tmp_path / "model", tmp_path / "int8", given, cosine=0.99)
    assert found.int8
    measured = cosines(vectors(tmp_path / "int8", given), vectors(tmp_path / "model", given))
    assert measured.min() == pytest.approx(found.min_cosine, abs=1e-6)
    assert measured.mean() == pytest.approx(found.mean_cosine, abs=1e-6)
    assert 0.99 <= found.min_cosine < 1
    opened = load(tmp_path / "int8", device="cpu")
    assert opened.quantization == {"quant_method": "bothways-int8", **found.to_dict()}
    original = load(tmp_path / "model", device="cpu")
    assert original.quantization is None
    maps, before = read_int8(tmp_path / "int8"), original.encoder.state_dict()
    assert {name.removeprefix("layers.").removesuffix(".weight") for name in maps} == set(found.int8)
    for name, parameter in opened.encoder.named_parameters():
        if name in maps:
            assert torch.equal(parameter, maps[name].weight())
            assert torch.equal(held(parameter).codes_OI, maps[name].codes_OI)
        else:
            assert torch.equal(parameter, before[name])
            in_bfloat16 = name.removeprefix("layers.").removesuffix(".weight") in found.bfloat16
            assert isinstance(held(parameter), BFloat16Weight) == (in_bfloat16 and has_bfloat16_product())
    card = json.loads((tmp_path / "int8" / "bothways.json").read_text())["card"]
    assert card["quantization"] == found.to_dict()
    assert f"{found.min_cosine:.5f}" in (tmp_path / "int8" / "README.md").read_text(encoding="utf-8")


def test_fewer_layers_are_int8_where_more_is_asked_for_and_others_float32_where_bfloat16_is_too_little(base, tmp_path):
    whole = quantize(base, tmp_path / "whole", texts(), cosine=0.9)
    assert whole.bfloat16 + whole.float32 == ()
    lost, before = 1 - whole.min_cosine, whole
    for number, share in enumerate((0.7, 0.1)):
        found = quantize(base, tmp_path / f"{number}", texts(), cosine=1 - share * lost)
        assert found.min_cosine >= 1 - share * lost
        assert found.min_cosine > before.min_cosine
        assert len(found.int8) < len(whole.int8)
        assert (found.bfloat16 == ()) == (number == 1 or not has_bfloat16_product())
        assert set(found.int8) | set(found.bfloat16) | set(found.float32) == set(whole.int8)
        before = found


def test_no_layer_at_a_cosine_of_one_is_an_error_that_leaves_nothing(base, tmp_path):
    with pytest.raises(InvalidInput, match="lower `cosine`"):
        quantize(base, tmp_path / "int8", texts(), cosine=1.0)
    assert not (tmp_path / "int8").exists()


def test_the_same_texts_and_seed_give_the_same_files(base, tmp_path):
    for name in ("one", "other"):
        quantize(base, tmp_path / name, texts(60), most_texts=30, seed=3, cosine=0.99)
    for name in (INT8_WEIGHTS, "float32.safetensors", "config.json", "bothways.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "other" / name).read_bytes()


def test_without_the_operators_the_rounded_weights_are_used(base, tmp_path, monkeypatch):
    quantize(base, tmp_path / "int8", texts(), cosine=0.99)
    fast = vectors(tmp_path / "int8", texts())
    monkeypatch.setattr(int8, "largest_pair", lambda: 0)
    encoder = load(tmp_path / "int8", device="cpu").encoder
    assert all(held(parameter) is None for parameter in encoder.parameters())
    slow = vectors(tmp_path / "int8", texts())
    assert cosines(slow, fast).min() > 0.99
    assert not np.array_equal(slow, fast)


def test_a_portable_model_is_int8_without_vnni_and_another_is_not(base, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["bothways.quantization.quantize"], "largest_pair", lambda: ANY_PAIR)
    for portable in (False, True):
        found = quantize(base, tmp_path / f"{portable}", texts(), cosine=0.99, portable=portable)
        assert found.portable == portable
    monkeypatch.setattr(int8, "largest_pair", lambda: SMALL_PAIR)
    for portable in (False, True):
        encoder = load(tmp_path / f"{portable}", device="cpu").encoder
        held_forms = [held(parameter) for parameter in encoder.parameters()]
        assert any(isinstance(each, Int8Weight) for each in held_forms) == portable


def test_where_there_is_no_vnni_what_is_quantized_is_portable(base, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules["bothways.quantization.quantize"], "largest_pair", lambda: SMALL_PAIR)
    assert quantize(base, tmp_path / "int8", texts(), cosine=0.99).portable
    assert all(each.pair <= SMALL_PAIR for each in read_int8(tmp_path / "int8").values())


def test_the_search_is_the_same_without_the_operators(base, tmp_path, monkeypatch):
    fast = quantize(base, tmp_path / "fast", texts(), cosine=0.99)
    monkeypatch.setattr(int8, "largest_pair", lambda: 0)
    monkeypatch.setattr(linear, "has_bfloat16_product", lambda: False)
    slow = quantize(base, tmp_path / "slow", texts(), cosine=0.99)
    assert slow.int8 == fast.int8
    assert slow.min_cosine == pytest.approx(fast.min_cosine, abs=1e-4)


def test_transformers_refuses_the_folder(folder):
    with pytest.raises(OSError, match=r"model\.safetensors"):
        transformers.AutoModel.from_pretrained(folder)


def test_a_model_in_int8_is_neither_trained_nor_saved_nor_quantized_again(folder, tmp_path):
    model = TextClassifier.from_pretrained(folder, device="cpu")
    with pytest.raises(InvalidInput, match="train the original model"):
        model.fit(texts(), ["a", "b"] * 20, epochs=1)
    with pytest.raises(InvalidInput, match="save the original model"):
        load(folder, device="cpu").save(tmp_path / "again")
    with pytest.raises(InvalidInput, match="quantize the original model"):
        quantize(folder, tmp_path / "again", texts())
    assert not (tmp_path / "again").exists()


def test_what_cannot_be_quantized_is_refused_before_any_work(base, tmp_path):
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(OutputExists):
        quantize(base, tmp_path / "taken", texts())
    with pytest.raises(InvalidInput, match="got none"):
        quantize(base, tmp_path / "int8", [])
    for cosine in (0.0, 1.1, float("nan")):
        with pytest.raises(InvalidInput, match="`cosine` must be above 0"):
            quantize(base, tmp_path / "int8", texts(), cosine=cosine)
    with pytest.raises(InvalidInput, match="text"):
        quantize(base, tmp_path / "int8", ["w5 w6", 7])


@pytest.mark.parametrize(
    "damage",
    [
        lambda tensors: tensors.pop("layers.0.attention.qkv.weight.scale"),
        lambda tensors: tensors.update({"layers.0.attention.qkv.weight.more": torch.tensor(3, dtype=torch.int32)}),
        lambda tensors: tensors["layers.0.attention.qkv.weight.scale"].fill_(torch.nan),
        lambda tensors: tensors["layers.0.attention.qkv.weight.stretch"].fill_(0),
        lambda tensors: tensors.update({"layers.0.attention.qkv.weight.codes": torch.zeros(4, dtype=torch.int8)}),
        lambda tensors: tensors.update({"layers.0.attention.qkv.weight.shift": torch.zeros(3)}),
    ],
)
def test_a_damaged_file_is_refused(folder, damage):
    path = folder / INT8_WEIGHTS
    tensors = {name: value.clone() for name, value in read_safetensors(path).items()}
    damage(tensors)
    save_file(tensors, path)
    with pytest.raises(CorruptCheckpoint):
        load(folder, device="cpu")
    with pytest.raises(CorruptCheckpoint):
        read_int8(folder)


def test_a_missing_file_is_an_error(folder):
    (folder / INT8_WEIGHTS).unlink()
    with pytest.raises(CorruptCheckpoint, match=INT8_WEIGHTS):
        load(folder, device="cpu")
    described = json.loads((folder / "bothways.json").read_text())
    (folder / "bothways.json").write_text(json.dumps({**described, "checksums": {}}))
    with pytest.raises(IncompatibleWeights, match="lacks"):
        load(folder, device="cpu")
