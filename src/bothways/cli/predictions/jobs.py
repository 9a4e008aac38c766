"""Jobs over many files: ``--output-dir`` of ``embed``, ``predict`` and ``fill-mask``, and ``bothways job status``."""

import re
import shlex
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Literal

from cyclopts import App, Parameter

from bothways import jobs
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note, print_json, print_table
from bothways.data.formats import FileSettings
from bothways.progress import duration, figure

if TYPE_CHECKING:
    from bothways.jobs.work import Work

_STATUS_EXAMPLE = """\
Example:
  bothways job status vectors/ --json"""


def _worker_count(text: str | None) -> int | tuple[int, int] | None:
    """Return the number of workers for 4, the fewest and the most for 2:8."""
    if text is None:
        return None
    number = re.fullmatch(r"([1-9]\d*)(?::([1-9]\d*))?", text)
    least, most = (0, 0) if number is None else (int(number[1]), int(number[2] or number[1]))
    if not 0 < least <= most:
        raise opt.usage_error(f"expected a number such as 4, or MIN:MAX such as 2:8, for --workers, got {text!r}.")
    return least if least == most else (least, most)


@Parameter(name="*", group="Many files")
@dataclass(frozen=True, slots=True)
class JobOptions:
    """Options for jobs over many files."""

    output_dir: str | None = None
    """Folder or URL (s3://...) for the results of many files, instead of --output. The data may then be a folder, a
    pattern in quotes, or URLs. The same command goes on with what is missing; 'bothways job status' shows how far it
    is."""
    output_format: Literal["npy", "parquet", "jsonl"] | None = None
    """Format of the results. Default: npy for vectors, else jsonl."""
    on_error: Literal["reject", "stop"] = "reject"
    """Rows that cannot be read or computed: list them in rejected.jsonl, or stop at the first one."""
    workers: str | None = None
    """Number of processes, each with --threads threads (default: 1), or MIN:MAX on Ray. Default: one for each GPU or
    core."""
    ray: str | None = None
    """Let Ray compute: local (on this machine), auto (the cluster that this machine belongs to), or ray://HOST:PORT."""
    gpus_per_worker: opt.PositiveFloat | None = None
    """GPUs of each process on Ray. Default: one if the cluster has any."""
    block_bytes: opt.PositiveInt | None = None
    """Size of a block of lines in bytes; a block is computed again if it was interrupted. Default: a 256th of the data,
    from 64 KiB to 1 MiB."""


NO_JOB = JobOptions()


def run_job(
    work: "Work",
    given: JobOptions,
    data: str | tuple[str, ...] | None,
    file: opt.FileOptions,
    opening: opt.ModelOptions,
    output: str | None,
) -> None:
    """Run a job over files, or go on with it, and note what came of it."""
    if output not in (None, "-"):
        raise opt.usage_error("expected --output or --output-dir, got both: drop one.")
    named: tuple[str, ...] = (data,) if isinstance(data, str) else data or ()
    if not named or "-" in named:
        raise opt.usage_error("--output-dir needs --data with files, a folder, a pattern or URLs.")
    assert given.output_dir is not None
    settings: FileSettings = inputs.file_settings(named[0], file)
    workers = _worker_count(given.workers)
    if given.ray is None and (isinstance(workers, tuple) or given.gpus_per_worker is not None):
        raise opt.usage_error("a range of --workers, and --gpus-per-worker, are for Ray: give --ray too.")
    with opt.as_usage_error():
        jobs.check_format(given.output_format, work.verb)
    done = jobs.run(
        work,
        named,
        given.output_dir,
        output_format=given.output_format,
        on_error=given.on_error,
        settings=settings,
        block_bytes=given.block_bytes,
        workers=workers,
        threads=opening.threads or 1,
        ray=given.ray,
        gpus_per_worker=given.gpus_per_worker,
    )
    note(f"{counted(done.rows, 'row')} in {counted(done.blocks, 'block')} in {given.output_dir}")
    if done.rejected:
        listed = shlex.quote(f"{given.output_dir.rstrip('/')}/rejected.jsonl")
        note(f"{counted(done.rejected, 'row')} rejected, with the reasons: {listed}", always=True)


@opt.command(_STATUS_EXAMPLE)
def status(output: str, /, *, json: opt.Json = False) -> None:
    """Show a job's progress, speed and rejected rows.

    Args:
        output: The --output-dir of the job.
    """
    found = jobs.status(output)
    if json:
        print_json(asdict(found))
        return
    share = found.blocks_done / found.blocks if found.blocks else 1.0
    facts = {
        "state": found.state,
        "work": f"{found.verb} with {found.model}",
        "blocks": f"{found.blocks_done:,} of {found.blocks:,} ({share:.0%})",
        "rows": f"{found.rows:,}",
        "rejected rows": f"{found.rejected:,}",
        "speed": None if found.rows_per_second is None else f"{figure(found.rows_per_second, 1)} rows a second",
        "time left": None if found.seconds_left is None else duration(found.seconds_left),
        "checksum": found.checksum,
    }
    print_table(("<", "~"), [(name, str(fact)) for name, fact in facts.items() if fact is not None], header=False)


job = App(name="job", help="Follow jobs over many files, which --output-dir starts.")
job.command(status)
