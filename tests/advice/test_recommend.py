"""Recommendations: the right kind of model, an order that follows from the figures, and reasons."""

import pytest

from bothways.advice import CONSTRAINTS, TASKS, Hardware, LeftOut, LocalModel, Measured, Speed, card, recommend
from bothways.advice.tasks import find_task
from bothways.errors import BothwaysError, InvalidInput

# To count the costs of a model takes a third of a second, so few are recommended from.
NAMES = (
    *("google-bert/bert-base-uncased", "google-bert/bert-base-cased", "google-bert/bert-base-multilingual-cased"),
    *("distilbert/distilbert-base-uncased", "distilbert/distilbert-base-cased", "albert/albert-xlarge-v2"),
    *("FacebookAI/roberta-base", "FacebookAI/roberta-large", "FacebookAI/xlm-roberta-large"),
    *("google/electra-small-discriminator", "google/electra-small-generator", "xlnet/xlnet-base-cased"),
    *("almanach/camembert-base", "almanach/camembert-large", "sentence-transformers/all-MiniLM-L6-v2"),
)


@pytest.fixture(autouse=True, scope="module")
def few_models():
    cards = [card(name) for name in NAMES]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bothways.advice.recommending.catalogue", lambda: cards)
        yield


def named(advised):
    return [model.name for model in advised.ranked]


def reasons_of(advised, name):
    return " ".join(next(model.reasons for model in advised.ranked if model.name == name))


@pytest.mark.parametrize(
    ("task", "architecture"),
    [
        *((task, "encoder") for task in ("classification", "NER", "part of speech", "embeddings", "semantic_search")),
        *((task, "encoder") for task in ("similarity", "extractive-qa", "nli")),
        *((task, "decoder") for task in ("generation", "chat")),
        *((task, "encoder-decoder") for task in ("abstractive summarization", "translation")),
    ],
)
def test_a_task_gets_the_kind_of_model_that_it_wants(task, architecture):
    advice = find_task(task)
    assert advice.architecture == architecture
    assert advice.why
    assert advice.examples


def test_no_two_tasks_share_a_name():
    names = [name for task in TASKS for name in (task.name, *task.also)]
    assert len(names) == len(set(names))


def test_tasks_for_other_kinds_of_models_name_those_and_what_an_encoder_can_do():
    advised = recommend("chat")
    assert advised.task.architecture == "decoder"
    assert advised.ranked == ()
    assert "Llama" in advised.notes[0]
    assert "guard" in advised.notes[0]


def test_an_unknown_task_lists_the_known_ones():
    with pytest.raises(InvalidInput, match="Did you mean 'ner'") as raised:
        recommend("nerr")
    assert all(task.name in str(raised.value) for task in TASKS)


@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_every_constraint_gives_models_with_reasons(constraint):
    advised = recommend("classification", constraint, most=3)
    assert len(advised.ranked) == 3
    assert all(len(model.reasons) >= 3 for model in advised.ranked)


def test_accuracy_goes_by_the_published_figure_that_models_share():
    advised = recommend("classification", "accuracy", most=99)
    assert not any("generator" in name for name in named(advised))
    known = [model.accuracy for model in advised.ranked if model.accuracy is not None]
    assert known == sorted(known, reverse=True)
    assert advised.yardstick == "MNLI dev, accuracy, matched"
    assert all(model.accuracy is None for model in advised.ranked[len(known) :])


@pytest.mark.parametrize(("constraint", "price"), [("compute", "flops_per_token"), ("memory", "memory_mb")])
def test_a_price_puts_models_first_that_none_beats_in_price_and_accuracy(constraint, price):
    advised = recommend("classification", constraint, most=30)
    front = [model for model in advised.ranked if "both cheaper and more accurate" in " ".join(model.reasons)]
    assert list(advised.ranked[: len(front)]) == front
    assert [getattr(model, price) for model in front] == sorted(getattr(model, price) for model in front)
    assert [model.accuracy for model in front] == sorted(model.accuracy for model in front)


def test_a_large_albert_is_cheap_in_memory_and_dear_in_arithmetic():
    name = "albert/albert-xlarge-v2"
    by_memory, by_compute = (named(recommend("nli", each, most=30)) for each in ("memory", "compute"))
    assert by_memory.index(name) < by_compute.index(name)


def test_pretraining_begins_with_electra_and_leaves_out_what_needs_a_teacher():
    advised = recommend("classification", "pretraining")
    assert named(advised)[0] == "google/electra-small-discriminator"
    assert "learns from every token" in reasons_of(advised, "google/electra-small-discriminator")
    assert "distilbert/distilbert-base-uncased" in [each.name for each in advised.left_out]


def test_research_begins_with_bert_and_goes_on_to_other_lineages():
    advised = recommend("classification", "research", most=4)
    assert named(advised)[0] == "google-bert/bert-base-uncased"
    assert len({name.split("/")[0] for name in named(advised)}) == 4


