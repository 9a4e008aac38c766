"""Tiny models, and an executor of jobs in this process."""

import functools

import pytest
from job_cases import jsonl, texts

from bothways import jobs
from bothways.jobs.worker import finish_block
from task_cases import fitted


@pytest.fixture(scope="session")
def model_of(bert, tmp_path_factory):
    """Returns the folder of a tiny model that was trained for a task."""
    folder = tmp_path_factory.mktemp("models")

    @functools.cache
    def saved(name):
        fitted(bert, name).save(folder / name, golden=None)
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
def embed(bert):
    """Work: vectors of a tiny encoder."""
    return jobs.Embed(str(bert), opening={"device": "cpu"})


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
