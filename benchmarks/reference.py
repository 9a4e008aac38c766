"""Yardsticks: the right vectors, the rate of matrix products at the encoder's shapes, and a peer's fastest batch."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from benchmarks.harness import Spread, minilm_folder, ratios
from benchmarks.texts import MAX_TOKENS, Workload

HIDDEN, INTERMEDIATE, LAYERS = 384, 1536, 6
PRODUCTS = "matrix products"
TRAINING_FACTOR = 3  # a backward pass multiplies twice for each product of the forward
COSINE_AT_LEAST, DIFFERENCE_AT_MOST = 0.99999, 1e-4
BATCHES = (1, 2, 4, 8, 16, 32)
# Time falls with the calls that are saved and rises with padding and with tensors that leave the cache: beyond this
# multiple of the fastest, a larger batch is not tried.
HOPELESS = 1.25


class Reference:
    """transformers in float64, eager attention, only texts of equal length together: no padding anywhere."""

    def __init__(self, threads: int) -> None:
        import torch
        from transformers import AutoModel, AutoTokenizer

        torch.set_num_threads(threads)
        self._torch = torch
        folder = minilm_folder()
        self._tokenizer = AutoTokenizer.from_pretrained(folder, model_max_length=MAX_TOKENS)
        self._model = AutoModel.from_pretrained(folder, attn_implementation="eager").double().eval()

    def vectors(self, texts: Sequence[str]) -> np.ndarray:
        """Return unit vectors [texts, 384] in float64."""
        ids = self._tokenizer(list(texts), truncation=True)["input_ids"]
        rows_of_length: dict[int, list[int]] = defaultdict(list)
        for row, sequence in enumerate(ids):
            rows_of_length[len(sequence)].append(row)
        vectors = np.empty((len(ids), HIDDEN))
        with self._torch.inference_mode():
            for rows in rows_of_length.values():
                for start in range(0, len(rows), 16):
                    part = rows[start : start + 16]
                    hidden_BSH = self._model(self._torch.tensor([ids[row] for row in part])).last_hidden_state
                    vectors[part] = self._torch.nn.functional.normalize(hidden_BSH.mean(1), dim=1).numpy()
        return vectors


@dataclass(frozen=True)
class Deviation:
    """The distance of a contestant's vectors from the reference."""

    min_cosine: float
    max_difference: float  # of one component
    deviating: int  # texts outside the bounds
    shortest_deviating: int | None  # tokens of the shortest of them

    @classmethod
    def between(cls, vectors: np.ndarray, reference: np.ndarray, workload: Workload) -> "Deviation":
        """Compare vectors [texts, 384] text by text."""
        if vectors.shape != reference.shape:
            raise ValueError(f"expected vectors of shape {reference.shape}, got {vectors.shape}")
        exact = vectors.astype(np.float64)
        cosines = (exact * reference).sum(1) / np.linalg.norm(exact, axis=1) / np.linalg.norm(reference, axis=1)
        differences = np.abs(exact - reference).max(1)
        wrong = np.flatnonzero(~((cosines >= COSINE_AT_LEAST) & (differences <= DIFFERENCE_AT_MOST)))
        shortest = min((workload.tokens[row] for row in wrong), default=None)
        return cls(float(cosines.min()), float(differences.max()), len(wrong), shortest)

    def text(self) -> str:
        """Return the text for a table."""
        if not self.deviating:
            return "agrees"
        return f"**deviates** on {self.deviating} texts, the shortest of {self.shortest_deviating} tokens"


class MatrixProducts:
    """float32 matrix products by the faster of torch's default and oneDNN: the rate that no encoder can pass."""

    def __init__(self, threads: int) -> None:
        import torch

        torch.set_num_threads(threads)
        self._torch = torch

    def rate(self, tokens: int, seconds: float) -> dict[str, float]:
        """Return FLOP/s at the shapes of the encoder with ``tokens`` rows.

        The seconds are process CPU time at one thread, wall time at several.
        """
        torch = self._torch
        shapes = ((HIDDEN, 3 * HIDDEN), (HIDDEN, HIDDEN), (HIDDEN, INTERMEDIATE), (INTERMEDIATE, HIDDEN))
        operands = [(torch.randn(tokens, k), torch.randn(n, k), torch.empty(tokens, n)) for k, n in shapes]
        flop = 2 * tokens * sum(k * n for k, n in shapes)

        def default() -> None:
            for left, right, out in operands:
                torch.mm(left, right.T, out=out)

        def onednn() -> None:
            for left, right, _ in operands:
                torch.ops.mkldnn._linear_pointwise(left, right, None, "none", [], "")

        with torch.inference_mode():
            return {"rate": flop / min(self._seconds(run, seconds) for run in (default, onednn))}

    def _seconds(self, run: Callable[[], None], seconds: float) -> float:
        """Return the seconds of one run, averaged over as many as fit into ``seconds``."""
        run()
        done, began = 0, self._clock()
        while (elapsed := self._clock() - began) < seconds:
            run()
            done += 1
        return elapsed / done

    def _clock(self) -> float:
        return time.process_time() if self._torch.get_num_threads() == 1 else time.perf_counter()


def floating_point_operations(
    tokens: Sequence[int], hidden: int = HIDDEN, inner: int = INTERMEDIATE, layers: int = LAYERS
) -> float:
    """Return the FLOP that an encoder, by default MiniLM's, needs for texts of these lengths, padding not counted.

    Per token and layer 2 for each parameter of the linear layers (4 H^2 + 2 H F) and 4 n H for the scores and the
    weighted sum of an n-token text. Embeddings, normalisations and GELU are left out.
    """
    linear = 2 * (4 * hidden**2 + 2 * hidden * inner)
    return float(sum(layers * n * (linear + 4 * n * hidden) for n in tokens))


def timed_figures(
    name: str,
    rounds: Mapping[str, list[dict[str, float]]],
    tokens: Sequence[int],
    flop: float,
    clock: Literal["cpu", "wall"],
) -> dict[str, Any]:
    """Return the figures of a contestant whose rounds stand beside those of `MatrixProducts`."""
    singles = rounds[name]
    shares = [flop / one[clock] / product["rate"] for one, product in zip(singles, rounds[PRODUCTS], strict=True)]
    return {
        "rounds": singles,
        **{key: Spread.of([single[key] for single in singles]) for key in ("wall", "cpu")},
        "tokens_per_second": Spread.of([sum(tokens) / single["wall"] for single in singles]),
        "fraction_of_products": Spread.of(shares),
    }


def speedup(rounds: Mapping[str, list[dict[str, float]]], base: str, name: str, key: str) -> Spread | None:
    """Return the speed of a contestant as a multiple of another's; None where that was not run."""
    if base not in rounds:
        return None
    return ratios(*([single[key] for single in rounds[each]] for each in (base, name)))


@dataclass(frozen=True)
class Trial:
    """A short trial of batches before anything is measured, as a careful user of a peer would make it."""

    batch: int  # the fastest
    seconds: dict[int, float]  # of one run by batch, smallest batch first

    @classmethod
    def of(cls, seconds_at: Callable[[int], float], most: int, batches: Sequence[int] = BATCHES) -> "Trial":
        """Run once at each batch up to ``most`` sequences, ending early where more of them only slow it down."""
        seconds: dict[int, float] = {}
        for batch in batches:
            if seconds and (batch > most or seconds[max(seconds)] > HOPELESS * min(seconds.values())):
                break
            seconds[batch] = seconds_at(batch)
        return cls(min(seconds, key=seconds.__getitem__), seconds)
