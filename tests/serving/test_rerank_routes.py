"""Reranking as Cohere's client asks for it, and classification and scores as vLLM and infinity have them."""

import cohere
import httpx
import numpy as np
import pytest
from hub_cases import write_reranker
from serving_cases import running

from bothways import PairClassifier, SentenceEmbedder, open_trained
from bothways.errors import InvalidInput
from bothways.export import export
from bothways.pretraining.task_distiller import task_to_distill
from bothways.retrieval import BiEncoder, CrossEncoder
from bothways.serving.models import open_models
from bothways.serving.settings import Opening
from task_cases import LONG, fitted, pairs

QUERY = "w5 w30"
DOCUMENTS = ["w20 w21", "w5 w30", "w6 w30 w31", "w5 w5", "w40"]


@pytest.fixture(scope="module")
def cross(bert, tmp_path_factory):
    """The folder of a model of pairs whose labels say what is relevant."""
    rows = [{**row, "label": ("no", "yes")[number % 2]} for number, row in enumerate(pairs(24))]
    folder = tmp_path_factory.mktemp("cross") / "cross"
    fitted(bert, "pairs", rows, rows[:6]).save(folder, golden=None)
    return folder


@pytest.fixture(scope="module")
def server(folders, cross):
    with running(folders["embedding"], cross, folders["classification"], folders["pairs"]) as found:
        yield found


@pytest.fixture(scope="module")
def expected(folders, cross):
    """Scores of the library by model."""
    embedder = SentenceEmbedder.from_pretrained(folders["embedding"], device="cpu")
    pair = PairClassifier.from_pretrained(cross, device="cpu")
    return {
        "embedding": BiEncoder(embedder).score(QUERY, DOCUMENTS),
        "cross": CrossEncoder(pair).score(QUERY, DOCUMENTS),
    }


def client(server, kind=cohere.ClientV2):
    return kind(api_key="unused", base_url=server.url, httpx_client=httpx.Client(timeout=20))


@pytest.mark.parametrize("name", ["embedding", "cross"])
@pytest.mark.parametrize("kind", [cohere.ClientV2, cohere.Client])
def test_coheres_client_gets_the_scores_of_the_library(server, expected, name, kind):
    found = client(server, kind).rerank(model=name, query=QUERY, documents=DOCUMENTS)
    order = np.argsort(-expected[name], kind="stable")
    assert [each.index for each in found.results] == order.tolist()
    np.testing.assert_allclose([each.relevance_score for each in found.results], expected[name][order], atol=1e-5)
    assert found.meta.billed_units.search_units == 1
    assert found.id


def test_coheres_client_gets_the_first_ones_only_and_their_texts(server):
    found = client(server).rerank(model="cross", query=QUERY, documents=DOCUMENTS, top_n=2, max_tokens_per_doc=512)
    assert len(found.results) == 2
    old = client(server, cohere.Client).rerank(
        model="cross", query=QUERY, documents=[{"text": each} for each in DOCUMENTS], return_documents=True
    )
    assert [each.document.text for each in old.results] == [DOCUMENTS[each.index] for each in old.results]


def test_coheres_client_raises_its_own_errors(server):
    with pytest.raises(cohere.errors.NotFoundError, match="Did you mean 'cross'"):
        client(server).rerank(model="crss", query=QUERY, documents=DOCUMENTS)
    with pytest.raises(cohere.errors.BadRequestError, match="documents: expected at least one"):
        client(server).rerank(model="cross", query=QUERY, documents=[])
    with pytest.raises(cohere.errors.BadRequestError, match=r"is a model for classification and cannot rerank.*cross"):
        client(server).rerank(model="classification", query=QUERY, documents=DOCUMENTS)


def test_a_model_whose_labels_do_not_say_what_is_relevant_reranks_nothing(server):
    answer = server.post("/v1/rerank", {"model": "pairs", "query": QUERY, "documents": DOCUMENTS})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "wrong_task"
    assert answer.json()["message"] == answer.json()["error"]["message"]


