"""The packed encoder: configuration, attention backends, layers, heads."""

from bothways.encoder.config import EncoderConfig
from bothways.encoder.encoder import Encoder, Trace, count_parameters
from bothways.encoder.heads import Head, HeadKind, MaskedLMHead, MaskedLMHeadKind, Pooler, ScoreHead, ScoreHeadKind

__all__ = [
    "Encoder",
    "EncoderConfig",
    "Head",
    "HeadKind",
    "MaskedLMHead",
    "MaskedLMHeadKind",
    "Pooler",
    "ScoreHead",
    "ScoreHeadKind",
    "Trace",
    "count_parameters",
]
