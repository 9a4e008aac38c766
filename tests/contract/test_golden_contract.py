"""Golden answers of every task: what is recorded, and that every cause of a difference is named."""

import functools
import hashlib
import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from bothways import open_trained
from bothways.checkpoints.golden import NEUTRAL, as_json
from bothways.compose import check
from bothways.data import read_rows
from bothways.errors import AnswersChanged, CorruptCheckpoint, InvalidInput
from bothways.tasks.columns import inputs_of
from bothways.tasks.registry import SPECS, task_class
from task_cases import CASES, QUICK, fitted
from tiny_models import edit_config

every_task = pytest.mark.parametrize("name", list(SPECS))


def parts(name):
    """Rows to train on, and held-out rows with other inputs."""
    rows = CASES[name].rows(60)
    values = CASES[name].values(rows)
    held_out = [row for row, value in zip(rows[40:], values[40:], strict=True) if value not in values[:40]]
    return rows[:40], held_out[:18]


@pytest.fixture(scope="module")
def saved(bert, tmp_path_factory):
    """A factory: the folder of a trained model of a task, which no test writes to."""
    folder = tmp_path_factory.mktemp("golden")

    @functools.cache
    def make(name):
        fitted(bert, name, *parts(name)).save(folder / name)
        return folder / name

    return make


@pytest.fixture
def changed(saved, tmp_path):
    """A factory: a copy of the folder of a trained model, to change."""
    return lambda name: shutil.copytree(saved(name), tmp_path / "changed")


def golden(folder):
    return json.loads((folder / "golden.json").read_text(encoding="utf-8"))


def quoted(folder):
    """The recorded inputs, and all texts in them."""
    inputs = [each["input"] for each in golden(folder)["answers"]]
    return inputs, [text for value in inputs for text in ([value] if isinstance(value, str) else flat(value))]


def flat(value):
    return [text for each in value for text in ([each] if isinstance(each, str) else flat(each))]


def causes(folder, **options):
    return check(folder, device="cpu", **options).to_dict()["causes"]


def opened(name, folder, **options):
    return task_class(SPECS[name]).from_pretrained(folder, device="cpu", **options)


# --- what is recorded ---


@every_task
def test_a_saved_model_answers_as_recorded_and_keeps_its_inputs(saved, name, tmp_path):
    folder, model = saved(name), opened(name, saved(name), check=True)
    assert type(open_trained(folder, device="cpu", check=True)) is type(model)
    report = check(folder, device="cpu")
    assert report.ok
    assert report.inputs == 16
    assert report.largest_difference < 1e-6
    model.save(tmp_path / "again")
    assert (tmp_path / "again" / "golden.json").read_bytes() == (folder / "golden.json").read_bytes()
    assert (folder / "golden.json").stat().st_size < 60_000


@every_task
def test_held_out_inputs_are_recorded_and_never_a_training_row(saved, name):
    train, held_out = parts(name)
    recorded, texts = quoted(saved(name))
    assert golden(saved(name))["inputs"] == "validation"
    if name in ("embedding", "masked_lm"):  # texts of rows, and texts with a mask
        learnt, unseen = ({text for row in rows for text in map(str, row.values())} for rows in (train, held_out))
        own = [text for text in recorded if text in unseen or "[MASK]" in text]
        assert own
        assert not learnt & set(texts)
        return
    columns = SPECS[name].columns
    learnt, unseen = ([as_json(value) for value in inputs_of(columns, read_rows(rows))] for rows in (train, held_out))
    assert [value for value in recorded if value in unseen]
    assert not [value for value in recorded if value in learnt]
    assert max(map(len, map(str, unseen)), default=0) <= max(map(len, map(str, recorded)))  # long ones are among them


@every_task
def test_neutral_inputs_quote_no_data_and_none_are_no_file(saved, name, tmp_path):
    model = opened(name, saved(name))
    model.save(tmp_path / "neutral", golden="neutral")
    model.save(tmp_path / "none", golden=None)
    assert golden(tmp_path / "neutral")["inputs"] == "neutral"
    ours = " ".join([*NEUTRAL, "[MASK]"])
    assert all(word in ours for text in quoted(tmp_path / "neutral")[1] for word in text.split())
    assert check(tmp_path / "neutral", device="cpu").ok
    assert not (tmp_path / "none" / "golden.json").exists()
    with pytest.raises(InvalidInput, match=r"has no golden answers: record them with bothways check .* --record"):
        check(tmp_path / "none", device="cpu")


