"""MiniLM as an ONNX graph and as ctranslate2's files, for the runtimes that read these.

sentence-transformers makes its onnx and openvino backends' graphs with optimum-onnx and optimum-intel. The releases
current at the time of writing (optimum-onnx 0.1.0: transformers < 4.58; optimum-intel 2.2.0: transformers < 5.6) do not
import beside transformers 5.23, so the graph is exported here by ``torch.onnx`` and run directly, in the same order
and the same batches as sentence-transformers would. The eager attention is exported: its graph has fewer nodes than
sdpa's and is the faster one (about 4 % at 200 tokens, equal at 28). onnxruntime's own BERT fusions (bias + GELU, skip +
layer norm) changed nothing beyond noise, so the graph is left to the session's default optimisations.
"""

import contextlib
import io
import warnings
from pathlib import Path

from benchmarks.texts import other_sentences

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def export(path: Path, checkpoint: Path) -> None:
    """Write the encoder's graph, ids and mask to last hidden state, with free batch and length, to ``path``."""
    import torch
    from torch.export import Dim
    from transformers import AutoModel

    class Encoder(torch.nn.Module):
        """The model with positional inputs and one output."""

        def __init__(self) -> None:
            super().__init__()
            self.model = AutoModel.from_pretrained(checkpoint, attn_implementation="eager").eval()

        def forward(
            self, input_ids: torch.Tensor, attention_mask: torch.Tensor, token_type_ids: torch.Tensor
        ) -> torch.Tensor:
            """Last hidden state."""
            output = self.model(input_ids=input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
            return output.last_hidden_state

    ids = torch.arange(1000, 1027).reshape(3, 9)
    mask = torch.ones_like(ids)
    mask[1, 5:] = 0
    free = {0: Dim("batch"), 1: Dim("length")}
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        torch.onnx.export(
            Encoder(),
            (ids, mask, torch.zeros_like(ids)),
            str(path),
            dynamo=True,
            input_names=list(INPUTS),
            output_names=["last_hidden_state"],
            dynamic_shapes=(free, free, free),
            external_data=False,
            opset_version=18,
        )


def ctranslate2_folder(graph: Path) -> Path:
    """Where ctranslate2's files of a graph's checkpoint lie."""
    return graph.with_name("ctranslate2")


def int8_graph(graph: Path) -> Path:
    """Where the graph with weights in int8 lies."""
    return graph.with_name("minilm-int8.onnx")


def our_int8_folder(graph: Path) -> Path:
    """Where our model in int8 lies."""
    return graph.with_name("bothways-int8")


def our_light_folder(graph: Path) -> Path:
    """Where our own export lies, which answers without torch."""
    return graph.with_name("bothways-light")


class GraphExporter:
    """What a worker serves to export in a process of its own, so that the measuring ones stay small."""

    def export(self, graph: Path, checkpoint: Path) -> None:
        """Write the graph."""
        export(graph, checkpoint)

    def convert(self, graph: Path, checkpoint: Path) -> None:
        """Write ctranslate2's files beside the graph; nothing where the package is missing, as the contestant says."""
        with contextlib.suppress(ImportError):
            from ctranslate2.converters import TransformersConverter

            TransformersConverter(str(checkpoint)).convert(str(ctranslate2_folder(graph)))

    def quantize(self, graph: Path) -> None:
        """Write the graph in int8 as onnxruntime's guide for transformers has it: dynamic, a scale for each output."""
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(graph, int8_graph(graph), per_channel=True, weight_type=QuantType.QInt8)

    def export_ours(self, graph: Path, checkpoint: Path) -> None:
        """Write our own export of the checkpoint."""
        from bothways.export import export as write

        write(checkpoint, our_light_folder(graph), format="onnx")

    def quantize_ours(self, graph: Path, checkpoint: Path, texts: int) -> dict[str, object]:
        """Write our model in int8, fitted to so many sentences that are not embedded; return what it lost."""
        from bothways.quantization import quantize

        return quantize(checkpoint, our_int8_folder(graph), other_sentences()[:texts], show_progress=False).to_dict()
