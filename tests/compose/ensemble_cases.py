"""Members of ensembles and models of several tasks, changed on disk."""

import json
import shutil

from safetensors.torch import load_file, save_file


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
