"""What every family's sentence embedder keeps to, when it is trained."""

import functools

import numpy as np
import pytest
import torch

from bothways.tasks import SentenceEmbedder
from bothways.tasks.embedding.losses import Matryoshka, MultipleNegativesRanking
from bothways.tasks.embedding.spec import EMBEDDING, EmbeddingLearning, LabelledTexts, Triplets
from bothways.tasks.embedding.training import train_embedder
from bothways.tasks.heads.splits import TrainingData
from bothways.training.options import AdamW, TrainingOptions
from contract_cases import rows, write_pretrained
from everyday import some_of
from tiny_models import every_family

# Of each way to attend one family learns by heart; every day one.
MUCH = ("roberta", "deberta-v2", "modernbert")
LABELLED = rows("single")
TRIPLETS = [
    {"anchor": f"w{5 + each} w{20 + each}", "positive": " ".join([f"w{30 + each}"] * (1 + each % 4)), "negative": "w7"}
    for each in range(12)
]
TEXTS = [*(row["text"] for row in LABELLED), " ".join(f"w{5 + place % 50}" for place in range(45))]
LOSS = Matryoshka(MultipleNegativesRanking(), (24, 8))


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A factory: an embedder fitted to a few rows and the folder that it saved itself into, made once for a family."""

    @functools.cache
    def make(model_type, by_heart):
        folder = tmp_path_factory.mktemp(model_type)
        write_pretrained(folder / "base", model_type)
        embedder = SentenceEmbedder.from_pretrained(folder / "base", device="cpu")
        options = {"epochs": 8 if by_heart else 1, "learning_rate": 3e-3, "optimizer": AdamW(weight_decay=0.0)}
        columns = LabelledTexts()
        record = embedder.fit(LABELLED, validation=LABELLED, columns=columns, loss=LOSS, batch_size=8, **options)
        embedder.save(folder / "saved")
        return embedder, record, folder / "saved"

    return lambda model_type, by_heart=False: make(model_type, by_heart or model_type == "modernbert")


@pytest.mark.parametrize("model_type", some_of(MUCH, "modernbert"))
def test_a_few_rows_are_learnt_by_heart(trained, model_type):
    embedder, record, _ = trained(model_type, by_heart=True)
    assert record.validations[0].metrics["mrr"] < 0.9
    assert embedder.evaluate(LABELLED, resamples=10).accuracy.value == 1


@every_family
def test_a_saved_embedder_gives_the_same_vectors_to_the_bit(trained, model_type):
    embedder, _, folder = trained(model_type)
    again = SentenceEmbedder.from_pretrained(folder, device="cpu")
    assert np.array_equal(again.encode(TEXTS), embedder.encode(TEXTS))


@every_family
def test_a_saved_embedder_opens_in_sentence_transformers_with_the_same_vectors(trained, model_type):
    library = pytest.importorskip("sentence_transformers", reason="the oracle is not installed")
    embedder, _, folder = trained(model_type)
    short = TEXTS[:-1]  # it cuts what is read in windows here
    theirs = library.SentenceTransformer(str(folder), device="cpu").encode(short)
    np.testing.assert_allclose(embedder.encode(short), theirs, rtol=0, atol=1e-5)


@every_family
def test_gradient_caching_gives_the_gradient_of_one_big_batch(tmp_path, model_type):
    write_pretrained(tmp_path, model_type)
    embedder = SentenceEmbedder.from_pretrained(tmp_path, device="cpu")
    whole, cached = (gradient_of_one_update(embedder, tokens) for tokens in (10_000, 20))
    assert whole.keys() == cached.keys()
    for name, gradient in whole.items():
        # Weights so wide give gradients well above 1, where float32 itself rounds by more: 1e-5 of the largest.
        tolerance = 1e-5 * max(1.0, float(gradient.abs().max()))
        torch.testing.assert_close(cached[name], gradient, rtol=0, atol=tolerance)


def gradient_of_one_update(embedder, tokens):
    training = TrainingOptions(batch_size=12, max_tokens=tokens, optimizer=AdamW(weight_decay=0.0))
    data, options = TrainingData(TRIPLETS, TRIPLETS), EmbeddingLearning(loss=LOSS)
    ready = train_embedder(EMBEDDING, embedder.backend, embedder.fitted, data, Triplets(), options, training)
    objective = ready.objective
    (update,) = objective.updates(0, 0)
    assert (len(update.micro_batches) > 1) is (tokens == 20)
    objective.module.zero_grad()
    for micro_batch in objective.joined(update).micro_batches:
        (objective.loss(micro_batch.payload) / update.weight).backward()
    return {name: each.grad for name, each in objective.module.named_parameters() if each.grad is not None}
