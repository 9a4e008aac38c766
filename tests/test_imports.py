"""``import bothways`` is light, and every module stands on its own."""

import importlib
import json
import subprocess
import sys
from importlib.metadata import version

import pytest

import bothways
import code_measures as code
from tiny_models import write_checkpoint


def run(code):
    """Run a fresh interpreter and return the JSON that it prints."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("module", ["bothways", "bothways.errors", "bothways.cli"])
def test_importing_loads_no_heavy_package(module):
    loaded = run(f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))")
    heavy = {"torch", "numpy", "tokenizers", "safetensors", "huggingface_hub", "faiss", "pyarrow", "altair", "scipy"}
    assert module in loaded
    assert heavy.intersection(loaded) == set()


# By module: why a process that opens a model and predicts must not wait for it.
NEEDLESS_TO_PREDICT = {
    "sklearn": "only fitting needs it, and it takes a second",
    "scipy": "only fitting needs it",
    "pandas": "only the caller may have brought it",
    "datasets": "only the caller may have brought it",
    "sympy": "torch's compiler alone needs it",
    "torch._dynamo": "torch's compiler takes a second",
    "torch._inductor": "torch's compiler takes a second",
    "transformers": "an oracle of the tests",
    "huggingface_hub": "only a download needs it",
    "bothways.objectives": "only training needs objectives",
    "bothways.pretraining": "only training needs recipes",
    "bothways.training": "only training needs it",
    "bothways.evaluation.comparison": "only a comparison needs it",
    "bothways.data.sources": "only files need it",
    "bothways.tasks.embedding.training": "only training needs it",
    "bothways.tasks.embedding.losses": "only training needs losses",
    "bothways.evaluation.prediction_powered": "only estimates from few labels need it",
    "bothways.retrieval": "it stands above the tasks",
    "bothways.audit": "it stands above the tasks",
    "bothways.report": "only pages need it",
}

PREDICT = """
import json, sys
import bothways
embedder = bothways.SentenceEmbedder.from_pretrained(sys.argv[1], device="cpu")
embedder.encode("w5 w6 w7")
print(json.dumps(sorted(sys.modules)))
"""


def test_a_first_prediction_loads_nothing_that_only_others_need(tmp_path):
    write_checkpoint(tmp_path)
    done = subprocess.run([sys.executable, "-c", PREDICT, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    loaded = set(json.loads(done.stdout.splitlines()[-1]))
    assert "bothways.inference.runner" in loaded
    found = [f"{name}: {why}" for name, why in NEEDLESS_TO_PREDICT.items() if name in loaded]
    assert found == [], "import these in the functions that need them, so that predictions start sooner"


@pytest.mark.parametrize("name", bothways.__all__)
def test_every_public_name_resolves(name):
    value = getattr(bothways, name)
    assert getattr(value, "__name__", name) == name
    assert name in dir(bothways)


@pytest.mark.parametrize(
    "package",
    [
        *("advice", "audit", "checkpoints", "compose", "data", "encoder", "explain", "export", "inference", "judging"),
        *("pretraining", "report", "retrieval", "tasks", "tasks.embedding", "text"),
    ],
)
def test_every_name_that_a_package_loads_on_its_first_use_resolves(package):
    module = importlib.import_module(f"bothways.{package}")
    for home, names in module._MODULES.items():
        for name in names:
            assert getattr(module, name) is getattr(importlib.import_module(f"{module.__name__}.{home}"), name)


def test_the_version_is_that_of_the_installed_package():
    assert bothways.__version__ == version("bothways")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'TextClasifier'"):
        bothways.TextClasifier  # noqa: B018


@pytest.mark.slow  # every day: the circles of imports, and the modules that other tests import
def test_every_module_can_be_imported():
    names = {module.name.removesuffix(".__init__") for module in code.modules()} - {"__init__", "__main__"}
    assert "errors" in names
    for name in sorted(names):
        importlib.import_module(f"bothways.{name}")


def test_every_module_can_be_imported_first():
    # A circular import shows in some orders of imports alone. Trying each module in a process of its own takes minutes.
    assert code.circles_at_import() == []


@pytest.mark.parametrize(
    ("second", "package", "circle"),
    [
        ("import bothways.c", "", True),
        ("from bothways.c import y", "", True),
        ("", "from bothways.c import y", True),  # the package of a module is imported before it
        ("def f():\n    from bothways.c import y", "", False),
        ("if TYPE_CHECKING:\n    from bothways.c import y", "", False),
        ("", "from bothways.a.b import x", False),
    ],
)
def test_a_circle_at_import_is_found(second, package, circle):
    sources = {"c": "from bothways.a.b import x", "a.b": second, "a.__init__": package}
    modules = [code.Module(name, source) for name, source in sources.items()]
    assert bool(code.circles_at_import(modules)) == circle
