"""What every family's few-shot classifier keeps to."""

import numpy as np
import pytest

from bothways import FewShotClassifier, SentenceEmbedder, open_trained
from contract_cases import rows, texts_of, write_pretrained
from tiny_models import every_family

DATA = rows("single", 12)
TEXTS = [*texts_of(DATA), " ".join(f"w{5 + place % 50}" for place in range(45))]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A factory: a classifier fitted to a few texts and the folder of what it saved, made once for a family."""
    made = {}

    def make(model_type):
        if model_type not in made:
            folder = tmp_path_factory.mktemp(model_type)
            write_pretrained(folder / "base", model_type)
            classifier = FewShotClassifier.from_pretrained(folder / "base", max_length=18, device="cpu")
            options = {"epochs": 3, "learning_rate": 3e-3, "batch_size": 12, "weight_decay": 0.0}
            classifier.fit(DATA, validation=DATA, pairs_per_text=2, **options)
            classifier.save(folder / "saved")
            made[model_type] = (classifier, folder / "saved")
        return made[model_type]

    return make


@every_family
def test_a_few_texts_are_learnt_by_heart(trained, model_type):
    classifier, _ = trained(model_type)
    assert [each.label for each in classifier.predict(texts_of(DATA))] == [row["label"] for row in DATA]
    assert classifier.evaluate(DATA, resamples=10).accuracy.value == 1


@every_family
def test_one_text_gives_one_prediction_and_many_give_a_list(trained, model_type):
    classifier, _ = trained(model_type)
    assert classifier.predict(TEXTS[-1]) == classifier.predict(TEXTS[-1:])[0]
    assert classifier.predict([]) == []
    assert classifier.predict(TEXTS[-1]).reading.windows > 1


@every_family
def test_a_saved_classifier_predicts_the_same_to_the_bit(trained, model_type):
    classifier, folder = trained(model_type)
    again = open_trained(folder, device="cpu")
    assert isinstance(again, FewShotClassifier)
    assert (again.outputs.target, again.confidence.calibration, again.columns) == (
        classifier.outputs.target,
        classifier.confidence.calibration,
        classifier.columns,
    )
    assert again.predict(TEXTS) == classifier.predict(TEXTS)


@every_family
def test_what_it_saves_is_a_sentence_embedder(trained, model_type):
    classifier, folder = trained(model_type)
    vectors = SentenceEmbedder.from_pretrained(folder, device="cpu").encode(TEXTS)
    assert np.array_equal(vectors, classifier.embedder.encode(TEXTS))


@every_family
def test_probabilities_are_the_calibrated_logits(trained, model_type):
    classifier, _ = trained(model_type)
    expected_NC = classifier.confidence.calibration.apply(classifier.score(DATA).logits)
    for prediction, expected_C in zip(classifier.predict(texts_of(DATA)), expected_NC, strict=True):
        found = [prediction.probabilities[label] for label in classifier.labels]
        assert found == pytest.approx(expected_C, abs=1e-6)
