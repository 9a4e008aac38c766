"""Options that several commands share.

The options of a task are made from the dataclasses that the task declares. The help of such an option is its entry in
the docstring of the dataclass, which the reference pages show too.
"""

import inspect
import os
import re
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, make_dataclass, replace
from functools import cache, wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypedDict, get_args, get_origin

from cyclopts import App, CycloptsError, Group, Parameter, Token
from cyclopts.validators import Number

from bothways.choices import Dtype, Format, GoldenSource, Overflow, Shared
from bothways.cli.printing import quietly
from bothways.confidence.confidence import ConfidenceOptions
from bothways.data.formats import FileSettings, guess_format, has_format
from bothways.errors import InvalidInput
from bothways.tasks.registry import SPECS, models, models_with
from bothways.tasks.spec import TaskSpec, attribute_docs

_MULTIPLES = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}

# Titles of option groups in the order of the help; groups with other titles follow in alphabetical order.
_ORDER = ("Data", "Columns", "Task", "Predictions", "Vectors", "Loss", "Training", "Confidence", "Saved settings")
_CONFIDENCE = {each.name for each in fields(ConfidenceOptions)}
_NONE = "none"  # word on the command line for None, in options whose default is another value


def _token_count(kind: type, words: Sequence[Token]) -> int:
    """Convert a word such as 50M, 1.5G or 2000000 to a number of tokens."""
    del kind
    number = re.fullmatch(r"(\d+(?:\.\d+)?)([kmgt]?)", words[0].value.replace("_", "").lower())
    count = 0 if number is None else round(float(number[1]) * _MULTIPLES[number[2]])
    if count < 1:
        raise usage_error(
            f"expected a number of tokens such as 50M (k, M, G and T are thousands to trillions) for "
            f"{words[0].keyword}, got {words[0].value!r}."
        )
    return count


# The name of a file, or a lone hyphen for standard input or output.
File = Annotated[str, Parameter(allow_leading_hyphen=True)]
# May be repeated.
Files = Annotated[tuple[str, ...], Parameter(allow_leading_hyphen=True, show_default=False)]
Flag = Annotated[bool, Parameter(show_default=False)]
PositiveInt = Annotated[int, Parameter(validator=Number(gte=1))]
TokenCount = Annotated[int, Parameter(converter=_token_count)]
WholeNumber = Annotated[int, Parameter(validator=Number(gte=0))]
PositiveFloat = Annotated[float, Parameter(validator=Number(gt=0))]
Share = Annotated[float, Parameter(validator=Number(gt=0, lte=1))]
Level = Annotated[float, Parameter(validator=Number(gt=0, lt=1))]
Columns = Annotated[tuple[str, ...], Parameter(show_default=" ".join)]
# Takes all words up to the next option.
Names = Annotated[tuple[str, ...], Parameter(consume_multiple=True, show_default=False)]

# Options that mean the same in every command.
FileFormat = Annotated[Format | None, Parameter(help="Format of the data. Default: by the file name; jsonl for '-'.")]
Encoding = Annotated[
    str | None, Parameter(help="Encoding of files of text, such as cp1252, utf-16 or shift_jis. Default: utf-8.")
]
Json = Annotated[bool, Parameter(show_default=False, help="Print the results as one JSON object.")]
Golden = Annotated[
    Literal["validation", "neutral", "none"],
    Parameter(
        help="Inputs of the golden answers (see bothways check): held-out rows, which are quoted in golden.json of the "
        "model, neutral texts, which quote no data, or none. Only with held-out rows are checksums of the training "
        "rows saved, by which evaluate finds these rows in other data."
    ),
]
Quiet = Annotated[bool, Parameter(show_default=False, help="Show no progress and no notes, only warnings and errors.")]
Overwrite = Annotated[bool, Parameter(show_default=False, help="Replace existing output files.")]
# The second name is that of earlier versions, which the help leaves out.
Report = Annotated[Path | None, Parameter(name=("--report", "--output"), allow_leading_hyphen=True)]
Models = Annotated[tuple[str, ...], Parameter(name="--model", negative=())]
Threads = Annotated[
    PositiveInt | None,
    Parameter(help="Number of CPU threads. Default: $OMP_NUM_THREADS, else one per core that the process may use."),
]
Revision = Annotated[
    str | None,
    Parameter(
        help="Commit of the model on the hub (40 hexadecimal digits). Default: the commit that was downloaded, as for "
        "other models of the command, such as a teacher."
    ),
]
TextColumns = Annotated[Columns, Parameter(help="Column of the texts; repeat the option to join several columns.")]
TrainedTextColumns = Annotated[
    tuple[str, ...] | None,
    Parameter(help="Column of the texts; repeat the option to join several. Default: as in training, else text."),
]
Resamples = Annotated[PositiveInt, Parameter(help="Number of bootstrap resamples for the intervals.")]
BootstrapSeed = Annotated[WholeNumber, Parameter(help="Seed of the bootstrap.")]
SharedRows = Annotated[
    Shared, Parameter(help="Rows that the model was trained on: keep them, with a note, or drop them.")
]