def test_sentence_vectors_are_first_asked_of_a_model_that_was_trained_for_them():
    for constraint in CONSTRAINTS:
        if constraint != "pretraining":
            advised = recommend("search", constraint, most=2)
            assert named(advised)[0] == "sentence-transformers/all-MiniLM-L6-v2"
            assert "no useful sentence vectors" in " ".join(advised.ranked[1].reasons)


def test_names_are_not_looked_for_by_models_that_lower_all_letters():
    advised = recommend("ner", most=30)
    assert "google-bert/bert-base-uncased" not in named(advised)
    assert "google-bert/bert-base-cased" in named(advised)
    assert any("case" in each.reason for each in advised.left_out)


def test_languages_have_their_own_models_and_yardsticks():
    assert named(recommend("ner", language="french"))[:2] == ["almanach/camembert-large", "almanach/camembert-base"]
    advised = recommend("ner", language="multilingual", most=9)
    assert {"FacebookAI/xlm-roberta-large", "google-bert/bert-base-multilingual-cased"} <= set(named(advised))
    assert "google-bert/bert-base-cased" not in named(advised)
    assert "XNLI" in advised.yardstick


def test_a_memory_limit_leaves_large_models_out_and_says_so():
    advised = recommend("classification", max_memory_mb=600, most=30)
    assert all(model.memory_mb <= 600 for model in advised.ranked)
    left = {each.name: each.reason for each in advised.left_out}
    assert "above the limit of 600" in left["FacebookAI/roberta-large"]
    assert recommend("classification", max_memory_mb=1).notes[-1] == "no model fits these limits: relax one of them."


def test_a_context_that_nothing_reads_is_read_in_windows():
    advised = recommend("classification", context=100_000_000, language="french")
    assert advised.ranked
    assert any("windows" in note for note in advised.notes)
    assert advised.length == 512


def test_only_models_without_a_limit_read_any_context():
    advised = recommend("classification", context=10_000)
    assert {model.name for model in advised.ranked} == {"xlnet/xlnet-base-cased"}


def test_costs_are_those_of_the_context_that_is_wanted():
    short, long = (recommend("search", context=context) for context in (600, 900))
    assert (short.length, long.length) == (600, 900)
    less = {model.name: model for model in short.ranked}
    for model in long.ranked:
        assert model.memory_mb > less[model.name].memory_mb
        assert model.flops_per_token > less[model.name].flops_per_token


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"max_latency_ms": 5}, "needs a measurement"),
        ({"max_memory_mb": 0}, "above 0"),
        ({"constraint": "beauty"}, "one of 'accuracy', 'latency'"),
        ({"most": 0}, "at least 1"),
        ({"training_rows": 0}, "training_rows must be above 0"),
        ({"max_training_hours": -1.0}, "training_hours must be above 0"),
        ({"language": "klingon"}, "one of 'english'"),
    ],
)
def test_a_question_that_makes_no_sense_is_refused(options, said):
    with pytest.raises(InvalidInput, match=said):
        recommend("classification", **options)


# --- on a machine ---


def test_models_that_the_free_memory_does_not_hold_are_left_out():
    advised = recommend("classification", most=30, hardware=Hardware("cpu", 2, 650.0, 1e10, 2e10))
    assert all(model.memory_mb <= 650 for model in advised.ranked)
    left = {each.name: each.reason for each in advised.left_out}
    assert "more than the 650 MB that are free here" in left["FacebookAI/roberta-large"]
    assert "to fine-tune it, which exceeds the free memory" in reasons_of(advised, "distilbert/distilbert-base-uncased")
    assert "free memory" not in reasons_of(advised, "google/electra-small-discriminator")
    stricter = recommend("classification", max_memory_mb=400, hardware=Hardware("cpu", 2, 600.0, 1e10, 2e10))
    assert any(each.reason.endswith("above the limit of 400") for each in stricter.left_out)


def test_speed_is_estimated_from_operations_and_the_speed_of_the_machine():
    advised = recommend("classification", "latency", most=30, hardware=Hardware("cpu", 2, None, 1e10, 2e10))
    for model in advised.ranked:
        assert model.estimated_latency_ms == pytest.approx(model.flops_per_token * 128 / 1e10 * 1e3)
        assert model.estimated_tokens_per_second == pytest.approx(2e10 / model.flops_per_token)
        assert model.latency_ms is None
    assert "estimated here: 262.6 ms for one text" in reasons_of(advised, "google/electra-small-discriminator")


def test_what_cannot_be_fine_tuned_in_the_time_comes_last_and_says_so():
    machine = Hardware("cpu", 2, None, 1e11, 1e11)
    advised = recommend("classification", most=99, hardware=machine, max_training_hours=1)
    fast, late = ([each for each in advised.ranked if each.trainable is kind] for kind in (True, False))
    assert advised.ranked == (*fast, *late)
    assert all(each.training_seconds <= 3600 for each in fast)
    assert min(each.training_seconds for each in late) > 3600
    # Of those in time the most accurate is the first, of the others the quickest.
    assert fast[0].name == "distilbert/distilbert-base-uncased"
    assert [each.training_seconds for each in late] == sorted(each.training_seconds for each in late)
    assert named(recommend("classification"))[0] == "FacebookAI/roberta-large"
    assert late[-2:] == [each for each in late if each.name in ("FacebookAI/roberta-large", "albert/albert-xlarge-v2")]
    assert "2,000 texts of 128 tokens: longer than 1 h, so it comes last" in reasons_of(advised, late[0].name)
    assert advised.notes[-1].startswith(f"{len(late)} models come last: they need more than 1 h")
    # Three times the operations of reading, for three epochs, and a little for the baseline and held-out texts.
    least = 3 * 3 * 2000 * 128 * fast[0].flops_per_token / 1e11
    assert least < fast[0].training_seconds < 1.2 * least


