"""CPU threads of torch: their number, how they wait for work, and what happens to them in a fork.

Every thread that runs parallel code gets its own pool of OpenMP threads. A fork copies the state of the forking
thread's pool but none of its threads, and GNU's OpenMP then waits forever in the child for threads that do not exist.
Loading a model therefore starts no pool, and a fork ends the forking thread's pools first: both processes start new
ones, with the same number of threads, when they need them.

OpenMP reads its variables once, when torch is loaded. So a finder of modules, which finds none, sets them when torch is
about to be imported, by this package or by its user. If torch was imported before this package, the number of threads
is set when the first model is opened, and a warning says if its threads spin on busy cores.
"""

import contextlib
import ctypes
import itertools
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath

from bothways.errors import ThreadsSpin

# Variables for the number of threads; torch asks MKL, and MKL asks OpenMP.
_NUMBER = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
# Variables for how long a waiting thread keeps its core busy.
_WAITING = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME"}
_SOFT_PAUSE = 1  # omp_pause_soft


def granted_cores(root: Path = Path("/")) -> int:
    """Return the number of cores this process may use: its affinity, limited by the CPU quotas of its cgroups.

    Quotas are rounded up. ``root``, here and in the functions below, is the folder that holds ``proc`` and ``sys``.
    """
    return max(1, min([_cores(), *(math.ceil(quota) for quota in _quotas(root))]))


def choose_threads(threads: int | None = None) -> None:
    """Set the number of threads for libraries that are loaded later, and how these threads wait for each other.

    Called without a number whenever torch is about to be imported.

    A waiting thread spins for a while, which is fastest if each thread has its own core. If other processes share the
    cores, a spinning thread takes the core from the thread that it waits for, so waiting threads sleep instead.
    Existing environment variables are kept, unless ``threads`` is given.

    Args:
        threads: Number of threads. Default: `granted_cores`.
    """
    if threads is not None:
        os.environ.update(dict.fromkeys((*_NUMBER, "RAYON_NUM_THREADS"), str(threads)))
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(threads)
    elif not os.environ.keys() & set(_NUMBER) and granted_cores() < _cores():
        os.environ["OMP_NUM_THREADS"] = str(granted_cores())
    if not os.environ.keys() & _WAITING and cores_are_shared(compute_threads()):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"


def compute_threads() -> int:
    """Return the number of compute threads: OMP_NUM_THREADS from the environment, else the number of granted cores."""
    asked = os.environ.get(_NUMBER[0], "")
    return int(asked) if asked.isdecimal() and int(asked) > 0 else granted_cores()


def cores_are_shared(threads: int, root: Path = Path("/")) -> bool:
    """Return True if other processes leave fewer than ``threads`` cores free, both now and over the last minute."""
    loads = root / "proc/loadavg"
    if not loads.is_file():
        return False
    last_minute, _, _, running, _ = loads.read_text(encoding="ascii").split()
    # The load average alone would count a command that has just ended. The running processes include this one.
    busy = min(float(last_minute), int(running.partition("/")[0]) - 1)
    return busy > (os.cpu_count() or 1) - threads + 0.5


@contextmanager
def loading() -> Iterator[None]:
    """While the block runs, compute in the calling thread only, so that loading starts no thread pool.

    The first call in a process catches up with `choose_threads` if torch was imported before this package.

    Warns:
        ThreadsSpin: The threads of a torch that was imported before spin on cores that other processes use.
    """
    if _TORCH_WAS_FIRST:
        _catch_up()
    with calling_thread_alone():
        yield


@contextmanager
def calling_thread_alone() -> Iterator[None]:
    """While the block runs, compute in the calling thread only, if OpenMP supports it."""
    import torch

    number = torch.get_num_threads()
    limit_calling_thread(1)
    try:
        yield
    finally:
        limit_calling_thread(number)


