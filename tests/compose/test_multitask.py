"""One encoder with several heads: training, one pass for all answers, and the folder that holds them."""

import itertools
import json
import os
import shutil
import signal

import numpy as np
import pytest
import torch
from ensemble_cases import of_one_task
from safetensors.torch import load_file

from bothways import MultiTask, TaskData
from bothways.checkpoints.files import sha256_of
from bothways.compose.multitask.data import Proportional, Tempered, Uniform
from bothways.compose.multitask.shared_objective import SharedHeads, SharedObjective
from bothways.compose.opening import open_trained
from bothways.data import read_rows
from bothways.errors import CorruptCheckpoint, InvalidInput, NotFitted, OutputExists, TextTooLong
from bothways.evaluation.report import Validation
from bothways.tasks import TextClassifier
from bothways.tasks.heads.objective import WindowObjective
from bothways.training.options import AdamW
from classifier_cases import rows, same
from tiny_models import write_checkpoint

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}
TEXTS = [row["text"] for row in rows(12)] + ["w5 " * 40]


def parities(count=24):
    """Whether the second word of a text is even, under another name than the label of `rows`."""
    return [{"text": f"w9 w{20 + number % 30} w12", "parity": ("even", "odd")[number % 2]} for number in range(count)]


def amounts(count=14):
    return [{"text": f"w{15 + number % 3} w30", "amount": 100.0 * (number % 3)} for number in range(count)]


TASKS = {
    "animal": TaskData(rows(30), validation=rows(9, first=50)),
    "parity": TaskData(parities(), label="parity"),
}
THREE = {**TASKS, "amount": TaskData(amounts(), validation=amounts(6), label="amount", target="regression")}


def opened(folder, **options):
    return MultiTask.from_pretrained(folder, device="cpu", **options)


def fitted(folder, tasks=TASKS, *, open_with=None, **options):
    model = opened(folder, **(open_with or {}))
    record = model.fit(tasks, **{**QUICK, **options})
    return model, record


@pytest.fixture(scope="module")
def three(tiny_bert, tmp_path_factory):
    """A model of three tasks, the folder it was saved in, and the record of its training."""
    folder = tmp_path_factory.mktemp("multitask") / "saved"
    model, record = fitted(tiny_bert, THREE)
    model.save(folder)
    return model, folder, record


@pytest.fixture
def copied(three, tmp_path):
    """A copy of the saved folder, to do damage to."""
    return shutil.copytree(three[1], tmp_path / "copy")


def test_every_task_answers_in_its_own_words_from_one_pass(three, encoder_passes):
    model, _, _ = three
    answers = model.predict(TEXTS)
    together = len(encoder_passes)
    alone = {name: part.predict(TEXTS) for name, part in model.parts.items()}
    assert len(encoder_passes) == together * (1 + len(model.parts))
    for number, answer in enumerate(answers):
        assert answer["animal"].label in {"ant", "bee", "cow"}
        assert answer["parity"].label in {"even", "odd"}
        assert answer["animal"].probabilities == pytest.approx(alone["animal"][number].probabilities, abs=1e-6)
        assert answer["parity"].probabilities == pytest.approx(alone["parity"][number].probabilities, abs=1e-6)
        assert answer["amount"].value == pytest.approx(alone["amount"][number].value, abs=1e-4)
        assert answer["animal"].tokens_read == answer["amount"].tokens_read == alone["animal"][number].tokens_read
    assert answers[-1]["animal"].tokens_read.windows > 1


def test_a_single_text_and_a_stream_say_the_same(three):
    model, _, _ = three
    assert model.predict(TEXTS[0]) == model.predict(TEXTS[:1])[0]
    assert list(model.predict_stream(iter(TEXTS))) == model.predict(TEXTS)
    assert model.predict([]) == []


def test_heads_that_read_other_rows_share_the_pass(monkeypatch):
    from bothways.encoder import ScoreHead, ScoreHeadKind
    from bothways.encoder.head_kinds import FirstToken, Labels, MeanOfTokens
    from bothways.encoder.heads import read_rows
    from bothways.packing import pack
    from tiny_models import random_ids, tiny_encoder

    encoder = tiny_encoder()
    heads = [
        ScoreHead(encoder.config, ScoreHeadKind(read, None, Labels()), 3) for read in (FirstToken(), MeanOfTokens())
    ]
    packed = pack(random_ids((4, 7, 2)))
    with torch.no_grad():
        found = SharedHeads(encoder, heads).eval()(packed)
        expected = torch.cat([head(read_rows(head.kind.read, encoder, packed)) for head in heads], dim=1)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_encoder_is_shared(three):
    model, _, _ = three
    first, second, _ = (part.fitted.backend.head_model for part in model.parts.values())
    assert first.encoder is second.encoder is model.model.encoder
    assert first.head is not second.head


