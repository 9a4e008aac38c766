"""A trained sentence embedder: the immutable value behind `SentenceEmbedder`.

A saved embedder has the files of sentence-transformers (``modules.json``, ``sentence_bert_config.json``,
``1_Pooling/config.json`` and ``config_sentence_transformers.json``) and ``bothways.json``, which takes precedence.

Shapes: N texts, H hidden, K kept dimensions, W windows of one text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, TypeAlias, Unpack

import numpy as np
from numpy.typing import NDArray

from bothways.checkpoints.files import fingerprint
from bothways.checkpoints.schema import Stored
from bothways.data.known_rows import TrainingRows
from bothways.errors import InvalidInput
from bothways.inference import Rows, TextRows, TextRunner, TokenBudget
from bothways.lazy import imported
from bothways.progress import progress
from bothways.tasks.backend import Backend
from bothways.tasks.columns import Card
from bothways.tasks.embedding.outputs import (
    EmbeddingOutputs,
    EmbeddingRow,
    EvaluatedRows,
    RowTexts,
    measured,
    similarities,
)
from bothways.tasks.embedding.representation import DenseVectors, Role
from bothways.tasks.embedding.settings import EmbeddingSettings, stored_settings, with_prompt
from bothways.tasks.embedding.spec import (
    EMBEDDING,
    EmbeddingColumns,
    EmbeddingOpening,
    ScoredPairs,
    VectorArguments,
    stored_kind,
)
from bothways.tasks.opening import with_weights
from bothways.tasks.outputs import stored_baseline
from bothways.tasks.scores import BaselineScores, ScoredRows, Scores, TokensRead, texts_read, warn_of_cut
from bothways.tasks.spec import TaskSpec, chosen
from bothways.text.windows import EncodedText, TextsRead, Window

if TYPE_CHECKING:
    from torch import nn

    from bothways.checkpoints import PretrainedEncoder
    from bothways.tasks.card import SavedBaseline
    from bothways.tasks.embedding.vector_model import VectorModel
    from bothways.tasks.torch_backend import TorchBackend

Vectors: TypeAlias = NDArray[np.float32]

# Options of `SentenceEmbedder.encode` that are not settings of vectors.
ENCODING = ("prompt", "prompt_name", "max_tokens", "show_progress")


@dataclass(frozen=True, slots=True, eq=False)
class TrainedEmbedder:
    """An encoder with the settings for embedding texts: an immutable value."""

    backend: Backend
    settings: EmbeddingSettings
    columns: EmbeddingColumns = ScoredPairs()  # noqa: RUF009 (frozen)  # as in training
    card: Card = field(default_factory=dict)  # the model card; empty before a training
    layers: nn.Sequential | None = None  # the layers on the pooled vectors; None without them or in an export
    golden_inputs: tuple[object, ...] = ()  # held-out texts for golden answers
    baseline: SavedBaseline | None = None  # the embedder before the training, if it is another one
    known: TrainingRows = TrainingRows()  # noqa: RUF009 (frozen)  # checksums of the training rows

    outputs: ClassVar[EmbeddingOutputs] = EmbeddingOutputs()

    @property
    def dimensions(self) -> int:
        """Length of a vector, K."""
        settings = self.settings
        return min(each for each in (settings.width, settings.dimensions, settings.truncate_dim) if each is not None)

    def with_settings(self, **options: Unpack[VectorArguments]) -> TrainedEmbedder:
        """Return an embedder with the same encoder and some settings of its vectors replaced."""
        if not options:
            return self
        known = chosen(EmbeddingOpening, options, "SentenceEmbedder.encode()", known=ENCODING)
        return replace(self, settings=self.settings.changed(known, self.backend.config.hidden))

    def read_texts(self, value: object) -> tuple[tuple[Backend, Sequence[str]], ...]:
        """Return the backend with the text that it reads."""
        return ((self.backend, (str(value),)),)

    # --- vectors ---

    def vectors(
        self,
        texts: Iterable[str],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        total: int | None = None,
        show_progress: bool | None = None,
    ) -> Iterator[tuple[Vectors, TokensRead]]:
        """Yield the vector (K) and the `TokensRead` of each text, in order and in constant memory.

        ``prompt`` is prepended to each text. Default: the default prompt of the settings.
        """
        prompt = self.settings.prompt_of(prompt)
        runner = self._runner(self.backend.budget if max_tokens is None else TokenBudget(max_tokens), prompt)
        prompted = (with_prompt(text, prompt) for text in texts) if prompt else texts
        rows = runner.run(prompted, total=total, description="embedding", show_progress=show_progress)
        return map(self._vector, rows)

    def encode(
        self,
        texts: Sequence[str],
        *,
        prompt: str | None = None,
        max_tokens: int | None = None,
        show_progress: bool | None = None,
    ) -> tuple[Vectors, list[TokensRead]]:
        """Return the vectors of texts (N, K), and the `TokensRead` of each text; see `vectors`."""
        stream = self.vectors(
            texts, prompt=prompt, max_tokens=max_tokens, total=len(texts), show_progress=show_progress
        )
        vectors_NK, reads = np.empty((len(texts), self.dimensions), dtype=np.float32), []
        for vector_NK, (vector_K, read) in zip(vectors_NK, stream, strict=True):
            vector_NK[:] = vector_K
            reads.append(read)
        return vectors_NK, reads

    def represent(
        self, texts: Sequence[str], *, role: Role, prompt: str | None = None, show_progress: bool | None = None
    ) -> DenseVectors:
        """Return the representations of texts for an index, and warn of truncated texts.

        ``prompt`` is prepended to each text. Default: the prompt of the role, see `EmbeddingSettings.prompt_of`.
        """
        vectors_NK, reads = self.encode(
            texts, prompt=self.settings.prompt_of(prompt, role=role), show_progress=show_progress
        )
        warn_of_cut(texts_read(reads))
        return DenseVectors(vectors_NK)

    def represent_stream(
        self,
        texts: Iterable[str],
        *,
        role: Role,
        prompt: str | None = None,
        block: int = 1024,
        show_progress: bool | None = None,
    ) -> Iterator[DenseVectors]:
        """Yield the representations of an iterable, ``block`` texts at a time; see `represent`."""
        prompt = self.settings.prompt_of(prompt, role=role)
        stream = warning_of_cut(self.vectors(texts, prompt=prompt, show_progress=show_progress))
        while part := list(islice(stream, block)):
            yield DenseVectors(np.stack(part))

    def score_blocks(self, inputs: Iterable[Sequence[str]], options: object = None) -> Iterator[list[Scores[None]]]:
        """Yield the similarities of pairs of texts, in blocks of pairs."""
        del options
        for block in self._blocks(inputs, self.settings.prompts_of(ScoredPairs())):
            scores = []
            for vectors_KH, reads in block:
                value = similarities(vectors_KH[:1], vectors_KH[1:2], self.settings.similarity)
                read = TokensRead(max(one.windows for one in reads), sum(one.dropped_tokens for one in reads))
                scores.append(_score(float(value[0]), read))
            yield scores

    def score_rows(self, rows: Sequence[EmbeddingRow], *, show_progress: bool | None = None) -> ScoredRows:
        """Return the scores of rows for evaluation; see `EmbeddingOutputs.outcomes`."""
        vectors: list[Vectors] = []
        reads: list[TokensRead] = []
        with progress("evaluating", len(rows), show=show_progress) as bar:
            for block in self._blocks([row.text for row in rows], self.settings.prompts_of(rows[0].columns)):
                for vectors_KH, of_row in block:
                    vectors.append(vectors_KH)
                    reads += of_row
                bar.advance(len(block))
        known, whole = RowTexts.of(rows), TokensRead(1, 0)
        values = measured(np.concatenate(vectors), known, self.settings.similarity)
        scores = [_score(value, whole) for value in values.tolist()]
        return ScoredRows(tuple(scores), EvaluatedRows(known.scores_R, texts_read(reads)), tuple(rows))

    def score_baseline(self, rows: ScoredRows, show_progress: bool | None = None) -> dict[str, BaselineScores]:
        """Return the scores of the embedder before the training; empty if it is not on this machine any more."""
        saved = self.baseline
        located = None if saved is None or saved.base is None else saved.base.located()
        if saved is None or located is None or self.backend.export is not None:
            return {}
        beside: Backend = imported("bothways.tasks.torch_backend:opened_beside")(self.backend, located)
        opened = replace(open_embedder(EMBEDDING, beside), settings=self.settings)
        own = [row for row in rows.inputs if type(row) is EmbeddingRow]
        scored = opened.score_rows(own, show_progress=show_progress)
        return {"": BaselineScores(saved.name, partial(opened.outputs.outcomes, scored.scores, scored.truth))}

    def _blocks(
        self, inputs: Iterable[Sequence[str]], prompts: tuple[str, str]
    ) -> Iterator[list[tuple[Vectors, tuple[TokensRead, ...]]]]:
        """Yield the vectors and the `TokensRead` of each row's texts, in blocks of rows; see `prompts_of`."""

        def texts_of(row: Sequence[str]) -> Sequence[str]:
            return [with_prompt(text, prompts[number > 0]) for number, text in enumerate(row)]

        for block in self._runner(self.backend.budget, *prompts).blocks(inputs, texts_of):
            found = [zip(*map(self._vector, rows), strict=True) for _, rows in block]
            yield [(np.stack(vectors), reads) for vectors, reads in found]

    def _runner(self, budget: TokenBudget, *prompts: str) -> TextRunner:
        """Return a runner that computes one vector for each window of a text; ``prompts`` begin the texts."""
        prompt_ids = self._prompt_ids(*prompts)
        if (export := self.backend.export) is not None:
            if export.rows.pooling != self.settings.pooling:
                raise InvalidInput(
                    f"expected the pooling that {self.backend.name!r} was exported with, {export.rows.pooling!r}, got "
                    f"{self.settings.pooling!r}: leave pooling out, or export the original model with this pooling."
                )
            return (self.backend if budget is self.backend.budget else replace(self.backend, budget=budget)).runner
        model, settings = with_weights(self.backend, "embed"), self.settings
        model = model if budget is model.budget else replace(model, budget=budget)
        way = (settings.poolings, self.layers, settings.include_prompt or tuple(prompt_ids))
        return model.text_runner(self.module(model.model, prompt_ids), kept_as=way)

    def module(self, model: PretrainedEncoder, prompt_ids: Sequence[Sequence[int]] = ()) -> VectorModel:
        """Return the module of an encoder with the poolings and layers; ``prompt_ids`` begin the texts."""
        from bothways.tasks.embedding.vector_model import VectorModel

        settings = self.settings
        return VectorModel.of(model, settings.poolings, self.layers, () if settings.include_prompt else prompt_ids)

    def prompt_ids(self, columns: EmbeddingColumns) -> list[tuple[int, ...]]:
        """Return the token ids of the different prompts of rows, special tokens in front included; see `prompts_of`."""
        return self._prompt_ids(*self.settings.prompts_of(columns))

    def vectors_of_ids(self, ids: Sequence[Sequence[int]]) -> list[tuple[Vectors, TokensRead]]:
        """Return the vector (K) and the `TokensRead` of each text, given as the ids of all its tokens.

        Raises:
            InvalidInput: A text has no token, too many for one window, or an id that the vocabulary does not have.
        """
        limit, entries = self.backend.reading.max_length, self.backend.config.vocabulary
        for number, own in enumerate(ids, start=1):
            if not 0 < len(own) <= limit:
                raise InvalidInput(f"expected 1 to {limit:,} token ids for text {number}, got {len(own):,}.")
            if not 0 <= min(own) <= max(own) < entries:
                raise InvalidInput(f"expected token ids from 0 to {entries - 1:,}, text {number} has others.")
        texts = [EncodedText((Window(list(own), [0] * len(own)),), len(own)) for own in ids]
        return [self._vector(rows) for rows in self._runner(self.backend.budget, "").rows(texts)]

    def _prompt_ids(self, *prompts: str) -> list[tuple[int, ...]]:
        """Return the token ids of different prompts; refuse a prompt that leaves no room for the text."""
        reading, tokenizer = replace(self.backend.reading, on_overflow="window"), self.backend.tokenizer
        found: list[tuple[int, ...]] = []
        for prompt in dict.fromkeys(prompts):
            if not prompt:
                found.append(())
                continue
            (encoded,) = reading.encode(tokenizer, [prompt])
            ids = encoded.windows[0].ids
            if len(encoded.windows) > 1 or len(ids) >= reading.max_length:
                raise InvalidInput(
                    f"expected a prompt that leaves room for text in a window of {reading.max_length} tokens, got one "
                    f"of {encoded.tokens} tokens, {prompt!r:.80}: shorten it, or raise max_length."
                )
            # As in sentence-transformers, one special token at the end does not count.
            found.append(tuple(ids[:-1] if ids[-1] in tokenizer.special_ids else ids))
        return found

    def _vector(self, rows: Rows) -> tuple[Vectors, TokensRead]:
        """Merge a text's window vectors into one vector (K), and return it with the `TokensRead` of the text."""
        if not isinstance(rows, TextRows):
            raise TypeError("expected one text, with a vector for each window")
        settings, vectors_WH = self.settings, rows.rows_WK
        if len(vectors_WH) == 1:
            vector_H = vectors_WH[0]
        elif settings.merges_by_maximum:
            vector_H = vectors_WH.max(0)
        else:
            vector_H = np.average(vectors_WH, axis=0, weights=rows.lengths).astype(np.float32)
        vector_K = vector_H[: settings.dimensions]
        if settings.unit_length:
            vector_K = np.divide(vector_K, np.float32(max(float(np.linalg.norm(vector_K)), 1e-12)))
        return vector_K[: settings.truncate_dim], TokensRead(len(rows.lengths), rows.dropped_tokens)

    # --- facts and files ---

    def fingerprint(self) -> str:
        """Return the SHA-256 of the weights on disk or of the exported graph, which identifies the model."""
        if (export := self.backend.export) is not None:
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
        """Write the embedder in the layout of sentence-transformers into an existing folder."""
        model, settings = with_weights(self.backend, "save").model, self.settings
        modules = zip(settings.layers, self.layers or (), strict=True)
        weights = {layer.folder: module.state_dict() for layer, module in modules}
        # The weights of the layers are written first, so that they have checksums too.
        settings.in_files().write(
            folder,
            hidden=model.config.hidden,
            cls_is_last=model.tokenizer.cls_is_last,
            weights={name: tensors for name, tensors in weights.items() if tensors},
        )
        # These take precedence over the files of sentence-transformers when the folder is opened.
        own = {
            "pooling": settings.pooling,
            "unit_length": settings.unit_length,
            "dimensions": settings.dimensions,
            "max_length": settings.max_length,
            "on_overflow": settings.on_overflow,
            "stride": settings.stride,
        }
        baseline = {} if self.baseline is None else self.baseline.write(folder)
        model.write(folder, {"task": EMBEDDING.name, **own, **baseline, "card": dict(self.card)})


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
    if (export := backend.export) is not None and export.rows.head is not None:
        raise backend.not_fitted(spec.name, "embedder")
    settings = stored_settings(backend)
    stored = Stored.of(backend.files.extras if backend.trained_for == spec.name else {})
    layers = None if export is not None else _layers(with_weights(backend, "open"), settings)
    baseline = stored_baseline(stored, backend.files.folder)
    known = TrainingRows(backend.files.folder if backend.trained_for == spec.name else None)
    kind = stored_kind(stored.card)
    return TrainedEmbedder(backend, settings, kind, stored.card, layers, baseline=baseline, known=known)


def _layers(backend: TorchBackend, settings: EmbeddingSettings) -> nn.Sequential | None:
    """Open the layers of an embedder, on the encoder's device and in at least float32."""
    if not settings.layers:
        return None
    from bothways.tasks.embedding.vector_model import open_layers
    from bothways.tasks.torch_backend import head_dtype

    layers = open_layers(backend.files.folder, settings.layers, allow_pickle=backend.files.allow_pickle)
    return None if layers is None else layers.to(backend.model.device, head_dtype(backend.model))
