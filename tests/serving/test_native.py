"""The server's own routes: several kinds of models, explanations, judgements, searches, and what they say."""

import itertools
import json

import numpy as np
import pytest
from serving_cases import running

from bothways import FillMask, SemanticSearch, SentenceEmbedder, open_trained
from bothways.explain import attribute
from bothways.export import export
from bothways.judging import Judge, Triple
from bothways.retrieval import Dense, Hybrid, Lexical, RowBatch, SearchIndex, build_index
from bothways.retrieval.postgres.retrievers import DenseRows
from bothways.serving.models import Models
from bothways.serving.settings import Limits
from judging.judging_cases import LABEL, triples
from task_cases import CASES, LONG, close

ASK = {"model": "classification", "inputs": ["w5 w6"]}


@pytest.fixture(scope="module")
def server(composed, folders):
    models = (folders["classification"], *(composed / name for name in ("ensemble", "several", "judge")))
    with running(*models, folders["tagging"], indexes=[str(composed / "index")]) as found:
        yield found


def ask(server, path, body, status=200):
    answer = server.post(path, body)
    assert answer.status_code == status, answer.text
    return answer.json()


def said(server, path, body, status=422):
    return ask(server, path, body, status)["error"]


# --- kinds of models ---


@pytest.mark.parametrize("name", ["ensemble", "several"])
def test_composed_models_answer_as_in_the_library(server, composed, name):
    inputs = ["w5 w30", "w6", "w7 w8 w9", LONG]
    model = open_trained(composed / name)
    expected = json.loads(json.dumps([each.to_dict() for each in model.predict_stream(inputs, show_progress=False)]))
    found = ask(server, "/v1/predict", {"model": name, "inputs": inputs})
    assert close(found["predictions"], expected)
    assert found["usage"]["inputs"] == 4
    assert found["usage"]["tokens"] > 45


@pytest.mark.slow
def test_exported_models_answer_as_in_the_library(folders, tmp_path):
    heads = {"classification": "sequence", "tagging": "token", "embedding": None}
    for name, head in heads.items():
        export(folders[name], tmp_path / name, format="onnx", head=head, golden=None)
    inputs = ["w5 w30", LONG]
    with running(*(tmp_path / name for name in heads)) as server:
        for name in ("classification", "tagging"):
            assert server.get(f"/v1/models/{name}").json()["engine"] == "onnxruntime"
            expected = [each.to_dict() for each in open_trained(tmp_path / name).predict(inputs)]
            found = ask(server, "/v1/predict", {"model": name, "inputs": inputs})
            assert close(found["predictions"], json.loads(json.dumps(expected)))
        expected = SentenceEmbedder.from_pretrained(tmp_path / "embedding").encode(inputs)
        found = ask(server, "/v1/embeddings", {"input": inputs})
        np.testing.assert_allclose([each["embedding"] for each in found["data"]], expected, atol=1e-6)
        cut = server.post("/v1/predict", {"model": "tagging", "inputs": inputs, "on_overflow": "truncate"})
        assert cut.headers["x-truncated"] == "1"
        found = ask(server, "/v1/explain", {"model": "classification", "input": "w5 w30 w31"})["explanation"]
        (expected,) = attribute(open_trained(tmp_path / "classification"), ["w5 w30 w31"], "leave-one-out")
        assert close(found, json.loads(json.dumps(expected.to_dict())))


def test_one_task_of_several_can_be_asked(server, composed):
    found = ask(server, "/v1/predict", {"model": "several", "task": "beast", "inputs": ["w5 w30"]})
    expected = open_trained(composed / "several", task="beast").predict("w5 w30").to_dict()
    assert close(found["predictions"], [json.loads(json.dumps(expected))])
    error = said(server, "/v1/predict", {"model": "several", "task": "best", "inputs": ["w5"]})
    assert "its tasks are: animal, beast" in error["message"]
    assert "it has one task" in said(server, "/v1/predict", {**ASK, "task": "animal"})["message"]


def test_one_task_of_several_answers_in_the_json_of_hugging_face(server, composed):
    part = open_trained(composed / "several", task="beast")
    for parameters in ({}, {"function_to_apply": "softmax"}):
        found = ask(server, "/models/several/beast", {"inputs": "w5 w30", "parameters": parameters})
        expected = part.predict("w5 w30", calibrated=None if not parameters else False).probabilities
        assert {each["label"]: each["score"] for each in found[0]} == pytest.approx(expected, abs=1e-5)
    for name, status, words in (
        ("several", 422, ("(animal, beast)", "ask /models/several/animal", "/v1/predict")),
        ("several/best", 422, ("its tasks are: animal, beast",)),
        ("tagging/animal", 404, ("no model 'tagging/animal'",)),
    ):
        message = said(server, f"/models/{name}", {"inputs": "w5"}, status)
        assert all(each in message for each in words), message


