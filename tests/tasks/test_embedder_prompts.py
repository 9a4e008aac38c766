"""Prompts, layers and similarities of an embedder in training, evaluation, explanation, export and distillation.

Their vectors are compared with those of sentence-transformers in `test_sentence_folders`.
"""

import json

import numpy as np
import pytest
import torch

from bothways import SentenceEmbedder, TextClassifier, checkpoints
from bothways.checkpoints.sentence_transformers import SentenceSettings
from bothways.checkpoints.vector_layers import DenseLayer, DropoutLayer, LayerNormLayer, NormalizeLayer
from bothways.encoder.head_kinds import MeanOfTokens
from bothways.errors import IncompatibleWeights, InvalidInput, UnsupportedConfig
from bothways.explain import attribute
from bothways.export import export
from bothways.tasks.embedding import losses
from bothways.tasks.embedding.training import usual_loss
from contract_cases import write_embedder

PROMPTS = {"query": "w3 w4 ", "passage": "w6 "}
LAYERS = (
    DenseLayer("2_Dense", 24, 10, bias=True, activation="Tanh", residual=True),
    NormalizeLayer("3_Normalize"),
    LayerNormLayer("4_LayerNorm", 10),
    DropoutLayer("5_Dropout", 0.1),
    DenseLayer("6_Dense", 10, 7, bias=False, activation="Identity", residual=False),
)
ANCHORS = {"anchor": "anchor", "positive": "positive"}


def weights():
    generator = torch.Generator().manual_seed(0)

    def drawn(*shape):
        return torch.randn(*shape, generator=generator) / 4

    return {
        "2_Dense": {"linear.weight": drawn(10, 24), "linear.bias": drawn(10), "residual.weight": drawn(10, 24)},
        "4_LayerNorm": {"norm.weight": drawn(10), "norm.bias": drawn(10)},
        "6_Dense": {"linear.weight": drawn(7, 10)},
    }


def written(folder, **settings):
    """A tiny embedder with these settings of sentence-transformers."""
    write_embedder(folder)
    stored = SentenceSettings(**{"poolings": ("mean",), "unit_length": True, **settings})
    drawn = weights() if stored.layers == LAYERS else {}
    stored.write(folder, hidden=24, cls_is_last=False, weights=drawn)
    return folder


def opened(folder, **options):
    return SentenceEmbedder.from_pretrained(folder, device="cpu", **options)


def pairs(count=16):
    return [{"anchor": f"w{5 + n % 9} w{20 + n}", "positive": f"w{30 + n % 7} w{8 + n}"} for n in range(count)]


def scored(count=16):
    return [{"text_a": f"w{5 + n % 9} w{20 + n}", "text_b": f"w{30 + n % 7}", "score": n % 5} for n in range(count)]


def labelled(count=24):
    return [{"text": f"w{5 + n % 3} w{20 + n % 11}", "label": f"c{n % 3}"} for n in range(count)]


def prefixed(rows, first, second):
    names = list(rows[0])
    return [{**row, names[0]: first + row[names[0]], names[1]: second + row[names[1]]} for row in rows]


# --- prompts ---


@pytest.mark.parametrize(
    ("prompts", "role", "expected"),
    [
        ({}, "query", ""),
        (PROMPTS, "query", "w3 w4 "),
        (PROMPTS, "document", "w6 "),
        ({"corpus": "c", "passage": "p"}, "document", "p"),
        ({"corpus": "c", "document": "d", "passage": "p"}, "document", "d"),
        ({"document": "", "corpus": "c"}, "document", "c"),
        ({"query": "q"}, "document", ""),
        ({"query": "q"}, None, ""),
    ],
)
def test_the_prompt_of_a_role(tmp_path, prompts, role, expected):
    settings = opened(written(tmp_path, prompts=prompts)).fitted.settings
    assert settings.prompt_of(role=role) == expected
    assert settings.prompt_of("", role=role) == ""
    assert settings.prompt_of("own ", role=role) == "own "