def test_each_task_is_calibrated_and_reported_by_itself(three):
    model, _, _ = three
    assert model.part("animal").confidence.calibration is not None
    assert model.part("parity").confidence.calibration is not None
    assert model.part("amount").confidence.calibration is None
    report = model.part("parity").evaluate(parities(), resamples=5)
    assert set(report.labels) == {"even", "odd"}


def test_data_with_the_labels_of_all_tasks_are_evaluated_at_once(three):
    model, _, _ = three
    data = [
        {"text": row["text"], "label": row["label"], "parity": ("even", "odd")[number % 2], "amount": number}
        for number, row in enumerate(rows(10))
    ]
    data[3]["text"] = "w5 " * 40
    report = model.evaluate(data, resamples=5)
    assert set(report.to_dict()) == {*THREE, "tokens_read"}
    assert report.to_dict()["tokens_read"]["in_windows"] == 1
    for name in THREE:
        alone = model.part(name).evaluate(data, resamples=5).estimates
        together = report[name].estimates
        assert {key: each.value for key, each in together.items()} == pytest.approx(
            {key: each.value for key, each in alone.items()}, abs=1e-4
        )
        assert f"{name}: 10 rows" in report.summary()
    assert "1 of 10 texts were read in several windows" in report.summary()


def test_a_row_without_a_label_is_left_out_of_that_task_alone(three):
    model, _, _ = three
    data = [{**row, "parity": "even", "amount": number} for number, row in enumerate(rows(8))]
    data[2] |= {"label": None, "parity": None}
    data[5] |= {"amount": None}
    data[6] |= {"label": "", "parity": None, "amount": None}
    with pytest.raises(InvalidInput, match=r"row 3 .*'label' is missing, as in 2 of 8 rows"):
        model.evaluate(data)
    report = model.evaluate(data, unlabelled="drop", resamples=5)
    assert [report[name].n for name in THREE] == [6, 6, 6]
    for name, column in zip(THREE, ("label", "parity", "amount"), strict=True):
        alone = model.part(name).evaluate([row for row in data if row[column] not in (None, "")], resamples=5)
        found = {key: each.value for key, each in report[name].estimates.items()}
        assert found == pytest.approx({key: each.value for key, each in alone.estimates.items()}, rel=1e-6, abs=1e-4)


def test_each_task_knows_its_training_rows(three):
    again = MultiTask.from_pretrained(three[1], device="cpu")
    data = [{**row, "parity": "even", "amount": 1.0} for row in [*rows(3), *rows(9, first=200)]]
    report = again.evaluate(data, resamples=5)
    assert report["animal"].shared == three[0].evaluate(data, resamples=5)["animal"].shared
    assert [report[name].shared.shared for name in THREE] == [3, 0, 0]
    assert "3 of 12 rows are training rows" in report.summary()
    dropped = again.evaluate(data, shared="drop", resamples=5)
    assert [dropped[name].n for name in THREE] == [9, 12, 12]
    assert again.part("animal").evaluate(data, shared="drop", resamples=5).n == 9


def test_a_column_of_labels_may_have_any_name_even_text(base):
    learnt = [{"sentence": row["text"], "text": row["label"]} for row in rows(12)]
    odd = [{"sentence": row["text"], "parity": row["parity"]} for row in parities(12)]
    tasks = {
        "animal": TaskData(learnt, learnt, text=["sentence"], label="text"),
        "parity": TaskData(odd, odd, text="sentence", label="parity"),
    }
    model, _ = fitted(base, tasks, epochs=1)
    data = [{**row, "parity": ("even", "odd")[number % 2]} for number, row in enumerate(learnt)]
    together, alone = model.evaluate(data, resamples=5), model.part("animal").evaluate(learnt, resamples=5)
    assert together["animal"].estimates["accuracy"].value == alone.estimates["accuracy"].value


def test_tasks_with_their_labels_in_one_column_are_evaluated_one_by_one(base):
    other = [{**row, "label": row["label"].upper()} for row in rows(12)]
    model, _ = fitted(base, {"small": TaskData(rows(12)), "great": TaskData(other)}, epochs=1)
    with pytest.raises(InvalidInput, match=r"a label column of its own\. Name the task to evaluate"):
        model.evaluate(rows(12))
    assert model.part("great").evaluate(other, resamples=5).n == 12


