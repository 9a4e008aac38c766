"""The routes of text-embeddings-inference: its requests, answers and errors, and where this server differs."""

import json

import numpy as np
import pytest
from hub_cases import BAD, entailing, let_client_call, overflowing, write_hub_model, write_reranker
from huggingface_hub import InferenceClient
from serving_cases import running

from bothways import PairClassifier, SentenceEmbedder, TextClassifier
from bothways.export import export
from bothways.serving.api.tei_forms import tei_form
from bothways.serving.errors import Problem, Refused
from task_cases import LONG, close, fitted, scored

PAIR = ["w5 w20", "w6"]


@pytest.fixture(scope="module")
def ranking(bert, folders, tmp_path_factory):
    """A server of an embedder, a classifier of pairs with a label for relevant ones, and a model of grades."""
    folder = tmp_path_factory.mktemp("ranking")
    graded = fitted(bert, "pairs", scored(24), scored(12), score="score")
    graded.save(folder / "graded", golden=None)
    with running(folders["embedding"], entailing(bert, folder / "entailing"), folder / "graded") as server:
        yield server


@pytest.fixture(scope="module")
def overflown(tmp_path_factory):
    """A server of models that compute NaN for one word."""
    folder = tmp_path_factory.mktemp("overflowing")
    with running(*(overflowing(folder / name, name) for name in ("encoder", "nli"))) as server:
        yield server


def embedded(folders, texts, **options):
    return SentenceEmbedder.from_pretrained(folders["embedding"]).encode(texts, **options)


# --- golden requests: what a client of text-embeddings-inference sends, and the form that it reads ---


def vector(value):
    return isinstance(value, list) and len(value) == 24 and all(isinstance(each, float) for each in value)


def predictions(value):
    scores = [each["score"] for each in value]
    return all(list(each) == ["score", "label"] for each in value) and scores == sorted(scores, reverse=True)


def tokens(value):
    return all(list(each) == ["id", "text", "special", "start", "stop"] for each in value)


def every(form):
    return lambda value: bool(value) and all(map(form, value))


GOLDEN = [
    ("/embed", {"inputs": "w5 w6"}, every(vector)),
    ("/embed", {"inputs": ["w5", "w6"], "truncate": None, "truncation_direction": "Right"}, every(vector)),
    ("/embed", {"inputs": [1, 5, 2]}, every(vector)),
    ("/embed", {"inputs": [[1, 5, 2], [1, 6, 7, 2]], "normalize": False}, every(vector)),
    ("/embed", {"inputs": "w5", "prompt_name": None, "dimensions": None}, every(vector)),
    ("/embed_all", {"inputs": "w5 w6", "truncate": True}, every(every(vector))),
    ("/embed_all", {"inputs": ["w5", "w6 w7"]}, every(every(vector))),
    ("/predict", {"inputs": "w5 w6"}, predictions),
    ("/predict", {"inputs": ["w5", "w6"], "raw_scores": True}, predictions),
    ("/predict", {"inputs": [["w5"], ["w6"]]}, every(predictions)),
    ("/predict", {"inputs": [["w5", "w6"], ["w7", "w8"]], "truncate": False}, every(predictions)),
    ("/rerank", {"query": "w5", "texts": ["w6", "w5"]}, every(lambda each: list(each) == ["index", "score"])),
    (
        "/rerank",
        {"query": "w5", "texts": ["w6", "w5"], "return_text": True, "raw_scores": True},
        every(lambda each: list(each) == ["index", "text", "score"]),
    ),
    (
        "/similarity",
        {"inputs": {"source_sentence": "w5", "sentences": ["w5", "w6"]}, "parameters": {"truncate": False}},
        every(lambda each: isinstance(each, float)),
    ),
    ("/tokenize", {"inputs": "w5 w6"}, every(tokens)),
    ("/tokenize", {"inputs": ["w5", "w6"], "add_special_tokens": False}, every(tokens)),
    ("/", {"inputs": "w5"}, predictions),
    ("/invocations", {"inputs": ["w5", "w6"], "model": "embedding"}, every(vector)),
    ("/vertex", {"instances": [{"inputs": "w5"}]}, lambda value: every(predictions)(value["predictions"])),
    ("/decode", {"ids": [1, 5, 6, 2]}, ["w5 w6"].__eq__),
    ("/decode", {"ids": [[1, 5, 2], [6]], "skip_special_tokens": False}, ["[CLS] w5 [SEP]", "w6"].__eq__),
]