def test_a_prompt_is_text_in_front(tmp_path):
    embedder = opened(written(tmp_path, prompts=PROMPTS, default_prompt="passage"))
    texts = ["w9 w10", "w11"]
    for found, prompt in (
        (embedder.encode(texts), "w6 "),
        (embedder.encode(texts, prompt="w8 "), "w8 "),
        (embedder.encode(texts, prompt_name="query"), "w3 w4 "),
        (np.stack(list(embedder.encode_stream(texts, prompt_name="query"))), "w3 w4 "),
        (embedder.encode_query(texts), "w3 w4 "),
        (embedder.encode_document(texts), "w6 "),
        (embedder.encode_document(texts, prompt_name="query"), "w3 w4 "),
        (embedder.encode_query(texts, prompt=""), ""),
        (embedder.fitted.represent(texts, role="query").vectors_ND, "w3 w4 "),
        (embedder.fitted.represent(texts, role="document", prompt="w8 ").vectors_ND, "w8 "),
        (embedder.fitted.represent(texts, role="query", prompt="").vectors_ND, ""),
    ):
        np.testing.assert_array_equal(found, embedder.encode([prompt + text for text in texts], prompt=""))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"prompt_name": "title"}, r"a prompt of this embedder, which has 'query', 'passage', got 'title'"),
        ({"prompt_name": "query", "prompt": "w"}, "give a prompt or the name of one, not both"),
        ({"prompt": "w5 " * 30}, "expected a prompt that leaves room for text in a window of 18 tokens, got one of 30"),
        ({"prompt": "w5 " * 16}, "expected a prompt that leaves room for text in a window of 18 tokens, got one of 16"),
    ],
)
def test_a_prompt_that_cannot_be_used_is_refused(tmp_path, options, words):
    with pytest.raises(InvalidInput, match=words):
        opened(written(tmp_path, prompts=PROMPTS)).encode("w9", **options)


@pytest.mark.parametrize("text", ["", " \n", 3, None])
def test_a_prompt_does_not_hide_a_text_that_is_empty_or_none(tmp_path, text):
    embedder = opened(written(tmp_path, prompts=PROMPTS, default_prompt="query"))
    with pytest.raises(InvalidInput, match="text 2"):
        embedder.encode(["w9", text])


@pytest.mark.parametrize(
    ("rows", "first", "second"), [(pairs(), "w3 w4 ", "w6 "), (scored(), "w6 ", "w6 ")], ids=["pairs", "scored"]
)
def test_training_and_evaluation_use_the_prompts(tmp_path, rows, first, second):
    """A model with prompts learns from rows what one without learns from the same rows with prefixed texts."""
    written(tmp_path / "with", prompts=PROMPTS, default_prompt="passage")
    written(tmp_path / "without")
    known, plain = opened(tmp_path / "with"), opened(tmp_path / "without")
    long = prefixed(rows, first, second)
    options = {"epochs": 1, "batch_size": 8, "seed": 1}
    columns = ANCHORS if "anchor" in rows[0] else {}
    assert known.evaluate(rows, resamples=10, **columns) == plain.evaluate(long, resamples=10, **columns)
    assert known.fit(rows, validation=rows, **options).losses == plain.fit(long, validation=long, **options).losses
    assert known.card["metrics"] == plain.card["metrics"]
    np.testing.assert_array_equal(known.encode("w9", prompt=""), plain.encode("w9"))
    known.save(tmp_path / "saved")
    assert opened(tmp_path / "saved").fitted.settings.prompts == PROMPTS


def test_similarities_of_pairs_use_the_default_prompt(tmp_path):
    embedder = opened(written(tmp_path, prompts=PROMPTS, default_prompt="query"))
    (found,) = embedder.similarity("w9", "w10")
    vectors = embedder.encode(["w3 w4 w9", "w3 w4 w10"], prompt="").astype(float)
    assert found[0] == pytest.approx(vectors[0] @ vectors[1])
    assert embedder.predict(("w9", "w10")).similarity == pytest.approx(vectors[0] @ vectors[1])


@pytest.mark.parametrize("method", ["integrated-gradients", "leave-one-out"])
def test_an_explanation_reads_the_prompt_and_attributes_to_the_words(tmp_path, method):
    embedder = opened(written(tmp_path, prompts=PROMPTS, default_prompt="query"))
    found = attribute(embedder, [("w9 w10", "w11 w12")], method=method)[0]
    assert [each.text for each in found.words] == ["w9", "w10", "w11", "w12"]
    assert found.score == pytest.approx(embedder.predict(("w9 w10", "w11 w12")).similarity, abs=1e-5)


def test_prompts_that_are_not_pooled_are_left_out_in_training_too(tmp_path):
    """With different prompts of queries and documents, in one batch; see `VectorModel`."""
    folder = written(tmp_path, prompts={"query": "w3 w4 "}, include_prompt=False)
    embedder = opened(folder)
    rows = [("w9 w10", "w11"), ("w12", "w13 w14")]
    from bothways.tasks.embedding.spec import Pairs

    prompts = embedder.fitted.settings.prompts_of(Pairs())
    (block,) = embedder.fitted._blocks(rows, prompts)
    found = np.concatenate([vectors for vectors, _ in block])
    expected = np.concatenate([np.stack([embedder.encode_query(a), embedder.encode_document(b)]) for a, b in rows])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


