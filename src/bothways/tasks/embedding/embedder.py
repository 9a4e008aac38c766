"""The sentence embedder.

Shapes: N and M texts, K kept dimensions.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, Unpack, cast

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from bothways import checkpoints
from bothways.checkpoints.hub import LocatedModel
from bothways.choices import GoldenSource
from bothways.data import Row, as_batch, text_at
from bothways.errors import InvalidInput
from bothways.tasks.backend import Backend, OpenOptions
from bothways.tasks.columns import renamed
from bothways.tasks.embedding.outputs import EmbeddingRow, Similarity, similarity_matrix, with_usual_kind
from bothways.tasks.embedding.representation import Role
from bothways.tasks.embedding.settings import reading_as_stored
from bothways.tasks.embedding.spec import (
    EMBEDDING,
    NAMES,
    EmbeddingColumns,
    EncodingArguments,
    LabelledTexts,
    Pairs,
    PlainTexts,
    ScoredPairs,
    Triplets,
    VectorArguments,
    kind_of,
    names_of,
)
from bothways.tasks.embedding.trained import (
    TrainedEmbedder,
    Vectors,
    warning_of_cut,
)
from bothways.tasks.opening import open_backend, with_weights
from bothways.tasks.outputs import AnsweringTask, tokens_of
from bothways.tasks.scores import ScoredRows, texts_read, warn_of_cut
from bothways.tasks.task import Task
from bothways.text.windows import check_text

if TYPE_CHECKING:
    from bothways.checkpoints import ModelAnswer
    from bothways.data import Source
    from bothways.tasks.spec import FitArguments
    from bothways.training.state import TrainingRecord

Texts: TypeAlias = str | Iterable[str] | NDArray[np.str_] | NDArray[np.object_]
"""One text or many: a list, a tuple, a generator, an array, a Series, a column of a Dataset."""


class SentenceEmbedder(Task[tuple[str, str], Similarity, TrainedEmbedder]):
    """A sentence embedder: it embeds texts as vectors whose cosine measures the similarity of the texts.

    Any encoder can be opened as an embedder, trained or not. `predict` compares the two texts of each pair;
    `similarity` compares every text of one list with every text of another.

    >>> embedder = SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    >>> embedder.encode(["The cat sat.", "A cat was sitting."]).shape
    (2, 384)
    """

    spec = EMBEDDING

    @classmethod
    def _backend(cls, located: LocatedModel, options: OpenOptions) -> Backend:
        return reading_as_stored(open_backend(located, cls.spec.name, options), options)

    def save(self, folder: str | Path, *, overwrite: bool = False, golden: GoldenSource | None = "validation") -> None:
        """Write the model, atomically, in a layout that this package and sentence-transformers open.

        sentence-transformers computes the same vectors from it. If the encoder was trained, the name of the model
        becomes the path of the folder. See `Task.save` for the arguments.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; no partial files remain.
        """
        super().save(folder, overwrite=overwrite, golden=golden)
        model = with_weights(self.backend, "save").model
        if model.trainings:
            model.name, model.folder, model.revision, model.trainings = str(folder), Path(folder), None, 0

    def fit(
        self,
        data: Source | Iterable[object],
        labels: Iterable[object] | None = None,
        *,
        validation: Source | Iterable[object] | tuple[Iterable[object], Iterable[object]] | None = None,
        **options: Unpack[FitArguments],
    ) -> TrainingRecord:
        """Fine-tune the embedder; see `Task.fit` for the arguments.

        If no columns are named, the columns of the first row determine the kind of rows to train on: ``text_a``,
        ``text_b`` and ``score``; ``anchor`` and ``positive``, optionally with ``negative`` or ``negative_1``,
        ``negative_2``, ...; or ``text`` and ``label``; else those of the training before.
        """
        named = any(options.get(name) is not None for name in ("columns", *NAMES))
        if labels is None and not named and not _has_teacher(options.get("loss")):
            from bothways.tasks.heads.splits import split_fit_options

            split_fit_options(self, options)  # refuse unknown options before the data are read
            data, options["columns"] = with_usual_kind(data, self.columns)
        elif labels is not None and not named:
            options["columns"] = self.spec.columns
        return super().fit(data, labels, validation=validation, **options)

    def _columns_of(
        self, usual: EmbeddingColumns, options: Mapping[str, object]
    ) -> tuple[EmbeddingColumns, dict[str, object]]:
        """Return the columns, from the option ``columns`` or from single column names, and the other options."""
        rest = dict(options)
        columns, teacher = rest.pop("columns", None), _has_teacher(rest.get("loss"))
        found = {name: rest.pop(name) for name in NAMES if name in rest}
        named = {name: value for name, value in found.items() if value is not None}
        match columns:
            case None if teacher or not named.keys() <= set(names_of(type(usual))):
                return kind_of(**named, teacher=teacher), rest
            case None:
                return renamed(usual, named), rest
            case _ if named:
                raise InvalidInput(f"give columns= or column names, not both: got columns and {', '.join(named)}.")
            case ScoredPairs() | Pairs() | Triplets() | LabelledTexts() | PlainTexts():
                return columns, rest
        raise InvalidInput(f"expected columns of embedding rows, such as Pairs(), got {columns!r:.80}.")

    def _answering(self) -> AnsweringTask:
        return AnsweringEmbedder(self.spec.name, self.fitted)

    def _scored(
        self, rows: Sequence[EmbeddingRow], options: object, seed: int, show_progress: bool | None
    ) -> ScoredRows:
        del options, seed
        return self.fitted.score_rows(rows, show_progress=show_progress)

    @property
    def dimensions(self) -> int:
        """Number of dimensions of a vector."""
        return self.fitted.dimensions

    def encode(
        self,
        texts: Texts,
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
        **settings: Unpack[VectorArguments],
    ) -> Vectors:
        """Return the vectors of texts (N, K), or of one text (K).

        Args:
            texts: One text or many: a list, a tuple, an array, a Series, a column of a Dataset.
            prompt: A text to prepend to each text, such as ``"query: "``; ``""`` for none. Default: the checkpoint's
                default prompt, if it has one.
            prompt_name: The name of one of the checkpoint's prompts, ``fitted.settings.prompts``.
            max_tokens: Maximum tokens per batch. Default: depends on the device.
            show_progress: Force the progress bar on or off.
            settings: ``pooling``, ``dimensions`` or ``unit_length``, to override the embedder's own.

        Raises:
            InvalidInput: A text is empty or not a string, a setting is out of range, or there is no such prompt.
            TextTooLong: A text is too long and ``on_overflow`` is ``"error"``.

        Warns:
            TextsTruncated: Texts were truncated (only if ``on_overflow`` truncates).
        """
        listed, alone = as_batch(texts, "a text", "them")
        # The tokenizer refuses values that are not strings, and names their position.
        checked = cast("list[str]", listed)
        fitted = self.fitted.with_settings(**settings)
        text = fitted.settings.prompt_of(prompt, prompt_name)
        vectors_NK, reads = fitted.encode(checked, prompt=text, max_tokens=max_tokens, show_progress=show_progress)
        warn_of_cut(texts_read(reads))
        return vectors_NK[0] if alone else vectors_NK

    def encode_query(self, texts: Texts, **options: Unpack[EncodingArguments]) -> Vectors:
        """Return the vectors of queries: `encode` with the prompt named ``query``, or none if there is none."""
        return self.encode(texts, **self._prompted("query", options))

    def encode_document(self, texts: Texts, **options: Unpack[EncodingArguments]) -> Vectors:
        """Return the vectors of documents: `encode` with the prompt named ``document``, ``passage`` or ``corpus``.

        The first of them that is not empty is taken; without one, documents have no prompt. (sentence-transformers 6.2
        documents the same order, but takes no prompt from a folder that has ``passage`` and no ``document``.)
        """
        return self.encode(texts, **self._prompted("document", options))

    def _prompted(self, role: Role, options: EncodingArguments) -> EncodingArguments:
        given = options.pop("prompt", None), options.pop("prompt_name", None)
        return {**options, "prompt": self.fitted.settings.prompt_of(*given, role=role)}

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        prompt_name: str | None = None,
        max_tokens: int | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
        **settings: Unpack[VectorArguments],
    ) -> Iterator[Vectors]:
        """Yield a vector (K) for each text of an iterable, in order and in constant memory; see `encode`.

        Warns:
            TextsTruncated: At the end, if texts were truncated (only if ``on_overflow`` truncates).
        """
        fitted = self.fitted.with_settings(**settings)
        text = fitted.settings.prompt_of(prompt, prompt_name)
        yield from warning_of_cut(
            fitted.vectors(texts, prompt=text, max_tokens=max_tokens, total=total, show_progress=show_progress)
        )

    def similarity(
        self, a: Texts | NDArray[np.floating], b: Texts | NDArray[np.floating], *, show_progress: bool | None = None
    ) -> NDArray[np.float64]:
        """Return the similarity of every text of ``a`` to every text of ``b`` (N, M).

        It is the checkpoint's: the cosine, the inner product (``dot``), or a negative distance (``euclidean``,
        ``manhattan``), see ``fitted.settings.similarity``.

        Args:
            a: Texts, as for `encode`, or an array of vectors (N, K).
            b: Texts or vectors (M, K).
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A text is empty or not a string, or vectors have different lengths.
        """

        def vectors(given: Texts | NDArray[np.floating]) -> NDArray[np.floating]:
            match given:
                case np.ndarray(dtype=np.dtype(kind="f")):
                    return np.atleast_2d(given)
                case _:
                    return np.atleast_2d(self.encode(given, show_progress=show_progress))

        a_NK, b_MK = vectors(a), vectors(b)
        if a_NK.shape[1] != b_MK.shape[1]:
            raise InvalidInput(f"expected vectors of equal length, got {a_NK.shape[1]} and {b_MK.shape[1]}.")
        return similarity_matrix(a_NK, b_MK, self.fitted.settings.similarity)

    def __repr__(self) -> str:
        return (
            f"SentenceEmbedder({self.name!r}, pooling={self.fitted.settings.pooling!r}, dimensions={self.dimensions})"
        )


class AnsweringEmbedder(AnsweringTask):
    """An embedder as its golden answers see it: texts and their vectors."""

    __slots__ = ()

    fitted: TrainedEmbedder

    @override
    def inputs_of(self, values: Sequence[object]) -> list[object]:
        for number, value in enumerate(values):
            check_text(number, value)
        return list(values)

    @override
    def read(self, rows: Iterable[Row]) -> list[object]:
        """Return the texts of rows, in the columns of labelled or plain texts of the training, else in ``text``."""
        match self.fitted.columns:
            case LabelledTexts(text=columns) | PlainTexts(text=columns):
                return [text_at(row, columns, "") for row in rows]
            case _:
                return [text_at(row, "text", "") for row in rows]

    @override
    def neutral(self, texts: Sequence[str]) -> list[object]:
        return list(texts)

    @override
    def answers(self, inputs: Sequence[object]) -> Iterator[ModelAnswer]:
        texts = list(map(str, inputs))
        for text, (vector_K, _) in zip(texts, self.fitted.vectors(texts), strict=True):
            yield checkpoints.ModelAnswer(list(tokens_of(self.fitted, text)), vector_K.astype(np.float64))


def _has_teacher(loss: object) -> bool:
    """Return True if a loss distils another embedder."""
    if loss is None:
        return False
    from bothways.tasks.embedding.losses import Distillation, Matryoshka

    match loss:
        case Distillation() | Matryoshka(loss=Distillation()):
            return True
    return False
