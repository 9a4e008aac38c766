"""A loaded encoder refuses what it cannot answer, and its folder appears whole or not at all."""

import errno
import os

import pytest
import torch
from opening import same_weights
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from bothways.checkpoints import load
from bothways.encoder.config import TanhPooler
from bothways.errors import (
    DeviceMismatch,
    IncompatibleWeights,
    InvalidInput,
    MissingOutput,
    OutOfDisk,
    OutputExists,
    TextTooLong,
    UnsupportedAttention,
)
from bothways.families import FAMILIES
from tiny_models import every_family, tiny_config, write_checkpoint


@pytest.fixture
def model(folder):
    return load(folder, device="cpu")


@pytest.mark.parametrize("device", ["nonsense", "cuda:99", "cuda:-1", ""])
def test_a_device_that_is_not_there_is_refused(folder, device):
    with pytest.raises(DeviceMismatch, match=rf"{device!r} is not available here. Choose one of cpu"):
        load(folder, device=device)


@pytest.mark.parametrize("dtype", ["float8", "int8", torch.int64, "torch.float32"])
def test_a_precision_that_is_not_offered_is_refused(folder, dtype):
    with pytest.raises(InvalidInput, match="dtype must be one of float32, bfloat16, float16, float64"):
        load(folder, device="cpu", dtype=dtype)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64", torch.float64])
def test_a_model_is_loaded_in_the_precision_that_was_asked_for(folder, dtype):
    output = load(folder, device="cpu", dtype=dtype)("w5 w6")
    expected = dtype if isinstance(dtype, torch.dtype) else getattr(torch, dtype)
    assert output.last_hidden_state.dtype == output.pooler_output.dtype == expected


def test_texts_and_their_ids_give_the_same_in_evaluation_mode(model):
    assert not model.encoder.training
    assert not model.pooler.training
    [encoded] = model.tokenizer.encode([("w5 w6", "w7")], max_length=18)
    [window] = encoded.windows
    from_text = model([("w5 w6", "w7")])
    from_ids = model(input_ids=torch.tensor([window.ids]), token_type_ids=torch.tensor([window.types]))
    assert torch.equal(from_text.last_hidden_state, from_ids.last_hidden_state)
    assert max(window.types) == 1


@pytest.mark.parametrize(
    ("name", "wrong", "highest"),
    [*(("input_ids", wrong, 60) for wrong in (61, -1, 10**12)), ("token_type_ids", 2, 1), ("token_type_ids", -1, 1)],
)
def test_ids_that_the_model_does_not_have_are_refused(model, name, wrong, highest):
    inputs = {"input_ids": torch.tensor([[5, 6]])} | {name: torch.tensor([[0, wrong]])}
    with pytest.raises(InvalidInput, match=f"{name} must lie between 0 and {highest}, but one of them is {wrong}"):
        model(**inputs)


def test_a_model_without_segment_embeddings_has_no_highest_segment_id(tmp_path):
    """XLNet's tokenizer gives its [CLS] a third kind."""
    write_checkpoint(tmp_path, "xlnet")
    xlnet = load(tmp_path, device="cpu")
    ids = {"input_ids": torch.tensor([[5, 6, 2, 1]])}
    of_text = xlnet("w5 w6").last_hidden_state
    assert torch.equal(xlnet(**ids, token_type_ids=torch.tensor([[0, 0, 0, 2]])).last_hidden_state, of_text)
    assert not torch.equal(xlnet(**ids).last_hidden_state, of_text)
    with pytest.raises(InvalidInput, match="token_type_ids must be at least 0, but one of them is -1"):
        xlnet(**ids, token_type_ids=torch.tensor([[0, 0, 0, -1]]))


def test_a_tokenizer_with_more_kinds_of_texts_than_the_model_is_refused(tmp_path):
    write_checkpoint(tmp_path, "bert")
    write_checkpoint(tmp_path / "roberta", "roberta")
    (tmp_path / "roberta" / "tokenizer.json").write_bytes((tmp_path / "tokenizer.json").read_bytes())
    model = load(tmp_path / "roberta", device="cpu")
    assert model("w5").last_hidden_state.shape[-1] == 24
    with pytest.raises(IncompatibleWeights, match="gives tokens the type 1, but the largest type of the model is 0"):
        model([("w5", "w6")])


