"""Search with texts as queries: an embedder, and the index of what it embedded."""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import overload

import numpy as np
import torch

from bothways.checkpoints import fingerprint
from bothways.checkpoints.hub import locate
from bothways.errors import InvalidInput
from bothways.retrieval.dense import Vectors
from bothways.retrieval.filters import Fields, Filter
from bothways.retrieval.gathering import Documents, RowBatch, apart
from bothways.retrieval.hits import Hit
from bothways.retrieval.index import SearchIndex
from bothways.retrieval.index_header import EncoderIdentity, IndexTextOptions
from bothways.retrieval.lexical import DEFAULT_LANGUAGE
from bothways.retrieval.modes import Dense, Hybrid, Lexical, Mode
from bothways.retrieval.reranking import Rerank, search_reranked
from bothways.tasks import SentenceEmbedder
from bothways.tasks.embedding.sentence_layout import check_pooling
from bothways.text import Overflow

_BATCH = 1024


class SemanticSearch:
    """Finds the texts that answer a query, by meaning and by words.

    >>> embedder = SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> search = SemanticSearch.build(embedder, ["A cat sleeps.", "Rates rose."])  # doctest: +SKIP
    >>> search.search("a pet", k=1)[0].text  # doctest: +SKIP
    'A cat sleeps.'

    Raises:
        InvalidInput: The index was built with another model.
    """

    def __init__(self, embedder: SentenceEmbedder, index: SearchIndex) -> None:
        index.check_encoder(identity_of(embedder))
        self.embedder = embedder
        self.index = index
        self._encoder = embedder.model.encoder

    @classmethod
    def build(
        cls,
        embedder: SentenceEmbedder,
        texts: Documents,
        *,
        ids: Iterable[str] | None = None,
        fields: Iterable[Fields] | None = None,
        language: str | None = DEFAULT_LANGUAGE,
        show_progress: bool | None = None,
    ) -> "SemanticSearch":
        """Embed texts, which may come from a stream, and index them.

        Args:
            embedder: Makes the vectors, of the texts now and of the queries later.
            texts: The texts, at least one; or dicts (or rows, or a DataFrame, Arrow table or Dataset) with a ``text``,
                perhaps an ``id``, and fields: a dict under ``fields``, or all other keys.
            ids: A name for each; their numbers when left out.
            fields: Values to keep with each and to filter by, under the same names for all.
            language: Of the stemmer of lexical search; None for words as they are.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: There is no text, an id comes twice, a dict lacks what the first has, or there is no stemmer
                for the language.
            MissingDependency: The extra ``search`` is not installed.
        """
        batches = _batches(embedder, texts, ids, fields, show_progress)
        index = SearchIndex.build_from_batches(batches, encoder=identity_of(embedder), language=language)
        return cls(embedder, index)

    def add(
        self,
        texts: Documents,
        *,
        ids: Iterable[str] | None = None,
        fields: Iterable[Fields] | None = None,
        show_progress: bool | None = None,
    ) -> None:
        """Embed texts and add them to the index; what is on disk changes with the next ``save``.

        Args:
            texts: The texts or dicts, as in ``build``.
            ids: A name for each, new to the index; numbers when left out.
            fields: As in ``build``, under the names that the index has.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: There is no text, the index has an id already, the fields are others, or the embedder was
                trained in the meantime.
        """
        self._check_vectors()
        self.index.add_batches(_batches(self.embedder, texts, ids, fields, show_progress))

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: str | Path | None = None,
        max_length: int | None = None,
        on_overflow: Overflow | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype | None = None,
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "SemanticSearch":
        """Open a saved index together with the model that it was built with.

        Args:
            folder: Of the index.
            model: Where that model lies now, if it was moved.
            max_length: Maximum tokens per window. Default: as when the index was built.
            on_overflow: What becomes of longer texts and queries; as when the index was built when left out.
            revision: The commit of a hub name; when None, the one that its download resolved.
            device: Where queries are embedded.
            dtype: Precision of the weights; bfloat16 on a GPU that has it, else float32, when left out.
            download: Whether the hub may be asked for the model.
            allow_pickle: Whether a ``.bin`` file may be read, after a scan.

        Raises:
            UnknownModel: The index or the model is not there.
            CorruptCheckpoint: The index is damaged.
            InvalidInput: The model is not the one that the index was built with.
        """
        index = SearchIndex.open(folder)
        built = index.encoder
        name = str(model or built.name)
        # Held against the index before it is opened: another model may not even have these dimensions.
        located = locate(name, revision=revision, download=download, allow_pickle=allow_pickle)
        index.check_encoder(replace(built, name=name, fingerprint=fingerprint(located.folder)))
        as_built = built.reading
        embedder = SentenceEmbedder.from_pretrained(
            name,
            pooling=check_pooling(built.pooling),
            dimensions=built.dimensions,
            max_length=as_built.max_length if max_length is None and as_built else max_length,
            on_overflow=as_built.on_overflow if on_overflow is None and as_built else on_overflow,
            # The overlap of windows of another length is another.
            stride=as_built.stride if max_length is None and as_built else None,
            revision=revision,
            device=device,
            dtype=dtype,
            download=download,
            allow_pickle=allow_pickle,
        )
        return cls(embedder, index)

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def search(  # type: ignore[overload-overlap]
        self,
        query: str,
        k: int = ...,
        *,
        mode: Mode | None = ...,
        filters: Sequence[Filter] = ...,
        rerank: Rerank | None = ...,
        show_progress: bool | None = ...,
    ) -> list[Hit]: ...

    @overload
    def search(
        self,
        query: Sequence[str],
        k: int = ...,
        *,
        mode: Mode | None = ...,
        filters: Sequence[Filter] = ...,
        rerank: Rerank | None = ...,
        show_progress: bool | None = ...,
    ) -> list[list[Hit]]: ...

    def search(
        self,
        query: str | Sequence[str],
        k: int = 5,
        *,
        mode: Mode | None = None,
        filters: Sequence[Filter] = (),
        rerank: Rerank | None = None,
        show_progress: bool | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best texts of a query, best first; a list of such lists for several queries.

        Args:
            query: One or several.
            k: Hits for each; lexical search and filters may leave fewer.
            mode: By meaning (`Dense`), by words (`Lexical`), or by both (`Hybrid`); by both when None, as far as the
                index can (`SearchIndex.default_mode`).
            filters: What the fields of a text must be, all of them.
            rerank: What puts the first hits into another order.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A query is empty or no string, ``k`` is below 1, ``mode`` is no mode, a filter names a field
                that the index does not have, or the embedder was trained in the meantime.
            MissingDependency: The extra ``search`` is not installed.
        """
        queries = [query] if isinstance(query, str) else list(query)
        _check_queries(queries)
        chosen = self.index.default_mode if mode is None else mode

        def find(count: int) -> list[list[Hit]]:
            return self._found(queries, count, chosen, filters, show_progress)

        answers = search_reranked(find, queries, k, rerank, show_progress=show_progress)
        return answers[0] if isinstance(query, str) else answers

    def _found(
        self, queries: Sequence[str], k: int, mode: Mode, filters: Sequence[Filter], show_progress: bool | None
    ) -> list[list[Hit]]:
        match mode:
            case Dense():
                return self.index.search(self._vectors(queries, show_progress), k, filters=filters)
            case Lexical():
                return self.index.search_lexical(queries, k, filters=filters)
            case Hybrid():
                vectors = self._vectors(queries, show_progress)
                return self.index.search_hybrid(queries, vectors, k, mode=mode, filters=filters)
            case _:
                raise InvalidInput(
                    f"expected Dense(), Lexical() or Hybrid() of bothways.retrieval as the mode, got {mode!r:.60}."
                )

    def _vectors(self, queries: Sequence[str], show_progress: bool | None) -> Vectors:
        self._check_vectors()
        return self.embedder.encode(queries, show_progress=show_progress)

    def _check_vectors(self) -> None:
        # A training makes another encoder.
        if self.embedder.model.encoder is not self._encoder:
            raise InvalidInput(
                "the embedder was trained after the index was opened or built, so its vectors are no longer those of "
                "the index: build the index again with it."
            )

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the index, whole or not at all. The model is remembered by name and fingerprint, not copied.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        self.index.save(folder, overwrite=overwrite)


def _check_queries(queries: Sequence[object]) -> None:
    for number, query in enumerate(queries, start=1):
        if not isinstance(query, str):
            raise InvalidInput(f"expected a string for query {number}, got {type(query).__name__}: {query!r:.80}.")
        if not query.strip():
            raise InvalidInput(f"query {number} is empty or only white space: drop it or fill it in.")


def identity_of(embedder: SentenceEmbedder) -> EncoderIdentity:
    """Return what an index remembers of the model that made it.

    A folder by its whole path, to be found from anywhere.
    """
    name = embedder.model.name
    settings = embedder.settings
    return EncoderIdentity(
        name=str(Path(name).resolve()) if Path(name).is_dir() else name,
        fingerprint=embedder.fingerprint(),
        pooling=settings.pooling,
        dimensions=embedder.dimensions,
        vocabulary=embedder.tokenizer.vocabulary_digest(),
        reading=IndexTextOptions(settings.max_length, settings.on_overflow, settings.stride),
        precision=embedder.model.precision,
    )


def _batches(
    embedder: SentenceEmbedder,
    documents: Documents,
    ids: Iterable[str] | None,
    fields: Iterable[Fields] | None,
    show_progress: bool | None,
) -> Iterator[RowBatch]:
    texts, names, values = apart(documents, ids, fields)
    kept, again = itertools.tee(texts)
    pairs = zip(kept, embedder.encode_stream(again, show_progress=show_progress), strict=True)
    while batch := list(itertools.islice(pairs, _BATCH)):
        yield RowBatch(
            np.stack([vector for _, vector in batch]),
            [text for text, _ in batch],
            None if names is None else list(itertools.islice(names, len(batch))),
            None if values is None else list(itertools.islice(values, len(batch))),
        )
    if names is not None and next(names, None) is not None:
        raise InvalidInput("there must be one id for each text, but there are more ids than texts.")
    if values is not None and next(values, None) is not None:
        raise InvalidInput("there must be fields for each text, but there are fields for more rows than texts.")