def test_a_saved_model_comes_back_whole(three):
    model, folder, _ = three
    again = opened(folder)
    assert list(again.parts) == list(THREE)
    assert again.predict(TEXTS) == model.predict(TEXTS)
    assert again.card == model.card
    for name, part in model.parts.items():
        assert again.part(name).fitted.outputs.target == part.fitted.outputs.target
        assert again.part(name).confidence.calibration == part.confidence.calibration
        assert again.part(name).columns == part.columns
    encoders = {id(part.fitted.backend.head_model.encoder) for part in again.parts.values()}
    assert len(encoders) == 1


def test_it_opens_as_what_it_is_and_as_each_of_its_tasks(three):
    model, folder, _ = three
    assert isinstance(open_trained(folder, device="cpu"), MultiTask)
    part = open_trained(folder, task="parity", device="cpu")
    assert isinstance(part, TextClassifier)
    assert part.predict(TEXTS) == model.part("parity").predict(TEXTS)
    with pytest.raises(InvalidInput, match="no task 'mood'; its tasks are animal, parity, amount"):
        open_trained(folder, task="mood", device="cpu")
    with pytest.raises(InvalidInput, match="a model for multitask, which has no labels"):
        open_trained(folder, labels=["a", "b"], device="cpu")


def test_a_task_that_is_saved_alone_is_an_ordinary_classifier(three, tmp_path):
    model, _, _ = three
    model.part("parity").save(tmp_path / "alone")
    alone = open_trained(tmp_path / "alone", device="cpu")
    assert isinstance(alone, TextClassifier)
    assert alone.predict(TEXTS) == model.part("parity").predict(TEXTS)
    with pytest.raises(InvalidInput, match="a model for one task, classification"):
        open_trained(tmp_path / "alone", task="parity", device="cpu")


def theirs(folder, texts):
    """Logits of transformers, one text at a time."""
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return torch.cat([model(**tokenizer(text, return_tensors="pt")).logits for text in texts]).numpy()


@pytest.mark.parametrize("name", ["parity", "amount"])
def test_a_further_task_opens_in_transformers(three, copied, name):
    model, _, _ = three
    columns = model.part(name).columns
    label = {"parity": "odd", "amount": 1}[name]
    ours_NC = model.part(name).score([{"text": text, columns.label: label} for text in TEXTS[:-1]]).logits
    np.testing.assert_allclose(ours_NC, theirs(of_one_task(copied, name), TEXTS[:-1]), rtol=1e-5, atol=1e-4)


def test_the_encoder_is_written_once(three):
    _, folder, _ = three
    written = load_file(folder / "heads" / "parity.safetensors")
    assert all("encoder" not in name and "embeddings" not in name for name in written)
    whole = load_file(folder / "model.safetensors")
    assert written.keys() <= whole.keys()


# --- how it trains ---


class Told:
    """An objective of so many updates, which says which of them were asked for."""

    baseline, min_updates = None, 0

    def __init__(self, count, score=0.0):
        self.count, self.score = count, score

    def updates_per_epoch(self):
        return self.count

    def updates(self, epoch, start):
        from bothways.tasks.heads.objective import Batch
        from bothways.training.objective import MicroBatch, Update

        for number in range(start, self.count):
            yield Update((MicroBatch(Batch(None, [epoch, number]), 1.0, 1),))

    def validate(self):
        return Validation({"accuracy": self.score}, self.score)


def shared(counts, sampling, **units):
    told = {name: Told(count) for name, count in counts.items()}
    return SharedObjective(
        SharedHeads(torch.nn.Identity(), []),
        told,
        sampling,
        seed=3,
        units={name: units.get(name, 1.0) for name in told},
    )


def asked(objective, epoch, start=0):
    return [
        (part.payload.task, *part.payload.batch.windows)
        for update in objective.updates(epoch, start)
        for part in update.micro_batches
    ]


@pytest.mark.parametrize("sampling", [Proportional(), Tempered(3.0), Uniform()], ids=str)
def test_data_are_gone_through_in_order_again_and_again_over_the_epochs(sampling):
    objective = shared({"large": 11, "small": 3}, sampling)
    seen = [each for epoch in range(4) for each in asked(objective, epoch)]
    for name, count in (("large", 11), ("small", 3)):
        own = [(epoch, number) for task, epoch, number in seen if task == name]
        assert own == [divmod(place, count) for place in range(len(own))]
    assert len(seen) == 4 * objective.updates_per_epoch() == 4 * 14


