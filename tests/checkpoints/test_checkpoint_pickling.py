"""Opened models pickle: by their folder while they are what it holds, else whole."""

import copy
import pickle
import shutil
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
from opening import WEIGHTS, rewrite, same_weights

from bothways.checkpoints import load, open_checkpoint
from bothways.checkpoints.pickling import reduce_module
from bothways.errors import CorruptCheckpoint, UnknownModel
from bothways.families import FAMILIES
from everyday import some_of
from tiny_models import edit_config, write_checkpoint

TEXTS = ["w5 w6 w7", "w8", ("w9 w10", "w11")]
SMALL = 20_000


def again(value):
    return pickle.loads(pickle.dumps(value))


def change(model):
    with torch.no_grad():
        model.encoder.embedding.tokens.weight.add_(0.25)


def same_answers(first, second):
    with torch.inference_mode():
        one, two = first(TEXTS, output_hidden_states=True), second(TEXTS, output_hidden_states=True)
        assert all(map(torch.equal, one.hidden_states, two.hidden_states))
        for head in first.heads:
            texts = [TEXTS[:2]] if head == "multiple_choice" else TEXTS
            assert torch.equal(first.apply_head(head, texts).logits, second.apply_head(head, texts).logits)
    if hasattr(first.pooler, "dense"):
        assert torch.equal(one.pooler_output, two.pooler_output)


CASES = [(model_type, changed) for model_type in FAMILIES for changed in (False, True)]


# Every family every day, changed and unchanged in turn.
@pytest.mark.parametrize(
    ("model_type", "changed"), some_of(CASES, *((name, at % 2 == 1) for at, name in enumerate(FAMILIES)))
)
def test_a_model_comes_back_with_all_its_heads_to_the_bit(tmp_path, model_type, changed):
    for architecture, heads in FAMILIES[model_type].architectures.items():
        write_checkpoint(tmp_path / architecture, model_type, architecture=architecture)
        model = load(tmp_path / architecture, heads=heads, device="cpu")
        if changed:
            change(model)
        back = again(model)
        same_answers(model, back)
        assert back.family is FAMILIES[model_type]
        assert back.settings == model.settings
        assert back.tokenizer.encode(TEXTS, max_length=10) == model.tokenizer.encode(TEXTS, max_length=10)


def test_an_unchanged_model_travels_by_its_folder_and_a_changed_one_whole(minilm_folder, tmp_path):
    model = load(minilm_folder, device="cpu")
    small = pickle.dumps(model)
    assert len(small) < SMALL
    same = model(["Hello there."]).last_hidden_state
    back = pickle.loads(small)
    assert torch.equal(back(["Hello there."]).last_hidden_state, same)
    assert len(pickle.dumps(back)) < SMALL
    change(model)
    assert len(pickle.dumps(model)) > 80_000_000


def test_a_changed_model_needs_no_folder(folder):
    model = load(folder, device="cpu")
    change(model)
    pickled = pickle.dumps(model)
    shutil.rmtree(folder)
    same_answers(model, pickle.loads(pickled))


def without(part):
    """Take tensors out of a folder."""

    def spoil(folder):
        rewrite(folder, lambda tensors: [tensors.pop(name) for name in list(tensors) if part in name])

    return spoil


@pytest.mark.parametrize("spoil", [without("layer.1.output"), without("pooler"), shutil.rmtree])
def test_a_model_travels_whole_if_its_folder_has_lost_weights_by_now_or_is_gone(folder, spoil):
    model, checkpoint = load(folder, device="cpu"), open_checkpoint(folder)
    spoil(folder)
    same_answers(model, again(model))
    same_weights(dict(again(checkpoint).tensors), dict(checkpoint.tensors))


def test_a_checkpoint_is_read_when_its_tensors_are_asked_for(folder):
    checkpoint = open_checkpoint(folder)
    pickled = pickle.dumps(checkpoint)
    assert len(pickled) < SMALL
    back = pickle.loads(pickled)
    same_weights(dict(back.tensors), dict(checkpoint.tensors))
    late = pickle.loads(pickled)
    shutil.rmtree(folder)
    with pytest.raises(UnknownModel, match=r"refers to the model folder .* which is not there"):
        late.build_encoder()


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("changed", [False, True])
def test_dtype_training_and_frozen_weights_are_kept(folder, half, changed):
    model = load(folder, device="cpu", dtype=half)
    if changed:
        change(model)
    model.encoder.train()
    model.encoder.embedding.requires_grad_(False)
    back = again(model).encoder
    same_weights(back.state_dict(), model.encoder.state_dict())
    assert back.training
    assert [each.requires_grad for each in back.parameters()] == [
        each.requires_grad for each in model.encoder.parameters()
    ]


