"""Writing token shards: documents are read, encoded in parallel, deduplicated and written in order.

Memory use is constant, except for eight bytes per document to recognise duplicates. An unfinished run is kept in
``OUTPUT.partial``; the next run resumes after its last complete shard.

Shapes: T tokens, S sentences and D documents of a shard.
"""

import hashlib
import json
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from bothways.choices import Format
from bothways.data.corpus import corpus_files, read_documents
from bothways.data.shards.corpus import MANIFEST, Manifest, ShardEntry, checksum
from bothways.errors import InvalidInput
from bothways.progress import progress
from bothways.storage import FolderKind, check_folder_free, held, move_folder, new_file
from bothways.text import TextTokenizer
from bothways.text.words import sentence_spans

SHARD_TOKENS = 2**24
_BLOCK_CHARACTERS, _UNENCODED = 2**20, 2
_STATE, _KEYS = "state.json", ".keys.npy"


@dataclass(frozen=True, slots=True)
class ShardSource:
    """The files of a corpus, and options for reading them.

    Attributes:
        paths: Files, and folders of files.
        text: Column of the texts, or several to join by a space.
        format: Format of the files. Default: from their names.
        encoding: Encoding of files of text. Default: UTF-8.
        deduplicate: Leave out documents whose text occurred before.
    """

    paths: Sequence[str | Path]
    text: str | tuple[str, ...] = "text"
    format: Format | None = None
    encoding: str | None = None
    deduplicate: bool = True


def write_shards(
    source: ShardSource,
    output: Path,
    tokenizer: TextTokenizer,
    *,
    shard_tokens: int = SHARD_TOKENS,
    overwrite: bool = False,
    show_progress: bool | None = None,
) -> Manifest:
    """Encode the documents of a corpus and write them as shards; an unfinished run of the same corpus is continued.

    Args:
        source: The corpus.
        output: Folder for the shards.
        tokenizer: Encodes the documents; its special tokens are not written.
        shard_tokens: Size of a shard: it ends with the document that reaches this number of tokens.
        overwrite: Replace an existing output folder.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: A file cannot be read, the corpus has no text, or an unfinished run has other settings.
        OutputExists: The output exists, and ``overwrite`` is false or it holds no shards.
        OutOfDisk: The disk is full; the run can be continued.
    """
    kind = FolderKind("a folder of token shards", frozenset({MANIFEST}))
    check_folder_free(output, overwrite=overwrite, kind=kind)
    partial = output.with_name(f"{output.name}.partial")
    partial.mkdir(parents=True, exist_ok=True)
    with held(partial, f"another process is writing shards into {str(partial)!r}. Wait until it is done."):
        run = _Run.begin(source, partial, tokenizer, shard_tokens)
        with progress("encoding documents", None, done=run.manifest.documents, show=show_progress) as bar:
            for block in _encoded(run.documents(), tokenizer):
                for document in block:
                    run.add(document)
                bar.advance(len(block))
            run.close_shard()
        if not run.manifest.documents:
            raise InvalidInput(
                "there is no text to write: every document is empty, or has only special tokens. Give files with "
                "text, and name the column of the texts if they have columns."
            )
        run.manifest.write(partial / MANIFEST)
        for path in (partial / _STATE, *partial.glob(f"*{_KEYS}")):
            path.unlink(missing_ok=True)
        move_folder(partial, output, overwrite=overwrite, kind=kind)
    return run.manifest


@dataclass(frozen=True, slots=True)
class _Place:
    """Index of a file of the corpus, and index of a document in this file."""

    file: int = 0
    document: int = 0


@dataclass(frozen=True, slots=True)
class _Read:
    text: str
    place: _Place
    path: str


@dataclass(frozen=True, slots=True)
class _Encoded:
    """A document with its ids, the ends of its sentences, the place of the next document, and the key of its text."""

    ids_n: NDArray[np.uint32]
    ends_S: NDArray[np.int64]
    next: _Place
    path: str
    key: int


