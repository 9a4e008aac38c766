"""Decoders, told from encoders by their ``config.json`` and refused by name."""

from collections.abc import Collection, Mapping

from bothways.errors import UnknownModel, UnsupportedConfig
from bothways.families import FAMILIES

# What the widely used decoders, alone or behind an encoder, call themselves.
_NAMES = """
bart bigbird_pegasus blenderbot bloom codegen cohere ctrl deepseek_v3 falcon gemma gemma2 gemma3 gemma3_text glm gpt2
gpt_bigcode gpt_neo gpt_neox gpt_oss gptj granite led llama llama4 longt5 m2m_100 mamba marian mbart mistral mixtral mpt
mt5 nemotron olmo olmo2 openai-gpt opt pegasus phi phi3 prophetnet qwen2 qwen2_moe qwen3 qwen3_moe rwkv smollm3 stablelm
starcoder2 t5 umt5 xglm
"""
DECODERS = frozenset(_NAMES.split())
ENDINGS = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


def refuse_decoder(settings: Mapping[str, object]) -> None:
    """Raise where a ``config.json`` describes a decoder.

    Raises:
        UnknownModel: It is of a family of decoders.
        UnsupportedConfig: It is of a family of encoders, but was made to generate.
    """
    model_type = settings.get("model_type")
    family = FAMILIES.get(model_type) if isinstance(model_type, str) else None
    sign = _sign(settings, model_type, () if family is None else family.architectures)
    if sign is None:
        return
    message = (
        f"this is a decoder: config.json {sign}. Decoders generate text from left to right, and only encoders are read "
        "here. To generate, open it with a library that runs decoders; to classify, tag, embed or search, take an "
        f"encoder of one of the families {', '.join(FAMILIES)}, such as 'sentence-transformers/all-MiniLM-L6-v2'."
    )
    raise UnknownModel(message) if family is None else UnsupportedConfig(message)


def _sign(settings: Mapping[str, object], model_type: object, encoders: Collection[str]) -> str | None:
    """Return what gives a decoder away; None where nothing does."""
    if isinstance(model_type, str) and model_type in DECODERS:
        return f"names the model_type {model_type!r}"
    for name in ("is_decoder", "is_encoder_decoder"):
        if settings.get(name) is True:
            return f"sets {name} to True"
    architectures = settings.get("architectures")
    named = architectures[0] if isinstance(architectures, list) and architectures else None
    if isinstance(named, str) and named.endswith(ENDINGS) and named not in encoders:
        return f"names the architecture {named!r}"
    return None
