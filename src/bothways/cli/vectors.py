"""Writing a stream of vectors whose number is known only at the end.

Letters in names: D dimensions.
"""

from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = Iterable[NDArray[np.float32]]


class VectorWriter(Protocol):
    """Writes vectors (D) to a file that appears whole or not at all; returns how many there were."""

    def __call__(self, path: str, vectors: "Vectors", dimensions: int) -> int:
        """Write them."""


def write_npy(path: str, vectors: "Vectors", dimensions: int) -> int:
    """Write a float32 array, one vector a row, in flat memory.

    NumPy leaves room in the header for the first dimension to grow, so the header for no rows is written first and the
    one with their number over it.

    Raises:
        InvalidInput: It is a pipe, in which nothing can be written over.
    """
    from bothways.errors import InvalidInput
    from bothways.storage import new_file

    with new_file(path, binary=True) as stream:
        if not stream.seekable():
            raise InvalidInput(f"a .npy array cannot be written to the pipe {path!r}: name a file, or write .jsonl.")
        _write_header(stream, 0, dimensions)
        count = 0
        for vector_D in vectors:
            stream.write(vector_D.astype("<f4").tobytes())
            count += 1
        stream.seek(0)
        _write_header(stream, count, dimensions)
    return count


def write_jsonl(path: str, vectors: "Vectors", dimensions: int) -> int:
    """Write one object a line, ``{"vector": [...]}``, with the fewest digits that give the same float32."""
    from bothways.data import write_rows

    del dimensions
    return write_rows(path, _rows(vectors))


def _rows(vectors: "Vectors") -> Iterator[dict[str, object]]:
    for vector_D in vectors:
        yield {"vector": [float(str(value)) for value in vector_D]}


def _write_header(stream: IO[bytes], rows: int, dimensions: int) -> None:
    from numpy.lib import format as npy

    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)})
