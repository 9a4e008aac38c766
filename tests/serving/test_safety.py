"""Safe by default: who may ask, from where, how much, and what is said and logged."""

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from process_cases import JSON, connected, head, held, read, until
from serving_cases import running

from bothways.errors import InvalidInput
from bothways.serving.keys import ApiKeys
from bothways.serving.settings import Limits, ServerSettings

SECRET, OTHER = "s3cret-key-of-a", "another-key-of-b"
ASK = {"model": "classification", "inputs": ["w5 w6"]}


@pytest.fixture(scope="module")
def folder(folders):
    return folders["classification"]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    path = tmp_path_factory.mktemp("keys") / "keys.txt"
    path.write_text(f"# callers\n\nfirst: {SECRET}\nsecond:{OTHER}\nthird:schlüssel-ß\n", encoding="utf-8")
    return path


@pytest.fixture(scope="module")
def plain(folder):
    with running(folder) as server:
        yield server


@pytest.fixture(scope="module")
def guarded(folder, keys):
    with running(folder, api_keys=keys) as server:
        yield server


@contextmanager
def logged(server):
    """The lines of a server's log, while the block runs."""
    server.server.log.stream = stream = io.StringIO()
    try:
        yield lambda: [json.loads(line) for line in stream.getvalue().splitlines()]
    finally:
        server.server.log.stream = None


# --- who may ask ---


def test_only_this_machine_can_reach_a_server_unless_keys_or_anonymous_are_given(folder, keys):
    assert ServerSettings(models=[folder]).host == "127.0.0.1"
    for host in ("0.0.0.0", "::", "192.168.0.7", "example.org"):
        with pytest.raises(InvalidInput, match=r"others can reach .*--api-keys FILE.*--anonymous"):
            ServerSettings(models=[folder], host=host)
        for more in ({"api_keys": keys}, {"anonymous": True}):
            assert ServerSettings(models=[folder], host=host, **more).allowed_hosts == ()


@pytest.mark.parametrize(
    ("headers", "name"),
    [
        ({"Authorization": f"Bearer {SECRET}"}, "first"),
        ({"authorization": f"bearer  {OTHER}"}, "second"),
        ({"X-Api-Key": SECRET}, "first"),
        ({"Authorization": "Bearer schlüssel-ß".encode()}, "third"),
    ],
)
def test_every_key_of_the_file_is_known_by_its_name(guarded, headers, name):
    with logged(guarded) as lines:
        assert guarded.client.post("/v1/predict", json=ASK, headers=headers).status_code == 200
        assert [line["key"] for line in until(lines)] == [name]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": SECRET},
        {"Authorization": f"Basic {SECRET}"},
        {"Authorization": f"Bearer {SECRET}x"},
        {"Authorization": f"Bearer {SECRET[:-1]}"},
        {"Authorization": "Bearer first"},
        {"Authorization": "Bearer"},
        {"X-Api-Key": ""},
    ],
)
@pytest.mark.parametrize("path", ["/v1/predict", "/v1/models", "/metrics", "/openapi.json"])
def test_a_wrong_or_missing_key_is_refused_before_anything_is_read(guarded, headers, path):
    method = "POST" if path == "/v1/predict" else "GET"
    answer = guarded.client.request(method, path, headers=headers, content=b"{not read")
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.json()["error"]["type"] == "authentication_error"
    assert answer.headers["www-authenticate"] == "Bearer"


def test_health_and_the_studio_need_no_key(guarded):
    for path in ("/live", "/ready", "/startup", "/health", "/"):
        assert guarded.get(path).status_code == 200


