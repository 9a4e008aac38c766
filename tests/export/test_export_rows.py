"""The output of graphs for this package: what a task's module gives packed, of every family."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from exported import batch, long_settings

from bothways.encoder import Encoder
from bothways.encoder.heads import new_head
from bothways.export.answers import AskedTokens, WindowRows
from bothways.export.graph import EncoderGraph, write_onnx
from bothways.families import FAMILIES
from bothways.inference.graph import ASKED, Graph
from bothways.packing import SelectedRows, unpad
from bothways.tasks.embedding.vector_model import VectorModel
from bothways.tasks.torch_backend import HeadModel
from tiny_models import TINY, scramble

TOLERANCE = 1e-5


def encoder_and_head(model_type, name):
    settings = long_settings(model_type)
    family = FAMILIES[model_type]
    encoder = scramble(Encoder(family.config(settings))).eval()
    if name is None:
        return encoder, None
    return encoder, scramble(new_head(encoder.config, family.head(name, settings).kind, 3), 1).eval()


def rows_of_file(encoder, rows, width, inputs):
    """The graph's rows of a padded batch, by onnxruntime."""
    graph = EncoderGraph(encoder, None, rows, width).eval()
    with TemporaryDirectory() as folder:
        write_onnx(graph, Path(folder) / "model.onnx", encoder.config.max_length, {})
        session = Graph(Path(folder) / "model.onnx")._opened()
        given = {port.name: inputs[port.name].numpy() for port in graph.inputs()}
        (found,) = session.run(["rows"], given)
    return found


def packed(inputs):
    return unpad(inputs["input_ids"], inputs["attention_mask"], inputs.get("token_type_ids"))


def close(found, expected):
    scale = max(1.0, float(np.abs(expected).max()))
    np.testing.assert_allclose(found, expected, rtol=0, atol=TOLERANCE * scale)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TINY)
@pytest.mark.parametrize("what", ["features", "tags", "cls", "weighted_mean"])
def test_rows_of_windows_and_of_tokens(model_type, what):
    """Logits with the features of every layer, tags of tokens, and two poolings of a vector."""
    encoder, head = encoder_and_head(model_type, {"features": "sequence", "tags": "token"}.get(what))
    width, layers = encoder.config.hidden, encoder.config.layers
    if head is None:
        module = VectorModel(encoder, (what,))
    else:
        features = layers if what == "features" else 0
        module, width = HeadModel(encoder, head, features), 3 + features * width
    rows = WindowRows(module, per_token=what == "tags").eval()
    inputs = batch(EncoderGraph(encoder, None), 4, 40)
    with torch.no_grad():
        expected = rows.packed(packed(inputs)).numpy()
    found = rows_of_file(encoder, rows, width, inputs)
    real = inputs["attention_mask"].numpy() != 0 if rows.per_token else np.ones(4, dtype=bool)
    close(found[real], expected[real])
    assert not found[~real].any()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [name for name in TINY if "masked_lm" in FAMILIES[name].heads])
def test_tokens_at_the_places_that_the_mask_names(model_type):
    encoder, head = encoder_and_head(model_type, "masked_lm")
    inputs = batch(EncoderGraph(encoder, None), 4, 40)
    places = torch.tensor([5, 0, 9, 3])
    whole = packed(inputs)
    with torch.no_grad():
        hidden = encoder(whole, rows=SelectedRows(whole.first_tokens_B + places))
        expected = head(hidden, encoder.embedding.tokens.weight).log_softmax(-1).numpy()
    inputs["attention_mask"][range(4), places] = ASKED
    close(rows_of_file(encoder, AskedTokens(encoder, head).eval(), encoder.config.vocabulary, inputs), expected)
