"""What every family's question answerer keeps to."""

import functools
import inspect

import pytest
import torch

from answering_cases import long_question, questions, stored, write_pair_tokenizer
from bothways.compose.opening import open_trained
from bothways.tasks import QuestionAnswerer
from bothways.training.options import AdamW
from contract_cases import tiny_settings, write_pretrained
from everyday import some_of
from tiny_models import every_family

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

ROWS = [*questions(), long_question()]
PAIRS = [(row["question"], row["context"]) for row in ROWS]
# Of each way to attend, and of each head, one family learns by heart; the others learn for two epochs.
BY_HEART = ("roberta", "albert", "deberta-v2", "xlnet", "modernbert")
EVERY_DAY = ("xlnet",)


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A factory: an answerer fitted to a few questions and the folder that it saved itself into, made once a family."""

    @functools.cache
    def make(model_type, by_heart):
        folder = tmp_path_factory.mktemp(model_type)
        write_pretrained(folder / "base", model_type)
        write_pair_tokenizer(folder / "base", model_type)
        answerer = QuestionAnswerer.from_pretrained(folder / "base", device="cpu", max_length=18)
        options = {"epochs": 60 if by_heart else 2, "learning_rate": 3e-3, "batch_size": 8, "patience": 15}
        answerer.fit(ROWS, validation=ROWS, optimizer=AdamW(weight_decay=0.0), **options)
        answerer.save(folder / "saved")
        return answerer, folder / "saved"

    return lambda model_type, by_heart=False: make(model_type, by_heart or model_type in EVERY_DAY)


@pytest.mark.parametrize("model_type", some_of(BY_HEART, *EVERY_DAY))
def test_a_few_questions_are_learnt_by_heart(fitted, model_type):
    answerer, _ = fitted(model_type, by_heart=True)
    found = answerer.predict(PAIRS)
    assert [each.answer or "" for each in found] == [
        row["answers"][0]["text"] if row["answers"] else "" for row in ROWS
    ]
    for row, each in zip(ROWS, found, strict=True):
        assert each.answer == (row["context"][each.start : each.end] if row["answers"] else None)
    assert found[-1].tokens_read.windows > 2
    report = answerer.evaluate(ROWS, resamples=10)
    assert report.exact_match.value == report.f1.value == report.no_answer_accuracy.value == 1


@every_family
def test_a_saved_answerer_predicts_the_same_to_the_bit(fitted, model_type):
    answerer, folder = fitted(model_type)
    again = open_trained(folder, device="cpu")
    assert isinstance(again, QuestionAnswerer)
    assert again.fitted.facts() == answerer.fitted.facts()
    assert again.card == answerer.card
    assert again.predict(PAIRS) == answerer.predict(PAIRS)
    assert stored(folder)["no_answer_threshold"] == answerer.fitted.outputs.threshold


@every_family
def test_a_saved_answerer_opens_in_transformers_with_the_same_scores(fitted, model_type):
    answerer, folder = fitted(model_type)
    model, info = transformers.AutoModelForQuestionAnswering.from_pretrained(folder, output_loading_info=True)
    assert not any(info[name] for name in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
    found = answerer.predict(PAIRS, top=3)
    takes = inspect.signature(model.forward).parameters
    nowhere = -1 if model_type == "xlnet" else 0
    for pair, prediction in zip(PAIRS, found, strict=True):
        (encoded,) = answerer.model.tokenizer.encode([pair], max_length=18, offsets=True)
        best = {}
        for window in encoded.windows:
            inputs = {"input_ids": torch.tensor([window.ids]), "token_type_ids": torch.tensor([window.types])}
            inputs = {name: value for name, value in inputs.items() if name in takes}
            with torch.no_grad():
                output = model.eval()(**inputs)
            starts, ends = output.start_logits[0], output.end_logits[0]
            for first, (begin, _) in enumerate(window.offsets):
                for last in range(first, len(window.ids)):
                    if window.sequences[first] == window.sequences[last] == 1:
                        key = (begin, window.offsets[last][1])
                        score = float(starts[first] + ends[last] - starts[nowhere] - ends[nowhere])
                        best[key] = max(score, best.get(key, -float("inf")))
        assert prediction.answers
        for answer in prediction.answers:
            assert answer.score == pytest.approx(best[answer.start, answer.end], abs=2e-5)
        assert prediction.answers[0].score == pytest.approx(max(best.values()), abs=2e-5)


@every_family
def test_a_question_answering_model_of_transformers_opens_here(model_type, tmp_path):
    torch.manual_seed(0)
    model = transformers.AutoModelForQuestionAnswering.from_config(tiny_settings(model_type, initializer_range=0.2))
    if type(model).__name__ == "XLNetForQuestionAnswering":  # the other head, of beams, is not built
        model = transformers.XLNetForQuestionAnsweringSimple(model.config)
    model.save_pretrained(tmp_path)
    write_pair_tokenizer(tmp_path, model_type)
    answerer = open_trained(tmp_path, device="cpu")
    assert isinstance(answerer, QuestionAnswerer)
    assert (answerer.fitted.outputs.threshold, answerer.fitted.outputs.confidence.temperature) == (None, None)
    found = answerer.predict(PAIRS[0])
    assert found.answer
    assert found.no_answer_probability is None
