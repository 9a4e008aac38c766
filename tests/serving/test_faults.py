"""Clients that leave, lag and send nonsense, models that change or fail: the server answers the others as before."""

import json
import random
import re
import shutil
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from process_cases import JSON, connected, head, held, read, request, until
from serving_cases import running

from bothways.errors import OutOfMemory
from bothways.serving.routes import Reply
from bothways.serving.running import LimitedProtocol
from bothways.serving.tables import ROUTES
from task_cases import close

ASK = {"model": "classification", "inputs": ["w5 w6"]}
POSTS = [each.path.replace("{name}", "classification") for each in ROUTES if each.method == "POST"]


@pytest.fixture(scope="module")
def server(folders):
    names = ("classification", "embedding", "tagging", "question-answering", "masked_lm")
    with running(*(folders[name] for name in names)) as found:
        yield found


@pytest.fixture
def unharmed(server):
    """After the test nothing is left of its requests, and the server answers as before."""
    before = server.post("/v1/predict", ASK).json()["predictions"]
    yield server
    state = server.server
    until(lambda: state.running == state.answering == state.bytes == state.queue.tokens == 0)
    assert close(server.post("/v1/predict", ASK).json()["predictions"], before)


# --- clients that leave ---


def reset(connection):
    """Close a connection with a reset instead of an end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("leave", [socket.socket.close, reset])
@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"PO",
        b"POST /v1/predict HTTP/1.1\r\nHo",
        head() + b"Content-Length: 100\r\n\r\n",
        head() + b'Content-Length: 100\r\n\r\n{"inputs": ["w5',
        head() + b'Transfer-Encoding: chunked\r\n\r\n5\r\n{"in',
        request(body=ASK) + request(body=ASK)[:70],
    ],
)
def test_a_client_may_leave_before_it_has_asked(unharmed, sent, leave):
    with connected(unharmed.url) as client:
        client.sendall(sent)
        if b"Content-Length: 100" in sent or b"chunked" in sent:
            until(lambda: unharmed.server.running == 1)
        leave(client)


@pytest.mark.parametrize("leave", [socket.socket.close, reset, lambda client: client.shutdown(socket.SHUT_WR)])
def test_what_a_client_left_is_dropped_before_it_is_computed(unharmed, leave):
    """A client that closes its half of the connection cannot be told from one that leaves."""
    queue = unharmed.server.queue
    before = unharmed.server.metrics.drops.labels("left")._value.get()
    with connected(unharmed.url) as client:
        with held(unharmed):
            client.sendall(request(body={**ASK, "inputs": ["w5 w7"] * 50}))
            (waiting,) = until(lambda: list(queue._waiting))
            leave(client)
            until(lambda: waiting.ticket.left)
        until(lambda: unharmed.server.running == 0)
        assert waiting.ticket.computed == 0
        assert waiting.done.exception() is not None
    assert unharmed.server.metrics.drops.labels("left")._value.get() == before + 1


def test_a_client_that_leaves_an_explanation_is_let_go(unharmed):
    with connected(unharmed.url) as client:
        with held(unharmed):
            client.sendall(request("/v1/explain", {"model": "classification", "input": "w5 w6"}))
            until(lambda: unharmed.server.queue._calls)
            client.close()
            until(lambda: unharmed.server.answering == 1)
        until(lambda: unharmed.server.running == 0)


def test_clients_that_come_and_leave_at_random_leave_nothing_behind(unharmed):
    draw, whole = random.Random(3), request(body={**ASK, "inputs": ["w5 w6 w7"] * 20})

    def visit(seed):
        own = random.Random(seed)
        with connected(unharmed.url) as client:
            client.sendall(whole[: own.choice([len(whole), own.randrange(len(whole))])])
            time.sleep(own.choice([0, 0.001, 0.01]))
            own.choice([socket.socket.close, reset])(client)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(visit, [draw.random() for _ in range(150)]))
        good = [pool.submit(unharmed.post, "/v1/predict", ASK) for _ in range(10)]
        assert {each.result().status_code for each in good} == {200}


def test_a_client_that_takes_no_answer_is_given_up(unharmed, monkeypatch):
    """One that asks again and again and reads nothing, until no buffer has room."""
    aborted = threading.Event()

    original = LimitedProtocol._check_reader

    def watched(self):
        original(self)
        if self.transport.is_closing():
            aborted.set()

    whole = len(unharmed.get("/openapi.json").content)
    asks = 12_000_000 // whole
    monkeypatch.setattr("bothways.serving.running._READ_SECONDS", 0.1)
    monkeypatch.setattr(LimitedProtocol, "_check_reader", watched)
    with connected(unharmed.url) as client:
        client.sendall((head("/openapi.json", "", "GET") + b"\r\n") * asks)
        assert aborted.wait(30)
        received = 0
        while part := client.recv(1_000_000):
            received += len(part)
        assert received < asks * whole


def test_several_requests_on_one_connection_are_answered_in_order(unharmed):
    with connected(unharmed.url) as client:
        client.sendall(
            request(body=ASK) + request(body={"inputs": 5}) + head("/live", "", "GET") + b"\r\n" + request(body=ASK)
        )
        found = [read_one(client) for _ in range(4)]
        assert [status for status, _ in found] == [200, 422, 200, 200]


def read_one(client):
    """One answer, without taking a part of the next."""
    start = b""
    while not start.endswith(b"\r\n\r\n"):
        start += client.recv(1)
    names = dict(line.lower().split(": ", 1) for line in start.decode("latin-1").split("\r\n")[1:-2])
    body = b""
    while len(body) < int(names["content-length"]):
        body += client.recv(1)
    return int(start.split()[1]), body


def test_a_body_in_many_small_pieces_is_read(unharmed):
    body = json.dumps(ASK).encode()
    with connected(unharmed.url) as client:
        client.sendall(head(more=f"{JSON}Transfer-Encoding: chunked\r\n") + b"\r\n")
        for byte in body:
            client.sendall(b"1\r\n" + bytes([byte]) + b"\r\n")
        client.sendall(b"0\r\n\r\n")
        assert read(client)[0] == 200


# --- deadlines, and no room ---


def test_a_request_is_not_computed_after_its_deadline(unharmed):
    with ThreadPoolExecutor() as pool, held(unharmed):
        late = pool.submit(unharmed.post, "/v1/predict", ASK, **{"X-Timeout-Ms": "30"})
        (waiting,) = until(lambda: list(unharmed.server.queue._waiting))
        until(lambda: time.monotonic() > waiting.ticket.deadline)
    answer = late.result()
    assert answer.status_code == 504
    assert answer.json()["error"]["code"] == "deadline_passed"
    assert waiting.ticket.computed == 0
    assert unharmed.post("/v1/predict", ASK, **{"X-Timeout-Ms": "20000"}).status_code == 200


def test_a_deadline_that_passes_while_the_body_comes_is_told_from_a_long_queue(unharmed):
    whole = request(body=ASK, more=f"{JSON}X-Timeout-Ms: 20\r\n")
    with connected(unharmed.url) as client:
        client.sendall(whole[:-5])
        until(lambda: unharmed.server.running == 1)
        time.sleep(0.03)
        client.sendall(whole[-5:])
        status, body = read(client)
    assert (status, json.loads(body)["error"]["code"]) == (504, "deadline_passed")


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "soon", "", "1" * 10, "9" * 5000, "²"])
def test_a_deadline_is_a_number_of_milliseconds(unharmed, value):
    answer = unharmed.client.post("/v1/predict", json=ASK, headers={"X-Timeout-Ms": value.encode()})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "x-timeout-ms"


def test_a_deadline_before_the_queue_ends_is_refused_at_once(unharmed, monkeypatch):
    monkeypatch.setattr(type(unharmed.server.queue), "seconds_to_wait", 3.0)
    answer = unharmed.post("/v1/predict", ASK, **{"X-Timeout-Ms": "2000"})
    assert answer.status_code == 429
    assert answer.headers["retry-after"] == "3"
    assert unharmed.post("/v1/predict", ASK, **{"X-Timeout-Ms": "9000"}).status_code == 200


def test_refusals_and_health_do_not_wait_for_what_is_computed(unharmed, monkeypatch):
    with held(unharmed), monkeypatch.context() as patch:
        patch.setattr(type(unharmed.server.queue), "seconds_to_wait", 60.0)
        seconds = []
        for _ in range(21):
            begun = time.perf_counter()
            answer = unharmed.post("/v1/predict", ASK)
            seconds.append(time.perf_counter() - begun)
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) == 55
            for path in ("/live", "/ready", "/startup", "/metrics", "/"):
                assert unharmed.get(path).status_code == 200
        assert sorted(seconds)[10] < 0.05


def test_an_answer_is_made_into_json_in_the_thread_of_its_request(unharmed, monkeypatch):
    """One of megabytes would hold up all other requests."""
    threads, original = [], Reply.encoded

    def encoded(self):
        threads.append(threading.current_thread().name)
        return original(self)

    monkeypatch.setattr(Reply, "encoded", encoded)
    unharmed.post("/v1/predict", ASK)
    assert [name.partition("_")[0] for name in threads] == ["request"]


# --- what is no request ---

DEEP = 100_000
NONSENSE = {
    "nothing": b"",
    "no JSON": b"inputs=w5",
    "half": b'{"inputs": ["w5"',
    "two": b"{}{}",
    "null": b"null",
    "a list": b'["w5"]',
    "a number": b"1e999",
    "NaN": b'{"inputs": ["w5"], "model": NaN}',
    "infinity": b'{"inputs": Infinity}',
    "a large number": b'{"inputs": ' + b"9" * 5000 + b"}",
    "invalid UTF-8": b'{"inputs": ["\xff\xfe w5"]}',
    "an encoded surrogate": b'{"inputs": ["\xed\xa0\x80"]}',
    "a lone surrogate": rb'{"inputs": ["\ud800"]}',
    "a lone low surrogate": rb'{"inputs": ["\udc00 w5"]}',
    "UTF-16": json.dumps(ASK).encode("utf-16"),
    "a byte order mark": b"\xef\xbb\xbf{}",
    "deep": b"[" * DEEP + b"]" * DEEP,
    "deep inputs": b'{"inputs": ' + b"[" * 900 + b"]" * 900 + b"}",
    "deep rows": b'{"inputs": [' + b'{"text":' * 400 + b"1" + b"}" * 400 + b"]}",
    "zero bytes": bytes(100),
}


@pytest.mark.parametrize("path", POSTS)
def test_nonsense_is_refused_by_every_route(unharmed, path):
    for name, body in NONSENSE.items():
        answer = unharmed.client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert 400 <= answer.status_code < 500, (name, answer.text)
        assert json.loads(answer.content), name
        assert "Traceback" not in answer.text


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        None,
        5,
        True,
        1.5,
        {},
        [None],
        [5],
        [[]],
        [{}],
        [{"text": None}],
        [{"text": 5}],
        [{"text": ["w5"]}],
        [{"txt": "w5"}],
        ["w5", None],
        [["w5", 5]],
        [""],
        [" \n\t"],
        ["\u200b\u00ad"],
        ["\x00"],
    ],
)
def test_inputs_of_a_wrong_shape_are_named(unharmed, inputs):
    answer = unharmed.post("/v1/predict", {"model": "classification", "inputs": inputs})
    assert answer.status_code == 422, answer.text
    assert len(answer.json()["error"]["message"]) > 15


@pytest.mark.parametrize(
    "text", ["\x00 w5", "w5\u2028w6", "\ufffd", "\U0010ffff w5", "e\u0301" * 30, "\u202e w5", "\U0001d568"]
)
def test_odd_characters_are_texts_like_others(unharmed, text):
    for model in ("classification", "tagging"):
        for unit in ("code_points", "utf16", "bytes"):
            body = {"model": model, "inputs": [text], "offsets": unit}
            assert unharmed.post("/v1/predict", body).status_code == 200


def test_ten_million_times_one_character_cost_little_time(unharmed):
    begun = time.perf_counter()
    answer = unharmed.post("/v1/predict", {**ASK, "inputs": ["w" * 10_000_000]})
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "text_too_long"
    longest = unharmed.post("/v1/predict", {**ASK, "inputs": ["w" * 1_000_000]})
    assert longest.status_code == 200
    answer = unharmed.post("/v1/predict", {**ASK, "inputs": ["w " * 500_000]})
    assert answer.json()["error"]["code"] == "too_many_tokens"
    assert time.perf_counter() - begun < 20


def test_long_names_are_not_read_back(unharmed):
    name = "classificatio" * 100_000
    for more in ({"model": name}, {name: 1}, {"task": name}, {"options": {name: 1}}, {"offsets": name}):
        answer = unharmed.post("/v1/predict", {**ASK, **more})
        assert answer.status_code in (404, 422)
        assert len(answer.content) < 5000, next(iter(more))


def test_a_hundred_thousand_inputs_are_refused(unharmed):
    answer = unharmed.post("/v1/predict", {**ASK, "inputs": ["w5"] * 100_000})
    assert answer.status_code == 413
    assert "at most 2,048 inputs, got 100,000" in answer.json()["error"]["message"]
    answer = unharmed.post("/v1/embeddings", {"input": [[5]] * 100_000})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "too_many_inputs"


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"imputs": 1}, "'imputs'.*Did you mean 'inputs'"),
        ({"on_overflw": "error"}, "'on_overflw'.*Did you mean 'on_overflow'"),
        ({"zzz": 1}, "'zzz' that this route does not know: known are inputs, model"),
        ({"on_overflow": "cut"}, "on_overflow: invalid enum value 'cut'"),
        ({"offsets": "utf8"}, "offsets: invalid enum value 'utf8'"),
        ({"errors": "none"}, "errors: invalid enum value 'none'"),
        ({"options": ["top"]}, "options: expected"),
        ({"options": {"tpo": 1}}, "tpo"),
        ({"options": {"top": "many"}}, "top"),
        ({"options": {"top": 10**30}}, "top is too large a number"),
        ({"options": {"top": -1}}, "top"),
        ({"options": {"threshold": []}}, "threshold"),
        ({"model": 5}, "model: expected"),
        ({"task": "x"}, "it has one task"),
    ],
)
def test_wrong_fields_and_values_are_named_with_the_nearest(unharmed, more, said):
    answer = unharmed.post("/v1/predict", {**ASK, **more})
    assert answer.status_code == 422, answer.text
    assert re.search(said, answer.json()["error"]["message"]), answer.text


@pytest.mark.parametrize(
    "path", ["/v1/predikt", "/v1", "/../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//", "/v1/models/%ED%A0%80"]
)
def test_paths_that_are_not_there(unharmed, path):
    with connected(unharmed.url) as client:
        client.sendall(head(path, "", "GET") + b"\r\n")
        status, body = read(client)
    assert status == 404
    assert json.loads(body)["error"]["message"]


@pytest.mark.parametrize(
    "sent",
    [
        b"GET / HTTP/9.9\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET /live HTTP/1.1\r\nHost localhost\r\n\r\n",
        b"\r\n\r\n\r\nGARBAGE\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        b"POST /v1/predict HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    ],
)
def test_what_is_no_http_is_refused(unharmed, sent):
    with connected(unharmed.url) as client:
        client.sendall(sent)
        answer = read(client)
        assert answer is None or 400 <= answer[0] < 500


def test_other_methods_are_refused(unharmed):
    for method, path in (("GET", "/v1/predict"), ("PUT", "/v1/predict"), ("POST", "/live"), ("DELETE", "/v1/models")):
        answer = unharmed.client.request(method, path)
        assert answer.status_code == 405
        assert answer.json()["error"]["code"] == "method_not_allowed"
    assert unharmed.client.head("/live").status_code == 200


# --- models that fail or change ---


def test_one_request_that_does_not_fit_into_memory_fails_alone_and_retryably(unharmed, monkeypatch):
    """The windows with w40, alone or in a batch."""
    runner = next(iter(unharmed.server.models)).model.backend.runner.windows
    original = type(runner)._answers

    def answers(self, windows):
        if self is runner and any(40 in window.ids for window in windows):
            raise OutOfMemory("a single window does not fit.")
        return original(self, windows)

    monkeypatch.setattr(type(runner), "_answers", answers)
    with ThreadPoolExecutor() as pool, held(unharmed):
        bad = pool.submit(unharmed.post, "/v1/predict", {**ASK, "inputs": ["w40"]})
        good = [pool.submit(unharmed.post, "/v1/predict", ASK) for _ in range(3)]
        until(lambda: len(unharmed.server.queue._waiting) == 4)
    assert bad.result().status_code == 503
    assert bad.result().json()["error"]["code"] == "out_of_memory"
    assert {each.result().status_code for each in good} == {200}


def test_a_model_folder_that_changes_while_it_is_served_changes_nothing(folders, tmp_path):
    for name in ("classification", "embedding"):
        shutil.copytree(folders[name], tmp_path / name)
    with running(tmp_path / "classification", tmp_path / "embedding") as server:
        asked = ("/v1/predict", ASK), ("/v1/embeddings", {"input": ["w5"]}), ("/v1/models/classification", None)

        def answers():
            return [(server.get(path) if body is None else server.post(path, body)).json() for path, body in asked]

        before = answers()
        for path in tmp_path.glob("*/*.safetensors"):
            with path.open("r+b") as stream:
                stream.write(random.Random(0).randbytes(path.stat().st_size))
        for path in tmp_path.glob("*/*.json"):
            path.write_text("{}")
        assert answers() == before
        for path in tmp_path.glob("*/*.safetensors"):
            path.write_bytes(b"")
        assert answers() == before
        shutil.rmtree(tmp_path / "classification")
        shutil.rmtree(tmp_path / "embedding")
        assert answers() == before
        refused = server.post("/v1/predict", {**ASK, "options": {"threshold": "x"}})
        assert str(tmp_path) not in refused.text


def test_a_model_that_cannot_be_opened_ends_the_server(tmp_path, folders):
    shutil.copytree(folders["classification"], tmp_path / "broken")
    (tmp_path / "broken" / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(Exception, match=r"model\.safetensors"), running(tmp_path / "broken"):
        pass


def test_the_threads_of_a_server_end_with_it(folders):
    before = set(threading.enumerate())
    with running(folders["classification"]) as server:
        server.post("/v1/predict", ASK)
    until(lambda: not [each for each in set(threading.enumerate()) - before if each.name == "compute"])
