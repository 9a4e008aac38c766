"""Distance of a model's weights from those of a reference: identical, a fine-tune of it, or unrelated."""

import re
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bothways.audit.provenance.pickles import Check
from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import FilePart
from bothways.audit.provenance.tensors import BadHeader, HeaderTensor, read_header, read_tensor

# Medians over the matrices. Fine-tuning leaves them at 0.99 and more, and matrices of two trainings from different
# beginnings are as good as orthogonal.
_FINE_TUNE, _UNRELATED = 0.8, 0.3
# Numbers that are read at once.
_CHUNK = 2**22
# Names that wrap the same encoder: a model with a head, and without.
_PREFIX = re.compile(
    r"^(?:bert|roberta|distilbert|electra|albert|deberta|xlm_roberta|camembert|model|encoder_model|mpnet|0\.auto_model)\."
)
_LAYER = re.compile(r"(?:^|\.)(?:layers?|h|blocks?|albert_layer_groups)\.(\d+)\.")


@dataclass(frozen=True, slots=True)
class Distance:
    """Distance of a tensor from that of the reference.

    Attributes:
        name: Its name, without the prefix of the family.
        cosine: Cosine of the two, as vectors.
        relative: Norm of the difference by the norm of the reference.
        matrix: True for two dimensions or more; vectors of norms and biases are alike in all models.
    """

    name: str
    cosine: float
    relative: float
    matrix: bool


@dataclass(frozen=True, slots=True)
class _Place:
    path: Path
    stored: HeaderTensor


def compare(folder: Path, reference: Path, name: str, check: Check) -> Iterator[Fault]:
    """Yield where a model comes from, seen by its weights.

    Args:
        folder: The model's.
        reference: That of the model to compare with.
        name: The name that the user gave the reference.
        check: Stops the work at the time limit.
    """
    ours, theirs = _tensors(folder), _tensors(reference)
    common = [name for name in ours if name in theirs and ours[name].stored.shape == theirs[name].stored.shape]
    distances = [found for name in common if (found := _distance(name, ours[name], theirs[name], check)) is not None]
    matrices = [each for each in distances if each.matrix]
    if not ours or not theirs:
        lacking = str(folder) if not ours else name
        yield Fault("lineage", f"no comparison with the reference: {lacking!r} has no weights in safetensors")
        return
    all_matrices = sum(len(each.stored.shape) > 1 for each in ours.values())
    if not matrices or len(matrices) < all_matrices / 2:
        title = (
            f"{len(matrices)} of {all_matrices} matrices have a counterpart in the reference {name!r}: "
            "another architecture"
        )
        yield Fault("lineage-unrelated", title, n=all_matrices)
        return
    middle = statistics.median(each.cosine for each in matrices)
    verdict = _verdict(
        middle, all(each.relative == 0 for each in distances), len(ours) == len(theirs) == len(distances)
    )
    yield Fault(
        "lineage-unrelated" if middle < _UNRELATED else "lineage",
        f"the weights are {verdict} the reference {name!r}",
        details={
            "statistic": "median cosine of the weight matrices",
            "verdict": verdict.removesuffix(" of").removesuffix(" to"),
            "layers": _layers(distances),
            "changed most": _changed_most(distances),
            "compared": f"{len(distances)} of {len(ours)} tensors, {len(theirs)} in the reference",
        },
        value=middle,
        threshold=_FINE_TUNE,
        null=f"trainings from different beginnings: below {_UNRELATED}",
        n=len(matrices),
    )


def _verdict(middle: float, identical: bool, complete: bool) -> str:
    if identical:
        return "identical in all tensors to" if complete else "identical in all compared tensors to"
    if middle >= _FINE_TUNE:
        return "a fine-tune of"
    return "unrelated to" if middle < _UNRELATED else "neither clearly a fine-tune of nor unrelated to"


def _tensors(folder: Path) -> Mapping[str, _Place]:
    found: dict[str, _Place] = {}
    for path in sorted(folder.glob("*.safetensors")):
        if not path.is_file():
            continue
        try:
            with path.open("rb") as stream:
                header = read_header(FilePart(stream, 0, path.stat().st_size))
        except BadHeader:
            continue  # a finding of its own
        found.update({_PREFIX.sub("", name): _Place(path, stored) for name, stored in header.items()})
    return found


def _distance(name: str, ours: _Place, theirs: _Place, check: Check) -> Distance | None:
    """Return the distance of two tensors, read in pieces; None for numbers that numpy has not, and for zeros."""
    import numpy as np

    dot = ours_square = theirs_square = difference = 0.0
    with ours.path.open("rb") as first, theirs.path.open("rb") as second:
        windows = (FilePart(first, 0, ours.path.stat().st_size), FilePart(second, 0, theirs.path.stat().st_size))
        count = int(np.prod(ours.stored.shape))
        for begin in range(0, count, _CHUNK):
            check()
            a, b = (
                read_tensor(window, place.stored.part(begin, min(_CHUNK, count - begin)))
                for window, place in zip(windows, (ours, theirs), strict=True)
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
    return Distance(name, cosine, (difference / theirs_square) ** 0.5, len(ours.stored.shape) > 1)


def _layers(distances: list[Distance]) -> Mapping[str, Any]:
    groups: dict[str, list[Distance]] = {}
    for each in distances:
        found = _LAYER.search(each.name)
        groups.setdefault(f"layer {found[1]}" if found else "outside the layers", []).append(each)
    return {
        name: {
            "cosine": round(min(each.cosine for each in group), 5),
            "distance": round(max(each.relative for each in group), 5),
        }
        for name, group in groups.items()
    }


def _changed_most(distances: list[Distance]) -> list[str]:
    chosen = sorted(distances, key=lambda each: -each.relative)[:5]
    return [f"{each.name} ({each.relative:.3g})" for each in chosen]
