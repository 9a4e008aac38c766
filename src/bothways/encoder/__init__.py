"""The packed encoder: configuration, attention backends, layers, heads.

The names are imported when they are first used (PEP 562), so that modules without torch load none.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.encoder.attention import Recorder
    from bothways.encoder.config import EncoderConfig
    from bothways.encoder.encoder import Encoder, count_parameters
    from bothways.encoder.head_kinds import HeadKind, MaskedLMHeadKind, ScoreHeadKind
    from bothways.encoder.heads import Head, MaskedLMHead, Pooler, ScoreHead

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

_HOMES = {
    "Encoder": "bothways.encoder.encoder",
    "EncoderConfig": "bothways.encoder.config",
    "Head": "bothways.encoder.heads",
    "HeadKind": "bothways.encoder.head_kinds",
    "MaskedLMHead": "bothways.encoder.heads",
    "MaskedLMHeadKind": "bothways.encoder.head_kinds",
    "Pooler": "bothways.encoder.heads",
    "Recorder": "bothways.encoder.attention",
    "ScoreHead": "bothways.encoder.heads",
    "ScoreHeadKind": "bothways.encoder.head_kinds",
    "count_parameters": "bothways.encoder.encoder",
}

__getattr__ = loader(__name__, _HOMES)
