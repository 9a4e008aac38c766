"""The context of a scan: the model, its files, rows, a reference, a seed and a time limit."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict

# These packages import their names on first use, so a scan of files does not import torch.
from bothways import checkpoints, compose, tasks
from bothways.audit.finding import Checked
from bothways.choices import Unlabelled
from bothways.data import Example
from bothways.errors import InvalidInput, NotFitted
from bothways.tasks.columns import RawTextColumns, TextColumns

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bothways.checkpoints import PretrainedEncoder
    from bothways.data import Row, Source
    from bothways.tasks import TextClassifier
    from bothways.tasks.task import AnyTask


# The inputs that a detector can need. "files": the folder of a checkpoint. "encoder": any encoder. "classifier": a
# trained single-label text classifier. "texts": rows with texts. "labels": rows with texts and their labels.
# "reference": a clean model to compare with.
Need: TypeAlias = Literal["files", "encoder", "classifier", "texts", "labels", "reference"]


class AuditSettings(TypedDict, total=False):
    """Optional inputs for single detectors."""

    public_key: str  # file with the signer's public key, as PEM
    triggers: "Sequence[str]"  # words and phrases to try as triggers
    clean_texts: "Sequence[str | Row]"  # untampered texts or rows of the same kind as the data
    non_members: "Source"  # rows that the model was not trained on; the data are then its training rows
    thorough: bool  # search for triggers more widely, which takes about four times as long
    masked_lm: str  # name or folder of a masked language model that proposes words for attacks


class NeedUnmet(Exception):
    """A detector lacks an input; the message names it and explains how to provide it.

    Attributes:
        given: True if the input was given but cannot be used, so that the audit is not what the caller asked for.
    """

    def __init__(self, message: str, *, given: bool = False) -> None:
        super().__init__(message)
        self.given = given


class Undecided(Exception):
    """A detector ran but cannot decide; the message says why. Its findings so far are kept."""


class OutOfTime(Undecided):
    """A detector reached its time limit."""


@dataclass(frozen=True, slots=True, eq=False)
class AuditTexts:
    """Texts and their labels."""

    texts: tuple[str, ...]
    labels_N: "NDArray[np.int64]"  # index of each text's label among the model's labels
    row_numbers: tuple[int, ...]  # row of each text in the data, counted from 1


@dataclass(slots=True)
class DetectorRun:
    """A run of one detector: its end at the latest, what it checked, and what it did not check, with the reasons."""

    until: float = float("inf")
    checks: list[Checked] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)


@dataclass(eq=False)
class Context:
    """The inputs that detectors share in one scan. Expensive ones are computed on first use and cached.

    Properties raise `NeedUnmet` if the input is missing or of another kind, and a `BothwaysError` if it cannot be read.
    """

    name: str  # name or folder of the model
    opened: "AnyTask | None" = None  # the model, if an opened one was given instead of a folder
    rows: "Sequence[Row] | None" = None  # rows of the user's data; None without data
    reference_name: str | None = None  # name or folder of a model to compare with
    # Options for opening models, see `bothways.open_trained`.
    open_options: Mapping[str, Any] = field(default_factory=dict)
    # Columns of texts and labels; if empty, those that the model was trained with.
    columns: Mapping[str, Any] = field(default_factory=dict)
    unlabelled: Unlabelled = "error"  # what to do with rows that have no label, see `bothways.tasks.spec.LabelData`
    seed: int = 0  # seed of every random choice; each detector has its own generator
    time_limit: float = 600.0  # seconds that each detector may take
    settings: AuditSettings = field(default_factory=AuditSettings)  # optional inputs for single detectors
    # Remarks for the report on inputs that were not used, in order.
    notes: dict[str, None] = field(default_factory=dict, init=False)
    run: DetectorRun = field(default_factory=DetectorRun, init=False)  # the run of the present detector

    def check_time(self) -> None:
        """Raise `OutOfTime` if the detector reached its time limit; detectors call it in their loops."""
        if time.monotonic() > self.run.until:
            raise OutOfTime(f"stopped at the time limit of {self.time_limit:g} s. Raise the limit with --time-limit.")

    def rng(self, detector: str) -> "np.random.Generator":
        """Return a random generator that depends only on the seed and the detector."""
        import numpy as np

        return np.random.default_rng([self.seed, *detector.encode()])

    # --- the model ---

    @cached_property
    def folder(self) -> Path:
        """The folder of the model's files."""
        if self.opened is not None:
            raise NeedUnmet("the files of a model: give its folder, not an opened model.")
        return self._folder_of(self.name)

    @cached_property
    def reference_folder(self) -> Path | None:
        """The folder of the reference's files; None without a reference."""
        return None if self.reference_name is None else self._folder_of(self.reference_name)

    @cached_property
    def model(self) -> "AnyTask":
        """The trained model."""
        return self._open(self.name) if self.opened is None else self.opened

    @cached_property
    def encoder(self) -> "PretrainedEncoder":
        """The encoder and its tokenizer."""
        try:
            model = self.model
        except NeedUnmet:
            return checkpoints.load(self.name, **self.open_options)
        if isinstance(model, compose.Ensemble):
            raise NeedUnmet("a model with one encoder, but this is an ensemble: audit its members one by one.")
        return model.model

    @cached_property
    def classifier(self) -> "TextClassifier":
        """The model as a single-label text classifier."""
        from bothways.tasks.heads.targets import SingleLabel

        model = self.model
        if not isinstance(model, tasks.TextClassifier) or not isinstance(model.fitted.outputs.target, SingleLabel):
            raise NeedUnmet("a classifier of texts with at least two labels, but this model is of another kind.")
        if len(model.labels) < 2:
            raise NeedUnmet("a classifier of texts with at least two labels, but this model has one.")
        return model

    @cached_property
    def reference(self) -> "AnyTask | PretrainedEncoder":
        """The model to compare with: a trained model, or else an encoder."""
        if self.reference_name is None:
            raise NeedUnmet("a reference, a clean model to compare with: give one with --reference.")
        try:
            return self._open(self.reference_name)
        except NeedUnmet:
            return checkpoints.load(self.reference_name, **options_for(self, self.reference_name))

    @cached_property
    def base_encoder(self) -> "PretrainedEncoder":
        """The encoder for comparing texts: the reference's, else the model's own."""
        if self.reference_name is None:
            return self.encoder
        if isinstance(self.reference, checkpoints.PretrainedEncoder):
            return self.reference
        if isinstance(self.reference, compose.Ensemble):
            raise NeedUnmet("a reference with one encoder, but the given one is an ensemble: give one of its members.")
        return self.reference.model

    # --- the data ---

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts of the rows."""
        if self.rows is None:
            raise NeedUnmet("texts: give rows with --data.")
        if not self.rows:
            raise NeedUnmet("texts, but --data has no rows.", given=True)
        return self.read_texts(self.rows, "rows with texts")

    def read_texts(self, rows: "Sequence[str | Row]", what: str) -> tuple[str, ...]:
        """Read the texts of rows, which may be plain texts; ``what`` names the rows in the error."""
        reader = self._reader
        try:
            return tuple(row if isinstance(row, str) else reader.read(row) for row in rows)
        except InvalidInput as error:
            raise NeedUnmet(f"{what}: {error}", given=True) from error

    @cached_property
    def labelled(self) -> AuditTexts:
        """The texts and labels of the rows."""
        _ = self.classifier  # raises for other models
        if self.rows is None:
            raise NeedUnmet("rows with texts and labels: give them with --data.")
        try:
            read = self.read_labelled(self.rows)
        except NeedUnmet as error:
            label = self._reader.label if isinstance(self._reader, TextColumns) else None
            if any(row.values.get(label) is not None for row in self.rows if label is not None):
                self.notes[f"labels of the data were not used: {error.__cause__}"] = None
            raise
        self._note_training_rows(read)
        return read

    def _note_training_rows(self, read: AuditTexts) -> None:
        """Note how many labelled rows the model was trained on."""
        trained = self.classifier.fitted
        labels = [trained.outputs.labels[number] for number in read.labels_N]
        rows = [Example(*each) for each in zip(read.texts, labels, read.row_numbers, strict=True)]
        for counts in trained.known.compared(rows, "keep")[1].values():
            effect = "accuracy and calibration look better than they are on new rows"
            if remark := counts.summary("labelled rows", effect, "Give rows that it was not trained on."):
                self.notes[remark] = None

    def read_labelled(self, rows: "Sequence[Row]") -> AuditTexts:
        """Read the texts and labels of rows."""
        outputs, columns = self.classifier.fitted.outputs, self._reader
        if not isinstance(columns, TextColumns):
            raise NeedUnmet("rows with texts and labels, but this model reads no labels.")
        try:
            examples = outputs.read(rows, columns, self.classifier.spec.data_options(unlabelled=self.unlabelled))
            labels_N = outputs.encode(examples)
        except InvalidInput as error:
            raise NeedUnmet(f"rows with texts and labels that the model knows: {error}") from error
        return AuditTexts(tuple(each.text for each in examples), labels_N, tuple(each.row for each in examples))

    @cached_property
    def _reader(self) -> RawTextColumns:
        # The columns of the model's training, or ``text``.
        try:
            columns = self.model.with_columns(**self.columns).columns if self.columns else self.model.columns
        except NeedUnmet:
            columns = TextColumns(**self.columns)
        except InvalidInput as error:
            raise NeedUnmet(f"rows in the columns that the model reads: {error}") from error
        if not isinstance(columns, RawTextColumns):
            raise NeedUnmet("rows with a text, but this model reads other inputs.")
        return columns

    def _folder_of(self, name: str) -> Path:
        if name and Path(name).is_dir():
            return Path(name)  # without torch
        from bothways.checkpoints.hub import locate

        known = {"revision", "download"}
        return locate(name, **{key: value for key, value in options_for(self, name).items() if key in known}).folder

    def _open(self, name: str) -> "AnyTask":
        try:
            return compose.open_trained(name, **options_for(self, name))
        except NotFitted as error:
            raise NeedUnmet("a model that was trained for a task, but this is an encoder without a head.") from error


def options_for(context: Context, name: str) -> dict[str, Any]:
    """Return the options for opening a model: the revision is a commit of the audited model, not of any other."""
    return {**context.open_options, **({} if name == context.name else {"revision": None})}


INPUTS: Mapping[Need, Callable[[Context], object]] = {
    "files": lambda context: context.folder,
    "encoder": lambda context: context.encoder,
    "classifier": lambda context: context.classifier,
    "texts": lambda context: context.texts,
    "labels": lambda context: context.labelled,
    "reference": lambda context: context.reference,
}
