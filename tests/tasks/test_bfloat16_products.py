"""``dtype="auto"`` on a CPU: products in bfloat16 where it has instructions for them, and all else in float32."""

import json
import pickle
from importlib import import_module

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import bothways
from bothways import SemanticSearch, SentenceEmbedder, TextClassifier
from bothways.encoder import linear
from bothways.encoder.encoder import linear_weights
from bothways.encoder.linear import BFloat16Weight, Linear, held
from bothways.products import has_bfloat16_product
from bothways.progress import reporting
from bothways.retrieval.index_files import read_header
from classifier_cases import rows, same, tensors
from tiny_models import every_family, write_checkpoint

pretrained = import_module("bothways.checkpoints.pretrained")
TEXTS = [row["text"] for row in rows(12, first=40)]
needs_bfloat16 = pytest.mark.skipif(not has_bfloat16_product(), reason="this processor has none")


def use(monkeypatch, *, there):
    """A processor with instructions for bfloat16, or without."""
    monkeypatch.setattr(pretrained, "has_bfloat16_product", lambda: there)
    pretrained._tell.cache_clear()


@pytest.fixture
def there(monkeypatch):
    """Taken for there; without instructions the same numbers are computed in float32."""
    use(monkeypatch, there=True)


@every_family
def test_vectors_are_those_of_float32_but_for_rounding(model_type, tmp_path, there):
    write_checkpoint(tmp_path, model_type)
    found, exact = (
        SentenceEmbedder.from_pretrained(tmp_path, device="cpu", pooling="mean", dtype=dtype)
        for dtype in ("auto", "float32")
    )
    assert {value.dtype for value in found.model.encoder.parameters()} == {torch.float32}
    assert (found.model.precision, exact.model.precision) == ("bfloat16", "float32")
    vectors, expected = found.encode(TEXTS), exact.encode(TEXTS)
    assert not np.array_equal(vectors, expected)
    assert (vectors * expected).sum(1).min() > 0.9995


@needs_bfloat16
@pytest.mark.parametrize("count", [1, 8, 17, 384, 530])
def test_the_operator_gives_the_products_of_rounded_numbers(count, monkeypatch):
    layer, x_TI = Linear(70, 37), torch.randn(count, 70, generator=torch.Generator().manual_seed(0))
    for parameter in layer.parameters():
        torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    found_TO = BFloat16Weight.of(layer.weight).product(x_TI, layer.bias.detach())
    exact_TO = x_TI.bfloat16().double() @ layer.weight.detach().bfloat16().double().t() + layer.bias.detach().double()
    monkeypatch.setattr(linear, "has_bfloat16_product", lambda: False)
    slow_TO = BFloat16Weight.of(layer.weight).product(x_TI, layer.bias.detach())
    for product_TO in (found_TO, slow_TO):
        assert product_TO.dtype == torch.float32
        # One rounding, to 8 bits.
        torch.testing.assert_close(product_TO.double(), exact_TO, rtol=2**-8, atol=1e-5)
    assert (found_TO != slow_TO).float().mean() < 0.02


def test_what_was_taken_is_said_once(base, monkeypatch, capsys):
    for there, expected in (
        (True, "matrix products in bfloat16 on the CPU, all else in float32\n"),
        (False, "computing in float32: this cpu has no instructions for bfloat16\n"),
    ):
        use(monkeypatch, there=there)
        with reporting(lines=True):
            for _ in range(2):
                opened = bothways.load(base, device="cpu", dtype="auto")
        assert capsys.readouterr().err == expected
        assert opened.precision == ("bfloat16" if there else "float32")
    with reporting(lines=True):
        assert bothways.load(base, device="cpu").precision == "float32"
    assert capsys.readouterr().err == ""


def test_training_and_saving_are_in_float32(base, tmp_path, there):
    saved = bothways.load(base, device="cpu", dtype="auto")
    saved.save(tmp_path / "same")
    exact = bothways.load(base, device="cpu").encoder.state_dict()
    assert same(bothways.load(tmp_path / "same", device="cpu").encoder.state_dict(), exact)
    one, other = (TextClassifier.from_pretrained(base, device="cpu", dtype=dtype) for dtype in ("auto", "float32"))
    for each in (one, other):
        each.fit(rows(), validation=rows(6, first=30), epochs=1, batch_size=6, precision="float32")
    assert one.model.precision == "float32"
    assert same(tensors(one, tmp_path / "one"), tensors(other, tmp_path / "other"))
    assert load_file(tmp_path / "one" / "model.safetensors")


def test_a_pickle_multiplies_as_before(base, there):
    embedder = SentenceEmbedder.from_pretrained(base, device="cpu", dtype="auto")
    back = pickle.loads(pickle.dumps(embedder))
    assert all(isinstance(held(weight), BFloat16Weight) for weight in linear_weights(back.model.encoder).values())
    np.testing.assert_array_equal(back.encode(TEXTS), embedder.encode(TEXTS))


def test_an_index_says_which_precision_made_its_vectors(base, tmp_path, there):
    for dtype, expected in (("auto", "bfloat16"), ("float32", "float32")):
        embedder = SentenceEmbedder.from_pretrained(base, device="cpu", dtype=dtype)
        SemanticSearch.build(embedder, TEXTS).save(tmp_path / dtype)
        written = json.loads((tmp_path / dtype / "index.json").read_text())
        assert written["encoder"]["precision"] == expected
        assert read_header(tmp_path / dtype).encoder.precision == expected