# --- layers ---


def test_layers_are_trained_and_saved(tmp_path):
    embedder = opened(written(tmp_path / "base", layers=LAYERS))
    before = embedder.encode(["w5 w6", "w7"])
    assert before.shape == (2, 7)
    assert embedder.fit(labelled(), validation=labelled(), epochs=3, batch_size=8, learning_rate=3e-3).kept_epoch
    after = embedder.encode(["w5 w6", "w7"])
    embedder.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    np.testing.assert_array_equal(again.encode(["w5 w6", "w7"]), after)
    assert again.fitted.settings == embedder.fitted.settings
    stored = json.loads((tmp_path / "saved" / "bothways.json").read_text())["checksums"]
    assert {"2_Dense/model.safetensors", "4_LayerNorm/model.safetensors"} < stored.keys()


def test_a_fit_leaves_the_layers_of_the_opened_model(tmp_path):
    embedder = opened(written(tmp_path, layers=LAYERS))
    first = embedder.fitted
    before = {name: value.clone() for name, value in first.layers.state_dict().items()}
    record = embedder.fit(labelled(), validation=labelled(), epochs=3, batch_size=8, learning_rate=3e-3)
    assert record.kept_epoch
    assert all(torch.equal(value, before[name]) for name, value in first.layers.state_dict().items())
    assert any(not torch.equal(value, before[name]) for name, value in embedder.fitted.layers.state_dict().items())


def test_the_fingerprint_covers_the_layers(tmp_path):
    folder = written(tmp_path, layers=LAYERS)
    before = checkpoints.fingerprint(folder)
    path = folder / "6_Dense" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\0")
    assert checkpoints.fingerprint(folder) != before


@pytest.mark.parametrize(
    ("tensors", "words"),
    [
        ({"linear.weight": torch.ones(7, 9)}, r"linear.weight \(7, 10\).*got linear.weight \(7, 9\)"),
        ({"linear.weight": torch.ones(7, 10), "linear.bias": torch.ones(7)}, r"got linear.bias \(7,\)"),
        ({"weight": torch.ones(7, 10)}, r"expected the tensors linear.weight"),
    ],
    ids=["shape", "left over", "name"],
)
def test_weights_that_do_not_fit_are_refused(tmp_path, tensors, words):
    from safetensors.torch import save_file

    folder = written(tmp_path, layers=LAYERS)
    save_file(tensors, folder / "6_Dense" / "model.safetensors")
    with pytest.raises(IncompatibleWeights, match=words):
        opened(folder)