TEXT: tuple[str, ...] = ("text",)


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class FileOptions:
    """Options for reading files of data."""

    format: FileFormat = None
    encoding: Encoding = None
    trained: Annotated[Mapping[str, FileSettings], Parameter(parse=False)] = field(default_factory=dict)
    """The options that the files of a model's training, or of an index, were read with, by the kind of file."""

    def settings(self, path: object) -> FileSettings:
        """Return the format and the encoding to read a file with: the typed ones, else those of the training."""
        known = self.trained.get(file_kind(path) or "-", FileSettings(format=None, encoding=None))
        return {"format": self.format or known["format"], "encoding": self.encoding or known["encoding"]}

    def to_remember(self, *paths: str | None) -> dict[str, FileSettings]:
        """Return the settings of files with unusual ones by the kind of file, and those that are known already."""
        found: dict[str, FileSettings] = dict(self.trained)
        for path in paths:
            kind, chosen = file_kind(path), self.settings(path)
            if kind is not None and (chosen["format"] not in (None, kind) or chosen["encoding"]):
                found[kind] = chosen
        return found


@Parameter(name="*")
@dataclass(frozen=True, slots=True)
class DataFileOptions(FileOptions):
    """Options for reading files of data in commands whose ``--format`` is that of the report."""

    format: Annotated[FileFormat, Parameter(name="--data-format")] = None


ANY_FILE = FileOptions()
ANY_DATA_FILE = DataFileOptions()


def file_kind(path: object) -> str | None:
    """Return the format that a file's ending names, ``other`` if it names none, and None for streams and folders.

    >>> file_kind("news/train.CSV.gz"), file_kind("eng.testa"), file_kind("-")
    ('csv', 'other', None)
    """
    if not isinstance(path, str | os.PathLike) or str(path) == "-" or Path(path).is_dir():
        return None
    return guess_format(Path(path).name) if has_format(Path(path).name) else "other"


class ModelArguments(TypedDict):
    """Keyword arguments of the library's functions that find a model and load it to a device."""

    device: str
    dtype: Dtype | None
    revision: str | None
    download: bool
    allow_pickle: bool


@Parameter(name="*", group="Model")
@dataclass(frozen=True, slots=True)
class ModelOptions:
    """Options for finding and running a model."""

    device: str = "auto"
    """Device to compute on: cpu, cuda, cuda:1 or mps; auto takes a GPU if there is one, else the CPU."""
    threads: Threads = None
    dtype: Dtype | None = None
    """Precision of the weights. Default: float32 for training, comparing and exporting; otherwise bfloat16 on GPUs that
    support it, else float32. With auto, CPUs that have bfloat16 instructions also multiply matrices in bfloat16."""
    revision: Revision = None
    download: Flag = False
    """Download the model from the hub if there is no local copy. Without this option, nothing is downloaded. Later
    calls use the commit of the first download."""
    allow_pickle: Flag = False
    """If the model has no safetensors, read its weights from a pickled .bin file, after a scan for unsafe code."""

    @property
    def in_full(self) -> "ModelOptions":
        """The same options with float32 as the default precision."""
        return replace(self, dtype=self.dtype or "float32")

    def arguments(self) -> ModelArguments:
        """Return the options as keyword arguments of the library's functions."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "revision": self.revision,
            "download": self.download,
            "allow_pickle": self.allow_pickle,
        }


@Parameter(name="*", group="Long texts")
@dataclass(frozen=True, slots=True)
class WindowOptions:
    """Options for long texts."""

    max_length: PositiveInt | None = None
    """Maximum tokens per window of a text. Default: as in training, else the model's limit."""
    on_overflow: Overflow | None = None
    """Split longer texts into overlapping windows, fail, or truncate the texts. Default: as saved, else window."""
    stride: WholeNumber | None = None
    """Overlap of neighbouring windows, in tokens. Default: a quarter of a window; 0 in masked LM training."""


