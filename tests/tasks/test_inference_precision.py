"""The precision of inference: chosen where nobody says it, told once, and left behind by training and saving."""

import pickle
from importlib import import_module

import numpy as np
import pytest
import torch
from mask_cases import masked_lm
from safetensors.torch import load_file

import bothways
from bothways import devices
from bothways.cli.options import ModelOptions
from bothways.compose.multitask.data import TaskData
from bothways.errors import InvalidInput
from bothways.packing import pack
from bothways.progress import reporting
from bothways.tasks import FillMask, SentenceEmbedder, TextClassifier
from bothways.tasks.embedding.vector_model import pool
from classifier_cases import rows, same, tensors

QUICK = {"epochs": 1, "learning_rate": 3e-3, "batch_size": 6, "precision": "float32"}
TEXTS = [row["text"] for row in rows(12, first=40)]


def fitted(folder, classifier=None):
    classifier = classifier or TextClassifier.from_pretrained(folder, device="cpu")
    classifier.fit(rows(), validation=rows(6, first=30), **QUICK)
    return classifier


@pytest.fixture
def capable(monkeypatch):
    """The CPU taken for a GPU that computes in bfloat16."""
    import_module("bothways.checkpoints.pretrained")._tell.cache_clear()
    monkeypatch.setattr(devices, "has_bfloat16", lambda _: True)


@pytest.fixture(scope="module")
def trained(tiny_bert, tmp_path_factory):
    """The folder of a classifier that was trained and saved, which no test writes to."""
    folder = tmp_path_factory.mktemp("precision") / "trained"
    fitted(tiny_bert).save(folder)
    return folder


def dtypes_of(task):
    return {value.dtype for value in task.model.encoder.parameters()}


@pytest.mark.parametrize(
    ("capability", "chosen", "dtype"),
    [
        (8, None, torch.bfloat16),
        (9, None, torch.bfloat16),
        (7, None, torch.float32),
        (9, "float32", torch.float32),
        (7, "float16", torch.float16),
        (9, torch.float64, torch.float64),
    ],
)
def test_bfloat16_is_taken_where_a_gpu_has_it_and_nothing_is_chosen(monkeypatch, capability, chosen, dtype):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (capability, 0))
    assert devices.inference_dtype(chosen, torch.device("cuda")) == dtype
    assert devices.inference_dtype(None, torch.device("cpu")) == torch.float32
    with pytest.raises(InvalidInput, match="dtype must be one of"):
        devices.inference_dtype("float8", torch.device("cuda"))


def test_on_a_cpu_nothing_is_rounded(trained):
    classifier = TextClassifier.from_pretrained(trained, device="cpu")
    assert dtypes_of(classifier) == {torch.float32}
    assert not classifier.model.rounded


def test_answers_in_bfloat16_are_those_of_float32_but_for_rounding_and_not_rounded_themselves(trained, capable):
    exact = TextClassifier.from_pretrained(trained, device="cpu", dtype="float32")
    rounded = TextClassifier.from_pretrained(trained, device="cpu")
    assert dtypes_of(rounded) == {torch.bfloat16}
    assert rounded.fitted.backend.head_model.head.output.weight.dtype == torch.float32
    truth = [{"text": text, "label": "ant"} for text in TEXTS]
    found, expected = rounded.score(truth).logits, exact.score(truth).logits
    np.testing.assert_allclose(found, expected, atol=0.05)
    assert (found != torch.from_numpy(found).bfloat16().double().numpy()).any()
    for one in rounded.predict(TEXTS):
        assert sum(one.probabilities.values()) == pytest.approx(1.0, abs=1e-6)


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_vectors_in_bfloat16_are_float32_of_unit_length(tiny_bert, capable, dtype):
    options = {} if dtype is None else {"dtype": dtype}
    for pooling in ("mean", "cls", "max", "weighted_mean", "mean_sqrt_length"):
        embedder = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu", pooling=pooling, **options)
        vectors = embedder.encode(TEXTS)
        assert vectors.dtype == np.float32
        np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)
        exact = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu", pooling=pooling, dtype="float32").encode(
            TEXTS
        )
        assert (vectors * exact).sum(1).min() > 0.999


def test_weighted_means_of_many_tokens_in_bfloat16_count_every_place():
    hidden_TH = torch.zeros(600, 1, dtype=torch.bfloat16)
    hidden_TH[300:] = 1.0
    (mean,) = pool(hidden_TH, pack([[5] * 600]), "weighted_mean").flatten().tolist()
    assert mean == pytest.approx(sum(range(301, 601)) / sum(range(1, 601)), abs=1e-5)


