"""Finding, checking, opening and saving checkpoints, on disk and on the hub.

The names are imported when they are first used (PEP 562), so that torch is loaded only if it is needed.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.checkpoints.calls import EncoderOutput, HeadOutput
    from bothways.checkpoints.checkpoint import Checkpoint, open_checkpoint
    from bothways.checkpoints.files import fingerprint
    from bothways.checkpoints.golden import Answering, ModelAnswer, stored_inputs, write_golden
    from bothways.checkpoints.golden_check import check_folder
    from bothways.checkpoints.golden_encoder import AnsweringEncoder
    from bothways.checkpoints.hub import MINILM, has_weights, is_installed, locate, open_tokenizer
    from bothways.checkpoints.pretrained import PretrainedEncoder, load
    from bothways.checkpoints.schema import GOLDEN_FILE, OURS
    from bothways.checkpoints.sentence_transformers import is_cross_encoder

__all__ = [
    "GOLDEN_FILE",
    "MINILM",
    "OURS",
    "Answering",
    "AnsweringEncoder",
    "Checkpoint",
    "EncoderOutput",
    "HeadOutput",
    "ModelAnswer",
    "PretrainedEncoder",
    "check_folder",
    "fingerprint",
    "has_weights",
    "is_cross_encoder",
    "is_installed",
    "load",
    "locate",
    "open_checkpoint",
    "open_tokenizer",
    "stored_inputs",
    "write_golden",
]

_MODULES = {
    "calls": ("EncoderOutput", "HeadOutput"),
    "checkpoint": ("Checkpoint", "open_checkpoint"),
    "files": ("fingerprint",),
    "golden": ("Answering", "ModelAnswer", "stored_inputs", "write_golden"),
    "golden_check": ("check_folder",),
    "golden_encoder": ("AnsweringEncoder",),
    "hub": ("MINILM", "has_weights", "is_installed", "locate", "open_tokenizer"),
    "pretrained": ("PretrainedEncoder", "load"),
    "schema": ("GOLDEN_FILE", "OURS"),
    "sentence_transformers": ("is_cross_encoder",),
}
__getattr__ = loader(__name__, _MODULES)
