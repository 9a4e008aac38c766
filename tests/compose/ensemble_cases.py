"""Members of ensembles and models of several tasks, changed on disk."""

import json
import shutil

import numpy as np
import pytest
from safetensors.torch import load_file, save_file

from bothways.compose.opening import open_trained
from bothways.data import read_rows


def turned(folder, target, order):
    """A copy of a trained model whose outputs, with their labels, stand in another order."""
    shutil.copytree(folder, target)
    path = target / "model.safetensors"
    tensors = load_file(path)
    heads = {name: value[order].contiguous() for name, value in tensors.items() if name.startswith("classifier.")}
    save_file(tensors | heads, path, metadata={"format": "pt"})
    config = json.loads((target / "config.json").read_text())
    names = [config["id2label"][str(number)] for number in order]
    config |= {"id2label": dict(enumerate(names)), "label2id": {name: index for index, name in enumerate(names)}}
    (target / "config.json").write_text(json.dumps(config))
    described = json.loads((target / "bothways.json").read_text())
    del described["checksums"]
    (target / "bothways.json").write_text(json.dumps(described))
    return target


def reading(folder, target, **columns):
    """A copy of a trained model that reads other columns."""
    shutil.copytree(folder, target)
    path = target / "bothways.json"
    content = json.loads(path.read_text())
    content["card"]["columns"] |= columns
    path.write_text(json.dumps(content))
    return target


def of_one_task(folder, name):
    """Make a folder of several tasks a model of a further one, as the documentation says.

    Its head's tensors over the model's, its config over config.json.
    """
    tensors = load_file(folder / "model.safetensors") | load_file(folder / "heads" / f"{name}.safetensors")
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    heads = json.loads((folder / "bothways.json").read_text())["heads"]
    (config,) = (each["config"] for each in heads if each["name"] == name)
    config = json.loads((folder / "config.json").read_text()) | config
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def reported(ensemble, folders, data, metrics):
    """The report of an ensemble as JSON, with those of its members and their disagreement checked, and its answers."""
    report, found = ensemble.evaluate(data, resamples=5), list(ensemble.predict_stream(read_rows(data)))
    content = report.to_dict()
    for name, attribute in (("disagreement", "differing"), ("mutual_information", "information")):
        mean = np.mean([getattr(each.disagreement, attribute) for each in found])
        assert content["disagreement"][name] == pytest.approx(mean)
    for folder, member in zip(folders, content["members"], strict=True):
        alone = open_trained(folder, device="cpu").evaluate(data, resamples=5)
        assert member["member"] == str(folder)
        assert [member[name] for name in metrics] == pytest.approx([alone.estimates[name].value for name in metrics])
    assert "disagreement, mean" in report.summary()
    json.dumps(content)
    return content, found
