"""Search by meaning: an embedder, and the index of what it embedded."""

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
from bothways.retrieval.index import Hit, SearchIndex
from bothways.retrieval.index_files import EncoderIdentity
from bothways.tasks import SentenceEmbedder
from bothways.tasks.embedding import Vectors
from bothways.tasks.pooling import check_pooling

Batch = tuple[Vectors, Sequence[str], Sequence[str] | None]

_BATCH = 1024


class SemanticSearch:
    """Finds the texts that are nearest in meaning to a query.

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

    @classmethod
    def build(
        cls,
        embedder: SentenceEmbedder,
        texts: Iterable[str],
        *,
        ids: Iterable[str] | None = None,
        show_progress: bool | None = None,
    ) -> "SemanticSearch":
        """Embed texts, which may come from a stream, and index them.

        Args:
            embedder: Makes the vectors, of the texts now and of the queries later.
            texts: The texts, at least one.
            ids: A name for each; their numbers when left out.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: There is no text, or an id comes twice.
        """
        batches = _batches(embedder, texts, ids, show_progress)
        return cls(embedder, SearchIndex.build_from_batches(batches, encoder=identity_of(embedder)))

    @classmethod
    def open(
        cls,
        folder: str | Path,
        *,
        model: str | Path | None = None,
        revision: str | None = None,
        device: str | torch.device = "auto",
        dtype: str | torch.dtype = "float32",
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "SemanticSearch":
        """Open a saved index together with the model that it was built with.

        Args:
            folder: Of the index.
            model: Where that model lies now, if it was moved.
            revision: The commit that a hub name is pinned to.
            device: Where queries are embedded.
            dtype: Precision of the weights.
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
        embedder = SentenceEmbedder.from_pretrained(
            name,
            pooling=check_pooling(built.pooling),
            dimensions=built.dimensions,
            revision=revision,
            device=device,
            dtype=dtype,
            download=download,
            allow_pickle=allow_pickle,
        )
        return cls(embedder, index)

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def search(self, query: str, k: int = ...) -> list[Hit]: ...  # type: ignore[overload-overlap]

    @overload
    def search(self, query: Sequence[str], k: int = ...) -> list[list[Hit]]: ...

    def search(self, query: str | Sequence[str], k: int = 5) -> list[Hit] | list[list[Hit]]:
        """The ``k`` nearest texts of a query, best first; a list of such lists for several queries.

        Raises:
            InvalidInput: A query is empty, or ``k`` is below 1.
        """
        queries = [query] if isinstance(query, str) else list(query)
        answers = self.index.search(self.embedder.encode(queries, show_progress=False), k)
        return answers[0] if isinstance(query, str) else answers

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the index, whole or not at all. The model is remembered by name and fingerprint, not copied.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        self.index.save(folder, overwrite=overwrite)


def identity_of(embedder: SentenceEmbedder) -> EncoderIdentity:
    """What an index remembers of the model that made it; a folder by its whole path, to be found from anywhere."""
    name = embedder.model.name
    whole = str(Path(name).resolve()) if Path(name).is_dir() else name
    return EncoderIdentity(whole, embedder.fingerprint(), embedder.settings.pooling, embedder.dimensions)


def _batches(
    embedder: SentenceEmbedder, texts: Iterable[str], ids: Iterable[str] | None, show_progress: bool | None
) -> Iterator[Batch]:
    kept, again = itertools.tee(texts)
    pairs = zip(kept, embedder.encode_stream(again, show_progress=show_progress), strict=True)
    names = None if ids is None else iter(ids)
    while batch := list(itertools.islice(pairs, _BATCH)):
        chosen = None if names is None else list(itertools.islice(names, len(batch)))
        yield np.stack([vector for _, vector in batch]), [text for text, _ in batch], chosen
    if names is not None and next(names, None) is not None:
        raise InvalidInput("there must be one id for each text, but there are more ids than texts.")
