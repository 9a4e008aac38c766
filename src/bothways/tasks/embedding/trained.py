"""A trained sentence embedder: the immutable value behind `SentenceEmbedder`.

A saved embedder has the files of sentence-transformers (``modules.json``, ``sentence_bert_config.json``,
``1_Pooling/config.json`` and ``config_sentence_transformers.json``) and ``bothways.json``, which takes precedence.

Shapes: N texts, H hidden, K kept dimensions, W windows of one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import ClassVar, TypeAlias, TypeVar, Unpack, get_args

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import fingerprint, read_json
from bothways.checkpoints.layout import LENGTH_FILE, check_modules, stored_pooling
from bothways.checkpoints.schema import Stored, StoredVectors, at_most
from bothways.choices import Overflow, Pooling
from bothways.errors import InvalidInput
from bothways.evaluation.report import TextsRead
from bothways.inference import Rows, TextRows, TextRunner, TokenBudget
from bothways.progress import progress
from bothways.tasks.backend import USUAL_LENGTH, Backend, OpenOptions, exported, kept_stride
from bothways.tasks.columns import Card
from bothways.tasks.embedding.outputs import (
    EmbeddingOutputs,
    EmbeddingRow,
    EvaluatedRows,
    RowTexts,
    measured,
    unit_rows,
)
from bothways.tasks.embedding.representation import DenseVectors, Role
from bothways.tasks.embedding.spec import (
    EMBEDDING,
    EmbeddingColumns,
    EmbeddingOpening,
    ScoredPairs,
    VectorArguments,
    stored_kind,
)
from bothways.tasks.opening import with_weights
from bothways.tasks.scores import ScoredRows, Scores, TokensRead, texts_read, warn_of_cut
from bothways.tasks.spec import TaskSpec, chosen, options_of

Vectors: TypeAlias = NDArray[np.float32]
BackendT = TypeVar("BackendT", bound=Backend)

_GENERAL = "config_sentence_transformers.json"


@dataclass(frozen=True, slots=True)
class EmbeddingSettings:
    """The stored options of an embedder."""

    pooling: Pooling
    unit_length: bool  # vectors are scaled to length 1, so that their inner product is the cosine
    dimensions: int | None  # number of leading dimensions to keep; all if None
    max_length: int  # maximum tokens of a window, including special tokens
    on_overflow: Overflow
    stride: int | None = None  # tokens that adjacent windows share; a quarter of the text in a window if None

    def changed(self, options: EmbeddingOpening, hidden: int) -> EmbeddingSettings:
        """Return the settings with explicit options applied; ``hidden`` is the encoder's width."""
        if options.pooling is not None:
            check_pooling(options.pooling)
        if options.dimensions is not None:
            _check_whole("dimensions", options.dimensions, 1, hidden)
        return replace(self, **{name: value for name, value in asdict(options).items() if value is not None})