def test_reranking_says_what_was_not_read(server):
    body = {"model": "cross", "query": "w5", "documents": ["w6", LONG, "w7"], "on_overflow": "truncate"}
    answer = server.post("/v1/rerank", body)
    assert answer.headers["x-truncated"] == "1"
    assert "input 1: " in answer.json()["meta"]["warnings"][0]
    for on_overflow, status in (("window", 200), ("error", 400)):
        assert server.post("/v1/rerank", {**body, "on_overflow": on_overflow}).status_code == status
    answer = server.post("/v1/rerank", {**body, "model": "embedding"})
    assert answer.headers["x-truncated"] == "1"
    assert "input 1: " in answer.json()["meta"]["warnings"][0]


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("name", ["embedding", "cross"])
def test_scores_of_one_text_with_many_or_of_pairs(server, expected, path, name):
    one = server.post(path, {"model": name, "text_1": QUERY, "text_2": DOCUMENTS}).json()
    assert [each["index"] for each in one["data"]] == list(range(len(DOCUMENTS)))
    np.testing.assert_allclose([each["score"] for each in one["data"]], expected[name], atol=1e-5)
    assert one["usage"]["total_tokens"] > 0
    many = server.post(path, {"model": name, "text_1": [QUERY] * len(DOCUMENTS), "text_2": DOCUMENTS})
    np.testing.assert_allclose([each["score"] for each in many.json()["data"]], expected[name], atol=1e-5)
    assert server.post(path, {"model": name, "text_1": QUERY, "text_2": DOCUMENTS[0]}).json()["data"][0][
        "score"
    ] == pytest.approx(expected[name][0], abs=1e-5)


def test_pairs_that_were_cut_are_named_by_their_place(server):
    body = {"model": "cross", "text_1": ["w5", "w6"], "text_2": ["w7", LONG], "on_overflow": "truncate"}
    assert server.post("/score", body).headers["x-truncated"] == "1"


@pytest.mark.parametrize(("first", "second"), [([], []), ("w5", []), ([], "w5"), (["w5"] * 3, ["w5"] * 2)])
def test_scores_of_nothing_are_refused(server, first, second):
    answer = server.post("/score", {"model": "cross", "text_1": first, "text_2": second})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("text_1", "text_2")


def test_a_long_query_for_many_documents_is_refused_before_it_is_tokenised(server):
    answer = server.post("/v1/rerank", {"query": "x" * 100_000, "documents": ["w5"] * 500})
    assert answer.status_code == 400
    assert "too many for 500 texts" in answer.json()["message"]


@pytest.mark.parametrize("path", ["/classify", "/v1/classify"])
def test_classification_gives_all_probabilities(server, folders, path):
    texts = ["w5 w30", "w6", LONG]
    model = open_trained(folders["classification"])
    found = server.post(path, {"model": "classification", "input": texts}).json()
    for text, each in zip(texts, found["data"], strict=True):
        expected = model.predict(text)
        assert each["label"] == expected.label
        assert dict(zip(found["labels"], each["probs"], strict=True)) == pytest.approx(expected.probabilities, abs=1e-5)
        assert each["num_classes"] == len(expected.probabilities)
        assert each["scores"][0]["label"] == expected.label
    one = server.post(path, {"model": "classification", "input": texts[0]}).json()
    assert one["data"][0]["probs"] == pytest.approx(found["data"][0]["probs"], abs=1e-5)
    assert server.post(path, {"input": []}).status_code == 400
    assert server.post(path, {"model": "embedding", "input": "w5"}).json()["error"]["code"] == "wrong_task"


# --- rerankers of other programs, which have a single output ---

TOLD = Opening(tasks={"told": "pairs"})


@pytest.fixture(scope="module")
def theirs(tmp_path_factory):
    """Folders of a reranker, and of one whose files look like those of a model of single texts."""
    folder = tmp_path_factory.mktemp("theirs")
    write_reranker(folder / "reranker")
    return write_reranker(folder / "number", problem_type="regression").parent


@pytest.fixture(scope="module")
def published(theirs):
    with running(theirs / "reranker", theirs / "number", f"told={theirs / 'number'}", opening=TOLD) as found:
        yield found


