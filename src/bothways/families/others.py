"""Encoders that are not built: how their checkpoints are recognised, and what they are."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class OtherEncoder:
    """An encoder that is not built, and the signs of its checkpoints.

    Attributes:
        title: Its name.
        difference: The parts that no family here has.
        model_types: Its names in ``config.json``.
        code: Parts of the names of its classes or of their repository, in ``auto_map`` or ``architectures``.
        settings: Settings that only its checkpoints have; None stands for any value.
        tensors: Parts of the names of its tensors.
    """

    title: str
    difference: str
    model_types: tuple[str, ...] = ()
    code: tuple[str, ...] = ()
    settings: Mapping[str, tuple[object, ...] | None] = field(default_factory=dict)
    tensors: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.title} ({self.difference})"


# The first that fits is named. The signs of some others include those of JinaBERT.
OTHER_ENCODERS = (
    OtherEncoder(
        "Jina's XLM-R",
        "XLM-R under other names, from v3 on with rotary positions and adapters",
        ("jina_embeddings_v3",),
        ("XLMRobertaFlash", "XLMRobertaLoRA", "xlm-roberta-flash"),
        {"lora_adaptations": None, "load_trained_adapters": None},
        (".mixer.Wqkv.",),
    ),
    OtherEncoder(
        "MosaicBERT",
        "BERT with ALiBi positions and gated feed-forward layers, also DNABERT-2",
        code=("bert_layers.",),
        settings={"alibi_starting_size": None},
        tensors=(".attention.self.Wqkv.",),
    ),
    OtherEncoder(
        "JinaBERT",
        "BERT with ALiBi positions and gated feed-forward layers",
        code=("JinaBert", "jina-bert"),
        settings={"feed_forward_type": None, "emb_pooler": None, "position_embedding_type": ("alibi",)},
        tensors=(".mlp.gated_layers.", ".mlp.up_gated_layer."),
    ),
    OtherEncoder("NomicBERT", "rotary positions, SwiGLU layers", ("nomic_bert",), ("NomicBert",)),
    OtherEncoder(
        "GTE",
        "rotary positions, GeGLU layers",
        ("new", "gte"),
        ("modeling.New", "new-impl"),
        {"pack_qkv": None, "unpad_inputs": None},
        (".attention.qkv_proj.", ".mlp.up_gate_proj."),
    ),
    OtherEncoder("UltraBERT", "rotary positions, gated layers, RMSNorm", ("ultrabert",)),
    OtherEncoder("NeoBERT", "rotary positions, SwiGLU layers, RMSNorm", ("neobert",), ("NeoBERT",)),
    OtherEncoder("EuroBERT", "rotary positions, SwiGLU layers, RMSNorm", ("eurobert",), ("EuroBert",)),
    OtherEncoder(
        "ChineseBERT",
        "embeddings of glyphs and pinyin",
        settings={"glyph_embedding_dim": None, "pinyin_map_len": None},
        tensors=("glyph_", "pinyin_"),
    ),
    OtherEncoder("MPNet", "a bias for relative positions", ("mpnet",)),
    OtherEncoder("Longformer", "sparse attention over long texts", ("longformer",)),
    OtherEncoder("BigBird", "sparse attention over long texts", ("big_bird",)),
    OtherEncoder("Funnel Transformer", "layers that pool tokens", ("funnel",)),
    OtherEncoder("MobileBERT", "bottlenecks in each layer", ("mobilebert",)),
    OtherEncoder("SqueezeBERT", "grouped convolutions", ("squeezebert",)),
    OtherEncoder("ConvBERT", "convolutions beside attention", ("convbert",)),
    OtherEncoder("RoFormer", "rotary positions", ("roformer",)),
    OtherEncoder("NEZHA", "relative positions", ("nezha",)),
    OtherEncoder("ERNIE", "embeddings of tasks", ("ernie", "ernie_m")),
    OtherEncoder("RemBERT", "separate input and output embeddings", ("rembert",)),
    OtherEncoder("XLM", "embeddings of languages", ("xlm", "flaubert")),
    OtherEncoder("X-MOD", "modules for languages", ("xmod",)),
    OtherEncoder("Megatron-BERT", "norms before each block", ("megatron-bert",)),
    OtherEncoder("pre-norm RoBERTa", "norms before each block", ("roberta-prelayernorm", "xlm-roberta-xl")),
    OtherEncoder("LUKE", "embeddings of entities", ("luke", "mluke")),
    OtherEncoder("CANINE", "characters instead of tokens", ("canine",)),
    OtherEncoder("data2vec", "layers of RoBERTa under other names", ("data2vec-text",)),
    OtherEncoder("I-BERT", "RoBERTa in integers", ("ibert",)),
    OtherEncoder("RoCBert", "embeddings of shape and pronunciation", ("roc_bert",)),
    OtherEncoder("TAPAS", "positions in tables", ("tapas",)),
    OtherEncoder("Reformer", "hashed attention", ("reformer",)),
    OtherEncoder("YOSO", "hashed attention", ("yoso",)),
    OtherEncoder("MRA", "approximate attention", ("mra",)),
    OtherEncoder("FNet", "Fourier transforms instead of attention", ("fnet",)),
    OtherEncoder("Nyströmformer", "approximate attention", ("nystromformer",)),
    OtherEncoder("LayoutLM", "positions on a page", ("layoutlm", "layoutlmv2", "layoutlmv3", "lilt")),
    OtherEncoder("ESM", "an encoder of proteins", ("esm", "esmc")),
)


def recognise(settings: Mapping[str, object], tensors: Iterable[str] = ()) -> OtherEncoder | None:
    """Return the encoder that is not built of which a checkpoint has signs; None without signs.

    ``tensors`` are names of tensors that the family in ``config.json`` does not have.
    """
    code = json.dumps([settings.get("auto_map"), settings.get("architectures")], default=str)
    names = tuple(tensors)
    return next((each for each in OTHER_ENCODERS if _has_signs(each, settings, code, names)), None)


def _has_signs(other: OtherEncoder, settings: Mapping[str, object], code: str, tensors: tuple[str, ...]) -> bool:
    return (
        settings.get("model_type") in other.model_types
        or any(part in code for part in other.code)
        or any(
            settings.get(name) is not None and (values is None or settings[name] in values)
            for name, values in other.settings.items()
        )
        or any(part in name for part in other.tensors for name in tensors)
    )
