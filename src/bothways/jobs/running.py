"""Running a job over files, going on with one that was interrupted, and telling its progress."""

import hashlib
import json
import re
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Literal

from bothways.checkpoints.files import sha256_of
from bothways.checkpoints.hub import locate
from bothways.data.formats import FileSettings
from bothways.errors import InvalidInput, OutputExists, one_of
from bothways.jobs import files
from bothways.jobs.blocks import Block, InputFile, blocks_of, format_of, plan
from bothways.jobs.files import joined
from bothways.jobs.local import computed_here
from bothways.jobs.locking import BEAT, held_by_one, is_held
from bothways.jobs.manifest import (
    HEADER,
    INPUTS,
    PARTS,
    SEGMENTS,
    BlockRecord,
    JobHeader,
    JobManifest,
    header_of,
    part_name,
    read_header,
    read_inputs,
)
from bothways.jobs.on_ray import RayPool
from bothways.jobs.outputs import SUFFIXES, check_format
from bothways.jobs.reading import Rejected, lines_above
from bothways.jobs.work import Work, identity_of
from bothways.jobs.worker import WorkerTask
from bothways.progress import stage
from bothways.storage import remove_leftovers
from bothways.threads import granted_cores

OnError = Literal["reject", "stop"]
Executor = Callable[[WorkerTask, Iterator[Block]], Iterator[list[BlockRecord]]]

REJECTED, INDEX = "rejected.jsonl", "index.json"
# A job is stopped if so many rows were rejected and none was computed.
_HOPELESS = 1_000
# The speed is that of the last so many seconds.
_RECENT = 300.0


@dataclass(frozen=True, slots=True)
class JobStatus:
    """The progress of a job.

    Attributes:
        state: ``complete``, ``running``, or ``interrupted``.
        verb: What is computed.
        model: The folder or name of the model.
        blocks: Number of blocks.
        blocks_done: Number of finished blocks.
        rows: Rows of the output so far.
        rejected: Rows that were rejected so far.
        rows_per_second: Rows per second of the last minutes; None if unknown.
        seconds_left: Seconds left at that speed; None if unknown.
        checksum: SHA-256 over all output files in order; None unless the job is complete.
    """

    state: Literal["complete", "running", "interrupted"]
    verb: str
    model: str
    blocks: int
    blocks_done: int
    rows: int
    rejected: int
    rows_per_second: float | None
    seconds_left: float | None
    checksum: str | None


def run(
    work: Work,
    data: str | Path | Sequence[str | Path],
    output: str | Path,
    *,
    output_format: str | None = None,
    on_error: OnError = "reject",
    settings: FileSettings | None = None,
    block_bytes: int | None = None,
    workers: int | tuple[int, int] | None = None,
    threads: int = 1,
    ray: str | None = None,
    gpus_per_worker: float | None = None,
    show_progress: bool | None = None,
) -> JobStatus:
    """Compute something for each row of files, block by block; called again, go on with the blocks that are missing.

    The output has the same bytes for any number of workers and after any interruption.

    Args:
        work: What to compute: `Embed`, `Predict` or `FillMasks`.
        data: Files, folders, patterns such as ``corpus/*.jsonl.gz``, or URLs of an object store.
        output: Folder or URL of the output.
        output_format: ``npy``, ``parquet`` or ``jsonl``. Default: ``npy`` for vectors, else ``jsonl``.
        on_error: Reject rows that cannot be read or computed, or stop at the first one.
        settings: Format and encoding of the files, where they are not the usual ones.
        block_bytes: The size of a block of lines. Default: a 256th of the data, from 64 KiB to 1 MiB.
        workers: Number of processes; on Ray also the fewest and the most. Default: one for each GPU, or for each core.
        threads: Compute threads of each process.
        ray: Let Ray compute: ``local``, ``auto`` or ``ray://host:port``, see `bothways.jobs.on_ray.RayPool`.
        gpus_per_worker: GPUs of each process on Ray. Default: one if the cluster has any.
        show_progress: Force the progress bar on or off.

    Raises:
        InvalidInput: The output holds another job, or is in use; the data cannot be read or has changed; or a row
            cannot be computed, and ``on_error`` is ``stop``.
        WorkerLost: Workers die of the same block again and again.
        OutOfDisk: The disk is full. The same call goes on once there is room.
    """
    one_of("on_error", on_error, ("reject", "stop"))
    _check_counts(block_bytes, workers, threads)
    folder, format_ = str(output).removeprefix("file://"), check_format(output_format, work.verb)
    compute = _executor(workers, threads, ray, gpus_per_worker)
    with files.store_errors(), held_by_one(folder):
        before = read_header(folder)
        inputs = _inputs_of([data] if isinstance(data, str | Path) else data, folder, before, settings, block_bytes)
        asked = header_of(_identity(work, threads), {"format": format_, "block_bytes": block_bytes}, inputs)
        manifest = _begun(folder, before, asked, inputs, SUFFIXES[format_])
        task = WorkerTask(work, folder, format_, asked.digest)
        try:
            with stage(work.verb, asked.blocks, done=len(manifest.records), show=show_progress) as bar:
                _compute_missing(manifest, compute, task, on_error, bar.advance)
        except Exception:
            _write_rejected(manifest)
            raise
        _write_rejected(manifest)
        _check_not_all(manifest)
        _write_index(manifest, SUFFIXES[format_])
    return _status_of(manifest)


