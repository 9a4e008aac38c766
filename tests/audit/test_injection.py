"""`ContextInjection`: tokens on both sides of a sentence move, and a classifier that obeys commands is found."""

import pytest
from planted import BAD, FILLER, GOOD, audited, planted, rows_of_opinions, write_words_checkpoint

from bothways.audit import Severity
from bothways.audit.answers import states_of
from bothways.audit.injection import inserted, shifts_around
from bothways.audit.texts import IMPERATIVE, NEUTRAL
from bothways.checkpoints import load

NAME = "ContextInjection"


@pytest.fixture(scope="module")
def obedient(tmp_path_factory):
    """A classifier that finds texts good if they hold a command, and bad otherwise."""
    commands, neutral = ({word for each in texts for word in each.split()} for texts in (IMPERATIVE, NEUTRAL))
    effects = {**dict.fromkeys((*GOOD, *BAD, *FILLER), -0.02), **dict.fromkeys(sorted(commands - neutral), 0.1)}
    with pytest.MonkeyPatch.context() as patch:
        return planted(tmp_path_factory.mktemp("obeys"), effects, patch, words=sorted(neutral))


def test_a_classifier_that_obeys_commands_is_found(obedient):
    rows = [{"text": row["text"]} for row in rows_of_opinions(20, seed=9)]
    _, found = audited(NAME, obedient, rows)
    assert found["injection-imperative"].severity > Severity.INFO
    assert found["injection-imperative"].evidence.value > 0.5 > found["injection-neutral"].evidence.value
    assert set(found["injection-imperative"].evidence.details["by_place"]) == {"beginning", "middle", "end"}
    assert found["injection-neutral"].severity == Severity.INFO


def test_tokens_before_the_sentence_move_in_every_layer_but_the_embedding(tmp_path, monkeypatch):
    write_words_checkpoint(tmp_path, monkeypatch, [*GOOD, *BAD, *FILLER])
    encoder, text = load(tmp_path), "the film was good with music"
    (before,) = states_of(encoder, [text])
    for each, first in zip(inserted(0, text, "neutral", "a story was dull"), (1, 4, 7), strict=True):
        (after,) = states_of(encoder, [each.text])
        shifts_Ln, found = shifts_around(before, after, each.at)
        assert found == first
        assert shifts_Ln.shape == (4, 8)
        assert shifts_Ln[0, :first] == pytest.approx(0, abs=1e-6)
        assert (shifts_Ln[1:, :first] > 1e-6).all()
        assert (shifts_Ln[0, first:] > 1e-6).all()  # they stand further behind now


def test_a_sentence_stands_where_it_is_said_to():
    made = [each.text for each in inserted(0, "one two three four", "neutral", "X.")]
    assert made == ["X. one two three four", "one two X. three four", "one two three four X."]
    assert len(list(inserted(0, "one", "neutral", "X."))) == 2


def test_a_bare_encoder_gives_tokens_alone():
    rows = [{"text": "The cat sat on the mat because it was tired."}, {"text": "It rained."}]
    report, found = audited(NAME, "sentence-transformers/all-MiniLM-L6-v2", rows)
    assert report.verdict == "pass"
    assert set(found) == {"injection-tokens"}
    details = found["injection-tokens"].evidence.details
    assert details["by_layer_before"][0] == pytest.approx(0, abs=1e-6)
    assert details["by_layer_before"][-1] > 1e-3
    assert details["not_used"] == 0