def test_keys_are_read_again_and_an_unusable_file_changes_nothing(tmp_path):
    path = tmp_path / "keys.txt"
    path.write_text(f"first:{SECRET}\n")
    keys = ApiKeys(path)
    path.write_text(f"second:{OTHER}\n")
    keys.reload()
    assert keys.name_of(f"Bearer {OTHER}") == "second"
    with pytest.raises(Exception, match="expected an API key"):
        keys.name_of(f"Bearer {SECRET}")
    path.write_text("nothing here")
    with pytest.raises(InvalidInput):
        keys.reload()
    path.unlink()
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        keys.reload()
    assert keys.name_of(f"Bearer {OTHER}") == "second"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("", "at least one name:key"),
        ("# only a remark", "at least one name:key"),
        (SECRET, "line 1 .* expected name:key"),
        (f"\nname {SECRET}", "line 2"),
        (f":{SECRET}", "line 1"),
        ("name:short", "at least 8 characters"),
        (f"a:{SECRET}\na:{OTHER}", "line 2 .*'a' occurs twice"),
    ],
)
def test_a_file_of_keys_that_is_not_usable_is_refused_without_a_key_in_the_message(tmp_path, content, said):
    path = tmp_path / "keys.txt"
    path.write_text(content)
    with pytest.raises(InvalidInput, match=said) as refused:
        ApiKeys(path)
    for secret in (SECRET, OTHER, "short"):
        assert secret not in str(refused.value)


def test_no_answer_and_no_line_of_the_log_has_a_key(guarded):
    with logged(guarded) as lines:
        for key, body in ((SECRET, ASK), (SECRET, {"model": 1}), (f"{SECRET}x", ASK)):
            answer = guarded.post("/v1/predict", body, Authorization=f"Bearer {key}")
            assert SECRET not in answer.text + str(answer.headers)
        assert len(until(lambda: len(lines()) == 3 and lines())) == 3
        assert SECRET not in json.dumps(lines())


# --- from where ---


def test_pages_of_other_sites_are_not_allowed_unless_asked_for(plain):
    asked = {"Origin": "https://example.org", "Access-Control-Request-Method": "POST"}
    assert not [name for name in plain.get("/v1/models", **asked).headers if name.startswith("access-control")]
    answer = plain.client.options("/v1/predict", headers=asked)
    assert answer.status_code == 405
    assert "access-control-allow-origin" not in answer.headers


def test_a_page_that_is_allowed_may_send_its_key_and_read_the_headers(folder, keys):
    with running(folder, api_keys=keys, cors_origins=["https://example.org"]) as server:
        asked = {
            "Origin": "https://example.org",
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization,content-type,x-timeout-ms",
        }
        answer = server.client.options("/v1/predict", headers=asked)
        assert answer.status_code == 200
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        assert "authorization" in answer.headers["access-control-allow-headers"].lower()
        assert server.client.options("/v1/predict", headers={**asked, "Origin": "https://evil.org"}).status_code == 400
        answer = server.post("/v1/predict", ASK, Origin="https://example.org", Authorization=f"Bearer {SECRET}")
        assert answer.headers["access-control-allow-origin"] == "https://example.org"
        assert "x-queue-time" in answer.headers["access-control-expose-headers"]
        refused = server.post("/v1/predict", ASK, Origin="https://example.org")
        assert refused.status_code == 401
        assert refused.headers["access-control-allow-origin"] == "https://example.org"
        refused = server.post("/v1/predict", ASK, Origin="https://evil.org", Authorization=f"Bearer {SECRET}")
        assert "access-control-allow-origin" not in refused.headers


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", None])
def test_what_a_page_can_send_unasked_is_refused(plain, kind):
    answer = plain.client.post(
        "/v1/predict", content=json.dumps(ASK), headers={} if kind is None else {"Content-Type": kind}
    )
    assert answer.status_code == 415


@pytest.mark.parametrize(
    "host", ["evil.org", "evil.org:80", "127.0.0.1.evil.org", "localhost.evil.org:1", "", "[::2]:80"]
)
def test_a_name_that_is_not_this_machines_is_refused(plain, host):
    for path in ("/v1/models", "/metrics"):
        answer = plain.get(path, Host=host)
        assert answer.status_code == 421
        assert answer.json()["error"]["code"] == "wrong_host"


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8080", "127.0.0.1:1", "[::1]:8080", "[::1]"])
def test_a_name_of_this_machine_is_served(plain, host):
    assert plain.get("/v1/models", Host=host).status_code == 200


