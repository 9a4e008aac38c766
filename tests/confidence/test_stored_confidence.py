"""Arrays beside a model that do not fit it, or are no numbers, are refused when it is opened."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bothways import TextClassifier
from bothways.errors import CorruptCheckpoint

FROZEN = Path(__file__).resolve().parents[1] / "frozen" / "models"
ARRAYS = "confidence.safetensors"


@pytest.fixture
def folder(tmp_path):
    """A saved classifier without checksums."""
    folder = shutil.copytree(FROZEN / "classifier", tmp_path / "model")
    content = json.loads((folder / "bothways.json").read_bytes())
    content.pop("checksums", None)
    (folder / "bothways.json").write_text(json.dumps(content))
    return folder


def detector_arrays(folder):
    return sorted(name for name in load_file(folder / ARRAYS) if name.startswith("detector."))


PLACES = [("roots_LDD", 0), ("roots_LDD", 1), ("roots_LDD", 2), ("points_LCD", 0), ("points_LCD", 2)]


@pytest.mark.parametrize(("name", "axis"), PLACES)
def test_arrays_of_a_detector_that_do_not_fit_the_model_are_refused(folder, name, axis):
    arrays = load_file(folder / ARRAYS)
    array = arrays[f"detector.{name}"]
    arrays[f"detector.{name}"] = np.concatenate([array, array.take([0], axis)], axis)
    save_file(arrays, folder / ARRAYS)
    with pytest.raises(CorruptCheckpoint, match="settings that fit confidence"):
        TextClassifier.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("spoil", [np.ravel, lambda array: array[None], lambda array: array[..., :0]])
def test_arrays_with_other_axes_are_refused(folder, spoil):
    arrays = load_file(folder / ARRAYS)
    for name in detector_arrays(folder):
        save_file({**arrays, name: np.ascontiguousarray(spoil(arrays[name]))}, folder / ARRAYS)
        with pytest.raises(CorruptCheckpoint, match="settings that fit confidence"):
            TextClassifier.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_arrays_that_are_no_numbers_are_refused(folder, number):
    for name in load_file(folder / ARRAYS):
        arrays = load_file(folder / ARRAYS)
        good = arrays[name].copy()
        arrays[name].reshape(-1)[-1] = number
        save_file(arrays, folder / ARRAYS)
        with pytest.raises(CorruptCheckpoint, match=rf"finite numbers in {name} of confidence"):
            TextClassifier.from_pretrained(folder, device="cpu")
        save_file({**arrays, name: good}, folder / ARRAYS)