def _check_counts(block_bytes: int | None, workers: int | tuple[int, int] | None, threads: int) -> None:
    for name, value in (("block_bytes", block_bytes), ("workers", workers), ("threads", threads)):
        if isinstance(value, int) and value < 1:
            raise InvalidInput(f"{name}: expected a number above 0, got {value}.")


def _inputs_of(
    data: Sequence[str | Path],
    folder: str,
    before: JobHeader | None,
    settings: FileSettings | None,
    block_bytes: int | None,
) -> list[InputFile]:
    """Return the files of the data with their cuts, which are those of the job ``before`` if its files are the same.

    Files of the output are left out.
    """
    chosen = settings or FileSettings(format=None, encoding=None)
    output = joined(_absolute(folder), "").rstrip("/") + "/"
    found = files.found_files([_absolute(str(each)) for each in data])
    others = [each for each in found if not each.url.startswith(output)]
    # To cut a .csv file is to read it.
    if before is not None and before.output.get("block_bytes") == block_bytes:
        known = read_inputs(folder, before)
        alike = [(each.state, each.format, each.encoding) for each in known]
        if alike == [(each, format_of(each, chosen), chosen["encoding"]) for each in others]:
            return known
    return list(plan(others, chosen, block_bytes))


def _compute_missing(
    manifest: JobManifest, compute: Executor, task: WorkerTask, on_error: OnError, advance: Callable[[int, str], object]
) -> None:
    """Compute and enter the blocks that are missing; no worker is started if there are none."""
    missing = (block for block in blocks_of(manifest.inputs) if block.number not in manifest.records)
    if len(manifest.records) == manifest.header.blocks:
        return
    with ExitStack() as ended:
        computed = compute(task, missing)
        if isinstance(computed, Generator):
            ended.callback(computed.close)  # which ends its workers
        for records in computed:
            _check(manifest, records, on_error)
            manifest.enter(records)
            advance(len(records), f"{manifest.rejected:,} rows rejected" if manifest.rejected else "")


def _executor(workers: int | tuple[int, int] | None, threads: int, ray: str | None, gpus: float | None) -> Executor:
    if ray is not None:
        return RayPool(ray, (workers, workers) if isinstance(workers, int) else workers, threads, gpus)
    if isinstance(workers, tuple) or gpus is not None:
        name = "workers" if isinstance(workers, tuple) else "gpus_per_worker"
        raise InvalidInput(f"{name}: a range of workers, and GPUs for each, are for Ray: give ray= (--ray) too.")
    return lambda task, blocks: computed_here(task, blocks, workers, threads, granted_cores())


def _absolute(path: str) -> str:
    if files.is_remote(path):
        return path
    local = Path(path.removeprefix("file://")).absolute()
    # The name of a file says its format, whatever it is a link to.
    return str(local.resolve() if local.is_dir() else local.parent.resolve() / local.name)


def _identity(chosen: Work, threads: int) -> dict[str, object]:
    located = locate(
        chosen.model,
        **{name: chosen.opening[name] for name in ("revision", "download", "allow_pickle") if name in chosen.opening},
    )
    return {**identity_of(chosen, _digest_of(located.folder)), "threads": threads}


