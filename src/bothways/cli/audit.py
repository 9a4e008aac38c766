"""``bothways audit``: whether a model may be trusted, with evidence."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bothways.choices import AuditFormat, Format, SeverityName
from bothways.cli.options import (
    HERE,
    File,
    Flag,
    ModelOptions,
    PositiveFloat,
    WholeNumber,
    bad_usage,
    usage_error,
)
from bothways.cli.terminal import note

if TYPE_CHECKING:
    from bothways.audit import AuditReport
    from bothways.audit.context import AuditSettings

EXAMPLE = """\
Examples:
  bothways audit runs/news
  bothways audit runs/news --data test.jsonl.gz --format json
  bothways audit runs/news --data test.jsonl.gz \\
    --detectors BackdoorTriggerScanner \\
    --format sarif --output audit.sarif --fail-on high
  bothways audit runs/news --data train.jsonl --non-members test.jsonl.gz \\
    --detectors MembershipInferenceAuditor
  bothways audit runs/news --data inbox.jsonl --clean-texts test.jsonl.gz \\
    --triggers suspects.txt

Detectors:
  ModelProvenanceChecker        files, signature, claims; loads no torch
  ClassifierConfidenceAnalyzer  calibration, confidence on foreign texts
  BehaviorConsistencyValidator  answers under edits that keep the meaning
  AdversarialRobustness         answers under edits that attack them
  EmbeddingShiftDetector        attacks and outlier words by hidden states
  ContextInjection              what one inserted sentence does
  MembershipInferenceAuditor    whether answers give training rows away
  BackdoorTriggerScanner        words that turn every answer