def test_rows_and_hours_decide_what_comes_last_and_so_does_memory():
    def last(free_mb=None, **options):
        advised = recommend("nli", most=99, hardware=Hardware("cpu", 2, free_mb, 1e11, 1e11), **options)
        return {each.name for each in advised.ranked if not each.trainable}

    assert last(training_rows=100, max_training_hours=1) < last(max_training_hours=1)
    assert not last(max_training_hours=1e3)
    assert "FacebookAI/roberta-large" in last(5000.0, max_training_hours=1e3)
    every = recommend("nli", hardware=Hardware("cpu", 2, None, 1e11, 1e11), max_training_hours=0.001)
    assert every.notes[-1].startswith("all models need more than 0.001 h")
    assert every.ranked[0].name == "google/electra-small-discriminator"


def test_models_that_need_no_fine_tuning_for_a_task_stay_where_they_are():
    slow = Hardware("cpu", 2, None, 1e6, 1e6)
    assert named(recommend("search", hardware=slow))[0] == "sentence-transformers/all-MiniLM-L6-v2"
    assert named(recommend("fill-mask", hardware=slow)) == named(recommend("fill-mask"))


def test_on_this_machine_models_are_timed_until_the_first_ones_are_known(monkeypatch):
    timed = []

    def flops(config):
        timed.append(config)
        return 1e9 if config.hidden == 768 else 1e11  # much slower than BERT's layers promise

    monkeypatch.setattr("bothways.advice.recommending.training_flops", flops)
    here = Hardware("cpu", 2, None, 1e11, 1e11, here=True)
    advised = recommend("classification", most=1, hardware=here, max_training_hours=1.5, show_progress=False)
    (model,) = advised.ranked
    assert model.trainable
    assert model.name == "google/electra-small-discriminator"
    assert 1 < len(timed) < len(NAMES)


def test_a_local_commit_goes_before_that_of_the_catalogue():
    name, other = "FacebookAI/roberta-base", "f" * 40
    held = [
        LocalModel(name, "roberta", "", each, by_name, 500.0) for each, by_name in (("0" * 40, False), (other, True))
    ]
    advised = recommend("classification", most=30, local_models=held)
    (model,) = [each for each in advised.ranked if each.name == name]
    assert (model.commit, model.local, model.command) == (other, True, "")
    assert advised.local_models == tuple(held)


# --- with measurements ---


def measured_as(latencies, memory=400e6):
    """A stand-in for `measure` with scripted latencies by part of a name; others take a second."""

    def measure(job):
        latency = next((ms for part, ms in latencies.items() if part in job.name), 1000.0)
        if latency is None:
            raise BothwaysError("no luck")
        return Measured(job.name, job.batch, 1, (Speed(job.lengths[0], latency, 1e6 / latency),), 0, int(memory))

    return measure


def test_measured_speed_decides_and_is_told(monkeypatch):
    monkeypatch.setattr(
        "bothways.advice.recommending.measure",
        measured_as({"google-bert/bert-base-cased": 2.0, "FacebookAI/roberta-base": 1.0}),
    )
    advised = recommend("ner", "latency", measured=True, most=2, max_latency_ms=10, show_progress=False)
    # RoBERTa is the faster here, and the more accurate, so it comes first although its arithmetic is the same.
    assert named(advised) == ["FacebookAI/roberta-base", "google-bert/bert-base-cased"]
    assert advised.ranked[0].latency_ms == 1.0
    assert advised.ranked[0].memory_mb == 400
    assert "measured here: 1.0 ms" in reasons_of(advised, "FacebookAI/roberta-base")
    too_slow = "takes 1,000 ms a text, above the limit of 10"
    assert LeftOut("distilbert/distilbert-base-cased", too_slow) in advised.left_out


def test_measured_memory_is_held_against_the_limit(monkeypatch):
    monkeypatch.setattr("bothways.advice.recommending.measure", measured_as({}, memory=900e6))
    advised = recommend("search", measured=True, max_memory_mb=800, show_progress=False)
    assert advised.ranked == ()
    assert any("took 900 MB" in each.reason for each in advised.left_out)


def test_a_model_that_cannot_be_measured_is_left_out_with_the_reason(monkeypatch):
    monkeypatch.setattr("bothways.advice.recommending.measure", measured_as({"MiniLM": None}))
    advised = recommend("search", measured=True, most=1, show_progress=False)
    assert LeftOut("sentence-transformers/all-MiniLM-L6-v2", "could not be measured: no luck") in advised.left_out
    assert len(advised.ranked) == 1
