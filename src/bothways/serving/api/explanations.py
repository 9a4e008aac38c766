"""The route of explanations: the contribution of each word to a prediction."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import Context
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated

from msgspec import Meta, Struct

from bothways.choices import AttributionMethod, Overflow
from bothways.inference.texts import BatchRunner, OneT, ResultT, scheduled
from bothways.lazy import imported
from bothways.serving.api.native import ModelName, Unit, as_list, read_texts, task_of, texts_in, usage
from bothways.serving.api.offsets import with_offsets
from bothways.serving.errors import Refused
from bothways.serving.queue import Ticket
from bothways.serving.routes import Call, Reply, Route, route
from bothways.tasks.columns import inputs_of
from bothways.tasks.embedding.trained import TrainedEmbedder
from bothways.tasks.outputs import TrainedHead
from bothways.tasks.task import AnyTask
from bothways.text.words import ReadWords

if TYPE_CHECKING:
    from bothways.explain.attribution import Attribution

# Characters of a text that is read once for each of its words.
_MOST_LEFT_OUT = 4000


class ExplainRequest(Struct, forbid_unknown_fields=True, kw_only=True):
    """A request for the contribution of each word to a prediction."""

    input: Annotated[object, Meta(description="One input of the task.")]
    model: ModelName = None
    task: Annotated[str | None, Meta(description="One task of a model of several tasks.")] = None
    method: Annotated[
        AttributionMethod | None, Meta(description="Default: integrated gradients, or leave-one-out without weights.")
    ] = None
    label: Annotated[str | None, Meta(description="The label to explain. Default: the predicted one.")] = None
    offsets: Unit = "code_points"


def explain(call: Call, body: ExplainRequest) -> Reply:
    """Explain the prediction for one input by its words."""
    served = call.models.find(body.model, "" if body.model else "explain")
    call.model = served.name
    model, values = task_of(served, body.task), as_list([body.input])
    call.check_texts(["".join(texts_in(body.input))], "input")
    (read,) = inputs_of(model.fitted.columns, values)
    method = body.method or ("integrated-gradients" if has_gradients(model) else "leave-one-out")
    characters = sum(map(len, texts_in(body.input)))
    if method == "leave-one-out" and characters > _MOST_LEFT_OUT:
        message = f"input: the text is read again without each word, so expected at most {_MOST_LEFT_OUT:,} characters"
        raise Refused(413, f"{message}, got {characters:,}.", code="text_too_long", param="input")
    target = None if body.label is None else imported("bothways.explain.targets:Label")(body.label)
    attribute = imported("bothways.explain.attribution:attribute")

    def computed() -> Attribution:
        found: Attribution = attribute(model, values, method, target=target)[0]
        return found

    # Leaving out words asks the model many times, in batches; gradients are computed in one piece.
    if method == "leave-one-out":
        found = computed()
    else:
        found = call.queue.call(call.ticket, lambda: _counted(call.ticket, computed))
    texts = partial(read_texts, read, lambda words: ReadWords.of(words).text)
    answer = with_offsets(found.to_dict(), texts, body.offsets)
    return Reply({"model": served.name, "explanation": answer, "usage": usage(call)})


@dataclass(frozen=True, slots=True)
class _AtOnce:
    """The schedule of the queue's own thread, which computes at once and counts the tokens of a request."""

    ticket: Ticket
    on_overflow: Overflow | None = None

    def run(self, runner: BatchRunner[OneT, ResultT], windows: Sequence[OneT]) -> list[ResultT]:
        """Return the runner's answers for windows, in order."""
        self.ticket.tokens += sum(len(each.ids) for each in windows)
        return Context().run(runner.run, windows)  # without this schedule


def _counted(ticket: Ticket, computed: Callable[[], Attribution]) -> Attribution:
    """Return an attribution, after counting the tokens of the prediction that it explains and of its gradients."""
    with scheduled(_AtOnce(ticket)):
        found = computed()
    ticket.tokens += found.tokens
    return found


def has_gradients(model: AnyTask) -> bool:
    """Test whether a model is one encoder with weights, and no ensemble or exported graph."""
    return isinstance(model.fitted, TrainedHead | TrainedEmbedder) and model.backend.export is None


ROUTES: tuple[Route, ...] = (
    route(
        "POST",
        "/v1/explain",
        explain,
        ExplainRequest,
        "Explain a prediction by its words.",
        "native",
        reply={"type": "object"},
    ),
)
