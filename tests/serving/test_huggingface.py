"""The JSON of Hugging Face's tasks: with its client, its own pipelines as a reference, and bad requests."""

import base64
import json
import math

import numpy as np
import pytest
from hub_cases import BAD, HUB, entailing, let_client_call, overflowing, write_hub_model
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from serving_cases import running

from bothways import Ensemble, FillMask, PairClassifier, QuestionAnswerer, SentenceEmbedder, TextClassifier, TextTagger
from bothways.serving.api.huggingface_tags import TaggedPart, grouped
from task_cases import LONG, close

QUESTION = {"question": "w5", "context": "💙 w25 w5 w10 w11 w30"}
WORDS = "w5ab w7 w9c w10de w12"


@pytest.fixture
def client(everything, monkeypatch):
    """Makes clients of the hub that call a model of the server."""
    let_client_call(monkeypatch)
    return lambda name: InferenceClient(model=f"{everything.url}/models/{name}")


@pytest.fixture(scope="module")
def hub_folders(tmp_path_factory):
    """Folders of models that other programs saved."""
    folder = tmp_path_factory.mktemp("hub")
    return {name: write_hub_model(folder / name, name) for name in HUB}


@pytest.fixture(scope="module")
def hub(hub_folders, bert, tmp_path_factory):
    """A server of models that other programs saved, and of a trained model of entailment with a path for a name."""
    trained = entailing(bert, tmp_path_factory.mktemp("trained") / "entailing")
    with running(*hub_folders.values(), f"org/entailing={trained}") as server:
        yield server


@pytest.fixture(scope="module")
def overflown(tmp_path_factory):
    """A server of models that compute NaN for one word."""
    folder = tmp_path_factory.mktemp("overflowing")
    with running(*(overflowing(folder / name, name) for name in HUB)) as server:
        yield server


def answer(server, name, inputs, **parameters):
    found = server.post(f"/models/{name}", {"inputs": inputs, "parameters": parameters})
    assert found.status_code == 200, found.text
    return found.json()


# --- the client of the hub ---


def test_the_client_classifies(client, folders):
    found = client("classification").text_classification("w5 w20")
    expected = TextClassifier.from_pretrained(folders["classification"]).predict("w5 w20").probabilities
    assert {each.label: each.score for each in found} == pytest.approx(expected, abs=1e-5)
    assert [each.score for each in found] == sorted((each.score for each in found), reverse=True)
    assert client("classification").text_classification("w5 w20", top_k=1) == found[:1]


def test_the_client_tags(client, folders):
    found = client("tagging").token_classification("w5 💙 w6", ignore_labels=[])
    expected = TextTagger.from_pretrained(folders["tagging"]).predict("w5 💙 w6")
    assert [text for each in found for text in each.word.split()] == ["w5", "💙", "w6"]
    assert {each.entity_group for each in found} >= {span.label for span in expected.spans}
    assert all("w5 💙 w6"[each.start : each.end] == each.word for each in found)


def test_the_client_answers_questions(client, folders):
    found = client("question-answering").question_answering(**QUESTION)
    model = QuestionAnswerer.from_pretrained(folders["question-answering"])
    expected = model.predict(tuple(QUESTION.values()), threshold=-math.inf)
    assert (found.answer, found.start, found.end) == (expected.answer, expected.start, expected.end)
    assert found.score == pytest.approx(expected.probability, abs=1e-5)
    several = client("question-answering").question_answering(**QUESTION, top_k=3, max_answer_len=2)
    assert len(several) == 3
    assert all(len(each.answer.split()) <= 2 for each in several)


def test_the_client_fills_masks(client, folders):
    found = client("masked_lm").fill_mask("w5 [MASK] w20", top_k=3)
    (expected,) = FillMask.from_pretrained(folders["masked_lm"]).predict("w5 [MASK] w20", top=3).masks
    assert [each.token_str for each in found] == [each.word for each in expected]
    assert [each.score for each in found] == pytest.approx([each.probability for each in expected], abs=1e-5)
    assert all(each.sequence == f"w5 {each.token_str} w20" and each.token == int(each.token_str[1:]) for each in found)
    only = client("masked_lm").fill_mask("w5 [MASK] w20", targets=["w7", "w8"])
    assert {each.token_str for each in only} == {"w7", "w8"}


