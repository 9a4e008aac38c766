"""The work of a job: what is computed for each row, as a value that goes to other processes and machines."""

import math
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from bothways import compose, tasks
from bothways.choices import OnEmpty
from bothways.data.columns import Row, text_at, with_gaps, with_text
from bothways.data.output import PredictionTable, beside
from bothways.errors import BothwaysError, EmptyInput, InvalidInput, did_you_mean
from bothways.progress import rounded
from bothways.tasks.columns import RawTextColumns, column_names
from bothways.tasks.masked_lm.spec import MASKED_LM

if TYPE_CHECKING:
    from bothways.tasks.masked_lm.outputs import FilledText
    from bothways.tasks.masked_lm.pseudo_likelihood import PseudoLikelihood

OutputRow = Mapping[str, object]
Options = dict[str, Any]
# The kinds of columns of a table; objects and lists are JSON.
Kind = Literal["text", "number", "integer", "boolean", "json", "vector"]
# The column of a table for the columns of the input.
KEPT = "input"


@dataclass(frozen=True, slots=True)
class OpenedWork:
    """A model that is open, and what it computes.

    Attributes:
        columns: The columns to read from a Parquet file; None for all.
        compute: Returns the rows of the output for rows of the input, fewer if rows without a text are left out.
        kinds: The columns of the output as a table.
        dimensions: Width of the vectors of the output; None if it has none.
        read: Reads the input of a row; raises InvalidInput for one that cannot be computed.
    """

    columns: Collection[str] | None
    compute: Callable[[Sequence[Row]], list[OutputRow]]
    kinds: Mapping[str, Kind]
    dimensions: int | None = None
    read: Callable[[Row], object] = lambda row: row


@dataclass(frozen=True)
class Embed:
    """Embed texts as vectors.

    Attributes:
        model: Folder or name of the model.
        text: Columns of the text, which are joined.
        prompt: The text before each text; None for the model's default.
        prompt_name: The name of one of the model's prompts instead.
        on_empty: What to do with a row without a text: reject it (``"error"``), leave it out, or write null.
        opening: Options of `SentenceEmbedder.from_pretrained`.
    """

    verb: ClassVar[str] = "embed"
    model: str
    text: tuple[str, ...] = ("text",)
    prompt: str | None = None
    prompt_name: str | None = None
    on_empty: OnEmpty = "error"
    opening: Options = field(default_factory=dict)

    def open(self) -> OpenedWork:
        """Open the embedder."""
        embedder = tasks.SentenceEmbedder.from_pretrained(self.model, **self.opening)
        prompt = embedder.fitted.settings.prompt_of(self.prompt, self.prompt_name)

        def compute(rows: Sequence[Row]) -> list[OutputRow]:
            has_text: deque[bool] = deque()
            texts: Iterable[str] = (text_at(row, self.text) for row in rows)
            if self.on_empty != "error":
                texts = with_text(lambda row: text_at(row, self.text), rows, has_text)
            encoded = embedder.encode_stream(texts, prompt=prompt, show_progress=False)
            vectors: Iterable[NDArray[np.float32] | None] = encoded
            if self.on_empty != "error":
                vectors = with_gaps(encoded, has_text)
            listed = list(vectors)
            if not np.isfinite([vector_D for vector_D in listed if vector_D is not None]).all():
                raise InvalidInput("the row has a vector that is not finite.")
            return [
                {**_id(row), "vector": vector_D}
                for row, vector_D in zip(rows, listed, strict=True)
                if vector_D is not None or self.on_empty == "null"
            ]

        read = _reading(lambda row: text_at(row, self.text), self.on_empty)
        return OpenedWork(self.text, compute, {"vector": "vector"}, embedder.dimensions, read)


@dataclass(frozen=True)
class Predict:
    """Predict with a trained model.

    Attributes:
        model: Folder of the model.
        task: One task of several.
        keep: Whether to copy the columns of the input.
        on_empty: As for `Embed`.
        columns: Names of the columns that the model reads, where they are others than in training.
        options: Options of the predictions, such as ``top``.
        opening: Options of `open_trained`.
    """

    verb: ClassVar[str] = "predict"
    model: str
    task: str | None = None
    keep: bool = False
    on_empty: OnEmpty = "error"
    columns: Options = field(default_factory=dict)
    options: Options = field(default_factory=dict)
    opening: Options = field(default_factory=dict)

    def open(self) -> OpenedWork:
        """Open the model, and check the options."""
        model = compose.open_trained(self.model, task=self.task, **self.opening)
        _check_names("column option", self.columns, column_names(model.fitted.columns))
        if self.columns:
            model = model.with_columns(**self.columns)
        _check_names("option", self.options, [each.name for each in fields(model.spec.predict_options)])
        answer = model.predict_stream if self.on_empty == "error" else partial(tasks.predict_or_none, model)
        table = PredictionTable("jsonl", self.keep, skip=self.on_empty == "skip")

        def compute(rows: Sequence[Row]) -> list[OutputRow]:
            predictions = answer(iter(rows), show_progress=False, **self.options)
            found = _finite(table.rows(rows, predictions))
            if found and found[0].get("prediction", ...) is None and "prediction" not in kinds:
                # No row has a text: the columns are those of other blocks all the same.
                found = [beside(dict.fromkeys(named()), each) for each in map(_without_prediction, found)]
            return found

        @cache
        def named() -> Sequence[str]:
            row = Row(1, dict.fromkeys(model.fitted.columns.input_columns, "a"), "a row")
            try:
                return list(next(model.predict_stream([row], show_progress=False, **self.options)).to_dict())
            except BothwaysError:
                return ["prediction"]

        kinds = kinds_of(compose.schemas_of(model).prediction)
        columns = None if self.keep else model.fitted.columns.input_columns
        kinds = {**kinds, KEPT: "json"} if self.keep else kinds
        return OpenedWork(columns, compute, kinds, read=_reading(model.fitted.columns.read, self.on_empty))


