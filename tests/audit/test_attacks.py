"""`AdversarialRobustness`: a model that rests on one word is turned, one with more evidence is not; and the attacks."""

import numpy as np
import pytest
import torch
from planted import BAD, FILLER, GOOD, audited, planted, rows_of_opinions, sentence, write_words_checkpoint
from safetensors.torch import load_file, save_file

from bothways import FillMask
from bothways.audit import Severity
from bothways.audit.attacks import adversarial_rows
from bothways.audit.attacks.search import (
    MAX_QUERIES,
    CharacterEdits,
    Draft,
    MaskedWords,
    NearestWords,
    Recipe,
    SameSentence,
    attack_texts,
    editable,
)
from bothways.text import Words

NAME = "AdversarialRobustness"


def rows_of_many_opinions(rows, seed=0):
    """Rows whose label most of their words tell."""
    rng = np.random.default_rng(seed)
    drawn = [(("bad", BAD), ("good", GOOD))[number % 2] for number in range(rows)]
    return [{"text": sentence(rng, *rng.choice(words, 7), length=10), "label": label} for label, words in drawn]


@pytest.fixture(scope="module")
def weak(tmp_path_factory):
    """A classifier that adds up opinions; without one, the filler says something, and no two words say the same."""
    signs = [(word, 1) for word in GOOD] + [(word, -1) for word in BAD]
    effects = {word: sign * (0.2 + 0.01 * number) for number, (word, sign) in enumerate(signs)}
    effects |= {word: (-1) ** number * (0.01 + 0.002 * number) for number, word in enumerate(FILLER)}
    with pytest.MonkeyPatch.context() as patch:
        return planted(tmp_path_factory.mktemp("weak"), effects, patch)


def test_a_model_that_rests_on_one_word_is_turned(weak):
    rows = rows_of_opinions(60, seed=5)
    found = audited(NAME, weak, rows)[1]["adversarial-character"]
    details = found.evidence.details
    assert found.severity >= Severity.LOW
    assert details["success_low"] > 0.2
    assert details["accuracy_under_attack"] < details["accuracy"]
    assert details["mean_queries"] > 1
    assert details["examples"][0]["original"] != details["examples"][0]["attacked"]
    unlabelled, _ = audited(NAME, weak, [{"text": row["text"]} for row in rows])
    assert "accuracy" not in unlabelled.findings[0].evidence.details


def test_a_model_with_much_evidence_for_each_answer_passes(weak):
    report, _ = audited(NAME, weak, rows_of_many_opinions(60, seed=5))
    assert report.verdict == "pass"
    assert report.worst == Severity.INFO


def test_too_few_texts_decide_nothing(weak):
    report, _ = audited(NAME, weak, rows_of_opinions(4))
    assert report.verdict == "inconclusive"
    assert "at least 10 texts" in report.detectors[0].reason


def test_attacked_rows_have_their_labels_and_the_columns_of_the_model(weak):
    rows = rows_of_opinions(20, seed=6)
    made = adversarial_rows(weak, rows)
    assert made
    assert made == adversarial_rows(weak, rows)
    assert {row["label"] for row in made} == {"bad", "good"}
    assert not {row["text"] for row in made} & {row["text"] for row in rows}


def test_drafts_keep_what_stands_between_words_and_attacks_leave_the_meaning_alone():
    draft = Draft.of("Oh,  a charming film (never dull)!")
    assert draft.replaced(3, "charmng").text == "Oh,  a charmng film (never dull)!"
    words = Words.of_text("We never met Alice in 2024; little charm, A4 ski lift. Delightful music")
    assert [words[number] for number in editable(words)] == ["charm", "lift", "Delightful", "music"]


def test_character_edits_keep_first_and_last_letters():
    made = CharacterEdits(each=20).words(Draft.of("charming"), 0, np.random.default_rng(0))
    assert len(made) > 20
    assert all(word[0] == "c" and word[-1] == "g" and abs(len(word) - 8) <= 1 for word in made)


