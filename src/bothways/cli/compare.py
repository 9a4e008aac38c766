"""``bothways compare-models``: models measured side by side on this machine."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.options import Flag, PositiveFloat, PositiveInt, bad_usage
from bothways.cli.terminal import note, plain_table, print_json, print_table

if TYPE_CHECKING:
    from bothways.advice.comparing import ModelComparison

EXAMPLE = """\
Example:
  bothways compare-models --report models.html
  bothways compare-models bert-base-uncased distilbert-base-uncased \\
    --lengths 64 --lengths 256"""


def compare_models(
    *names: str,
    lengths: tuple[PositiveInt, ...] = (32, 128, 512),
    batch: PositiveInt = 8,
    seconds: PositiveFloat = 0.5,
    report: Path | None = None,
    json: Flag = False,
) -> None:
    """Speed by length and memory of models, each built at random weights in a process of its own.

    Nothing is downloaded: speed and memory do not depend on what the weights are.

    Args:
        names: Models of the catalogue; BERT, DistilBERT, ALBERT, RoBERTa and ModernBERT of base size and the small
            ELECTRA and DeBERTa-v3 when none is given.
        lengths: Tokens of a text; give it once for each.
        batch: Texts in a batch.
        seconds: Time to spend on each figure.
        report: Also write the comparison as an HTML page to this file.
        json: Print one JSON object.
    """
    from bothways.advice.comparing import compare_models as compare

    if report is not None:
        from bothways.report.drawing import require_extra

        require_extra("the page of a comparison")  # before minutes of measuring, not after
    with bad_usage():
        comparison = compare(names, lengths=lengths, batch=batch, seconds=seconds)
    if report is not None:
        from bothways.report import write
        from bothways.report.models import model_comparison_page

        write(model_comparison_page(comparison), report)
        note(f"wrote {report}")
    if json:
        print_json(_as_json(comparison))
    else:
        _show(comparison)


def _as_json(comparison: "ModelComparison") -> dict[str, object]:
    return {
        "lengths": comparison.lengths,
        "batch": comparison.batch,
        "yardstick": comparison.yardstick,
        "machine": asdict(comparison.machine),
        "models": [
            {
                "name": model.card.name,
                "parameters": model.card.counted and model.card.counted.parameters,
                "flops_per_token": model.flops_per_token,
                "speeds": [asdict(speed) for speed in model.measured.speeds],
                "runtime_bytes": model.measured.runtime_bytes,
                "peak_bytes": model.measured.peak_bytes,
                "accuracy": model.accuracy,
            }
            for model in comparison.models
        ],
    }


def _show(comparison: "ModelComparison") -> None:
    table = plain_table()
    table.add_column("tokens a second", overflow="fold")
    for heading in ("params", *(f"at {length}" for length in comparison.lengths), "MB", "MNLI"):
        table.add_column(heading, justify="right", no_wrap=True)
    for model in comparison.models:
        counted, peak = model.card.counted, model.measured.peak_bytes
        table.add_row(
            model.card.name,
            "?" if counted is None else f"{counted.parameters / 1e6:.1f} M",
            *(f"{speed.tokens_per_second:,.0f}" for speed in model.measured.speeds),
            "?" if peak is None else f"{peak / 1e6:,.0f}",
            "?" if model.accuracy is None else f"{model.accuracy:.1f}",
        )
    print_table(table)
    threads = comparison.models[0].measured.threads
    print(
        f"\nBatches of {comparison.batch} texts, float32, threads: {threads}. MB: the most that the process took. "
        f"MNLI: {comparison.yardstick}, as published."
    )
