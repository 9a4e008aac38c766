"""Names of a package that are imported on first use (PEP 562), and the errors for missing packages."""

import gc
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from bothways.errors import MissingDependency

TORCH = ("torch", "scipy", "sklearn")
"""The packages that the extra ``torch`` installs."""


def loader(package: str, modules: Mapping[str, Sequence[str]]) -> Callable[[str], object]:
    """Return a package's ``__getattr__``, which imports the public names listed for each of its ``modules``."""
    homes = {name: f"{package}.{module}" for module, names in modules.items() for name in names}

    def load(name: str) -> object:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        try:
            with uncollected():
                value: object = getattr(import_module(homes[name]), name)
        except ModuleNotFoundError as error:
            # The error names a purpose, which is known for public names only.
            raise (missing(error, f"bothways.{name}") if package == "bothways" else error) from error
        setattr(sys.modules[package], name, value)
        return value

    return load


def imported(home: str) -> Any:  # noqa: ANN401 (a class or a function)
    """Import an object by its path, ``"module:name"``."""
    module, name = home.split(":")
    return getattr(import_module(module), name)


@contextmanager
def uncollected() -> Iterator[None]:
    """Pause the garbage collector while many objects are made that stay: it takes time, and frees little."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def require_torch(purpose: str) -> None:
    """Raise MissingDependency, naming the purpose, unless torch is installed."""
    if "torch" not in sys.modules and find_spec("torch") is None:
        raise MissingDependency.of("torch", extra="torch", purpose=purpose)


def missing(error: ModuleNotFoundError, purpose: str) -> MissingDependency | ModuleNotFoundError:
    """Return a MissingDependency with the install command if the extra ``torch`` has the package, else ``error``."""
    package = (error.name or "").partition(".")[0]
    return MissingDependency.of(package, extra="torch", purpose=purpose) if package in TORCH else error
