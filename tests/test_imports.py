"""``import bothways`` is light, and every module stands on its own."""

import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import bothways


def run(code):
    """What a fresh interpreter prints as JSON."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", ["bothways", "bothways.errors", "bothways.cli"])
def test_importing_loads_no_heavy_package(module):
    loaded = run(f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))")
    heavy = {"torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "faiss", "pyarrow", "altair", "scipy"}
    assert module in loaded
    assert heavy.intersection(loaded) == set()


@pytest.mark.parametrize("name", bothways.__all__)
def test_every_public_name_resolves(name):
    value = getattr(bothways, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(bothways)


def test_the_version_is_that_of_the_installed_package():
    assert bothways.__version__ == version("bothways")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'TextClasifier'"):
        bothways.TextClasifier  # noqa: B018


WALK = """
import importlib, json, pkgutil, sys, traceback
import bothways

def forget():
    for name in [name for name in sys.modules if name == "bothways" or name.startswith("bothways.")]:
        del sys.modules[name]

names = [module.name for module in pkgutil.walk_packages(bothways.__path__, "bothways.")]
failures = {}
for name in names:
    if name.endswith(".__main__"):
        continue
    forget()
    try:
        importlib.import_module(name)
    except Exception:
        failures[name] = traceback.format_exc()
print(json.dumps({"names": names, "failures": failures}))
"""


def test_every_module_can_be_imported_first():
    # Forgetting the package between two imports shows a circular import that only some orders of imports hide.
    walk = run(WALK)
    assert "bothways.errors" in walk["names"]
    assert walk["failures"] == {}