def test_models_are_listed_with_what_they_can_do(server):
    listed = server.get("/v1/models").json()
    by_name = {each["id"]: each for each in listed["data"]}
    assert list(by_name) == [*("classification", "ensemble", "several", "judge", "tagging")]
    assert by_name["classification"]["engine"] == "torch"
    assert by_name["classification"]["labels"] == ["ant", "bee", "cow"]
    assert by_name["several"]["task"] == "multitask"
    assert "judge" in by_name["judge"]["abilities"]
    assert by_name["judge"]["dimension"] == LABEL
    assert listed["indexes"] == [{"id": "index", "object": "index", "texts": 4}]
    for name in by_name:
        shown = server.get(f"/v1/models/{name}").json()
        assert shown["schemas"].keys() == {"input", "options", "prediction"}
        assert shown["id"] == name


def test_a_wrong_name_is_not_found_with_the_nearest(server):
    for answer in (server.get("/v1/models/ensmble"), server.post("/v1/predict", {**ASK, "model": "ensmble"})):
        assert answer.status_code == 404
        assert "Did you mean 'ensemble'?" in answer.json()["error"]["message"]
        assert answer.json()["error"]["code"] == "model_not_found"
    assert "Did you mean 'index'?" in said(server, "/v1/search", {"index": "indx", "query": "w5"}, 404)["message"]


# --- options, long texts, bad inputs ---


def test_options_are_those_of_the_prediction(server, folders):
    found = ask(server, "/v1/predict", {**ASK, "options": {"top": 1}})
    expected = open_trained(folders["classification"]).predict(ASK["inputs"], top=1)
    assert close(found["predictions"], [each.to_dict() for each in expected])
    for options in ({"tpo": 1}, {"self": 1}, {"": 1}):
        assert said(server, "/v1/predict", {**ASK, "options": options})["code"] in ("unknown_option", "invalid_value")


@pytest.mark.parametrize(
    ("name", "options", "words"),
    [
        ("question-answering", {"top": 101}, "top must be at most 100, got 101"),
        ("question-answering", {"max_answer_tokens": 201}, "max_answer_tokens must be at most 200, got 201"),
        ("masked_lm", {"top": 10**6}, "top must be at most 1,000, got 1,000,000"),
        ("masked_lm", {"beam": 201}, "beam must be at most 200, got 201"),
        ("masked_lm", {"words": ["w5"] * 1001}, "expected at most 1,000 words, got 1,001"),
    ],
)
def test_options_that_cost_more_than_the_texts_have_limits(everything, name, options, words):
    inputs = ["w5 [MASK]"] if name == "masked_lm" else [["w5", "w5 w6 w7"]]
    assert words in said(everything, "/v1/predict", {"model": name, "inputs": inputs, "options": options})["message"]
    schema = everything.get(f"/v1/models/{name}").json()["schemas"]["options"]["properties"]
    (option,) = options
    most = schema[option]["maxItems" if option == "words" else "maximum"]
    allowed = {option: ["w5"] * most if option == "words" else most}
    ask(everything, "/v1/predict", {"model": name, "inputs": inputs, "options": allowed})


@pytest.mark.parametrize("name", ["classification", "several", "tagging"])
def test_long_texts_are_read_in_windows_cut_or_refused_as_the_request_says(server, name):
    body = {"model": name, "inputs": ["w5", LONG]}
    whole = ask(server, "/v1/predict", {**body, "on_overflow": "window"})
    assert whole["warnings"] == []
    cut = server.post("/v1/predict", {**body, "on_overflow": "truncate"})
    assert cut.headers["x-truncated"] == cut.headers["x-warnings"] == "1"
    assert cut.json()["warnings"] == ["input 1: 29 tokens were not read"]
    assert cut.json()["usage"]["tokens"] < whole["usage"]["tokens"]
    error = said(server, "/v1/predict", {**body, "on_overflow": "error"})
    assert error["code"] == "text_too_long"
    assert "text 2" in error["message"]
    # Not remembered by the thread or the model.
    assert ask(server, "/v1/predict", body)["warnings"] == []


