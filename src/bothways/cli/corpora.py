"""Corpora of raw text, as the commands that learn from them read them."""

import hashlib
import json as json_of
from pathlib import Path
from typing import TYPE_CHECKING

from bothways.choices import Format
from bothways.cli.terminal import counted, note

if TYPE_CHECKING:
    from bothways.data.shards import TokenCorpus
    from bothways.text import TextTokenizer

CORPUS = """\
Plain text has one paragraph a line, with an empty line after each document;
rows of .jsonl, .csv, .tsv and .parquet are documents."""


def corpus_of(
    data: "list[str] | tuple[str, ...]",
    output: Path,
    tokenizer: "TextTokenizer",
    text: tuple[str, ...],
    format_: Format | None,
    *,
    quiet: bool,
) -> "TokenCorpus":
    """Return the shards of a corpus: those that are given, those of an earlier run over the same files, or new ones."""
    from bothways.data import corpus_files
    from bothways.data.shards import MANIFEST, ShardSource, TokenCorpus, write_shards
    from bothways.training.workers import current_workers

    if len(data) == 1 and (Path(data[0]) / MANIFEST).is_file():
        return TokenCorpus.open(data[0])
    files = [(str(each.absolute()), each.stat().st_size, each.stat().st_mtime_ns) for each in corpus_files(data)]
    made = files, text, format_, tokenizer.encoding_digest
    key = hashlib.sha256(json_of.dumps(made).encode()).hexdigest()[:12]
    folder = output.with_name(f"{output.name}.shards") / key
    workers = current_workers()
    if workers.rank == 0 and not (folder / MANIFEST).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        source = ShardSource(data, text=text, format=format_)
        manifest = write_shards(source, folder, tokenizer, show_progress=False if quiet else None)
        if not quiet:
            note(f"{manifest.tokens:,} tokens of {counted(manifest.documents, 'document')} are in {folder}")
    workers.gather(workers.rank)  # the first process writes, and the others wait
    return TokenCorpus.open(folder)
