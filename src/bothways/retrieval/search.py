"""Search with texts as queries: an embedder and the index of the texts that it embedded."""

import itertools
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, Unpack, overload

from bothways import checkpoints
from bothways.checkpoints.hub import locate
from bothways.data.tables import as_batch
from bothways.errors import InvalidInput, PromptsDiffer
from bothways.retrieval.contents import (
    Documents,
    EncoderIdentity,
    IndexTextOptions,
    IndexVectorOptions,
    RowBatch,
    SearchPrompts,
    SourceColumns,
    document_streams,
)
from bothways.retrieval.index import VectorStore
from bothways.retrieval.lexical import DEFAULT_LANGUAGE
from bothways.retrieval.ranking import Dense, Fields, Filter, Hit, Hybrid, Lexical, Mode
from bothways.retrieval.store import Address, build_index, open_index
from bothways.tasks import SentenceEmbedder
from bothways.tasks.embedding.representation import DenseVectors, Role
from bothways.tasks.embedding.settings import check_pooling
from bothways.text import Overflow
from bothways.text.characters import VISIBLE

if TYPE_CHECKING:
    import torch

    from bothways.retrieval.reranking import Rerank


class SearchArguments(TypedDict, total=False):
    """The options of `SemanticSearch.search`."""

    mode: Mode | None
    filters: Sequence[Filter]
    rerank: "Rerank | None"
    prompt: str | None
    prompt_name: str | None
    show_progress: bool | None


