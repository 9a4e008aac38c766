"""Why ours was 2.8 points of Spearman's correlation ahead of the Trainer on STS-B: one difference at a time.

The published runs differed in four things: the Trainer grouped rows by length, decayed no weights and kept the last
epoch, and ours did not. Since then ours learns standardised scores and begins its head at a linear model. Each variant
below is one of the two sides as it was then, but for what its name adds. Encoder, head, pooler, dropout, loss on raw
scores, clipping, warm-up, rate, batch and epochs were the same on both sides.
"""

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest import mock

from benchmarks.our_side import OurSide
from benchmarks.task_data import TaskData
from benchmarks.trainer_peers import WEIGHT_DECAY, SequencePeer, common_settings, grouped_settings

OURS_BEFORE, PEER_BEFORE = "ours as published", "peer as published"


class OursBefore(OurSide):
    """Ours before it standardised scores and began at a linear model, or with one of these.

    Args:
        threads: Compute threads.
        device: ``cpu`` or ``cuda``.
        standardises: Learn standardised scores.
        linear_start: Begin the head at a linear model of the frozen encoder.
    """

    def __init__(self, threads: int, device: str, *, standardises: bool = False, linear_start: bool = False) -> None:
        super().__init__(threads, device)
        self._standardises, self._linear_start = standardises, linear_start

    def fit(self, data: TaskData, seed: int) -> None:
        """Train with the package changed meanwhile; it has no options for these."""
        from bothways.tasks.labels import LabelOutputs
        from bothways.tasks.targets import Regression

        with ExitStack() as stack:
            if not self._standardises:
                stack.enter_context(mock.patch.object(Regression, "standardized", return_value=Regression()))
            if not self._linear_start:
                stack.enter_context(mock.patch.object(LabelOutputs, "start_strength", None))
            super().fit(data, seed)


def _ours(**changes: bool) -> Callable[[int, str], Any]:
    return lambda threads, device: OursBefore(threads, device, **changes)


def _peer(
    *, grouped: bool = True, decay: float = 0.0, chooses_epoch: bool = False, standardises: bool = False
) -> Callable[[int, str], Any]:
    def settings(epochs: int) -> dict[str, Any]:
        return {**(grouped_settings if grouped else common_settings)(epochs), "weight_decay": decay}

    def made(threads: int, device: str) -> SequencePeer:
        peer = SequencePeer(threads, device, settings=settings)
        peer.chooses_epoch, peer.standardises = chooses_epoch, standardises
        return peer

    return made


CAUSES: dict[str, Callable[[int, str], Any]] = {
    OURS_BEFORE: _ours(),
    "ours, standardised scores": _ours(standardises=True),
    "ours, linear start": _ours(linear_start=True),
    PEER_BEFORE: _peer(),
    "peer, random order": _peer(grouped=False),
    "peer, weight decay": _peer(decay=WEIGHT_DECAY),
    "peer, chosen epoch": _peer(chooses_epoch=True),
    "peer, standardised scores, otherwise as published": _peer(standardises=True),
    "peer, all of ours as published": _peer(grouped=False, decay=WEIGHT_DECAY, chooses_epoch=True),
}
