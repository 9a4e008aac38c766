"""The models of a server: opened once, found by name, and what each can answer."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from bothways import compose
from bothways.data import Row
from bothways.errors import InvalidInput, NotFitted, did_you_mean
from bothways.families.layout import MAPPED
from bothways.lazy import imported
from bothways.retrieval.address import is_database, shown_address
from bothways.serving.errors import SHOWN, Refused
from bothways.serving.settings import Opening
from bothways.tasks.columns import inputs_of
from bothways.tasks.embedding.spec import EMBEDDING
from bothways.tasks.masked_lm.masked_text import MASK
from bothways.tasks.masked_lm.spec import MASKED_LM
from bothways.tasks.outputs import TrainedHead

if TYPE_CHECKING:
    from bothways.judging import Judge
    from bothways.retrieval import SemanticSearch
    from bothways.retrieval.reranking import ModelReranker
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.task import AnyTask

_CLASSIFIES = frozenset(("classification", "pairs"))
# The file that a model's folder is known by; a change is noticed by its time.
_WATCHED = ("model.safetensors", "model.onnx", "bothways.json", "config.json")


@dataclass(frozen=True, eq=False)
class ServedModel:
    """An opened model.

    Attributes:
        name: Its name in requests.
        given: The name or folder that it was opened from, which no answer shows.
        task: The task; ``multitask`` and ``ensemble`` for models that are composed.
        model: The model, with the methods of its task.
        judge: The judge, if the model was trained to judge.
        created: Unix time of its newest file, else of its opening.
    """

    name: str
    given: str
    task: str
    model: AnyTask
    judge: Judge | None = None
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def embedder(self) -> SentenceEmbedder | None:
        """The model as an embedder; None if it is none."""
        kind = imported(EMBEDDING.home)
        return self.model if isinstance(self.model, kind) else None

    @property
    def reranker(self) -> ModelReranker | None:
        """The model as a scorer of passages for a query; None if it cannot be one."""
        if self.embedder is not None:
            bi: ModelReranker = imported("bothways.retrieval.reranking:BiEncoder")(self.model)
            return bi
        match self.model.fitted:
            case TrainedHead() if self.task == "pairs":
                try:
                    cross: ModelReranker = imported("bothways.retrieval.reranking:CrossEncoder")(self.model)
                except InvalidInput:
                    return None  # its labels do not say which one means relevant
                return cross
        return None

    @property
    def reads(self) -> frozenset[str]:
        """The tasks whose inputs it classifies, texts or pairs of them; both for a classifier of another program."""
        match self.model.fitted:
            case TrainedHead(backend=backend) if self.task in _CLASSIFIES and backend.trained_for is None:
                return _CLASSIFIES
        return _CLASSIFIES & {self.task}

    @property
    def abilities(self) -> tuple[str, ...]:
        """The requests that it can answer: embed, rerank, classify, judge, fill-mask, answer, tag, choose."""
        own = {
            EMBEDDING.name: ("embed", "rerank", "similarity"),
            "classification": ("classify", "explain"),
            "pairs": ("classify", "explain"),
            "tagging": ("tag", "explain"),
            "question-answering": ("answer", "explain"),
            "masked_lm": ("fill-mask",),
            "multiple_choice": ("choose", "explain"),
        }.get(self.task, ())
        more = [name for name, there in (("judge", self.judge), ("rerank", self.reranker)) if there is not None]
        without = () if find_spec("torch") else ("explain",)
        return tuple(name for name in dict.fromkeys((*own, *more)) if name not in without)

    def described(self) -> dict[str, object]:
        """Return the facts of the model as JSON values."""
        backend = self.model.backend
        precision, device = backend.arithmetic
        facts: dict[str, object] = {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "bothways",
            "task": self.task,
            "abilities": list(self.abilities),
            "labels": [str(label) for label in _labels(self.model)],
            "max_tokens": backend.reading.max_length,
            "on_overflow": backend.reading.on_overflow,
            "precision": precision,
            "device": device,
            "engine": "torch" if backend.export is None else "onnxruntime",
        }
        if self.embedder is not None:
            facts |= {"dimensions": self.embedder.dimensions, "prompts": sorted(self.embedder.fitted.settings.prompts)}
        if facts["labels"]:
            facts["calibrated"] = self.model.confidence.calibration is not None
        if self.judge is not None:
            facts |= {"dimension": self.judge.dimension.name}
        return facts

    def example(self) -> tuple[str, dict[str, object]]:
        """Return the path and the body of a request that the model can answer."""
        if self.embedder is not None:
            return "v1/embeddings", {"model": self.name, "input": ["one text", "another"]}
        return "v1/predict", {"model": self.name, "inputs": [self.example_input()]}

    def example_input(self) -> object:
        """Return an input of the task, as JSON values."""
        spec = self.model.spec
        if spec is MASKED_LM:
            return f"Paris is the {MASK} of France."
        value = spec.columns.read(Row(1, dict(spec.example), "the example of its task"))
        return [*value] if isinstance(value, tuple) else value

    def parts(self) -> Mapping[str, AnyTask]:
        """Return the tasks of a model of several tasks by name; empty for other models."""
        return compose.parts_of(self.model)


def _labels(model: AnyTask) -> Sequence[object]:
    if model.spec.name in (EMBEDDING.name, "masked_lm") or compose.parts_of(model):
        return ()
    return model.labels


class Models:
    """The models and indexes of a server by name."""

    def __init__(self, models: Sequence[ServedModel], indexes: Mapping[str, SemanticSearch]) -> None:
        self._by_name = {each.name: each for each in models}
        self.indexes = indexes
        # The whole name is known too, if it is that of a hub and not the path of a folder.
        self._also = {each.given: each for each in models if not Path(each.given).exists()}

    def __iter__(self) -> Iterator[ServedModel]:
        return iter(self._by_name.values())

    def __contains__(self, name: str) -> bool:
        return name in self._by_name or name in self._also

    def find(self, name: str | None, ability: str = "") -> ServedModel:
        """Return the model of this name; without one, the first that has the ability.

        Raises:
            Refused: No model has this name (404), or it lacks the ability (422).
        """
        if name is None:
            for each in self:
                if not ability or ability in each.abilities:
                    return each
            if not self._by_name:
                message = f"this server has no model, only indexes ({', '.join(self.indexes)}): ask /v1/search"
                raise Refused(422, f"{message}, or serve a model beside them.", code="wrong_task", param="model")
            raise Refused(422, f"none of the models can {ability}: serve one that can.", code="wrong_task")
        found = self._by_name.get(name) or self._also.get(name)
        if found is None:
            raise self.unknown("model", name, self._by_name)
        if ability and ability not in found.abilities:
            others = [each.name for each in self if ability in each.abilities]
            able = f"the models that can are: {', '.join(others)}" if others else "no model here can"
            message = f"{found.name!r} is a model for {found.task} and cannot {ability}: {able}."
            raise Refused(422, message, code="wrong_task", param="model")
        return found

    def index(self, name: str | None) -> SemanticSearch:
        """Return the index of this name, or the only one; raise `Refused` (404) if there is none."""
        if name is None and len(self.indexes) == 1:
            return next(iter(self.indexes.values()))
        if name is None or name not in self.indexes:
            raise self.unknown("index", name, self.indexes)
        return self.indexes[name]

    @staticmethod
    def unknown(kind: str, name: str | None, known: Mapping[str, object]) -> Refused:
        """Return the refusal of a name that nothing here has."""
        have = f"the names here are: {', '.join(known)}" if known else f"this server has no {kind}"
        hint = did_you_mean((name or "")[:SHOWN], known)
        return Refused(
            404, f"there is no {kind} {name!r:.{SHOWN}}: {have}.{hint}", code=f"{kind}_not_found", param=kind
        )

    def warm_up(self) -> None:
        """Compute once with each model, so that the first request is as fast as the others."""
        for each in self:
            parts = each.parts()
            for model in parts.values() or [each.model]:
                if each.embedder is not None:
                    all(True for _ in each.embedder.fitted.vectors(["one"], show_progress=False))
                    continue
                example = Row(1, dict(model.spec.example), "the example of its task")
                value = f"{MASK}." if model.spec is MASKED_LM else model.spec.columns.read(example)
                # An ensemble reads the input once for each member.
                all(True for _ in model.fitted.score_blocks(inputs_of(model.fitted.columns, [value])))

    @cached_property
    def private(self) -> dict[str, str]:
        """Paths by the public names that messages show instead of them."""
        folders = {str(each.model.backend.files.folder): each.name for each in self}
        given = {each.given: each.name for each in self if Path(each.given).exists()}
        return dict(sorted((folders | given).items(), key=lambda pair: -len(pair[0])))


def open_models(models: Sequence[str], indexes: Sequence[str], opening: Opening, *, shared: bool = False) -> Models:
    """Open all models and indexes of a server, with all the checks of `bothways.load`.

    ``shared`` leaves the weights in their files where they can be, so that several processes have them once.

    Raises:
        InvalidInput: Two models have the same name. Also raises everything that `compose.open_trained` raises.
    """
    named = _named(models)
    if foreign := opening.tasks.keys() - dict(named).keys():
        known = ", ".join(name for name, _ in named)
        raise InvalidInput(f"a task is given for {min(foreign)!r}, which is no model here: the models are {known}.")
    mapped = MAPPED.set(shared)
    try:
        opened = [open_model(name, given, opening) for name, given in named]
    finally:
        MAPPED.reset(mapped)
    found: dict[str, SemanticSearch] = {}
    for name, given in _named(indexes):
        kind = imported("bothways.retrieval.search:SemanticSearch")
        found[name] = kind.open(given, device=opening.device, download=opening.download)
    return Models(opened, found)


def _named(given: Sequence[str]) -> list[tuple[str, str]]:
    """Return names and sources: the last part of a path, a hub name or a table, or the name before ``=``."""
    found: dict[str, str] = {}
    for each in given:
        name, equals, source = each.partition("=")
        if is_database(each):
            name, source = each.rpartition("#")[2], each
        elif not equals or Path(each).exists():
            name, source = Path(each).resolve().name if Path(each).exists() else each.rpartition("/")[2], each
        if name in found:
            raise InvalidInput(
                f"two models would be called {name!r}, {shown_address(found[name])} and {shown_address(source)}: name "
                f"one, as other={shown_address(source)}."
            )
        found[name] = source
    return list(found.items())


def open_model(name: str, given: str, opening: Opening) -> ServedModel:
    """Open a model as the task that it was trained for, else as an embedder; see `open_models`."""
    model: AnyTask
    own, task = opening.arguments(), opening.tasks.get(name)
    try:
        model = compose.open_trained(given, task=task, **own)
    except NotFitted:
        if task is not None:
            raise
        model = imported(EMBEDDING.home).from_pretrained(given, **own)
    composed = "multitask" if compose.parts_of(model) else model.spec.name
    judge: Judge | None = None
    if composed == "pairs" and "judge" in model.card:
        opened: Judge = imported("bothways.judging.judge:Judge").open(given, device=opening.device)
        judge, model = opened, opened.classifier
    return ServedModel(name, given, composed, model, judge, _created(model))


def _created(model: AnyTask) -> int:
    folder = model.backend.files.folder
    times = [(folder / name).stat().st_mtime for name in _WATCHED if (folder / name).is_file()]
    return int(max(times, default=time.time()))
