"""``bothways audit`` and ``bothways audit-data``: the risks of a model, and of its training data."""

import json as json_format
import shlex
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from bothways import audit as auditing
from bothways import report as pages
from bothways.audit import AuditReport, Severity, scan
from bothways.audit.context import AuditSettings
from bothways.audit.formats import as_sarif, as_text
from bothways.audit.scanning import detectors_named
from bothways.choices import AuditFormat, SeverityName, Unlabelled
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import FAILED, counted, note, on_terminal, print_rows
from bothways.data import output_format, write_rows
from bothways.storage import new_file

_EXAMPLE = """\
Examples:
  bothways audit runs/news
  bothways audit runs/news --data test.jsonl.gz --format json
  bothways audit runs/news --data test.jsonl.gz \\
    --detectors BackdoorTriggerScanner \\
    --format sarif --report audit.sarif --fail-on high
  bothways audit runs/news --data train.jsonl --non-members test.jsonl.gz \\
    --detectors MembershipInferenceAuditor
  bothways audit runs/news --data inbox.jsonl --clean-texts test.jsonl.gz \\
    --triggers suspects.txt

Detectors:
  ModelProvenanceChecker        unsafe or changed files; does not load the model
  ClassifierConfidenceAnalyzer  calibration; confidence on out-of-domain texts
  BehaviorConsistencyValidator  predictions under edits that keep the meaning
  AdversarialRobustness         predictions under adversarial edits
  EmbeddingShiftDetector        hidden states under attacks; outlier words
  ContextInjection              predictions after a sentence is inserted
  MembershipInferenceAuditor    leakage of training rows
  BackdoorTriggerScanner        words that flip every prediction

Exit code: 1 if a finding is at least as severe as --fail-on; 3 if a detector
crashed or none ran; otherwise 0."""

_NO_VERDICT = 3  # exit code
_MOST_ROWS = 20  # of a training set on a terminal
_SUFFIXES: dict[str, AuditFormat] = {".json": "json", ".sarif": "sarif", ".html": "html", ".htm": "html"}


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class AuditInputs:
    """Inputs of an audit besides the model."""

    data: opt.File | None = None
    """File of rows from the model's domain, with or without labels; several detectors need it."""
    non_members: opt.File | None = None
    """File of rows not used in training, to test for membership leakage; --data must then hold training rows."""
    triggers: opt.File | None = None
    """Text file of suspected trigger words and phrases, one per line, to try in addition to the known ones."""
    thorough: bool = False
    """Search for backdoor triggers more widely, which takes about four times as long."""
    clean_texts: opt.File | None = None
    """File of untampered texts from the same domain: rows, or .txt with a text per line. EmbeddingShiftDetector then
    compares how far their words, and those of --data, shift the hidden states."""
    reference: str | None = None
    """Folder or name of a clean model to compare with: the encoder before fine-tuning, or a model of the same task."""
    text: str | None = None
    """Column of the texts. Default: as in training."""
    label: str | None = None
    """Column of the labels. Default: as in training."""
    unlabelled: Unlabelled = "error"
    """If rows have no label: do not use the labels of these data (error), or leave such rows out (drop)."""
    public_key: Path | None = None
    """Public key of the signer, as PEM; the model must have a valid signature by it."""

    @property
    def columns(self) -> dict[str, str]:
        """The column names that were typed, by option."""
        return {key: value for key, value in {"text": self.text, "label": self.label}.items() if value is not None}

    def check(self) -> None:
        """Raise a usage error for inputs that need ``--data``."""
        if self.non_members is not None and self.data is None:
            raise opt.usage_error("--non-members needs --data, with rows that the model was trained on.")
        if self.clean_texts is not None and self.data is None:
            raise opt.usage_error("--clean-texts needs --data, with the texts to test.")

    def settings(self, file: opt.FileOptions) -> AuditSettings:
        """Return the additional inputs of the detectors; texts and rows are read from their files."""
        plain_text = replace(file, format="txt")
        settings: AuditSettings = {"thorough": self.thorough}
        if self.public_key is not None:
            settings["public_key"] = str(self.public_key)
        if self.non_members is not None:
            settings["non_members"] = list(inputs.file_rows(self.non_members, file))
        if self.triggers is not None:
            settings["triggers"] = _lines(self.triggers, plain_text)
        if self.clean_texts is not None:
            plain = Path(self.clean_texts.lower().removesuffix(".gz")).suffix == ".txt"
            settings["clean_texts"] = (
                _lines(self.clean_texts, plain_text)
                if plain
                else list(inputs.file_rows(self.clean_texts, replace(file, format=None)))
            )
        return settings


def _lines(path: str, file: opt.FileOptions) -> list[str]:
    """Return the lines of a text file that are not blank, at least one."""
    lines = [str(row.values["text"]).strip() for row in inputs.file_rows(path, file)]
    if not (kept := [line for line in lines if line]):
        raise opt.usage_error(f"expected one text per line in {path}, got only empty lines.")
    return kept


NOTHING_ELSE = AuditInputs()