def test_an_export_has_the_layers(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    folder = written(tmp_path / "base", layers=LAYERS, prompts=PROMPTS, default_prompt="query", similarity="dot")
    export(folder, tmp_path / "onnx", format="onnx")
    original, exported = opened(folder), opened(tmp_path / "onnx")
    texts = ["w5 w6", "w7 " * 40]
    np.testing.assert_allclose(exported.encode(texts), original.encode(texts), rtol=0, atol=1e-5)
    np.testing.assert_allclose(exported.encode_document(texts), original.encode_document(texts), rtol=0, atol=1e-5)
    assert exported.predict(("w5", "w6")).similarity == pytest.approx(original.predict(("w5", "w6")).similarity)


def test_an_export_cannot_leave_out_the_prompt(tmp_path):
    pytest.importorskip("onnxruntime", reason="the extra onnx is not installed")
    folder = written(tmp_path / "base", prompts=PROMPTS, include_prompt=False)
    opened(folder).save(tmp_path / "saved")
    with pytest.raises(UnsupportedConfig, match="does not pool the tokens of its prompts"):
        export(tmp_path / "saved", tmp_path / "onnx", format="onnx")


def test_another_pooling_does_not_fit_the_layers_of_several(tmp_path):
    folder = written(
        tmp_path, poolings=("cls", "mean"), layers=(DenseLayer("2_Dense", 48, 10, False, "Identity", False),)
    )
    from safetensors.torch import save_file

    save_file({"linear.weight": torch.ones(10, 48)}, folder / "2_Dense" / "model.safetensors")
    assert opened(folder).fitted.settings.pooling == "cls+mean"
    with pytest.raises(InvalidInput, match=r"expected the pooling 'cls\+mean'.*got 'mean'"):
        opened(folder, pooling="mean")


def test_a_classifier_above_an_embedder_with_layers_reads_the_mean_below_them(tmp_path):
    classifier = TextClassifier.from_pretrained(written(tmp_path, layers=LAYERS), device="cpu")
    classifier.fit(labelled(), validation=labelled(), epochs=1, batch_size=8)
    assert isinstance(classifier.backend.head_model.head.kind.read, MeanOfTokens)


# --- similarities ---

FUNCTIONS = {
    "cosine": lambda a, b: a @ b / np.linalg.norm(a) / np.linalg.norm(b),
    "dot": lambda a, b: a @ b,
    "euclidean": lambda a, b: -np.linalg.norm(a - b),
    "manhattan": lambda a, b: -np.abs(a - b).sum(),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_similarity_is_that_of_the_folder(tmp_path, name):
    embedder = opened(written(tmp_path, unit_length=False, similarity=name))
    a, b = embedder.encode(["w5 w6", "w7"]).astype(float)
    expected = FUNCTIONS[name](a, b)
    assert embedder.predict(("w5 w6", "w7")).similarity == pytest.approx(expected, rel=1e-6)
    assert embedder.similarity("w5 w6", ["w7", "w8"])[0, 0] == pytest.approx(expected, rel=1e-6)
    explained = attribute(embedder, [("w5 w6", "w7")], method="gradient-x-input")[0]
    assert explained.score == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_loss_compares_by_the_similarity_of_the_embedder(name):
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, 4, 6, generator=generator)
    expected = torch.tensor([[FUNCTIONS[name](a.numpy(), b.numpy()) for b in second] for a in first])
    batch = losses.VectorBatch((first, second), np.arange(8).reshape(4, 2), None, False, name)
    torch.testing.assert_close(batch.similarities(first, second, 3.0), 3 * expected, atol=1e-4, rtol=0)
    torch.testing.assert_close(batch.similarities_of_pairs(first, second), expected.diagonal(), atol=1e-4, rtol=0)
    ranking = losses.MultipleNegativesRanking(3.0).value(batch)
    torch.testing.assert_close(
        ranking, torch.nn.functional.cross_entropy(3 * expected, torch.arange(4)), atol=1e-4, rtol=0
    )


def test_an_inner_product_is_not_scaled_by_the_default_loss():
    from bothways.tasks.embedding.spec import Pairs, ScoredPairs

    assert usual_loss(Pairs(), "dot") == losses.MultipleNegativesRanking(1.0)
    assert usual_loss(ScoredPairs(), "euclidean") == losses.CoSENT(1.0)
    assert usual_loss(Pairs(), "cosine") == losses.MultipleNegativesRanking(20.0)


@pytest.mark.parametrize("rows", [pairs(), scored()], ids=["pairs", "scored"])
def test_ranks_and_correlations_are_those_of_the_similarity(tmp_path, rows):
    written(tmp_path, unit_length=False, similarity="dot")
    embedder = opened(tmp_path)
    report = embedder.evaluate(rows, resamples=10, **({} if "score" in rows[0] else ANCHORS))
    texts = [list(row.values())[:2] for row in rows]
    first, second = (embedder.encode([pair[side] for pair in texts]).astype(float) for side in (0, 1))
    products = first @ second.T
    if "score" in rows[0]:
        from scipy.stats import pearsonr

        expected = pearsonr(products.diagonal(), [row["score"] for row in rows]).statistic
        assert report.pearson.value == pytest.approx(expected, abs=1e-4)
    else:
        ranks = [(row >= row[place]).sum() for place, row in enumerate(products)]
        assert report.mrr.value == pytest.approx(np.mean([1 / rank for rank in ranks]), abs=1e-6)


# --- lower case ---


@pytest.mark.parametrize("kind", [SentenceEmbedder, TextClassifier])
def test_texts_are_converted_to_lower_case_where_the_folder_says_so(tmp_path, kind):
    folder = written(tmp_path / "base")
    (folder / "tokenizer_config.json").write_text('{"do_lower_case": false}')
    plain = kind.from_pretrained(folder, device="cpu").backend.tokenizer
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 18, "do_lower_case": true}')
    lowering = kind.from_pretrained(folder, device="cpu")
    ids = lowering.backend.tokenizer.encode_bare(["W5 w6"])
    assert ids == plain.encode_bare(["w5 w6"]) != plain.encode_bare(["W5 w6"])
    if kind is SentenceEmbedder:
        lowering.save(tmp_path / "saved")
        assert opened(tmp_path / "saved").backend.tokenizer.encode_bare(["W5 w6"]) == ids
        import transformers

        theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "saved")
        assert theirs(["W5 w6"], add_special_tokens=False)["input_ids"] == ids