def test_training_a_part_only_is_kept(folder):
    encoder = load(folder, device="cpu").encoder
    encoder.layers[1].train()
    assert [part.training for part in again(encoder).modules()] == [part.training for part in encoder.modules()]


@pytest.mark.parametrize("changed", [False, True])
def test_a_model_goes_to_the_cpu_where_its_device_is_not_there(folder, changed):
    model = load(folder, device="cpu")
    if changed:
        change(model)
    restore, arguments = reduce_module(model.encoder)
    absent = [torch.device("cuda", 99) if isinstance(each, torch.device) else each for each in arguments]
    assert absent != list(arguments)
    same_weights(restore(*absent).state_dict(), model.encoder.state_dict())


def other_word(folder):
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("w60", "w99"))


@pytest.mark.parametrize(
    ("part", "spoil", "error", "words"),
    [
        (
            lambda model: model,
            lambda folder: rewrite(folder, lambda tensors: next(iter(tensors.values())).add_(1)),
            CorruptCheckpoint,
            "weights have changed since it was pickled",
        ),
        (
            lambda model: model.tokenizer,
            other_word,
            CorruptCheckpoint,
            "whose files have changed since it was pickled",
        ),
        (lambda model: model, shutil.rmtree, UnknownModel, "refers to the model folder .* which is not there"),
    ],
)
def test_a_folder_that_changed_or_went_after_pickling_is_refused(folder, part, spoil, error, words):
    pickled = pickle.dumps(part(load(folder, device="cpu")))
    spoil(folder)
    with pytest.raises(error, match=words):
        pickle.loads(pickled)


def test_a_tokenizer_travels_whole_if_its_files_have_changed(folder):
    tokenizer = load(folder, device="cpu").tokenizer
    (folder / "tokenizer.json").unlink()
    back = again(tokenizer)
    assert back.to_json() == tokenizer.to_json()
    assert back.encode(TEXTS, max_length=10) == tokenizer.encode(TEXTS, max_length=10)
    back.save(folder)
    assert load(folder, device="cpu").tokenizer.to_json() == tokenizer.to_json()


def test_settings_travel_with_the_pickle(folder):
    pickled = pickle.dumps(load(folder, device="cpu"))
    edit_config(folder, id2label={"0": "changed"})
    assert "id2label" not in pickle.loads(pickled).settings


def test_a_relative_path_is_found_from_another_folder(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    model = load(folder.name, device="cpu")
    pickled = pickle.dumps(model)
    monkeypatch.chdir(tmp_path.parent)
    same_answers(model, pickle.loads(pickled))


def test_a_copy_is_made_in_memory(folder):
    model = load(folder, device="cpu")
    shutil.rmtree(folder)
    copied = copy.deepcopy(model.encoder)
    same_weights(copied.state_dict(), model.encoder.state_dict())
    change(model)
    assert not torch.equal(copied.embedding.tokens.weight, model.encoder.embedding.tokens.weight)


def test_a_copy_travels_by_the_folder_until_it_is_changed(folder):
    copied = copy.deepcopy(load(folder, device="cpu").encoder)
    assert len(pickle.dumps(copied)) < SMALL
    with torch.no_grad():
        copied.layers[0].attention.output.bias.add_(1)
    same_weights(again(copied).state_dict(), copied.state_dict())


@pytest.mark.parametrize("changed", [False, True])
def test_what_a_worker_gets_shares_no_memory_with_the_model(folder, changed):
    model = load(folder, device="cpu")
    if changed:
        change(model)
    back = pickle.loads(ForkingPickler.dumps(model))
    same_answers(model, back)
    change(back)
    assert not torch.equal(back.encoder.embedding.tokens.weight, model.encoder.embedding.tokens.weight)


def test_training_what_was_unpickled_leaves_the_folder_as_it_is(folder):
    before = (folder / WEIGHTS).read_bytes()
    back = again(load(folder, device="cpu"))
    change(back)
    assert (folder / WEIGHTS).read_bytes() == before
