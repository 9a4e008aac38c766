"""``bothways quantize``: a model with linear layers in int8, for faster inference on a CPU."""

from typing import Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.choices import Format
from bothways.cli.opening import open_options
from bothways.cli.options import (
    AS_IT_CAN,
    HERE,
    TEXT,
    Columns,
    File,
    Flag,
    ModelOptions,
    PositiveInt,
    ReadingOptions,
    usage_error,
)
from bothways.cli.reading import texts_of
from bothways.cli.terminal import counted, note, print_json

EXAMPLE = """\
Example:
  bothways quantize sentence-transformers/all-MiniLM-L6-v2 \\
    --data texts.jsonl.gz --output runs/minilm-int8
  bothways embed runs/minilm-int8 \\
    --data corpus.jsonl.gz --output vectors.npy"""

_FEW = 200

Cosine = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]


def quantize(
    model: str,
    *,
    data: File,
    output: str,
    cosine: Cosine = 0.999,
    most_texts: PositiveInt = 2000,
    seed: int = 0,
    portable: Flag = False,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    overwrite: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    reading: ReadingOptions = AS_IT_CAN,
    opening: ModelOptions = HERE,
) -> None:
    """Round a model's linear layers to int8, faster on CPUs.

    The layers that harm the vectors of your texts most are bfloat16 and not int8, as many as it takes. The saved model
    predicts, embeds and evaluates like any other, here alone, and says what it lost; it cannot be trained.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Texts as the model is going to read them: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON
            Lines on standard input. No labels are read.
        output: A new folder; it appears whole or not at all.
        cosine: The smallest cosine that a text's vector may have with that of the model in float32.
        most_texts: Texts that are compared; of more a sample is drawn.
        seed: Draws the sample.
        portable: Let processors without VNNI multiply in int8 too, if this one has it; fewer layers become int8.
        text: Column of the texts; give it again to join several.
        format: Of the data, where the name does not say it.
        overwrite: Replace an earlier model at the output.
        json: Print what became int8 and what was lost as one JSON object.
        quiet: Say nothing.
        reading: How texts are read.
        opening: How the model is found; the work is done on the CPU in float32.
    """
    if opening.dtype not in (None, "float32"):
        raise usage_error(f"a model is quantized from float32, not from {opening.dtype}: leave --dtype out.")
    if opening.device not in ("auto", "cpu"):
        raise usage_error(f"a model is quantized on the CPU, not on {opening.device}: leave --device out.")
    from bothways.data import read_rows
    from bothways.quantization import quantize as write

    found = write(
        model,
        output,
        texts_of(read_rows(data, format=format, columns=text), text),
        cosine=cosine,
        most_texts=most_texts,
        seed=seed,
        portable=portable,
        overwrite=overwrite,
        show_progress=False if quiet else None,
        **open_options(reading, opening),
    )
    if json:
        print_json({"output": output, **found.to_dict()})
    elif not quiet:
        others = found.bfloat16 + found.float32
        kept = f"; in {'bfloat16' if found.bfloat16 else 'float32'} are {', '.join(others)}" if others else ""
        note(f"{len(found.int8)} of {counted(len(found.int8) + len(others), 'linear layer')} in int8{kept}")
        note(
            f"cosines with the vectors in float32 ({found.vector}), {counted(found.texts, 'text')}: smallest "
            f"{found.min_cosine:.5f}, mean {found.mean_cosine:.5f}"
        )
        if found.texts < _FEW:
            note(f"so few texts say little of others: {_FEW} or more are better, of all kinds that the model will read")
        note(f"the model is in {output}")