def test_other_names_can_be_given(folder):
    with running(folder, hosts=["Models.Example.org"]) as server:
        assert server.get("/v1/models", Host="models.example.org:443").status_code == 200
        assert server.get("/v1/models", Host="localhost").status_code == 421


# --- how much ---


@pytest.fixture(scope="module")
def small(folder, folders):
    limits = Limits(body_bytes=5000, items=4, characters=300, tokens=60, header_seconds=0.8)
    with running(folder, folders["embedding"], folders["tagging"], limits=limits) as server:
        yield server


def refused(server, path, body, status, *said):
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    message = answer.json()["error"]["message"]
    for each in said:
        assert each in message
    return answer


def test_a_body_that_says_it_is_too_large_is_refused_unread(small):
    with connected(small.url) as client:
        client.sendall(head(more=f"{JSON}Content-Length: 5001\r\n") + b"\r\n")
        status, body = read(client)
    assert status == 413
    assert json.loads(body)["error"]["code"] == "body_too_large"
    assert "5,000 bytes" in json.loads(body)["error"]["message"]


def test_a_body_that_turns_out_too_large_is_refused(small):
    with connected(small.url) as client:
        client.sendall(head(more=f"{JSON}Transfer-Encoding: chunked\r\n") + b"\r\n")
        part = b"3e8\r\n" + b" " * 1000 + b"\r\n"
        client.sendall(part * 6)
        assert read(client)[0] == 413
    assert small.server.bytes == 0
    assert small.server.running == 0


@pytest.mark.parametrize(
    ("length", "status"), [("5000", 200), ("99999999999999999999999", 400), ("x", 400), ("-1", 400)]
)
def test_the_length_of_a_body_is_a_number(small, length, status):
    body = json.dumps(ASK).encode().ljust(5000)
    with connected(small.url) as client:
        client.sendall(head(more=f"{JSON}Content-Length: {length}\r\n") + b"\r\n" + body)
        assert read(client)[0] == status


def test_too_many_inputs_are_refused(small):
    refused(small, "/v1/predict", {**ASK, "inputs": ["w5"] * 5}, 413, "at most 4 inputs", "got 5")
    assert small.post("/v1/predict", {**ASK, "inputs": ["w5"] * 4}).status_code == 200
    for texts in (["w5"] * 5, [[5, 6]] * 5):
        refused(small, "/v1/embeddings", {"input": texts}, 400, "at most 4 inputs", "got 5")
        assert small.post("/v1/embeddings", {"input": texts[1:]}).status_code == 200
    refused(small, "/v1/rerank", {"query": "w5", "documents": ["w5"] * 5}, 400, "at most 4 inputs")
    refused(small, "/score", {"text_1": ["w5"] * 5, "text_2": ["w5"] * 5}, 400, "at most 4 inputs")


def test_the_words_of_one_text_are_one_input(small):
    words = ["w5"] * 12
    assert small.post("/v1/predict", {"model": "tagging", "inputs": [words, words]}).status_code == 200
    refused(small, "/v1/predict", {"model": "tagging", "inputs": [["w5"] * 151]}, 413, "input 0 has 302 characters")


def test_a_text_with_too_many_characters_is_refused_before_it_is_tokenised(small):
    refused(small, "/v1/predict", {**ASK, "inputs": ["w5", "x" * 301]}, 413, "input 1 has 301 characters", "300")
    refused(small, "/v1/embeddings", {"input": "x" * 301}, 400, "input 0 has 301 characters")


def test_a_request_with_too_many_tokens_is_refused(small):
    refused(small, "/v1/predict", {**ASK, "inputs": ["w5 " * 80]}, 413, "at most 60 tokens")