def test_the_client_compares_and_embeds(client, folders):
    model = SentenceEmbedder.from_pretrained(folders["embedding"])
    vectors = model.encode(["w5", "w6", "w7 w20"])
    embedding = client("embedding")
    assert np.allclose(embedding.sentence_similarity("w5", ["w6", "w7 w20"]), vectors[1:] @ vectors[0], atol=1e-5)
    assert np.allclose(embedding.feature_extraction("w5"), vectors[:1], atol=1e-6)
    raw = embedding.feature_extraction(["w5", "w6"], normalize=False, truncate=True)
    assert np.allclose(raw, model.encode(["w5", "w6"], unit_length=False), atol=1e-5)


def test_the_client_classifies_without_training(hub, monkeypatch):
    let_client_call(monkeypatch)
    model = InferenceClient(model=f"{hub.url}/models/org/entailing")
    found = model.zero_shot_classification("w20", ["w5", "w6", "w7"], hypothesis_template="{}")
    assert sorted(each.label for each in found) == ["w5", "w6", "w7"]
    assert sum(each.score for each in found) == pytest.approx(1)
    several = model.zero_shot_classification("w20", ["w5", "w7"], multi_label=True, hypothesis_template="{}")
    alone = model.zero_shot_classification("w20", ["w7"], hypothesis_template="{}")
    assert {each.label: each.score for each in several}["w7"] == pytest.approx(alone[0].score, abs=1e-5)


def test_the_client_is_told_what_is_wrong(client):
    with pytest.raises(HfHubHTTPError, match="text 1 has no mask"):
        client("masked_lm").fill_mask("w5")


# --- forms of inputs and parameters ---


def test_pairs_are_objects_of_two_texts(everything, folders):
    pair = {"text": "w5 w20", "text_pair": "w6"}
    expected = PairClassifier.from_pretrained(folders["pairs"]).predict(("w5 w20", "w6")).probabilities
    for found in (answer(everything, "pairs", pair), answer(everything, "pairs", [pair, pair])[1:]):
        assert {each["label"]: each["score"] for each in found[0]} == pytest.approx(expected, abs=1e-5)


def test_functions_are_those_of_logits(everything):
    by = {}
    for function in ("none", "softmax", "sigmoid"):
        (found,) = answer(everything, "classification", "w5 w20", function_to_apply=function)
        scores = {each["label"]: each["score"] for each in found}
        by[function] = np.array([scores[label] for label in ("ant", "bee", "cow")])
    assert np.allclose(by["sigmoid"], 1 / (1 + np.exp(-by["none"])))
    assert np.allclose(by["softmax"], np.exp(by["none"]) / np.exp(by["none"]).sum())


def test_answers_come_in_a_list_if_the_inputs_do(everything):
    texts, masked = ["w5", "w6 w20"], ["w5 [MASK]", "[MASK] w6 [MASK]"]
    for name, inputs in (("tagging", texts), ("masked_lm", masked), ("question-answering", [QUESTION] * 2)):
        parameters = {"ignore_labels": []} if name == "tagging" else {}
        alone = [answer(everything, name, each, **parameters) for each in inputs]
        assert close(answer(everything, name, inputs, **parameters), alone)
    assert len(answer(everything, "classification", texts)) == 2
    assert len(answer(everything, "embedding", texts)) == 2


def test_each_of_several_masks_has_words_and_leaves_the_others(everything):
    first, second = answer(everything, "masked_lm", "w5 [MASK] w20 [MASK]", top_k=2)
    assert [each["sequence"] for each in first] == [f"w5 {each['token_str']} w20 [MASK]" for each in first]
    assert [each["sequence"] for each in second] == [f"w5 [MASK] w20 {each['token_str']}" for each in second]


