"""The connection to Ray, which prints and sends nothing of its own."""

import logging
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType

from bothways.errors import InvalidInput

# Seconds in which a cluster must answer.
_ANSWER = 20.0
# Ray sends no statistics, prints nothing, keeps `print`, and sets no CUDA_VISIBLE_DEVICES for actors without a GPU.
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_BACKEND_LOG_LEVEL": "fatal",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_TQDM_PATCH_PRINT": "0",
}
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "RAYON_NUM_THREADS")


def be_quiet() -> None:
    """Set variables that silence Ray, unless the user has; call this before Ray is imported."""
    os.environ.update({name: os.environ.get(name, value) for name, value in QUIET.items()})


def check_address(address: str) -> None:
    """Raise `InvalidInput` unless the address is ``local``, ``auto``, or ``ray://host:port``."""
    if address not in ("local", "auto") and not re.fullmatch(r"ray://([^/:]+|\[[0-9a-fA-F:]+\]):[0-9]+", address):
        raise InvalidInput(f"ray: expected local, auto or ray://HOST:PORT for the cluster, got {address!r}.")


@contextmanager
def connected(ray: ModuleType, address: str, threads: int | None = None) -> Iterator[None]:
    """Connect to the cluster, unless the caller has; what was started here ends here.

    Args:
        ray: The module.
        address: ``local``, ``auto``, or ``ray://host:port``.
        threads: Compute threads of each process that Ray starts. Default: as Ray chooses.
    """
    if ray.is_initialized():
        yield
        return
    if address == "auto" and not _answers():
        raise InvalidInput(
            "ray: the Ray cluster of this machine does not answer; it may have been killed. Start one (ray stop, "
            "then ray start --head), set RAY_ADDRESS to that of a running one, or give --ray local."
        )
    # Processes that Ray starts inherit the threads here, and must be started for them elsewhere.
    variables = {} if threads is None else dict.fromkeys(_THREADS, str(threads))
    here = address == "local"
    alone: dict[str, object] = {"include_dashboard": False}
    given = alone if here else {} if threads is None else {"runtime_env": {"env_vars": variables}}
    try:
        with _silent(), _environment(variables if here else {}), keeping_sigterm():
            ray.init(address, **given, log_to_driver=False, logging_level=logging.CRITICAL)
    except (ConnectionError, ValueError, RuntimeError, ray.exceptions.AuthenticationError) as error:
        raise InvalidInput(
            f"ray: there is no Ray cluster at {address!r}: {reason(error)} Start one (ray start --head), set "
            "RAY_ADDRESS to that of a running one, or give --ray local. One that asks for a token needs "
            "RAY_AUTH_MODE=token, and its token in ~/.ray/auth_token or RAY_AUTH_TOKEN."
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


def _answers() -> bool:
    """Return False if a cluster is known and silent: Ray itself would wait for minutes, and end this process."""
    words = [sys.executable, "-m", "ray.scripts.scripts", "health-check"]
    try:
        subprocess.run(words, capture_output=True, timeout=_ANSWER, check=False)
    except subprocess.TimeoutExpired:
        return False
    return True


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    """Set variables of this process, and of those that it starts, for the block."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name) if value is None else os.environ.update({name: value})


@contextmanager
def keeping_sigterm() -> Iterator[None]:
    """Keep what this process does at SIGTERM, where Ray would exit."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, before)


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what native code writes to standard error: Ray tells there that it will be quiet."""
    sys.stderr.flush()
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def reason(error: Exception) -> str:
    """Return the last line of an error of Ray, which says most, without colours."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).strip()
    return f"{type(error).__name__}: {(text.splitlines() or [''])[-1].strip().rstrip('.')}."