@dataclass(frozen=True)
class FillMasks:
    """Fill the masks of texts, or score texts by their pseudo-log-likelihood.

    Attributes:
        model: Folder or name of a masked LM.
        text: Columns of the text; None for those of the model.
        likelihood: Whether to score texts instead of filling masks.
        whole_words: Whether to mask the tokens of a word together for a score.
        options: Options of the fillings, such as ``top`` and ``words``.
        opening: Options of `FillMask.from_pretrained`.
    """

    verb: ClassVar[str] = "fill-mask"
    model: str
    text: tuple[str, ...] | None = None
    likelihood: bool = False
    whole_words: bool = False
    options: Options = field(default_factory=dict)
    opening: Options = field(default_factory=dict)

    def open(self) -> OpenedWork:
        """Open the masked LM."""
        filler = tasks.FillMask.from_pretrained(self.model, **self.opening)
        columns = filler.columns
        text = self.text or (columns.text if isinstance(columns, RawTextColumns) else ("text",))

        def compute(rows: Sequence[Row]) -> list[OutputRow]:
            texts = (text_at(row, text) for row in rows)
            answers: Iterable[FilledText | PseudoLikelihood] = (
                filler.likelihood_stream(texts, whole_words=self.whole_words, show_progress=False)
                if self.likelihood
                else filler.predict_stream(texts, show_progress=False, **self.options)
            )
            return _finite(
                beside(rounded(answer.to_dict()), _id(row)) for row, answer in zip(rows, answers, strict=True)
            )

        kinds: dict[str, Kind] = {"log_likelihood": "number", "tokens": "integer", "perplexity": "number"}
        kinds |= {"windows": "integer", "dropped_tokens": "integer"}
        kinds = kinds if self.likelihood else kinds_of(tasks.Schemas.of(MASKED_LM).prediction)
        return OpenedWork(text, compute, kinds, read=lambda row: text_at(row, text))


Work: TypeAlias = Embed | Predict | FillMasks


def identity_of(work: Work, fingerprint: str) -> dict[str, object]:
    """Return the identity of the work of a job: all options except those of finding the model."""
    known = asdict(work)
    opening = {name: value for name, value in known.pop("opening").items() if value is not None}
    for name in ("download", "allow_pickle", "revision", "check"):
        opening.pop(name, None)
    return {"verb": work.verb, **known, "weights": fingerprint, "opening": opening}


def _reading(read: Callable[[Row], object], on_empty: OnEmpty) -> Callable[[Row], object]:
    """Return a reader of rows that lets rows without a text pass, unless they are errors."""

    def passing(row: Row) -> object:
        try:
            return read(row)
        except EmptyInput:
            return None

    return read if on_empty == "error" else passing


def kinds_of(schema: Mapping[str, object]) -> dict[str, Kind]:
    """Return the columns of predictions with this JSON schema, of all variants if it has several."""
    match schema:
        case {"anyOf": [*variants]}:
            every = [kinds_of(each) for each in variants if isinstance(each, dict)]
            names = dict.fromkeys(name for each in every for name in each)
            found = {name: {each[name] for each in every if name in each} for name in names}
            return {name: kinds.pop() if len(kinds) == 1 else "json" for name, kinds in found.items()}
        case {"properties": {**properties}}:
            return {str(name): _kind(each) for name, each in properties.items()}
    return {"prediction": "json"}


def _kind(schema: object) -> Kind:
    """Return the kind of a column for values of a JSON schema.

    >>> _kind({"type": ["number", "null"]}), _kind({"type": "array"})
    ('number', 'json')
    """
    match schema:
        case {"anyOf": [*several]}:
            found = {_kind(each) for each in several if each != {"type": "null"}}
        case {"type": [*names]}:
            found = {_kind({"type": name}) for name in names if name != "null"}
        case {"type": "number"}:
            return "number"
        case {"type": "integer"}:
            return "integer"
        case {"type": "boolean"}:
            return "boolean"
        case {"type": "string"} | {"enum": [*_]} | {"const": str()}:
            return "text"
        case _:
            return "json"
    if "text" in found and "json" not in found:  # a label, which may be a number
        return "text"
    return found.pop() if len(found) == 1 else "json"


def _without_prediction(row: OutputRow) -> OutputRow:
    return {name: value for name, value in row.items() if name != "prediction"}


def _id(row: Row) -> dict[str, object]:
    return {"id": row.values["id"]} if "id" in row.values else {}


def _check_names(what: str, given: Iterable[str], known: Collection[str]) -> None:
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InvalidInput(f"this model has no {what} {name!r}; it has {', '.join(known)}.{hint}")


def _finite(rows: Iterable[OutputRow]) -> list[OutputRow]:
    """Return the rows, or raise InvalidInput if a number is not finite."""
    found = list(rows)
    if not all(map(_is_finite, found)):
        raise InvalidInput("the row has a prediction that is not finite.")
    return found


def _is_finite(value: object) -> bool:
    match value:
        case float():
            return math.isfinite(value)
        case Mapping():
            return all(map(_is_finite, value.values()))
        case list() | tuple():
            return all(map(_is_finite, value))
    return True