def test_the_empty_answer_is_given_if_it_may_be(everything, folders):
    model = QuestionAnswerer.from_pretrained(folders["question-answering"])
    nothing = model.predict(tuple(QUESTION.values())).no_answer_probability
    found = answer(everything, "question-answering", QUESTION, handle_impossible_answer=True, top_k=5)
    empty = [each for each in found if not each["answer"]]
    assert empty == [{"score": pytest.approx(nothing, abs=1e-5), "start": 0, "end": 0, "answer": ""}]
    assert [each["score"] for each in found] == sorted((each["score"] for each in found), reverse=True)
    assert all(each["answer"] for each in answer(everything, "question-answering", QUESTION, top_k=5))


@pytest.mark.parametrize(
    ("offsets", "cut"),
    [
        ("code_points", lambda text, start, end: text[start:end]),
        ("utf16", lambda text, start, end: text.encode("utf-16-le")[2 * start : 2 * end].decode("utf-16-le")),
        ("bytes", lambda text, start, end: text.encode()[start:end].decode()),
    ],
)
def test_places_count_in_the_unit_that_is_asked_for(everything, offsets, cut):
    found = answer(everything, "question-answering", QUESTION, offsets=offsets, top_k=3)
    for each in found:
        assert cut(QUESTION["context"], each["start"], each["end"]) == each["answer"]
    text = "💙 w5 é w6"
    for strategy in ("first", "simple", "average", "max"):
        tagged = answer(everything, "tagging", text, offsets=offsets, ignore_labels=[], aggregation_strategy=strategy)
        assert [cut(text, each["start"], each["end"]) for each in tagged] == [each["word"] for each in tagged]
        assert " ".join(each["word"] for each in tagged) == text
    tokens = answer(everything, "tagging", text, offsets=offsets, ignore_labels=[], aggregation_strategy="none")
    assert [cut(text, each["start"], each["end"]) for each in tokens] == text.split()


def test_what_was_cut_is_said(everything, hub):
    for name, inputs in (("classification", LONG), ("embedding", LONG), ("tagging", LONG)):
        found = everything.post(
            f"/models/{name}", {"inputs": ["w5", inputs], "parameters": {"on_overflow": "truncate"}}
        )
        assert found.headers["x-truncated"] == "1"
        assert "x-truncated" not in everything.post(f"/models/{name}", {"inputs": inputs}).headers
    cut = {"candidate_labels": ["w5", "w6"], "on_overflow": "truncate"}
    found = hub.post("/models/org/entailing", {"inputs": ["w5", LONG], "parameters": cut})
    assert found.headers["x-truncated"] == "1"


def test_vectors_come_in_base64(everything):
    plain = everything.post("/models/embedding", {"inputs": "w5"}).json()
    coded = everything.post("/models/embedding", {"inputs": "w5", "encoding_format": "base64"}).json()
    assert np.allclose(np.frombuffer(base64.b64decode(coded[0]), dtype="<f4"), plain[0])


def test_older_clients_send_options(everything):
    body = {"inputs": "w5", "options": {"wait_for_model": True}, "parameters": None}
    assert everything.post("/models/classification", body).status_code == 200


# --- tokens and groups ---


def test_a_word_of_several_tokens_has_the_score_of_its_strategy(hub):
    tokens = answer(hub, "ner", "w5ab", aggregation_strategy="none", ignore_labels=[])
    assert [(each["word"], each["index"]) for each in tokens] == [("w5", 1), ("##a", 2), ("##b", 3)]
    assert [(each["start"], each["end"]) for each in tokens] == [(0, 2), (2, 3), (3, 4)]
    (surest,) = answer(hub, "ner", "w5ab", aggregation_strategy="max", ignore_labels=[])
    assert surest["score"] == max(each["score"] for each in tokens)
    (mean,) = answer(hub, "ner", "w5ab", aggregation_strategy="average", ignore_labels=[])
    assert len({each["entity"] for each in tokens}) == 1
    assert mean["score"] == pytest.approx(np.mean([each["score"] for each in tokens]))
    assert (mean["word"], mean["start"], mean["end"]) == ("w5ab", 0, 4)


