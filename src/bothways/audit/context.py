"""The context of a scan: the model, its files, rows, a reference, a seed and a time limit."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from bothways.errors import InvalidInput, NotFitted

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from bothways.checkpoints import PretrainedEncoder
    from bothways.data import Row
    from bothways.tasks import TextClassifier

# What a detector can need. "files": the folder of a checkpoint. "encoder": any encoder. "classifier": a trained
# classifier of texts with one label each. "texts": rows with texts. "labels": rows with texts and their labels.
# "reference": a clean model beside the one that is audited.
Need: TypeAlias = Literal["files", "encoder", "classifier", "texts", "labels", "reference"]


class NeedUnmet(Exception):
    """A detector needs something that is not there; the message says what, and how to give it."""


class Undecided(Exception):
    """A detector ran, but cannot decide; the message says why. Its findings so far are kept."""


class OutOfTime(Undecided):
    """The time limit of a detector was reached."""


@dataclass(frozen=True, slots=True, eq=False)
class AuditTexts:
    """Texts and the numbers of their labels.

    Attributes:
        texts: The N texts.
        labels_N: Index of each text's label among the model's labels.
        row_numbers: Number of each text's row, from 1, in the data that were given.
    """

    texts: tuple[str, ...]
    labels_N: "NDArray[np.int64]"
    row_numbers: tuple[int, ...]


@dataclass(eq=False)
class Context:
    """Everything that detectors share in one scan; what is costly is made on first use and kept.

    Attributes:
        name: Name or folder of the model.
        opened: The model, where it was given opened and not as a folder.
        rows: Rows of the user's data; None where there are none.
        reference_name: Name or folder of a model to compare with.
        open_options: Options for opening models, see `bothways.open_trained`.
        columns: Columns of texts and labels, where they are not those of the training.
        seed: Seed of whatever is drawn; each detector draws from a generator of its own.
        time_limit: Seconds that one detector may take.
        settings: Options of detectors by name, such as triggers to try.
        notes: Remarks for the report on what was given and not used, in order.
    """

    name: str
    opened: Any = None
    rows: "Sequence[Row] | None" = None
    reference_name: str | None = None
    open_options: Mapping[str, Any] = field(default_factory=dict)
    columns: Mapping[str, object] = field(default_factory=dict)
    seed: int = 0
    time_limit: float = 600.0
    settings: Mapping[str, Any] = field(default_factory=dict)
    notes: dict[str, None] = field(default_factory=dict, init=False)
    _until: float = field(default=float("inf"), init=False)

    def check_time(self) -> None:
        """Stop a detector that takes too long; detectors call it in their loops.

        Raises:
            OutOfTime: The time limit is reached.
        """
        if time.monotonic() > self._until:
            raise OutOfTime(f"stopped at the time limit of {self.time_limit:g} s. Give it more with --time-limit.")

    def start_clock(self) -> None:
        """Begin the time of the next detector."""
        self._until = time.monotonic() + self.time_limit

    def rng(self, detector: str) -> "np.random.Generator":
        """Return a generator that depends on the seed and the detector alone."""
        import numpy as np

        return np.random.default_rng([self.seed, *detector.encode()])

    # --- the model ---

    @cached_property
    def folder(self) -> Path:
        """The folder of the model's files.

        Raises:
            NeedUnmet: The model was given opened.
            BothwaysError: The name leads to no model.
        """
        if self.opened is not None:
            raise NeedUnmet("the files of a model: give its folder, not an opened model.")
        return self._folder_of(self.name)

    @cached_property
    def reference_folder(self) -> Path | None:
        """The folder of the reference's files; None where no reference was given, or one that is opened.

        Raises:
            BothwaysError: The name leads to no model.
        """
        return None if self.reference_name is None else self._folder_of(self.reference_name)

    @cached_property
    def model(self) -> Any:  # noqa: ANN401 (a trained model of any task)
        """The trained model.

        Raises:
            NeedUnmet: It is an encoder that was trained for nothing.
            BothwaysError: It cannot be opened.
        """
        return self._open(self.opened if self.opened is not None else self.name)

    @cached_property
    def encoder(self) -> "PretrainedEncoder":
        """The encoder and its tokenizer.

        Raises:
            NeedUnmet: It is a model without one encoder of its own, such as an ensemble.
            BothwaysError: It cannot be opened.
        """
        from bothways.checkpoints import PretrainedEncoder, load

        try:
            model = self.model
        except NeedUnmet:
            return load(self.name, **self.open_options)
        found = getattr(model, "model", None)
        if not isinstance(found, PretrainedEncoder):
            raise NeedUnmet("one encoder, and this is a model of several: audit its members one by one.")
        return found

    @cached_property
    def classifier(self) -> "TextClassifier":
        """The model as a classifier of texts with one label each.

        Raises:
            NeedUnmet: It is another kind of model.
            BothwaysError: It cannot be opened.
        """
        return self._as_classifier(self.model, "the model")

    @cached_property
    def reference(self) -> Any:  # noqa: ANN401 (a trained model, or an encoder)
        """The model to compare with: a trained model, or else an encoder.

        Raises:
            NeedUnmet: None was given.
            BothwaysError: It cannot be opened.
        """
        if self.reference_name is None:
            raise NeedUnmet("a reference, a clean model to compare with: give one with --reference.")
        try:
            return self._open(self.reference_name)
        except NeedUnmet:
            from bothways.checkpoints import load

            return load(self.reference_name, **self.open_options)

    @cached_property
    def base_encoder(self) -> "PretrainedEncoder":
        """The encoder that texts are compared by: the reference's, else the model's own.

        Raises:
            NeedUnmet: There is no encoder.
            BothwaysError: It cannot be opened.
        """
        from bothways.checkpoints import PretrainedEncoder

        if self.reference_name is None:
            return self.encoder
        found = getattr(self.reference, "model", self.reference)
        if not isinstance(found, PretrainedEncoder):
            raise NeedUnmet("a reference of one encoder, and this is a model of several: give one of its members.")
        return found

    # --- the data ---

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The texts of the rows.

        Raises:
            NeedUnmet: There are no rows, or one has no text.
        """
        if self.rows is None:
            raise NeedUnmet("texts: give rows with --data.")
        if not self.rows:
            raise NeedUnmet("texts, and the data have no rows.")
        reader = self.reader
        try:
            return tuple(str(reader.read(row)) for row in self.rows)
        except InvalidInput as error:
            raise NeedUnmet(f"rows with texts: {error}") from error

    @cached_property
    def labelled(self) -> AuditTexts:
        """The texts and labels of the rows.

        Raises:
            NeedUnmet: There are no rows, no labels, or labels that the model does not know.
        """
        outputs = self.classifier.outputs
        if self.rows is None:
            raise NeedUnmet("rows with texts and labels: give them with --data.")
        try:
            examples = outputs.read(self.rows, self.reader)
            labels_N = outputs.encode(examples)
        except InvalidInput as error:
            if any(row.values.get(self.reader.truth) is not None for row in self.rows):
                self.notes[f"labels of the data were not used: {error}"] = None
            raise NeedUnmet(f"rows with texts and labels that the model knows: {error}") from error
        return AuditTexts(tuple(each.text for each in examples), labels_N, tuple(each.row for each in examples))

    @cached_property
    def reader(self) -> Any:  # noqa: ANN401 (columns of a task)
        """The reader of rows: the columns of the model, or ``text``."""
        from bothways.tasks.columns import TextColumns

        try:
            columns = self.model.with_columns(**self.columns).columns if self.columns else self.model.columns
        except NeedUnmet:
            columns = TextColumns(**cast("dict[str, Any]", dict(self.columns)))
        except InvalidInput as error:
            raise NeedUnmet(f"rows in the columns that the model reads: {error}") from error
        # Of the type: a masked language model's columns refuse to say what is right of a row.
        if not hasattr(type(columns), "truth") or not hasattr(type(columns), "read"):
            raise NeedUnmet("rows of texts with labels, and the model reads other rows.")
        return columns

    # --- what is missing ---

    def unmet(self, needs: Sequence[Need]) -> str | None:
        """Return what a detector needs and this scan has not; None where all is there.

        Raises:
            BothwaysError: The model, the reference or the data are there but cannot be read.
        """
        for need in needs:
            try:
                _LOOK[need](self)
            except NeedUnmet as error:
                return f"needs {error}"
        return None

    # --- helpers ---

    def _folder_of(self, name: str) -> Path:
        """Return where a model lies; a folder is taken as it is, without torch."""
        if name and Path(name).is_dir():
            return Path(name)
        from bothways.checkpoints.hub import locate

        known = {"revision", "download"}
        return locate(name, **{key: value for key, value in self.open_options.items() if key in known}).folder

    def _open(self, model: Any) -> Any:  # noqa: ANN401 (a name, or an opened model)
        if not isinstance(model, str):
            return model
        from bothways.compose.opening import open_trained

        try:
            return open_trained(model, **self.open_options)
        except NotFitted as error:
            raise NeedUnmet("a model that was trained for a task, and this is an encoder without a head.") from error

    def _as_classifier(self, model: Any, what: str) -> "TextClassifier":  # noqa: ANN401 (a trained model)
        from bothways.tasks import TextClassifier
        from bothways.tasks.heads.targets import SingleLabel

        single = isinstance(model, TextClassifier) and isinstance(model.outputs.target, SingleLabel)
        if not single or len(model.labels) < 2:
            raise NeedUnmet(f"a classifier of texts with at least two labels, and {what} is none.")
        found: TextClassifier = model
        return found


_LOOK: Mapping[Need, Callable[[Context], object]] = {
    "files": lambda context: context.folder,
    "encoder": lambda context: context.encoder,
    "classifier": lambda context: context.classifier,
    "texts": lambda context: context.texts,
    "labels": lambda context: context.labelled,
    "reference": lambda context: context.reference,
}
