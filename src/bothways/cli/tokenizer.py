"""``bothways tokenizer train``: a vocabulary of your own texts."""

import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from bothways.choices import Format, TokenizerKind
from bothways.cli.options import TEXT, Columns, Flag, Names, PositiveInt, bad_usage, usage_error
from bothways.cli.terminal import counted, note, print_json
from bothways.progress import progress, reporting
from bothways.threads import choose_threads

if TYPE_CHECKING:
    from bothways.data import Document

EXAMPLE = """\
Plain text has one paragraph a line, with an empty line after each document;
rows of .jsonl, .csv, .tsv and .parquet are documents.

Examples:
  bothways tokenizer train --kind wordpiece --vocabulary 8000 \\
    --data texts.txt.gz --output tok/
  bothways tokenize "unbelievable" \\
    --compare tok/ sentence-transformers/all-MiniLM-L6-v2"""


class _Texts:
    """The texts of files; they can be read again."""

    def __init__(self, files: "list[Path]", text: tuple[str, ...], format_: Format | None) -> None:
        self._files, self._text, self._format = files, text, format_
        self.documents = 0

    def __iter__(self) -> Iterator[str]:
        self.documents = 0
        with progress("reading documents", None) as bar:
            for document in self._read():
                self.documents += 1
                bar.advance()
                yield document.text

    def _read(self) -> "Iterator[Document]":
        from bothways.data import read_documents

        for file in self._files:
            yield from read_documents(file, text=self._text, format=self._format)


def train(
    *,
    data: Names,
    output: Path,
    kind: TokenizerKind = "wordpiece",
    vocabulary: PositiveInt = 30_000,
    lowercase: Annotated[bool | None, Parameter(negative="--no-lowercase")] = None,
    text: Columns = TEXT,
    format: Format | None = None,  # noqa: A002 (the option's name)
    overwrite: Flag = False,
    json: Flag = False,
    quiet: Flag = False,
    threads: PositiveInt | None = None,
) -> None:
    """Train a tokenizer on raw texts.

    It serves to pre-train models; transformers opens it as well.

    Args:
        data: Files, or folders of them: .txt, .jsonl, .csv, .tsv (also .gz) or .parquet.
        output: Folder for the tokenizer.
        kind: wordpiece (as BERT and ELECTRA), bpe over bytes (RoBERTa, ModernBERT) or unigram (ALBERT, XLNet,
            DeBERTa-v3).
        vocabulary: Number of tokens, special ones included.
        lowercase: Lower-case texts and remove accents; by default wordpiece does and the others do not.
        text: Column of the texts; give it again to join several.
        format: Of the files, where their names do not say it.
        overwrite: Replace a tokenizer at the output.
        json: Print what was trained as one JSON object.
        quiet: Show no progress.
        threads: CPU threads. Default: as OMP_NUM_THREADS says, else one for each core that the process is granted.
    """
    from bothways.data import corpus_files
    from bothways.storage import check_folder_free, new_folder
    from bothways.text.training import check_vocabulary, train_tokenizer, write_trained_tokenizer

    choose_threads(threads)
    if not data:
        raise usage_error("--data needs at least one file or folder.")
    with bad_usage():
        check_vocabulary(kind, vocabulary)
    check_folder_free(output, overwrite=overwrite)
    texts = _Texts(list(corpus_files(data)), text, format)
    with reporting(False if quiet else None):
        trained = train_tokenizer(texts, kind, vocabulary, lowercase=lowercase)
        with new_folder(output, overwrite=overwrite) as folder:
            write_trained_tokenizer(trained, folder)
    tokens = trained.get_vocab_size()
    if json:
        print_json({"kind": kind, "vocabulary": tokens, "documents": texts.documents, "output": str(output)})
    elif not quiet:
        fewer = f" ({vocabulary:,} were asked for: the texts have no more)" if tokens < vocabulary else ""
        note(f"{tokens:,} tokens{fewer} from {counted(texts.documents, 'document')} in {output}")
        note(f"next: bothways tokenize {shlex.quote(str(output))} 'some words'")
