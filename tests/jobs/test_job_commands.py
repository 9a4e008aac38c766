"""Jobs from the command line and from Python: what they say, and how their progress is shown."""

import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

import pytest
from job_cases import jsonl, lines_in, texts

from bothways import jobs
from bothways.jobs import running
from bothways.jobs.locking import held_by_one
from bothways.jobs.manifest import JobManifest

sys.path.append(str(Path(__file__).resolve().parents[1] / "cli"))  # the calls of the command line
from command_line import fails, ok


@pytest.fixture
def data(tmp_path):
    for name in "ab":
        jsonl(tmp_path / "in" / f"{name}.jsonl", [*texts(20), {"body": "no text"}])
    return tmp_path / "in"


def test_embed_computes_a_folder_and_goes_on(bert, data, tmp_path):
    words = ("embed", bert, "--data", data, "--output-dir", tmp_path / "out", "--workers", 1, "--block-bytes", 300)
    said = ok(*words).err
    assert "40 rows in 6 blocks in" in said
    assert "2 rows rejected, with the reasons: " in said
    assert "rejected.jsonl" in said
    shown = ok("job", "status", tmp_path / "out", "--json").json()
    assert shown == asdict(jobs.status(tmp_path / "out"))
    assert (shown["state"], shown["blocks"], shown["rows"], shown["rejected"]) == ("complete", 6, 40, 2)
    begun = time.monotonic()
    ok(*words)  # no worker is started
    assert time.monotonic() - begun < 1.5
    fails(1, 'prompt was null and is now "w5 "', *words, "--prompt", "w5 ")


def test_predict_and_fill_mask_compute_patterns(model_of, data, tmp_path, here):
    pattern = data / "*.jsonl"
    ok("predict", model_of("classification"), "--data", pattern, "--output-dir", tmp_path / "p", "--top", 1, "--keep")
    [row, *_] = lines_in(tmp_path / "p" / "parts" / "part-0000000.jsonl")
    assert (len(row["probabilities"]), row["text"]) == (1, texts(1)[0]["text"])
    masked = model_of("masked_lm")
    ok("fill-mask", masked, "--data", pattern, "--output-dir", tmp_path / "f", "--pseudo-likelihood")
    assert {"id", "log_likelihood", "perplexity"} <= lines_in(tmp_path / "f" / "parts" / "part-0000000.jsonl")[0].keys()
    words = ("fill-mask", masked, "--data", data / "a.jsonl", "--output-dir", tmp_path / "m", "--words", "w6", "w7")
    fails(1, "every row was rejected", *words)  # texts without a mask


def test_options_reach_the_job(bert, data, tmp_path, here):
    words = ("embed", bert, "--data", data / "a.jsonl", "--data", data / "b.jsonl", "--output-dir", tmp_path / "out")
    fails(1, ("line 21", "--on-error reject"), *words, "--on-error", "stop", "--output-format", "jsonl")
    ok(*words, "--output-format", "jsonl")
    assert len(lines_in(tmp_path / "out" / "parts" / "part-0000001.jsonl")) == 20


def test_wrong_usage_is_said(bert, model_of, data, tmp_path):
    words = ("embed", bert, "--data", data, "--output-dir", tmp_path / "out")
    for more, said in (
        (("--output", tmp_path / "o.npy"), "--output or --output-dir, got both"),
        (("--workers", "0"), "--workers"),
        (("--workers", "3:2"), "MIN:MAX"),
        (("--workers", "many"), "expected a number such as 4"),
        (("--workers", "2:3"), "for Ray"),
        (("--gpus-per-worker", "1"), "for Ray"),
        (("--output-format", "csv"), "csv"),
        (("--on-error", "skip"), "skip"),
        (("--block-bytes", "0"), "--block-bytes"),
        (("--data", "-"), "--output-dir needs --data"),
    ):
        fails(2, said, *words, *more)
    trained = model_of("classification")
    fails(2, "--data", "predict", trained, "--output-dir", tmp_path / "out")
    npy = ("predict", trained, "--data", data, "--output-dir", tmp_path / "out", "--output-format", "npy")
    assert "choose jsonl or parquet" in fails(2, "an array (npy) holds vectors", *npy).err
    fails(2, "--output", "embed", bert, "--data", data)
    assert not (tmp_path / "out").exists()


def test_a_job_that_does_not_exist_has_no_status(tmp_path):
    for folder in (tmp_path, tmp_path / "absent"):
        fails(1, ("holds no job", "--output-dir"), "job", "status", folder)


def test_the_status_shows_how_far_a_job_is(bert, data, tmp_path, here, monkeypatch):
    words = ("embed", bert, "--data", data, "--output-dir", tmp_path / "out", "--block-bytes", 300)
    seen, enter = [], JobManifest.enter

    def entered(self, records):
        enter(self, records)
        seen.append(ok("job", "status", tmp_path / "out", "--json").json())
        if len(seen) == 3:
            seen.append(ok("job", "status", tmp_path / "out").out)
            raise KeyboardInterrupt

    monkeypatch.setattr(JobManifest, "enter", entered)
    fails(130, "interrupted", *words)
    *shown, text = seen
    assert [each["blocks_done"] for each in shown] == [1, 2, 3]
    assert {each["state"] for each in shown} == {"running"}
    assert all(each["rows_per_second"] > 0 and each["seconds_left"] > 0 for each in shown)
    assert "running" in text
    assert "3 of 6 (50%)" in text
    assert "rows a second" in text
    assert "time left" in text
    after = ok("job", "status", tmp_path / "out").out
    assert "interrupted" in after
    assert "rows a second" not in after
    monkeypatch.undo()
    with held_by_one(str(tmp_path / "out")):
        fails(1, "another process is running the job", *words)
        assert jobs.status(tmp_path / "out").state == "running"


def test_the_speed_is_that_of_the_last_minutes(bert, data, tmp_path, here, monkeypatch):
    jobs.run(jobs.Embed(str(bert)), data, tmp_path / "out", block_bytes=300)
    manifest = JobManifest.open(str(tmp_path / "out"))
    records = [each._replace(ended=time.time() - 1000 * (each.number < 4)) for each in manifest.in_order][:6]
    speed, left = running._speed(records, 8)
    recent = sum(each.rows for each in records[4:])
    assert speed == pytest.approx(recent / max(each.seconds for each in records[4:]), rel=0.5)
    assert left == pytest.approx(recent / speed, rel=0.01)
    assert running._speed(records[:4], 8) == (None, None)


def test_jobs_take_paths_and_lists_in_python(bert, data, tmp_path, here):
    done = jobs.run(jobs.Embed(str(bert)), [data / "a.jsonl", str(data / "b.jsonl")], tmp_path / "out")
    assert done == jobs.status(str(tmp_path / "out"))
    assert json.loads((tmp_path / "out" / "job.json").read_text())["work"]["verb"] == "embed"
