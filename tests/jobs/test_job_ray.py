"""Jobs on Ray: the output of a local run, whatever is killed; errors that end a job, and nothing that hangs."""

import logging
import os
import pickle
import random
import signal
import subprocess
from dataclasses import replace
from types import SimpleNamespace

import pytest
from ray_cases import (
    BLOCK,
    CORES,
    LOCAL,
    WORKERS,
    cluster,
    command,
    computed_again,
    descendants,
    killing_an_actor,
    parts_of,
    run,
    wait_for_end,
    wait_for_parts,
    write_corpus,
)

from bothways import jobs, ray_cluster
from bothways.errors import BothwaysError, InvalidInput, WorkerLost
from bothways.jobs import blocks, files, on_ray, ray_actor
from bothways.jobs.manifest import BlockRecord
from bothways.jobs.on_ray import RayPool
from bothways.jobs.worker import WorkerTask

MOMENTS = range(10)


@pytest.fixture(scope="session")
def local_ray():
    """One Ray for all tests of this process."""
    ray = pytest.importorskip("ray", reason="ray is not installed: pip install 'bothways[ray]'")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_cluster.QUIET.items():
            patch.setenv(name, value)
        with ray_cluster.keeping_sigterm():
            ray.init("local", num_cpus=CORES, logging_level=logging.CRITICAL, **LOCAL)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    return write_corpus(tmp_path_factory.mktemp("data") / "corpus")


@pytest.fixture(scope="session")
def here(tiny_bert, corpus, tmp_path_factory):
    """The same job without Ray."""
    return run(tiny_bert, corpus, tmp_path_factory.mktemp("here") / "out", workers=1)


def test_ray_computes_what_one_process_does(local_ray, tiny_bert, corpus, here, tmp_path):
    before = print, signal.getsignal(signal.SIGTERM)
    done = run(tiny_bert, corpus, tmp_path / "out", workers=(1, 2), ray="local")
    assert done == here
    assert (print, signal.getsignal(signal.SIGTERM)) == before
    assert print is pickle.loads(pickle.dumps(print))
    assert not (tmp_path / "out" / "running").exists()