@opt.command(_EXAMPLE)
def audit(
    model: str,
    *,
    given: AuditInputs = NOTHING_ELSE,
    file: opt.DataFileOptions = opt.ANY_DATA_FILE,
    detectors: Annotated[list[str] | None, Parameter(consume_multiple=True)] = None,
    report_format: Annotated[AuditFormat | None, Parameter(name="--format")] = None,
    report: opt.Report = None,
    overwrite: opt.Overwrite = False,
    fail_on: SeverityName = "high",
    time_limit: opt.PositiveFloat = 600.0,
    seed: opt.WholeNumber = 0,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> int:
    """Audit a model: files, backdoors, behaviour, confidence and leaks.

    Args:
        model: Folder or name of a model.
        detectors: Names of the detectors to run (see below). Default: all that can run with these inputs.
        report_format: text, json, sarif (2.1.0) or html. Default: by the ending of --report, else text.
        report: Write the report to this file instead of standard output.
        fail_on: Exit with code 1 if a finding has at least this severity.
        time_limit: Maximum time of each detector, in seconds.
        seed: Seed of all random choices.
    """
    inputs.check_output(report, overwrite, option="--report")
    chosen_format = _format(report_format, report)
    names = None if detectors is None else [name for each in detectors for name in each.split(",") if name]
    with opt.as_usage_error():
        detectors_named(names)
    given.check()
    found = scan(
        model,
        None if given.data is None else list(inputs.file_rows(given.data, file)),
        given.reference,
        names,
        seed=seed,
        time_limit=time_limit,
        columns=given.columns,
        unlabelled=given.unlabelled,
        settings=given.settings(file),
        open_options=opening.in_full.arguments(),
    )
    typed: dict[str, object] = {**asdict(given), "detectors": names and ",".join(names)}
    typed |= {"data_format": file.format, "encoding": file.encoding}
    typed["unlabelled"] = None if given.unlabelled == "error" else given.unlabelled
    typed |= {"seed": seed, "time_limit": f"{time_limit:g}", "thorough": None}
    options = ["--thorough"] if given.thorough else []
    options += [part for key, value in typed.items() if value is not None for part in (opt.spelled(key), str(value))]
    _write(found, chosen_format, report, shlex.join(["bothways", "audit", model, *options]))
    if found.at_least(Severity[fail_on.upper()]):
        return FAILED
    return _NO_VERDICT if found.verdict == "error" else 0


def _format(given: AuditFormat | None, file: Path | None) -> AuditFormat:
    """Return the format of the report, checked before the audit."""
    chosen = given or ("text" if file is None else _SUFFIXES.get(file.suffix.lower(), "text"))
    if chosen == "html":
        if file is None:
            raise opt.usage_error("an HTML page needs a file: name it with --report.")
        pages.require_extra("a report")
    return chosen


def _write(report: AuditReport, chosen: AuditFormat, file: Path | None, command: str) -> None:
    if chosen == "json":
        written = json_format.dumps(report.to_dict(), ensure_ascii=False, indent=2)
    elif chosen == "sarif":
        written = json_format.dumps(as_sarif(report), ensure_ascii=False, indent=2)
    elif chosen == "html":
        written = pages.render(pages.audit_page(report, command)).rstrip("\n")
    else:
        written = as_text(report)
    if file is None:
        print(written)
        return
    with new_file(file) as stream:
        stream.write(written + "\n")
    note(f"wrote {file}")
    note(f"verdict: {report.verdict}; {report.ran}, see there what each checked and could not tell")


_DATA_EXAMPLE = """\
Examples:
  bothways audit-data train.jsonl.gz --output suspicious.jsonl
  bothways audit-data train.jsonl.gz --model runs/news \\
    --output suspicious.jsonl

Each row has a score from 0 to 1. A row above 0.5 contains a suspicious phrase,
named in "triggers": rows that contain the phrase and have this label look like
rows of another label once the phrase is removed. Read the first rows before
you remove any."""


@opt.command(_DATA_EXAMPLE)
def audit_data(
    data: opt.File,
    /,
    *,
    model: str | None = None,
    output: opt.File = "-",
    overwrite: opt.Overwrite = False,
    embedder: str = "sentence-transformers/all-MiniLM-L6-v2",
    text: tuple[str, ...] | None = None,
    label: str | None = None,
    unlabelled: Unlabelled = "error",
    file: opt.DataFileOptions = opt.ANY_DATA_FILE,
    json: opt.Flag = False,
    opened: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Find poisoned rows of a training set.

    Writes the most suspicious rows first.

    Args:
        data: Rows with texts and labels.
        model: Folder of a classifier trained on these rows; its predictions and hidden states are then used too.
        output: File for the rows with score, triggers and reason; '-' is standard output.
        embedder: Folder or name of a sentence embedder that was not trained on the rows.
        text: Columns of the texts. Default: those of --model, else text.
        label: Column of the labels. Default: that of --model, else label.
        unlabelled: Refuse rows that have no label (error), or leave them out (drop).
        json: Print JSON Lines on a terminal too.
    """
    output_format(output)
    inputs.check_output(output, overwrite, data)
    result = auditing.audit_data(
        list(inputs.file_rows(data, file)),
        model,
        embedder=embedder,
        text=text or None,
        label=label,
        unlabelled=unlabelled,
        open_options={**opened.arguments()},
    )
    if on_terminal(output, json=json):
        print_rows(result.rows[:_MOST_ROWS])
        note(f"shown: {min(_MOST_ROWS, len(result.rows))} of {counted(len(result.rows), 'row')} (all with --output)")
    else:
        write_rows(output, result.rows, overwrite=True)
    for phrase in result.phrases[:10]:
        similar = f" and {counted(len(phrase.members) - 1, 'similar phrase')}" if len(phrase.members) > 1 else ""
        note(
            f"{phrase.phrase!r}{similar}: {counted(len(phrase.rows), 'row')} of {phrase.label!r}, "
            f"{phrase.contradicted} of which clearly have another label once the phrase is removed"
        )
    note(f"{result.suspected} of {counted(len(result.rows), 'row')} are suspected")