@dataclass(slots=True)
class _Run:
    """One call of `write_shards`: the complete shards, and the one being filled."""

    source: ShardSource
    folder: Path
    settings: dict[str, object]
    manifest: Manifest
    shard_tokens: int
    special_V: NDArray[np.bool_]
    seen: "_Seen"
    place: _Place = _Place()
    path: str = ""
    documents_D: list[_Encoded] = field(default_factory=list)
    tokens: int = 0

    @classmethod
    def begin(cls, source: ShardSource, folder: Path, tokenizer: TextTokenizer, shard_tokens: int) -> "_Run":
        vocabulary = max(tokenizer.vocabulary()) + 1
        special_V = np.zeros(vocabulary, dtype=bool)
        special_V[sorted(tokenizer.special_ids)] = True
        special_V[tokenizer.unk_id] = False
        digest = tokenizer.encoding_digest
        manifest = Manifest(digest, vocabulary, "uint16" if vocabulary <= 2**16 else "uint32")
        settings: dict[str, object] = {
            "paths": [str(Path(path).absolute()) for path in source.paths],
            "text": source.text if isinstance(source.text, str) else list(source.text),
            "format": source.format,
            **({} if source.encoding is None else {"encoding": source.encoding}),
            "deduplicate": source.deduplicate,
            "shard_tokens": shard_tokens,
            "tokenizer": digest,
        }
        run = cls(source, folder, settings, manifest, shard_tokens, special_V, _Seen())
        state = _unfinished(folder)
        if state is not None:
            run.resume(state)
        return run

    def resume(self, state: dict[str, Any]) -> None:
        """Continue an unfinished run, with its shards."""
        other = [name for name, value in self.settings.items() if state["settings"].get(name) != value]
        if other:
            raise InvalidInput(
                f"{str(self.folder)!r} holds an unfinished run that differs in {' and '.join(other)}: remove that "
                "folder to start again, or use the settings of that run."
            )
        self.manifest = Manifest.of(state["manifest"])
        self.place, self.path = _Place(*state["place"]), state["path"]
        for shard in self.manifest.shards:
            self.seen.merge(np.load(self.folder / f"{shard.name}{_KEYS}"))

    def documents(self) -> Iterator[_Read]:
        begin = self.place
        for number, path in enumerate(corpus_files(self.source.paths)):
            if number < begin.file:
                continue
            if number == begin.file and self.path not in ("", str(path)):
                raise InvalidInput(
                    f"the files have changed since {str(self.folder)!r} was left unfinished: expected {self.path!r} as "
                    f"number {number + 1}, got {str(path)!r}. Remove that folder to start again."
                )
            own = self.source
            documents = enumerate(read_documents(path, text=own.text, format=own.format, encoding=own.encoding))
            for within, document in islice(documents, begin.document if number == begin.file else 0, None):
                yield _Read(document.text, _Place(number, within + 1), str(path))

    def add(self, document: _Encoded) -> None:
        if self.source.deduplicate and not self.seen.add(document.key):
            self.manifest = replace(self.manifest, duplicates=self.manifest.duplicates + 1)
            return
        kept_n = ~self.special_V[document.ids_n]
        if not kept_n.all():  # the text itself contains a special token, such as "[SEP]"
            counts = np.concatenate([[0], np.cumsum(kept_n)])
            ends_S = np.unique(counts[document.ends_S])
            document = replace(document, ids_n=document.ids_n[kept_n], ends_S=ends_S[ends_S > 0])
        if not len(document.ids_n):
            return
        self.documents_D.append(document)
        self.tokens += len(document.ids_n)
        if self.tokens >= self.shard_tokens:
            self.close_shard()

    def close_shard(self) -> None:
        """Write the shard being filled, and the place from which a later run continues."""
        if not self.documents_D:
            return
        lengths_D = np.array([len(each.ids_n) for each in self.documents_D], dtype=np.int64)
        begins_D = np.cumsum(lengths_D) - lengths_D
        arrays = {
            "tokens": np.concatenate([each.ids_n for each in self.documents_D]).astype(self.manifest.dtype),
            "sentences": np.concatenate(
                [begin + each.ends_S for begin, each in zip(begins_D, self.documents_D, strict=True)]
            ),
            "documents": np.cumsum([len(each.ends_S) for each in self.documents_D], dtype=np.int64),
        }
        name = f"{len(self.manifest.shards):05d}"
        sums = {part: _write_array(self.folder / f"{name}.{part}.npy", array) for part, array in arrays.items()}
        counts = {part: len(array) for part, array in arrays.items()}
        entry = ShardEntry(name=name, **counts, sha256=sums)
        lengths = self.manifest.lengths.with_documents(lengths_D)
        self.manifest = replace(self.manifest, shards=(*self.manifest.shards, entry), lengths=lengths)
        _write_array(self.folder / f"{name}{_KEYS}", np.array([each.key for each in self.documents_D], dtype=np.uint64))
        last = self.documents_D[-1]
        self.documents_D, self.tokens = [], 0
        state = {
            "settings": self.settings,
            "manifest": self.manifest.to_dict(),
            "place": [last.next.file, last.next.document],
            "path": last.path,
        }
        with new_file(self.folder / _STATE) as stream:
            json.dump(state, stream)


