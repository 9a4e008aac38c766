"""Choose the library for float32 matrix products on a CPU: torch's default, or oneDNN.

On x86 CPUs torch multiplies with MKL and also carries oneDNN. The faster one depends on the processor: on a Zen 5 core
oneDNN runs at 2.2 times MKL's rate, on Zen 4 at 1.1 times, and on some Intel processors MKL is ahead. In inference,
where weights do not change, oneDNN can also read them in a layout of its own ("packed"). On some processors, that is
faster only for few rows: on Zen 3, for one text but not for a batch. All variants are timed before the first product.
The choice is kept in a file, since results of the libraries differ by rounding and should not change between runs.

Shapes: T rows, I and O widths.
"""

import json
import os
import platform
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F  # noqa: N812  (the field's own name for it)
from torch import Tensor

from bothways.errors import BothwaysError, InvalidInput
from bothways.storage import new_file
from bothways.threads import calling_thread_alone

Library = Literal["torch", "onednn"]

VARIABLE = "BOTHWAYS_MATRIX_PRODUCT"
"""Environment variable that forces a library: ``torch``, ``onednn``, or ``packed`` for oneDNN with packed weights."""

# Batches are padded to multiples of this number of rows, so a batch of up to 2,048 tokens has one of 32 sizes.
ROW_BLOCK = 64
# Smaller multiples for batches of up to 64, 128 and 256 rows with packed weights, where they are faster.
_SMALL_BLOCKS = {64: 8, 128: 16, 256: 32}
ROWS_AT_ONCE = 384
"""Number of rows that stay in a processor's cache from one operation to the next."""

FEW_ROWS = max(_SMALL_BLOCKS)
"""Maximum rows of a small batch."""
ALL_ROWS = sys.maxsize

_ROUNDS, _SHAPE = 12, (128, 384, 1536)
# Eight weights of 2.4 MB, which do not stay in a processor's cache, like those of a model.
_WEIGHTS, _FEW, _MANY_ROUNDS = 8, 16, 5
_AHEAD, _FAR_AHEAD = 1.05, 1.5


@dataclass(frozen=True, slots=True)
class MatrixProduct:
    """A library and the settings for its use.

    oneDNN compiles code for each number of rows, so batches are padded with rows of zeros to a multiple of `ROW_BLOCK`.
    `filling` is the maximum number of added rows, as a share of the batch. In inference, weights are packed for batches
    of up to `packed_rows` rows; 0 packs no weights.
    """

    library: Library
    filling: float
    packed_rows: int = 0


TORCH = MatrixProduct("torch", 0.0)
ONEDNN_SLIGHTLY_AHEAD = MatrixProduct("onednn", 0.06)
ONEDNN = MatrixProduct("onednn", 1 / 3)
_FORCED = {"torch": TORCH, "onednn": ONEDNN, "packed": replace(ONEDNN, packed_rows=ALL_ROWS)}


@cache
def matrix_product() -> MatrixProduct:
    """Return the library that `VARIABLE` forces, else the stored choice of this machine, else the faster library."""
    available = _has_onednn()
    forced = os.environ.get(VARIABLE)
    if forced:
        if forced not in _FORCED or (forced != "torch" and not available):
            expected = (
                "'torch', 'onednn' or 'packed'" if available else "'torch' (this build of torch carries no oneDNN)"
            )
            raise InvalidInput(f"expected {expected} in the environment variable {VARIABLE}, got {forced!r}.")
        return _FORCED[forced]
    return _remembered(cache_folder() / "matrix-product.json") if available else TORCH


def onednn_product(x_TI: Tensor, weight_OI: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """Return ``x W^T + b`` (T, O) by oneDNN, which reads views with any strides."""
    y_TO: Tensor = torch.ops.mkldnn._linear_pointwise(x_TI, weight_OI, bias_O, "none", [], "")
    return y_TO


def packed(weight_OI: Tensor) -> Tensor:
    """Return a copy of a weight in oneDNN's fastest layout, which only `onednn_product` reads."""
    packed_OI: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), _SHAPE[0])
    return packed_OI


def packed_block(rows: int) -> int:
    """Return the number whose multiple a batch of ``rows`` rows is padded to if the weights are packed."""
    for most, block in _SMALL_BLOCKS.items():
        if rows <= most:
            return block
    return ROW_BLOCK


def in_parts(work: Callable[[Tensor], Tensor], x_TI: Tensor, outputs: int) -> Tensor:
    """Apply ``work`` to blocks of rows that fit into the cache, and return the results (T, O); O is ``outputs``.

    With more than `ROWS_AT_ONCE` rows, the results have the dtype of ``x_TI``, else the dtype that ``work`` returns.
    """
    rows = x_TI.shape[0]  # in torch, `len` of a tensor takes longer
    if rows <= ROWS_AT_ONCE:
        return work(x_TI)
    y_TO = x_TI.new_empty(rows, outputs)
    for start in range(0, rows, ROWS_AT_ONCE):
        y_TO[start : start + ROWS_AT_ONCE] = work(x_TI[start : start + ROWS_AT_ONCE])
    return y_TO