@pytest.mark.parametrize(("path", "body", "form"), GOLDEN)
def test_requests_and_answers_are_those_of_its_clients(everything, path, body, form):
    answer = everything.post(path, body)
    assert answer.status_code == 200, answer.text
    assert form(answer.json()), answer.text


def test_its_client_embeds(everything, folders, monkeypatch):
    let_client_call(monkeypatch)
    client = InferenceClient(model=f"{everything.url}/embed")
    assert np.allclose(client.feature_extraction(["w5", "w6"], normalize=True), embedded(folders, ["w5", "w6"]))
    client = InferenceClient(model=f"{everything.url}/similarity")
    assert client.sentence_similarity("w5", other_sentences=["w5"]) == [pytest.approx(1)]


def test_the_model_is_described(everything, ranking):
    found = everything.get("/info").json()
    assert list(found) == [
        *("model_id", "model_sha", "model_dtype", "served_model_name", "model_type", "max_concurrent_requests"),
        *("max_input_length", "max_batch_tokens", "max_batch_requests", "max_client_batch_size", "auto_truncate"),
        *("tokenization_workers", "version", "sha", "docker_label"),
    ]
    assert found["model_type"]["classifier"]["id2label"] == {"0": "ant", "1": "bee", "2": "cow"}
    assert (found["max_input_length"], found["auto_truncate"]) == (18, False)
    assert ranking.get("/info").json()["model_type"] == {"embedding": {"pooling": "mean"}}


# --- vectors ---


def test_vectors_are_those_of_the_library(everything, folders):
    texts = ["w5 w20", "w6", LONG]
    assert np.allclose(everything.post("/embed", {"inputs": texts}).json(), embedded(folders, texts), atol=1e-6)
    raw = everything.post("/embed", {"inputs": texts, "normalize": False}).json()
    assert np.allclose(raw, embedded(folders, texts, unit_length=False), atol=1e-5)
    short = everything.post("/embed", {"inputs": texts, "dimensions": 5}).json()
    assert np.allclose(short, embedded(folders, texts, dimensions=5), atol=1e-6)


def test_token_ids_are_used_as_they_are(everything, folders):
    ids = everything.post("/embed", {"inputs": [[1, 5, 20, 2], [5, 20]]}).json()
    assert np.allclose(ids[0], embedded(folders, ["w5 w20"])[0], atol=1e-6)
    assert not np.allclose(ids[0], ids[1], atol=1e-3)


def test_what_was_cut_is_said(everything, folders):
    cut = everything.post("/embed", {"inputs": ["w5", LONG], "truncate": True})
    assert cut.headers["x-truncated"] == "1"
    assert np.allclose(cut.json()[1], embedded(folders, [" ".join(LONG.split()[:16])])[0], atol=1e-6)
    whole = everything.post("/embed", {"inputs": LONG})
    assert "x-truncated" not in whole.headers
    assert int(whole.headers["x-compute-tokens"]) > 45
    refused = everything.post("/embed", {"inputs": LONG, "truncate": False})
    assert refused.status_code == 422
    assert "45 tokens" in refused.json()["error"]


@pytest.mark.parametrize("direction", ["left", "Left"])
def test_long_texts_are_cut_on_the_left_if_the_request_says_so(everything, folders, direction):
    body = {"inputs": ["w5", LONG], "truncate": True, "truncation_direction": direction}
    cut = everything.post("/embed", body)
    assert cut.headers["x-truncated"] == "1"
    assert np.allclose(cut.json()[1], embedded(folders, [" ".join(LONG.split()[-16:])])[0], atol=1e-6)
    for truncate, status in ((None, 200), (False, 422)):
        answer = everything.post("/embed", {**body, "truncate": truncate})
        assert answer.status_code == status
        assert "x-truncated" not in answer.headers
    last = " ".join(LONG.split()[-16:])
    found = [everything.post("/predict", {**body, "inputs": text}).json() for text in (LONG, last)]
    assert [each["score"] for each in found[0]] == pytest.approx([each["score"] for each in found[1]], abs=1e-5)


