"""``bothways models``: the catalogue and its cards."""

import re

from command_line import call

from bothways.families import FAMILIES

PUBLISHED = {size.name for family in FAMILIES.values() for size in family.published}


def test_the_catalogue_lists_every_published_size_with_its_parameters():
    listed = {model["name"]: model for model in call("models", "--json").json()}
    assert {name for name, model in listed.items() if model["family"]} == PUBLISHED
    bert = listed["google-bert/bert-base-uncased"]
    assert bert["parameters"] == 109_482_240 == bert["embedding_parameters"] + bert["backbone_parameters"]
    assert bert["context"] == 512
    assert not bert["installed"]


def test_models_of_one_family_fit_a_narrow_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("FORCE_COLOR", "1")
    table = call("models", "--family", "distilbert").out.split("\n\n")[0]
    lines = re.sub(r"\x1b\[[0-9;]*m", "", table).splitlines()
    assert max(map(len, lines)) <= 60
    assert sum("2019" in line for line in lines) == len(FAMILIES["distilbert"].published)


def test_a_card_says_what_the_model_is_and_where_its_scores_come_from():
    out = call("models", "roberta-large").out
    assert out.startswith("FacebookAI/roberta-large\n")
    assert "355,359,744" in out
    assert "355 M total (Liu et al. 2019, arXiv:1907.11692)" in out
    assert re.search(r"GLUE +leaderboard score +test +88.5 Liu et al. 2019, arXiv:1907.11692; ensemble", out)


def test_a_card_in_json_has_scores_with_metric_split_and_source():
    card = call("models", "electra-small-discriminator", "--json").json()
    score = next(score for score in card["scores"] if score["benchmark"] == "MNLI")
    assert (score["metric"], score["split"], score["value"]) == ("accuracy, matched", "dev", 81.3)
    assert "electra" in score["source"]
    assert card["year"] == 2020
    assert card["strengths"]
