"""Every error that this package raises on purpose.

Each message says what was expected, what came, and what to do about it::

    BothwaysError
    ├── InvalidInput            a value, text, row or file from the caller is not usable
    │   ├── EmptyInput          a row has no text, or an empty one
    │   ├── TextTooLong         longer than the model's limit, and the overflow policy is "error"
    │   ├── OutputExists        the output exists and may not be overwritten
    │   └── UnreadColumn        a column was named for an input or label that the task does not have
    ├── UnknownModel            no model, folder, file or model type has this name
    ├── UnsupportedConfig       a model needs something that this package does not support
    ├── UnsupportedAttention    an attention backend cannot serve this request
    ├── UnsafeCheckpoint        reading this file could run code
    ├── CorruptCheckpoint       a file is truncated or altered, or its content does not match its name
    ├── IncompatibleWeights     tensors are missing, unexpected or of another shape
    ├── ExportMismatch          an exported model and its original differ in their outputs; nothing was written
    ├── AnswersChanged          a model's answers, tokens, weights or settings differ from its golden answers
    ├── MissingOutput           an output was requested that was not computed
    ├── NotFitted               a task was used before it was trained
    ├── TrainingDiverged        a loss, gradient or score was not finite; the last kept weights were restored
    ├── WorkerLost              another process of the run has ended
    ├── NotCalibrated           an uncalibrated model cannot give calibrated probabilities
    ├── OutOfMemory             the smallest batch, or a training batch, does not fit; the message says what to reduce
    ├── OutOfDisk               the output could not be written; nothing partial was left
    ├── DeviceMismatch          tensors are on another device than the model, or a device does not exist
    ├── OfflineError            a download is needed but was not allowed
    ├── StoreUnavailable        a database that holds an index cannot be reached, or refuses a statement
    └── MissingDependency       an optional package is missing; the message has the install command
"""

from collections.abc import Iterable
from typing import TypeVar

_T = TypeVar("_T")


def shown(value: object, most: int = 80) -> str:
    """Return the first ``most`` characters of a value's repr, or a placeholder if Python cannot print the value."""
    try:
        return f"{value!r:.{most}}"
    except (RecursionError, ValueError):  # nested a thousand deep, or a number of thousands of digits
        return f"a very large {type(value).__name__}"


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar of ``names``, ignoring case; None if its similarity (0 to 1) is below ``cutoff``."""
    from difflib import get_close_matches

    by_lower = {each.lower(): each for each in names}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint for the end of an error message: the most similar of ``names``; empty if none is similar.

    >>> did_you_mean("lable", ["text", "Label"])
    " Did you mean 'Label'?"
    """
    near = nearest(name, names)
    return "" if near is None else f" Did you mean {near!r}?"


def one_of(name: str, value: object, choices: Iterable[_T]) -> _T:
    """Return the choice that equals ``value``; else raise `InvalidInput` with the choices.

    >>> one_of("pooling", "mean", ("mean", "cls"))
    'mean'
    """
    for choice in (known := tuple(choices)):
        if choice == value:
            return choice
    raise not_one_of(name, value, known)


def not_one_of(name: str, value: object, choices: Iterable[object]) -> "InvalidInput":
    """Return the error for a value that is none of the choices.

    >>> str(not_one_of("pooling", "median", ("mean", "cls")))
    "pooling must be one of 'mean', 'cls', got 'median'."
    """
    return InvalidInput(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}.")


def read_with(option: str, value: str) -> str:
    """Spell the option with which a file is read, for the advice of error messages.

    >>> read_with("format", "conll")
    "--format conll (in Python read_rows(path, format='conll'))"
    """
    return f"--{option} {value} (in Python read_rows(path, {option}={value!r}))"


class BothwaysError(Exception):
    """Base class of all errors that the package raises on purpose."""


class InvalidInput(BothwaysError):
    """A value, text, row or file from the caller is not usable."""


class EmptyInput(InvalidInput):
    """A row has no usable text: it is null, empty or only white space."""


class TextTooLong(InvalidInput):
    """A text is longer than the model's limit, and the overflow policy is ``"error"``."""


class OutputExists(InvalidInput):
    """The output path exists and may not be overwritten."""


