"""The packed encoder: configuration, attention backends, layers, heads.

The names are imported when they are first used (PEP 562), so that modules which need no torch do not load it.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.encoder.attention import Recorder
    from bothways.encoder.config import EncoderConfig
    from bothways.encoder.encoder import Encoder
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
]

_MODULES = {
    "attention": ("Recorder",),
    "config": ("EncoderConfig",),
    "encoder": ("Encoder",),
    "head_kinds": ("HeadKind", "MaskedLMHeadKind", "ScoreHeadKind"),
    "heads": ("Head", "MaskedLMHead", "Pooler", "ScoreHead"),
}
__getattr__ = loader(__name__, _MODULES)
