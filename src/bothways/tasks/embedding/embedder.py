"""Sentence embeddings.

Shapes: N texts, M texts, K kept dimensions.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import fingerprint
from bothways.checkpoints.hub import LocatedModel
from bothways.data import as_batch
from bothways.errors import InvalidInput, TextsTruncated
from bothways.tasks.backend import Backend, OpenOptions
from bothways.tasks.columns import renamed
from bothways.tasks.embedding.outputs import Similarity, unit_rows, with_usual_kind
from bothways.tasks.embedding.representation import DenseVectors, Role
from bothways.tasks.embedding.sentence_layout import EmbeddingSettings, open_sentence_located
from bothways.tasks.embedding.spec import (
    EMBEDDING,
    NAMES,
    EmbeddingColumns,
    VectorArguments,
    kind_of,
    names_of,
)
from bothways.tasks.embedding.trained import TrainedEmbedder, Vectors
from bothways.tasks.scores import TokensRead
from bothways.tasks.task import Task

if TYPE_CHECKING:
    from bothways.data import Source
    from bothways.tasks.embedding.losses import EmbeddingLoss
    from bothways.tasks.task import FitArguments
    from bothways.training.record import TrainingRecord


class SentenceEmbedder(Task[tuple[str, str], Similarity, TrainedEmbedder]):
    """A sentence embedder: it turns texts into vectors whose cosine says how alike they are.

    Any encoder is one, trained or not. `predict` gives the similarity of two texts, `similarity` that of many with
    many.

    >>> embedder = SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")
    >>> embedder.encode(["The cat sat.", "A cat was sitting."]).shape
    (2, 384)
    """

    spec = EMBEDDING

    @classmethod
    def _backend(cls, located: LocatedModel, options: OpenOptions) -> Backend:
        return open_sentence_located(located, cls.spec.name, options)

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the model so that it opens here and in the ecosystem's sentence embedders, whole or not at all.

        With ``dimensions``, sentence-transformers cuts the vectors after they were scaled to length 1, this package
        before: they point the same way there, but are shorter. After a training, the folder is from then on where
        the encoder comes from.

        Raises:
            NotFitted: The model was not trained for this.
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        super().save(folder, overwrite=overwrite)
        model = self.backend.weights("save").model
        if model.trainings:
            model.name, model.folder, model.revision, model.trainings = str(folder), Path(folder), None, 0

    def fit(
        self,
        data: Source | Iterable[Any],
        labels: Iterable[object] | None = None,
        *,
        validation: Source | Iterable[Any] | tuple[Iterable[Any], Iterable[object]] | None = None,
        **options: Unpack[FitArguments],
    ) -> TrainingRecord:
        """Fine-tune as every task does (`Task.fit`).

        If no column is named, those of the first row decide the kind of rows to train on: ``text_a``, ``text_b``
        and ``score``; ``anchor`` and ``positive``, perhaps with ``negative`` or ``negative_1``, ``negative_2``, ...;
        ``text`` and ``label``.
        """
        loss, named = options.get("loss"), ("columns", *NAMES)
        taught = _has_teacher(loss)
        if labels is None and not taught and all(options.get(name) is None for name in named):
            self.fit_options(options)  # an option that is not known is refused before anything is read
            data, options["columns"] = with_usual_kind(data)
        return super().fit(data, labels, validation=validation, **options)

    def _columns_of(self, usual: EmbeddingColumns, options: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Take ``columns`` as they are; names of columns also decide the kind of rows."""
        rest = dict(options)
        columns, loss = rest.pop("columns", None), rest.get("loss")
        found = {name: rest.pop(name) for name in NAMES if name in rest}
        named = {name: value for name, value in found.items() if value is not None}
        if columns is not None:
            if named:
                raise InvalidInput(f"give columns or names of columns, not both: got columns and {', '.join(named)}.")
            return columns, rest
        teacher = _has_teacher(loss)
        if teacher or not named.keys() <= set(names_of(type(usual))):
            return kind_of(**named, teacher=teacher), rest
        return renamed(usual, named), rest

    @property
    def settings(self) -> EmbeddingSettings:
        """The options of embedding."""
        return self.fitted.settings

    @property
    def dimensions(self) -> int:
        """Length of a vector."""
        return self.fitted.dimensions

    def with_settings(self, **settings: Unpack[VectorArguments]) -> Self:
        """Return the same encoder with other options for its vectors; options that are left out stay.

        Args:
            settings: ``pooling``, ``dimensions`` and ``unit_length``, see `EmbeddingOpening`.

        Raises:
            InvalidInput: A setting is out of range.
        """
        return self._with(self.fitted.with_settings(**settings))

    def encode(
        self,
        texts: Any,  # noqa: ANN401 (one text or many, of many types)
        *,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
        **settings: Unpack[VectorArguments],
    ) -> Vectors:
        """Return the vectors of texts (N, K), or of one text (K).

        Args:
            texts: One text or many: a list, a tuple, an array, a Series, a column of a Dataset.
            max_tokens: Token budget of a batch. Default: by the device.
            show_progress: Force the progress bar on or off.
            settings: ``pooling``, ``dimensions`` and ``unit_length`` instead of this embedder's own.

        Raises:
            InvalidInput: A text is empty or not a string, or a setting is out of range.
            TextTooLong: A text is too long and the policy is ``"error"``.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        listed, alone = as_batch(texts, "a text", "such")
        fitted = self.fitted.with_settings(**settings)
        vectors_NK, reads = fitted.encode(listed, max_tokens=max_tokens, show_progress=show_progress)
        _warn_of_cut(sum(each.dropped_tokens > 0 for each in reads), sum(each.dropped_tokens for each in reads))
        return vectors_NK[0] if alone else vectors_NK

    def encode_stream(
        self,
        texts: Iterable[str],
        *,
        max_tokens: int | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
        **settings: Unpack[VectorArguments],
    ) -> Iterator[Vectors]:
        """Yield a vector (K) for each text of an iterable of any length, in order and in flat memory; see `encode`.

        Warns:
            TextsTruncated: At the end, if texts were cut (only with ``on_overflow="truncate"``).
        """
        fitted, cut, dropped = self.fitted.with_settings(**settings), 0, 0
        for vector_K, read in fitted.vectors(texts, max_tokens=max_tokens, total=total, show_progress=show_progress):
            cut, dropped = cut + (read.dropped_tokens > 0), dropped + read.dropped_tokens
            yield vector_K
        _warn_of_cut(cut, dropped)

    def represent(self, texts: Sequence[str], *, role: Role, show_progress: bool | None = None) -> DenseVectors:
        """Return the representation of texts that an index searches; for users' own arithmetic see `encode`.

        Args:
            texts: The texts.
            role: What the texts are in a search; this encoder represents queries and documents alike.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A text is empty or not a string.
            TextTooLong: A text is too long and the policy is ``"error"``.

        Warns:
            TextsTruncated: Texts were cut (only with ``on_overflow="truncate"``).
        """
        del role
        return DenseVectors(self.encode(texts, show_progress=show_progress))

    def represent_stream(
        self, texts: Iterable[str], *, role: Role, block: int = 1024, show_progress: bool | None = None
    ) -> Iterator[DenseVectors]:
        """Yield the representations of an iterable of any length, ``block`` texts at a time; see `represent`."""
        del role
        stream = self.encode_stream(texts, show_progress=show_progress)
        while vectors := list(islice(stream, block)):
            yield DenseVectors(np.stack(vectors))

    def read(self, texts: Any, *, show_progress: bool | None = None) -> tuple[Vectors, list[TokensRead]]:  # noqa: ANN401 (as for `encode`)
        """Return the vectors of many texts (N, K), and how much of each was read instead of a warning."""
        return self.fitted.encode(as_batch(texts)[0], show_progress=show_progress)

    def similarity(self, a: Any, b: Any, *, show_progress: bool | None = None) -> NDArray[np.float64]:  # noqa: ANN401 (texts or vectors)
        """Return the cosine of each of ``a`` with each of ``b`` (N, M).

        Args:
            a: Texts, as for `encode`, or an array of vectors (N, K).
            b: Texts or vectors (M, K).
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A text is empty or not a string, or vectors have different lengths.
        """

        def vectors(of: Any) -> NDArray[np.float64]:  # noqa: ANN401 (as above)
            is_array = isinstance(of, np.ndarray) and of.dtype.kind == "f"
            return unit_rows(np.atleast_2d(of if is_array else self.encode(of, show_progress=show_progress)))

        unit_NK, unit_MK = vectors(a), vectors(b)
        if unit_NK.shape[1] != unit_MK.shape[1]:
            raise InvalidInput(f"expected vectors of one length, got {unit_NK.shape[1]} and {unit_MK.shape[1]}.")
        cosines_NM: NDArray[np.float64] = unit_NK @ unit_MK.T
        return cosines_NM

    def fingerprint(self) -> str:
        """Return SHA-256 of the weights on disk, or of an exported graph.

        Two embedders with the same fingerprint are the same model.

        Raises:
            InvalidInput: The model was trained and not saved since, so the files on disk are another model.
        """
        if self.backend.export is not None:
            return self.backend.export.checksum
        if self.model.trainings:
            raise InvalidInput("this embedder was trained and is not what is on disk: save it first.")
        return fingerprint(self.model.folder)

    def __repr__(self) -> str:
        return f"SentenceEmbedder({self.name!r}, pooling={self.settings.pooling!r}, dimensions={self.dimensions})"


def _has_teacher(loss: EmbeddingLoss | None) -> bool:
    """Return True if a loss learns from another embedder."""
    if loss is None:
        return False
    from bothways.tasks.embedding.losses import Distillation, plain

    return isinstance(plain(loss), Distillation)


def _warn_of_cut(cut: int, dropped: int) -> None:
    """Tell the caller of the function that calls this that texts were cut."""
    if cut:
        texts_were = "1 text was" if cut == 1 else f"{cut:,} texts were"
        warnings.warn(TextsTruncated(f"{texts_were} cut: {dropped:,} tokens were not read."), stacklevel=3)
