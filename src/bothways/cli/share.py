"""``bothways export``, ``quantize``, ``check``, ``sign`` and ``verify``: models for other programs and other people."""

import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from bothways import audit, checkpoints, compose
from bothways import export as exporting
from bothways.audit.finding import FAILING
from bothways.choices import ExportFormat, HeadName
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import FAILED, counted, note, print_json
from bothways.storage import MODEL, check_folder_free

if TYPE_CHECKING:
    from bothways.checkpoints.golden_check import GoldenReport
    from bothways.quantization.quantize import Quantization

_FEW_TEXTS = 200

# Causes of differences from golden answers, in the order of the report.
_CAUSES = ("tokenizer", "weights", "settings", "arithmetic", "answers")

_EXPORT_EXAMPLE = """\
Examples:
  bothways export runs/news --format onnx --head sequence --output news-onnx
  bothways export old-model/ --allow-pickle \\
    --format safetensors --output new-model"""


@opt.command(_EXPORT_EXAMPLE)
def export(
    model: str,
    *,
    format: ExportFormat,  # noqa: A002 (the option's name)
    output: str,
    head: HeadName | None = None,
    overwrite: opt.Flag = False,
    golden: opt.Golden = "validation",
    json: opt.Json = False,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Export a model to ONNX or a transformers checkpoint.

    Also writes the tokenizer and the labels. An ONNX graph takes padded batches of any size and is checked against the
    model. The export runs on the CPU.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        format: onnx, or safetensors for a transformers checkpoint.
        output: A new folder, written completely or not at all.
        head: For onnx, the head whose outputs the graph returns besides the hidden states. Default: none. For
            safetensors, the only head to keep. Default: all that config.json names.
        overwrite: Replace an existing export at the output.
    """
    dtype = opening.dtype or "float32"
    if format == "onnx" and dtype != "float32":
        raise opt.usage_error(f"ONNX files are written in float32, not in {dtype}: drop --dtype.")
    written = exporting.export(
        model,
        output,
        format=format,
        head=head,
        dtype=dtype,
        overwrite=overwrite,
        golden=opt.golden_source(golden),
        revision=opening.revision,
        download=opening.download,
        allow_pickle=opening.allow_pickle,
    )
    difference = written.largest_difference
    if json:
        values = {"format": written.format, "heads": written.heads, "largest_difference": difference}
        print_json({"output": output, **values})
    else:
        checked = "" if difference is None else f"; outputs differ from the model's by at most {difference:.1e}"
        note(f"{' and '.join(('the encoder', *written.heads))} in {output}{checked}")
        _note_quotes(Path(output), "--golden neutral")


_QUANTIZE_EXAMPLE = """\
Example:
  bothways quantize sentence-transformers/all-MiniLM-L6-v2 \\
    --data texts.jsonl.gz --output runs/minilm-int8
  bothways embed runs/minilm-int8 \\
    --data corpus.jsonl.gz --output vectors.npy"""


@opt.command(_QUANTIZE_EXAMPLE)
def quantize(
    model: str,
    *,
    data: opt.File,
    output: str,
    cosine: opt.Share = 0.999,
    most_texts: opt.PositiveInt = 2000,
    seed: int = 0,
    portable: opt.Flag = False,
    text: opt.TrainedTextColumns = None,
    file: opt.FileOptions = opt.ANY_FILE,
    overwrite: opt.Flag = False,
    golden: opt.Golden = "validation",
    json: opt.Json = False,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Quantize a model to int8, to run faster on CPUs.

    Layers stay in bfloat16 where int8 would change the vectors of your texts too much (see --cosine). Only this library
    can open the saved model; it predicts, embeds and evaluates like any other, but it cannot be trained. The conversion
    runs on the CPU in float32.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Texts like those that the model will read: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON
            Lines on standard input. Labels are ignored.
        output: A new folder, written completely or not at all.
        cosine: Minimum cosine between the vectors of each text before and after quantization.
        most_texts: Maximum number of texts to compare vectors of; drawn at random if there are more.
        seed: Seed of the sample.
        portable: Let int8 layers also run on processors without VNNI; weights are coarser, and fewer layers are int8.
        overwrite: Replace an existing model at the output.
    """
    if opening.dtype not in (None, "float32"):
        raise opt.usage_error(f"a model is quantized from float32, not from {opening.dtype}: drop --dtype.")
    if opening.device not in ("auto", "cpu"):
        raise opt.usage_error(f"a model is quantized on the CPU, not on {opening.device}: drop --device.")
    check_folder_free(output, overwrite=overwrite, kind=MODEL)
    from bothways.quantization import quantize as write

    result = write(
        model,
        output,
        inputs.input_texts(inputs.file_rows(data, file), text, inputs.trained_columns(model, opening)),
        cosine=cosine,
        most_texts=most_texts,
        seed=seed,
        portable=portable,
        overwrite=overwrite,
        golden=opt.golden_source(golden),
        **inputs.open_options(reading, opening),
    )
    if json:
        print_json({"output": output, **result.to_dict()})
    else:
        _describe(result, output)


def _describe(result: "Quantization", output: str) -> None:
    others = result.bfloat16 + result.float32
    kept = f"; in {'bfloat16' if result.bfloat16 else 'float32'}: {', '.join(others)}" if others else ""
    note(f"{len(result.int8)} of {counted(len(result.int8) + len(others), 'linear layer')} in int8{kept}")
    note(
        f"cosines with the vectors in float32 ({result.vector}) of {counted(result.texts, 'text')}: minimum "
        f"{result.min_cosine:.5f}, mean {result.mean_cosine:.5f}"
    )
    if result.texts < _FEW_TEXTS:
        note(f"these are few texts: use at least {_FEW_TEXTS}, of all kinds that the model will read")
    note(f"the model is in {output}")


_CHECK_EXAMPLE = """\
Examples:
  bothways check runs/news
  bothways check intfloat/e5-small-v2 --record e5.golden.json
  bothways check intfloat/e5-small-v2 --against e5.golden.json
  bothways check runs/news --record news.json --data inputs.jsonl

Exit code: 0 if the model answers as recorded; 1 if its tokens, weights,
settings or answers differ, or there is nothing to compare with."""


@opt.command(_CHECK_EXAMPLE)
def check(
    model: str,
    *,
    against: Path | None = None,
    record: Path | None = None,
    overwrite: opt.Overwrite = False,
    data: opt.File | None = None,
    file: opt.FileOptions = opt.ANY_FILE,
    json: opt.Json = False,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> int:
    """Check that a model answers as recorded.

    Compares token ids, weights, settings and answers with the golden answers in golden.json, which every saved model
    has, or in another file. Names each cause of a difference, and the versions then and now.

    Args:
        model: Folder or name of a model.
        against: File of golden answers to compare with. Default: golden.json in the model's folder.
        record: Write golden answers into this file instead of comparing.
        data: File with inputs to record, in the columns of the model's training; for an embedder, in the column text.
            Default: 16 neutral texts in several languages.
    """
    if record is None:
        if data is not None:
            raise opt.usage_error("--data needs --record: without it, the inputs come from the golden answers.")
        report = compose.check(model, against=against, **opening.arguments())
        if json:
            print_json(report.to_dict())
        else:
            print("\n".join(_lines_of(report)))
        return 0 if report.ok else FAILED
    if against is not None:
        raise opt.usage_error("expected --record or --against, got both: drop one.")
    inputs.check_output(record, overwrite, data, option="--record")
    rows = None if data is None else list(inputs.file_rows(data, file))
    count = compose.record_answers(model, record, data=rows, overwrite=overwrite, **opening.arguments())
    if json:
        print_json({"output": str(record), "inputs": count})
    else:
        note(f"golden answers to {counted(count, 'input')} in {record}")
    return 0


def _lines_of(report: "GoldenReport") -> Iterator[str]:
    yield f"model        {report.model}: {report.task}, {counted(report.inputs, f'{report.source} input')}"
    yield f"recorded     {_made(report.recorded)}"
    yield f"now          {_made(report.now)}"
    found = {cause: [each.detail for each in report.differences if each.cause == cause] for cause in _CAUSES}
    if not found["answers"] + found["arithmetic"] and report.largest_difference is not None:
        apart = f"numbers differ by at most {report.largest_difference:.1e} of the largest"
        found["answers"] = [f"ok: {apart} (tolerance {report.tolerance:.0e})"]
    for cause, details in found.items():
        shown = details or ["ok"] * (cause not in ("answers", "arithmetic"))
        yield from (f"{cause if not row else '':<12} {each}" for row, each in enumerate(shown))
    if report.ties:
        yield f"note         {counted(report.ties, 'prediction')} changed between candidates of equal scores"


def _made(made: Mapping[str, object]) -> str:
    match made:
        case {"precision": precision, "device": device, "versions": {**versions}}:
            return f"{precision} on {device}; {', '.join(f'{name} {version}' for name, version in versions.items())}"
    return ""


_SIGN_EXAMPLE = """\
Examples:
  openssl ecparam -name prime256v1 -genkey -noout -out key.pem
  openssl ec -in key.pem -pubout -out public.pem
  bothways sign runs/news --key key.pem
  bothways verify runs/news --public-key public.pem

Without --key, only the checksums are written. Everything works offline."""


@opt.command(_SIGN_EXAMPLE)
def sign(model: Path, *, key: Path | None = None, overwrite: opt.Flag = False) -> None:
    """Write the checksums of a model's files, and sign them.

    Args:
        model: Folder of the model.
        key: File of a private elliptic-curve key, as PEM. Default: write no signature.
        overwrite: Replace the checksums and the signature that the folder has.
    """
    print(f"manifest     {audit.write_manifest(model, overwrite=overwrite)}")
    name, golden = shlex.quote(str(model)), shlex.quote(str(model / checkpoints.GOLDEN_FILE))
    _note_quotes(model, f"bothways check {name} --record {golden} --overwrite, then sign again with --overwrite")
    if key is not None:
        print(f"signature    {audit.sign(model, key, overwrite=overwrite)}")
        note(f"next: bothways verify {name} --public-key public.pem")


def _note_quotes(folder: Path, instead: str) -> None:
    """Note that the golden answers of a folder quote data, if they do; ``instead`` replaces them by neutral ones."""
    golden = checkpoints.stored_inputs(folder)
    if golden is not None and golden.source != "neutral":
        quoted = counted(len(golden.values), f"{golden.source} input")
        note(f"{checkpoints.GOLDEN_FILE} quotes up to {quoted}; to publish the model without them: {instead}")


_VERIFY_EXAMPLE = """\
Example:
  bothways verify runs/news --public-key public.pem

Exit code: 0 if everything is valid; 1 if a file was changed, added or removed,
a signature is not valid, or there is nothing to verify."""


@opt.command(_VERIFY_EXAMPLE)
def verify(model: Path, *, public_key: Path | None = None, quiet: opt.Flag = False) -> int:
    """Verify a model's files against their checksums and signature.

    Args:
        model: Folder of the model.
        public_key: File of the signer's public key, as PEM. Without it, only checksums are compared.
        quiet: Print nothing; the exit code shows the result.
    """
    findings = list(audit.verified(model, public_key))
    if not quiet:
        for finding in findings:
            place = f"{finding.location}: " if finding.location else ""
            print(f"{'FAIL' if finding.severity >= FAILING else 'ok':<5} {place}{finding.title}")
    return FAILED if any(finding.severity >= FAILING for finding in findings) else 0