@every_family
def test_a_row_longer_than_the_model_reads_is_refused_and_the_longest_is_not(tmp_path, model_type):
    write_checkpoint(tmp_path, model_type)
    model = load(tmp_path, device="cpu")
    if model.config.max_length is None:
        assert model(input_ids=torch.full((1, 100), 5)).last_hidden_state.shape == (1, 100, 24)
        return
    assert model.config.max_length == 18
    assert model(input_ids=torch.full((1, 18), 5)).last_hidden_state.shape == (1, 18, 24)
    with pytest.raises(TextTooLong, match="at most 18 tokens, but a row of input_ids has 19"):
        model(input_ids=torch.full((1, 19), 5))


def test_padding_is_not_read(model):
    mask_BS = torch.tensor([[1] * 18 + [0] * 5])
    assert model(input_ids=torch.full((1, 23), 5), attention_mask=mask_BS).last_hidden_state.shape == (1, 18, 24)
    expected = model(input_ids=torch.tensor([[5, 6]])).last_hidden_state
    ids_BS, mask_BS = torch.tensor([[5, 6, -100]]), torch.tensor([[1, 1, 0]])
    assert torch.equal(model(input_ids=ids_BS, attention_mask=mask_BS).last_hidden_state, expected)


def test_a_long_text_is_refused_cut_or_read_in_windows_as_asked(model):
    text = " ".join(["w5"] * 30)
    with pytest.raises(TextTooLong):
        model(text)
    cut = model(["w6", text], on_overflow="truncate")
    assert cut.dropped_tokens == (0, 14)
    assert cut.text_of_row == (0, 1)
    windows = model(["w6", text], on_overflow="window")
    assert windows.dropped_tokens == (0, 0)
    assert windows.text_of_row[0] == 0
    assert set(windows.text_of_row[1:]) == {1}
    assert len(windows.text_of_row) == len(windows.last_hidden_state) > 2


ONE = torch.tensor([[5, 6]])


@pytest.mark.parametrize(
    ("inputs", "problem"),
    [
        *((each, "") for each in ({}, {"texts": "w5", "input_ids": ONE}, {"texts": []}, {"texts": ["w5", 3]})),
        ({"input_ids": [[5, 6]]}, "input_ids must be a tensor .* it is a list"),
        ({"input_ids": ONE, "attention_mask": [[1, 1]]}, "attention_mask must be a tensor"),
        ({"input_ids": ONE + 0.5}, "input_ids must hold whole numbers, but its dtype is torch.float32"),
    ],
)
def test_a_call_without_a_text_or_a_tensor_of_ids_is_refused(model, inputs, problem):
    with pytest.raises(InvalidInput, match=problem or None):
        model(**inputs)


@pytest.mark.parametrize("elsewhere", ["input_ids", "attention_mask", "token_type_ids"])
def test_a_tensor_on_another_device_is_refused_by_name(model, elsewhere):
    inputs = {"input_ids": torch.tensor([[5, 6]]), "attention_mask": torch.ones((1, 2)), elsewhere: None}
    inputs[elsewhere] = torch.ones((1, 2), dtype=torch.int64, device="meta")
    with pytest.raises(DeviceMismatch, match=f"{elsewhere} must be on the device of the model, cpu, but it is on meta"):
        model(**inputs)


@pytest.mark.parametrize("field", ["hidden_states", "attentions"])
def test_an_output_that_was_not_asked_for_says_how_to_get_it(model, field):
    output = model("w5 w6")
    with pytest.raises(MissingOutput, match=f"call with output_{field}=True"):
        getattr(output, field)
    assert len(getattr(model("w5 w6", **{f"output_{field}": True}), field)) in (3, 4)


def test_attention_weights_from_a_backend_that_has_none_are_refused(model):
    with pytest.raises(UnsupportedAttention, match="does not return attention weights"):
        model("w5 w6", output_attentions=True, backend="sdpa")


