"""Headers of safetensors files, checked against the bytes behind them; and their tensors, without torch."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import FilePart
from bothways.reading import MIB, parse_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# A model of 1,000 layers has 2 MiB. The library itself takes 100 MB.
_MOST_HEADER = 16 * MIB
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


@dataclass(frozen=True, slots=True)
class HeaderTensor:
    """A tensor as a header has it.

    Attributes:
        dtype: Its type, in the words of safetensors.
        shape: Its shape.
        begin: Its first byte, from the beginning of the file.
        end: The byte behind its last.
    """

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int

    def part(self, first: int, count: int) -> "HeaderTensor":
        """Return so many numbers of the tensor from one on, as a flat tensor of their own."""
        width = _BITS[self.dtype] // 8
        begin = self.begin + first * width
        return HeaderTensor(self.dtype, (count,), begin, begin + count * width)


class BadHeader(ValueError):
    """A header that lies; it carries the fault."""

    def __init__(self, rule: str, title: str, **details: Any) -> None:  # noqa: ANN401 (JSON values)
        super().__init__(title)
        self.rule, self.title, self.details = rule, title, details


def scan_safetensors(window: FilePart, place: str) -> Iterator[Fault]:
    """Yield the fault of a safetensors file, where there is one."""
    try:
        read_header(window)
    except BadHeader as error:
        yield Fault(error.rule, error.title, place, error.details)


def read_header(window: FilePart) -> Mapping[str, HeaderTensor]:
    """Return the tensors of a file by name.

    Raises:
        BadHeader: The header is none, or says what the bytes behind it do not bear out.
    """
    size = int.from_bytes(window.at(0, 8), "little")
    if window.size < 8 or size > window.size - 8:
        raise BadHeader("safetensors-header", f"a header of {size:,} bytes in a file of {window.size:,}")
    if size > _MOST_HEADER:
        raise BadHeader("safetensors-bomb", f"a header of {size:,} bytes, more than {_MOST_HEADER:,}")
    content = window.at(8, size)
    if not content.startswith(b"{"):
        raise BadHeader("safetensors-header", "a header that does not begin with {", begin=content[:16].hex())
    try:
        header = parse_json(content.rstrip(b" "), _once)
    except _Twice as error:
        raise BadHeader("safetensors-header", f"a header with {str(error)!r} in it twice") from error
    except ValueError as error:
        bomb = any(word in str(error) for word in ("deep", "digits", "values"))
        rule = "safetensors-bomb" if bomb else "safetensors-header"
        raise BadHeader(rule, f"a header that is no JSON as it should be: {error}") from error
    found = {name: _tensor(name, entry, 8 + size) for name, entry in header.items() if name != "__metadata__"}
    _check_metadata(header.get("__metadata__", {}))
    _check_layout(found, 8 + size, window.size)
    return found


def read_tensor(window: FilePart, stored: HeaderTensor) -> "NDArray[np.float64 | np.float32] | None":
    """Return the numbers of a tensor, flat; None for types that numpy has not."""
    import numpy as np

    if stored.dtype not in _NUMPY:
        return None
    flat = np.frombuffer(window.at(stored.begin, stored.end - stored.begin), dtype=_NUMPY[stored.dtype])
    if stored.dtype == "BF16":
        return (flat.astype(np.uint32) << 16).view(np.float32)
    return flat.astype(np.float64 if stored.dtype == "F64" else np.float32)


class _Twice(ValueError):
    pass


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in pairs:
        if key in found:
            raise _Twice(key)
        found[key] = value
    return found


def _tensor(name: str, entry: Any, data: int) -> HeaderTensor:  # noqa: ANN401 (JSON)
    if not isinstance(entry, dict) or set(entry) != {"dtype", "shape", "data_offsets"}:
        raise BadHeader("safetensors-header", f"tensor {name[:100]!r} without dtype, shape and place alone")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in _BITS if isinstance(dtype, str) else True:
        raise BadHeader("safetensors-header", f"tensor {name[:100]!r} of a type that there is not", dtype=repr(dtype))
    numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
    if len(numbers) != len(shape) + 2 or not all(type(each) is int and 0 <= each < 2**63 for each in numbers):
        raise BadHeader("safetensors-header", f"tensor {name[:100]!r} with a shape or place that is none")
    begin, end = offsets
    needed, left = divmod(math.prod(shape) * _BITS[dtype], 8)
    if end - begin != needed or left:
        title = f"tensor {name[:100]!r} of {end - begin:,} bytes, where its type and shape take {needed:,}"
        raise BadHeader("safetensors-header", title, shape=shape, dtype=dtype)
    return HeaderTensor(dtype, tuple(shape), data + begin, data + end)


def _check_metadata(metadata: Any) -> None:  # noqa: ANN401 (JSON)
    if not isinstance(metadata, dict) or not all(isinstance(value, str) for value in metadata.values()):
        raise BadHeader("safetensors-header", "metadata that are no mapping from strings to strings")


def _check_layout(found: Mapping[str, HeaderTensor], data: int, size: int) -> None:
    """Tensors fill the file from the header to its end, one behind the other."""
    end = data
    for name, stored in sorted(found.items(), key=lambda item: (item[1].begin, item[1].end)):
        if stored.begin < end:
            raise BadHeader("safetensors-header", f"tensor {name[:100]!r} overlaps the one before it")
        if stored.begin > end:
            title = f"{stored.begin - end:,} bytes before tensor {name[:100]!r} that no tensor has"
            raise BadHeader("safetensors-header", title)
        end = stored.end
    if end > size:
        raise BadHeader("safetensors-header", f"tensors up to byte {end:,} in a file of {size:,}")
    if end < size:
        raise BadHeader("safetensors-header", f"{size - end:,} bytes behind the last tensor that no tensor has")