def test_a_model_that_was_rounded_is_saved_as_it_was_stored(trained, tiny_bert, tmp_path, capable):
    stored = load_file(trained / "model.safetensors")
    assert same(tensors(TextClassifier.from_pretrained(trained, device="cpu"), tmp_path / "again"), stored)
    SentenceEmbedder.from_pretrained(tiny_bert, device="cpu").save(tmp_path / "embedder")
    assert same(load_file(tmp_path / "embedder" / "model.safetensors"), load_file(tiny_bert / "model.safetensors"))
    masked_lm(tmp_path / "masked")
    FillMask.from_pretrained(tmp_path / "masked", device="cpu").save(tmp_path / "masked_again")
    before, after = (load_file(tmp_path / name / "model.safetensors") for name in ("masked", "masked_again"))
    for name, value in after.items():
        assert torch.equal(value, before[name]), name


def test_several_tasks_that_were_rounded_are_saved_as_they_were_stored(tiny_bert, tmp_path, capable):
    data = {name: TaskData(rows(), rows(6, first=30)) for name in ("one", "two")}
    both = bothways.MultiTask.from_pretrained(tiny_bert, device="cpu")
    both.fit(data, **QUICK)
    both.save(tmp_path / "both")
    opened = bothways.MultiTask.from_pretrained(tmp_path / "both", device="cpu")
    assert dtypes_of(opened) == {torch.bfloat16}
    opened.save(tmp_path / "again")
    for path in (tmp_path / "both").glob("*.safetensors"):
        assert same(load_file(path), load_file(tmp_path / "again" / path.name))


def test_a_precision_that_was_chosen_is_kept_when_saved(trained, tmp_path):
    classifier = TextClassifier.from_pretrained(trained, device="cpu", dtype="bfloat16")
    saved = tensors(classifier, tmp_path / "saved")
    assert {value.dtype for name, value in saved.items() if name.startswith("bert.encoder")} == {torch.bfloat16}


@pytest.mark.parametrize("further", [False, True])
def test_what_is_trained_begins_with_unrounded_weights(tiny_bert, trained, tmp_path, capable, further):
    folder = trained if further else tiny_bert
    rounded, exact = (TextClassifier.from_pretrained(folder, device="cpu", **one) for one in ({}, {"dtype": "float32"}))
    assert dtypes_of(rounded) == {torch.bfloat16}
    assert same(
        tensors(fitted(folder, rounded), tmp_path / "rounded"), tensors(fitted(folder, exact), tmp_path / "exact")
    )
    assert dtypes_of(rounded) == {torch.float32}


def test_a_pickle_keeps_what_was_rounded(trained, tmp_path, capable):
    back = pickle.loads(pickle.dumps(TextClassifier.from_pretrained(trained, device="cpu")))
    assert dtypes_of(back) == {torch.bfloat16}
    assert same(tensors(back, tmp_path / "again"), load_file(trained / "model.safetensors"))


def test_masks_are_filled_in_bfloat16_as_in_float32_but_for_rounding(tmp_path, capable):
    exact = masked_lm(tmp_path / "model", dtype="float32")
    rounded = FillMask.from_pretrained(tmp_path / "model", device="cpu")
    found, expected = (
        {one.words[0]: one.log_probability for one in model.predict("w5 [MASK] w7", top=1000).fillings}
        for model in (rounded, exact)
    )
    assert found.keys() == expected.keys()
    assert max(abs(found[word] - expected[word]) for word in found) < 0.3


def test_the_choice_is_told_once_and_how_to_have_float32(tiny_bert, capable, capsys):
    with reporting(lines=True):
        for _ in range(2):
            SentenceEmbedder.from_pretrained(tiny_bert, device="cpu")
    assert capsys.readouterr().err == (
        "computing in bfloat16 on cpu; for float32 choose dtype='float32' (--dtype float32)\n"
    )


def test_nothing_is_told_of_a_precision_that_was_chosen(tiny_bert, capable, capsys):
    with reporting(lines=True):
        for dtype in ("float32", "bfloat16"):
            SentenceEmbedder.from_pretrained(tiny_bert, device="cpu", dtype=dtype)
        bothways.load(tiny_bert, device="cpu")
    assert capsys.readouterr().err == ""


def test_commands_that_train_or_compare_are_in_float32_unless_they_are_told():
    assert ModelOptions().dtype is None
    assert ModelOptions().in_full.dtype == "float32"
    assert ModelOptions(dtype="float64").in_full.dtype == "float64"