@pytest.mark.slow
def test_an_actor_that_is_killed_goes_on_with_its_group(local_ray, tiny_bert, corpus, here, tmp_path, monkeypatch):
    """Several blocks in an object of Ray: a death costs one of them."""
    monkeypatch.setattr(on_ray, "_GROUPS", 4)
    killed, output = [], tmp_path / "out"
    with killing_an_actor(output, here.blocks // 2, killed):
        done = run(tiny_bert, corpus, output, workers=WORKERS, ray="local")
    assert done.checksum == here.checksum
    assert computed_again(killed[0], parts_of(output)) <= 1


@pytest.mark.slow
def test_rejected_rows_arrive(local_ray, tiny_bert, tmp_path):
    corpus = write_corpus(tmp_path / "corpus", rows=100)
    with (corpus / "b.jsonl").open("a") as stream:
        stream.write('{"text": ""}\nno JSON\n')
    done = run(tiny_bert, corpus, tmp_path / "out", workers=1, ray="local")
    plain = run(tiny_bert, corpus, tmp_path / "plain", workers=1)
    assert done == plain
    assert done.rejected == 2
    assert (tmp_path / "out/rejected.jsonl").read_text() == (tmp_path / "plain/rejected.jsonl").read_text()


@pytest.mark.slow
def test_a_model_that_cannot_be_opened_ends_the_job_with_its_error(local_ray, base, corpus, tmp_path):
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(BothwaysError, match=r"model\.safetensors") as found:
        run(base, corpus, tmp_path / "out", workers=2, ray="local")
    assert not isinstance(found.value, WorkerLost)


def test_silence_ends_the_job_with_what_to_do(monkeypatch, tmp_path):
    """Rows that never come, as from an actor that is gone."""
    monkeypatch.setattr(on_ray, "_LOOK", 0.05)

    def nothing():
        import time

        time.sleep(3)
        yield {}

    with pytest.raises(WorkerLost, match=r"no worker on Ray gave a sign for 0 seconds.*The same command goes on"):
        list(RayPool(patience=0.2)._watched(nothing(), str(tmp_path)))


def test_signs_of_an_actor_are_waited_for(monkeypatch, tmp_path):
    monkeypatch.setattr(on_ray, "_LOOK", 0.02)
    monkeypatch.setattr(ray_actor, "_SECONDS", 0.02)
    row = {"records": b""}

    def late():
        import time

        with ray_actor._signing(str(tmp_path / "running" / "x.sign")):
            time.sleep(1)
        yield row

    assert list(RayPool(patience=0.5)._watched(late(), str(tmp_path))) == [row]


def test_a_failure_of_ray_says_why(tmp_path):
    def broken():
        raise RuntimeError("\x1b[36mfirst\x1b[39m\nModuleNotFoundError: No module named 'bothways'")
        yield {}

    with pytest.raises(WorkerLost, match=r"RuntimeError: ModuleNotFoundError: No module named 'bothways'\. The same"):
        list(RayPool()._watched(broken(), str(tmp_path)))


def _one_block(corpus):
    found = files.found_files([str(corpus)])
    settings = {"format": None, "encoding": None}
    return next(blocks.blocks_of(blocks.plan(found, settings, BLOCK)))


def test_a_block_that_its_actors_die_of_is_given_up(tiny_bert, corpus, tmp_path):
    actor = ray_actor.Actor(WorkerTask(jobs.Embed(str(tiny_bert)), str(tmp_path), "npy"))
    block = _one_block(corpus)
    for _ in range(ray_actor._DEATHS):
        actor._begin(block)
    with pytest.raises(WorkerLost, match=r"5 workers on Ray died of block 0 \(.*a\.jsonl"):
        actor._begin(block)


def test_notes_without_their_output_are_not_believed(tiny_bert, corpus, tmp_path):
    task = WorkerTask(jobs.Embed(str(tiny_bert)), str(tmp_path), "npy")
    actor, block = ray_actor.Actor(task), _one_block(corpus)
    record = actor._answer(block)
    assert isinstance(record, BlockRecord)
    assert actor._answer(block) == BlockRecord(*record)
    assert ray_actor.known_records(task, [block]).keys() == {0}
    assert ray_actor.known_records(replace(task, job="another"), [block]) == {}
    (tmp_path / "parts" / "part-0000000.npy").write_bytes(b"")
    assert ray_actor.known_records(task, [block, replace(block, number=1)]) == {}


@pytest.mark.parametrize("address", ["10.0.0.1:6379", "ray://10.0.0.1", "ray://:10001", "Local", ""])
def test_other_addresses_are_refused_at_once(tiny_bert, corpus, tmp_path, address):
    with pytest.raises(InvalidInput, match=r"ray: expected local, auto or ray://HOST:PORT"):
        run(tiny_bert, corpus, tmp_path / "out", ray=address)
    assert not (tmp_path / "out").exists()
    assert RayPool("ray://[::1]:10001").address.endswith("[::1]:10001")


def test_a_cluster_that_does_not_answer_is_refused(monkeypatch):
    monkeypatch.setattr(ray_cluster, "_ANSWER", 0.01)
    here = SimpleNamespace(is_initialized=lambda: False)
    with pytest.raises(InvalidInput, match=r"does not answer.*--ray local"), ray_cluster.connected(here, "auto"):
        pass


@pytest.mark.slow
def test_the_command_is_quiet_and_leaves_no_process(tiny_bert, corpus, here, tmp_path):
    process = command(tiny_bert, corpus, tmp_path / "out", "--ray", "local", "--workers", "2")
    wait_for_parts(tmp_path / "out", 1, process)
    ray = descendants(process.pid, "ray")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("embed")]
    assert lines == [f"{here.rows:,} rows in {here.blocks} blocks in {tmp_path / 'out'}"]
    assert jobs.status(tmp_path / "out") == here
    assert wait_for_end(ray) == []


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
def test_actors_die_at_any_moment(local_ray, tiny_bert, corpus, here, tmp_path, moment):
    random.seed(moment)
    killed, output = [], tmp_path / "out"
    with killing_an_actor(output, random.randrange(1, here.blocks - 4), killed):
        done = run(tiny_bert, corpus, output, workers=WORKERS, ray="local")
    assert done.checksum == here.checksum
    assert computed_again(killed[0], parts_of(output)) <= 1


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
@pytest.mark.parametrize("victim", ["driver", "raylet"])
def test_the_command_goes_on_after_a_death(tiny_bert, corpus, here, tmp_path, victim, moment):
    random.seed(moment)
    output = tmp_path / "out"
    process = command(tiny_bert, corpus, output, "--ray", "local", "--workers", "2")
    try:
        wait_for_parts(output, random.randrange(1, here.blocks - 4), process)
        # Ray's own agents look for their cluster for minutes; they write nothing.
        ray = [each for each in descendants(process.pid, "ray") if "Agent" not in each.name()]
        if victim == "driver":
            process.kill()
        else:
            next(each for each in ray if each.name() == "raylet").kill()
        code = process.wait(120)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert code != 0
    assert wait_for_end(ray) == []
    before = parts_of(output)
    again = command(tiny_bert, corpus, output, "--ray", "local", "--workers", "2")
    assert again.wait(120) == 0, again.communicate()[1]
    assert jobs.status(output).checksum == here.checksum
    assert computed_again(before, parts_of(output)) <= WORKERS


