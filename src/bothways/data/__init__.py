"""Rows in and out: JSON Lines, CSV, TSV, Parquet and plain text, as streams; JSON documents (SQuAD's too) as a whole.

`sources` reads files and tables, `corpus` documents of raw text, `batches` the arguments of a call, `columns` checks
values, `output` writes; `lines`, `formats`, `documents`, `parquet` and `tables` are what they stand on.

The names are imported when they are first used (PEP 562), so that a start loads only what it needs.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.data.batches import as_batch, labelled_rows
    from bothways.data.columns import Inputs, Joined, Paired, class_label, label_set, number, text_at, value_at
    from bothways.data.corpus import Document, corpus_files, read_documents
    from bothways.data.formats import FORMATS, Format
    from bothways.data.judgments import Judgments, read_judgments
    from bothways.data.output import OUTPUT_FORMATS, OutputFormat, output_format, write_rows
    from bothways.data.row import Row
    from bothways.data.sources import Example, Source, read_examples, read_rows, read_texts
    from bothways.data.tables import DataFrameLike, items_of
    from bothways.data.windows import WindowStore
    from bothways.data.words import TaggedRow, given_words, read_tagged, words_at

__all__ = [
    "FORMATS",
    "OUTPUT_FORMATS",
    "DataFrameLike",
    "Document",
    "Example",
    "Format",
    "Inputs",
    "Joined",
    "Judgments",
    "OutputFormat",
    "Paired",
    "Row",
    "Source",
    "TaggedRow",
    "WindowStore",
    "as_batch",
    "class_label",
    "corpus_files",
    "given_words",
    "items_of",
    "label_set",
    "labelled_rows",
    "number",
    "output_format",
    "read_documents",
    "read_examples",
    "read_judgments",
    "read_rows",
    "read_tagged",
    "read_texts",
    "text_at",
    "value_at",
    "words_at",
    "write_rows",
]

_MODULES = {
    "batches": ("as_batch", "labelled_rows"),
    "columns": ("Inputs", "Joined", "Paired", "class_label", "label_set", "number", "text_at", "value_at"),
    "corpus": ("Document", "corpus_files", "read_documents"),
    "formats": ("FORMATS", "Format"),
    "judgments": ("Judgments", "read_judgments"),
    "output": ("OUTPUT_FORMATS", "OutputFormat", "output_format", "write_rows"),
    "row": ("Row",),
    "sources": ("Example", "Source", "read_examples", "read_rows", "read_texts"),
    "tables": ("DataFrameLike", "items_of"),
    "windows": ("WindowStore",),
    "words": ("TaggedRow", "given_words", "read_tagged", "words_at"),
}
_HOMES = {name: f"{__name__}.{module}" for module, names in _MODULES.items() for name in names}

__getattr__ = loader(__name__, _HOMES)