@pytest.fixture(scope="module")
def logits(theirs):
    """The outputs of transformers for the query with each document."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(theirs / "reranker" / "tokenizer.json"),
        pad_token="[PAD]",
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
    )
    model = transformers.AutoModelForSequenceClassification.from_pretrained(theirs / "reranker").eval()
    given = tokenizer([QUERY] * len(DOCUMENTS), DOCUMENTS, padding=True, return_tensors="pt")
    return model(**given).logits[:, 0].detach().numpy()


@pytest.mark.parametrize("name", ["reranker", "told"])
def test_a_published_reranker_ranks_in_every_form(published, logits, name):
    order = np.argsort(-logits, kind="stable").tolist()
    found = published.post("/v1/rerank", {"model": name, "query": QUERY, "documents": DOCUMENTS}).json()["results"]
    assert [each["index"] for each in found] == order
    np.testing.assert_allclose([each["relevance_score"] for each in found], logits[order], atol=1e-5)
    for raw, expected in ((True, logits), (False, 1 / (1 + np.exp(-logits)))):
        body = {"model": name, "query": QUERY, "texts": DOCUMENTS, "raw_scores": raw}
        found = published.post("/rerank", body).json()
        assert [each["index"] for each in found] == order
        np.testing.assert_allclose([each["score"] for each in found], expected[order], atol=1e-5)
    found = published.post("/score", {"model": name, "text_1": QUERY, "text_2": DOCUMENTS}).json()["data"]
    np.testing.assert_allclose([each["score"] for each in found], logits, atol=1e-5)
    pairs = [[QUERY, document] for document in DOCUMENTS]
    found = published.post("/v1/predict", {"model": name, "inputs": pairs}).json()["predictions"]
    np.testing.assert_allclose([each["value"] for each in found], logits, atol=1e-5)


def test_a_published_model_of_single_texts_ranks_nothing_but_says_who_does(published):
    answer = published.post("/v1/rerank", {"model": "number", "query": QUERY, "documents": DOCUMENTS})
    assert answer.status_code == 400
    assert "reranker, told" in answer.json()["message"]


def test_a_task_for_a_model_that_is_not_there_is_refused(theirs):
    with pytest.raises(InvalidInput, match="'ranker', which is no model here: the models are reranker"):
        open_models([str(theirs / "reranker")], [], Opening(device="cpu", tasks={"ranker": "pairs"}))


@pytest.mark.slow
@pytest.mark.parametrize("head", [None, "sequence"])
def test_an_exported_cross_encoder_ranks_as_before(tmp_path, head):
    folder = write_reranker(tmp_path / "theirs", problem_type="regression")
    (folder / "config_sentence_transformers.json").write_text('{"model_type": "CrossEncoder", "prompts": {}}')
    export(folder, tmp_path / "exported", format="onnx", head=head)
    with running(folder, tmp_path / "exported") as server:
        body = {"query": QUERY, "texts": DOCUMENTS, "raw_scores": True}
        found = [server.post("/rerank", {**body, "model": name}).json() for name in ("theirs", "exported")]
    assert [each["index"] for each in found[0]] == [each["index"] for each in found[1]]
    np.testing.assert_allclose(*([each["score"] for each in own] for own in found), atol=1e-4)


@pytest.mark.slow
def test_a_cross_encoder_of_sentence_transformers_ranks_as_there(tmp_path):
    transformers = pytest.importorskip("transformers")
    folder = write_reranker(tmp_path / "base", problem_type="regression")
    special = {f"{name}_token": f"[{name.upper()}]" for name in ("unk", "cls", "sep", "pad", "mask")}
    special["model_input_names"] = ["input_ids", "token_type_ids", "attention_mask"]
    transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"), **special).save_pretrained(
        folder
    )
    theirs = pytest.importorskip("sentence_transformers").CrossEncoder(str(folder), device="cpu")
    theirs.save_pretrained(str(tmp_path / "theirs"))
    expected = theirs.predict([(QUERY, document) for document in DOCUMENTS])
    with running(tmp_path / "theirs") as server:
        found = server.post("/rerank", {"query": QUERY, "texts": DOCUMENTS}).json()
    order = np.argsort(-expected, kind="stable")
    assert [each["index"] for each in found] == order.tolist()
    np.testing.assert_allclose([each["score"] for each in found], expected[order], atol=1e-5)
    assert task_to_distill(tmp_path / "theirs", "theirs") == "pairs"
