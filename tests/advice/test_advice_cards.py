"""The catalogue counts what can be counted, and agrees with what was published."""

import dataclasses
import re

import pytest

from bothways.advice import card, catalogue
from bothways.advice.cards import find_model, published_facts
from bothways.checkpoints.hub import COMMIT
from bothways.errors import UnknownModel
from bothways.families import FAMILIES

CARDS = {each.name: each for each in catalogue()}
STATED = [(name, stated) for name, each in CARDS.items() for stated in each.stated]


@pytest.mark.parametrize(("name", "stated"), STATED, ids=[f"{name}-{stated.what}" for name, stated in STATED])
def test_counts_are_the_published_ones_within_the_rounding_of_the_publication(name, stated):
    counted = {
        "total": CARDS[name].counted.parameters,
        "embedding": CARDS[name].counted.embedding_parameters,
        "backbone": CARDS[name].counted.backbone_parameters,
    }[stated.what]
    # Where a publication is known to count something else, "differs" says what; it is never far.
    allowed = 0.1 * stated.millions if stated.differs else stated.rounded_to / 2
    assert counted / 1e6 == pytest.approx(stated.millions, abs=allowed)


@pytest.mark.parametrize("name", CARDS)
def test_embedding_and_backbone_are_all_there_is(name):
    size = CARDS[name].counted
    assert size.embedding_parameters + size.backbone_parameters == size.parameters
    assert 0 < size.embedding_parameters < size.parameters


@pytest.mark.parametrize(
    ("name", "embedding", "backbone"),
    [
        # Tokens, positions, segments, norm: (30522 + 512 + 2 + 2) x 768. Layers: 12 x 768^2 + 13 x 768; pooler.
        ("google-bert/bert-base-uncased", 31_038 * 768, 12 * (12 * 768**2 + 13 * 768) + 768**2 + 768),
        # One layer for all twelve; the projection from 128 to 768 belongs to the embedding.
        ("albert/albert-base-v2", 30_516 * 128 + 128 * 768 + 768, 12 * 768**2 + 13 * 768 + 768**2 + 768),
    ],
)
def test_the_parts_are_those_of_the_architecture(name, embedding, backbone):
    size = CARDS[name].counted
    assert (size.embedding_parameters, size.backbone_parameters) == (embedding, backbone)


def test_every_published_size_of_every_family_is_in_the_catalogue_with_its_facts():
    published = {size.name for family in FAMILIES.values() for size in family.published}
    assert set(CARDS) == set(published_facts().models) == published


def test_a_family_that_arrives_turns_facts_into_counts(monkeypatch):
    name = "microsoft/deberta-v3-small"
    bert = FAMILIES["bert"]
    arrived = dataclasses.replace(bert.published[0], name=name, year=2021)
    newcomer = dataclasses.replace(bert, model_type="newcomer", published=(arrived,))
    monkeypatch.setattr("bothways.advice.cards.FAMILIES", {"newcomer": newcomer})
    each = card(name)
    assert each.family == "newcomer"
    assert each.counted.parameters == 109_482_240
    assert each.lineage == published_facts().lineages["deberta-v3"]
    assert [listed.name for listed in catalogue()].count(name) == 1


def test_a_model_without_facts_has_a_card_of_what_is_counted(monkeypatch):
    bert = FAMILIES["bert"]
    newcomer = dataclasses.replace(bert, published=(dataclasses.replace(bert.published[0], name="a/b"),))
    monkeypatch.setattr("bothways.advice.cards.FAMILIES", {"bert": newcomer})
    each = card("a/b")
    assert each.counted.layers == 12
    assert (each.lineage, each.scores, each.language) == (None, (), None)


@pytest.mark.parametrize("name", published_facts().models)
def test_no_model_has_two_scores_of_one_measure_without_a_note_that_tells_them_apart(name):
    scores = published_facts().models[name].scores
    plain = [score.measure for score in scores if not score.note]
    assert len(plain) == len(set(plain))
    assert all(0 < score.value < 100 for score in scores)


def _value(name, benchmark, split):
    (score,) = [each for each in CARDS[name].scores if (each.benchmark, each.split) == (benchmark, split)]
    return score.value


def test_figures_that_a_paper_revised_are_those_of_its_last_version():
    assert _value("xlnet/xlnet-large-cased", "RACE", "test") == 85.4
    assert _value("almanach/camembert-base", "XNLI", "test") == 82.5


@pytest.mark.parametrize(
    ("student", "teacher"),
    [
        ("distilbert/distilbert-base-uncased", "google-bert/bert-base-uncased"),
        ("distilbert/distilroberta-base", "FacebookAI/roberta-base"),
    ],
)
def test_what_is_said_of_a_student_is_what_its_scores_say(student, teacher):
    behind = _value(teacher, "MNLI", "dev") - _value(student, "MNLI", "dev")
    assert re.search(rf"{behind:.1f} (points )?on MNLI", " ".join(CARDS[student].lineage.weaknesses))


def test_commits_are_whole():
    commits = [model.commit for model in published_facts().models.values() if model.commit]
    assert len(set(commits)) == len(commits) > 10
    assert all(COMMIT.fullmatch(commit) for commit in commits)


def test_every_model_for_fine_tuning_in_english_has_the_score_that_models_are_ranked_by():
    without = {
        name
        for name, model in published_facts().models.items()
        if model.language == "english" and model.made_for == "fine-tuning"
        if not any((score.benchmark, score.split) == ("MNLI", "dev") for score in model.scores)
    }
    assert without == {"google-bert/bert-large-cased"}  # nobody published one


def test_every_source_and_lineage_that_facts_name_is_there():
    known = published_facts()
    assert {model.lineage for model in known.models.values()} == set(known.lineages)
    named = {each.source for model in known.models.values() for each in (*model.scores, *model.stated)}
    assert named | {lineage.paper for lineage in known.lineages.values()} == set(known.sources)


@pytest.mark.parametrize("name", ["roberta-base", "FacebookAI/roberta-base", "facebookai/ROBERTA-base"])
def test_a_model_is_found_by_its_name_with_or_without_the_owner(name):
    assert find_model(name)[1].name == "FacebookAI/roberta-base"


@pytest.mark.parametrize(
    ("typed", "named"),
    [
        ("distillbert-base-uncased", "distilbert/distilbert-base-uncased"),
        ("bert-base", "google-bert/bert-base-uncased"),
    ],
)
def test_an_unknown_model_is_an_error_that_names_the_nearest(typed, named):
    with pytest.raises(UnknownModel, match=f"Nearest: {named}"):
        card(typed)