ANY_MODEL = ModelOptions()
ANY_WINDOWS = WindowOptions()


def golden_source(golden: Golden) -> GoldenSource | None:
    """Return the inputs of golden answers for the library, where None stands for none."""
    return None if golden == "none" else golden


def usage_error(message: str) -> CycloptsError:
    """Return the error for an invalid command line; it ends the program with exit code 2."""
    return CycloptsError(msg=message)


@contextmanager
def as_usage_error(*names: str) -> Iterator[None]:
    """Turn `InvalidInput` into a usage error; these names are spelled as options where its message begins with them."""
    try:
        yield
    except InvalidInput as error:
        message = str(error)
        named = re.match(r"\w+( and \w+)*", message)
        about = named[0].split(" and ") if named else []
        if named and set(about) <= set(names):
            message = " and ".join(map(spelled, about)) + message[named.end() :]
        raise usage_error(message) from error


def spelled(name: str) -> str:
    """Return an option as typed: ``--batch-size`` for ``batch_size``."""
    return f"--{name.replace('_', '-')}"


def command(example: str = "", *, name: str | None = None, **groups: type) -> Callable[[Callable[..., object]], App]:
    """Turn a function into a command with ``--quiet``, whose help ends with an example.

    ``groups`` maps parameters to option groups.
    """

    def decorated(function: Callable[..., object]) -> App:
        for parameter, group in groups.items():
            annotation = group | None if fields(group) else Annotated[object, Parameter(parse=False)]
            function.__annotations__[parameter] = annotation
        app = App(name=name or function.__name__.replace("_", "-"), help_epilogue=example)
        app.default(_with_quiet(function))
        return app

    return decorated


def _with_quiet(function: Callable[..., object]) -> Callable[..., object]:
    """Add ``--quiet`` to the options of a command, unless it has its own."""
    signature = inspect.signature(function)
    if "quiet" in signature.parameters:
        return function

    @wraps(function)
    def command(*arguments: object, quiet: bool = False, **options: object) -> object:
        with quietly(quiet):
            return function(*arguments, **options)

    own = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    vars(command)["__signature__"] = signature.replace(parameters=[*signature.parameters.values(), own])
    return command


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a command. Its value is None unless it was typed; the library then applies the default."""

    name: str
    type: Any
    help: str
    default: str | None = None
    """The default as the help shows it; None shows none."""
    negative: str | None = None
    """Name of the opposite of a flag."""
    nullable: bool = False
    """True if ``none`` stands for None."""

    def annotation(self) -> Any:  # noqa: ANN401 (an annotation)
        """Return the annotation of the option as a parameter."""
        shown: Any = False if self.default is None else self.default
        negative: tuple[str, ...] = () if self.negative is None else (self.negative,)
        return Annotated[self.type | None, Parameter(help=self.help, show_default=shown, negative=negative)]


def options_of(declaration: object) -> tuple[Option, ...]:
    """Return an option for each field of a dataclass; if given an instance, its values are the defaults.

    Fields with a quoted annotation, or of a type that has no command-line form, are left out.
    """
    kind = declaration if isinstance(declaration, type) else type(declaration)
    texts, options = attribute_docs(kind), []
    for each in fields(kind):
        default = each.default if isinstance(declaration, type) else getattr(declaration, each.name)
        text = texts.get(each.name, "").replace('``"', "'").replace('"``', "'").replace("``", "'")
        option = _option(each.name, each.type, default, text.replace("`", "").replace("None", _NONE))
        options += [] if option is None else [option]
    return tuple(options)


def _option(name: str, annotation: object, default: object, text: str) -> Option | None:
    """Return the option for a declared attribute; None if its type has no command-line form."""
    annotation = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    parts = get_args(annotation) if get_origin(annotation) in (typing.Union, types.UnionType) else (annotation,)
    kinds = [part for part in parts if part is not type(None)]
    if len(kinds) != 1 or isinstance(kinds[0], str):
        return None
    (kind,) = kinds
    value = None if default is MISSING else default
    shown = None if value is None else str(value)
    if get_origin(kind) is Literal:
        nullable = len(parts) > 1 and value is not None
        choices = (*get_args(kind), _NONE) if nullable else get_args(kind)
        return Option(name, Literal[choices], text, shown, nullable=nullable)
    if kind is bool:
        return Option(name, bool, text, negative=f"--no-{name.replace('_', '-')}")
    if kind is int:
        # Integers are counts from 1, unless their default is 0.
        at_least = Number(gte=0 if value == 0 else 1)
        return Option(name, Annotated[int, Parameter(validator=at_least)], text, shown)
    if kind in (float, str):
        return Option(name, kind, text, shown)
    if get_origin(kind) in (tuple, Sequence):
        words = " ".join(map(str, value)) if isinstance(value, tuple) else None
        (first, *_) = get_args(kind)
        item = str if str in get_args(first) else first
        return Option(name, types.GenericAlias(tuple, (item, ...)), text, words) if item in (str, int) else None
    return None


def group_of(title: str, options: Iterable[Option]) -> type:
    """Return a dataclass of the options, which the help shows under a title; of equal names, the first is kept."""
    unique: dict[str, Option] = {}
    for option in options:
        unique.setdefault(option.name, option)
    made = make_dataclass(
        "Options",
        [(each.name, each.annotation(), field(default=None)) for each in unique.values()],
        kw_only=True,
        frozen=True,
        namespace={
            "__module__": __name__,
            "nullable": frozenset(name for name, each in unique.items() if each.nullable),
        },
    )
    place = next((place for place, begun in enumerate(_ORDER) if title.startswith(begun)), len(_ORDER))
    return Parameter(name="*", group=Group(title, sort_key=place))(made)


def fitting_groups(
    title: str, own: Collection[Option], others: Iterable[Option] = (), confidence: Iterable[Option] = ()
) -> dict[str, type]:
    """Return a task's options as two groups, with ``others`` added to the first and ``confidence`` to the second."""
    learnt = [option for option in own if option.name in _CONFIDENCE]
    return {
        "own": group_of(title, (option for option in (*own, *others) if option.name not in _CONFIDENCE)),
        "confidence": group_of("Confidence (fitted on held-out rows)", (*learnt, *confidence)),
    }


