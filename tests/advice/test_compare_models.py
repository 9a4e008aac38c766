"""Models measured side by side."""

import dataclasses

import pytest

from bothways.advice import Measured, Speed, compare_models
from bothways.advice.comparing import usual_models
from bothways.advice.costs import find_config
from bothways.advice.dry import count_flops
from bothways.errors import InvalidInput, UnknownModel
from bothways.families import FAMILIES


@pytest.fixture
def jobs(monkeypatch):
    """The jobs that were measured, by a stand-in that takes no time."""
    done = []

    def measure(job):
        done.append(job)
        return Measured(job.name, job.batch, 1, tuple(Speed(length, 1.0, 1.0) for length in job.lengths), 1, 2)

    monkeypatch.setattr("bothways.advice.comparing.measure", measure)
    return done


def test_models_are_measured_in_the_order_asked_for_and_lengths_from_the_shortest(jobs):
    compared = compare_models(["roberta-base", "all-MiniLM-L6-v2"], lengths=(64, 16, 64), batch=3)
    assert [job.name for job in jobs] == ["FacebookAI/roberta-base", "sentence-transformers/all-MiniLM-L6-v2"]
    assert {(job.lengths, job.batch) for job in jobs} == {((16, 64), 3)}
    roberta, minilm = compared.models
    assert (roberta.accuracy, minilm.accuracy) == (87.6, None)
    assert minilm.flops_per_token[1] == count_flops(find_config("all-MiniLM-L6-v2")[1], 1, 64) / 64
    assert compared.machine.threads == 1


def test_without_names_the_usual_models_that_are_built_here_are_compared(jobs, monkeypatch):
    assert usual_models()[:5] == (
        "google-bert/bert-base-uncased",
        "distilbert/distilbert-base-uncased",
        "albert/albert-base-v2",
        "FacebookAI/roberta-base",
        "google/electra-small-discriminator",
    )
    compare_models()
    assert tuple(job.name for job in jobs) == usual_models()
    bert = FAMILIES["bert"]
    small = dataclasses.replace(bert.published[0], name="microsoft/deberta-v3-small")
    monkeypatch.setattr(
        "bothways.advice.comparing.FAMILIES", {"deberta-v2": dataclasses.replace(bert, published=(small,))}
    )
    assert usual_models() == ("microsoft/deberta-v3-small",)


@pytest.mark.parametrize(
    ("names", "options", "error", "said"),
    [
        (["roberta-base", "FacebookAI/roberta-base"], {}, InvalidInput, "named once"),
        (["nobody/nothing"], {}, UnknownModel, "not in the catalogue"),
        (["roberta-base"], {"lengths": (600,)}, InvalidInput, "from 1 to 512"),
        (["roberta-base"], {"lengths": ()}, InvalidInput, "from 1 to 512"),
        (["roberta-base"], {"seconds": 0}, InvalidInput, "seconds above 0"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused_before_anything_is_measured(jobs, names, options, error, said):
    with pytest.raises(error, match=said):
        compare_models(names, **options)
    assert jobs == []
