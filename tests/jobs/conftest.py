"""Tiny models, and an executor of jobs in this process."""

import functools

import pytest
from job_cases import jsonl, texts

from bothways import jobs
from bothways.jobs.worker import finish_block
from classifier_cases import without_dropout
from task_cases import fitted
from tiny_models import write_checkpoint


@pytest.fixture(scope="session")
def encoder(tmp_path_factory):
    """The folder of a tiny encoder."""
    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(folder)
    return without_dropout(folder)


@pytest.fixture(scope="session")
def model_of(encoder, tmp_path_factory):
    """Returns the folder of a tiny model that was trained for a task."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def saved(name):
        fitted(encoder, name).save(folder / name, golden=None)
        return folder / name

    return saved


@pytest.fixture
def here(monkeypatch):
    """Lets jobs compute in this process; the list of the blocks that they compute."""
    computed = []

    def executor(task, blocks, *_):
        opened = task.work.open()
        for block in blocks:
            computed.append(block.number)
            yield [finish_block(task, opened, block)]

    monkeypatch.setattr("bothways.jobs.running.computed_here", executor)
    return computed


@pytest.fixture
def embed(encoder):
    """Work: vectors of a tiny encoder."""
    return jobs.Embed(str(encoder), opening={"device": "cpu"})


@pytest.fixture
def job(embed, tmp_path, here):
    """A finished job of several blocks; call it again to go on."""
    path = jsonl(tmp_path / "a.jsonl", texts(40))

    def run(work=embed, data=path, **options):
        here.clear()
        return jobs.run(work, data, tmp_path / "out", **{"block_bytes": 300, **options})

    run.done = run()
    assert run.done.blocks > 4
    return run