# A cluster that is there already, and Ray's client outside of it.


@pytest.fixture(scope="module")
def there():
    """Variables with the address of a cluster that no process of the tests belongs to, and that for Ray's client."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'bothways[ray]'")
    with cluster() as found:
        yield found


@pytest.mark.slow
@pytest.mark.parametrize("way", ["auto", "client", "client as auto"])
def test_paths_may_be_relative_and_nothing_else_is_written(there, tiny_bert, corpus, here, tmp_path, monkeypatch, way):
    monkeypatch.chdir(corpus.parent)
    known, client = there
    words = ("--ray", client if way == "client" else "auto", "--workers", "2")
    output = os.path.relpath(tmp_path / "out")
    known = {**known, "RAY_ADDRESS": client} if way == "client as auto" else known
    process = command(os.path.relpath(tiny_bert), "corpus", output, *words, **known)
    out, err = process.communicate(timeout=180)
    assert process.returncode == 0, err
    assert out == ""
    lines = [line for line in err.splitlines() if not line.startswith("embed")]
    assert lines == [f"{here.rows:,} rows in {here.blocks} blocks in {output}"]
    assert jobs.status(tmp_path / "out") == replace(here, model=os.path.relpath(tiny_bert))
    assert not (tmp_path / "out" / "running").exists()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_command_outside_that_is_ended_goes_on(there, tiny_bert, corpus, here, tmp_path, number):
    known, client = there
    output, words = tmp_path / "out", ("--ray", client, "--workers", "2")
    process = command(tiny_bert, corpus, output, *words, **known)
    wait_for_parts(output, 3, process)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == (-number if number == signal.SIGKILL else 130), err
    before = parts_of(output)
    again = command(tiny_bert, corpus, output, *words, **known)
    assert again.wait(180) == 0, again.communicate()[1]
    assert jobs.status(output) == here
    assert computed_again(before, parts_of(output)) <= WORKERS


@pytest.mark.slow
def test_errors_come_through_the_client(there, base, corpus, tmp_path):
    known, client = there
    weights = base / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    process = command(base, corpus, tmp_path / "out", "--ray", client, **known)
    _, err = process.communicate(timeout=180)
    assert process.returncode == 1, err
    assert "model.safetensors" in err
    assert "Traceback" not in err


@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached_is_an_error_that_says_what_to_do(there, tiny_bert, corpus, tmp_path):
    known, _ = there
    without, elsewhere = {**known, "RAY_AUTH_MODE": "disabled"}, {**known, "RAY_AUTH_TOKEN": "", "HOME": str(tmp_path)}
    for environment in (without, elsewhere, {**known, "RAY_ADDRESS": "ray://127.0.0.1:9"}):
        process = command(tiny_bert, corpus, tmp_path / "out", "--ray", "auto", **environment)
        _, err = process.communicate(timeout=180)
        assert process.returncode == 1
        assert "there is no Ray cluster at 'auto'" in err
        assert "ray start --head" in err
        assert "RAY_AUTH_MODE=token" in err
        assert "Traceback" not in err