def test_long_texts_with_masks_are_read_around_the_mask_cut_or_refused_as_the_request_says(everything, folders):
    text = f"{LONG} w5 [MASK] w6 {LONG}"
    answers = {}
    for policy in ("window", "truncate", "truncate_left", "error"):
        body = {"model": "masked_lm", "inputs": [text], "on_overflow": policy}
        if policy in ("truncate", "truncate_left", "error"):
            assert said(everything, "/v1/predict", body)["code"] == "text_too_long"
        found = everything.post("/models/masked_lm", {"inputs": text, "parameters": {"on_overflow": policy}})
        assert found.status_code == (200 if policy == "window" else 422)
    for policy, text in (("window", f"{LONG} [MASK] w5"), ("truncate_left", f"{LONG} [MASK] w5")):
        answers[policy] = ask(
            everything, "/v1/predict", {"model": "masked_lm", "inputs": [text], "on_overflow": policy}
        )
    assert answers["window"] == answers["truncate_left"]
    cut = ask(
        everything, "/v1/predict", {"model": "masked_lm", "inputs": [f"w5 [MASK] {LONG}"], "on_overflow": "truncate"}
    )
    expected = FillMask.from_pretrained(folders["masked_lm"], on_overflow="truncate").predict(f"w5 [MASK] {LONG}")
    assert close(cut["predictions"][0], json.loads(json.dumps(expected.to_dict())))
    assert cut["warnings"] == ["input 0: 31 tokens were not read"]


def test_a_bad_input_fails_the_request_or_only_itself(server, folders):
    inputs = ["w5", "", "w6 w7", 5, {"txt": "w5"}, "w7"]
    assert said(server, "/v1/predict", {**ASK, "inputs": inputs})["code"] == "invalid_value"
    found = ask(server, "/v1/predict", {**ASK, "inputs": inputs, "errors": "per_item"})["predictions"]
    model = open_trained(folders["classification"])
    for text, each in zip(inputs, found, strict=True):
        if text in ("w5", "w6 w7", "w7"):
            assert close(each, model.predict(text).to_dict())
        else:
            assert each.keys() == {"error"}
            assert each["error"]["message"]


def test_a_nan_is_no_answer_alone_or_beside_others(server, monkeypatch):
    served = next(iter(server.server.models))
    runner = served.model.backend.runner.windows
    original = type(runner).run

    def sometimes_nan(self, windows):
        found = original(self, windows)
        if self is runner and found and not isinstance(found[0], tuple):
            found = [row * np.nan if 40 in window.ids else row for window, row in zip(windows, found, strict=True)]
        return found

    monkeypatch.setattr(type(runner), "run", sometimes_nan)
    answer = server.post("/v1/predict", {**ASK, "inputs": ["w5", "w40"]})
    assert answer.status_code == 500
    assert answer.json()["error"]["code"] == "not_finite"
    found = ask(server, "/v1/predict", {**ASK, "inputs": ["w5", "w40", "w6"], "errors": "per_item"})["predictions"]
    assert [each.get("error", {}).get("code") for each in found] == [None, "not_finite", None]


# --- places in texts ---

# Code points, UTF-16 units and bytes all differ: an emoji with a modifier, a combining mark, Chinese.
ODD = "👍🏽 é w5 日本 w6 👩‍👩‍👧 w5"


@pytest.mark.parametrize("unit", ["code_points", "utf16", "bytes"])
@pytest.mark.parametrize("form", [str, str.split, lambda text: {"tokens": text.split()}, lambda text: {"text": text}])
def test_places_of_tags_are_in_the_unit_of_the_client(server, unit, form):
    codec = {"code_points": "utf-32-le", "utf16": "utf-16-le", "bytes": "utf-8"}[unit]
    width = {"code_points": 4, "utf16": 2, "bytes": 1}[unit]
    coded = ODD.encode(codec)
    found = ask(server, "/v1/predict", {"model": "tagging", "inputs": [form(ODD)], "offsets": unit})
    (prediction,) = found["predictions"]
    assert len(prediction["words"]) > 6
    for each in [*prediction["spans"], *prediction["words"]]:
        assert coded[each["start"] * width : each["end"] * width].decode(codec) == each["text"]


