"""What a machine offers: memory that is free, and a speed that is measured."""

import pytest

from bothways.advice import find_config, hardware, this_machine
from bothways.advice.hardware import free_bytes, training_flops

MEMORY = "MemTotal:       4000 kB\nMemAvailable:       3000 kB\n"
STATISTICS = "active_file 7\ninactive_file 50000\n"


@pytest.mark.parametrize(
    ("membership", "files", "free"),
    [
        ("0::/\n", {}, 3_072_000),
        ("0::/\n", {"memory.max": "max\n", "memory.current": "1000\n"}, 3_072_000),
        ("0::/\n", {"memory.max": "1000000\n", "memory.current": "400000\n"}, 600_000),
        ("0::/\n", {"memory.max": "1000000\n", "memory.current": "400000\n", "memory.stat": STATISTICS}, 650_000),
        (
            "0::/a\n",
            {"memory.max": "900000", "memory.current": "0", "a/memory.max": "max", "a/memory.current": "0"},
            900_000,
        ),
        ("0::/\n", {"memory.max": "1000\n", "memory.current": "4000\n"}, 0),
        (
            "4:memory:/b\n",
            {"memory/b/memory.limit_in_bytes": "800000", "memory/b/memory.usage_in_bytes": "300000"},
            500_000,
        ),
        ("4:cpu:/\n", {"cpu/memory.max": "1", "cpu/memory.current": "0"}, 3_072_000),
    ],
)
def test_free_memory_is_what_is_available_within_the_cgroups(membership, files, free, tmp_path):
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text(membership)
    (tmp_path / "proc/meminfo").write_text(MEMORY)
    for name, content in files.items():
        path = tmp_path / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    assert free_bytes(tmp_path) == free


def test_a_system_that_does_not_say_leaves_the_memory_open(tmp_path):
    assert free_bytes(tmp_path) is None


def test_this_machine_is_measured_once(monkeypatch):
    monkeypatch.setattr(hardware, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(hardware.torch.cuda, "is_available", lambda: False)
    this_machine.cache_clear()
    here = this_machine()
    assert here.cores >= 1
    assert min(here.flops_one, here.flops_batch) > 1e7
    assert this_machine() is here
    assert here.here
    this_machine.cache_clear()


@pytest.mark.parametrize("name", ["sentence-transformers/all-MiniLM-L6-v2", "google/electra-small-discriminator"])
def test_training_is_timed_on_two_layers_of_any_shape(name, monkeypatch):
    monkeypatch.setattr(hardware, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(hardware.torch.cuda, "is_available", lambda: False)
    _, config = find_config(name)
    training_flops.cache_clear()
    assert training_flops(config) > 1e7
    training_flops.cache_clear()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["answerdotai/ModernBERT-base", "albert/albert-base-v2", "xlnet/xlnet-base-cased"])
def test_training_is_timed_for_every_pattern_and_sharing(name, monkeypatch):
    test_training_is_timed_on_two_layers_of_any_shape(name, monkeypatch)