@cache
def has_bfloat16_product() -> bool:
    """Return True if the processor has instructions for bfloat16 (AVX-512 BF16 or AMX) and oneDNN may use them."""
    if not (_has_onednn() and (torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())):
        return False
    try:
        packed(torch.zeros(1, 1, dtype=torch.bfloat16))
    except RuntimeError:  # the environment variable ONEDNN_MAX_CPU_ISA forbids them
        return False
    return True


def cache_folder() -> Path:
    """Return the folder for cached measurements of this machine; it may not exist yet."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bothways"


def _has_onednn() -> bool:
    """Return True if this build of torch has oneDNN's operators, which are missing on some platforms."""
    is_available: Callable[[], bool] = torch.backends.mkldnn.is_available
    return is_available() and all(
        hasattr(torch.ops.mkldnn, name) for name in ("_linear_pointwise", "_reorder_linear_weight")
    )


def _remembered(file: Path) -> MatrixProduct:
    """Return the choice stored in a file for this machine; if there is none, measure, choose and store it."""
    choices = {
        f"{each.library} {each.filling:.2f} packed up to {rows}": replace(each, packed_rows=rows)
        for each in (TORCH, ONEDNN_SLIGHTLY_AHEAD, ONEDNN)
        for rows in (0, FEW_ROWS, ALL_ROWS)
    }
    machine, known = _machine(), _read(file)
    if known.get(machine) in choices:
        return choices[known[machine]]
    chosen = _faster(*_speedups())
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with new_file(file) as out:
            json.dump(known | {machine: next(name for name, each in choices.items() if each == chosen)}, out, indent=1)
    except (OSError, BothwaysError):
        pass  # the home is read-only: each process measures for itself
    return chosen


def _read(file: Path) -> dict[str, str]:
    """Return the contents of a file; nothing if it is missing or damaged."""
    try:
        known = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _faster(trained: float, few: float, many: float) -> MatrixProduct:
    """Choose by the three speedups of oneDNN that `_speedups` measures."""
    ahead = ONEDNN_SLIGHTLY_AHEAD if trained < _FAR_AHEAD else ONEDNN
    packed_rows = 0 if few < _AHEAD else FEW_ROWS if many < _AHEAD else ALL_ROWS
    return replace(TORCH if trained < _AHEAD else ahead, packed_rows=packed_rows)


def _speedups() -> tuple[float, float, float]:
    """Measure three speedups of oneDNN over the alternative library, each from the fastest of several rounds.

    The first is for training: the forward and both backward products, against torch. The others are for forward
    products with packed weights: for few rows, against torch; for many rows, against the library chosen for training.
    Many rows are timed on the calling thread alone, since in use each thread computes its own batch.
    """
    rows, width, inner = _SHAPE
    x_TI, weight_OI, y_TO = (torch.ones(shape) for shape in ((rows, width), (inner, width), (rows, inner)))
    with torch.inference_mode():
        trained = _ratio(
            lambda: (F.linear(x_TI, weight_OI), y_TO @ weight_OI, y_TO.t() @ x_TI),
            lambda: (
                onednn_product(x_TI, weight_OI),
                onednn_product(y_TO, weight_OI.t()),
                onednn_product(y_TO.t(), x_TI.t()),
            ),
            _ROUNDS,
        )
        weights = [weight_OI.clone() for _ in range(_WEIGHTS)]
        packed_weights = [packed(each) for each in weights]
        few_TI, many_TI = torch.ones(_FEW, width), torch.ones(ROWS_AT_ONCE, width)
        unpacked = F.linear if trained < _AHEAD else onednn_product
        few = _ratio(
            lambda: [F.linear(few_TI, each) for each in weights],
            lambda: [onednn_product(few_TI, each) for each in packed_weights],
            _ROUNDS,
        )
        with calling_thread_alone():
            many = _ratio(
                lambda: [unpacked(many_TI, each) for each in weights],
                lambda: [onednn_product(many_TI, each) for each in packed_weights],
                _MANY_ROUNDS,
            )
    return trained, few, many


def _ratio(usual: Callable[[], object], other: Callable[[], object], rounds: int) -> float:
    """Return the shortest time of ``usual`` divided by that of ``other``, from interleaved rounds."""
    seconds = [(_seconds(usual), _seconds(other)) for _ in range(rounds)]
    return min(first for first, _ in seconds) / min(second for _, second in seconds)


def _seconds(run: Callable[[], object]) -> float:
    """Return the processor time of the calling thread for one run, which other processes hardly change.

    The sum over all threads would depend on how long idle threads spin.
    """
    start = time.thread_time()
    run()
    return time.thread_time() - start


def _machine() -> str:
    """Return the key under which the choice is stored: processor, version of torch and number of threads."""
    return f"{_processor()}, torch {torch.__version__}, {torch.get_num_threads()} threads"


def _processor() -> str:
    """Return the processor's name and model numbers, since the name is often just a brand in virtual machines."""
    file = Path("/proc/cpuinfo")
    if not file.is_file():
        return f"{platform.processor() or platform.machine()}"
    lines = file.read_text(encoding="utf-8", errors="replace").partition("\n\n")[0].splitlines()
    fields = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    names = ("model name", "cpu family", "model", "stepping")
    return " ".join(fields[name] for name in names if name in fields) or platform.machine()