def given_of(options: object) -> dict[str, Any]:
    """Return the values of a group's options that were typed, by the name of the option."""
    if not is_dataclass(options) or isinstance(options, type):
        return {}
    nullable: frozenset[str] = vars(type(options)).get("nullable", frozenset())
    given = {name: value for name, value in asdict(options).items() if value is not None}
    return {name: None if name in nullable and value == _NONE else value for name, value in given.items()}


def of_all_tasks(declarations: Callable[[TaskSpec], Iterable[object]]) -> list[Option]:
    """Return the options of all tasks, without defaults; the help of each option names the models that have it."""
    collected: dict[str, tuple[Option, list[TaskSpec]]] = {}
    for spec in SPECS.values():
        for declaration in declarations(spec):
            for option in options_of(declaration):
                _, specs = collected.setdefault(option.name, (option, []))
                specs += [] if spec in specs else [spec]
    return [
        replace(option, help=f"{option.help} For {models(specs)}.", default=None)
        for option, specs in collected.values()
    ]


def columns_of(spec: TaskSpec) -> tuple[object, ...]:
    """Return the default column names of a task, for each kind of row that it reads."""
    return spec.columns, *spec.kinds


@cache
def column_options(*, without: str = "") -> type:
    """Return a group of the column options of all tasks, except for the option named ``without``."""
    options = (each for each in of_all_tasks(columns_of) if each.name != without)
    return group_of("Columns (by default as in training)", options)


@cache
def opening_options(*also: str) -> type:
    """Return the options for opening a trained model; of the options of its calls only those named in ``also``."""
    kept = set(also)
    for spec in SPECS.values():
        calls = (spec.fit_options, spec.data_options, spec.predict_options)
        others = {option.name for call in calls for option in options_of(call)}
        kept |= {option.name for option in options_of(spec.open_options)} - others
    opening = of_all_tasks(lambda spec: [spec.open_options])
    return group_of("Saved settings (default: as saved)", (option for option in opening if option.name in kept))


@cache
def vector_options() -> type:
    """Return a group of the options for embedding texts."""
    return group_of("Vectors", options_of(SPECS["embedding"].open_options))


def check_known(spec: TaskSpec, call: Literal["data_options", "predict_options"], given: Iterable[str]) -> None:
    """Raise a usage error if a given option is not one of the task's options for this call."""
    own: type = spec.data_options if call == "data_options" else spec.predict_options
    foreign = [name for name in given if name not in {each.name for each in fields(own)}]
    if foreign:
        named = " and ".join(map(spelled, foreign))
        raise usage_error(f"{named} can be given for {models_with(call, foreign[0])}, but this model does not.")
