"""``bothways mask``: static masks stay and dynamic ones change, in colour on a terminal and readable elsewhere."""

import pytest
from command_line import call

TEXT = " ".join(f"w{number}" for number in range(5, 45))


def masked(files, *more):
    return call("mask", TEXT, "--model", files / "tiny", *more)


def test_static_masks_stay_and_dynamic_ones_change(files):
    epochs = masked(files, "--epochs", 4, "--json").lines()
    assert [each["epoch"] for each in epochs] == [1, 2, 3, 4]
    assert epochs[0]["static"] == epochs[0]["dynamic"]
    assert all(each["static"] == epochs[0]["static"] for each in epochs)
    assert len({str(each["dynamic"]) for each in epochs}) == 4
    assert masked(files, "--epochs", 4, "--json").lines() == epochs
    assert masked(files, "--epochs", 4, "--seed", 1, "--json").lines() != epochs


def test_each_chosen_token_says_what_it_was_and_became(files):
    (epoch,) = masked(files, "--epochs", 1, "--fraction", 1, "--json").lines()
    shown = epoch["static"]
    assert [each["place"] for each in shown["chosen"]] == list(range(1, 41))
    assert " ".join(each["token"] for each in shown["chosen"]) == TEXT
    for each in shown["chosen"]:
        read = shown["tokens"][each["place"]]
        fate = "masked" if read == "[MASK]" else "kept" if read == each["token"] else "random"
        assert each["becomes"] == fate
    assert {each["becomes"] for each in shown["chosen"]} == {"masked", "kept", "random"}


@pytest.mark.parametrize("unit", ["token", "whole-word", "span", "n-gram"])
def test_chosen_tokens_are_marked_where_there_are_no_colours(files, unit):
    outcome = masked(files, "--epochs", 2, "--unit", unit)
    assert outcome.code == 0, outcome.err
    assert "*[MASK]*" in outcome.out
    assert "6 of 42 tokens are chosen: in asterisks." in outcome.err


def test_a_text_without_tokens_has_nothing_chosen(files):
    outcome = call("mask", "", "--model", files / "tiny", "--epochs", 1)
    assert "0 of 2 tokens are chosen" in outcome.err


@pytest.mark.parametrize("options", [["--fraction", 0], ["--fraction", 1.5], ["--epochs", 0], ["--unit", "letter"]])
def test_settings_that_cannot_be_are_refused(files, options):
    assert masked(files, *options).code == 2
