"""``bothways embed``: texts to vectors."""

from bothways.cli.opening import AS_IT_CAN, ReadingOptions, open_embedder
from bothways.cli.options import HERE, TEXT, Columns, File, Flag, Format, ModelOptions, usage_error
from bothways.cli.reading import check_output, given_rows, texts_of
from bothways.cli.terminal import counted, note, print_json
from bothways.cli.vector_options import AS_THE_MODEL_SAYS, VectorOptions
from bothways.cli.vectors import VectorWriter, write_jsonl, write_npy

EXAMPLE = """\
Example:
  bothways embed sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --output vectors.npy"""


def embed(
    model: str,
    *,
    data: File,
    output: File,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    json: Flag = False,
    quiet: Flag = False,
    vectors: VectorOptions = AS_THE_MODEL_SAYS,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> None:
    """Vectors of unit length for texts, so that an inner product is the cosine.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: A .npy file (float32, one row a text) or .jsonl (also .gz); replaced if it is there.
        text: Column of the texts; give it again to join several.
        format: Of the data, where the name does not say it.
        json: Print what was written as one JSON object.
        quiet: Show no progress.
        vectors: How texts become vectors.
        reading: How texts are read.
        opening: How the model is found and where it runs.
    """
    write = _writer(output)
    check_output(data, output)
    embedder = open_embedder(model, vectors, reading, opening)
    rows = given_rows((), data, text, format)
    made = embedder.encode_stream(texts_of(rows, text), show_progress=False if quiet else None)
    count = write(output, made, embedder.dimensions)
    if json:
        print_json({"vectors": count, "dimensions": embedder.dimensions, "output": output})
    elif not quiet:
        note(f"{counted(count, 'vector')} of {embedder.dimensions} dimensions in {output}")


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