def test_a_model_that_cuts_by_itself_cuts_where_the_request_says(folders, tmp_path):
    SentenceEmbedder.from_pretrained(folders["embedding"], on_overflow="truncate").save(tmp_path / "cut", golden=None)
    with running(tmp_path / "cut") as server:
        assert server.get("/info").json()["auto_truncate"] is True
        found = server.post("/embed", {"inputs": LONG, "truncation_direction": "left"}).json()
    assert np.allclose(found, embedded(folders, [" ".join(LONG.split()[-16:])]), atol=1e-6)


def test_each_token_has_a_vector(everything):
    (one,) = everything.post("/embed_all", {"inputs": "w5 w20"}).json()
    assert np.array(one).shape == (4, 24)
    pooled = everything.post("/embed", {"inputs": "w5 w20", "normalize": False}).json()
    assert np.allclose(np.mean(one, axis=0), pooled[0], atol=1e-5)
    (ids,) = everything.post("/embed_all", {"inputs": [1, 5, 20, 2]}).json()
    assert np.allclose(ids, one, atol=1e-6)


def test_tokens_in_several_windows_have_one_vector(everything):
    (whole,) = everything.post("/embed_all", {"inputs": LONG}).json()
    assert len(whole) == 45 + 2
    cut = everything.post("/embed_all", {"inputs": LONG, "truncate": True})
    assert cut.headers["x-truncated"] == "1"
    assert len(cut.json()[0]) == 18
    # The first tokens stand farthest from the ends in the first window.
    assert np.allclose(whole[:9], cut.json()[0][:9], atol=1e-6)
    assert not np.allclose(whole[-1], cut.json()[0][-1], atol=1e-3)


def test_vectors_of_too_many_tokens_are_refused(everything, monkeypatch):
    monkeypatch.setattr("bothways.serving.api.tei_vectors.MOST_NUMBERS", 24 * 10)
    assert everything.post("/embed_all", {"inputs": ["w5 " * 5] * 2}).status_code == 200
    answer = everything.post("/embed_all", {"inputs": ["w5 " * 5, "w6 " * 6]})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
    assert "at most 10 tokens" in answer.json()["error"]