def test_a_slow_head_is_cut_off(small):
    with connected(small.url) as silent, connected(small.url) as slow:
        slow.sendall(b"GET /v1/models HTTP/1.1\r\nHost: ")
        begun = time.monotonic()
        assert read(slow) is None
        assert read(silent) is None
        assert time.monotonic() - begun < 10
    with connected(small.url) as client:
        client.sendall(head("/live", "", "GET") + b"\r\n")
        assert read(client)[0] == 200
        client.sendall(b"GET /l")  # a further request on the same connection
        assert read(client) is None


def test_a_slow_body_is_refused_and_frees_its_place(small, monkeypatch):
    with connected(small.url) as client:
        client.sendall(head(more=f"{JSON}Content-Length: 1000\r\n") + b'\r\n{"inputs"')
        until(lambda: small.server.bytes == 9)
        status, body = read(client)
        assert status == 408
        assert json.loads(body)["error"]["code"] == "slow_body"
        assert read(client) is None  # and it is not waited for any longer
    until(lambda: small.server.running == 0)
    assert small.server.bytes == 0


def test_a_body_that_is_refused_is_not_waited_for_either(small):
    with connected(small.url) as client:
        client.sendall(head("/v1/models", "Content-Length: 1000\r\n", "GET") + b"\r\n")
        assert read(client)[0] in (200, 408)
        assert read(client) is None


def test_a_head_that_is_too_large_is_refused(plain):
    with connected(plain.url) as client:
        client.sendall(b"GET /live HTTP/1.1\r\nHost: localhost\r\n")
        try:
            for _ in range(400):
                client.sendall(b"X-More: " + b"x" * 1000 + b"\r\n")
        except (ConnectionResetError, BrokenPipeError):
            return
        assert read(client) in ((431, b""), None)


def test_too_many_connections_are_told_to_come_again(folder):
    with running(folder, limits=Limits(connections=3)) as server, ExitStack() as stack:
        server.client.close()
        clients = [stack.enter_context(connected(server.url)) for _ in range(3)]
        for client in clients:
            client.sendall(head("/live", "", "GET") + b"\r\n")
            assert read(client)[0] == 200
        with connected(server.url) as another:
            another.sendall(head("/live", "", "GET") + b"\r\n")
            assert read(another)[0] == 503
        clients[0].close()

        def again():
            with connected(server.url) as another:
                another.sendall(head("/live", "", "GET") + b"\r\n")
                return read(another)[0] == 200

        until(again)


def test_one_request_more_than_can_be_answered_is_refused(folder):
    with running(folder, limits=Limits(requests=2)) as server, ThreadPoolExecutor() as pool:
        with held(server), connected(server.url) as slow:  # one that is not read yet takes no place
            slow.sendall(head(more=f"{JSON}Content-Length: 100\r\n") + b"\r\n")
            until(lambda: server.server.running == 1)
            asked = [pool.submit(server.post, "/v1/predict", ASK) for _ in range(2)]
            until(lambda: server.server.answering == 2)
            answer = server.post("/v1/predict", ASK)
            with connected(server.url) as late:  # refused before its body comes
                late.sendall(head(more=f"{JSON}Content-Length: 100\r\n") + b"\r\n")
                assert read(late)[0] == 429
            assert answer.status_code == 429
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["type"] == "rate_limit_error"
        assert [each.result(20).status_code for each in asked] == [200, 200]
        until(lambda: server.server.running == server.server.answering == server.server.bytes == 0)


def test_bodies_that_are_still_coming_count_towards_the_bytes_of_all(folder):
    with running(folder, limits=Limits(waiting_bytes=3000)) as server, connected(server.url) as slow:
        slow.sendall(head(more=f"{JSON}Content-Length: 9000\r\n") + b"\r\n" + b" " * 2500)
        until(lambda: server.server.bytes == 2500)
        answer = server.post("/v1/predict", {**ASK, "inputs": ["w5 " * 200]})
        assert answer.status_code == 429
        assert "bytes" in answer.json()["error"]["message"]
        slow.close()
        until(lambda: server.server.bytes == 0)
        assert server.post("/v1/predict", {**ASK, "inputs": ["w5 " * 200]}).status_code == 200