@every_family
def test_a_pooler_that_nothing_trained_is_not_handed_out(tmp_path, model_type):
    write_checkpoint(tmp_path, model_type)
    tensors = load_file(tmp_path / "model.safetensors")
    family = FAMILIES[model_type]
    if isinstance(tiny_config(model_type).pooler, TanhPooler):
        spare = {"pooler.dense.weight": torch.ones(24, 24), "pooler.dense.bias": torch.ones(24)}
        if model_type == "albert":
            spare = {name.replace(".dense", ""): value for name, value in spare.items()}
        save_file(tensors | spare, tmp_path / "model.safetensors")
    output = load(tmp_path, device="cpu")("w5 w6")
    if family.pooler_training is None:
        with pytest.raises(MissingOutput, match=f"{family.title} was not trained with a pooler"):
            _ = output.pooler_output
    else:
        assert output.pooler_output.shape == (1, 24)


def test_a_checkpoint_without_pooler_weights_hands_out_no_pooled_output(bare):
    with pytest.raises(MissingOutput, match="no weights for the pooler"):
        _ = load(bare, device="cpu")("w5").pooler_output


@pytest.fixture
def bare(folder):
    """The folder without its pooler's weights."""
    tensors = {k: v for k, v in load_file(folder / "model.safetensors").items() if "pooler" not in k}
    save_file(tensors, folder / "model.safetensors")
    return folder


def test_half_a_pooler_is_refused(bare):
    tensors = load_file(bare / "model.safetensors")
    save_file(tensors | {"pooler.dense.weight": torch.ones(24, 24)}, bare / "model.safetensors")
    with pytest.raises(IncompatibleWeights, match=r"dense\.bias"):
        load(bare, device="cpu")


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    write_checkpoint(tmp_path / "other")
    text = (tmp_path / "other" / "tokenizer.json").read_text().replace('"w60": 60', '"w60": 61')
    (folder / "tokenizer.json").write_text(text)
    with pytest.raises(IncompatibleWeights, match="embedding rows"):
        load(folder, device="cpu")


# Saving


def failing(error):
    def fail(*_, **__):
        raise error

    return fail


FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
FULL_AS_SAFETENSORS = SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")


@pytest.mark.parametrize("error", [FULL, FULL_AS_SAFETENSORS], ids=["system", "safetensors"])
def test_a_full_disk_leaves_what_was_there_before(model, tmp_path, monkeypatch, error):
    model.save(tmp_path / "saved")
    before = {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()}
    files = sorted(tmp_path.iterdir())
    monkeypatch.setattr("safetensors.torch.save_file", failing(error))
    for name, overwrite in (("saved", True), ("other", False)):
        with pytest.raises(OutOfDisk, match="no space left"):
            model.save(tmp_path / name, overwrite=overwrite)
    assert sorted(tmp_path.iterdir()) == files
    assert {path.name: path.read_bytes() for path in (tmp_path / "saved").iterdir()} == before


def test_an_unknown_failure_of_the_writer_is_not_hidden(model, tmp_path, monkeypatch):
    monkeypatch.setattr("safetensors.torch.save_file", failing(SafetensorError("something else")))
    with pytest.raises(OSError, match="Input/output error"):
        model.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


def test_a_model_can_be_saved_over_its_own_folder_only_if_it_is_asked_to(model, folder):
    expected = model("w5 w6").last_hidden_state
    with pytest.raises(OutputExists, match="already exists"):
        model.save(folder)
    (folder / "mine.txt").write_text("of an older model")
    model.save(folder, overwrite=True)
    assert not (folder / "mine.txt").exists()
    assert torch.equal(load(folder, device="cpu")("w5 w6").last_hidden_state, expected)
    assert torch.equal(model("w5 w6").last_hidden_state, expected)


@every_family
def test_what_was_loaded_is_saved_tensor_for_tensor(tmp_path, model_type):
    expected = write_checkpoint(tmp_path / "model", model_type)
    load(tmp_path / "model", device="cpu").save(tmp_path / "saved")
    same_weights(load_file(tmp_path / "saved" / "model.safetensors"), expected)


def test_every_saved_file_has_the_permissions_of_a_new_file(model, tmp_path):
    before = os.umask(0o027)
    try:
        model.save(tmp_path / "saved")
    finally:
        os.umask(before)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "saved").iterdir()}
    assert modes["model.safetensors"] == modes["config.json"] == 0o640
