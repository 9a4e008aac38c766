"""Golden answers of encoders, the choice of inputs, and the numbers that are kept."""

import contextlib
import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opening import rewrite

from bothways import SentenceEmbedder, TextClassifier
from bothways.checkpoints import load
from bothways.checkpoints.golden import (
    KEPT,
    MOST_INPUTS,
    NEUTRAL,
    as_json,
    choose_inputs,
    kept_numbers,
    settings_of,
    stored_inputs,
    write_golden,
)
from bothways.checkpoints.golden_check import GoldenFile, compare_golden
from bothways.compose import check, record_answers
from bothways.errors import AnswersChanged, BothwaysError, InvalidInput, UnsupportedConfig
from bothways.text import Words
from task_cases import fitted
from tiny_models import edit_config, write_checkpoint

labelled = st.lists(st.tuples(st.text(max_size=30), st.sampled_from("abc")), max_size=40)


@given(labelled, st.lists(st.text(max_size=30), max_size=10), st.integers(0, 5))
def test_inputs_are_held_out_unseen_few_and_the_same_for_a_seed(held_out, training, seed):
    chosen = choose_inputs(held_out, training, seed)
    assert chosen == choose_inputs(held_out, training, seed)
    unseen = {text for text, _ in held_out} - set(training)
    assert set(chosen) <= unseen
    assert len(chosen) == len(set(chosen)) == min(MOST_INPUTS, len(unseen))
    longest = sorted(len(json.dumps(text, ensure_ascii=False)) for text in unseen)[-4:]
    assert sorted(len(json.dumps(text, ensure_ascii=False)) for text in chosen)[len(chosen) - len(longest) :] == longest


def test_inputs_are_spread_over_labels_and_lengths():
    held_out = [
        (f"{label} {number}", label) for label, count in (("a", 90), ("b", 6), ("c", 4)) for number in range(count)
    ]
    held_out.append(("a long text " * 40, "a"))
    chosen = choose_inputs(held_out, [], seed=1)
    assert len(chosen) == 16
    assert "a long text " * 40 in chosen
    assert min(sum(text.startswith(label) for text in chosen) for label in "abc") >= 4
    assert chosen != choose_inputs(held_out, [], seed=2)


def test_an_input_of_a_book_is_not_quoted():
    assert choose_inputs([("word " * 2000, 0), ("short", 0)], [], seed=0) == ("short",)


def test_inputs_are_json_values():
    assert as_json(("a", ("b", "c"))) == ["a", ["b", "c"]]
    assert as_json(Words.of_text("a b")) == ["a", "b"]
    with pytest.raises(TypeError, match="got int"):
        as_json(5)


# --- numbers ---


def test_few_numbers_are_kept_with_eight_digits_and_many_as_sums():
    assert kept_numbers(np.array([1 / 3, -2e9 / 3])) == [0.33333333, -6.6666667e8]
    assert kept_numbers(np.arange(KEPT, dtype=float)) == list(range(KEPT))
    # The same on every machine: the signs are a part of the format.
    sums = kept_numbers(np.arange(100, dtype=float))
    assert len(sums) == KEPT
    assert sums[:3] == SUMS
    assert len(kept_numbers(np.ones(20_000))) == KEPT


SUMS = [36.6, -2.8, -14.0]


@pytest.mark.parametrize("place", [0, 64, 700, 9000])
def test_every_number_of_a_long_row_counts(place):
    row = np.random.default_rng(0).normal(size=9001)
    other = row.copy()
    other[place] += 0.1
    apart = np.abs(np.subtract(kept_numbers(row), kept_numbers(other)))
    assert apart == pytest.approx(0.1 / np.sqrt(9001), rel=1e-4)  # in each of the sums


# --- encoders ---


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "base")
    load(tmp_path / "base").save(tmp_path / "saved")
    return tmp_path / "saved"


def test_an_encoder_records_its_states(folder):
    model = load(folder, check=True)
    found = GoldenFile.read(folder / "golden.json", str(folder))
    assert (found.task, found.inputs, found.architecture["layers"]) == ("encoder", "neutral", 3)
    states = model(NEUTRAL[0], on_overflow="truncate").last_hidden_state[0].double().mean(0)
    assert found.answers[0].numbers == pytest.approx(states.tolist(), rel=1e-6)
    model.save(folder.parent / "again")
    assert (folder.parent / "again" / "golden.json").read_bytes() == (folder / "golden.json").read_bytes()
    model.save(folder.parent / "none", golden=None)
    assert not (folder.parent / "none" / "golden.json").exists()
    with pytest.raises(InvalidInput, match=r"has no golden answers: record .* --record .*none/golden\.json"):
        load(folder.parent / "none", check=True)
    with pytest.raises(InvalidInput, match=r"bothways check \S+MiniLM-L6-v2 --record FILE, and compare with --against"):
        check("sentence-transformers/all-MiniLM-L6-v2")


def test_an_encoder_is_checked_as_such_by_every_class_that_opens_it(folder):
    TextClassifier.from_pretrained(folder, device="cpu", check=True)  # an encoder to fine-tune
    SentenceEmbedder.from_pretrained(folder, device="cpu", check=True)
    rewrite(folder, lambda tensors: tensors.update({name: value * 1.01 for name, value in tensors.items()}))
    for kind in (TextClassifier, SentenceEmbedder):
        with pytest.raises(AnswersChanged, match="weights"):
            kind.from_pretrained(folder, device="cpu", check=True)