@dataclass(frozen=True, slots=True, eq=False)
class TrainedEmbedder:
    """An encoder with the settings for embedding texts: an immutable value."""

    backend: Backend
    settings: EmbeddingSettings
    columns: EmbeddingColumns = ScoredPairs()  # noqa: RUF009 (frozen)  # as in training
    card: Card = field(default_factory=dict)  # the model card; empty before a training

    outputs: ClassVar[EmbeddingOutputs] = EmbeddingOutputs()

    @property
    def dimensions(self) -> int:
        """Length of a vector, K."""
        return self.settings.dimensions or self.backend.config.hidden

    def with_settings(self, **options: Unpack[VectorArguments]) -> TrainedEmbedder:
        """Return an embedder with the same encoder and some settings of its vectors replaced."""
        if not options:
            return self
        known = chosen(EmbeddingOpening, options, "SentenceEmbedder.encode()", known=("max_tokens", "show_progress"))
        return replace(self, settings=self.settings.changed(known, self.backend.config.hidden))

    # --- vectors ---

    def vectors(
        self,
        texts: Iterable[str],
        *,
        max_tokens: int | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[tuple[Vectors, TokensRead]]:
        """Yield the vector (K) and the `TokensRead` of each text, in order and in constant memory."""
        runner = self._runner(self.backend.budget if max_tokens is None else TokenBudget(max_tokens))
        rows = runner.run(texts, total=total, description="embedding", show_progress=show_progress)
        return map(self._vector, rows)

    def encode(
        self, texts: Sequence[str], *, max_tokens: int | None = None, show_progress: bool | None = None
    ) -> tuple[Vectors, list[TokensRead]]:
        """Return the vectors of texts (N, K), and the `TokensRead` of each text; see `vectors`."""
        stream = self.vectors(texts, max_tokens=max_tokens, total=len(texts), show_progress=show_progress)
        vectors_NK, reads = np.empty((len(texts), self.dimensions), dtype=np.float32), []
        for vector_NK, (vector_K, read) in zip(vectors_NK, stream, strict=True):
            vector_NK[:] = vector_K
            reads.append(read)
        return vectors_NK, reads

    def represent(self, texts: Sequence[str], *, role: Role, show_progress: bool | None = None) -> DenseVectors:
        """Return the representations of texts for an index, and warn of truncated texts; the role has no effect."""
        del role
        vectors_NK, reads = self.encode(texts, show_progress=show_progress)
        warn_of_cut(texts_read(reads))
        return DenseVectors(vectors_NK)

    def represent_stream(
        self, texts: Iterable[str], *, role: Role, block: int = 1024, show_progress: bool | None = None
    ) -> Iterator[DenseVectors]:
        """Yield the representations of an iterable, ``block`` texts at a time; see `represent`."""
        del role
        stream = warning_of_cut(self.vectors(texts, show_progress=show_progress))
        while part := list(islice(stream, block)):
            yield DenseVectors(np.stack(part))

    def score_blocks(self, inputs: Iterable[Sequence[str]], options: object = None) -> Iterator[list[Scores[None]]]:
        """Yield the cosines of pairs of texts, in blocks of pairs."""
        del options
        for block in self._blocks(inputs):
            scores = []
            for vectors_KH, reads in block:
                first_1H, second_1H = unit_rows(vectors_KH[:1]), unit_rows(vectors_KH[1:2])
                read = TokensRead(max(one.windows for one in reads), sum(one.dropped_tokens for one in reads))
                scores.append(_score(float((first_1H * second_1H).sum()), read))
            yield scores

    def score_rows(self, rows: Sequence[EmbeddingRow], *, show_progress: bool | None = None) -> ScoredRows:
        """Return the scores of rows for evaluation; see `EmbeddingOutputs.outcomes`."""
        vectors: list[Vectors] = []
        reads: list[TokensRead] = []
        with progress("evaluating", len(rows), show=show_progress) as bar:
            for block in self._blocks([row.text for row in rows]):
                for vectors_KH, of_row in block:
                    vectors.append(vectors_KH)
                    reads += of_row
                bar.advance(len(block))
        known, whole = RowTexts.of(rows), TokensRead(1, 0)
        scores = [_score(value, whole) for value in measured(np.concatenate(vectors), known).tolist()]
        return ScoredRows(tuple(scores), EvaluatedRows(known.scores_R, texts_read(reads)))

    def _blocks(self, inputs: Iterable[Sequence[str]]) -> Iterator[list[tuple[Vectors, tuple[TokensRead, ...]]]]:
        """Yield the vectors and the `TokensRead` of each row's texts, in blocks of rows."""
        for block in self._runner(self.backend.budget).blocks(inputs, lambda row: row):
            found = [zip(*map(self._vector, rows), strict=True) for _, rows in block]
            yield [(np.stack(vectors), reads) for vectors, reads in found]

    def _runner(self, budget: TokenBudget) -> TextRunner:
        """Return a runner that computes one vector for each window of a text."""
        export = exported(self.backend)
        if export is not None:
            if export.rows.pooling != self.settings.pooling:
                raise InvalidInput(
                    f"expected the pooling that {self.backend.name!r} was exported with, {export.rows.pooling!r}, got "
                    f"{self.settings.pooling!r}: leave pooling out, or export the original model with this pooling."
                )
            return replace(self.backend, budget=budget).runner
        from bothways.tasks.embedding.vector_model import VectorModel

        model = replace(with_weights(self.backend, "embed"), budget=budget)
        return model.text_runner(VectorModel.of(model.model, self.settings.pooling))

    def _vector(self, rows: Rows) -> tuple[Vectors, TokensRead]:
        """Merge a text's window vectors into one vector (K), and return it with the `TokensRead` of the text."""
        if not isinstance(rows, TextRows):
            raise TypeError("expected one text, with a vector for each window")
        settings, vectors_WH = self.settings, rows.rows_WK
        if len(vectors_WH) == 1:
            vector_H = vectors_WH[0]
        elif settings.pooling == "max":
            vector_H = vectors_WH.max(0)
        else:
            vector_H = np.average(vectors_WH, axis=0, weights=rows.lengths).astype(np.float32)
        vector_K = vector_H[: settings.dimensions]
        if settings.unit_length:
            vector_K = np.divide(vector_K, np.float32(max(float(np.linalg.norm(vector_K)), 1e-12)))
        return vector_K, TokensRead(len(rows.lengths), rows.dropped_tokens)

    # --- facts and files ---

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights on disk or of the exported graph, which identifies the model."""
        if (export := exported(self.backend)) is not None:
            return export.checksum
        model = with_weights(self.backend, "identify").model
        if model.trainings:
            raise InvalidInput("this embedder has been trained since it was opened or saved: save it before indexing.")
        return fingerprint(model.folder)

    def facts(self) -> dict[str, object]:
        """Return pooling, dimensions and loss, as JSON values."""
        shown = {name: self.card[name] for name in ("loss", "matryoshka") if name in self.card}
        return {"pooling": self.settings.pooling, "dimensions": self.dimensions, **shown}

    def write(self, folder: Path) -> None:
        """Write the embedder in the layout of sentence-transformers into an existing folder.

        Other libraries assume that [CLS] comes first, so [CLS] pooling of an XLNet is stored as last-token pooling.
        """
        from bothways.checkpoints.layout import write_json, write_length, write_modules, write_pooling

        model, settings = with_weights(self.backend, "save").model, self.settings
        model.write(folder, {"task": EMBEDDING.name, **asdict(settings), "card": dict(self.card)})
        write_modules(folder, {"Pooling": "1_Pooling"} | ({"Normalize": "2_Normalize"} if settings.unit_length else {}))
        write_length(folder, settings.max_length)
        write_json(folder / _GENERAL, {"truncate_dim": settings.dimensions})
        write_pooling(folder, model.config.hidden, settings.pooling, cls_is_last=model.tokenizer.cls_is_last)


def warning_of_cut(stream: Iterable[tuple[Vectors, TokensRead]]) -> Iterator[Vectors]:
    """Yield the vectors of a stream, and warn at its end if texts were truncated."""
    texts = cut = dropped = 0
    for vector_K, read in stream:
        texts, cut, dropped = texts + 1, cut + (read.dropped_tokens > 0), dropped + read.dropped_tokens
        yield vector_K
    warn_of_cut(TextsRead(texts, 0, cut, dropped))


def _score(value: float, read: TokensRead) -> Scores[None]:
    return Scores(np.array([[value]]), None, read)


# --- opening ---


def open_embedder(spec: TaskSpec, backend: Backend) -> TrainedEmbedder:
    """Return the embedder of a checkpoint; any encoder can be one.

    Explicit options override the checkpoint's settings, which override the defaults.
    """
    if (export := exported(backend)) is not None and export.rows.head is not None:
        raise backend.not_fitted(spec.name, "embedder")
    folder, own, hidden, reading = (
        backend.files.folder,
        StoredVectors.of(backend.files.extras),
        backend.config.hidden,
        backend.reading,
    )
    check_modules(folder)
    stored = EmbeddingSettings(
        own.pooling or stored_pooling(folder, cls_is_last=backend.tokenizer.cls_is_last) or "mean",
        own.unit_length is not False,
        at_most("dimensions", own.dimensions, hidden) or _stored_number(folder / _GENERAL, "truncate_dim", hidden),
        reading.max_length,
        reading.on_overflow,
        reading.stride,
    )
    settings = stored.changed(options_of(EmbeddingOpening, backend.options), hidden)
    card = Stored.of(backend.files.extras).card if backend.trained_for == spec.name else {}
    return TrainedEmbedder(backend, settings, stored_kind(card), card)


def reading_as_stored(backend: BackendT, options: OpenOptions) -> BackendT:
    """Apply the maximum length and stride: the explicit options, else those stored in the folder."""
    own, limit = StoredVectors.of(backend.files.extras), backend.config.max_length or USUAL_LENGTH
    before = (
        at_most("max_length", own.max_length, limit)
        or _stored_number(backend.files.folder / LENGTH_FILE, "max_seq_length", limit)
        or min(backend.tokenizer.model_max_length or limit, limit)
    )
    length, stride = options.get("max_length") or before, options.get("stride")
    if stride is None:
        special = backend.tokenizer.special_count(pair=False)
        stride = kept_stride(at_most("stride", own.stride, limit - 1), length, before, special)
    else:
        _check_whole("stride", stride, 0, length - 1)
    return replace(backend, reading=replace(backend.reading, max_length=length, stride=stride))


def check_pooling(pooling: object) -> Pooling:
    """Validate the name of a pooling."""
    known: tuple[Pooling, ...] = get_args(Pooling)
    for name in known:
        if pooling == name:
            return name
    raise InvalidInput(f"pooling must be one of {', '.join(known)}, got {pooling!r}.")


def _stored_number(path: Path, name: str, highest: int) -> int | None:
    """Return an integer from another library's file, capped at ``highest`` as in that library."""
    value = read_json(path).get(name) if path.is_file() else None
    return min(value, highest) if type(value) is int and value > 0 else None


def _check_whole(name: str, value: int, lowest: int, highest: int) -> None:
    if not lowest <= value <= highest:
        raise InvalidInput(f"{name} must lie between {lowest} and {highest}, got {value}.")