def test_an_epoch_in_proportion_has_every_row_of_every_task_once():
    objective = shared({"large": 11, "small": 3}, Proportional())
    for epoch in range(3):
        seen = asked(objective, epoch)
        assert sorted(seen) == sorted(
            [("large", epoch, number) for number in range(11)] + [("small", epoch, number) for number in range(3)]
        )
    assert [task for task, *_ in asked(objective, 0)] != [task for task, *_ in asked(objective, 1)]


@pytest.mark.parametrize("start", [0, 1, 7, 13])
def test_a_resumed_epoch_goes_on_where_it_was_left(start):
    objective = shared({"large": 11, "small": 3}, Uniform())
    assert asked(objective, 2, start) == asked(objective, 2)[start:]


def test_the_score_is_the_mean_of_those_of_the_tasks_in_units_of_each():
    objective = shared({"one": 1, "two": 1}, Proportional(), two=200.0)
    objective.objectives["one"].score, objective.objectives["two"].score = 0.5, -50.0
    found = objective.validate()
    assert found.score == pytest.approx((0.5 - 50 / 200) / 2)
    assert found.metrics == {"one.accuracy": 0.5, "two.accuracy": -50.0}


def test_numbers_of_any_size_do_not_drown_the_other_tasks(three):
    _, _, record = three
    for each in record.validations:
        variance = np.var([row["amount"] for row in amounts()])  # of what is learnt from
        error = each.metrics["amount.mse"] / variance
        right = each.metrics["animal.accuracy"] + each.metrics["parity.accuracy"]
        assert each.score == pytest.approx((right - error) / 3, abs=1e-4)


def test_an_interrupted_run_that_is_resumed_gives_the_model_of_one_that_was_not(base, tmp_path, monkeypatch):
    options = {"epochs": 3, "sampling": Tempered(2.0), "seed": 2}
    whole, _ = fitted(base, **options)
    calls = itertools.count()
    original = WindowObjective.loss

    def interrupting(self, payload):
        if next(calls) == 9:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, payload)

    monkeypatch.setattr(WindowObjective, "loss", interrupting)
    assert fitted(base, checkpoints=tmp_path / "run", **options)[1].interrupted
    monkeypatch.undo()
    resumed, record = fitted(base, checkpoints=tmp_path / "run", resume=True, **options)
    assert record.resumed_from == 10
    whole.save(tmp_path / "whole")
    resumed.save(tmp_path / "resumed")
    for name in ("model.safetensors", "heads/parity.safetensors"):
        assert same(load_file(tmp_path / "whole" / name), load_file(tmp_path / "resumed" / name))


def test_fitting_again_goes_on_with_the_heads(copied):
    model = opened(copied)
    before = model.predict(TEXTS)
    model.fit(THREE, **{**QUICK, "learning_rate": 1e-9, "optimizer": AdamW(weight_decay=0.0)})
    for old, new in zip(before, model.predict(TEXTS), strict=True):
        assert new["amount"].value == pytest.approx(old["amount"].value, abs=1e-3)
        assert new["animal"].label == old["animal"].label


# --- bad input ---


@pytest.mark.parametrize(
    ("tasks", "said"),
    [
        ({"one": TASKS["animal"]}, "expected at least 2 tasks, got 1"),
        ({"a/b": TASKS["animal"], "c": TASKS["parity"]}, "letters, digits, '-' and '_' .* got 'a/b'"),
        ({"": TASKS["animal"], "c": TASKS["parity"]}, "got ''"),
        ({"tokens_read": TASKS["animal"], "c": TASKS["parity"]}, "not be 'tokens_read'"),
        ({"a": TASKS["animal"], "b": TaskData(parities())}, "task 'b': .* no column 'label'"),
        ({"a": TASKS["animal"], "b": TaskData(rows(), target="regression")}, "task 'b': row 1 .* finite number"),
        (
            {"a": TaskData(rows(9), validation=[{"text": "w5", "label": "dog"}]), "b": TASKS["parity"]},
            "task 'a': .* 'dog'",
        ),
    ],
)
def test_tasks_that_cannot_be_are_refused_by_name(base, tasks, said):
    model = opened(base)
    with pytest.raises(InvalidInput, match=said):
        model.fit(tasks, **QUICK)
    with pytest.raises(NotFitted):
        model.predict("w5")


