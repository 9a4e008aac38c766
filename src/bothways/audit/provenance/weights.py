"""Safetensors files: checks of headers against the file's bytes, and distances of weights from a reference model.

Nothing here needs torch.
"""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.audit.finding import Finding
from bothways.audit.provenance.files import Check, FilePart
from bothways.audit.provenance.rules import fault
from bothways.reading import MIB, JsonTooLarge, parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A model of 1,000 layers has a header of 2 MiB. The safetensors library allows 100 MB.
_MAX_HEADER = 16 * MIB
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 16),
    **dict.fromkeys(("U32", "I32", "F32"), 32),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 64),
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
}
_NUMPY = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|albert_layer_groups)\.(\d+)\.")

# Thresholds for the median cosine over the matrices. Fine-tuning leaves it at 0.99 and more; matrices of two trainings
# from different initialisations are nearly orthogonal.
_FINE_TUNE, _UNRELATED = 0.8, 0.3
# Number of values to read at once.
_CHUNK = 2**22
# Prefixes of an encoder's weights in models with a head.
_PREFIX = re.compile(
    r"^(?:bert|roberta|distilbert|electra|albert|deberta|xlm_roberta|camembert|model|encoder_model|mpnet|0\.auto_model)\."
)


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    """A tensor as a header describes it."""

    dtype: str
    shape: tuple[int, ...]
    begin: int  # offset of its first byte in the file
    end: int  # offset after its last byte

    def part(self, first: int, count: int) -> "HeaderTensor":
        """Return ``count`` values of the tensor, starting at ``first``, as a flat tensor."""
        width = _BITS[self.dtype] // 8
        begin = self.begin + first * width
        return HeaderTensor(self.dtype, (count,), begin, begin + count * width)


class BadHeader(ValueError):
    """A header is invalid or contradicts the file; ``rule`` and ``details`` are those of the fault."""

    def __init__(self, what: str, rule: str = "safetensors-header", **details: object) -> None:
        super().__init__(what)
        self.rule, self.details = rule, details


def scan_safetensors(part: FilePart, place: str) -> Iterator[Finding]:
    """Yield the first fault of a safetensors file's header, if it has one."""
    try:
        read_header(part)
    except BadHeader as error:
        yield fault(error.rule, place, str(error), details=error.details)