@pytest.mark.parametrize("unit", ["utf16", "bytes"])
def test_places_of_answers_and_explanations_are_in_the_unit_of_the_client(everything, unit):
    codec, width = ("utf-16-le", 2) if unit == "utf16" else ("utf-8", 1)
    question = {"context": f"{ODD} w10 w11", "question": "👍🏽 w5"}
    coded = question["context"].encode(codec)
    body = {"model": "question-answering", "inputs": [question], "offsets": unit}
    (found,) = ask(everything, "/v1/predict", body)["predictions"]
    if found["start"] is not None:
        assert coded[found["start"] * width : found["end"] * width].decode(codec) == found["answer"]
    # The columns in another order than the texts are read.
    for name, value, read in (
        ("classification", ODD, [ODD]),
        ("pairs", {"text_b": f"w6 {ODD}", "text_a": "é w5 👍🏽"}, ["é w5 👍🏽", f"w6 {ODD}"]),
        ("tagging", ODD.split(), [ODD]),
        ("multiple_choice", {"choices": ["w6 👍🏽 w7", "w5"], "context": ODD}, [ODD, "w6 👍🏽 w7", "w5"]),
    ):
        found = ask(everything, "/v1/explain", {"model": name, "input": value, "offsets": unit})["explanation"]
        for word in found["words"]:
            coded = read[word["part"]].encode(codec)
            assert coded[word["start"] * width : word["end"] * width].decode(codec) == word["word"], name


# --- explanations ---


@pytest.mark.parametrize("method", [None, "integrated-gradients", "gradient-x-input", "leave-one-out"])
def test_explanations_are_those_of_the_library(server, folders, method):
    model = open_trained(folders["classification"])
    (expected,) = attribute(model, ["w5 w30 w31"], method or "integrated-gradients")
    found = ask(server, "/v1/explain", {"model": "classification", "input": "w5 w30 w31", "method": method})
    assert close(found["explanation"], json.loads(json.dumps(expected.to_dict())))
    assert found["model"] == "classification"


@pytest.mark.parametrize(
    ("method", "label", "passes"),
    [
        ("integrated-gradients", None, 1 + 32 + 2),
        ("integrated-gradients", "cow", 32 + 2),
        ("gradient-x-input", None, 1 + 1 + 1),
    ],
)
def test_the_tokens_of_all_passes_of_an_explanation_are_counted(server, method, label, passes):
    body = {"model": "classification", "input": "w5 w30 w31", "method": method, "label": label}
    answer = server.post("/v1/explain", body)
    assert answer.json()["usage"] == {"inputs": 1, "tokens": passes * 5}
    assert answer.headers["x-compute-tokens"] == str(passes * 5)


def test_a_label_can_be_explained_and_must_be_known(server):
    found = ask(server, "/v1/explain", {"model": "classification", "input": "w5 w30", "label": "cow"})
    assert found["explanation"]["label"] == "cow"
    assert (
        "cow" in said(server, "/v1/explain", {"model": "classification", "input": "w5 w30", "label": "cwo"})["message"]
    )


def test_an_ensemble_is_explained_by_leaving_out_words(server, composed):
    found = ask(server, "/v1/explain", {"model": "ensemble", "input": "w5 w30 w31"})["explanation"]
    (expected,) = attribute(open_trained(composed / "ensemble"), ["w5 w30 w31"], "leave-one-out")
    assert close(found, json.loads(json.dumps(expected.to_dict())))
    error = said(server, "/v1/explain", {"model": "ensemble", "input": "w5 w30", "method": "integrated-gradients"})
    assert "leave-one-out" in error["message"]
    assert str(composed.parent) not in error["message"]


def test_an_explanation_that_would_take_too_long_is_refused(server):
    error = said(
        server, "/v1/explain", {"model": "classification", "input": "w5 " * 2000, "method": "leave-one-out"}, 413
    )
    assert "at most 4,000 characters, got 6,000" in error["message"]


# --- judges ---


def test_judgements_are_those_of_the_library(server, composed):
    asked = [{key: row[key] for key in ("query", "passage", "answer")} for row in triples(5, seed=3)]
    found = ask(server, "/v1/judge", {"inputs": asked})
    expected = Judge.open(composed / "judge", device="cpu").probabilities([Triple(**each) for each in asked])
    np.testing.assert_allclose([each["probability"] for each in found["judgements"]], expected, atol=1e-5)
    assert found["dimension"] == LABEL
    assert found["question"]
    assert found["usage"]["inputs"] == 5
    assert said(server, "/v1/judge", {"inputs": []})
    assert "cannot judge" in said(server, "/v1/judge", {"model": "ensemble", "inputs": asked})["message"]
    error = said(server, "/v1/judge", {"inputs": [{"query": "w5", "passge": "w6"}]})
    assert "'passge'" in error["message"]
    assert "Did you mean 'passage'" in error["message"]


# --- search ---


