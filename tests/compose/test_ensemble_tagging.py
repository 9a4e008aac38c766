"""Ensembles of taggers: words combined, spans decoded from what all say, schemes that do not go together."""

import itertools
import shutil

import numpy as np
import pytest
import seqeval.metrics
from ensemble_cases import reported, turned

from bothways import Ensemble, TextTagger
from bothways.compose.opening import open_trained
from bothways.data import read_rows
from bothways.errors import InvalidInput
from bothways.evaluation.tag_schemes import spans_of
from bothways.evaluation.temperature import apply_temperature, fit_temperature, softmax
from classifier_cases import OF_WORD
from classifier_cases import named_rows as rows
from contract_cases import DROPOUTS
from tiny_models import edit_config, write_checkpoint

FAMILIES = ("bert", "distilbert", "xlnet")


def noisy(count=24):
    """Every fourth text has no tags, so that calibration has something to do."""
    made = rows(count)
    for number in range(0, count, 4):
        made[number]["tags"] = ["O"] * len(made[number]["tags"])
    return made


def trained(folder, base, data, *, seed, epochs=1):
    tagger = TextTagger.from_pretrained(base, device="cpu")
    tagger.fit(data, validation=data, epochs=epochs, learning_rate=1e-2, batch_size=6, seed=seed)
    tagger.save(folder)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Taggers of three families, and some that do not go with them."""
    folder = tmp_path_factory.mktemp("taggers")
    for number, family in enumerate(FAMILIES):
        write_checkpoint(folder / family, family, seed=number)
        edit_config(folder / family, **dict.fromkeys(DROPOUTS, 0.0))
        trained(folder / f"{family}-names", folder / family, rows(), seed=number, epochs=8)
    base = folder / "bert"
    trained(folder / "more", base, rows(names={**OF_WORD, "w20": "B-ORG"}), seed=1)
    pieces = {"w5": "S-PER", "w7": "S-LOC"}
    trained(folder / "bioes", base, [row for row in rows(names=pieces) if "w6" not in row["tokens"]], seed=1)
    for seed in (1, 2):
        trained(folder / f"plain-{seed}", base, rows(names={"w5": "NOUN"}, outside="X"), seed=seed)
    return folder


@pytest.fixture
def members(runs):
    return [runs / f"{family}-names" for family in FAMILIES]


def asked(data):
    return list(read_rows(data))


def own_probabilities(folder, data, labels):
    """Of a member alone, of all words end to end (M, C), with its calibration."""
    tagger = open_trained(folder, device="cpu")
    probabilities_MC = apply_temperature(tagger.score(data).logits, tagger.fitted.outputs.confidence.temperature)
    return probabilities_MC[:, [tagger.labels.index(label) for label in labels]]


@pytest.mark.parametrize("method", ["mean", "vote"])
def test_words_have_the_combined_probabilities_of_members_of_different_families(members, method):
    ensemble = Ensemble.of(members, method=method, device="cpu")
    # Words that no training text has, on which the members disagree.
    unseen = [f"w{number}" for number in range(8, 20)]
    labels, data = ensemble.fitted.facts()["labels"], [*rows(8), {"tokens": unseen, "tags": ["O"] * len(unseen)}]
    own_KMC = np.stack([own_probabilities(folder, data, labels) for folder in members])
    mean_MC = own_KMC.mean(axis=0)
    votes_MC = (own_KMC.argmax(axis=2)[..., None] == np.arange(len(labels))).sum(axis=0)
    expected_MC = mean_MC if method == "mean" else (votes_MC + mean_MC) / (len(members) + 1)
    found = list(ensemble.predict_stream(asked(data)))
    words = [word for each in found for word in each.together.words]
    expected = [row_C[labels.index(word.tag)] for row_C, word in zip(expected_MC, words, strict=True)]
    np.testing.assert_allclose([word.probability for word in words], expected, rtol=0, atol=1e-6)
    differing_M = (own_KMC.argmax(axis=2) != expected_MC.argmax(axis=1)).mean(axis=0)
    ends = np.cumsum([len(row["tokens"]) for row in data])
    of_texts = [part.mean() for part in np.split(differing_M, ends[:-1])]
    np.testing.assert_allclose([each.disagreement.differing for each in found], of_texts, atol=1e-12)
    assert any(of_texts)


def test_no_broken_span_comes_out_of_members_that_disagree(members):
    ensemble = Ensemble.of(members, method="vote", device="cpu")
    made = [{"tokens": ["w6", "w5", "w7", "w6", "w20", "w6"][number % 3 :]} for number in range(6)]
    for found in ensemble.predict_stream(asked(made)):
        tags = list(found.together.tags)
        assert tags == found.together.tags_in("BIO")
        assert len(spans_of(tags, "BIO")) == len(found.together.spans)


def test_an_ensemble_is_calibrated_on_held_out_words_and_comes_back_the_same(members, tmp_path):
    ensemble = Ensemble.of(members, method="stacked", calibrate=noisy(), device="cpu")
    assert ensemble.temperature is not None
    assert ensemble.card["calibration_rows"] == 24
    ensemble.save(tmp_path / "ens")
    again = open_trained(tmp_path / "ens", device="cpu")
    assert again.combination == ensemble.combination
    assert again.fitted.facts() | {"members": []} == ensemble.fitted.facts() | {"members": []}
    data = asked([*rows(6), {"tokens": ["w5", "w6"] * 40}, {"text": "w20, w5"}])
    found = list(again.predict_stream(data))
    assert found == list(ensemble.predict_stream(data))
    assert found[-2].together.tokens_read.windows > 1
    assert found[-1].together.text == "w20, w5"
    assert Ensemble.of(members, device="cpu").temperature is None


def test_the_temperature_is_that_of_the_mean(members):
    ensemble = Ensemble.of(members, calibrate=noisy(), device="cpu")
    labels = ensemble.fitted.facts()["labels"]
    mean_MC = np.mean([own_probabilities(folder, noisy(), labels) for folder in members], axis=0)
    truth = [labels.index(tag) for row in noisy() for tag in row["tags"]]
    assert ensemble.temperature.value == pytest.approx(fit_temperature(np.log(mean_MC), truth), rel=1e-4)
    found = [word for each in ensemble.predict_stream(asked(noisy())) for word in each.together.words]
    expected_MC = softmax(np.log(mean_MC) / ensemble.temperature.value)
    expected = [row_C[labels.index(word.tag)] for row_C, word in zip(expected_MC, found, strict=True)]
    np.testing.assert_allclose([word.probability for word in found], expected, rtol=0, atol=1e-5)


def test_a_report_has_spans_of_the_ensemble_its_members_and_their_disagreement(members):
    ensemble = Ensemble.of(members, calibrate=noisy(), device="cpu")
    content, found = reported(ensemble, members, rows(12), ["span_f1", "accuracy"])
    right = [
        tag == true
        for each, row in zip(found, rows(12), strict=True)
        for tag, true in zip(each.together.tags, row["tags"], strict=True)
    ]
    assert content["accuracy"] == pytest.approx(np.mean(right))
    tags = [list(each.together.tags) for each in found]
    assert content["span_f1"] == pytest.approx(seqeval.metrics.f1_score([row["tags"] for row in rows(12)], tags))


def test_plain_tags_are_combined_too(runs):
    ensemble = Ensemble.of([runs / "plain-1", runs / "plain-2"], device="cpu")
    [found] = ensemble.predict_stream(asked([{"tokens": ["w5", "w20"]}]))
    assert set(found.together.tags) <= {"NOUN", "X"}
    assert ensemble.evaluate(rows(8, names={"w5": "NOUN"}, outside="X"), resamples=5).n == 8


def test_tags_in_another_order_are_put_in_that_of_the_first_member(members, tmp_path):
    other = turned(members[0], tmp_path / "turned", [3, 0, 2, 4, 1])
    data = asked(rows(8))
    alone = list(Ensemble.of([members[0]] * 2, device="cpu").predict_stream(data))
    for pair in ([members[0], other], [other, members[0]]):
        for found, expected in zip(Ensemble.of(pair, device="cpu").predict_stream(data), alone, strict=True):
            assert found.together.tags == expected.together.tags
            probabilities = [word.probability for word in found.together.words]
            assert probabilities == pytest.approx([word.probability for word in expected.together.words], abs=1e-6)
            assert found.disagreement.differing == 0


def test_a_tagger_of_another_program_is_known_by_its_head(members, tmp_path):
    shutil.copytree(members[0], tmp_path / "theirs")
    (tmp_path / "theirs" / "bothways.json").unlink()
    ensemble = Ensemble.of([tmp_path / "theirs", members[1]], device="cpu")
    assert [type(member) for member in ensemble.members] == [TextTagger, TextTagger]
    assert ensemble.evaluate(rows(8), resamples=5).n == 8


def test_rows_are_read_as_they_come(members):
    ensemble = Ensemble.of(members, device="cpu")
    endless = ensemble.predict_stream(itertools.cycle(asked(rows(8))))
    found = list(itertools.islice(endless, 10))
    assert [each.together.text for each in found] == [" ".join(rows(8)[number % 8]["tokens"]) for number in range(10)]


def test_a_text_or_its_words_are_asked_as_of_one_tagger(members):
    ensemble = Ensemble.of(members, device="cpu")
    from_rows = list(ensemble.predict_stream(asked([{"tokens": ["w5", "w6"]}, {"text": "w7 w20"}])))
    assert ensemble.predict([["w5", "w6"], "w7 w20"]) == from_rows
    assert ensemble.predict("w7 w20") == ensemble.predict(["w7 w20"])[0]
    with pytest.raises(InvalidInput, match="text 2 is empty"):
        ensemble.predict(["w5", ""])
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'coverage'\. Known: calibrated, "):
        ensemble.predict("w7 w20", coverage=0.9)


def test_other_columns_are_those_of_the_first_members_training(members):
    ensemble = Ensemble.of(members, device="cpu")
    assert ensemble.fitted.columns.rows_of(["w5 w6"]) == [{"text": "w5 w6"}]
    with pytest.raises(InvalidInput, match="neither a column 'tokens' of words nor a column 'text'"):
        list(ensemble.predict_stream(asked([{"words": ["w5"]}])))


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [
        (["bert-names", "more"], {}, "also has 'B-ORG', 'I-ORG'"),
        (["bert-names", "bioes"], {}, "same scheme, but .*bioes' has BIOES, the first member BIO"),
        (["bert-names", "plain-1"], {}, "has plain, the first member BIO"),
        (["bert-names", "xlnet-names"], {"method": "stacked", "calibrate": noisy(9)}, "at least 10 held-out rows, but"),
        (["bert-names", "xlnet-names"], {"calibrate": [{"text": "w5", "label": "x"}]}, "'tokens'"),
    ],
)
def test_what_cannot_be_combined_is_refused(runs, names, options, said):
    with pytest.raises(InvalidInput, match=said):
        Ensemble.of([runs / name for name in names], device="cpu", **options)