def test_an_encoder_that_changed_is_refused_where_a_check_is_asked_for(folder):
    rewrite(folder, lambda tensors: tensors.update({name: value * 1.01 for name, value in tensors.items()}))
    with pytest.raises(
        AnswersChanged, match=r"\n  weights: the SHA-256 of model.safetensors was .*\n  answers: input 1"
    ):
        load(folder, check=True)
    assert load(folder)


def test_answers_that_an_encoder_no_longer_gives_are_a_difference(folder):
    edit_config(folder, max_position_embeddings=18, layer_norm_eps=1e-3)
    (folder / "other.json").write_text((folder / "golden.json").read_text().replace('"input": "', '"input": "\\u0000'))
    assert check(folder, device="cpu").to_dict()["causes"][-1] == "answers"


def test_a_model_without_files_of_ours_is_recorded_and_checked(tmp_path):
    write_checkpoint(tmp_path / "base")
    assert record_answers(tmp_path / "base", tmp_path / "golden-base.json", device="cpu") == 16
    report = check(tmp_path / "base", against=tmp_path / "golden-base.json", device="cpu")
    assert report.ok
    assert (report.task, report.source) == ("embedding", "neutral")
    own = [{"text": "w5 w6"}, {"text": "w7"}]
    assert record_answers(tmp_path / "base", tmp_path / "own.json", data=own, device="cpu") == 2
    assert stored_inputs(tmp_path) is None
    assert check(tmp_path / "base", against=tmp_path / "own.json", device="cpu").source == "given"
    with pytest.raises(InvalidInput, match="the given list is empty"):
        record_answers(tmp_path / "base", tmp_path / "other.json", data=[], device="cpu")
    with pytest.raises(InvalidInput, match=r"does not exist: record it with --record"):
        check(tmp_path / "base", against=tmp_path / "no.json", device="cpu")


def test_an_embedder_answers_with_its_default_prompt(tmp_path):
    folder = tmp_path / "base"
    write_checkpoint(folder)
    prompts = folder / "config_sentence_transformers.json"
    prompts.write_text('{"prompts": {"query": "w5 w6 ", "other": "w9 "}, "default_prompt_name": "query"}')
    record_answers(folder, tmp_path / "golden-base.json", device="cpu")
    embedder = SentenceEmbedder.from_pretrained(folder, device="cpu")
    recorded = GoldenFile.read(tmp_path / "golden-base.json", "base").answers[0].numbers
    assert recorded == pytest.approx(embedder.encode(NEUTRAL[0], prompt="w5 w6 ").tolist(), abs=1e-6)
    prompts.write_text('{"prompts": {"query": "w5 w6 ", "other": "w9 "}, "default_prompt_name": "other"}')
    report = check(folder, against=tmp_path / "golden-base.json", device="cpu")
    assert report.to_dict()["causes"] == ["settings", "answers"]
    assert report.differences[0].detail.endswith("default_prompt_name was 'query', is 'other'")


def test_a_file_of_a_newer_version_is_not_read(folder):
    content = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    (folder / "golden.json").write_text(json.dumps({**content, "format_version": 2}), encoding="utf-8")
    with pytest.raises(UnsupportedConfig, match="format version 2"):
        check(folder, device="cpu")


@pytest.fixture(scope="module")
def opened(tmp_path_factory):
    """Models of tasks whose inputs differ, with the folders that they were saved in."""
    base = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(base)
    made = []
    for name in ("classification", "tagging", "multiple_choice"):
        model = fitted(base, name)
        model.save(base.parent / name)
        made.append((model._answering(), base.parent / name))
    return made


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


@pytest.mark.slow  # every day: the damaged files of the contract
@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(0, 2))
def test_any_change_of_a_file_is_an_error_or_a_difference_and_stops_no_save(opened, data, task):
    model, folder = opened[task]
    content = json.loads((folder / "golden.json").read_text(encoding="utf-8"))
    part, place = content, data.draw(st.sampled_from(sorted(content)))
    while isinstance(part[place], dict | list) and part[place] and data.draw(st.booleans()):
        part = part[place]
        place = data.draw(st.sampled_from(sorted(part) if isinstance(part, dict) else range(len(part))))
    part[place] = data.draw(json_values)
    file = folder.parent / "golden.json"
    file.write_text(json.dumps(content), encoding="utf-8")
    with contextlib.suppress(BothwaysError):
        assert compare_golden(GoldenFile.read(file, "a model"), model, folder, "a model").to_dict()
    (folder.parent / "written").mkdir(exist_ok=True)
    write_golden(folder.parent / "written", replace(model, source=folder.parent), "validation")


def test_settings_are_those_of_all_files_and_short(folder):
    edit_config(folder, id2label={str(number): f"label {number}" for number in range(100)})
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text('{"pooling_mode": "mean"}')
    (folder / "bothways.json").write_text('{"task": "x", "card": {"notes": []}, "heads": [{"name": "a", "card": {}}]}')
    found = settings_of(folder)
    assert found["1_Pooling/config.json: pooling_mode"] == "mean"
    assert found["bothways.json: heads"] == [{"name": "a"}]
    assert "bothways.json: card" not in found
    assert str(found["config.json: id2label"]).startswith("sha256 ")
    assert len(json.dumps(found)) < 3000
