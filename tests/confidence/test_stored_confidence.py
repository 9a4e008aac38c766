"""Arrays beside a model that do not fit it, or are no numbers, are refused when it is opened."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from bothways import FewShotClassifier, TextClassifier
from bothways.errors import CorruptCheckpoint

V1 = Path(__file__).resolve().parents[1] / "frozen" / "v1"
ARRAYS, EARLIER = "confidence.safetensors", "trust.safetensors"
MODELS = {"classifier": TextClassifier, "few_shot": FewShotClassifier}


@pytest.fixture(params=MODELS)
def model(request, tmp_path):
    """A saved model without checksums, and the class that opens it."""
    folder = shutil.copytree(V1 / request.param, tmp_path / "model")
    content = json.loads((folder / "bothways.json").read_bytes())
    content.pop("checksums", None)
    (folder / EARLIER).rename(folder / ARRAYS)
    (folder / "bothways.json").write_text(json.dumps(content))
    return folder, MODELS[request.param]


@pytest.mark.parametrize("name", MODELS)
def test_names_of_earlier_versions_are_read_and_written_as_those_of_today(name, tmp_path):
    assert (V1 / name / EARLIER).is_file()
    assert "trust" in json.loads((V1 / name / "bothways.json").read_bytes())["card"]
    opened = MODELS[name].from_pretrained(V1 / name, device="cpu")
    assert "trust" not in opened.card
    opened.save(tmp_path / "saved")
    again = MODELS[name].from_pretrained(tmp_path / "saved", device="cpu")
    assert again.card == opened.card
    assert again.card["confidence"]["coverage_from_rows"] > 0
    assert (tmp_path / "saved" / ARRAYS).is_file()
    assert not (tmp_path / "saved" / EARLIER).exists()
    assert again.predict("w5 w20", coverage=0.5) == opened.predict("w5 w20", coverage=0.5)


def detector_arrays(folder):
    return sorted(name for name in load_file(folder / ARRAYS) if name.startswith("detector."))


PLACES = [("roots_LDD", 0), ("roots_LDD", 1), ("roots_LDD", 2), ("points_LCD", 0), ("points_LCD", 2)]


@pytest.mark.parametrize(("name", "axis"), PLACES)
def test_arrays_of_a_detector_that_do_not_fit_the_model_are_refused(model, name, axis):
    folder, kind = model
    arrays = load_file(folder / ARRAYS)
    array = arrays[f"detector.{name}"]
    arrays[f"detector.{name}"] = np.concatenate([array, array.take([0], axis)], axis)
    save_file(arrays, folder / ARRAYS)
    with pytest.raises(CorruptCheckpoint, match="what belongs to confidence"):
        kind.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("spoil", [np.ravel, lambda array: array[None], lambda array: array[..., :0]])
def test_arrays_with_other_axes_are_refused(model, spoil):
    folder, kind = model
    arrays = load_file(folder / ARRAYS)
    for name in detector_arrays(folder):
        save_file({**arrays, name: np.ascontiguousarray(spoil(arrays[name]))}, folder / ARRAYS)
        with pytest.raises(CorruptCheckpoint, match="what belongs to confidence"):
            kind.from_pretrained(folder, device="cpu")


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_arrays_that_are_no_numbers_are_refused(model, number):
    folder, kind = model
    for name in load_file(folder / ARRAYS):
        arrays = load_file(folder / ARRAYS)
        good = arrays[name].copy()
        arrays[name].reshape(-1)[-1] = number
        save_file(arrays, folder / ARRAYS)
        with pytest.raises(CorruptCheckpoint, match=rf"finite numbers in {name} of confidence"):
            kind.from_pretrained(folder, device="cpu")
        save_file({**arrays, name: good}, folder / ARRAYS)
