"""``bothways ensemble``: several trained models of one task that answer together."""

import shlex
from pathlib import Path

from bothways.choices import Format, Method
from bothways.cli.declared import given_of, taking
from bothways.cli.opening import COLUMNS, open_options
from bothways.cli.options import AS_IT_CAN, HERE, File, Flag, ModelOptions, ReadingOptions, bad_usage, usage_error
from bothways.cli.reading import optional_source
from bothways.cli.terminal import print_json

_FILES = ("bothways.json", "README.md")  # of an ensemble

EXAMPLE = """\
Examples:
  bothways ensemble runs/a runs/b runs/c --method mean \\
    --calibrate validation.jsonl.gz --output runs/ens
  bothways evaluate runs/ens --data test.jsonl.gz
  bothways ensemble runs/qa-a runs/qa-b --calibrate dev.jsonl --output runs/qa
  bothways predict runs/qa "Who won?" "In 2016 the Broncos won." --top 3"""


@taking(columns=COLUMNS)
def ensemble(
    *runs: str,
    output: Path,
    method: Method = "mean",
    calibrate: File | None = None,
    format: Format | None = None,  # noqa: A002 (the option's name)
    overwrite: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    columns: object = None,
    reading: ReadingOptions = AS_IT_CAN,
    model: ModelOptions = HERE,
) -> None:
    """Combine trained models of one task into an ensemble.

    The models may be of any families; predict and evaluate take the ensemble like a model. It points to the models and
    does not copy them: keep them where they are.

    Args:
        runs: Folders of two or more models that label texts, or pairs, alike; or tag words alike; or answer questions.
        output: Folder for the ensemble.
        method: The mean of their probabilities, a vote, or a small regression over their log-probabilities (not of
            answers to questions).
        calibrate: Labelled rows that no model was trained on: to calibrate the result, to choose when to give no
            answer, and to fit 'stacked' on.
        format: Of those rows, where the name does not say it.
        overwrite: Replace an ensemble at the output.
        json: Print the summary as one JSON object.
        quiet: Show no progress.
        columns: Of the rows to calibrate with, for all models alike.
        reading: How texts are read, here; by default each model reads as it was trained to.
        model: Where the models run.
    """
    from bothways.compose.ensembles.ensemble import Ensemble
    from bothways.errors import OutputExists, UnreadColumn
    from bothways.storage import check_folder_free

    if len(runs) < 2:
        raise usage_error(f"an ensemble has two members or more, but got {len(runs)}: name their folders.")
    if method == "stacked" and calibrate is None:
        raise usage_error("--method stacked is fitted on held-out rows: give some with --calibrate.")
    check_folder_free(output, overwrite=overwrite)
    if overwrite and output.is_dir() and any(path.name not in _FILES for path in output.iterdir()):
        # Replacing a folder deletes what is in it, which nobody means for a trained model or other things.
        raise OutputExists(f"{str(output)!r} is not an ensemble, so it is not replaced. Choose another folder.")
    source = optional_source(calibrate, format)
    options, show = open_options(reading, model), False if quiet else None
    names = given_of(columns)
    try:
        made = Ensemble.of(runs, method=method, calibrate=source, columns=names, show_progress=show, **options)
    except UnreadColumn as error:
        raise usage_error(str(error)) from error
    with bad_usage():
        made.save(output, overwrite=overwrite)
    if json:
        print_json({"output": str(output), **made.facts()})
        return
    temperature = "none" if made.temperature is None else f"{made.temperature.value:.3f}"
    threshold = made.facts().get("no_answer_threshold")
    print(f"members      {len(runs)}\nmethod       {method}\ntemperature  {temperature}")
    if isinstance(threshold, float):
        print(f"threshold    {threshold:.3f}")
    print(f"saved in     {output}")
    print(f"next         bothways evaluate {shlex.quote(str(output))} --data test.csv  # your labelled test rows")