def _digest_of(folder: Path) -> str:
    """Return the SHA-256 of all files of a model but its pages for people."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix != ".md" and not path.name.startswith("."):
            digest.update(f"{path.relative_to(folder).as_posix()} {sha256_of(path.resolve())}\n".encode())
    return digest.hexdigest()


def _begun(
    folder: str, before: JobHeader | None, asked: JobHeader, inputs: Sequence[InputFile], suffix: str
) -> JobManifest:
    """Return the manifest to go on with, or a new one."""
    if before is not None and before != asked and _is_without_rows(folder):
        files.remove(joined(folder, SEGMENTS))
        return JobManifest.create(folder, asked, inputs)
    if before is not None:
        before.check_same(asked, folder, inputs)
        _remove_leftovers(folder, r"[\w.-]+")
        return JobManifest.open(folder).without_lost(suffix)
    _remove_leftovers(folder, "|".join(map(re.escape, (INPUTS, HEADER))))  # of a process that was killed at once
    if others := set(files.sizes(folder)) - {INPUTS, BEAT}:
        raise OutputExists(
            f"the output folder {folder!r} holds {min(others)!r} and no job. Choose another path, or an empty folder."
        )
    return JobManifest.create(folder, asked, inputs)


def _is_without_rows(folder: str) -> bool:
    """Return True if nothing came of a job: its model could not be opened, say, or no row has the column."""
    return not any(each.rows for each in JobManifest.open(folder).records.values())


def _remove_leftovers(folder: str, names: str) -> None:
    """Remove what killed processes left behind; ``names`` is a regular expression for the files."""
    if not files.is_remote(folder):
        for each in (folder, joined(folder, PARTS), joined(folder, SEGMENTS)):
            remove_leftovers(Path(each), names)


def _check(manifest: JobManifest, records: Sequence[BlockRecord], on_error: OnError) -> None:
    """Raise InvalidInput for a rejected row if the job is to stop at one, or if nothing but such rows has come."""
    bad = next((each for each in records if each.rejected), None)
    if bad is None:
        return
    if on_error == "stop":
        raise InvalidInput(
            f"{_first_reason(manifest, bad)} To leave out such rows: on_error='reject' (--on-error reject)."
        )
    rejected = manifest.rejected + sum(len(each.rejected) for each in records)
    if rejected >= _HOPELESS and not any(each.rows for each in (*manifest.records.values(), *records)):
        first = next(each for each in (*manifest.in_order, *records) if each.rejected)
        raise InvalidInput(f"all of the first {rejected:,} rows were rejected: {_first_reason(manifest, first)}")


def _check_not_all(manifest: JobManifest) -> None:
    records = manifest.in_order
    if any(each.rows for each in records):
        return
    bad = next((each for each in records if each.rejected), None)
    if bad is not None:
        raise InvalidInput(f"every row was rejected: {_first_reason(manifest, bad)}")
    if manifest.header.work.get("on_empty", "error") == "error":
        count = manifest.header.input_files
        raise InvalidInput(f"the data has no rows: all of its {count:,} files are empty. Name files with rows.")


def _first_reason(manifest: JobManifest, record: BlockRecord) -> str:
    block = next(islice(blocks_of(manifest.inputs), record.number, None))
    found = next(_rejected_of(block.file.state.url, [(block, record)]))
    place = "" if found.line is None else f", {'row' if block.file.unit == 'rows' else 'line'} {found.line}"
    return f"{found.file!r}{place}: {found.reason}"


def _rejected_of(url: str, found: Sequence[tuple[Block, BlockRecord]]) -> Iterator[Rejected]:
    """Yield the rejected rows of some blocks of a file, with their lines in the file."""
    above = lines_above(url, [block for block, _ in found])
    for block, record in found:
        for line, reason in record.rejected:
            yield Rejected(url, None if line is None else line + above[block.number], reason)


def _write_rejected(manifest: JobManifest) -> None:
    """Write the rejected rows so far, in the order of the data."""
    bad = [
        (block, record)
        for block in blocks_of(manifest.inputs)
        if (record := manifest.records.get(block.number)) and record.rejected
    ]
    url = joined(manifest.folder, REJECTED)
    if not bad:
        files.remove(url)
        return
    lines = (
        json.dumps(rejected._asdict(), ensure_ascii=False) + "\n"
        for file, found in groupby(bad, key=lambda each: each[0].file.state.url)
        for rejected in _rejected_of(file, list(found))
    )
    with files.written(url) as path, path.open("w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.writelines(lines)


def _write_index(manifest: JobManifest, suffix: str) -> None:
    """Write the list of all output files in order, with their rows and checksums."""
    parts = [
        {"file": f"{PARTS}/{part_name(each.number, suffix)}", "rows": each.rows, "sha256": each.sha256}
        for each in manifest.in_order
        if each.size
    ]
    rows = sum(each.rows for each in manifest.records.values())
    known = {"rows": rows, "checksum": manifest.checksum(), "parts": parts}
    files.write(joined(manifest.folder, INDEX), json.dumps(known, indent=1).encode() + b"\n")


def status(output: str | Path) -> JobStatus:
    """Return the progress of the job in an output folder.

    Raises:
        InvalidInput: The folder holds no job.
        CorruptCheckpoint: The manifest is damaged.
    """
    with files.store_errors():
        return _status_of(JobManifest.open(str(output).removeprefix("file://")))


def _status_of(manifest: JobManifest) -> JobStatus:
    records, blocks = list(manifest.records.values()), manifest.header.blocks
    complete = len(records) == blocks
    running = not complete and is_held(manifest.folder)
    rows = sum(each.rows for each in records)
    speed, left = _speed(records, blocks) if running else (None, None)
    verb, model = (str(manifest.header.work.get(name)) for name in ("verb", "model"))
    return JobStatus(
        state="complete" if complete else "running" if running else "interrupted",
        verb=verb,
        model=model,
        blocks=blocks,
        blocks_done=len(records),
        rows=rows,
        rejected=manifest.rejected,
        rows_per_second=speed,
        seconds_left=left,
        checksum=manifest.checksum() if complete else None,
    )


def _speed(records: Sequence[BlockRecord], blocks: int) -> tuple[float | None, float | None]:
    """Return rows per second of the last blocks, and the seconds that all others take at their rate."""
    now = time.time()
    recent = [each for each in records if each.ended > now - _RECENT]
    if not recent:
        return None, None
    seconds = now - min(each.ended - each.seconds for each in recent)
    return sum(each.rows for each in recent) / seconds, (blocks - len(records)) * seconds / len(recent)
