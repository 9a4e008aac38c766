"""The output of graphs for this package: what a task's module gives packed, of every family."""

from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import torch
from exported import batch, long_settings

from bothways.encoder import Encoder
from bothways.encoder.head_kinds import EachToken
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
def test_features_of_a_classifier_in_every_layer(model_type):
    encoder, head = encoder_and_head(model_type, "sequence")
    layers = encoder.config.layers
    rows = WindowRows(HeadModel(encoder, head, layers), per_token=False).eval()
    width = 3 + layers * encoder.config.hidden
    inputs = batch(EncoderGraph(encoder, None), 4, 40)
    with torch.no_grad():
        expected = rows.packed(packed(inputs)).numpy()
    close(rows_of_file(encoder, rows, width, inputs), expected)


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TINY)
def test_tags_of_tokens(model_type):
    encoder, head = encoder_and_head(model_type, "token")
    assert isinstance(head.kind.read, EachToken)
    rows = WindowRows(HeadModel(encoder, head), per_token=True).eval()
    inputs = batch(EncoderGraph(encoder, None), 4, 40)
    with torch.no_grad():
        expected = rows.packed(packed(inputs)).numpy()
    real = inputs["attention_mask"].numpy() != 0
    found = rows_of_file(encoder, rows, 3, inputs)
    close(found[real], expected[real])
    assert not found[~real].any()


@pytest.mark.slow
@pytest.mark.parametrize("model_type", TINY)
@pytest.mark.parametrize("pooling", ["cls", "weighted_mean"])
def test_vectors(model_type, pooling):
    encoder, _ = encoder_and_head(model_type, None)
    rows = WindowRows(VectorModel(encoder, pooling), per_token=False).eval()
    inputs = batch(EncoderGraph(encoder, None), 4, 40)
    with torch.no_grad():
        expected = rows.packed(packed(inputs)).numpy()
    close(rows_of_file(encoder, rows, encoder.config.hidden, inputs), expected)


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