def asks_for(letter):
    def ask(texts):
        with_letter_N = np.array([letter in text for text in texts], dtype=float)
        return np.stack([1 - 0.8 * with_letter_N, 0.8 * with_letter_N], axis=1)

    return ask


def test_the_search_finds_the_word_keeps_to_its_bounds_and_reaches_a_label():
    text = "many words stand here but zebra alone counts in this"
    recipe = Recipe(CharacterEdits(each=8))
    (found,) = attack_texts(asks_for("b"), [text], [1], recipe, np.random.default_rng(0))
    assert not found.reached  # "but" has the letter as well, and is too short to be edited
    (found,) = attack_texts(asks_for("eb"), [text], [1], recipe, np.random.default_rng(0))
    assert found.reached
    assert [before for before, _ in found.draft.edits] == ["zebra"]
    (few,) = attack_texts(asks_for("q"), [text], [0], Recipe(CharacterEdits(), share=0.1), np.random.default_rng(0))
    assert len(few.draft.changed) <= 1
    reach = Recipe(CharacterEdits(each=200))
    (found,) = attack_texts(asks_for("q"), [text], [0], reach, np.random.default_rng(0))
    assert found.reached
    assert found.queries <= MAX_QUERIES


def test_other_words_are_near_and_the_sentence_stays_the_same(weak):
    near = NearestWords.of(weak.model)
    assert set(near.row_of) == {word for word in (*GOOD, *BAD, *FILLER) if len(word) >= 4}
    draft = Draft.of("the Music was lovely")
    found = NearestWords(near.rows_VE, near.row_of, min_cosine=-1.0).words(draft, 1, np.random.default_rng(0))
    row = near.row_of["music"]
    best = int(torch.argsort(near.rows_VE @ near.rows_VE[row], descending=True)[1])
    assert found[0] == list(near.row_of)[best].capitalize()
    assert "Music" not in found
    same = SameSentence(lambda texts: np.array([[1.0, 0.0] if "lovely" in text else [0.0, 1.0] for text in texts]))
    assert same.kept(draft.text, ["a lovely film", "a dull film"]).tolist() == [True, False]


@pytest.fixture(scope="module")
def praising(tmp_path_factory):
    """A masked language model that expects good opinions everywhere."""
    folder = tmp_path_factory.mktemp("praising")
    with pytest.MonkeyPatch.context() as patch:
        write_words_checkpoint(folder, patch, [*GOOD, *BAD, *FILLER], architecture="BertForMaskedLM")
    weights = load_file(folder / "model.safetensors")
    weights["cls.predictions.bias"][5 : 5 + len(GOOD)] = 20.0  # after the special tokens
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return FillMask.from_pretrained(folder), folder


def test_a_masked_language_model_gives_its_own_words(praising):
    words = MaskedWords(praising[0], limit=4)
    draft = Draft.of("the music was Awful")
    found = words.words(draft, 3, np.random.default_rng(0))
    assert found == words.words(draft, 3, np.random.default_rng(1))
    assert {word.lower() for word in found} & set(GOOD)
    assert all(word[0].isupper() and len(word) >= 4 and word != "Awful" for word in found)
    assert words.words(Draft.of("the [MASK] was awful"), 3, np.random.default_rng(0)) == []


def test_an_audit_takes_the_words_of_a_masked_language_model(weak, praising):
    rows = [{"text": f"the {thing} was {word}", "label": "bad"} for thing in FILLER[4:] for word in BAD]
    for options in ({"settings": {"masked_lm": str(praising[1])}}, {"reference": praising[1]}):
        found = audited(NAME, weak, rows, **options)[1]["adversarial-word"]
        assert "masked language model" in found.title
        assert found.evidence.value > 0.5
        edits = [pair for each in found.evidence.details["examples"] for pair in each["edits"]]
        assert {after for _, after in edits} & set(GOOD)
