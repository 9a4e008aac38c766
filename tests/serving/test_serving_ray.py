"""Ray Serve runs the server's application: it answers as the usual server does, and grows by the tokens that wait."""

import logging
import os
import threading
from pathlib import Path

import httpx
import pytest
import ray_serve_cases
from process_cases import SOURCE, until
from serving_cases import running

from bothways import ray_cluster
from bothways.serving import ServerSettings
from forking import free_port

pytestmark = pytest.mark.slow

ASK = {"input": ["w5 w30 w31", "w6 w30"]}
LARGE = {"input": ["w5 w30 w31 w7 w8 w9"] * 2000}
SCALING = {
    "min_replicas": 1,
    "max_replicas": 2,
    "metrics_interval_s": 0.5,
    "look_back_period_s": 1,
    "upscale_delay_s": 0.5,
    "policy": {"policy_function": ray_serve_cases.by_tokens},
}


@pytest.fixture(scope="module")
def serve():
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'bothways[ray,serve]'")
    serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed: pip install 'ray[serve]'")
    port = free_port()
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.QUIET.items():
            patch.setenv(name, value)
        patch.setenv("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "60")
        here = Path(ray_serve_cases.__file__).parent  # replicas import the deployment from there
        patch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(SOURCE)]))
        options = {"include_dashboard": False, "log_to_driver": False, "logging_level": logging.CRITICAL}
        with ray_cluster.keeping_sigterm():
            ray.init("local", num_cpus=2, **options)
        serve.start(http_options={"host": "127.0.0.1", "port": port})
        yield serve, f"http://127.0.0.1:{port}"
        serve.shutdown()
        ray.shutdown()


def _deployment(serve):
    return serve.deployment(
        serve.ingress()(ray_serve_cases.Bothways),
        max_ongoing_requests=100,
        ray_actor_options={"num_cpus": 0.5},
    )


def test_a_deployment_answers_as_the_server_does_and_grows(serve, folders):
    api, url = serve
    model = folders["embedding"]
    deployment = _deployment(api).options(autoscaling_config=SCALING)
    api.run(deployment.bind(ServerSettings(models=[str(model)])), route_prefix="/")
    with running(model) as usual, httpx.Client(base_url=url, timeout=60) as client:
        for path in ("/ready", "/v1/models"):
            assert (client.get(path).status_code, client.get(path).text) == (200, usual.get(path).text)
        ask = {"model": usual.get("/v1/models").json()["data"][0]["id"], **ASK}
        assert client.post("/v1/embeddings", json=ask).json() == usual.post("/v1/embeddings", ask).json()
        wrong = {"model": "none", **ASK}
        answers = client.post("/v1/embeddings", json=wrong), usual.post("/v1/embeddings", wrong)
        assert answers[0].status_code == answers[1].status_code == 404
        assert answers[0].json() == answers[1].json()
    _grows(api, url, {"model": ask["model"], **LARGE})


def _grows(api, url, ask):
    ended = threading.Event()

    def load():
        with httpx.Client(base_url=url, timeout=120) as client:
            while not ended.is_set():
                client.post("/v1/embeddings", json=ask)

    threads = [threading.Thread(target=load) for _ in range(6)]
    for each in threads:
        each.start()
    try:
        until(lambda: _replicas(api).get("RUNNING") == 2, 90)
    finally:
        ended.set()
        for each in threads:
            each.join()


def _replicas(api):
    return api.status().applications["default"].deployments["Bothways"].replica_states


def test_a_model_that_cannot_be_opened_fails_the_deployment(serve, tmp_path):
    api, _ = serve
    broken = _deployment(api).bind(ServerSettings(models=[str(tmp_path / "missing")]))
    with pytest.raises(RuntimeError, match="broken failed"):
        api.run(broken, name="broken", route_prefix="/b")
    assert "lifespan startup failed" in api.status().applications["broken"].deployments["Bothways"].message
