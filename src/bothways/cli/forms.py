"""Output formats of ``bothways predict``, chosen by the output's name."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.choices import OnEmpty
from bothways.cli.declared import check_known, options_of
from bothways.cli.options import usage_error
from bothways.cli.terminal import rounded
from bothways.errors import InvalidInput
from bothways.tasks.registry import SPECS, models
from bothways.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from bothways.data import OutputFormat, Row


@dataclass(frozen=True, slots=True)
class Form:
    """A conversion of predictions to rows.

    Attributes:
        format: Of the output.
        keep: Whether all columns of the input are written too.
        inputs: Columns of texts, which a table shows beside the predictions.
        skip: Whether rows without a text are left out; otherwise all that is predicted of them is null.
        listed: The part of a prediction whose items are the rows of a table, such as spans.
        ranked: Whether a table has a column for each place of the probabilities, and not for each label.
    """

    format: "OutputFormat"
    keep: bool
    inputs: tuple[str, ...] = ()
    skip: bool = False
    listed: str | None = None
    ranked: bool = False

    def rows(self, rows: "Iterable[Row]", predictions: Iterable[Any]) -> Iterator[Mapping[str, object]]:
        """Yield what is written of each row.

        A table has the same columns in every row: one for ids where the first row has one, empty in rows without.
        """
        ids: bool | None = None
        names: list[str] | None = None  # what is predicted of a row, known from the first that has a text
        waiting: list[dict[str, object]] = []  # rows before that one
        for number, (row, prediction) in enumerate(zip(rows, predictions, strict=True), start=1):
            kept = {name: value for name, value in row.values.items() if self.keep or name == "id"}
            if not self.keep:
                kept |= {name: text if isinstance(text := row.values.get(name), str) else None for name in self.inputs}
            ids = "id" in kept if ids is None else ids
            if ids and self.format != "jsonl":
                kept.setdefault("id", None)
            if prediction is None:
                if not self.skip and not self.listed:
                    waiting.append(kept)
            else:
                for answer in self._answers(prediction.to_dict(), number):
                    names = list(answer)
                    yield from (_nulls(names, each) for each in waiting)
                    waiting.clear()
                    yield _beside(answer, kept) | answer
            if names is not None:
                yield from (_nulls(names, each) for each in waiting)
                waiting.clear()
        yield from (_nulls(["prediction"], each) for each in waiting)

    def _answers(self, prediction: Mapping[str, object], number: int) -> list[dict[str, object]]:
        """Return the prediction of a row as rows of the output: one, or several."""
        answer = rounded(prediction)
        if self.format == "conll":
            words: Any = answer["words"]
            return [{f"{part}s": [word[name] for word in words] for part, name in _CONLL}]
        if self.format == "jsonl":
            return [answer]
        if self.listed:
            items: Any = answer[self.listed]
            return [{"row": number, **_flat(item)} for item in items]
        flat = {name: value for name, value in answer.items() if not _holds_objects(value)}
        return [_flat(flat, ranked=self.ranked)]


def _nulls(names: Iterable[str], kept: Mapping[str, object]) -> dict[str, object]:
    """Return the row of an input without a text."""
    answer: dict[str, object] = dict.fromkeys(names)
    return _beside(answer, kept) | answer


_CONLL = (("token", "text"), ("tag", "tag"))  # columns of the form, and of a word of the answer


def form_of(
    task: Any,  # noqa: ANN401 (a trained model)
    output: str,
    options: Mapping[str, Any],
    *,
    keep: bool,
    on_empty: OnEmpty = "error",
) -> Form:
    """Return the form of an output, checked before anything is predicted.

    Raises:
        CycloptsError: The task's answers have no such form.
    """
    from bothways.data import output_format

    try:
        chosen = output_format(output)
    except InvalidInput as error:
        raise usage_error(f"--output: {error}") from error
    parts = task.parts
    if ("scheme" in options or chosen == "conll") and not _tags_words(task.spec):
        asked = "--scheme" if "scheme" in options else f"an output in CoNLL's form ({Path(output).name})"
        tagging = next(
            (f" Name the task that tags: --task {name}." for name in parts if _tags_words(parts[name].spec)), ""
        )
        taggers = models(spec for spec in SPECS.values() if _tags_words(spec))
        raise usage_error(f"{asked} is for {taggers}, but this one does not.{tagging}")
    check_known(task.spec, "predict_options", options)
    if keep and chosen == "conll":
        raise usage_error("CoNLL's form has words and tags alone: leave --keep out, or write .jsonl.")
    if on_empty == "null" and chosen == "conll":
        raise usage_error("CoNLL's form has no null: give --on-empty skip, or write .jsonl.")
    wanted = task.spec.predict_options(**options)
    listed = wanted.listed if chosen in ("csv", "tsv") else None
    if chosen in ("csv", "tsv"):
        if not listed and (several := wanted.nested):
            other = ".jsonl, or .conll for words and tags" if _tags_words(task.spec) else ".jsonl"
            raise usage_error(f"{' and '.join(several)} do not fit into the cells of a .{chosen}: write {other}.")
        for name, part in parts.items():
            if several := part.spec.predict_options().nested:
                what = " and ".join(f"the {each}" for each in several)
                raise usage_error(
                    f"{what} of the task {name!r} do not fit into the cells of a .{chosen}: write .jsonl, or ask one "
                    "task with --task."
                )
    shown = task.fitted.columns.input_columns if chosen in ("csv", "tsv") and not listed else None
    return Form(chosen, keep, shown or (), on_empty == "skip", listed, ranked=options.get("top") is not None)


def _tags_words(spec: TaskSpec) -> bool:
    """Return whether answers are words and tags, which have schemes."""
    return any(option.name == "scheme" for option in options_of(spec.predict_options))


def _holds_objects(value: object) -> bool:
    """Return whether it is a list of several things with several values each.

    Where there is one, its parts are there too.
    """
    return isinstance(value, list | tuple) and any(isinstance(each, Mapping) for each in value)


def _beside(answer: Mapping[str, object], kept: Mapping[str, object]) -> dict[str, object]:
    """Columns of the input, those named like a part of the answer under a name that nothing else has."""
    named: dict[str, object] = {}
    for name, value in kept.items():
        free = name
        while free in answer or (free != name and (free in kept or free in named)):
            free = f"input_{free}"
        named[free] = value
    return named


def _flat(values: Mapping[str, object], before: str = "", *, ranked: bool = False) -> dict[str, object]:
    """One level, as the cells of a table want it: ``{"a": {"b": 1}}`` becomes ``{"a_b": 1}``.

    Raises:
        InvalidInput: Two columns would have the same name.
    """
    flat: dict[str, object] = {}
    for name, value in values.items():
        if name == "probabilities" and ranked and isinstance(value, Mapping):
            columns = _places(value, before)
        elif isinstance(value, Mapping):
            # The likeliest label stands first, which is another one in every row: a table has them in one order.
            inner = dict(sorted(value.items())) if name == "probabilities" else value
            columns = _flat(inner, f"{before}{name}_", ranked=ranked)
        else:
            columns = {f"{before}{name}": value}
        twice = flat.keys() & columns.keys()
        if twice:
            raise InvalidInput(f"two columns would be called {min(twice)!r}: write .jsonl instead.")
        flat |= columns
    return flat


def _places(probabilities: Mapping[str, object], before: str) -> dict[str, object]:
    """Labels and their probabilities by their places: ``label_1``, ``probability_1``, ``label_2``."""
    columns: dict[str, object] = {}
    for place, (label, probability) in enumerate(probabilities.items(), start=1):
        columns |= {f"{before}label_{place}": label, f"{before}probability_{place}": probability}
    return columns
