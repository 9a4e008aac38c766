"""Jobs over many files: blocks that survive every interruption, on one machine or on Ray.

`run` cuts files into blocks (`blocks`), lets workers (`local`, `on_ray`) compute them (`worker`, `work`, `outputs`),
and enters what is finished in the `manifest`. `files` reads and writes paths and URLs alike.
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.jobs.outputs import check_format
    from bothways.jobs.running import JobStatus, run, status
    from bothways.jobs.work import Embed, FillMasks, Predict

__all__ = ["Embed", "FillMasks", "JobStatus", "Predict", "check_format", "run", "status"]

_MODULES = {
    "outputs": ("check_format",),
    "running": ("JobStatus", "run", "status"),
    "work": ("Embed", "FillMasks", "Predict"),
}
__getattr__ = loader(__name__, _MODULES)
