"""Distillation of tiny models of tasks: students learn, are calibrated anew, save, and open where teachers do."""

import json

import numpy as np
import pytest
import torch
from distilling_cases import embedder_teacher, encoder_teacher

from bothways import open_trained
from bothways.errors import InvalidInput, NotFitted, UnknownModel
from bothways.pretraining.distiller import Distiller
from bothways.pretraining.models import Student
from bothways.pretraining.task_distiller import TaskDistiller
from bothways.tasks import MultipleChoice, PairClassifier, TextClassifier, TextTagger
from bothways.tasks.heads import soft_targets
from bothways.tasks.heads.soft_targets import SoftLoss, divergences
from bothways.tasks.heads.targets import MultiLabel, Regression, SingleLabel
from bothways.training.forecast import Forecast
from bothways.training.options import AdamW
from contract_cases import CASES, answer, pair_rows, rows, rows_of, texts_of, write_pretrained
from everyday import some_of

transformers = pytest.importorskip("transformers", reason="the oracle is not installed: pip install 'bothways[test]'")

TASKS = {kind.spec.name: kind for kind in (TextClassifier, PairClassifier)}
BY_HEART = {
    "epochs": 30,
    "learning_rate": 3e-3,
    "batch_size": 8,
    "optimizer": AdamW(weight_decay=0.0),
    "show_progress": False,
}
QUICK = {"updates": 80, "learning_rate": 3e-3, "batch_size": 8, "show_progress": False}
TAGGED = [
    {
        "tokens": [f"w{5 + number % 3}", "w30", f"w{5 + number % 2}"],
        "tags": [["A", "B", "C"][number % 3], "O", ["A", "B"][number % 2]],
    }
    for number in range(12)
]


@pytest.fixture(scope="module")
def teachers(tmp_path_factory):
    """A factory: the folder of a model of three layers that learnt a few rows by heart."""
    made = {}

    def make(task, target="single", model_type="bert"):
        if (task, target, model_type) not in made:
            folder = tmp_path_factory.mktemp(f"{task}-{target}-{model_type}")
            write_pretrained(folder / "base", model_type)
            if task == "tagging":
                model, data, options = TextTagger, TAGGED, {}
            else:
                model, data, options = TASKS[task], rows_of(task, target), {"target": target}
            opened = model.from_pretrained(folder / "base", device="cpu")
            opened.fit(data, validation=data, **options, **BY_HEART)
            opened.save(folder / "teacher")
            made[task, target, model_type] = folder / "teacher"
        return made[task, target, model_type]

    return make


def card_notes(distiller):
    return distiller.fitted.card["notes"]


def distiller_of(folder, layers=2, **options):
    return TaskDistiller.from_pretrained(folder, layers=layers, device="cpu", **options)


@pytest.mark.parametrize(
    ("task", "target"), some_of([*CASES, ("pairs", "regression")], ("classification", "multi"), ("pairs", "regression"))
)
def test_a_student_answers_as_its_teacher_without_a_label(task, target, teachers, tmp_path):
    distiller, data = distiller_of(teachers(task, target)), rows_of(task, target)
    kept = {name: value.clone() for name, value in distiller.teacher.model.encoder.state_dict().items()}
    unlabelled = [{name: value for name, value in row.items() if name != "label"} for row in data]
    record = distiller.fit(unlabelled, validation=data, **QUICK)
    assert record.losses[-1] < record.losses[0] / 10
    answers = [answer(each) for each in distiller.model.predict(texts_of(data))]
    wanted = [answer(each) for each in distiller.teacher.predict(texts_of(data))]
    if target == "regression":  # the measured mean is at most 0.02, of a spread of 0.83
        assert np.abs(np.subtract(answers, wanted)).mean() < np.std(wanted) / 4
    else:
        assert answers == wanted
    assert all(map(torch.equal, kept.values(), distiller.teacher.model.encoder.state_dict().values()))
    distiller.save(tmp_path / "student")
    again = open_trained(tmp_path / "student", device="cpu")
    assert again.model.config.layers == 2
    ours, theirs = (each.score(data, show_progress=False).logits for each in (distiller.model, again))
    np.testing.assert_array_equal(ours, theirs)
    oracle = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path / "student").eval()
    first = again.model.tokenizer.encode([texts_of(data)[0]], max_length=18)[0].windows[0]
    with torch.no_grad():
        logits = oracle(torch.tensor([list(first.ids)]), token_type_ids=torch.tensor([list(first.types)])).logits
    np.testing.assert_allclose(logits.numpy(), ours[:1], atol=1e-4)


def test_a_tagger_becomes_a_smaller_one(teachers, tmp_path):
    distiller = distiller_of(teachers("tagging"))
    record = distiller.fit([{"tokens": row["tokens"]} for row in TAGGED], validation=TAGGED, **QUICK)
    assert record.losses[-1] < record.losses[0] / 10
    words = [row["tokens"] for row in TAGGED]
    assert [each.tags for each in distiller.model.predict(words)] == [
        each.tags for each in distiller.teacher.predict(words)
    ]
    distiller.save(tmp_path / "student")
    again = TextTagger.from_pretrained(tmp_path / "student", device="cpu")
    np.testing.assert_array_equal(again.score(TAGGED).logits, distiller.model.score(TAGGED).logits)
    assert again.confidence.calibration == distiller.model.confidence.calibration is not None
    opened = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "student")
    assert opened.config.num_hidden_layers == 2


