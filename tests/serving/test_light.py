"""Exported models are served where torch, SciPy and scikit-learn are not installed."""

from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
from process_cases import process

from bothways import open_trained
from bothways.export import export
from bothways.serving.api.vectors import typed
from forking import free_port
from task_cases import close, plain

MODELS = Path(__file__).parents[1] / "frozen" / "models"

# Nothing finds these packages: importing them fails, and asking whether they are there says no.
LIGHT = """
import sys

ABSENT = {"torch", "scipy", "sklearn"}

class Hiding:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in ABSENT else self.finder.find_spec(name, path, target)

    def __getattr__(self, name):
        return getattr(self.finder, name)

sys.meta_path[:] = map(Hiding, sys.meta_path)
from bothways.cli import main
code = main(sys.argv[1:])
assert not ABSENT & set(sys.modules)
sys.exit(code)
"""
PROGRAM = ("-c", LIGHT)
TEXTS = ["w5 w6", "w7 " * 40, "w8"]


@contextmanager
def light_server(name, folder):
    """A client of a server of an exported model, in a process without torch; and the model that was exported."""
    exported = export(MODELS / name, folder / name, format="onnx").folder
    url = f"http://127.0.0.1:{free_port()}"
    with process(exported, "--port", url.rpartition(":")[2], program=PROGRAM) as server:
        server.wait_until_ready(url)
        with httpx.Client(base_url=url, timeout=60) as client:
            (described,) = client.get("/v1/models").json()["data"]
            assert described["engine"] == "onnxruntime"
            assert "explain" not in described["abilities"]
            yield client, open_trained(MODELS / name)
        assert server.end() == 0, "".join(server.lines)


def ask(client, path, **body):
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_an_exported_embedder_is_served_where_torch_is_not_installed(tmp_path):
    with light_server("embedder", tmp_path) as (client, embedder):
        vectors_NK = embedder.encode(TEXTS)
        rows = ask(client, "/v1/embeddings", input=TEXTS, encoding_format="float")["data"]
        np.testing.assert_allclose([row["embedding"] for row in rows], vectors_NK, rtol=0, atol=1e-5)
        rows = ask(client, "/v1/embeddings", input=TEXTS, encoding_format="float", embed_dtype="int8")["data"]
        # A number halfway between two integers may become the other one.
        np.testing.assert_allclose([row["embedding"] for row in rows], typed(vectors_NK, "int8"), rtol=0, atol=1)
        ranked = ask(client, "/v1/rerank", query="w8", documents=TEXTS)["results"]
        assert ranked[0]["index"] == 2


@pytest.mark.slow
def test_an_exported_classifier_is_served_where_torch_is_not_installed(tmp_path):
    with light_server("classifier", tmp_path) as (client, classifier):
        found = ask(client, "/v1/predict", inputs=TEXTS)["predictions"]
        assert close(found, [plain(each) for each in classifier.predict(TEXTS)])
        refused = client.post("/v1/explain", json={"input": "w5", "model": "classifier"})
        assert (refused.status_code, "no package 'torch'" in refused.text) == (501, True)


def test_a_model_with_weights_says_what_it_needs_where_torch_is_not_installed():
    with process(MODELS / "embedder", program=PROGRAM) as server:
        assert server.ended() == 1
        assert "pip install 'bothways[torch]'" in "".join(server.lines)
        assert "Traceback" not in "".join(server.lines)