@every_task
def test_a_model_that_was_trained_again_quotes_nothing_recorded_before(saved, name, tmp_path):
    model = opened(name, saved(name))
    train, held_out = parts(name)
    model.fit([*train, *held_out], validation=train[:12], **{**QUICK, "epochs": 1})  # all held-out rows are learnt
    model.save(tmp_path / "again")
    assert golden(tmp_path / "again")["inputs"] == "neutral"


# --- every cause is named ---


def scale(folder, tensor_name="embeddings.word_embeddings.weight", factor=1.1):
    """Scale one tensor, as a further training would."""
    path = folder / "model.safetensors"
    tensors = load_file(path)
    key = next(key for key in tensors if key.endswith(tensor_name))
    save_file({**tensors, key: tensors[key] * factor}, path, metadata={"format": "pt"})
    stored = json.loads((folder / "bothways.json").read_text(encoding="utf-8"))
    stored["checksums"]["model.safetensors"] = hashlib.sha256(path.read_bytes()).hexdigest()
    (folder / "bothways.json").write_text(json.dumps(stored), encoding="utf-8")


def other_vocabulary(folder):
    """Swap words in the files of the tokenizer."""
    for path in (each for each in folder.iterdir() if each.name in ("tokenizer.json", "vocab.txt")):
        text = path.read_text(encoding="utf-8")
        for number in range(25, 54, 2):
            one, other, between = f"w{number}", f"w{number + 1}", "\0"
            for old, new in ((one, between), (other, one), (between, other)):
                text = text.replace(f'"{old}"', f'"{new}"').replace(f"\n{old}\n", f"\n{new}\n")
        path.write_text(text, encoding="utf-8")


@every_task
def test_another_tokenizer_is_named_with_its_tokens(changed, name):
    folder = changed(name)
    other_vocabulary(folder)
    report = check(folder, device="cpu")
    assert report.to_dict()["causes"] == ["tokenizer", "answers"]
    first = report.differences[0].detail
    number = int(first.split(",")[0].removeprefix("input ")) - 1
    then = golden(folder)["answers"][number]
    place = int(first.split("token ")[-1].split()[0]) - 1
    assert f"was {then['tokens'][place]!r} ({then['ids'][place]}), is " in first
    with pytest.raises(AnswersChanged, match=r"differs from its golden answers:\n  tokenizer: input \d+"):
        opened(name, folder, check=True)
    assert opened(name, folder)


@every_task
def test_other_weights_are_named(changed, name):
    folder = changed(name)
    scale(folder)
    report = check(folder, device="cpu")
    assert report.to_dict()["causes"] == ["weights", "answers"]
    assert report.differences[0].detail.startswith("the SHA-256 of model.safetensors was ")
    assert report.largest_difference > report.tolerance


@every_task
def test_another_setting_is_named(changed, name):
    folder = changed(name)
    edit_config(folder, layer_norm_eps=0.3)
    report = check(folder, device="cpu")
    assert report.to_dict()["causes"] == ["settings", "answers"]
    assert report.differences[0].detail == "config.json: layer_norm_eps was 1e-12, is 0.3"


@every_task
def test_other_arithmetic_is_told_from_everything_else(changed, name):
    folder = changed(name)
    content = golden(folder)
    content["answers"][3]["numbers"][0] += 0.01 * max(
        abs(each) for row in content["answers"] for each in row["numbers"]
    )
    (folder / "golden.json").write_text(json.dumps(content), encoding="utf-8")
    report = check(folder, device="cpu")
    assert report.to_dict()["causes"] == ["arithmetic"]
    assert report.largest_difference == pytest.approx(0.01, rel=0.02)
    assert report.differences[0].detail.startswith("input 4, ")


def test_a_change_behind_the_scores_is_named(changed):
    folder = changed("classification")
    stored = json.loads((folder / "bothways.json").read_text(encoding="utf-8"))
    stored["calibration"]["value"] *= 3
    (folder / "bothways.json").write_text(json.dumps(stored), encoding="utf-8")
    assert causes(folder) == ["settings", "answers"]


def test_another_pooling_is_named(changed):
    folder = changed("embedding")
    stored = json.loads((folder / "bothways.json").read_text(encoding="utf-8"))
    (folder / "bothways.json").write_text(json.dumps({**stored, "pooling": "cls"}), encoding="utf-8")
    report = check(folder, device="cpu")
    assert report.to_dict()["causes"] == ["settings", "answers"]
    assert report.differences[0].detail == "bothways.json: pooling was 'mean', is 'cls'"


