"""Checkpoints on disk and on the hub: found, checked, opened and saved."""

from bothways.checkpoints.checkpoint import Checkpoint, open_checkpoint
from bothways.checkpoints.files import fingerprint
from bothways.checkpoints.hub import MINILM
from bothways.checkpoints.output import EncoderOutput, HeadOutput
from bothways.checkpoints.pretrained import PretrainedEncoder, load, pretrained

__all__ = [
    "MINILM",
    "Checkpoint",
    "EncoderOutput",
    "HeadOutput",
    "PretrainedEncoder",
    "fingerprint",
    "load",
    "open_checkpoint",
    "pretrained",
]