def can_limit_calling_thread() -> bool:
    """Return True if the number of compute threads can be set for the calling thread alone."""
    return _openmp() is not None


def limit_calling_thread(number: int) -> None:
    """Set the number of compute threads for the calling thread only, if OpenMP supports it."""
    import torch

    # The first call of torch in a thread sets the global number there, so it must come before the call below.
    torch.get_num_threads()
    openmp = _openmp()
    if openmp is None:
        return
    # torch.set_num_threads would affect other threads too.
    openmp.omp_set_num_threads(number)
    if hasattr(openmp, "MKL_Set_Num_Threads_Local"):  # the lower-case name is Fortran's and takes a pointer
        openmp.MKL_Set_Num_Threads_Local(number)


@cache
def _catch_up() -> None:
    """Limit torch to the granted cores, unless its user set a number of threads, and warn if its threads spin."""
    import torch

    # By default torch has a thread for each core, or for each two where a core runs two threads.
    default = torch.get_num_threads() in {_cores(), _cores() // 2}
    if default and not os.environ.keys() & set(_NUMBER) and torch.get_num_threads() > granted_cores():
        torch.set_num_threads(granted_cores())
    threads = torch.get_num_threads()
    if threads > 1 and not os.environ.keys() & _WAITING and cores_are_shared(threads):
        warnings.warn(
            f"torch was imported before bothways, and its {threads} threads spin while they wait for each other. Other "
            "processes keep the cores busy, so a prediction can take many times as long as it could: import bothways "
            "before torch, set OMP_WAIT_POLICY=PASSIVE before torch is imported, or call torch.set_num_threads(1).",
            ThreadsSpin,
            stacklevel=2,
        )


@cache
def _openmp() -> ctypes.CDLL | None:
    """Return the OpenMP library of torch, found as a dependency of torch's own library."""
    import torch

    found = ctypes.CDLL(torch._C.__file__)
    return found if hasattr(found, "omp_set_num_threads") else None


def _end_pools() -> None:
    """End the thread pools of this thread in every loaded copy of GNU's OpenMP, torch's or not."""
    maps = Path("/proc/self/maps")
    lines = maps.read_text(encoding="utf-8", errors="replace").splitlines() if maps.is_file() else []
    for path in {line.split(maxsplit=5)[-1] for line in lines if "libgomp" in line}:
        library = ctypes.CDLL(path)
        if hasattr(library, "omp_pause_resource_all"):  # in GCC from version 9 on
            library.omp_pause_resource_all(_SOFT_PAUSE)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cgroup_folders(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders that may hold the limits of ``"cpu"`` or ``"memory"`` for the cgroups of this process."""
    memberships = root / "proc/self/cgroup"
    lines = memberships.read_text(encoding="utf-8").splitlines() if memberships.is_file() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        mounts = ("",) if not controllers else (controllers, controller) if controller in controllers.split(",") else ()
        inner = PurePosixPath(path.lstrip("/"))
        # In a container the path may be the host's, while the container's own group is mounted.
        yield from {root / "sys/fs/cgroup" / mount / part for mount in mounts for part in (inner, *inner.parents)}


def _quotas(root: Path) -> Iterator[float]:
    """Yield the CPU quota in cores of each cgroup of the process that has one."""
    kinds = (("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"))
    for folder, names in itertools.product(cgroup_folders("cpu", root), kinds):
        # Without such files, or with "max" or -1, the group has no quota.
        with contextlib.suppress(OSError, ValueError, ZeroDivisionError):
            granted, period = " ".join((folder / name).read_text(encoding="ascii") for name in names).split()
            if int(granted) > 0:
                yield int(granted) / int(period)


class _BeforeTorch:
    """A finder of modules that finds none, but chooses the threads when torch is about to be imported."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        del path, target
        if name == "torch":
            choose_threads()


_TORCH_WAS_FIRST = "torch" in sys.modules
sys.meta_path.insert(0, _BeforeTorch)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_end_pools)