class UnreadColumn(InvalidInput):
    """A column was named for an input or label that the task does not have."""


class NoWeights(InvalidInput):
    """Work that needs a model's weights was asked of an ONNX export, which has none."""


class UnknownModel(BothwaysError):
    """No folder, bundled model, hub model or model type has this name, or a file of the model is missing."""


class UnsupportedConfig(BothwaysError):
    """A configuration needs something that this package does not support."""


class UnsupportedAttention(BothwaysError):
    """The chosen attention backend cannot serve this request."""


class UnsafeCheckpoint(BothwaysError):
    """Reading this file could run code, so it was not read."""


class CorruptCheckpoint(BothwaysError):
    """A checkpoint file is truncated or altered, or its content does not match its name."""


class IncompatibleWeights(BothwaysError):
    """A checkpoint's tensors are missing, unexpected, or of another shape than its configuration says."""


class ExportMismatch(BothwaysError):
    """An exported model and its original differ in their outputs; the export was discarded."""


class AnswersChanged(BothwaysError):
    """A model's answers, tokens, weights or settings differ from its golden answers; the message lists the causes."""


class MissingOutput(BothwaysError):
    """An output field was requested that was not computed."""


class NotFitted(BothwaysError):
    """A task model has no labels or trained head yet, so it cannot predict."""


class TrainingDiverged(BothwaysError):
    """A loss, gradient or validation score was not finite; the weights of the last kept epoch were restored.

    Attributes:
        kept_epoch: The number of that epoch, counted from 1; 0 if the initial weights were restored and had been
            validated, None if they had not.
    """

    kept_epoch: int | None = None


# The beginning of the message in every process of a training that is left when another one ends.
PROCESS_ENDED = "another process of the run has ended"


class WorkerLost(BothwaysError):
    """Another process of a distributed run has ended, so this one cannot continue."""


class NotCalibrated(BothwaysError):
    """The model was never calibrated, so it has no calibrated probabilities."""


class OutOfMemory(BothwaysError):
    """A batch does not fit into memory; the message says what to reduce."""


class OutOfDisk(BothwaysError):
    """The disk is full; the unfinished output was removed."""


class DeviceMismatch(BothwaysError):
    """Tensors are on another device than the model, or a device does not exist."""


class OfflineError(BothwaysError):
    """A file has to be downloaded, but the caller did not allow it."""


class StoreUnavailable(BothwaysError):
    """A database that holds an index cannot be reached, lost the connection, or refuses a statement."""


class TextsTruncated(UserWarning):
    """Texts were truncated, as the caller requested; the message has the numbers of these texts and dropped tokens."""


class LabelsUnnamed(UserWarning):
    """A checkpoint has no names for its labels, so they are ``LABEL_0`` and so on."""


class LabelsAmbiguous(UserWarning):
    """Labels can be read in more than one way; the message says how they are read, and how to change that."""


class RowsLeftOut(UserWarning):
    """Rows were left out, as the caller requested; the message has their number and the reason."""


class EncodingDoubtful(UserWarning):
    """A file is read in an encoding that may not be its own; the message shows a line in both."""


class SheetsLeftOut(UserWarning):
    """A workbook has several sheets, of which only the first is read."""


class RowsShared(UserWarning):
    """Rows to measure a model on are rows that it was trained on; the message has their number."""


class TensorsLeftOver(UserWarning):
    """A checkpoint has tensors (see the message) that belong neither to its encoder nor to a known head."""


class PromptsDiffer(UserWarning):
    """Texts are embedded without a prompt that their model's card asks for, or that the model now names."""


class ThreadsSpin(UserWarning):
    """Threads of torch keep their cores busy while they wait, on cores that other processes use too."""


class MissingDependency(BothwaysError):
    """An optional package is not installed.

    >>> str(MissingDependency.of("faiss", extra="search", purpose="building a search index"))
    "building a search index needs the package 'faiss', which is not installed: pip install 'bothways[search]'"
    """

    @classmethod
    def of(cls, package: str, *, extra: str, purpose: str) -> "MissingDependency":
        """Return the error for a missing package, with the command that installs it."""
        return cls(f"{purpose} needs the package {package!r}, which is not installed: pip install 'bothways[{extra}]'")
