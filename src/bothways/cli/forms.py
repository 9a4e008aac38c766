"""In what form ``bothways predict`` writes: what the output's name asks for."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bothways.cli.declared import check_known, options_of
from bothways.cli.options import usage_error
from bothways.errors import InvalidInput
from bothways.tasks.registry import SPECS, models
from bothways.tasks.spec import TaskSpec

if TYPE_CHECKING:
    from bothways.data import OutputFormat, Row


@dataclass(frozen=True, slots=True)
class Form:
    """How predictions become rows.

    Attributes:
        format: Of the output.
        keep: Whether the columns of the input are written too.
    """

    format: "OutputFormat"
    keep: bool

    def rows(self, rows: "Iterable[Row]", predictions: Iterable[Any]) -> Iterator[Mapping[str, object]]:
        """What is written of each row.

        A table has the same columns in every row: one for ids where the first row has one, empty in rows without.
        """
        ids: bool | None = None
        for row, prediction in zip(rows, predictions, strict=True):
            answer = prediction.to_dict()
            if self.format == "conll":
                yield {f"{part}s": [word[name] for word in answer["words"]] for part, name in _CONLL}
                continue
            if self.format != "jsonl":
                answer = _flat({name: value for name, value in answer.items() if not _holds_objects(value)})
            kept = {name: value for name, value in row.values.items() if self.keep or name == "id"}
            ids = "id" in kept if ids is None else ids
            if ids and self.format != "jsonl":
                kept.setdefault("id", None)
            yield _beside(answer, kept) | answer


_CONLL = (("token", "text"), ("tag", "tag"))  # columns of the form, and of a word of the answer


def form_of(
    task: Any,  # noqa: ANN401 (a trained model)
    output: str,
    options: Mapping[str, Any],
    *,
    keep: bool,
) -> Form:
    """The form of an output, checked before anything is predicted.

    Raises:
        CycloptsError: The task's answers have no such form.
    """
    from bothways.compose.multitask.multitask import MultiTask
    from bothways.data import output_format

    try:
        chosen = output_format(output)
    except InvalidInput as error:
        raise usage_error(f"--output: {error}") from error
    parts = task.parts if isinstance(task, MultiTask) else {}
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
    if chosen in ("csv", "tsv"):
        if several := task.spec.predict_options(**options).nested:
            other = ".jsonl, or .conll for words and tags" if _tags_words(task.spec) else ".jsonl"
            raise usage_error(f"{' and '.join(several)} do not fit into the cells of a .{chosen}: write {other}.")
        for name, part in parts.items():
            if several := part.spec.predict_options().nested:
                what = " and ".join(f"the {each}" for each in several)
                raise usage_error(
                    f"{what} of the task {name!r} do not fit into the cells of a .{chosen}: write .jsonl, or ask one "
                    "task with --task."
                )
    return Form(chosen, keep)


def _tags_words(spec: TaskSpec) -> bool:
    """Whether answers are words and tags, which have schemes."""
    return any(option.name == "scheme" for option in options_of(spec.predict_options))


def _holds_objects(value: object) -> bool:
    """Whether it is a list of several things with several values each: where there is one, its parts are there too."""
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


def _flat(values: Mapping[str, object], before: str = "") -> dict[str, object]:
    """One level, as the cells of a table want it: ``{"a": {"b": 1}}`` becomes ``{"a_b": 1}``.

    Raises:
        InvalidInput: Two columns would have the same name.
    """
    flat: dict[str, object] = {}
    for name, value in values.items():
        # The likeliest label stands first, which is another one in every row: a table has them in one order.
        inner = dict(sorted(value.items())) if name == "probabilities" and isinstance(value, Mapping) else value
        columns = _flat(inner, f"{before}{name}_") if isinstance(inner, Mapping) else {f"{before}{name}": inner}
        twice = flat.keys() & columns.keys()
        if twice:
            raise InvalidInput(f"two columns would be called {min(twice)!r}: write .jsonl instead.")
        flat |= columns
    return flat