@pytest.mark.parametrize(("mode", "kind"), [("hybrid", Hybrid), ("dense", Dense), ("lexical", Lexical)])
def test_hits_are_those_of_the_library(server, composed, mode, kind):
    index = SemanticSearch.open(composed / "index", device="cpu")
    found = ask(server, "/v1/search", {"query": "w5 w30", "mode": mode, "top": 3})
    expected = index.search("w5 w30", 3, mode=kind(), show_progress=False)
    assert [each["id"] for each in found["hits"]] == [each.id for each in expected]
    np.testing.assert_allclose([each["score"] for each in found["hits"]], [each.score for each in expected], atol=1e-5)
    assert found["hits"][0]["text"] == expected[0].text
    assert found["hits"][0]["rank"] == 1
    assert found["index"] == "index"


def test_hits_can_be_filtered_by_fields(server):
    found = ask(server, "/v1/search", {"query": "w5", "filters": ["year>=2002"], "mode": "dense"})
    assert {each["id"] for each in found["hits"]} == {"t2", "t3"}
    assert {each["fields"]["year"] for each in found["hits"]} == {2002, 2003}
    assert said(server, "/v1/search", {"query": "w5", "filters": ["yaer>=2002"]})
    assert said(server, "/v1/search", {"query": "w5", "filters": ["year"]})
    for body in (
        {"query": ""},
        {"query": "w5", "mode": "lexical", "exact": True},
        {"query": "w5", "top": 0},
        {"query": "w5", "top": 1001},
        {"query": "w5", "mode": "best"},
    ):
        assert said(server, "/v1/search", body)


def test_a_search_of_a_table_is_exact_if_asked(composed, postgres, monkeypatch):
    files, address = SearchIndex.open(composed / "index"), postgres.new_table()
    build_index(address, [RowBatch(files.vectors_ND, files.texts)], encoder=files.encoder)
    approximate, scans = DenseRows._approximate, []
    monkeypatch.setattr(DenseRows, "_approximate", lambda *given: scans.append(given) or approximate(*given))
    with running(indexes=[address]) as server:
        for mode, exact in itertools.product(("dense", "hybrid"), (False, True)):
            ask(server, "/v1/search", {"query": "w5", "mode": mode, "exact": exact})
            assert bool(scans) is not exact
            scans.clear()


def test_a_server_without_an_index_or_an_able_model_says_so(everything):
    assert "this server has no index" in said(everything, "/v1/search", {"query": "w5"}, 404)["message"]
    error = said(everything, "/v1/judge", {"inputs": [{"query": "w5"}]})
    assert "none of the models can judge" in error["message"]


def test_a_server_of_indexes_alone_names_the_route_that_answers(composed):
    with running(indexes=[str(composed / "index")]) as server:
        assert ask(server, "/v1/search", {"query": "w5"})["index"] == "index"
        for path, body in (("/v1/predict", {"inputs": ["w5"]}), ("/v1/judge", {"inputs": [{"query": "w5"}]})):
            message = said(server, path, body)["message"]
            assert message == (
                "this server has no model, only indexes (index): ask /v1/search, or serve a model beside them."
            )
        assert said(server, "/v1/predict", {"model": "x", "inputs": ["w5"]}, 404)
        assert "only indexes" in server.get("/info").json()["error"]


def test_models_of_the_same_name_are_refused(folders, composed):
    from bothways.errors import InvalidInput
    from bothways.serving.models import open_models
    from bothways.serving.settings import Opening

    with pytest.raises(InvalidInput, match=r"two models would be called 'tagging'.*other="):
        open_models([str(folders["tagging"]), f"tagging={composed / 'several'}"], [], Opening())
    found = open_models([f"new={folders['tagging']}"], [], Opening(device="cpu"))
    assert [each.name for each in found] == ["new"]
    assert isinstance(found, Models)


def test_every_task_has_its_own_schema_that_its_questions_fit(everything):
    import jsonschema

    for name, case in CASES.items():
        schemas = everything.get(f"/v1/models/{name}").json()["schemas"]
        if name == "embedding":
            continue
        for question in case.questions():
            jsonschema.validate({column: question[column] for column in case.inputs}, schemas["input"])
        for answer in ask(everything, "/v1/predict", {"model": name, "inputs": case.questions()})["predictions"]:
            jsonschema.validate(answer, schemas["prediction"])


def test_limits_hold_for_every_task(everything):
    limits = everything.server.settings.limits
    assert limits == Limits()
    for name, case in CASES.items():
        question = case.questions()[0]
        key = case.inputs[-1]
        question = {
            **question,
            key: "x" * (limits.characters + 1) if isinstance(question[key], str) else ["x" * 999] * 1100,
        }
        assert said(everything, "/v1/predict", {"model": name, "inputs": [question]}, 413)["code"] == "text_too_long"