def test_every_token_of_a_long_text_comes_once(hub):
    text = " ".join(f"w{5 + place % 30}ab" for place in range(20))
    tokens = answer(hub, "ner", text, aggregation_strategy="none", ignore_labels=[])
    assert [each["index"] for each in tokens] == list(range(1, 61))
    assert [text[each["start"] : each["end"]] for each in tokens] == [
        piece for word in text.split() for piece in (word[:-2], "a", "b")
    ]


def test_labels_are_left_out_that_are_to_be_ignored(hub):
    found = answer(hub, "ner", WORDS, aggregation_strategy="none", ignore_labels=[])
    label = found[0]["entity"]
    rest = answer(hub, "ner", WORDS, aggregation_strategy="none", ignore_labels=[label])
    assert rest == [each for each in found if each["entity"] != label]


@pytest.mark.parametrize(
    ("tags", "groups"),
    [
        ("B-PER I-PER O B-PER B-PER", [0, 2, 3, 4]),
        ("I-PER I-PER B-LOC I-PER", [0, 2, 3]),
        ("S-PER S-PER B-LOC E-LOC I-LOC", [0, 1, 2, 4]),
        ("NOUN NOUN VERB", [0, 2]),
    ],
)
def test_neighbours_with_a_label_are_one_group(tags, groups):
    parts = [TaggedPart(tag, 0.5, place, place + 1) for place, tag in enumerate(tags.split())]
    assert [own[0].begin for own in grouped(parts)] == groups


@pytest.fixture(scope="module")
def pipelines(hub_folders):
    """Makes the pipelines of transformers."""
    import transformers

    def made(task, name, **options):
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_file=str(hub_folders[name] / "tokenizer.json"),
            model_input_names=["input_ids", "token_type_ids", "attention_mask"],
            **{f"{kind}_token": f"[{kind.upper()}]" for kind in ("unk", "cls", "sep", "pad", "mask")},
        )
        model = getattr(transformers, HUB[name][0]).from_pretrained(hub_folders[name])
        return transformers.pipeline(task, model=model, tokenizer=tokenizer, device="cpu", **options)

    return made


def as_numbers(found):
    """The fields of answers, with rounded scores."""
    return [
        {name: round(float(value), 5) if name == "score" else value for name, value in each.items()} for each in found
    ]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["none", "simple", "average", "max"])
def test_tokens_and_groups_are_those_of_the_pipeline(hub, pipelines, strategy):
    expected = pipelines("token-classification", "ner", aggregation_strategy=strategy, ignore_labels=[])(WORDS)
    assert as_numbers(answer(hub, "ner", WORDS, aggregation_strategy=strategy, ignore_labels=[])) == as_numbers(
        expected
    )


@pytest.mark.slow
def test_other_answers_are_those_of_the_pipelines(hub, pipelines):
    classify = pipelines("text-classification", "nli", top_k=None)
    for function in ("softmax", "sigmoid", "none"):
        (found,) = answer(hub, "nli", WORDS, function_to_apply=function)
        assert as_numbers(found) == as_numbers(classify(WORDS, function_to_apply=function)[0])
    fill = pipelines("fill-mask", "mlm", top_k=3)
    names = ("score", "token", "sequence")
    for found, expected in zip(answer(hub, "mlm", "w5 [MASK] w8", top_k=3), fill("w5 [MASK] w8"), strict=True):
        assert as_numbers([{name: found[name] for name in names}]) == as_numbers(
            [{name: expected[name] for name in names}]
        )
    zero_shot = pipelines("zero-shot-classification", "nli")
    for multi in (False, True):
        options = {"candidate_labels": ["w9", "w10"], "hypothesis_template": "w12 {} w8", "multi_label": multi}
        expected = zero_shot("w5 w7", **options)
        found = answer(hub, "nli", "w5 w7", **options)
        assert [each["label"] for each in found] == expected["labels"]
        assert [each["score"] for each in found] == pytest.approx(expected["scores"], abs=1e-5)


