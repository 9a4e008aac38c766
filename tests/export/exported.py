"""Tiny graphs that read 512 tokens, exported once each, and batches to run them on."""

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import onnxruntime
import torch

from bothways.encoder import Encoder
from bothways.encoder.heads import head_logits, new_head
from bothways.export.graph import HIDDEN, EncoderGraph, write_onnx
from bothways.families import FAMILIES
from bothways.packing import to_padded, unpad
from tiny_models import FIRST_WORD, TINY, VOCABULARY, scramble

POSITIONS = 512
LENGTHS = (1, 2, 7, 64, 300, POSITIONS)
TOLERANCE = 1e-4

# What a family needs to read 512 tokens in two layers; one does where all layers are alike, but for DistilBERT's.
_LONG = {
    "bert": {"num_hidden_layers": 1},
    "distilbert": {"n_layers": 2},
    "albert": {"num_hidden_layers": 2},
    # Log buckets that are still wide at the longest distances, up to their very last limit.
    "deberta-v2": {"max_relative_positions": POSITIONS, "position_buckets": 64, "num_hidden_layers": 1},
    # Distances beyond the span share a row.
    "deberta": {"max_relative_positions": 300},
    "xlnet": {"n_layer": 1},
    "modernbert": {"local_attention": 32, "num_hidden_layers": 2},
}


def long_settings(model_type):
    """A tiny ``config.json`` of a family, for texts of 512 tokens."""
    tiny = TINY[model_type]
    layers = {"num_hidden_layers": 2} if "num_hidden_layers" in tiny else {}
    extra = (
        tiny["max_position_embeddings"] - FAMILIES[model_type].config(tiny).max_length if model_type != "xlnet" else 0
    )
    positions = {} if model_type == "xlnet" else {"max_position_embeddings": POSITIONS + extra}
    return tiny | layers | positions | _LONG.get(model_type, {})


@dataclass(frozen=True)
class Exported:
    """A graph in torch and in onnxruntime."""

    graph: EncoderGraph
    session: onnxruntime.InferenceSession

    def run(self, inputs):
        """Answers of the file by name."""
        found = self.session.run(None, {name: value.numpy() for name, value in inputs.items()})
        return dict(zip([output.name for output in self.session.get_outputs()], found, strict=True))

    def expected(self, inputs):
        """Answers of the packed encoder by name, as padded tensors with padding on the right."""
        encoder, head = self.graph.encoder, self.graph.head
        rows = {f"{name}_BS": value.flatten(0, -2) for name, value in inputs.items()}
        packed = unpad(**rows)
        with torch.no_grad():
            answers = {HIDDEN: to_padded(encoder(packed), packed.lengths)}
            if head is not None:
                choices = inputs["input_ids"].shape[1]
                logits = head_logits(head, encoder, packed, choices=choices if self.graph.grouped else 1)
                names = [port.name for port in self.graph.outputs()[1:]]
                answers |= dict(zip(names, logits.unbind(-1) if len(names) == 2 else [logits], strict=True))
        if self.graph.grouped:
            answers[HIDDEN] = answers[HIDDEN].unflatten(0, inputs["input_ids"].shape[:2])
        return {name: value.numpy() for name, value in answers.items()}


@lru_cache(maxsize=8)  # each takes 150 MB
def exported(model_type, head=None, **changes):
    """The graph of a family with one of its heads."""
    settings = long_settings(model_type) | changes
    family = FAMILIES[model_type]
    encoder = scramble(Encoder(family.config(settings)))
    built = None if head is None else scramble(new_head(encoder.config, family.head(head, settings).kind, labels=3), 1)
    graph = EncoderGraph(encoder, built).eval()
    with TemporaryDirectory() as folder:
        write_onnx(graph, Path(folder) / "model.onnx", encoder.config.max_length, {})
        return Exported(graph, onnxruntime.InferenceSession(Path(folder) / "model.onnx"))


def batch(graph, count, length, choices=2, side="right", seed=0):
    """A padded batch; the first row is whole and each other one shorter than that before it."""
    shape = (count, choices, length) if graph.grouped else (count, length)
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(FIRST_WORD, VOCABULARY, shape, generator=generator)
    mask = torch.ones_like(ids)
    for number, row in enumerate(mask.view(-1, length)):
        padding = min(length - 1, number * length // (count * choices))
        row[length - padding :] = 0
    mask = mask.flip(-1) if side == "left" else mask
    types = (torch.arange(length) * 2 >= length).long().expand(shape).contiguous()
    made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
    return {port.name: made[port.name] for port in graph.inputs()}


def largest_difference(found, expected, mask, side="right"):
    """Between the answers of real tokens, and of whole texts; shapes must agree."""
    assert found.keys() == expected.keys()
    worst = 0.0
    for name, ours in expected.items():
        theirs = found[name]
        assert theirs.shape == ours.shape, name
        if ours.shape[: mask.dim()] == tuple(mask.shape):
            real = mask.numpy() != 0
            packed = np.flip(real, -1) if side == "left" else real
            theirs, ours = theirs[real], ours[packed]
        worst = max(worst, float(np.abs(ours - theirs).max()))
    return worst
