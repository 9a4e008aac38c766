"""Embeddings as OpenAI's client asks for them."""

import base64
import json
import threading
import time
from types import SimpleNamespace

import numpy as np
import openai
import pytest
from process_cases import until
from serving_cases import running

from bothways import SentenceEmbedder
from task_cases import LONG

TEXTS = ["w5 w30", "w6", "w7 w8 w9 w10"]


@pytest.fixture(scope="module")
def server(folders):
    with running(folders["embedding"], folders["classification"]) as found:
        yield found


@pytest.fixture(scope="module")
def embedder(folders):
    return SentenceEmbedder.from_pretrained(folders["embedding"], device="cpu")


@pytest.fixture(scope="module")
def expected(embedder):
    return embedder.encode(TEXTS)


def client(server, **options):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="unused", **{"max_retries": 0, **options})


def vectors(found):
    assert [each.index for each in found.data] == list(range(len(found.data)))
    return np.array([each.embedding for each in found.data], dtype=np.float32)


# --- what is asked for ---


@pytest.mark.parametrize("encoding", ["float", "base64", None])
def test_openais_client_gets_the_vectors_of_the_library(server, expected, encoding):
    """Without an encoding the client asks for base64, and decodes it itself."""
    more = {} if encoding is None else {"encoding_format": encoding}
    found = client(server).embeddings.create(model="embedding", input=TEXTS, **more)
    if encoding == "base64":
        rows = np.array([np.frombuffer(base64.b64decode(each.embedding), "<f4") for each in found.data])
    else:
        rows = vectors(found)
    np.testing.assert_allclose(rows, expected, atol=1e-6)
    assert found.model == "embedding"
    assert found.object == "list"
    assert found.usage.prompt_tokens == found.usage.total_tokens == 4 + 3 + 6


def test_one_text_is_a_list_of_one(server, expected):
    found = client(server).embeddings.create(model="embedding", input=TEXTS[0])
    np.testing.assert_allclose(vectors(found), expected[:1], atol=1e-6)


def test_token_ids_are_used_as_they_are(server, embedder, expected):
    """With the special tokens they give the vectors of the texts, and without them others."""
    whole = [embedder.backend.tokenizer.encode([text], max_length=18)[0].windows[0].ids for text in TEXTS]
    found = client(server).embeddings.create(model="embedding", input=[list(each) for each in whole])
    np.testing.assert_allclose(vectors(found), expected, atol=1e-6)
    assert found.usage.prompt_tokens == 4 + 3 + 6
    one = client(server).embeddings.create(model="embedding", input=list(whole[0]))
    np.testing.assert_allclose(vectors(one), expected[:1], atol=1e-6)
    bare = vectors(client(server).embeddings.create(model="embedding", input=[list(whole[0][1:-1])]))
    assert np.abs(bare - expected[:1]).max() > 1e-3


def test_fewer_dimensions_have_unit_length_again(server, expected):
    found = vectors(client(server).embeddings.create(model="embedding", input=TEXTS, dimensions=7))
    lengths = np.linalg.norm(expected[:, :7], axis=1, keepdims=True)
    np.testing.assert_allclose(found, expected[:, :7] / lengths, atol=1e-6)


@pytest.mark.parametrize(("kind", "dtype"), [("f16", "<f2"), ("int8", "i1"), ("binary", "u1")])
def test_other_types_of_numbers(server, expected, kind, dtype):
    ask = {"model": "embedding", "input": TEXTS, "extra_body": {"embed_dtype": kind}}
    found = client(server).embeddings.create(encoding_format="float", **ask)
    rows = np.array([each.embedding for each in found.data])
    coded = client(server).embeddings.create(encoding_format="base64", **ask)
    sent = np.array([np.frombuffer(base64.b64decode(each.embedding), dtype) for each in coded.data])
    np.testing.assert_allclose(sent, rows, atol=1e-3)
    match kind:
        case "f16":
            np.testing.assert_allclose(rows, expected, atol=1e-3)
        case "int8":
            assert np.abs(rows).max(axis=1).tolist() == [127] * len(TEXTS)
            cosines = (rows * expected).sum(1) / np.linalg.norm(rows, axis=1) / np.linalg.norm(expected, axis=1)
            assert cosines.min() > 0.999
        case "binary":
            np.testing.assert_array_equal(np.unpackbits(sent, axis=1), expected > 0)


def test_a_long_text_is_read_in_windows_cut_or_refused(server, embedder):
    found = client(server).embeddings.create(model="embedding", input=[LONG])
    np.testing.assert_allclose(vectors(found), embedder.encode([LONG]), atol=1e-6)
    ask = {"model": "embedding", "input": ["w5", LONG], "encoding_format": "float"}
    raw = client(server).embeddings.with_raw_response.create(**ask, extra_body={"on_overflow": "truncate"})
    assert raw.headers["x-truncated"] == "1"
    assert "input 1: " in json.loads(raw.text)["warnings"][0]
    with pytest.raises(openai.BadRequestError, match=r"text 2 .*18") as refused:
        client(server).embeddings.create(**ask, extra_body={"on_overflow": "error"})
    assert refused.value.code == "text_too_long"


