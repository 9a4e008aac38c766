"""Reading and writing rows: JSON Lines, CSV, TSV, Parquet and plain text as streams, JSON documents as a whole.

`sources` reads files and tables, `corpus` reads documents of raw text, `tables` converts the arguments of a call,
`columns` checks values, `labels` says what labels mean, `output` writes rows, and `formats`, `conll` and `documents`
parse.

The names are imported when they are first used (PEP 562), so that a program loads only what it needs.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.data.columns import Row, text_at, value_at, with_gaps, with_text
    from bothways.data.corpus import Document, corpus_files, read_documents
    from bothways.data.formats import Format
    from bothways.data.judgments import Judgments, read_judgments
    from bothways.data.label_rows import RowsWithoutLabel, class_label
    from bothways.data.labels import label_set, number
    from bothways.data.output import OutputFormat, output_format, write_rows
    from bothways.data.sources import (
        Example,
        Source,
        TaggedRow,
        read_examples,
        read_rows,
        read_tagged,
    )
    from bothways.data.tables import as_batch, labelled_rows
    from bothways.data.windows import WindowStore

__all__ = [
    "Document",
    "Example",
    "Format",
    "Judgments",
    "OutputFormat",
    "Row",
    "RowsWithoutLabel",
    "Source",
    "TaggedRow",
    "WindowStore",
    "as_batch",
    "class_label",
    "corpus_files",
    "label_set",
    "labelled_rows",
    "number",
    "output_format",
    "read_documents",
    "read_examples",
    "read_judgments",
    "read_rows",
    "read_tagged",
    "text_at",
    "value_at",
    "with_gaps",
    "with_text",
    "write_rows",
]

_MODULES = {
    "columns": ["Row", "text_at", "value_at", "with_gaps", "with_text"],
    "corpus": ["Document", "corpus_files", "read_documents"],
    "formats": ["Format"],
    "judgments": ["Judgments", "read_judgments"],
    "label_rows": ["RowsWithoutLabel", "class_label"],
    "labels": ["label_set", "number"],
    "output": ["OutputFormat", "output_format", "write_rows"],
    "sources": ["Example", "Source", "TaggedRow", "read_examples", "read_rows", "read_tagged"],
    "tables": ["as_batch", "labelled_rows"],
    "windows": ["WindowStore"],
}
__getattr__ = loader(__name__, _MODULES)