Exit code: 0; 1 where a finding is as bad as --fail-on says; 3 where a detector
crashed or none ran."""

_FOUND, _NO_ANSWER = 1, 3
_SUFFIXES: dict[str, AuditFormat] = {".json": "json", ".sarif": "sarif", ".html": "html", ".htm": "html"}


def audit(
    run: str,
    /,
    *,
    data: File | None = None,
    non_members: File | None = None,
    triggers: File | None = None,
    clean_texts: File | None = None,
    reference: str | None = None,
    detectors: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    report_format: Annotated[AuditFormat | None, Parameter(name="--format")] = None,
    output: Path | None = None,
    fail_on: SeverityName = "high",
    text: str | None = None,
    label: str | None = None,
    data_format: Format | None = None,
    public_key: Path | None = None,
    time_limit: PositiveFloat = 600.0,
    seed: WholeNumber = 0,
    quiet: Flag = False,
    model: ModelOptions = HERE,
) -> int:
    """Audit a model: files, backdoors, behaviour, confidence and leaks.

    Args:
        run: Folder or name of a model.
        data: Rows that the model is meant for, with labels or without; more detectors can run with them.
        non_members: Rows of the same kind that the model was not trained on, with those that it was trained on as the
            data: whether its answers give its training rows away.
        triggers: Text file of words and phrases, one a line, that may turn its answers; they are tried with the known
            ones.
        clean_texts: Texts of the same kind as the data that nobody has tampered with, as rows or, in a .txt file, one
            a line: whether words of the data turn the hidden states more than theirs do.
        reference: A clean model to compare with: the encoder that this one was fine-tuned from, or one of its task.
        detectors: Names of detectors, all whose needs are met when left out.
        report_format: text, json, sarif (2.1.0) or html. Default: as the output's name says, else text.
        output: Write the report to this file instead of standard output.
        fail_on: The mildest severity that makes the exit code 1.
        text: Column of the texts, where it is not that of the training.
        label: Column of the labels, where it is not that of the training.
        data_format: Format of the data, where the name does not say it.
        public_key: Key of the signer, as PEM; the model's signature has to be theirs.
        time_limit: Seconds that each detector may take.
        seed: Seed of every random choice.
        quiet: Show no progress.
        model: How the model is found and where it runs.
    """
    from bothways.audit import Severity, scan
    from bothways.audit.registry import detectors_named
    from bothways.data import read_rows

    wanted = _format(report_format, output)
    names = None if detectors is None else [name for each in detectors for name in each.split(",") if name]
    with bad_usage():
        detectors_named(names)
    if non_members is not None and data is None:
        raise usage_error("--non-members goes with --data: the rows that the model was trained on.")
    if clean_texts is not None and data is None:
        raise usage_error("--clean-texts goes with --data: the texts that are judged by the clean ones.")
    settings = _settings(public_key, non_members, triggers, clean_texts, data_format)
    report = scan(
        run,
        None if data is None else list(read_rows(data, format=data_format)),
        reference,
        names,
        seed=seed,
        time_limit=time_limit,
        columns={key: value for key, value in {"text": text, "label": label}.items() if value is not None},
        settings=settings,
        open_options={
            "device": model.device,
            "dtype": model.in_full.dtype,
            "revision": model.revision,
            "download": model.download,
            "allow_pickle": model.allow_pickle,
        },
        show_progress=False if quiet else None,
    )
    given: dict[str, object] = {"--data": data, "--reference": reference, "--text": text, "--label": label}
    given |= {"--non-members": non_members, "--triggers": triggers, "--clean-texts": clean_texts}
    given |= {"--detectors": names and ",".join(names), "--public-key": public_key, "--seed": seed}
    given |= {"--time-limit": f"{time_limit:g}"}
    options = [part for key, value in given.items() if value is not None for part in (key, str(value))]
    _write(report, wanted, output, shlex.join(["bothways", "audit", run, *options]))
    if report.at_least(Severity.of(fail_on)):
        return _FOUND
    return _NO_ANSWER if report.verdict == "error" else 0


def _settings(
    public_key: Path | None,
    non_members: str | None,
    triggers: str | None,
    clean_texts: str | None,
    data_format: Format | None,
) -> "AuditSettings":
    """Return the further inputs of single detectors.

    Raises:
        CycloptsError: A file of triggers has none.
        InvalidInput: A file cannot be read.
    """
    from bothways.data import read_rows

    settings: AuditSettings = {}
    if public_key is not None:
        settings["public_key"] = str(public_key)
    if non_members is not None:
        settings["non_members"] = list(read_rows(non_members, format=data_format))
    if triggers is not None:
        settings["triggers"] = _lines(triggers)
    if clean_texts is not None:
        plain = Path(clean_texts.lower().removesuffix(".gz")).suffix == ".txt"
        settings["clean_texts"] = _lines(clean_texts) if plain else list(read_rows(clean_texts))
    return settings


def _lines(path: str) -> list[str]:
    from bothways.data import read_rows

    lines = [str(row.values["text"]).strip() for row in read_rows(path, format="txt")]
    kept = [line for line in lines if line]
    if not kept:
        raise usage_error(f"{path} has no lines with text: expected one a line.")
    return kept


def _format(given: AuditFormat | None, output: Path | None) -> AuditFormat:
    if given is not None:
        wanted = given
    elif output is None:
        wanted = "text"
    else:
        wanted = _SUFFIXES.get(output.suffix.lower(), "text")
    if wanted == "html" and output is None:
        raise usage_error("a page of HTML goes to a file: name it with --output.")
    if wanted == "html":
        from bothways.report.drawing import require_extra

        require_extra("a report")
    if output is not None:
        from bothways.storage import check_file_writable

        check_file_writable(output)
    return wanted


def _write(report: "AuditReport", wanted: AuditFormat, output: Path | None, command: str) -> None:
    """Write the report to the output, whole or not at all, or print it."""
    import json

    from bothways.audit.formats import as_sarif, as_text

    if wanted == "json":
        written = json.dumps(report.to_dict(), ensure_ascii=False, indent=2)
    elif wanted == "sarif":
        written = json.dumps(as_sarif(report), ensure_ascii=False, indent=2)
    elif wanted == "html":
        from bothways.report import render
        from bothways.report.audit import audit_page

        written = render(audit_page(report, command)).rstrip("\n")
    else:
        written = as_text(report)
    if output is None:
        print(written)
        return
    from bothways.storage import new_file

    with new_file(output) as file:
        file.write(written + "\n")
    note(f"wrote {output}")
    note(f"verdict: {report.verdict}")