class SemanticSearch:
    """Finds the texts that answer a query, by meaning and by words.

    >>> embedder = SentenceEmbedder.from_pretrained("sentence-transformers/all-MiniLM-L6-v2")  # doctest: +SKIP
    >>> search = SemanticSearch.build(embedder, ["A cat sleeps.", "Rates rose."])  # doctest: +SKIP
    >>> search.search("a pet", k=1)[0].text  # doctest: +SKIP
    'A cat sleeps.'

    Args:
        embedder: The embedder of the index's texts; None allows lexical search only.
        index: The index.
        identity: The embedder's identity, if already known; computing it reads all weights.

    Raises:
        InvalidInput: The index was built with another model.

    Warns:
        PromptsDiffer: The prompts that the model names have changed since; those of the index are used.
    """

    def __init__(
        self, embedder: SentenceEmbedder | None, index: VectorStore, *, identity: EncoderIdentity | None = None
    ) -> None:
        if embedder is not None:
            index.encoder.check_same(identity or identity_of(embedder))
            _warn_of_other_prompts(index.encoder, embedder)
        self.index = index
        self._embedder = embedder
        self._encoder = None if embedder is None else embedder.model.encoder

    @property
    def embedder(self) -> SentenceEmbedder:
        """The embedder of the index's texts.

        Raises:
            InvalidInput: The search was opened without its model, for lexical search only.
        """
        if self._embedder is None:
            raise InvalidInput("this search was opened without its model: open it with the model to search by meaning.")
        return self._embedder

    @classmethod
    def build(
        cls,
        embedder: SentenceEmbedder,
        texts: Documents,
        *,
        ids: Iterable[str] | None = None,
        fields: Iterable[Fields] | None = None,
        language: str | None = DEFAULT_LANGUAGE,
        prompt: str | None = None,
        prompt_name: str | None = None,
        query_prompt: str | None = None,
        query_prompt_name: str | None = None,
        source: SourceColumns | None = None,
        store: Address | None = None,
        overwrite: bool = False,
        show_progress: bool | None = None,
    ) -> "SemanticSearch":
        """Embed and index texts, which may be a stream.

        Vectors are compared by the embedder's similarity, which must be ``cosine`` or ``dot``.

        Args:
            embedder: Embeds the texts now and the queries later.
            texts: The texts, at least one; or dicts (or rows, or a DataFrame, Arrow table or Dataset) with a ``text``,
                optionally an ``id``, and fields: a dict under ``fields``, or all other keys.
            ids: A unique id for each text. Default: consecutive numbers from 0.
            fields: Values to store with each text, for filters; the same field names for all texts.
            language: The language of the stemmer for lexical search; None indexes words without stemming.
            prompt: The text to put before each of the texts, ``""`` for none. Default: the embedder's prompt for
                documents, if it has one.
            prompt_name: The name of one of the embedder's prompts, instead of ``prompt``.
            query_prompt: The text to put before each query of a later search. Default: the embedder's prompt for
                queries, if it has one.
            query_prompt_name: The name of one of the embedder's prompts, instead of ``query_prompt``.
            source: The columns of the rows that the texts were read from, to be recorded.
            store: The folder of the index, or a table such as ``postgresql://localhost/demo#docs``. Default: in memory.
            overwrite: Replace an index in that place.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: There is no text, an id occurs twice, a dict lacks a key that the first has, there is no
                stemmer for the language or no prompt of this name, or the embedder has another similarity. All errors
                of `bothways.retrieval.build_index` are raised too.
            MissingDependency: The extra ``search`` is not installed.

        Warns:
            PromptsDiffer: The card of a published embedder asks for prompts that the index does not have.
        """
        prompt_of = embedder.fitted.settings.prompt_of
        asking = prompt_of(query_prompt, query_prompt_name, role="query")
        prompts = SearchPrompts(asking, prompt_of(prompt, prompt_name, role="document"))
        identity = replace(identity_of(embedder), prompts=prompts)
        _warn_of_card(identity)
        batches = _batches(embedder, texts, ids, fields, prompts.document, show_progress)
        index = build_index(store, batches, encoder=identity, language=language, source=source, overwrite=overwrite)
        return cls(embedder, index, identity=identity)

    def add(
        self,
        texts: Documents,
        *,
        ids: Iterable[str] | None = None,
        fields: Iterable[Fields] | None = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        show_progress: bool | None = None,
    ) -> None:
        """Embed texts with the document prompt of the index and add them; ``save`` then changes an index in files.

        Args:
            texts: The texts or dicts, as in ``build``.
            ids: A unique id for each text, not yet in the index. Default: numbers above the highest numeric id.
            fields: As in ``build``, with the field names of the index.
            prompt: The text before the texts, which must be that of the index. Default: that of the index.
            prompt_name: The name of one of the embedder's prompts, instead of ``prompt``.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: There is no text, an id is already in the index, the fields differ, the index has another
                prompt, or the embedder was trained since the index was built.
        """
        self.check_prompt(prompt, prompt_name, role="document")
        own = self.index.encoder.prompts.document
        self.index.add_batches(_batches(self._same_embedder(), texts, ids, fields, own, show_progress))

    @classmethod
    def open(
        cls,
        index: Address | VectorStore,
        *,
        model: str | Path | None = None,
        max_length: int | None = None,
        on_overflow: Overflow | None = None,
        revision: str | None = None,
        device: "str | torch.device" = "auto",
        dtype: "str | torch.dtype | None" = None,
        download: bool = False,
        allow_pickle: bool = False,
    ) -> "SemanticSearch":
        """Open an index together with the model that it was built with.

        Args:
            index: Folder of the index, the address of its table, or the opened index.
            model: The current folder or name of the model, if it was moved.
            max_length: Maximum tokens per window. Default: as when the index was built.
            on_overflow: The treatment of longer texts and queries. Default: as when the index was built.
            revision: The commit of a model on the hub. Default: the commit recorded by its download.
            device: The device that embeds queries.
            dtype: Precision of the weights. Default: bfloat16 on a GPU that has it, else float32.
            download: Allow a download of the model from the hub.
            allow_pickle: Allow a ``.bin`` file to be read, after a scan.

        Raises:
            UnknownModel: The index or the model does not exist.
            CorruptCheckpoint: The index is damaged.
            InvalidInput: The model is not the one that the index was built with.
            StoreUnavailable: The database cannot be reached.
        """
        opened = open_index(index) if isinstance(index, str | os.PathLike) else index
        built = opened.encoder
        name = str(model or built.name)
        # Compare the model with the index before opening it: another model may not even have these dimensions.
        located = locate(name, revision=revision, download=download, allow_pickle=allow_pickle)
        found = replace(built, name=name, fingerprint=checkpoints.fingerprint(located.folder))
        built.check_same(found)
        as_built = built.reading
        kept = IndexVectorOptions(True, built.dimensions) if built.vectors is None else built.vectors
        embedder = SentenceEmbedder.from_pretrained(
            name,
            # Only a folder can combine several poolings.
            pooling=None if "+" in built.pooling else check_pooling(built.pooling),
            dimensions=kept.leading,
            unit_length=None if built.vectors is None else kept.unit_length,
            max_length=as_built.max_length if max_length is None and as_built else max_length,
            on_overflow=as_built.on_overflow if on_overflow is None and as_built else on_overflow,
            # The stored overlap is for windows of the stored length.
            stride=as_built.stride if max_length is None and as_built else None,
            revision=revision,
            device=device,
            dtype=dtype,
            download=download,
            allow_pickle=allow_pickle,
        )
        return cls(embedder, opened, identity=identity_of(embedder, fingerprint=found.fingerprint))

    @overload  # a string is also a sequence of strings, which the first signature takes before the second
    def search(  # type: ignore[overload-overlap]
        self, query: str, k: int = ..., **options: Unpack[SearchArguments]
    ) -> list[Hit]: ...

    @overload
    def search(self, query: Sequence[str], k: int = ..., **options: Unpack[SearchArguments]) -> list[list[Hit]]: ...

    def search(
        self,
        query: str | Sequence[str],
        k: int = 5,
        *,
        mode: Mode | None = None,
        filters: Sequence[Filter] = (),
        rerank: "Rerank | None" = None,
        prompt: str | None = None,
        prompt_name: str | None = None,
        show_progress: bool | None = None,
    ) -> list[Hit] | list[list[Hit]]:
        """Return the ``k`` best texts of a query, best first; a list of such lists for several queries.

        Args:
            query: One or several queries.
            k: Hits for each query; lexical search and filters may leave fewer.
            mode: By meaning (`Dense`), by words (`Lexical`), or by both (`Hybrid`). Default: by both.
            filters: Conditions on the fields; a text must meet all of them.
            rerank: Options for reordering the first hits by another model.
            prompt: The text before the queries, which must be that of the index. Default: that of the index.
            prompt_name: The name of one of the embedder's prompts, instead of ``prompt``.
            show_progress: Force the progress bar on or off.

        Raises:
            InvalidInput: A query is empty or not a string, ``k`` is below 1, ``mode`` is not a mode, a filter names a
                field that the index does not have, the index has another prompt, or the embedder was trained since the
                index was built.
            MissingDependency: The extra ``search`` is not installed.
        """
        given, is_single = as_batch(query, "a query", "queries")
        queries = _checked_queries(given)
        self.check_prompt(prompt, prompt_name, role="query")
        chosen = Hybrid() if mode is None else mode

        def find(count: int) -> list[list[Hit]]:
            return self._find(queries, count, chosen, filters, show_progress)

        if rerank is None:
            answers = find(k)
        else:
            from bothways.retrieval.reranking import search_reranked  # loads classifiers

            answers = search_reranked(find, queries, k, rerank, show_progress=show_progress)
        return answers[0] if is_single else answers

    def _find(
        self, queries: Sequence[str], k: int, mode: Mode, filters: Sequence[Filter], show_progress: bool | None
    ) -> list[list[Hit]]:
        def represented() -> DenseVectors:
            return self.represent(queries, role="query", show_progress=show_progress)

        match mode:
            case Dense():
                return self.index.search(represented(), k, filters=filters, exact=mode.exact)
            case Lexical():
                return self.index.search_lexical(queries, k, filters=filters)
            case Hybrid():
                return self.index.search_hybrid(queries, represented(), k, mode=mode, filters=filters)
            case _:
                raise InvalidInput(
                    f"mode: expected Dense(), Lexical() or Hybrid() from bothways.retrieval, got {mode!r:.60}."
                )

    def represent(self, texts: Sequence[str], *, role: Role, show_progress: bool | None = None) -> DenseVectors:
        """Return the vectors of queries or documents, with the prompt that the index has for them.

        Raises:
            InvalidInput: A text is empty or not a string, or the embedder was trained since the index was built.
        """
        fitted, prompt = self._same_embedder().fitted, self.index.encoder.prompts.of(role)
        return fitted.represent(texts, role=role, prompt=prompt, show_progress=show_progress)

    def check_prompt(self, prompt: str | None = None, prompt_name: str | None = None, *, role: Role) -> None:
        """Refuse a prompt that is not the one that the index has for this role; with neither argument, do nothing.

        Raises:
            InvalidInput: The index has another prompt, or the embedder no prompt of this name.
        """
        if prompt is None and prompt_name is None:
            return
        if prompt_name is not None:
            prompt = self.embedder.fitted.settings.prompt_of(prompt, prompt_name)
        own = self.index.encoder.prompts.of(role)
        if prompt != own:
            texts, option = ("queries", "query_prompt") if role == "query" else ("documents", "prompt")
            raise InvalidInput(
                f"the index was built for {texts} {f'with the prompt {own!r}' if own else 'without a prompt'}, got "
                f"{prompt!r:.80}. Leave the prompt out to use that of the index, or build the index again with "
                f"{option}={prompt!r:.80} (--{option.replace('_', '-')})."
            )

    def _same_embedder(self) -> SentenceEmbedder:
        """Return the embedder, or raise InvalidInput if training has replaced its encoder."""
        if self.embedder.model.encoder is not self._encoder:
            raise InvalidInput(
                "the embedder was trained after the index was opened or built, so its vectors are no longer those of "
                "the index: build the index again with it."
            )
        return self.embedder

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the index as a folder, whole or not at all; its model is stored as a name and a fingerprint.

        Raises:
            OutputExists: The folder exists and ``overwrite`` is false.
            OutOfDisk: The disk is full; nothing was left behind.
        """
        self.index.save(folder, overwrite=overwrite)


def identity_of(embedder: SentenceEmbedder, *, fingerprint: str | None = None) -> EncoderIdentity:
    """Return the identity to store in an index; its name for a local model is the absolute path.

    ``fingerprint`` is the SHA-256 of its weights, if already known; computing it reads all of them.
    """
    name = embedder.model.name
    settings = embedder.fitted.settings
    return EncoderIdentity(
        name=str(Path(name).resolve()) if Path(name).is_dir() else name,
        fingerprint=fingerprint or embedder.fitted.fingerprint(),
        pooling=settings.pooling,
        dimensions=embedder.dimensions,
        vocabulary=embedder.backend.tokenizer.vocabulary_digest(),
        reading=IndexTextOptions(settings.max_length, settings.on_overflow, settings.stride),
        precision=embedder.model.precision,
        similarity=settings.similarity,
        vectors=IndexVectorOptions(settings.unit_length, settings.dimensions),
        prompts=_own_prompts(embedder),
        model_prompts=_own_prompts(embedder),
    )


def _own_prompts(embedder: SentenceEmbedder) -> SearchPrompts:
    settings = embedder.fitted.settings
    return SearchPrompts(settings.prompt_of(role="query"), settings.prompt_of(role="document"))


def _warn_of_card(identity: EncoderIdentity) -> None:
    for note in identity.notes():
        warnings.warn(
            PromptsDiffer(f"{note} Pass prompt= and query_prompt= (--prompt and --query-prompt) to add prompts."),
            stacklevel=3,
        )


def _warn_of_other_prompts(built: EncoderIdentity, embedder: SentenceEmbedder) -> None:
    now, then = _own_prompts(embedder), built.model_prompts or SearchPrompts()
    if now != then:
        warnings.warn(
            PromptsDiffer(
                f"the model {embedder.name!r} names the prompts {now}; when the index was built, they were {then}. "
                f"The search uses the prompts of the index, {built.prompts}: to use those of the model, build it again."
            ),
            stacklevel=4,
        )


def _checked_queries(queries: Sequence[object]) -> list[str]:
    checked = []
    for number, query in enumerate(queries, start=1):
        if not isinstance(query, str):
            raise InvalidInput(f"expected a string for query {number}, got {type(query).__name__}: {query!r:.80}.")
        if not VISIBLE.search(query):
            raise InvalidInput(
                f"query {number} is empty or only white space and invisible characters: drop it or fill it in."
            )
        checked.append(query)
    return checked


def _batches(
    embedder: SentenceEmbedder,
    documents: Documents,
    ids: Iterable[str] | None,
    fields: Iterable[Fields] | None,
    prompt: str,
    show_progress: bool | None,
) -> Iterator[RowBatch]:
    texts, names, values = document_streams(documents, ids, fields)
    texts, embedded = itertools.tee(texts)
    stream = embedder.fitted.represent_stream(embedded, role="document", prompt=prompt, show_progress=show_progress)
    for block in stream:
        yield RowBatch(
            block,
            list(itertools.islice(texts, len(block))),
            None if names is None else list(itertools.islice(names, len(block))),
            None if values is None else list(itertools.islice(values, len(block))),
        )
    if names is not None and next(names, None) is not None:
        raise InvalidInput("there must be one id for each text, but there are more ids than texts.")
    if values is not None and next(values, None) is not None:
        raise InvalidInput("there must be one mapping of fields for each text, but there are more mappings than texts.")