def test_an_ensemble_tags_words_and_no_tokens(folders, tmp_path):
    Ensemble.of([folders["tagging"]] * 2).save(tmp_path / "several")
    with running(tmp_path / "several", folders["tagging"]) as server:
        found = [answer(server, name, "w5 💙 w6", ignore_labels=[]) for name in ("several", "tagging")]
        assert [each["word"] for each in found[0]] == [each["word"] for each in found[1]]
        body = {"inputs": "w5", "parameters": {"aggregation_strategy": "simple"}}
        refused = server.post("/models/several", body)
    assert refused.status_code == 422
    assert "aggregation_strategy 'first'" in refused.json()["error"]


# --- errors ---

ASK = {"question": "w5", "context": "w6"}
BAD_REQUESTS = [
    ("classification", {"inputs": "w5", "parameters": {"topk": 1}}, 422, "Did you mean 'top_k'?"),
    ("classification", {"inputs": "w5", "parameter": {}}, 422, "Did you mean 'parameters'?"),
    ("classification", {"inputs": "w5", "parameters": {"top_k": 0}}, 422, "top_k"),
    ("classification", {"inputs": "w5", "parameters": {"function_to_apply": "tanh"}}, 422, "function_to_apply"),
    ("classification", {"inputs": 5}, 422, "inputs: expected"),
    ("classification", {"inputs": []}, 422, "inputs: expected at least one"),
    ("classification", {"inputs": ""}, 422, "text 1 is empty"),
    ("classification", {}, 422, "inputs"),
    ("classification", {"inputs": {"text": "w5", "text_pair": "w6"}}, 422, "classifies texts"),
    ("classification", {"inputs": "w5", "parameters": {"candidate_labels": ["w6"]}}, 422, "model of entailment"),
    ("pairs", {"inputs": "w5"}, 422, '{"text": ..., "text_pair": ...}'),
    ("pairs", {"inputs": {"text": "w5", "text_pare": "w6"}}, 422, "Did you mean 'text_pair'?"),
    ("pairs", {"inputs": {"text": "w5"}}, 422, "text_pair"),
    ("tagging", {"inputs": "w5", "parameters": {"aggregation_strategy": "last"}}, 422, "aggregation_strategy"),
    ("tagging", {"inputs": "w5", "parameters": {"offsets": "letters"}}, 422, "offsets"),
    ("tagging", {"inputs": [" "]}, 422, "empty"),
    ("tagging", {"inputs": [], "parameters": {"aggregation_strategy": "none"}}, 422, "expected at least one"),
    ("question-answering", {"inputs": "w5"}, 422, "inputs: expected"),
    ("question-answering", {"inputs": {"question": "w5", "text": "w6"}}, 422, "known are question, context"),
    ("question-answering", {"inputs": ASK, "parameters": {"max_answer_len": 0}}, 422, "max_answer_len"),
    ("question-answering", {"inputs": ASK, "parameters": {"doc_stride": 5}}, 422, "'doc_stride'"),
    ("question-answering", {"inputs": {"question": "", "context": "w6"}}, 422, "empty"),
    ("masked_lm", {"inputs": "w5"}, 422, "text 1 has no mask"),
    ("masked_lm", {"inputs": ["w5 [MASK]", "w5"]}, 422, "text 2 has no mask"),
    ("masked_lm", {"inputs": "w5 [MASK]", "parameters": {"targets": []}}, 422, "targets"),
    ("masked_lm", {"inputs": "w5 [MASK]", "parameters": {"targets": ["zebra"]}}, 422, "cannot spell"),
    ("masked_lm", {"inputs": "w5 [MASK]", "parameters": {"top_k": 10**6}}, 422, "top_k"),
    (
        "masked_lm",
        {"inputs": "[MASK]" + " w5" * 17, "parameters": {"on_overflow": "error"}},
        422,
        "more than the limit",
    ),
    ("masked_lm", {"inputs": "w5 [MASK]", "parameters": {"targets": ["w5"] * 1001}}, 422, "targets"),
    ("question-answering", {"inputs": ASK, "parameters": {"top_k": 10**6}}, 422, "top_k"),
    ("embedding", {"inputs": {"source_sentence": "w5", "sentences": []}}, 422, "sentences: expected at least one"),
    ("embedding", {"inputs": {"source_sentence": "w5", "sentence": ["w6"]}}, 422, "Did you mean 'sentences'?"),
    ("embedding", {"inputs": "w5", "normalise": True}, 422, "Did you mean 'normalize'?"),
    ("embedding", {"inputs": "w5", "truncation_direction": "up"}, 422, "truncation_direction"),
    ("embedding", {"inputs": "w5", "dimensions": 25}, 422, "between 1 and 24"),
    ("embedding", {"inputs": "w5", "prompt_name": "query me"}, 422, "query me"),
    ("multiple_choice", {"inputs": "w5"}, 422, "ask /v1/predict"),
    ("embeding", {"inputs": "w5"}, 404, "Did you mean 'embedding'?"),
    ("org/other/model", {"inputs": "w5"}, 404, "no model 'org/other/model'"),
]


