"""``bothways export``: a model for programs that know nothing of this one."""

from bothways.choices import ExportFormat, HeadName
from bothways.cli.options import HERE, Flag, ModelOptions, usage_error
from bothways.cli.terminal import note, print_json

EXAMPLE = """\
Examples:
  bothways export runs/news --format onnx --head sequence --output news-onnx
  bothways export old-model/ --allow-pickle \\
    --format safetensors --output new-model"""


def export(
    model: str,
    *,
    format: ExportFormat,  # noqa: A002 (the option's name)
    output: str,
    head: HeadName | None = None,
    overwrite: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    opening: ModelOptions = HERE,
) -> None:
    """Export a model to ONNX or a transformers checkpoint.

    Tokenizer and labels lie beside it. An ONNX graph takes padded batches of any size and is checked against the model
    before it is kept.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        format: onnx, or safetensors.
        output: A new folder; it appears whole or not at all.
        head: The head whose answers an ONNX graph gives besides hidden states, by default none; of safetensors the
            only one that is kept, by default those that config.json names.
        overwrite: Replace an earlier export at the output.
        json: Print what was written as one JSON object.
        quiet: Say nothing.
        opening: How the model is found; the work is done on the CPU.
    """
    dtype = opening.dtype or "float32"
    if format == "onnx" and dtype != "float32":
        raise usage_error(f"ONNX files are written in float32, not in {dtype}: leave --dtype out.")
    from bothways.export import export as write

    written = write(
        model,
        output,
        format=format,
        head=head,
        dtype=dtype,
        overwrite=overwrite,
        revision=opening.revision,
        download=opening.download,
        allow_pickle=opening.allow_pickle,
    )
    if json:
        print_json(
            {
                "output": output,
                "format": written.format,
                "heads": written.heads,
                "largest_difference": written.largest_difference,
            }
        )
    elif not quiet:
        checked = "" if written.largest_difference is None else f", {written.largest_difference:.1e} from the model's"
        note(f"{' and '.join(('the encoder', *written.heads))} in {output}{checked}")
