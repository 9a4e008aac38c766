"""The choice of the library that multiplies matrices: forced, remembered, or measured."""

import json
from dataclasses import replace

import pytest

from bothways import products
from bothways.errors import InvalidInput
from bothways.products import ALL_ROWS, FEW_ROWS, ONEDNN, ONEDNN_SLIGHTLY_AHEAD, TORCH, VARIABLE, matrix_product

ABOUT = {0.8: TORCH, 1.04: TORCH, 1.1: ONEDNN_SLIGHTLY_AHEAD, 2.2: ONEDNN}


@pytest.fixture
def anew(monkeypatch, tmp_path):
    """A machine on which nothing was chosen yet, and the speedups that are measured on it, in turn."""
    measured = []
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(products, "_has_onednn", lambda: True)
    monkeypatch.setattr(products, "_speedups", lambda: (measured.pop(0), 1.0, 1.0))
    matrix_product.cache_clear()
    yield measured
    matrix_product.cache_clear()


def next_process():
    matrix_product.cache_clear()
    return matrix_product()


@pytest.mark.parametrize("speedup", ABOUT)
def test_the_faster_one_is_chosen_and_remembered(speedup, anew):
    anew.append(speedup)
    assert matrix_product() == ABOUT[speedup]
    assert next_process() == ABOUT[speedup]  # nothing is left to measure


def test_other_processors_and_threads_have_choices_of_their_own(anew, monkeypatch, tmp_path):
    anew += [0.8, 2.2]
    matrix_product()
    monkeypatch.setattr(products, "_machine", lambda: "another one")
    assert next_process() == ONEDNN
    assert len(json.loads((tmp_path / "bothways/matrix-product.json").read_text())) == 2


@pytest.mark.parametrize("content", ["", "[]", "{", '{"MACHINE": "a library of tomorrow"}'])
def test_a_damaged_file_is_measured_again(content, anew, tmp_path):
    file = tmp_path / "bothways/matrix-product.json"
    file.parent.mkdir()
    file.write_text(content.replace("MACHINE", products._machine()))
    anew.append(2.2)
    assert matrix_product() == ONEDNN
    assert next_process() == ONEDNN


def test_a_home_that_cannot_be_written_to_is_no_error(anew, tmp_path):
    (tmp_path / "bothways").write_text("a file in the way")
    anew += [2.2, 2.2]
    assert matrix_product() == ONEDNN
    assert next_process() == ONEDNN
    assert anew == []


@pytest.mark.parametrize(
    ("few", "many", "rows"), [(0.9, 1.3, 0), (1.3, 0.9, FEW_ROWS), (1.3, 1.0, FEW_ROWS), (1.3, 1.3, ALL_ROWS)]
)
def test_weights_are_packed_for_as_many_rows_as_gain(few, many, rows, anew, monkeypatch):
    measured = [(0.8, few, many)]
    monkeypatch.setattr(products, "_speedups", lambda: measured.pop())
    assert matrix_product() == next_process() == replace(TORCH, packed_rows=rows)


@pytest.mark.parametrize(
    ("name", "product"), [("torch", TORCH), ("onednn", ONEDNN), ("packed", replace(ONEDNN, packed_rows=ALL_ROWS))]
)
def test_a_library_can_be_forced(name, product, anew, monkeypatch):
    monkeypatch.setenv(VARIABLE, name)
    assert matrix_product() == product


@pytest.mark.parametrize(("available", "name"), [(True, "mkl"), (False, "onednn"), (False, "packed")])
def test_a_library_that_is_not_there_is_refused(available, name, anew, monkeypatch):
    monkeypatch.setattr(products, "_has_onednn", lambda: available)
    monkeypatch.setenv(VARIABLE, name)
    with pytest.raises(InvalidInput, match=f"expected 'torch'.* got '{name}'"):
        matrix_product()


def test_a_build_without_onednn_takes_torch(anew, monkeypatch):
    monkeypatch.setattr(products, "_has_onednn", lambda: False)
    assert matrix_product() == TORCH


def test_two_libraries_of_one_machine_are_not_orders_apart():
    if not products._has_onednn():
        pytest.skip("this build of torch has no oneDNN linear operator")
    assert all(0.1 < each < 10 for each in products._speedups())


def test_instructions_that_onednn_may_not_use_are_none(monkeypatch):
    def refused(_weight):
        raise RuntimeError("bf16 path needs the cpu support")

    monkeypatch.setattr(products, "_has_onednn", lambda: True)
    monkeypatch.setattr(products.torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(products, "packed", refused)
    products.has_bfloat16_product.cache_clear()
    assert not products.has_bfloat16_product()
    products.has_bfloat16_product.cache_clear()