@pytest.mark.parametrize("target", ["single", "multi", "regression"])
def test_the_duration_is_estimated_before_the_teacher_reads_and_counts_its_pass(target, teachers, monkeypatch, capsys):
    announced, data, losses = [], rows(target), []
    monkeypatch.setattr(Forecast, "before", lambda self, *given: announced.append((self.reads, *given)))
    for show in (False, True):
        distiller = distiller_of(teachers("classification", target))
        losses.append(distiller.fit(data, validation=data, **{**QUICK, "updates": 31, "show_progress": show}).losses)
    ((reads, seconds, tokens, teaching),) = announced
    assert min(seconds, tokens, teaching, reads.cost) > 0
    assert teaching < 1
    assert reads.validation == pytest.approx(tokens * -(-reads.texts // 8))
    assert losses[0] == losses[1], "measuring changes nothing"
    shown = capsys.readouterr().err.splitlines()
    assert shown.index("measuring the speed of this machine") < shown.index("reading the texts with the teacher")


def test_confidence_is_learnt_anew_or_missing(teachers):
    folder, data = teachers("classification"), rows("single")
    assert TextClassifier.from_pretrained(folder, device="cpu").confidence.calibration is not None
    bare = distiller_of(folder)
    bare.fit(texts_of(data), **{**QUICK, "updates": 5})
    confidence, card = bare.model.confidence, bare.fitted.card
    assert (confidence.calibration, confidence.conformal) == (None, None)
    assert confidence.out_of_domain is not None  # takes no labels
    assert "nothing was calibrated" in card["notes"][0]
    assert "agrees with its teacher" in card["limits"][0]
    labelled = distiller_of(folder)
    labelled.fit(data, **{**QUICK, "updates": 5})  # a tenth of them is held out, and has labels
    assert labelled.model.confidence.calibration is not None
    assert "if the teacher was trained on them" in labelled.fitted.card["limits"][0]
    some = distiller_of(folder)
    some.fit([{**data[0], "label": None}, *data[1:]], **{**QUICK, "updates": 5})
    assert some.model.confidence.calibration is None
    given, held = distiller_of(folder), [{**data[0], "label": ""}, *data]
    given.fit(texts_of(data), validation=held, unlabelled="drop", **{**QUICK, "updates": 5})
    assert given.fitted.card["validation_rows"] == len(data)
    assert any(f"{len(data)} of {len(data)} validation rows are training rows" in each for each in card_notes(given))
    with pytest.raises(InvalidInput, match="all 16 validation rows are training rows"):
        distiller_of(folder).fit(["w60 w61"], validation=data, shared="drop", **QUICK)
    assert given.fitted.card["validation"] == "given"
    assert given.fitted.card["teacher"] == str(folder)


def test_a_resumed_run_equals_an_uninterrupted_one(teachers, tmp_path):
    folder, data = teachers("classification"), rows("single")
    whole = distiller_of(folder)
    record = whole.fit(texts_of(data), validation=data, **{**QUICK, "updates": 20})
    short = {**QUICK, "updates": 20, "checkpoints": tmp_path / "checkpoints", "checkpoint_every_updates": 3}
    stopped = distiller_of(folder)
    calls = []

    def interrupted(*given, usual=soft_targets.divergences):
        calls.append(1)
        if len(calls) == 11:
            raise KeyboardInterrupt
        return usual(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(soft_targets, "divergences", interrupted)
        stopped.fit(texts_of(data), validation=data, **short)
    again = distiller_of(folder)
    resumed = again.fit(texts_of(data), validation=data, **short, resume=True)
    assert resumed.resumed_from
    assert resumed.losses == record.losses
    other = distiller_of(folder, layers=1)
    with pytest.raises(InvalidInput, match="student"):
        other.fit(texts_of(data), validation=data, **short, resume=True)


def test_a_narrow_student_of_another_model_learns(teachers, tmp_path, monkeypatch):
    from bothways import load
    from tiny_models import TINY

    monkeypatch.setitem(TINY, "bert", TINY["bert"] | {"hidden_size": 12, "num_hidden_layers": 2})
    narrow = load(encoder_teacher(tmp_path / "narrow"), device="cpu")
    teacher, data = TextClassifier.from_pretrained(teachers("classification"), device="cpu"), rows("single")
    distiller = TaskDistiller(teacher, Student(narrow))
    record = distiller.fit(texts_of(data), validation=data, **{**QUICK, "learning_rate": 1e-2})
    assert record.losses[-1] < record.losses[0] / 2
    distiller.save(tmp_path / "student")
    again = TextClassifier.from_pretrained(tmp_path / "student", device="cpu")
    np.testing.assert_array_equal(again.score(data).logits, distiller.model.score(data).logits)
    assert "projection" not in json.dumps(sorted(load(tmp_path / "student", device="cpu").encoder.state_dict()))


def test_divergences_are_those_of_the_definition():
    draw = torch.Generator().manual_seed(0)
    ours, theirs = torch.randn(5, 3, generator=draw), torch.randn(5, 3, generator=draw)
    p, q = ((each / 2).softmax(-1) for each in (theirs, ours))
    torch.testing.assert_close(divergences(SingleLabel(()), ours, theirs, 2.0), 4 * (p * (p / q).log()).sum(-1))
    p, q = ((each / 2).sigmoid() for each in (theirs, ours))
    wanted = p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()
    torch.testing.assert_close(divergences(MultiLabel(()), ours, theirs, 2.0), 4 * wanted.mean(-1))
    number = Regression(None, mean=2.0, scale=4.0)
    found = divergences(number, ours[:, :1], theirs[:, :1], 2.0)
    torch.testing.assert_close(found, (ours[:, 0] - (theirs[:, 0] - 2) / 4) ** 2)
    for target in (SingleLabel(("a", "b", "c")), MultiLabel(("a", "b", "c")), number):
        taught = theirs if target is not number else theirs[:, :1] * 4 + 2
        torch.testing.assert_close(divergences(target, theirs[:, : taught.shape[1]], taught, 3.0), torch.zeros(5))


@pytest.mark.parametrize("states", [0.0, 1.0])
def test_a_copy_of_all_layers_has_nothing_to_learn(states, teachers):
    teacher, data = TextClassifier.from_pretrained(teachers("classification"), device="cpu"), rows("single")
    distiller = distiller_of(teachers("classification"), layers=teacher.model.config.layers)
    distiller.loss = SoftLoss(states=states)
    record = distiller.fit(texts_of(data), validation=data, **{**QUICK, "updates": 1})
    assert record.losses[0] == pytest.approx(0, abs=1e-5)


def test_what_cannot_be_distilled_is_refused(teachers, tmp_path):
    folder = teachers("classification")
    with pytest.raises(InvalidInput, match="`layers` must be from 1 to 3, the number of the teacher's layers, got 4"):
        distiller_of(folder, layers=4)
    with pytest.raises(UnknownModel):
        distiller_of(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match="TaskDistiller"):
        Distiller.from_pretrained(folder, device="cpu")
    with pytest.raises(InvalidInput, match="use Distiller for other encoders"):
        distiller_of(embedder_teacher(tmp_path / "embedder"))
    able = "or models that classify texts, classify pairs of texts, tag words, "
    encoder = encoder_teacher(tmp_path / "plain")
    untrained = MultipleChoice.from_pretrained(encoder, device="cpu")
    with pytest.raises(InvalidInput, match=f"multiple_choice, which cannot be distilled: expected an encoder, {able}"):
        TaskDistiller(untrained, Student(untrained.model))
    for task in ("question_answering", "ensemble", "multitask"):
        made = encoder_teacher(tmp_path / task)
        (made / "bothways.json").write_text(json.dumps({"task": task}))
        with pytest.raises(InvalidInput, match=f"is a model for {task}, which cannot be distilled: .* {able[3:]}"):
            distiller_of(made)
    with pytest.raises(NotFitted, match="call fit first"):
        distiller_of(folder).save(tmp_path / "student")


def test_bad_data_are_refused(teachers, tmp_path):
    distiller = distiller_of(teachers("classification"))
    with pytest.raises(InvalidInput, match="expected at least 2 texts to learn from"):
        distiller.fit([" ", "w5"], **QUICK)
    with pytest.raises(InvalidInput, match="expected at least 1 text"):
        distiller.fit([""], validation=rows("single"), **QUICK)
    with pytest.raises(InvalidInput, match="'moth'"):
        distiller.fit(["w5"], validation=[{"text": "w5", "label": "moth"}], **QUICK)
    with pytest.raises(InvalidInput, match=r"row 1 .*'label' is missing, got null"):
        distiller.fit(["w5"], validation=[{"text": "w5", "label": None}, *rows("single")], **QUICK)
    with pytest.raises(TypeError, match="nonsense"):
        distiller.fit(["w5", "w6"], nonsense=1)
    (tmp_path / "empty.txt").write_text("")
    with pytest.raises(InvalidInput, match="is empty"):
        distiller.fit(tmp_path / "empty.txt", **QUICK)
    pairs = distiller_of(teachers("pairs"))
    with pytest.raises(InvalidInput, match="text_a"):
        pairs.fit(rows("single"), validation=pair_rows("single"), **QUICK)


def test_another_vocabulary_is_refused(teachers, tmp_path):
    from bothways import load

    teacher = TextClassifier.from_pretrained(teachers("classification"), device="cpu")
    with pytest.raises(InvalidInput, match="expected a student with its teacher's vocabulary"):
        TaskDistiller(teacher, Student(load(encoder_teacher(tmp_path / "b", "roberta"), device="cpu")))
