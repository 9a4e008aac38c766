"""The packed encoder: configuration, attention backends, layers, heads."""

from bothways.encoder.config import EncoderConfig
from bothways.encoder.encoder import Encoder, Trace, count_parameters
from bothways.encoder.heads import MaskedLMHead, MaskedLMHeadKind, Pooler, SequenceHead, SequenceHeadKind

__all__ = [
    "Encoder",
    "EncoderConfig",
    "MaskedLMHead",
    "MaskedLMHeadKind",
    "Pooler",
    "SequenceHead",
    "SequenceHeadKind",
    "Trace",
    "count_parameters",
]
