"""In what form ``bothways predict`` writes: what the output's name and the scheme of tags ask for."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.cli.options import SpanScheme, usage_error
from bothways.errors import InvalidInput

if TYPE_CHECKING:
    from bothways.data import OutputFormat, Row
    from bothways.tasks import TextTagger
    from bothways.tasks.tagging.predictions import Tagging
    from bothways.tasks.task import Prediction, Task


@dataclass(frozen=True, slots=True)
class Form:
    """How predictions become rows.

    Attributes:
        format: Of the output.
        scheme: That of the tags, where it is not to be the model's.
        keep: Whether the columns of the input are written too.
    """

    format: "OutputFormat"
    scheme: SpanScheme | None
    keep: bool

    def rows(self, rows: "Iterable[Row]", predictions: "Iterable[Prediction]") -> Iterator[Mapping[str, object]]:
        """What is written of each row.

        A table has the same columns in every row: one for ids where the first row has one, empty in rows without.
        """
        ids: bool | None = None
        for row, prediction in zip(rows, predictions, strict=True):
            said = prediction if self.scheme is None else _in_scheme(prediction, self.scheme)
            if self.format == "conll":
                tagging = _tagging(said)
                yield {"tokens": [word.text for word in tagging.words], "tags": list(tagging.tags)}
                continue
            answer = said.to_dict() if self.format == "jsonl" else _flat(_of_one(said))
            kept = {name: value for name, value in row.values.items() if self.keep or name == "id"}
            ids = "id" in kept if ids is None else ids
            if ids and self.format != "jsonl":
                kept.setdefault("id", None)
            yield _beside(answer, kept) | answer


def form_of(task: "Task", output: str, *, scheme: SpanScheme | None, keep: bool) -> Form:
    """The form of an output, checked before anything is predicted.

    Raises:
        CycloptsError: The task's answers have no such form.
    """
    from bothways.data import output_format

    try:
        chosen = output_format(output)
    except InvalidInput as error:
        raise usage_error(f"--output: {error}") from error
    tagger = _tagger(task)
    if tagger is None and (scheme is not None or chosen == "conll"):
        asked = "--scheme" if scheme is not None else f"an output in CoNLL's form ({Path(output).name})"
        part = next((f" Name the task that tags: --task {name}." for name in _tagging_parts(task)), "")
        raise usage_error(f"{asked} is for models that tag words, but this one does not.{part}")
    if tagger is not None and scheme is not None and tagger.labeller.tag_set.scheme == "plain":
        raise usage_error(f"the tags of this model are no spans, so they cannot be written as {scheme}.")
    if keep and chosen == "conll":
        raise usage_error("CoNLL's form has words and tags alone: leave --keep out, or write .jsonl.")
    if chosen in ("csv", "tsv"):
        _check_flat(task, chosen)
    return Form(chosen, scheme, keep)


def _check_flat(task: "Task", chosen: str) -> None:
    """Refuse a table for answers that are lists of things with several values."""
    from bothways.tasks import Ensemble, FillMask, QuestionAnswerer

    first = task.members[0] if isinstance(task, Ensemble) else task
    if _tagger(first) is not None:
        what, other = "words and spans", ".jsonl, or .conll for words and tags"
    elif parts := _tagging_parts(first):
        what, other = f"the spans of the task {parts[0]!r}", ".jsonl, or ask one task with --task"
    elif isinstance(first, QuestionAnswerer) and first.answering.top > 1:
        what, other = "several answers to a question", ".jsonl, or leave --top out"
    elif isinstance(first, FillMask):
        what, other = "several words for a mask", ".jsonl"
    else:
        return
    raise usage_error(f"{what} do not fit into the cells of a .{chosen}: write {other}.")


def _beside(answer: Mapping[str, object], kept: Mapping[str, object]) -> dict[str, object]:
    """Columns of the input, those named like a part of the answer under a name that nothing else has."""
    named: dict[str, object] = {}
    for name, value in kept.items():
        free = name
        while free in answer or (free != name and (free in kept or free in named)):
            free = f"input_{free}"
        named[free] = value
    return named


def _tagger(task: "Task") -> "TextTagger | None":
    """The tagger, or the first of an ensemble of them; None for another task."""
    from bothways.tasks import Ensemble, TextTagger

    first = task.members[0] if isinstance(task, Ensemble) else task
    return first if isinstance(first, TextTagger) else None


def _tagging_parts(task: "Task") -> list[str]:
    """Of several tasks, the names of those that tag words."""
    from bothways.tasks import MultiTask

    return [name for name, part in task.parts.items() if _tagger(part)] if isinstance(task, MultiTask) else []


def _in_scheme(prediction: "Prediction", scheme: SpanScheme) -> "Prediction":
    from bothways.tasks.ensembles.results import EnsemblePrediction

    tagging = _tagging(prediction).in_scheme(scheme)
    return replace(prediction, together=tagging) if isinstance(prediction, EnsemblePrediction) else tagging


def _tagging(prediction: "Prediction") -> "Tagging":
    from bothways.tasks.ensembles.results import EnsemblePrediction
    from bothways.tasks.tagging.predictions import Tagging

    said = prediction.together if isinstance(prediction, EnsemblePrediction) else prediction
    if not isinstance(said, Tagging):
        raise TypeError(f"expected what a tagger says, got {type(said).__name__}.")
    return said


def _of_one(prediction: "Prediction") -> dict[str, object]:
    """As JSON values, without the list of answers: where it is one, its parts are there without it."""
    return {name: value for name, value in prediction.to_dict().items() if name != "answers"}


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
