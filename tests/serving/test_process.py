"""The server as a process: how it starts, reads its keys again, and ends, with and without workers."""

import re
import signal
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import psutil
import pytest
import torch
from process_cases import ADDRESS, Load, connected, head, outcome, process, read, until

from bothways import open_trained
from bothways.serving.models import open_models
from bothways.serving.settings import Opening
from cli.command_line import fails
from task_cases import LONG, close

ASK = {"inputs": ["w5 secretword"] * 8}
SECRET, OTHER = "s3cret-key-of-a", "another-key-of-b"


@pytest.fixture(scope="module")
def folder(folders):
    return folders["classification"]


def status(url, key, path="/v1/models"):
    return httpx.get(url + path, headers={"Authorization": f"Bearer {key}"}, timeout=20).status_code


def test_keys_are_read_again_and_sigterm_under_load_answers_or_refuses_every_request(folder, tmp_path):
    """The whole life of a server: exit code 0, and a log without a key, a text or a line that is no JSON."""
    keys = tmp_path / "keys.txt"
    keys.write_text(f"first:{SECRET}\n")
    with process(folder, "--api-keys", keys) as server:
        server.wait_until_ready()
        assert [status(server.url, key) for key in (SECRET, OTHER)] == [200, 401]
        keys.write_text(f"first:{SECRET}\nsecond:{OTHER}\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: status(server.url, OTHER) == 200)
        keys.write_text("no keys at all\n")
        server.process.send_signal(signal.SIGHUP)
        until(lambda: any("name:key" in line.get("failure", "") for line in server.log()))
        assert [status(server.url, key) for key in (SECRET, OTHER)] == [200, 200]
        with Load(server.url, ASK, authorization=f"Bearer {SECRET}") as load:
            server.process.send_signal(signal.SIGTERM)
            until(lambda: load.count("refused", "closed") > 0)
            assert outcome(lambda: httpx.get(f"{server.url}/ready")) in ("refused", "closed")
            assert server.ended() == 0
        assert set(load.outcomes) <= {"answered", "refused", "closed"}
        assert load.count("answered") > 20
    answered = [line for line in server.log() if line.get("status") == 200 and line["route"] == "/v1/predict"]
    assert len(answered) == load.count("answered")
    assert {line["key"] for line in answered} == {"first"}
    said = "".join(server.lines)
    for private in (SECRET, OTHER, "secretword", str(folder.parent), "Traceback"):
        assert private not in said
    assert [line[0] for line in server.lines[server.lines.index("ready. A request:\n") + 2 :]] == ["{"] * len(
        server.log()
    )


def test_what_cannot_be_served_is_said(folder, tmp_path):
    fails(2, "others can reach 0.0.0.0: give a file of API keys", "serve", folder, "--host", "0.0.0.0")
    fails(2, "at least one model or index", "serve")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        fails(1, f"cannot listen on 127.0.0.1:{port}", "serve", folder, "--port", port)
    (tmp_path / "keys").write_text(SECRET)
    outcome = fails(1, "line 1 of the API keys", "serve", folder, "--api-keys", tmp_path / "keys")
    assert SECRET not in outcome.err


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_a_model_that_cannot_be_opened_ends_the_server(folder, tmp_path, workers):
    with process(tmp_path / "nothing", "--workers", workers) as server:
        assert server.ended() not in (0, None)
        assert "nothing" in "".join(server.lines)
        assert "Traceback" not in "".join(server.lines)


def is_mapped(tensor, file):
    """Whether the memory of a tensor is that of a file."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if line.endswith(str(file))]
    ranges = [[int(end, 16) for end in line[0].split("-")] for line in lines]
    return any(start <= tensor.data_ptr() < end for start, end in ranges)


@pytest.mark.parametrize("shared", [False, True])
def test_processes_that_share_weights_have_them_in_the_file(folder, shared):
    (served,) = open_models([str(folder)], (), Opening(), shared=shared)
    weights = (folder / "model.safetensors").resolve()
    assert is_mapped(served.model.backend.head_model.encoder.embedding.tokens.weight, weights) == shared
    before = weights.read_bytes()
    expected = served.model.predict(["w5 w6"])[0].to_dict()
    with torch.no_grad():
        for each in served.model.backend.head_model.parameters():
            each.add_(1.0)
    assert weights.read_bytes() == before, "what a process changes is its own"
    assert close(open_trained(folder).predict(["w5 w6"])[0].to_dict(), expected)


def workers_of(server):
    """Processes that answer requests, or will."""
    found = psutil.Process(server.process.pid).children()
    return [each for each in found if each.status() != psutil.STATUS_ZOMBIE and "spawn_main" in "".join(each.cmdline())]


def takes_connections(server, worker):
    """Whether a worker took a new connection to the server."""
    with connected(server.url) as client:
        client.sendall(head("/live", "", "GET") + b"\r\n")
        assert read(client)[0] == 200
        ours = client.getsockname()
        return any(each.raddr == ours for each in worker.net_connections("tcp") if each.status == "ESTABLISHED")


@pytest.mark.slow
def test_a_killed_worker_comes_back_and_only_its_requests_fail(folder):
    with process(folder, "--workers", 2) as server:
        server.wait_until_ready()
        both = until(lambda: len(found := workers_of(server)) == 2 and found)
        for each in both:
            until(lambda worker=each: takes_connections(server, worker), 180)
        with Load(server.url, ASK) as load:
            assert load.count("closed") == 0
            both[0].send_signal(signal.SIGKILL)
            (new,) = until(lambda: [each for each in workers_of(server) if each not in both], 180)
            until(lambda: takes_connections(server, new), 180)
            many = load.count("answered")
            until(lambda: load.count("answered") > many + 50)
        # At most a request for each client, which had its connection with the worker that was killed.
        assert set(load.outcomes) <= {"answered", "closed"}
        assert load.count("closed") <= len(load.threads)
        assert server.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_workers_answer_or_refuse_every_request_before_they_end(folder, number):
    with process(folder, "--workers", 2) as server:
        server.wait_until_ready()
        with Load(server.url, ASK) as load:
            # As a service manager does, which signals all processes of a service.
            children = workers_of(server)
            server.process.send_signal(number)
            for each in children:
                each.send_signal(number)
            assert server.ended() == 0
        assert set(load.outcomes) <= {"answered", "refused", "closed"}
        assert not any(map(psutil.Process.is_running, children))


@pytest.mark.slow
def test_workers_are_replaced_one_by_one_on_sighup_without_a_request_lost(folder, tmp_path):
    keys = tmp_path / "keys.txt"
    keys.write_text(f"first:{SECRET}\n")
    with process(folder, "--workers", 2, "--api-keys", keys) as server:
        server.wait_until_ready()
        before = workers_of(server)
        keys.write_text(f"first:{SECRET}\nsecond:{OTHER}\n")
        with Load(server.url, ASK, authorization=f"Bearer {SECRET}") as load:
            server.process.send_signal(signal.SIGHUP)
            until(lambda: not set(before) & set(workers_of(server)) and len(workers_of(server)) == 2, 120)
        assert set(load.outcomes) <= {"answered", "refused", "closed"}
        assert [status(server.url, OTHER) for _ in range(10)] == [200] * 10
        assert server.end() == 0


@pytest.mark.slow
def test_what_is_not_done_when_the_drain_ends_is_refused(folder):
    with process(folder, "--drain", 0.3, "--max-wait", 1000) as server:
        server.wait_until_ready()
        long = {"inputs": [LONG * 20] * 200}
        with ThreadPoolExecutor(20) as pool, httpx.Client(base_url=server.url, timeout=60) as client:
            asked = [pool.submit(outcome, lambda: client.post("/v1/predict", json=long)) for _ in range(20)]
            until(lambda: b"bothways_queued_tokens 0.0" not in client.get("/metrics").content)
            begun = time.monotonic()
            assert server.end() == 0
            assert time.monotonic() - begun < 15
            found = [each.result() for each in asked]
        assert set(found) <= {"answered", "refused", "closed"}
        assert "refused" in found


@pytest.mark.slow
def test_sigterm_while_the_models_are_opened_ends_the_server(folder):
    with process(folder) as server:
        assert server.url
        assert server.end() in (0, 128 + signal.SIGTERM)


@pytest.mark.slow
def test_a_full_disk_for_the_log_stops_nothing(folder, tmp_path):
    """The log may not grow any more, as on a full disk."""
    log = tmp_path / "log"
    with log.open("w") as stream, process(folder, stderr=stream) as server:
        url = until(lambda: ADDRESS.search(log.read_text()), 180)[0]
        server.wait_until_ready(url)
        until(lambda: "ready" in log.read_text() and "curl" in log.read_text())
        size = log.stat().st_size
        psutil.Process(server.process.pid).rlimit(psutil.RLIMIT_FSIZE, (size + 500, size + 500))
        answers = [httpx.post(f"{url}/v1/predict", json=ASK, timeout=20).status_code for _ in range(20)]
        assert answers == [200] * 20
        lost = re.search(rb"bothways_lost_log_lines_total (\d+)", httpx.get(f"{url}/metrics").content)
        assert int(lost[1]) >= 16
        assert server.end() == 0
