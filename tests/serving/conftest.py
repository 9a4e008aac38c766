"""One tiny model of each task, trained for a moment, and a server of all of them."""

import pytest
from serving_cases import running

from bothways import Ensemble, MultiTask, SemanticSearch, SentenceEmbedder, TaskData
from bothways.judging import Judge
from judging.judging_cases import LABEL, triples
from task_cases import CASES, QUICK, fitted, texts

STORED = ["w5 w30 w31", "w6 w30", "w7 w7", "w5 w5 w40"]


@pytest.fixture(scope="session")
def folders(bert, tmp_path_factory):
    """Folders of trained models by task."""
    folder = tmp_path_factory.mktemp("models")
    for name in CASES:
        fitted(bert, name).save(folder / name, golden=None)
    return {name: folder / name for name in CASES}


@pytest.fixture(scope="session")
def everything(folders):
    """A server of one model for each task."""
    with running(*folders.values()) as server:
        yield server


@pytest.fixture(scope="session")
def composed(bert, folders, tmp_path_factory):
    """Folders of models that are made of others, by name; and an index."""
    path = tmp_path_factory.mktemp("composed")
    fitted(bert, "classification", seed=1).save(path / "second", golden=None)
    Ensemble.of([folders["classification"], path / "second"], device="cpu").save(path / "ensemble")
    several = MultiTask.from_pretrained(bert, device="cpu")
    rows = texts(24)
    data = {name: TaskData(rows, validation=rows[:6]) for name in ("animal", "beast")}
    several.fit(data, **QUICK)
    several.save(path / "several")
    Judge.train(bert, triples(40), LABEL, opening={"device": "cpu"}, **{**QUICK, "epochs": 1}).save(path / "judge")
    index = SemanticSearch.build(
        SentenceEmbedder.from_pretrained(folders["embedding"], device="cpu"),
        [{"text": text, "id": f"t{number}", "year": 2000 + number} for number, text in enumerate(STORED)],
    )
    index.save(path / "index")
    return path