def read_header(part: FilePart) -> Mapping[str, HeaderTensor]:
    """Return the tensors of a file by name; raise `BadHeader` if there is no header, or the bytes contradict it."""
    size = int.from_bytes(part.at(0, 8), "little")
    if part.size < 8 or size > part.size - 8:
        raise BadHeader(f"a header of {size:,} bytes in a file of {part.size:,}")
    if size > _MAX_HEADER:
        raise BadHeader(f"a header of {size:,} bytes, more than {_MAX_HEADER:,}", "safetensors-bomb")
    content = part.at(8, size)
    if not content.startswith(b"{"):
        raise BadHeader("a header that does not begin with {", begin=content[:16].hex())
    try:
        header = parse_json(content.rstrip(b" "), _once)
    except BadHeader:
        raise
    except ValueError as error:
        rule = "safetensors-bomb" if isinstance(error, JsonTooLarge) else "safetensors-header"
        raise BadHeader(f"a header that is not valid JSON: {error}", rule) from error
    tensors = {name: _tensor(name, entry, 8 + size) for name, entry in header.items() if name != "__metadata__"}
    metadata = header.get("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadHeader("metadata that do not map strings to strings")
    _check_layout(tensors, 8 + size, part.size)
    return tensors


def _once(pairs: list[tuple[str, object]]) -> dict[str, object]:
    entries: dict[str, object] = {}
    for key, value in pairs:
        if key in entries:
            raise BadHeader(f"a header that has {key!r} twice")
        entries[key] = value
    return entries


def _tensor(name: str, entry: object, data: int) -> HeaderTensor:
    named = f"tensor {name[:100]!r}"
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadHeader(f"{named} whose fields are not exactly dtype, shape and data_offsets")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if not isinstance(dtype, str) or dtype not in _BITS:
        raise BadHeader(f"{named} of an unknown type", dtype=repr(dtype))
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if len(numbers) != len(shape) + 2 or not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise BadHeader(f"{named} with an invalid shape or invalid offsets")
    begin, end = offsets
    needed, left = divmod(math.prod(shape) * _BITS[dtype], 8)
    if end - begin != needed or left:
        what = f"{named} of {end - begin:,} bytes, where its type and shape need {needed:,}"
        raise BadHeader(what, shape=shape, dtype=dtype)
    return HeaderTensor(dtype, tuple(shape), data + begin, data + end)


def _check_layout(tensors: Mapping[str, HeaderTensor], data: int, size: int) -> None:
    """Check that tensors fill the file from the header to its end, without gaps or overlaps."""
    end = data
    for name, stored in sorted(tensors.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if stored.begin < end:
            raise BadHeader(f"tensor {name[:100]!r} overlaps the one before it")
        if stored.begin > end:
            raise BadHeader(f"{stored.begin - end:,} bytes before tensor {name[:100]!r} that belong to no tensor")
        end = stored.end
    if end > size:
        raise BadHeader(f"tensors up to byte {end:,} in a file of {size:,}")
    if end < size:
        raise BadHeader(f"{size - end:,} bytes after the last tensor that belong to no tensor")


def read_tensor(part: FilePart, stored: HeaderTensor) -> "NDArray[np.float64 | np.float32] | None":
    """Return the values of a tensor, flat; None for types that NumPy lacks."""
    import numpy as np

    if stored.dtype not in _NUMPY:
        return None
    flat = np.frombuffer(part.at(stored.begin, stored.end - stored.begin), dtype=_NUMPY[stored.dtype])
    if stored.dtype == "BF16":
        return (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.astype(np.float64 if stored.dtype == "F64" else np.float32)


# --- lineage ---


@dataclass(frozen=True, slots=True)
class Distance:
    """The distance of a tensor from its counterpart in the reference; the name lacks the family's prefix."""

    name: str
    cosine: float  # cosine of the two, as vectors
    relative: float  # norm of the difference divided by the norm of the reference
    matrix: bool  # True for two dimensions or more; norms and biases are alike in all models


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """A tensor in a file."""

    path: Path
    tensor: HeaderTensor


def lineage(folder: Path, reference: Path, name: str, check: Check) -> Iterator[Finding]:
    """Compare the weights with a reference's: identical, a fine-tune, or unrelated."""
    ours, theirs = _of_encoder(folder), _of_encoder(reference)
    if not ours or not theirs:
        lacking = str(folder) if not ours else name
        yield fault("lineage", "", f"no comparison with the reference: {lacking!r} has no weights in safetensors")
        return
    common = [key for key in ours if key in theirs and ours[key].tensor.shape == theirs[key].tensor.shape]
    distances = [found for key in common if (found := _distance(key, ours[key], theirs[key], check)) is not None]
    matrices = [each for each in distances if each.matrix]
    all_matrices = sum(len(each.tensor.shape) > 1 for each in ours.values())
    if not matrices or len(matrices) < all_matrices / 2:
        what = (
            f"{len(matrices)} of {all_matrices} matrices have a counterpart in the reference {name!r}: "
            "another architecture"
        )
        yield fault("lineage-unrelated", "", what, n=all_matrices)
        return
    median = statistics.median(each.cosine for each in matrices)
    verdict, preposition = "neither clearly a fine-tune of nor unrelated", "to"
    if all(each.relative == 0 for each in distances):
        complete = len(ours) == len(theirs) == len(distances)
        verdict = "identical in all tensors" if complete else "identical in all compared tensors"
    elif median >= _FINE_TUNE:
        verdict, preposition = "a fine-tune", "of"
    elif median < _UNRELATED:
        verdict = "unrelated"
    changed = sorted(distances, key=lambda each: -each.relative)[:5]
    yield fault(
        "lineage-unrelated" if median < _UNRELATED else "lineage",
        "",
        f"the weights are {verdict} {preposition} the reference {name!r}",
        details={
            "verdict": verdict,
            "layers": _by_layer(distances),
            "changed most": [f"{each.name} ({each.relative:.3g})" for each in changed],
            "compared": f"{len(distances)} of {len(ours)} tensors, {len(theirs)} in the reference",
        },
        statistic="median cosine of the weight matrices",
        value=median,
        threshold=_FINE_TUNE,
        null=f"trainings from different initialisations: below {_UNRELATED}",
        n=len(matrices),
    )


def stored_tensors(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    """Return the tensors of safetensors files by name; skip files with a bad header, which is a finding elsewhere."""
    tensors: dict[str, StoredTensor] = {}
    for path in paths:
        try:
            with path.open("rb") as stream:
                header = read_header(FilePart(stream, 0, path.stat().st_size))
        except BadHeader:
            continue
        tensors.update({name: StoredTensor(path, stored) for name, stored in header.items()})
    return tensors


def _of_encoder(folder: Path) -> Mapping[str, StoredTensor]:
    paths = [path for path in sorted(folder.glob("*.safetensors")) if path.is_file()]
    return {_PREFIX.sub("", name): stored for name, stored in stored_tensors(paths).items()}


def _distance(name: str, ours: StoredTensor, theirs: StoredTensor, check: Check) -> Distance | None:
    """Return the distance of two tensors, read in pieces; None for zeros and types that NumPy lacks."""
    import numpy as np

    dot = ours_square = theirs_square = difference = 0.0
    with ours.path.open("rb") as first, theirs.path.open("rb") as second:
        parts = (FilePart(first, 0, ours.path.stat().st_size), FilePart(second, 0, theirs.path.stat().st_size))
        count = math.prod(ours.tensor.shape)
        for begin in range(0, count, _CHUNK):
            check()
            a, b = (
                read_tensor(part, each.tensor.part(begin, min(_CHUNK, count - begin)))
                for part, each in zip(parts, (ours, theirs), strict=True)
            )
            if a is None or b is None:
                return None
            x, y = a.astype(np.float64), b.astype(np.float64)
            dot += float(x @ y)
            ours_square += float(x @ x)
            theirs_square += float(y @ y)
            difference += float((x - y) @ (x - y))
    if not ours_square > 0 or not theirs_square > 0:
        return None
    cosine = dot / (ours_square * theirs_square) ** 0.5
    return Distance(name, cosine, (difference / theirs_square) ** 0.5, len(ours.tensor.shape) > 1)


def _by_layer(distances: list[Distance]) -> dict[str, dict[str, float]]:
    groups: dict[str, list[Distance]] = {}
    for each in distances:
        match = LAYER.search(each.name)
        groups.setdefault(f"layer {match[1]}" if match else "outside the layers", []).append(each)
    return {
        name: {
            "cosine": round(min(each.cosine for each in group), 5),
            "distance": round(max(each.relative for each in group), 5),
        }
        for name, group in groups.items()
    }
