"""Every error that this package raises on purpose.

Each message says what was expected, what came, and what to do about it::

    BothwaysError
    ├── InvalidInput            a value, text, row or file of the caller's is not usable
    │   ├── EmptyInput          a row has no text, or an empty one
    │   ├── TextTooLong         longer than the model reads, and the caller chose "error"
    │   ├── OutputExists        the output is already there and was not to be overwritten
    │   └── UnreadColumn        a column was named for a part of a row that the task does not read
    ├── UnknownModel            no such folder, name or model type
    ├── UnsupportedConfig       a model asks for something that is not built
    ├── UnsupportedAttention    an attention backend cannot serve this request
    ├── UnsafeCheckpoint        reading this file could run code
    ├── CorruptCheckpoint       a file is truncated, altered or not what it says
    ├── IncompatibleWeights     tensors missing, left over or of another shape
    ├── ExportMismatch          an exported file does not compute what its model does; nothing was written
    ├── MissingOutput           an output that was not computed was asked for
    ├── NotFitted               a task was used before it was trained
    ├── TrainingDiverged        a loss, gradient or score was not finite; the weights kept so far were put back
    ├── WorkerLost              another process of a run is gone
    ├── NotCalibrated           calibrated probabilities asked of an uncalibrated model
    ├── OutOfMemory             the smallest possible batch does not fit, or a training batch; says what to reduce
    ├── OutOfDisk               the output could not be written; nothing partial was left
    ├── DeviceMismatch          tensors or a model on another device than expected
    ├── OfflineError            a download would be needed and was not asked for
    └── MissingDependency       an optional package is absent; carries the install line
"""

from collections.abc import Iterable


def shown(value: object, most: int = 80) -> str:
    """Return the beginning of a value as messages show it, also of one that Python does not write out."""
    try:
        return f"{value!r:.{most}}"
    except (RecursionError, ValueError):  # nested a thousand deep, or a number of thousands of digits
        return f"a very large {type(value).__name__}"


def nearest(wanted: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the most similar of some names, whatever the case; None where none is as similar as ``cutoff``, 0 to 1."""
    from difflib import get_close_matches

    by_lower = {name.lower(): name for name in names}
    near = get_close_matches(wanted.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(wanted: str, names: Iterable[str]) -> str:
    """Return the end of a message that names the most similar of some names; empty where none is similar.

    >>> did_you_mean("lable", ["text", "Label"])
    " Did you mean 'Label'?"
    """
    near = nearest(wanted, names)
    return "" if near is None else f" Did you mean {near!r}?"


class BothwaysError(Exception):
    """Root of the tree: catch this to catch everything that the package raises on purpose."""


class InvalidInput(BothwaysError):
    """A value, text, row or file that the caller gave is not usable."""


class EmptyInput(InvalidInput):
    """A row has nothing to read: its text is null, empty or only white space."""


class TextTooLong(InvalidInput):
    """A text has more tokens than the model reads, and the overflow policy is ``"error"``."""


class OutputExists(InvalidInput):
    """The output path is already there, and overwriting was not asked for."""


class UnreadColumn(InvalidInput):
    """A column was named for a part of a row that the task does not read."""


class UnknownModel(BothwaysError):
    """No folder, embedded model, hub name or model type answers to this name."""


class UnsupportedConfig(BothwaysError):
    """A configuration asks for something that this package does not build."""


class UnsupportedAttention(BothwaysError):
    """The attention backend that was asked for cannot serve this request."""


class UnsafeCheckpoint(BothwaysError):
    """Reading this file could run code, so it was not read."""


class CorruptCheckpoint(BothwaysError):
    """A checkpoint file is truncated, altered, or not what it says it is."""


class IncompatibleWeights(BothwaysError):
    """A checkpoint's tensors are missing, left over, or of another shape than its configuration says."""


class ExportMismatch(BothwaysError):
    """A file that was exported does not compute what the model does; it was not kept."""


class MissingOutput(BothwaysError):
    """An output field that was not computed was read."""


class NotFitted(BothwaysError):
    """A task model was asked for predictions before it had labels and a trained head."""


class TrainingDiverged(BothwaysError):
    """A loss, gradient or validation score was not finite; the model has the weights kept so far.

    Attributes:
        kept_epoch: The epoch (from 1) that those are of, 0 where they are the validated ones before the first update;
            None where nothing was validated and no epoch was finished.
    """

    kept_epoch: int | None = None


class WorkerLost(BothwaysError):
    """Another process of a run on several is gone, so this one cannot go on."""


class NotCalibrated(BothwaysError):
    """Calibrated probabilities were asked of a model that was never calibrated."""


class OutOfMemory(BothwaysError):
    """Something did not fit into memory even when made as small as it can be; the message says what to reduce."""


class OutOfDisk(BothwaysError):
    """The disk is full; the unfinished output was removed."""


class DeviceMismatch(BothwaysError):
    """Tensors lie on another device than the model, or a device does not exist."""


class OfflineError(BothwaysError):
    """A file would have to be downloaded, and the caller did not ask for that."""


class TextsTruncated(UserWarning):
    """Texts were cut because the caller chose ``"truncate"``; says how many, and how many tokens were not read.

    Not an error, and no part of the tree: what was asked for was done.
    """


class LabelsUnnamed(UserWarning):
    """A checkpoint does not say what its labels are called, so they are ``LABEL_0`` and so on.

    Not an error, and no part of the tree: the model predicts all the same.
    """


class TensorsLeftOver(UserWarning):
    """A checkpoint holds tensors that belong neither to its encoder nor to a head of its family; says which.

    Not an error, and no part of the tree: the encoder is whole without them.
    """


class MissingDependency(BothwaysError):
    """An optional package is not installed.

    >>> str(MissingDependency.of("faiss", extra="search", purpose="building a search index"))
    "building a search index needs the package 'faiss', which is not installed: pip install 'bothways[search]'"
    """

    @classmethod
    def of(cls, package: str, *, extra: str, purpose: str) -> "MissingDependency":
        """Return the error for ``package``, carrying the line that installs it."""
        return cls(f"{purpose} needs the package {package!r}, which is not installed: pip install 'bothways[{extra}]'")
