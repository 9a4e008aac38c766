"""The packed encoder: configuration, attention backends, layers, heads."""

from bothways.encoder.config import EncoderConfig
from bothways.encoder.encoder import Encoder, count_parameters
from bothways.encoder.heads import Head, HeadKind, MaskedLMHead, MaskedLMHeadKind, Pooler, ScoreHead, ScoreHeadKind
from bothways.encoder.run import Recorder

__all__ = [
    "Encoder",
    "EncoderConfig",
    "Head",
    "HeadKind",
    "MaskedLMHead",
    "MaskedLMHeadKind",
    "Pooler",
    "Recorder",
    "ScoreHead",
    "ScoreHeadKind",
    "count_parameters",
]
