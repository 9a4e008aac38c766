"""`scan`: run detectors over a model and gather what they found. A detector that fails never passes."""

import time
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.audit.context import Context, NeedUnmet, Undecided
from bothways.audit.detector import Detector
from bothways.audit.finding import FAILING, AuditReport, DetectorResult, Finding, printable, worst_first
from bothways.audit.registry import detectors_named
from bothways.errors import InvalidInput
from bothways.progress import progress

if TYPE_CHECKING:
    from bothways.data import Source


def scan(
    model_or_path: Any,  # noqa: ANN401 (a name, a folder or an opened model)
    data: "Source | None" = None,
    reference: str | Path | None = None,
    detectors: Sequence[str] | None = None,
    *,
    seed: int = 0,
    time_limit: float = 600.0,
    columns: Mapping[str, object] | None = None,
    settings: Mapping[str, Any] | None = None,
    open_options: Mapping[str, Any] | None = None,
    show_progress: bool | None = None,
) -> AuditReport:
    """Audit a model: say whether it may be trusted, with evidence.

    >>> report = scan("runs/news", "test.jsonl")  # doctest: +SKIP
    >>> report.verdict  # doctest: +SKIP
    'pass'

    Args:
        model_or_path: A folder or name of a model, or an opened one; detectors of files need a folder.
        data: A file or rows, with labels or without; detectors that need them are not run without.
        reference: A clean model to compare with: the encoder that this one was fine-tuned from, or a model of the same
            task.
        detectors: Names of detectors; all whose needs are met when left out.
        seed: Seed of every random choice.
        time_limit: Seconds that each detector may take; one that takes longer is inconclusive.
        columns: Columns of texts and labels, where they are not those of the training.
        settings: Further input of detectors, such as ``{"triggers": ["cf", "mn"]}``, ``{"clean_texts": texts}`` (or
            rows), or ``{"non_members": rows}`` with the training rows as data.
        open_options: Options for opening models, see `bothways.open_trained`.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: There is no detector of a name, the time limit is not positive, or the data cannot be read.
        UnknownModel: The reference is not there.
    """
    if not time_limit > 0:
        raise InvalidInput(f"time_limit must be above 0 seconds, got {time_limit}.")
    chosen = detectors_named(detectors)
    by_name = isinstance(model_or_path, str | Path)
    context = Context(
        name=str(model_or_path) if by_name else str(getattr(model_or_path, "name", "the model")),
        opened=None if by_name else model_or_path,
        rows=None if data is None else _rows(data),
        reference_name=None if reference is None else str(reference),
        open_options=dict(open_options or {}),
        columns=dict(columns or {}),
        seed=seed,
        time_limit=time_limit,
        settings=dict(settings or {}),
    )
    # A name that is misspelt would pass unseen where no detector comes to ask the reference.
    _ = context.reference_folder
    results: list[DetectorResult] = []
    findings: list[Finding] = []
    with progress("auditing", len(chosen), show=show_progress) as bar:
        for detector in chosen:
            result, found = run_detector(detector, context, named=detectors is not None)
            results.append(result.printable())
            findings.extend(each.printable() for each in found)
            bar.advance(1, detector.name)
    name, notes = printable(context.name, lines=False), tuple(map(printable, context.notes))
    return AuditReport(name, tuple(results), worst_first(findings), seed, version("bothways"), notes)


def run_detector(detector: Detector, context: Context, *, named: bool) -> tuple[DetectorResult, list[Finding]]:
    """Run one detector; whatever happens in it becomes its result.

    Args:
        detector: The detector.
        context: The scan.
        named: True where the user asked for it by name, so that its needs have to be met.
    """
    name, begun = detector.name, time.monotonic()
    context.start_clock()
    findings: list[Finding] = []
    try:
        missing = context.unmet(detector.needs)
        if missing is not None:
            return DetectorResult(name, "inconclusive", f"not run: {missing}", ran=False, asked=named), []
        for finding in detector.analyze(context):
            findings.append(finding)
            context.check_time()
    except NeedUnmet as error:
        return DetectorResult(name, "inconclusive", f"not run: needs {error}", ran=False, asked=named), []
    except Undecided as error:
        return _result(name, findings, time.monotonic() - begun, undecided=str(error)), findings
    # Whatever a detector stumbles over says nothing good of the model, and must not hide what others find.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return DetectorResult(name, "error", reason, seconds=time.monotonic() - begun), findings
    return _result(name, findings, time.monotonic() - begun), findings


def _result(name: str, findings: Sequence[Finding], seconds: float, undecided: str = "") -> DetectorResult:
    worst = [each for each in findings if each.severity >= FAILING]
    if worst:
        more = f", and {len(worst) - 1} more" if len(worst) > 1 else ""
        return DetectorResult(name, "fail", f"{worst_first(worst)[0].title}{more}", seconds=seconds)
    return DetectorResult(name, "inconclusive" if undecided else "pass", undecided, seconds=seconds)


def _rows(data: "Source") -> list[Any]:
    from bothways.data import read_rows

    return list(read_rows(data))