@pytest.mark.slow
def test_an_exported_model_embeds_texts_and_no_tokens(folders, tmp_path):
    export(folders["embedding"], tmp_path / "exported", format="onnx")
    with running(tmp_path / "exported") as server:
        assert np.allclose(
            server.post("/embed", {"inputs": ["w5", LONG]}).json(), embedded(folders, ["w5", LONG]), atol=1e-4
        )
        answer = server.post("/embed_all", {"inputs": "w5"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")
    assert "exported model" in answer.json()["error"]


def test_similarities_are_cosines(everything, folders):
    inputs = {"source_sentence": "w5", "sentences": ["w5", "w6 w20"]}
    found = everything.post("/similarity", {"inputs": inputs}).json()
    source, *others = embedded(folders, ["w5", "w5", "w6 w20"])
    assert np.allclose(found, [source @ other for other in others], atol=1e-5)
    assert max(found) <= 1


def test_the_alias_of_openais_route_answers_as_it_does(everything):
    body = {"input": ["w5", "w6"], "model": "embedding"}
    alias, own = (everything.post(path, body) for path in ("/embeddings", "/v1/embeddings"))
    assert alias.status_code == 200
    assert alias.json() == own.json()
    refused = everything.post("/embeddings", {"input": "w5", "dimensions": 1000})
    assert refused.status_code == 422
    assert refused.json()["code"] == 422
    assert refused.json()["type"] == "Validation"
    assert refused.json()["message"] == refused.json()["error"]["message"]
    empty = everything.post("/embeddings", {"input": []})
    assert (empty.status_code, empty.json()["type"]) == (400, "Empty")


# --- headers, and the routes of whatever the model answers ---


def test_headers_tell_of_the_computation(everything):
    for path, body, characters in (
        ("/embed", {"inputs": ["w5", "w6 é"]}, 6),
        ("/embed", {"inputs": [1, 5, 2]}, None),
        ("/predict", {"inputs": [["w5", "w6"]], "model": "pairs"}, 4),
        ("/rerank", {"query": "w20", "texts": ["w6", "w5"], "model": "embedding"}, 7),
        ("/vertex", {"instances": [{"inputs": "w5"}] * 3}, 6),
    ):
        headers = everything.post(path, body).headers
        assert headers["x-compute-type"] == "cpu"
        assert headers.get("x-compute-characters") == (None if characters is None else str(characters))
        assert int(headers["x-compute-tokens"]) > 0
        times = [int(headers[f"x-{name}-time"]) for name in ("total", "queue", "inference")]
        assert times[0] >= times[2] >= 0
        assert "x-tokenization-time" not in headers
    assert "x-compute-type" not in everything.post("/tokenize", {"inputs": "w5"}).headers


@pytest.mark.parametrize("path", ["/", "/invocations"])
def test_the_first_model_answers_or_the_one_that_is_named(ranking, path):
    for body, other in (
        ({"inputs": ["w5", LONG], "truncate": True}, "/embed"),
        ({"inputs": PAIR, "model": "entailing", "raw_scores": True}, "/predict"),
        ({"query": "w5", "texts": ["w6", "w5"], "return_text": True, "model": "graded"}, "/rerank"),
        ({"query": "w5", "texts": ["w6", "w5"], "model": "embedding"}, "/rerank"),
    ):
        found, expected = ranking.post(path, body), ranking.post(other, body)
        assert found.status_code == 200
        assert found.json() == expected.json()
        assert found.headers.get("x-truncated") == expected.headers.get("x-truncated")


def test_instances_are_answered_one_by_one(ranking):
    bodies = [{"inputs": [LONG, LONG], "truncate": True}, {"inputs": PAIR, "model": "entailing"}, {"inputs": "w5"}]
    found = ranking.post("/vertex", {"instances": bodies})
    assert found.json() == {"predictions": [ranking.post("/", body).json() for body in bodies]}
    assert found.headers["x-truncated"] == "2"
    one = {"inputs": LONG, "truncate": True}
    several = [one, {"query": "w5", "texts": [LONG, LONG], "model": "graded", "truncate": True}, one, one]
    assert ranking.post("/vertex", {"instances": several}).headers["x-truncated"] == "5"


def test_the_page_stays_where_it_is(everything):
    assert "text/html" in everything.get("/").headers["content-type"]


# --- labels and ranks ---


def test_probabilities_are_those_of_the_library(everything, folders):
    classifier = TextClassifier.from_pretrained(folders["classification"])
    expected = classifier.predict("w5 w20").probabilities
    found = everything.post("/predict", {"inputs": "w5 w20"}).json()
    assert {each["label"]: each["score"] for each in found} == pytest.approx(expected, abs=1e-5)
    raw = everything.post("/predict", {"inputs": [["w5 w20"]], "raw_scores": True}).json()[0]
    uncalibrated = classifier.predict("w5 w20", calibrated=False).probabilities
    exponentials = {each["label"]: np.exp(each["score"]) for each in raw}
    total = sum(exponentials.values())
    assert {label: value / total for label, value in exponentials.items()} == pytest.approx(uncalibrated, abs=1e-5)


def test_a_flat_list_of_two_texts_is_one_pair(everything, folders):
    expected = PairClassifier.from_pretrained(folders["pairs"]).predict(tuple(PAIR)).probabilities
    for inputs in (PAIR, [PAIR]):
        found = everything.post("/predict", {"inputs": inputs}).json()
        found = found if inputs is PAIR else found[0]
        assert {each["label"]: each["score"] for each in found} == pytest.approx(expected, abs=1e-5)
    assert len(everything.post("/predict", {"inputs": [["w5 w20"], ["w6"]]}).json()) == 2


def test_a_classifier_of_another_program_reads_texts_and_pairs_in_one_batch(tmp_path):
    write_hub_model(tmp_path / "nli", "nli")
    write_reranker(tmp_path / "reranker")
    with running(tmp_path / "nli", tmp_path / "reranker") as server:
        for model in ("nli", "reranker"):
            for raw in (True, False):
                body = {"model": model, "raw_scores": raw}
                mixed = server.post("/predict", {**body, "inputs": [["w5 w20"], PAIR, ["w6"]]})
                assert mixed.status_code == 200, mixed.text
                alone = [server.post("/predict", {**body, "inputs": each}).json() for each in ("w5 w20", PAIR, "w6")]
                assert close(mixed.json(), alone)
        text, pair = (TextClassifier, "w5 w20"), (PairClassifier, tuple(PAIR))
        found = server.post("/predict", {"inputs": [["w5 w20"], PAIR]}).json()
        for (kind, value), each in zip((text, pair), found, strict=True):
            expected = kind.from_pretrained(tmp_path / "nli", device="cpu").predict(value).probabilities
            assert {one["label"]: one["score"] for one in each} == pytest.approx(expected, abs=1e-5)
        inputs = ["w5 w20", {"text": PAIR[0], "text_pair": PAIR[1]}]
        assert [each[0]["score"] for each in server.post("/models/nli", {"inputs": inputs}).json()] == pytest.approx(
            [each[0]["score"] for each in found], abs=1e-5
        )


def ranks(server, **body):
    answer = server.post("/rerank", {"query": "w20", "texts": ["w5", "w6", "w7"], **body})
    assert answer.status_code == 200, answer.text
    found = answer.json()
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    return {each["index"]: each["score"] for each in found}


def test_a_model_that_reads_pairs_ranks_before_an_embedder(ranking):
    assert ranks(ranking) == ranks(ranking, model="entailing") != ranks(ranking, model="embedding")


@pytest.mark.parametrize("model", ["entailing", "graded"])
def test_raw_scores_are_log_odds(ranking, model):
    raw, scores = ranks(ranking, model=model, raw_scores=True), ranks(ranking, model=model)
    assert {place: 1 / (1 + np.exp(-value)) for place, value in raw.items()} == pytest.approx(scores, abs=1e-6)
    assert len(set(scores.values())) == 3


def test_an_embedder_ranks_by_similarity(everything):
    texts = ["w6 w20", "w5", "w7"]
    answer = everything.post("/rerank", {"query": "w5", "texts": texts, "return_text": True, "model": "embedding"})
    found = answer.json()
    assert (found[0]["index"], found[0]["text"]) == (1, "w5")
    assert {each["text"] for each in found} == set(texts)


# --- tokens ---


@pytest.mark.parametrize(
    ("offsets", "cut"),
    [
        (None, lambda text, start, stop: text.encode()[start:stop].decode()),
        ("code_points", lambda text, start, stop: text[start:stop]),
        ("utf16", lambda text, start, stop: text.encode("utf-16-le")[2 * start : 2 * stop].decode("utf-16-le")),
    ],
)
def test_places_count_in_the_unit_that_is_asked_for(everything, offsets, cut):
    text = "w5 💙é 日本 w6"
    body = {"inputs": text} if offsets is None else {"inputs": text, "offsets": offsets}
    (found,) = everything.post("/tokenize", body).json()
    assert [each["text"] for each in found] == ["[CLS]", "w5", "💙é", "日本", "w6", "[SEP]"]
    assert [each["special"] for each in found] == [True, False, False, False, False, True]
    assert (found[0]["start"], found[0]["stop"]) == (None, None)
    for each in found[1:-1]:
        assert cut(text, each["start"], each["stop"]) == each["text"]


def test_tokens_are_those_that_the_model_reads(everything):
    (found,) = everything.post("/tokenize", {"inputs": LONG}).json()
    assert len(found) == 45 + 2
    (bare,) = everything.post("/tokenize", {"inputs": LONG, "add_special_tokens": False}).json()
    assert bare == found[1:-1]
    assert everything.post("/decode", {"ids": [each["id"] for each in found]}).json() == [LONG]


# --- errors ---

BAD_REQUESTS = [
    ("/embed", {"input": "w5"}, 422, "Validation", "Did you mean 'inputs'?"),
    ("/embed", {"inputs": "w5", "normalise": True}, 422, "Validation", "Did you mean 'normalize'?"),
    ("/embed", {"inputs": 5}, 422, "Validation", "inputs: expected"),
    ("/embed", {"inputs": ["w5", [1]]}, 422, "Validation", "all of one kind"),
    ("/embed", {"inputs": [1, "w5"]}, 422, "Validation", "all of one kind"),
    ("/embed", {"inputs": [[]]}, 422, "Validation", "1 to 18 token ids"),
    ("/embed", {"inputs": [61]}, 422, "Validation", "from 0 to 60"),
    ("/embed", {"inputs": [-1]}, 422, "Validation", ">= 0"),
    ("/embed", {}, 422, "Validation", "inputs"),
    ("/embed", {"inputs": []}, 400, "Empty", "inputs: expected at least one"),
    ("/embed", {"inputs": " "}, 422, "Validation", "text 1 is empty"),
    ("/embed", {"inputs": "w5", "dimensions": 0}, 422, "Validation", "dimensions"),
    ("/embed", {"inputs": "w5", "dimensions": 25}, 422, "Validation", "between 1 and 24"),
    ("/embed", {"inputs": "w5", "truncation_direction": "middle"}, 422, "Validation", "truncation_direction"),
    ("/embed", {"inputs": "w5", "prompt_name": "query me"}, 422, "Validation", "query me"),
    ("/embed", {"inputs": [1, 5, 2], "prompt_name": "query"}, 422, "Validation", "token ids"),
    ("/embed", {"inputs": "w5", "model": "embeding"}, 404, "Validation", "Did you mean 'embedding'?"),
    ("/embed", {"inputs": "w5", "model": "tagging"}, 424, "Backend", "cannot embed"),
    ("/embed", {"inputs": "w5 " * 20, "truncate": False}, 422, "Validation", "20 tokens"),
    ("/embed_all", {"inputs": []}, 400, "Empty", "inputs: expected at least one"),
    ("/embed_all", {"inputs": [61]}, 422, "Validation", "from 0 to 60"),
    ("/embed_all", {"inputs": [[5] * 19]}, 422, "Validation", "1 to 18 token ids"),
    ("/embed_all", {"inputs": "w5", "normalize": True}, 422, "Validation", "'normalize'"),
    ("/embed_sparse", {"inputs": "w5"}, 424, "Backend", "sparse vectors"),
    ("/predict", {"inputs": []}, 400, "Empty", "inputs: expected at least one"),
    ("/predict", {"inputs": ["w5", "w6", "w7"]}, 422, "Validation", "[['a'], ['b']]"),
    ("/predict", {"inputs": ["w5", ["w6"]]}, 422, "Validation", "[['a'], ['b']]"),
    ("/predict", {"inputs": [["w5"], ["w5", "w6"]]}, 422, "Validation", "several requests"),
    ("/predict", {"inputs": [["w5", "w6", "w7"]]}, 422, "Validation", "one text each, or of two"),
    ("/predict", {"inputs": [[]]}, 422, "Validation", "one text each, or of two"),
    ("/", {"inputs": []}, 400, "Empty", "inputs: expected at least one"),
    ("/", {"input": "w5"}, 422, "Validation", "Did you mean 'inputs'?"),
    ("/", {"query": "w5", "texts": ["w6"]}, 424, "Backend", "cannot rerank"),
    ("/invocations", {"inputs": "w5", "model": "tagging"}, 424, "Backend", "cannot classify"),
    ("/vertex", {"instances": []}, 400, "Empty", "instances: expected at least one"),
    ("/vertex", {"instances": [{"inputs": "w5"}, 5]}, 422, "Validation", "expected"),
    ("/vertex", {"inputs": "w5"}, 422, "Validation", "'inputs'"),
    ("/predict", {"inputs": "w5", "raw_scores": "yes"}, 422, "Validation", "raw_scores"),
    ("/predict", {"inputs": "w5", "model": "pairs"}, 424, "Backend", "does not classify single texts"),
    ("/predict", {"inputs": PAIR, "model": "classification"}, 424, "Backend", "does not classify pairs"),
    ("/predict", {"inputs": "w5", "model": "tagging"}, 424, "Backend", "cannot classify"),
    ("/rerank", {"query": "w5", "texts": []}, 400, "Empty", "texts: expected at least one"),
    ("/rerank", {"query": "w5", "texts": "w6"}, 422, "Validation", "texts: expected"),
    ("/rerank", {"query": "w5", "documents": ["w6"]}, 422, "Validation", "'documents'"),
    ("/rerank", {"query": "w5", "texts": ["w6"], "model": "pairs"}, 424, "Backend", "cannot rerank"),
    ("/similarity", {"inputs": {"source_sentence": "w5", "sentences": []}}, 400, "Empty", "sentences: expected"),
    ("/similarity", {"inputs": {"source_sentence": "w5", "sentence": []}}, 422, "Validation", "mean 'sentences'?"),
    (
        "/similarity",
        {"inputs": {"source_sentence": "w5", "sentences": ["w6"]}, "parameters": {"truncat": True}},
        *(422, "Validation", "Did you mean 'truncate'?"),
    ),
    ("/tokenize", {"inputs": []}, 400, "Empty", "inputs: expected at least one"),
    ("/tokenize", {"inputs": ["w5", ""]}, 422, "Validation", "text 2 is empty"),
    ("/tokenize", {"inputs": "w5", "prompt_name": "query"}, 422, "Validation", "no prompts"),
    ("/tokenize", {"inputs": "w5", "offsets": "letters"}, 422, "Validation", "offsets"),
    ("/tokenize", {"inputs": "w5 \ud800"}, 400, "Validation", "JSON"),
    ("/decode", {"ids": []}, 400, "Empty", "ids: expected at least one"),
    ("/decode", {"ids": [[5], []]}, 400, "Empty", "ids: expected at least one"),
    ("/decode", {"ids": [5, [6]]}, 422, "Validation", "all of one kind"),
    ("/decode", {"ids": [61]}, 422, "Tokenizer", "no token has the id 61"),
    ("/decode", {"ids": [2**32]}, 422, "Validation", "ids"),
]


@pytest.mark.parametrize(("path", "body", "status", "kind", "words"), BAD_REQUESTS)
def test_a_bad_request_is_refused_in_its_form(everything, path, body, status, kind, words):
    content = json.dumps(body).encode()
    answer = everything.client.post(path, content=content, headers={"content-type": "application/json"})
    assert (answer.status_code, list(answer.json())) == (status, ["error", "error_type"]), answer.text
    assert answer.json()["error_type"] == kind
    assert words in answer.json()["error"]


def test_a_body_that_is_no_json_is_refused_in_its_form(everything):
    answer = everything.client.post("/embed", content=b"{", headers={"content-type": "application/json"})
    assert (answer.status_code, answer.json()["error_type"]) == (400, "Validation")
    answer = everything.client.post("/embed", content=b"{}", headers={"content-type": "text/plain"})
    assert (answer.status_code, answer.json()["error_type"]) == (415, "Validation")


def test_too_many_texts_are_a_matter_of_validation(everything):
    answer = everything.post("/embed", {"inputs": ["w5"] * 2049})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")
    answer = everything.post("/tokenize", {"inputs": "w5 " * 300_001})
    assert (answer.status_code, answer.json()["error_type"]) == (422, "Validation")


@pytest.mark.parametrize(
    ("problem", "status", "kind"),
    [
        (Refused.busy("full", 3).problem, 429, "Overloaded"),
        (Refused.stopping().problem, 503, "Unhealthy"),
        (Refused.starting().problem, 503, "Unhealthy"),
        (Refused.deadline().problem, 504, "Overloaded"),
        (Refused.not_finite().problem, 424, "Backend"),
        (Problem(500, "failed", "internal"), 500, "Backend"),
        (Problem(413, "large", "body_too_large"), 413, "Validation"),
        (Problem(401, "no key", "invalid_api_key"), 401, "Validation"),
    ],
)
def test_problems_of_the_server_have_its_kinds(problem, status, kind):
    assert tei_form(problem) == (status, {"error": problem.message, "error_type": kind})


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/embed", {"inputs": ["w5", BAD]}),
        ("/embed_all", {"inputs": BAD}),
        ("/similarity", {"inputs": {"source_sentence": "w5", "sentences": [BAD]}}),
        ("/predict", {"inputs": BAD}),
        ("/predict", {"inputs": BAD, "raw_scores": True}),
        ("/rerank", {"query": "w5", "texts": [BAD]}),
        ("/embeddings", {"input": BAD}),
    ],
)
def test_numbers_that_are_not_finite_are_no_answer(overflown, path, body):
    answer = overflown.post(path, body)
    assert answer.status_code == 424, answer.text
    assert "Backend" in answer.text
    assert "NaN" in answer.text


def test_other_texts_of_such_a_model_are_answered(overflown):
    assert overflown.post("/embed", {"inputs": "w5"}).status_code == 200
    assert overflown.post("/predict", {"inputs": "w5"}).status_code == 200


def test_the_routes_are_described(everything):
    paths = everything.get("/openapi.json").json()["paths"]
    assert {path for path, _, _ in GOLDEN} | {"/embed_sparse", "/embeddings", "/info"} <= paths.keys()