class _Seen:
    """Keys of the texts so far, 64-bit hashes; among 2^32 texts, two share a key with a probability of about 0.4."""

    def __init__(self) -> None:
        self._sorted_N = np.zeros(0, dtype=np.uint64)
        self._recent: set[int] = set()

    def add(self, key: int) -> bool:
        """Add a key; return False if it is known."""
        place = int(np.searchsorted(self._sorted_N, np.uint64(key)))
        if key in self._recent or (place < len(self._sorted_N) and int(self._sorted_N[place]) == key):
            return False
        self._recent.add(key)
        if len(self._recent) > 2**20:
            self.merge(np.fromiter(self._recent, dtype=np.uint64, count=len(self._recent)))
            self._recent.clear()
        return True

    def merge(self, keys_N: NDArray[np.uint64]) -> None:
        self._sorted_N = np.union1d(self._sorted_N, keys_N)


def _encoded(documents: Iterator[_Read], tokenizer: TextTokenizer) -> Iterator[list[_Encoded]]:
    """Encode documents in blocks; while the threads of the tokenizer encode one block, the next is read."""

    def encode(block: list[_Read]) -> list[_Encoded]:
        slices = [_slices(each.text) for each in block]
        ids = iter(tokenizer.encode_bare([one for each in slices for one in each]))
        return [
            _of_sentences([next(ids) for _ in each], document) for each, document in zip(slices, block, strict=True)
        ]

    waiting: deque[Future[list[_Encoded]]] = deque()
    with ThreadPoolExecutor(1, "encoding") as executor:
        for block in _blocks(documents):
            waiting.append(executor.submit(encode, block))
            while len(waiting) > _UNENCODED:
                yield waiting.popleft().result()
        for future in waiting:
            yield future.result()


def _blocks(documents: Iterator[_Read]) -> Iterator[list[_Read]]:
    block: list[_Read] = []
    characters = 0
    for document in documents:
        block.append(document)
        characters += len(document.text)
        if characters >= _BLOCK_CHARACTERS:
            yield block
            block, characters = [], 0
    if block:
        yield block


def _slices(text: str) -> list[str]:
    """Split a document after each sentence; the space before a sentence stays with it, as tokenizers need it."""
    ends = [end for _, end in sentence_spans(text)]
    return [text[begin:end] for begin, end in zip([0, *ends[:-1]], ends, strict=True)]


def _of_sentences(ids: list[list[int]], document: _Read) -> _Encoded:
    ends_S = np.cumsum([len(each) for each in ids if each], dtype=np.int64)
    ids_n = np.array([one for each in ids for one in each], dtype=np.uint32)
    content = document.text.encode(errors="surrogatepass")
    key = int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")
    return _Encoded(ids_n, ends_S, document.place, document.path, key)


def _write_array(path: Path, array: NDArray[np.generic]) -> str:
    """Write an array atomically; return the SHA-256 of its file."""
    with new_file(path, binary=True) as stream:
        np.save(stream, array)
    return checksum(path)


def _unfinished(folder: Path) -> dict[str, Any] | None:
    """Return the state of an unfinished run, or None; remove the files of incomplete shards."""
    path = folder / _STATE
    state = json.loads(path.read_text(encoding="utf-8")) if path.exists() else None
    whole = {entry["name"] for entry in state["manifest"]["shards"]} if state is not None else set()
    for array in folder.glob("*.npy"):
        if array.name.split(".")[0] not in whole:
            array.unlink()
    return state