def test_a_text_that_is_too_long_is_refused_on_request(base):
    with pytest.raises(TextTooLong, match="task 'animal'"):
        fitted(
            base,
            {"animal": TaskData([*rows(), {"text": "w5 " * 40, "label": "ant"}]), "parity": TASKS["parity"]},
            open_with={"on_overflow": "error"},
        )


@pytest.mark.parametrize("use", ["predict", "evaluate", "save", "part", "facts"])
def test_an_unfitted_model_says_to_fit_it(base, tmp_path, use):
    model = opened(base)
    calls = {
        "predict": lambda: model.predict("w5"),
        "evaluate": lambda: model.evaluate(rows()),
        "save": lambda: model.save(tmp_path / "saved"),
        "part": lambda: model.part("animal"),
        "facts": lambda: model.fitted.facts(),
    }
    with pytest.raises(NotFitted, match="call fit first"):
        calls[use]()
    assert not (tmp_path / "saved").exists()


def test_a_folder_that_is_there_is_not_replaced(three):
    model, folder, _ = three
    with pytest.raises(OutputExists):
        model.save(folder)


def altered(folder, change):
    """Change what bothways.json says of the heads."""
    path = folder / "bothways.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda content: content.pop("heads"),
        lambda content: content.update(heads=content["heads"][:1]),
        lambda content: content["heads"][1].update(name="../animal"),
        lambda content: content["heads"][1].update(name="animal"),
        lambda content: content["heads"][1].pop("config"),
        lambda content: content["heads"][1].update(calibration={"method": "magic"}),
        lambda content: content.update(merge="median"),
    ],
)
def test_a_damaged_description_is_refused(copied, change):
    altered(copied, change)
    with pytest.raises(CorruptCheckpoint, match=r"bothways\.json must give"):
        opened(copied)


def test_a_damaged_head_is_noticed(copied):
    path = copied / "heads" / "parity.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorruptCheckpoint, match="SHA-256"):
        opened(copied)
    altered(copied, lambda content: content["checksums"].update({"heads/parity.safetensors": sha256_of(path)}))
    with pytest.raises(CorruptCheckpoint, match="not a whole safetensors file"):
        opened(copied)
    path.unlink()
    with pytest.raises(CorruptCheckpoint, match="is missing"):
        opened(copied)


# --- tasks that learnt from different columns ---


@pytest.fixture(scope="module")
def apart(tmp_path_factory):
    """Two tasks above one encoder, each with texts in a column of its own; the labels of one are the other's."""
    folder = tmp_path_factory.mktemp("apart")
    write_checkpoint(folder)
    reviews = [{"review": row["text"], "kind": row["label"]} for row in rows(18)]
    headlines = [{"headline": row["text"], "topic": row["label"]} for row in rows(18)]
    tasks = {
        "s": TaskData(reviews, reviews[:6], text="review", label="kind"),
        "t": TaskData(headlines, headlines[:6], text="headline", label="topic"),
    }
    return fitted(folder, tasks)[0]


def test_a_row_is_read_from_the_column_that_it_has(apart):
    text = rows(1)[0]["text"]
    found = list(apart.predict_stream(read_rows([{"review": text}, {"headline": text}])))
    assert found == apart.predict([text, text])
    expected = apart.predict(text)
    assert list(apart.predict_stream(read_rows([{"review": "", "headline": text}]))) == [expected]
    assert list(apart.predict_stream(read_rows([{"review": text, "headline": text}]))) == [expected]
    assert list(apart.predict_stream(read_rows(apart.fitted.columns.rows_of([text])))) == [expected]


def test_a_row_with_two_texts_is_refused_until_one_is_chosen(apart):
    row = {"review": "w5 w20", "headline": "w30", "kind": "ant", "topic": "bee"}
    said = "row 1 .*has several texts, in the columns review and headline, but all tasks must read the same"
    with pytest.raises(InvalidInput, match=said):
        list(apart.predict_stream(read_rows([row])))
    with pytest.raises(InvalidInput, match=said):
        apart.evaluate([row])
    with pytest.raises(InvalidInput, match="no column 'review'"):
        list(apart.predict_stream(read_rows([{"body": "w5"}])))
    chosen = apart.with_columns(text="headline")
    assert list(chosen.predict_stream(read_rows([row]))) == [apart.predict("w30")]
    assert chosen.evaluate([row], resamples=2).reports.keys() == {"s", "t"}
