"""The base model of a classifier, and the words whose vectors moved furthest from it.

Shapes: V words, E embedding width.
"""

from typing import TYPE_CHECKING

import numpy as np

from bothways.audit.backdoor.probe import Probe
from bothways.audit.context import Context, NeedUnmet

if TYPE_CHECKING:
    from bothways.checkpoints import PretrainedEncoder

_POOL = 300
"""Words that moved furthest."""


def base_model(context: Context) -> "PretrainedEncoder | None":
    """Return the base model: the reference, or the MiniLM that is installed, if it has the model's tokenizer."""
    from bothways.checkpoints import MINILM, PretrainedEncoder, load
    from bothways.errors import BothwaysError

    try:
        base = context.reference
    except NeedUnmet:
        try:
            base = load(MINILM, device="cpu")
        except BothwaysError:
            return None
    encoder = base if isinstance(base, PretrainedEncoder) else getattr(base, "model", None)
    digest = context.classifier.model.tokenizer.vocabulary_digest()
    if not isinstance(encoder, PretrainedEncoder) or encoder.tokenizer.vocabulary_digest() != digest:
        return None
    return encoder


def moved_words(probe: Probe, base: "PretrainedEncoder") -> list[int]:
    """Return tokens whose vectors moved furthest from the base model's; none where the table was frozen."""
    table_VE = base.encoder.embedding.tokens.weight.detach().float().cpu().numpy()
    ids_V = np.array(probe.words())
    own_VE = probe.table(ids_V)
    if own_VE.shape[1] != table_VE.shape[1]:
        return []
    moved_V = np.linalg.norm(own_VE - table_VE[ids_V], axis=1)
    furthest = np.argsort(-moved_V, kind="stable")[:_POOL]
    moved = [int(ids_V[place]) for place in furthest if moved_V[place] > 0]
    # A table that was frozen says nothing of the words that were trained.
    return moved if len(moved) == min(_POOL, len(ids_V)) else []