@pytest.mark.parametrize(("name", "body", "status", "words"), BAD_REQUESTS)
def test_a_bad_request_is_refused_in_its_form(everything, name, body, status, words):
    found = everything.post(f"/models/{name}", body)
    assert (found.status_code, list(found.json())) == (status, ["error"]), found.text
    assert words in found.json()["error"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"candidate_labels": []}, "candidate_labels"),
        ({"candidate_labels": ["w5"], "hypothesis_template": "w6"}, "hypothesis_template: expected one {}"),
        ({"candidate_labels": ["w5"], "hypothesis_template": "{} {}"}, "hypothesis_template: expected one {}"),
        ({"candidate_labels": ["w5"] * 1000, "hypothesis_template": "{}" + "w6 " * 10_000}, "shorten them"),
        ({"candidate_labels": ["w5"], "function_to_apply": "none"}, "function_to_apply has no use"),
    ],
)
def test_bad_parameters_of_zero_shot_classification_are_refused(hub, parameters, words):
    found = hub.post("/models/org/entailing", {"inputs": "w20", "parameters": parameters})
    assert found.status_code in (413, 422)
    assert words in found.json()["error"]


def test_a_body_that_is_no_json_is_refused(everything):
    headers = {"content-type": "application/json"}
    found = everything.client.post("/models/classification", content=b"{", headers=headers)
    assert (found.status_code, list(found.json())) == (400, ["error"])


@pytest.mark.parametrize(
    ("name", "inputs", "parameters"),
    [
        ("encoder", BAD, {}),
        ("encoder", {"source_sentence": "w5", "sentences": [BAD]}, {}),
        ("nli", BAD, {}),
        ("nli", BAD, {"function_to_apply": "none"}),
        ("nli", BAD, {"candidate_labels": ["w5"]}),
        ("ner", BAD, {}),
        ("ner", BAD, {"aggregation_strategy": "simple"}),
        ("qa", {"question": BAD, "context": "w5 w6"}, {}),
        ("mlm", f"{BAD} [MASK]", {}),
        ("mlm", f"{BAD} [MASK]", {"targets": ["w5"]}),
    ],
)
def test_numbers_that_are_not_finite_are_no_answer(overflown, name, inputs, parameters):
    found = overflown.post(f"/models/{name}", {"inputs": inputs, "parameters": parameters})
    assert (found.status_code, list(found.json())) == (500, ["error"])
    assert "NaN" in found.json()["error"]


def test_the_route_is_described(everything):
    document = everything.get("/openapi.json").json()
    operation = document["paths"]["/models/{name}"]["post"]
    assert [each["name"] for each in operation["parameters"]] == ["name", "X-Timeout-Ms"]
    assert "path}" not in json.dumps(document["paths"])