def test_other_predictions_with_the_same_numbers_are_a_tie_only_where_they_are_few(changed):
    folder = changed("classification")
    content = golden(folder)
    for count, expected in ((2, []), (3, ["arithmetic"])):
        for row in content["answers"][:count]:
            row |= {"answer_words": ["0", "emu", "False", "1"], "answer_sha256": "0" * 64}
        (folder / "golden.json").write_text(json.dumps(content), encoding="utf-8")
        report = check(folder, device="cpu")
        assert report.to_dict()["causes"] == expected
        assert report.ties == (0 if expected else count)
    assert "'emu'" in report.differences[0].detail


def test_the_tolerance_is_that_of_the_precision(saved):
    report = check(saved("classification"), device="cpu", dtype="bfloat16")
    assert report.ok
    assert report.now["precision"] == "bfloat16"
    assert report.tolerance == 0.05
    assert 5e-5 < report.largest_difference < 0.05
    assert check(saved("classification"), device="cpu").tolerance == 5e-5


# --- other files ---


def test_golden_answers_of_another_model_are_refused(saved, bert):
    with pytest.raises(
        InvalidInput,
        match=r"belong to another model .* expected those of a model for classification, got those of a mod",
    ):
        check(saved("classification"), against=saved("tagging") / "golden.json", device="cpu")


def test_an_encoder_of_another_size_is_another_model(changed, saved):
    content = golden(changed("classification"))
    content["architecture"]["layers"] = 7
    path = saved("classification").parent / "other.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    with pytest.raises(InvalidInput, match=r"expected model_type bert, .* layers 3, got model_type bert, .* layers 7"):
        check(saved("classification"), against=path, device="cpu")


def damaged(folder, change):
    content = golden(folder)
    change(content)
    (folder / "golden.json").write_text(json.dumps(content), encoding="utf-8")


DAMAGES = {
    "no JSON": lambda folder: (folder / "golden.json").write_text("{", encoding="utf-8"),
    "a list": lambda folder: (folder / "golden.json").write_text("[1]", encoding="utf-8"),
    "NaN": lambda folder: damaged(folder, lambda found: found["answers"][0]["numbers"].__setitem__(0, float("nan"))),
    "a text for a number": lambda folder: damaged(folder, lambda found: found.update(tolerance="5e-5")),
    "a list that is too short": lambda folder: damaged(folder, lambda found: found["answers"][1]["numbers"].pop()),
    "no answers": lambda folder: damaged(folder, lambda found: found.update(answers=[])),
    "a number for an input": lambda folder: damaged(folder, lambda found: found["answers"][0].update(input=5)),
    "another input": lambda folder: damaged(folder, lambda found: found["answers"][0].update(input=["a", "b"])),
    "17 MiB": lambda folder: (folder / "golden.json").write_bytes(b" " * 17 * 2**20),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_file_is_refused_by_a_check_and_by_nothing_else(changed, damage):
    folder = changed("classification")
    DAMAGES[damage](folder)
    if damage == "another input":  # no file can be known to be damaged so
        assert causes(folder) == ["answers"]
    else:
        with pytest.raises(CorruptCheckpoint, match=r"golden\.json"):
            check(folder, device="cpu")
    opened("classification", folder).save(folder.parent / "again")
    assert check(folder.parent / "again", device="cpu").ok


def test_options_that_change_answers_are_refused_beside_a_check(saved):
    with pytest.raises(InvalidInput, match=r"check=True compares the model's default answers, which max_length may"):
        opened("classification", saved("classification"), check=True, max_length=8)


# --- writing ---


def test_a_model_that_refuses_inputs_records_the_others(bert, tmp_path):
    model = fitted(bert, "classification", *parts("classification"))
    model.save(tmp_path / "saved")
    strict = opened("classification", tmp_path / "saved", on_overflow="error")
    strict.save(tmp_path / "strict", golden="neutral")
    recorded = quoted(tmp_path / "strict")[0]
    assert 0 < len(recorded) < 16
    assert NEUTRAL[-1] not in recorded
    assert check(tmp_path / "strict", device="cpu").ok


def test_a_failure_while_answering_fails_no_save(bert, saved, tmp_path, monkeypatch):
    model = opened("classification", saved("classification"))

    def fail(*_, **__):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(type(model.fitted), "score_blocks", fail)
    model.save(tmp_path / "saved")
    assert not (tmp_path / "saved" / "golden.json").exists()
    assert (tmp_path / "saved" / "bothways.json").is_file()
