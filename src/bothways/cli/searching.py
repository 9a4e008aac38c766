"""Shared parts of the commands of ``bothways search``: opening an index, modes and filters."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.choices import Overflow
from bothways.cli.options import ModelOptions, PositiveInt, bad_usage, usage_error

if TYPE_CHECKING:
    from bothways.retrieval import Filter, Hit, Mode, Rerank, SemanticSearch
    from bothways.retrieval.filters import Scalar

ModeName = Literal["dense", "lexical", "bm25", "hybrid"]
FusionName = Literal["weighted", "reciprocal"]

_FILTER = re.compile(r"(.+?)(>=|<=|=(?!=))(.*)", re.DOTALL)


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, slots=True)
class HybridOptions:
    """Options of combining two scores."""

    fusion: FusionName = "weighted"
    """A weighted mean of both scores, or the sum of reciprocal ranks."""
    dense_weight: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.5
    """Of the dense score in the weighted mean; the lexical one has the rest."""
    depth: PositiveInt = 100
    """Candidates taken of each ranking, if no more hits are asked for."""


@Parameter(name="*", group="Reranking")
@dataclass(frozen=True, slots=True)
class RerankOptions:
    """A second look at the first hits."""

    reranker: str | None = None
    """Folder of a trained pair model (query and passage) that puts the first hits into its own order."""
    relevant: str | None = None
    """Its label that says that a passage answers the query; none for a model of scores or grades."""
    rerank_depth: PositiveInt = 50
    """How many hits it reads."""


AS_USUAL = HybridOptions()
AS_FOUND = RerankOptions()


def open_search(
    index: Path,
    model: str | None,
    opening: ModelOptions,
    *,
    max_length: int | None = None,
    on_overflow: Overflow | None = None,
) -> "SemanticSearch":
    """Return the index with the model that it was built with."""
    from bothways.retrieval import SemanticSearch

    return SemanticSearch.open(
        index,
        model=model,
        max_length=max_length,
        on_overflow=on_overflow,
        revision=opening.revision,
        device=opening.device,
        dtype=opening.dtype,
        download=opening.download,
        allow_pickle=opening.allow_pickle,
    )


class Searcher:
    """An index, and its model where a mode needs it: words alone are found without.

    Attributes:
        index: The index.
        mode: The first of the modes that it was opened for; where that is None, the default mode of the index.
    """

    def __init__(self, index: Path, modes: Sequence[ModeName | None], model: str | None, opening: ModelOptions) -> None:
        from bothways.retrieval import Hybrid, SearchIndex

        self._semantic: SemanticSearch | None = None
        if {mode and by_its_name(mode) for mode in modes} == {"lexical"}:
            self.index: SearchIndex = SearchIndex.open(index)
        else:
            self._semantic = open_search(index, model, opening)
            self.index = self._semantic.index
        default: ModeName = "hybrid" if isinstance(self.index.default_mode, Hybrid) else "dense"
        self.mode: ModeName = modes[0] or default

    def search(
        self,
        queries: Sequence[str],
        k: int,
        mode: ModeName,
        hybrid: HybridOptions,
        *,
        filters: Sequence["Filter"] = (),
        rerank: "Rerank | None" = None,
        show_progress: bool | None = None,
    ) -> "list[list[Hit]]":
        """Return the hits of each query."""
        from bothways.retrieval import search_reranked

        if self._semantic is not None:
            return self._semantic.search(
                queries, k, mode=mode_of(mode, hybrid), filters=filters, rerank=rerank, show_progress=show_progress
            )

        def find(count: int) -> "list[list[Hit]]":
            return self.index.search_lexical(queries, count, filters=filters)

        return search_reranked(find, queries, k, rerank, show_progress=show_progress)


def rerank_of(options: RerankOptions, opening: ModelOptions) -> "Rerank | None":
    """Return the second look that the options say.

    Raises:
        CycloptsError: The model has no such label, or is none of pairs.
    """
    from bothways.retrieval import CrossEncoder, Rerank
    from bothways.tasks import PairClassifier

    if options.reranker is None:
        if options.relevant is not None:
            raise usage_error("--relevant names a label of the --reranker, which was not given.")
        return None
    _check_reranker(options.reranker)
    pairs = PairClassifier.from_pretrained(options.reranker, device=opening.device, dtype=opening.dtype)
    with bad_usage():
        return Rerank(CrossEncoder(pairs, options.relevant), options.rerank_depth)


def _check_reranker(name: str) -> None:
    """Refuse a model that was trained here for something else than pairs.

    Raises:
        CycloptsError: It was.
        UnknownModel: There is no such model.
    """
    from bothways.checkpoints.hub import locate
    from bothways.compose.ensembles.ensemble import ENSEMBLE
    from bothways.tasks.registry import stored_task

    task = stored_task(locate(name).folder)
    if task in (None, "pairs"):
        return
    what = "an ensemble, which does not rerank" if task == ENSEMBLE else f"a model for {task}"
    which = "one of its members, if they are models of pairs" if task == ENSEMBLE else "one"
    raise usage_error(
        f"--reranker must be one model of pairs, which reads query and passage at once, but {name!r} is {what}. "
        f"Name {which}, or train one with: bothways train pairs."
    )


def by_its_name(mode: ModeName) -> ModeName:
    """Return the mode under the first of its names."""
    return "lexical" if mode == "bm25" else mode


def mode_of(name: ModeName, hybrid: HybridOptions) -> "Mode":
    """Return the mode that the options say."""
    from bothways.retrieval import Dense, Hybrid, Lexical, ReciprocalRank, Weighted

    if name == "dense":
        return Dense()
    if by_its_name(name) == "lexical":
        return Lexical()
    fusion = Weighted(hybrid.dense_weight) if hybrid.fusion == "weighted" else ReciprocalRank()
    return Hybrid(fusion, hybrid.depth)


def filters_of(expressions: Sequence[str]) -> "list[Filter]":
    """Return the filters of ``field=value`` (of one field several times.

    Any of these values), ``field>=1``, ``field<=2``.

    Raises:
        CycloptsError: An expression is none of these.
    """
    from bothways.retrieval import Among, Between

    values: dict[str, tuple[Scalar, ...]] = {}
    ranges: list[Filter] = []
    for expression in expressions:
        found = _FILTER.fullmatch(expression)
        if found is None:
            raise usage_error(f"the filter {expression!r} must be field=value, field>=number or field<=number.")
        name, sign, value = found.groups()
        if sign == "=":
            values[name] = values.get(name, ()) + _spelled(value)
        elif sign == ">=":
            ranges.append(Between(name, low=_number(expression, value)))
        else:
            ranges.append(Between(name, high=_number(expression, value)))
    return [*(Among(name, given) for name, given in values.items()), *ranges]


def _spelled(text: str) -> "tuple[Scalar, ...]":
    """Return the text, and the number, boolean or null that it spells: the command line cannot tell 1 from "1"."""
    try:
        value = json.loads(text)
    except ValueError:
        return (text,)
    is_scalar = value is None or isinstance(value, bool | int | float)
    return (text, value) if is_scalar else (text,)


def _number(expression: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise usage_error(f"the filter {expression!r} must have a number behind its sign.")
    return value
