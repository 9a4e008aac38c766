"""The table of published embedders whose cards ask for prompts."""

import re

import pytest

from bothways.tasks.embedding.card_prompts import CARD_PROMPTS, card_prompts_of, note_of_card

E5 = {"query": "query: ", "document": "passage: "}
BGE = "Represent this sentence for searching relevant passages: "


@pytest.mark.parametrize("card", CARD_PROMPTS, ids=lambda card: card.name)
def test_every_card_has_a_name_an_address_and_a_prompt(card):
    assert re.fullmatch(r"[\w.-]+/[\w.-]+", card.name)
    assert re.fullmatch(r"https://huggingface\.co/[\w.-]+/[\w.-]+", card.source)
    assert card.query.strip()
    prompts = [each for each in (card.query, card.document, *card.others) if each]
    assert len(set(prompts)) == len(prompts)
    assert card.left_out({"query": card.query, "document": card.document}) == {}
    assert card.left_out({"query": "", "document": ""}) == {
        role: prompt for role, prompt in (("query", card.query), ("document", card.document)) if prompt
    }


def test_no_model_is_listed_twice_by_its_name_or_by_the_last_part_of_it():
    names = [card.name.lower() for card in CARD_PROMPTS]
    assert len(set(names)) == len(names) == len({name.rpartition("/")[2] for name in names})


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("intfloat/e5-base-v2", "intfloat/e5-base-v2"),
        ("Intfloat/E5-Base-V2", "intfloat/e5-base-v2"),
        ("/models/e5-base-v2", "intfloat/e5-base-v2"),
        ("./E5-base-v2/", "intfloat/e5-base-v2"),
        ("copy/e5-base-v2", "intfloat/e5-base-v2"),
        ("BAAI/bge-small-zh-v1.5", "BAAI/bge-small-zh-v1.5"),
        ("/cache/hub/models--intfloat--e5-base-v2/snapshots/0123abc", "intfloat/e5-base-v2"),
        ("/cache/hub/models--me--e5-base-v2-mine/snapshots/0123abc", None),
        ("my-e5-base-v2", None),
        ("/models/e5-base-v2/copy", None),
        ("sentence-transformers/all-MiniLM-L6-v2", None),
        ("", None),
    ],
)
def test_a_model_is_known_by_its_name_and_by_the_name_of_its_folder(name, card):
    found = card_prompts_of(name)
    assert (None if found is None else found.name) == card


@pytest.mark.parametrize(
    ("name", "prompts", "left_out"),
    [
        ("e5-small", {"query": "", "document": ""}, "'query: ' before queries and 'passage: ' before documents"),
        ("e5-small", E5, None),
        ("e5-small", {**E5, "document": ""}, "'passage: ' before documents"),
        ("e5-small", {**E5, "query": "question: "}, "'query: ' before queries"),
        # Cards ask for one prompt before both texts of a comparison, and spaces at the end are easily lost.
        ("e5-small", {"query": "query: ", "document": "query:"}, None),
        ("bge-base-en", {"query": "", "document": ""}, f"'{BGE}' before queries"),
        ("bge-base-en", {"query": BGE, "document": ""}, None),
        ("multilingual-e5-large-instruct", {"query": "Instruct: Find it.\nQuery: ", "document": ""}, None),
        (
            "multilingual-e5-large-instruct",
            {"query": "query: ", "document": ""},
            r"'Instruct: {task}\nQuery: ' before",
        ),
        ("modernbert-embed-base", {"query": "clustering: ", "document": "clustering: "}, None),
        ("all-MiniLM-L6-v2", {"query": "", "document": ""}, None),
    ],
)
def test_a_note_names_the_prompts_that_are_left_out_and_their_source(name, prompts, left_out):
    note = note_of_card(name, prompts)
    if left_out is None:
        assert note is None
    else:
        assert left_out in note
        assert note.endswith(f"which is left out (source: {card_prompts_of(name).source}).")
