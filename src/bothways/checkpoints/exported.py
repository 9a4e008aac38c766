"""Exported models: an ONNX graph with the settings of its task. This module does not load torch.

Besides the outputs for other programs, the graph has an output ``rows`` for this package: for each window, the values
from which this package computes predictions. ``export.json`` describes this output, and has a checksum for every file.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from bothways.checkpoints.files import read_json, verify_checksums
from bothways.checkpoints.hub import DESCRIPTION, ONNX_FILE, LocatedModel
from bothways.checkpoints.schema import OURS, Extras, Stored, StoredGraph
from bothways.checkpoints.sentence_transformers import tokenizer_of
from bothways.encoder.config import EncoderConfig
from bothways.errors import CorruptCheckpoint, NotFitted
from bothways.families import Family, family_in
from bothways.text import TextTokenizer

ROWS = "rows"
"""Name of the graph's output for this package, and of the description of this output in ``export.json``."""


@dataclass(frozen=True, slots=True)
class ExportedModel:
    """An exported model with verified checksums; ``extras`` is the content of ``bothways.json``, if it has one."""

    folder: Path
    name: str
    settings: dict[str, object]
    family: Family
    config: EncoderConfig
    tokenizer: TextTokenizer
    extras: Extras
    rows: StoredGraph
    checksum: str

    @property
    def graph(self) -> Path:
        """The graph's file."""
        return self.folder / ONNX_FILE


def open_exported(located: LocatedModel) -> ExportedModel:
    """Open an exported model."""
    folder = located.folder
    described = read_json(folder / DESCRIPTION)
    checksums = described.get("checksums")
    if not isinstance(checksums, dict) or ONNX_FILE not in checksums:
        raise CorruptCheckpoint(f"{str(folder / DESCRIPTION)!r} lacks the checksums of the files. Export it again.")
    for name in checksums:
        if not isinstance(name, str) or Path(name).is_absolute() or ".." in Path(name).parts:
            raise CorruptCheckpoint(f"{str(folder / DESCRIPTION)!r} names {name!r}, which is not a file in its folder.")
    small = {name: value for name, value in checksums.items() if not name.startswith(ONNX_FILE)}
    verify_checksums(folder, small)
    with ThreadPoolExecutor(1, thread_name_prefix="checksum") as pool:
        # The graph's checksum takes about as long as reading everything else, so both are done at once.
        checked = pool.submit(verify_checksums, folder, {name: checksums[name] for name in checksums.keys() - small})
        found = _opened(located, described, checksums)
        checked.result()
    return found


def _opened(located: LocatedModel, described: Mapping[str, object], checksums: Mapping[str, str]) -> ExportedModel:
    folder = located.folder
    rows = _rows(described.get(ROWS), located.name, folder)
    settings = read_json(folder / "config.json")
    family = family_in(settings)
    config = family.config(settings)
    extras = read_json(folder / OURS) if (folder / OURS).is_file() else {}
    Stored.of(extras)
    tokenizer = tokenizer_of(folder, family)
    tokenizer.check_vocabulary(config.vocabulary, config.embedding.types)
    name, checksum = located.name, checksums[ONNX_FILE]
    return ExportedModel(folder, name, settings, family, config, tokenizer, extras, rows, checksum)


def _rows(described: object, name: str, folder: Path) -> StoredGraph:
    if described is None:
        raise NotFitted(
            f"{name!r} is an ONNX export that bothways cannot predict with: its model had no task, "
            "its head belongs to another task, or an earlier version wrote it. Export a trained model again."
        )
    try:
        return StoredGraph.model_validate(described)
    except ValidationError as error:
        raise CorruptCheckpoint(
            f"{str(folder / DESCRIPTION)!r} must describe the output {ROWS!r}, but it holds {described!r:.200}. "
            "Export the model again."
        ) from error