@pytest.mark.parametrize("name", ["body_bytes", "items", "requests", "header_seconds"])
def test_a_limit_of_nothing_is_refused(name):
    with pytest.raises(InvalidInput, match=f"{name} must be above 0, got 0"):
        Limits(**{name: 0})


# --- what is said and logged ---


def test_an_error_shows_no_path_and_no_trace(plain, folder, monkeypatch):
    served = next(iter(plain.server.models))
    errors = (RuntimeError(f"cannot read {folder}/secret"), InvalidInput(f"{folder}/model.safetensors is odd."))
    for error, status in zip(errors, (500, 422), strict=True):

        def fail(*_, error=error, **__):
            raise error

        with logged(plain) as lines, monkeypatch.context() as patch:
            patch.setattr(type(served.model), "_predictions", fail)
            answer = plain.post("/v1/predict", ASK)
            assert answer.status_code == status
            found = until(lambda status=status: lines() and lines()[-1].get("status") == status and lines())
        for text in (answer.text, json.dumps(found)):
            assert str(folder.parent) not in text
            assert "Traceback" not in text
            assert "secret" not in text
    assert answer.json()["error"]["message"] == "classification/model.safetensors is odd."


def test_what_failed_is_in_the_log_by_its_kind_and_place_without_texts(plain, monkeypatch):
    def fail(*_, **__):
        raise ZeroDivisionError("w5 w6")

    with logged(plain) as lines, monkeypatch.context() as patch:
        patch.setattr(type(next(iter(plain.server.models)).model), "_predictions", fail)
        assert plain.post("/v1/predict", ASK).json()["error"]["code"] == "internal"
        failure, line = until(lambda: len(lines()) == 2 and lines())
    assert failure["failure"] == "ZeroDivisionError"
    assert any(Path(__file__).name in place and "fail" in place for place in failure["where"])
    assert line["status"] == 500
    assert "w5" not in json.dumps([failure, line])


def test_the_log_has_one_line_a_request_and_no_texts(plain):
    with logged(plain) as lines:
        plain.post("/v1/predict", {**ASK, "inputs": ["w5 secretword"]})
        plain.post("/v1/predict", {**ASK, "inputs": ["w5 secretword"], "secretfield": 1})
        plain.get("/v1/models")
        plain.post("/v1/predict", {**ASK, "inputs": ["w5", "w6"]})
        found = until(lambda: len(lines()) == 4 and lines())
    assert "secret" not in json.dumps(found)
    first = found[0]
    assert first.keys() >= {"time", "method", "route", "status", "ms", "model", "key", "inputs", "tokens", "client"}
    assert [line["status"] for line in found] == [200, 422, 200, 200]
    assert (first["route"], first["model"], first["inputs"], first["client"]) == (
        "/v1/predict",
        "classification",
        1,
        "127.0.0.1",
    )
    assert found[3]["inputs"] == 2


def test_texts_are_logged_on_request(folder):
    with running(folder, log_texts=True) as server, logged(server) as lines:
        server.post("/v1/predict", ASK)
        (line,) = until(lines)
        assert json.loads(line["body"]) == ASK


def test_a_log_that_cannot_be_written_loses_lines_and_no_request(folder):
    with running(folder) as server, Path("/dev/full").open("wb", buffering=0) as full:
        server.server.log.stream = io.TextIOWrapper(full, line_buffering=True)
        for _ in range(20):
            assert server.post("/v1/predict", ASK).status_code == 200
        server.server.log.stream = None
        until(lambda: b"bothways_lost_log_lines_total 20.0" in server.get("/metrics").content)