# --- what is refused ---


@pytest.mark.parametrize(
    ("asked", "said", "param"),
    [
        ({"input": []}, "at least one text, got an empty list", "input"),
        ({"input": ""}, "empty", None),
        ({"input": ["w5", " "]}, "text 2 is empty", None),
        ({"input": ["w5", 5]}, "all of one kind", "input"),
        ({"input": [5, "w5"]}, "all of one kind", "input"),
        ({"input": [[5], "w5"]}, "all of one kind", "input"),
        ({"input": [[]]}, "expected 1 to 18 token ids for text 1, got 0", None),
        ({"input": [[5], [5] * 19]}, "expected 1 to 18 token ids for text 2, got 19", None),
        ({"input": [61]}, "token ids from 0 to 60", None),
        ({"input": [-1]}, "token ids from 0 to 60", None),
        ({"input": [10**30]}, "token ids from 0 to 60", None),
        ({"input": [True]}, "expected", "input[0]"),
        ({"input": {"text": "w5"}}, "expected", "input"),
        ({"input": None}, "expected", "input"),
        ({"dimensions": 0}, ">= 1", "dimensions"),
        ({"dimensions": 25}, "between 1 and 24, got 25", "dimensions"),
        ({"encoding_format": "hex"}, "encoding_format", "encoding_format"),
        ({"embed_dtype": "f64"}, "embed_dtype", "embed_dtype"),
        ({"inptu": "w5"}, "Did you mean 'input'", "inptu"),
        ({"prompt_name": "qery"}, "prompt", None),
    ],
)
def test_what_cannot_be_embedded_is_a_bad_request_in_openais_envelope(server, asked, said, param):
    body = {"model": "embedding", "input": "w5", **asked}
    with pytest.raises(openai.BadRequestError) as refused:
        client(server).post("/embeddings", body=body, cast_to=object)
    error = refused.value
    assert said in error.message
    assert error.type == "invalid_request_error"
    assert error.param == param
    assert error.body.keys() == {"message", "type", "param", "code"}


def test_a_wrong_model_is_not_found_with_the_nearest_name(server):
    with pytest.raises(openai.NotFoundError, match="Did you mean 'embedding'") as missing:
        client(server).embeddings.create(model="embeding", input="w5")
    assert (missing.value.code, missing.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.BadRequestError, match="cannot embed: the models that can are: embedding"):
        client(server).embeddings.create(model="classification", input="w5")


def test_openais_client_lists_the_models(server):
    listed = {each.id: each for each in client(server).models.list()}
    assert listed.keys() == {"embedding", "classification"}
    assert listed["embedding"].object == "model"
    assert listed["embedding"].created > 1_600_000_000
    assert client(server).models.retrieve("classification").task == "classification"
    with pytest.raises(openai.NotFoundError, match="Did you mean 'classification'"):
        client(server).models.retrieve("clasification")


def test_a_wrong_key_is_told_in_openais_words(folders, tmp_path):
    (tmp_path / "keys").write_text("me:a-key-that-is-right\n")
    with running(folders["embedding"], api_keys=tmp_path / "keys") as server:
        right = client(server).copy(api_key="a-key-that-is-right")
        assert right.embeddings.create(model="embedding", input="w5").data
        with pytest.raises(openai.AuthenticationError) as refused:
            client(server).embeddings.create(model="embedding", input="w5")
        assert refused.value.code == "invalid_api_key"


# --- when there is no room ---


def patched_sleep(monkeypatch, sleep):
    """Call a function where the client would sleep."""
    monkeypatch.setattr("openai._base_client.time", SimpleNamespace(**{**vars(time), "sleep": sleep}))


@pytest.mark.parametrize("status", [429, 503])
def test_openais_client_waits_as_long_as_it_is_told_and_tries_again(server, monkeypatch, status):
    """The first try finds a long queue or a server that is stopping."""
    state, waits = server.server, []

    def waited(seconds):
        waits.append(seconds)
        state.draining, state.queue.rate, state.queue.tokens = False, 0.0, 0

    patched_sleep(monkeypatch, waited)
    if status == 429:
        state.queue.rate, state.queue.tokens = 100.0, 1700
    else:
        state.draining = True
    found = client(server, max_retries=2).embeddings.create(model="embedding", input="w5")
    assert len(found.data) == 1
    assert waits == [12 if status == 429 else 1]


def test_a_server_that_is_starting_is_waited_for(folders, monkeypatch):
    opened = threading.Event()

    def slowly(self):
        opened.wait(20)

    monkeypatch.setattr("bothways.serving.models.Models.warm_up", slowly)
    with running(folders["embedding"], wait=False) as server:
        assert server.get("/live").status_code == 200
        for path in ("/ready", "/startup", "/v1/models"):
            assert server.get(path).status_code == 503
            assert server.get(path).headers["retry-after"] == "1"
        patched_sleep(monkeypatch, lambda _: opened.set() or until(lambda: server.server.models))
        assert client(server, max_retries=1).embeddings.create(model="embedding", input="w5").data
        for path in ("/ready", "/startup", "/v1/models"):
            assert server.get(path).status_code == 200
