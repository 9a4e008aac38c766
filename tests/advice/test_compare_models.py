"""Models measured side by side."""

import pytest

from bothways.advice import Measured, Speed, compare_models, find_config
from bothways.advice.costs import count_flops
from bothways.advice.measuring import USUAL
from bothways.errors import InvalidInput, UnknownModel


@pytest.fixture
def jobs(monkeypatch):
    """The jobs that were measured, by a stand-in that takes no time."""
    done = []

    def measure(job):
        done.append(job)
        return Measured(job.name, job.batch, 1, tuple(Speed(length, 1.0, 1.0) for length in job.lengths), 1, 2)

    monkeypatch.setattr("bothways.advice.measuring.measure", measure)
    return done


def test_models_are_measured_in_the_order_asked_for_and_lengths_from_the_shortest(jobs):
    compared = compare_models(["roberta-base", "all-MiniLM-L6-v2"], lengths=(64, 16, 64), batch=3)
    assert [job.name for job in jobs] == ["FacebookAI/roberta-base", "sentence-transformers/all-MiniLM-L6-v2"]
    assert {(job.lengths, job.batch) for job in jobs} == {((16, 64), 3)}
    roberta, minilm = compared.models
    assert (roberta.accuracy, minilm.accuracy) == (87.6, None)
    assert minilm.flops_per_token[1] == count_flops(find_config("all-MiniLM-L6-v2")[1], 1, 64) / 64
    assert minilm.measured.threads == 1


def test_without_names_the_usual_models_are_compared(jobs):
    compare_models(lengths=(8,))
    assert tuple(job.name for job in jobs) == USUAL


@pytest.mark.parametrize(
    ("names", "options", "error", "said"),
    [
        (["roberta-base", "FacebookAI/roberta-base"], {}, InvalidInput, "each model only once"),
        (["nobody/nothing"], {}, UnknownModel, "not in the catalogue"),
        (["roberta-base"], {"lengths": (600,)}, InvalidInput, "from 1 to 512"),
        (["roberta-base"], {"lengths": ()}, InvalidInput, "from 1 to 512"),
        (["roberta-base"], {"seconds": 0}, InvalidInput, "seconds above 0"),
        (["roberta-base"], {"batch": 0}, InvalidInput, "at least 1"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused_before_anything_is_measured(jobs, names, options, error, said):
    with pytest.raises(error, match=said):
        compare_models(names, **options)
    assert jobs == []
