"""Exporting a checkpoint into a folder for another program."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import get_args

from bothways.checkpoints import Checkpoint, PretrainedEncoder, open_checkpoint
from bothways.checkpoints.exported import ROWS
from bothways.checkpoints.files import WEIGHTS, sha256_of, write_json
from bothways.checkpoints.hub import DESCRIPTION, ONNX_FILE
from bothways.checkpoints.pretrained import pretrained
from bothways.checkpoints.schema import OURS, Stored, label_settings
from bothways.checkpoints.sentence_transformers import GENERAL_FILE, is_cross_encoder, sentence_files
from bothways.choices import ExportFormat as ExportFormat
from bothways.choices import GoldenSource
from bothways.errors import InvalidInput, one_of
from bothways.export.answers import TaskRows, rows_of_task
from bothways.export.graph import OPSET, EncoderGraph, Port, check_onnx, require_packages, versions, write_onnx
from bothways.families import HeadName
from bothways.storage import FolderKind, check_folder_free, new_folder
from bothways.tasks.registry import write_golden_of
from bothways.text.files import TOKENIZER_FILE

_FORMATS: tuple[ExportFormat, ...] = get_args(ExportFormat)
_FORMAT_VERSION = 1
_EXPORT = FolderKind("an earlier export", frozenset({DESCRIPTION}))
# Entries of bothways.json that export.json omits: they describe its own files, or the training.
_OF_FILES = ("format_version", "checksums", "card", "conformal", "out_of_domain")


@dataclass(frozen=True, slots=True)
class Export:
    """The result of an export."""

    folder: Path
    format: ExportFormat
    heads: tuple[HeadName, ...]
    # The largest difference between the ONNX file's outputs and the model's, except at padding; None for safetensors.
    largest_difference: float | None


def export(
    name_or_path: str | Path,
    folder: str | Path,
    *,
    format: str,  # noqa: A002  (the option's name)
    head: str | None = None,
    dtype: str = "float32",
    overwrite: bool = False,
    golden: GoldenSource | None = "validation",
    revision: str | None = None,
    download: bool = False,
    allow_pickle: bool = False,
) -> Export:
    """Open a checkpoint and export it.

    Args:
        name_or_path: A folder, or a name such as ``sentence-transformers/all-MiniLM-L6-v2``.
        folder: The output folder; it is written completely or not at all.
        format: ``"onnx"`` writes the encoder, with the named head if any, as a graph for batches of all sizes,
            and its tokenizer, labels and a description. ``"safetensors"`` writes a checkpoint that transformers opens.
        head: The only head to export. Default: for safetensors, the heads that ``config.json`` names; for ONNX, none.
        dtype: Precision of the weights; ONNX files are written in float32.
        overwrite: Replace an earlier export at the output.
        golden: Inputs of the golden answers: those of the original model, else neutral ones; ``"neutral"``, or None for
            no golden answers. An ONNX export without a task has none.
        revision: The commit of a hub name. Default: the cached commit of ``main``.
        download: Allow a download from the hub.
        allow_pickle: Allow reading a ``.bin`` file, after a scan, if the checkpoint has no safetensors file.

    Raises:
        UnknownModel: The model is not found. Also raises everything that `bothways.load` raises.
        InvalidInput: The format is unknown, the family has no such head, or ``dtype`` is not float32 for ONNX.
        IncompatibleWeights: The checkpoint does not hold that head.
        MissingDependency: The extra ``onnx`` is not installed.
        ExportMismatch: The outputs of the ONNX file differ from the model's.
        OutputExists: The folder exists and ``overwrite`` is false, or it is not an earlier export.
        OutOfDisk: The disk is full; nothing was left behind.
    """
    chosen = _check(Path(folder), format, dtype, overwrite)
    checkpoint = open_checkpoint(name_or_path, revision=revision, download=download, allow_pickle=allow_pickle)
    held = checkpoint.family.architecture_heads(checkpoint.settings) if chosen == "safetensors" else ()
    heads = held if head is None else (checkpoint.family.head_name(head),)
    rows = rows_of_task(checkpoint, next(iter(heads), None)) if chosen == "onnx" else None
    model = (
        pretrained(checkpoint, heads=heads, device="cpu", dtype=dtype)
        if rows is None
        else _with(rows, checkpoint, heads)
    )
    model.check_full("export")
    with new_folder(folder, overwrite=overwrite, kind=_EXPORT) as new:
        if chosen == "onnx":
            difference: float | None = _write_onnx(new, checkpoint, model, rows)
        else:
            difference = None
            _write_safetensors(new, checkpoint, model, whole=heads == held)
        if chosen == "safetensors" or rows is not None:
            write_golden_of(new, checkpoint.folder, golden)
    return Export(Path(folder), chosen, heads, difference)


def _check(folder: Path, name: str, dtype: str, overwrite: bool) -> ExportFormat:
    found = one_of("format", name, _FORMATS)
    if found == "onnx":
        require_packages()
        if dtype != "float32":
            raise InvalidInput(f"ONNX files are written in float32, got dtype {dtype!r}: leave it out.")
    check_folder_free(folder, overwrite=overwrite, kind=_EXPORT)
    return found


def _with(rows: TaskRows, checkpoint: Checkpoint, heads: tuple[HeadName, ...]) -> PretrainedEncoder:
    # The head is shared with `rows`, so its weights are written once.
    return replace(rows.model, heads={name: rows.head.get(name) or checkpoint.build_head(name) for name in heads})


def _write_onnx(folder: Path, checkpoint: Checkpoint, model: PretrainedEncoder, rows: TaskRows | None) -> float:
    head = next(iter(model.heads), None)
    labels = () if head is None else model.labels_of(head)
    own = (None, 0) if rows is None else (rows.module, rows.stored.width)
    graph = EncoderGraph(model.encoder, None if head is None else model.heads[head], *own).eval()
    described = {
        "format": "onnx",
        "opset": OPSET,
        "model": _title(checkpoint),
        "revision": checkpoint.revision,
        "model_type": model.family.model_type,
        "head": head,
        "labels": list(labels),
        "max_length": model.config.max_length,
    }
    metadata = {
        name: value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        for name, value in described.items()
    }
    write_onnx(graph, folder / ONNX_FILE, model.config.max_length, metadata)
    shapes, difference = check_onnx(folder / ONNX_FILE, model, graph, head)
    write_json(folder / "config.json", {**model.settings, **(label_settings(labels) if labels else {})})
    model.tokenizer.save(folder, types=model.config.reads_types)
    (folder / TOKENIZER_FILE).write_text(model.tokenizer.to_json(), encoding="utf-8")
    if rows is not None:
        _write_beside(folder, checkpoint, rows)
    _describe(
        folder,
        {
            **described,
            ROWS: None if rows is None else rows.stored.model_dump(),
            "inputs": [_described(port, "int64") for port in graph.inputs()],
            "outputs": [_described(port, "float32") for port in graph.outputs()],
            "versions": versions(),
            "check": {"input_shapes": shapes, "largest_difference": difference},
            # For bothways itself: calibration, pooling, lengths.
            "bothways": {name: value for name, value in checkpoint.extras.items() if name not in _OF_FILES},
        },
    )
    return difference


def _write_beside(folder: Path, checkpoint: Checkpoint, rows: TaskRows) -> None:
    """Write ``bothways.json`` and the array files that it lists, and the settings of an embedder."""
    copied = _files_beside(checkpoint.extras)
    if rows.stored.head is None:
        copied += sentence_files(checkpoint.folder)
    elif is_cross_encoder(checkpoint.folder, {}):  # the file says that the head reads pairs
        copied.append(GENERAL_FILE)
    for name in copied:
        (folder / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(checkpoint.folder / name, folder / name)
    if checkpoint.extras:
        known = Stored.of(checkpoint.extras).checksums
        write_json(
            folder / OURS, {**checkpoint.extras, "checksums": {name: known[name] for name in copied if name in known}}
        )


def _write_safetensors(folder: Path, checkpoint: Checkpoint, model: PretrainedEncoder, *, whole: bool) -> None:
    # The extras describe the heads that the checkpoint was trained with; they would be wrong for other heads.
    extras = checkpoint.extras if whole and checkpoint.extras else None
    for name in _files_beside(extras or {}):
        shutil.copyfile(checkpoint.folder / name, folder / name)
    model.write(folder, extras)
    described = {"format": "safetensors", "model": _title(checkpoint), "revision": checkpoint.revision}
    _describe(folder, {**described, "heads": list(model.heads), "versions": {"bothways": version("bothways")}})


def _files_beside(extras: Mapping[str, object]) -> list[str]:
    """Return the files beside the weights that ``bothways.json`` lists."""
    return [name for name in Stored.of(extras).checksums if name == Path(name).name and name != WEIGHTS]


def _describe(folder: Path, content: Mapping[str, object]) -> None:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    checksums = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    write_json(folder / DESCRIPTION, {"format_version": _FORMAT_VERSION, **content, "checksums": checksums})


def _described(port: Port, dtype: str) -> dict[str, object]:
    return {"name": port.name, "dtype": dtype, "shape": list(port.shape)}


def _title(checkpoint: Checkpoint) -> str:
    """Return the name of the checkpoint; for a folder only its last part, since its path is private."""
    return Path(checkpoint.name).name if Path(checkpoint.name).is_dir() else checkpoint.name
