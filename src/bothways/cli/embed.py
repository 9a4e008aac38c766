"""``bothways embed``: texts to vectors, written as a stream whose length is known only at the end.

Letters in names: D dimensions.
"""

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from typing import IO, TYPE_CHECKING, Protocol

from bothways.choices import Format, OnEmpty
from bothways.cli.declared import given_of, taking
from bothways.cli.opening import VECTORS, open_embedder
from bothways.cli.options import AS_IT_CAN, HERE, TEXT, Columns, File, Flag, ModelOptions, ReadingOptions, usage_error
from bothways.cli.reading import GO_ON, check_output, given_rows, texts_of
from bothways.cli.terminal import counted, note, print_json

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Vectors = Iterable[NDArray[np.float32]]

EXAMPLE = """\
Example:
  bothways embed sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --output vectors.npy"""


@taking(vectors=VECTORS)
def embed(
    model: str,
    *,
    data: File,
    output: File,
    text: Columns = TEXT,
    on_empty: OnEmpty = "error",
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
    vectors: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> None:
    """Embed texts as unit-length vectors.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: A .npy file (float32, one row a text) or .jsonl (also .gz); replaced if it is there.
        text: Column of the texts; give it again to join several.
        on_empty: What becomes of a row without a text: an error, no vector (skip), or null, which in a .npy file is a
            row of NaN; how many there were is said.
        format: Of the data, where the name does not say it.
        json: Print what was written as one JSON object.
        quiet: Show no progress.
        vectors: How texts become vectors.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    from bothways.data import text_at
    from bothways.errors import EmptyInput
    from bothways.tasks.predict import with_gaps, with_text

    write = _writer(output)
    check_output(data, output)
    embedder = open_embedder(model, given_of(vectors), reading, opening)
    rows = given_rows((), data, text, format, columns=text)
    waiting: deque[bool] = deque()
    texts = with_text(lambda row: text_at(row, text), rows, waiting) if on_empty != "error" else texts_of(rows, text)
    made: Vectors = embedder.encode_stream(texts, show_progress=False if quiet else None)
    tally: Counter[str] = Counter()
    if on_empty != "error":
        made = _filled(with_gaps(made, waiting), embedder.dimensions, on_empty, tally)
    try:
        count = write(output, made, embedder.dimensions)
    except EmptyInput as error:
        raise EmptyInput(f"{error} {GO_ON}") from error
    if tally["empty"]:
        note(f"{counted(tally['empty'], 'row')} without a text: {_BECAME[on_empty]}.")
    if json:
        print_json({"vectors": count, "dimensions": embedder.dimensions, "output": output})
    elif not quiet:
        note(f"{counted(count, 'vector')} of {embedder.dimensions} dimensions in {output}")


_BECAME = {"skip": "left out", "null": "their vectors are null"}


def _filled(
    made: "Iterable[NDArray[np.float32] | None]", dimensions: int, on_empty: OnEmpty, tally: Counter[str]
) -> "Iterator[NDArray[np.float32]]":
    """Yield the vectors, with NaN for rows without a text, or without these."""
    import numpy as np

    for vector_D in made:
        tally["empty"] += vector_D is None
        if vector_D is not None:
            yield vector_D
        elif on_empty == "null":
            yield np.full(dimensions, np.nan, dtype=np.float32)


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
        empty = bool(vector_D[0] != vector_D[0])  # NaN, which no vector of a text has
        yield {"vector": None if empty else [float(str(value)) for value in vector_D]}


def _write_header(stream: IO[bytes], rows: int, dimensions: int) -> None:
    from numpy.lib import format as npy

    npy.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, dimensions)})


def _writer(output: str) -> VectorWriter:
    if output == "-":
        raise usage_error(
            "vectors are not written to standard output: an .npy file begins with their number, which is known only "
            "at the end. Name a file: --output vectors.npy or --output vectors.jsonl."
        )
    for suffixes, write in (((".npy",), write_npy), ((".jsonl", ".jsonl.gz"), write_jsonl)):
        if output.lower().endswith(suffixes):
            return write
    raise usage_error(f"--output must end in .npy, .jsonl or .jsonl.gz, but it is {output!r}.")
