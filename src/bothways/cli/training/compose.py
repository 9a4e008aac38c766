"""``bothways ensemble``: combine trained models of one task."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from bothways import checkpoints, compose
from bothways.choices import Method
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import print_json
from bothways.cli.training.run import evaluate_next
from bothways.errors import UnreadColumn
from bothways.storage import FolderKind, check_folder_free
from bothways.tasks.spec import NamedLabelData

if TYPE_CHECKING:
    from bothways.compose import Ensemble

_EXAMPLE = """\
Examples:
  bothways ensemble runs/a runs/b runs/c --method mean \\
    --calibrate validation.jsonl.gz --output runs/ens
  bothways evaluate runs/ens --data test.jsonl.gz
  bothways ensemble runs/qa-a runs/qa-b --calibrate dev.jsonl --output runs/qa
  bothways predict runs/qa "Who won?" "In 2016 the Broncos won." --top 3"""


@opt.command(_EXAMPLE, own=opt.group_of("Data", opt.options_of(NamedLabelData)), columns=opt.column_options())
def ensemble(
    models: opt.Models,
    *,
    output: Path,
    method: Method = "mean",
    calibrate: opt.File | None = None,
    file: opt.FileOptions = opt.ANY_FILE,
    overwrite: opt.Flag = False,
    golden: opt.Golden = "validation",
    json: opt.Json = False,
    own: object = None,
    columns: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Combine trained models of one task into an ensemble.

    The models may be of any families; predict and evaluate treat the ensemble like a model. It refers to the
    folders of the models, which must stay where they are. By default, each model reads texts as in its training.

    Args:
        models: Folders of models that classify texts or pairs with the same labels, tag words with the same tags, or
            answer questions; at least two.
        output: Folder for the ensemble.
        method: How to combine predictions: mean of the models' probabilities, majority vote, or stacked, a small
            regression on their log-probabilities (not for question answering).
        calibrate: File of labelled rows that no model was trained on, to calibrate the ensemble and to fit its
            no-answer threshold and the method 'stacked'.
        overwrite: Replace an existing ensemble at the output.
    """
    if len(models) < 2:
        raise opt.usage_error(f"expected the folders of at least 2 models, got {len(models)}.")
    if method == "stacked" and calibrate is None:
        raise opt.usage_error("--method stacked is fitted on held-out rows: give some with --calibrate.")
    # Replacing a folder deletes its content: do not delete a trained model or other files.
    files = frozenset({checkpoints.OURS, checkpoints.GOLDEN_FILE, "README.md"})
    check_folder_free(output, overwrite=overwrite, kind=FolderKind("an ensemble", files, alone=True))
    try:
        made = compose.Ensemble.of(
            models,
            method=method,
            calibrate=inputs.optional_source(calibrate, file),
            columns=opt.given_of(columns),
            **opt.given_of(own),
            **inputs.open_options(reading, opening),
        )
    except UnreadColumn as error:
        raise opt.usage_error(str(error)) from error
    with opt.as_usage_error():
        made = made._with_card(files=known) if (known := file.to_remember(calibrate)) else made
        made.save(output, overwrite=overwrite, golden=opt.golden_source(golden))
    if json:
        print_json({"output": str(output), **made.facts()})
        return
    _describe(made, method, len(models), output, evaluate_next(calibrate, file))


def _describe(ensemble: "Ensemble", method: Method, members: int, output: Path, next_step: str) -> None:
    temperature = "none" if ensemble.temperature is None else f"{ensemble.temperature.value:.3f}"
    threshold = ensemble.facts().get("no_answer_threshold")
    print(f"members      {members}\nmethod       {method}\ntemperature  {temperature}")
    if isinstance(threshold, float):
        print(f"threshold    {threshold:.3f}")
    print(f"saved in     {output}\nnext         {next_step.replace('{}', shlex.quote(str(output)))}")
