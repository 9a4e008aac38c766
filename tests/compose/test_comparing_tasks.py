"""Two models of a task on the same rows: what `evaluate` says of each, and the difference."""

import numpy as np
import pytest

from bothways import Ensemble, MultiTask, TaskData, compare
from bothways.errors import InvalidInput
from bothways.evaluation import comparison
from bothways.evaluation.tag_schemes import complete, converted
from bothways.tasks import FillMask, SentenceEmbedder, TextClassifier, TextTagger
from bothways.tasks.embedding.spec import Pairs, PlainTexts, ScoredPairs
from bothways.tasks.scores import Scores, TokensRead
from bothways.tasks.tagging.outputs import TagOutputs
from bothways.tasks.tagging.tag_set import TagSet
from bothways.text import Words
from classifier_cases import noisy_rows, rows
from tiny_models import write_checkpoint

QUICK = {"epochs": 2, "learning_rate": 3e-3, "batch_size": 6}
FEW = {"resamples": 20, "show_progress": False}
TAGS = {"w5": "B-PER", "w6": "I-PER", "w7": "B-LOC"}
DATA = noisy_rows(24)


def tagged(scheme_tags, count=16):
    words = [[f"w{20 + number % 9}", "w5", "w6", "w30", "w7"][: 3 + number % 3] for number in range(count)]
    return [{"tokens": each, "tags": [scheme_tags.get(word, "O") for word in each]} for each in words]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two bases, two classifiers and two taggers of them."""
    made = tmp_path_factory.mktemp("compared")
    for number, name in enumerate("ab"):
        write_checkpoint(made / name, seed=number)
        classifier = TextClassifier.from_pretrained(made / name, device="cpu")
        classifier.fit(rows(), validation=rows(9), seed=number, **QUICK)
        classifier.save(made / f"labels-{name}")
        tagger = TextTagger.from_pretrained(made / name, device="cpu")
        tagger.fit(tagged(TAGS), validation=tagged(TAGS), seed=number, **QUICK)
        tagger.save(made / f"tags-{name}")
    return made


def agrees(first, second, data):
    """The report, after a check that each side has what it has alone."""
    report = compare(first, second, data, **FEW)
    alone = [task.evaluate(data, resamples=20).to_dict() for task in (first, second)]
    for name, each in report.metrics.items():
        sides = each.first.value, each.second.value
        assert sides == pytest.approx([one[name] for one in alone], abs=1e-6)
        assert each.difference.value == pytest.approx(sides[1] - sides[0])
    assert [report.to_dict()[f"tokens_read_{side}"] for side in "ab"] == [one["tokens_read"] for one in alone]
    return report


def test_rows_without_a_label_are_refused_or_left_out(folder):
    first, second = (TextClassifier.from_pretrained(folder / f"labels-{name}", device="cpu") for name in "ab")
    data = [{**DATA[0], "label": None}, *DATA]
    with pytest.raises(InvalidInput, match=r"row 1 .* is missing, got null"):
        compare(first, second, data, **FEW)
    assert compare(first, second, data, unlabelled="drop", **FEW) == compare(first, second, DATA, **FEW)


def test_taggers_are_compared_by_their_spans(folder):
    first, second = (TextTagger.from_pretrained(folder / f"tags-{name}", device="cpu") for name in "ab")
    report = agrees(first, second, tagged(TAGS))
    assert list(report.metrics) == ["span_f1", "span_precision", "span_recall", "macro_span_f1", "accuracy"]
    assert report.tests[0].of == "span mistakes of a text"


def test_taggers_of_different_schemes_are_compared_by_their_spans_alone(folder):
    data = tagged(TAGS)
    pieces = [{**row, "tags": converted(row["tags"], "BIO", "BIOES")} for row in data]
    other = TextTagger.from_pretrained(folder / "b", device="cpu")
    other.fit(pieces, validation=pieces, scheme="BIOES", **QUICK)
    one = TextTagger.from_pretrained(folder / "tags-a", device="cpu")
    assert list(agrees(one, other, data).metrics) == ["span_f1", "span_precision", "span_recall", "macro_span_f1"]
    assert "accuracy" in agrees(other, other, data).metrics


def test_spans_that_are_the_same_in_two_schemes_make_no_difference():
    truth, said = ["B-PER", "I-PER", "B-PER", "O"], ["B-PER", "I-PER", "I-PER", "O"]
    judged = []
    for scheme in ("BIO", "BIOES"):
        tag_set = TagSet(complete({"PER"}, scheme), scheme)
        truth_M, said_M = (
            [tag_set.labels.index(tag) for tag in converted(tags, "BIO", scheme)] for tags in (truth, said)
        )
        words = Words.of_list(["w5", "w6", "w5", "w9"])
        scores = Scores(np.eye(len(tag_set.labels))[said_M], words, TokensRead(1, 0))
        judged.append(TagOutputs(tag_set).outcomes([scores], [np.array(truth_M)]))
    assert [each.report(resamples=5).accuracy.value for each in judged] == [
        0.75,
        0.5,
    ]  # of the words' tags, which say the same
    report = comparison.compare(*judged, resamples=5)
    assert list(report.metrics) == ["span_f1", "span_precision", "span_recall", "macro_span_f1"]
    assert all(each.difference.value == 0 for each in report.metrics.values())
    assert comparison.compare(judged[1], judged[1], resamples=5).metrics["accuracy"].first.value == 0.5


def test_taggers_of_words_that_are_no_spans_are_compared_by_their_words(folder):
    plain = [
        {"tokens": row["tokens"], "tags": ["ODD" if len(word) % 2 else "EVEN" for word in row["tokens"]]}
        for row in tagged(TAGS)
    ]
    taggers = [TextTagger.from_pretrained(folder / name, device="cpu") for name in "ab"]
    for seed, tagger in enumerate(taggers):
        tagger.fit(plain, validation=plain, seed=seed, **QUICK)
    assert list(agrees(*taggers, plain).metrics) == ["accuracy", "macro_f1"]


def test_an_ensemble_is_compared_with_a_member(folder):
    members = [folder / f"labels-{name}" for name in "ab"]
    together = Ensemble.of(members, calibrate=noisy_rows(36), device="cpu")
    agrees(TextClassifier.from_pretrained(members[0], device="cpu"), together, DATA)
    taggers = [folder / f"tags-{name}" for name in "ab"]
    agrees(Ensemble.of(taggers, device="cpu"), TextTagger.from_pretrained(taggers[1], device="cpu"), tagged(TAGS))


def test_one_of_several_tasks_is_compared_with_a_model_of_its_own(folder):
    several = MultiTask.from_pretrained(folder / "a", device="cpu")
    parity = [{"text": row["text"], "parity": "ab"[number % 2]} for number, row in enumerate(rows())]
    several.fit({"animal": TaskData(rows(), rows(9)), "parity": TaskData(parity, parity, label="parity")}, **QUICK)
    alone = TextClassifier.from_pretrained(folder / "labels-b", device="cpu")
    agrees(several.part("animal"), alone, DATA)
    with pytest.raises(InvalidInput, match="choose one of animal, parity"):
        compare(several, alone, DATA, **FEW)


def test_embedders_are_compared_by_correlations_or_by_ranks(folder):
    embedders = [SentenceEmbedder.from_pretrained(folder / name, device="cpu") for name in "ab"]
    scored = [
        {"text_a": row["text"], "text_b": f"w{number} w9", "score": number % 5} for number, row in enumerate(DATA)
    ]
    embedders = [each.with_columns(columns=ScoredPairs()) for each in embedders]
    assert list(agrees(*embedders, scored).metrics) == ["pearson", "spearman"]
    found = [{"anchor": row["text_a"], "positive": row["text_b"]} for row in scored]
    embedders = [each.with_columns(columns=Pairs()) for each in embedders]
    assert list(agrees(*embedders, found).metrics) == ["mrr", "accuracy"]
    embedders[0] = embedders[0].with_columns(columns=PlainTexts())
    with pytest.raises(InvalidInput, match="texts alone"):
        compare(*embedders, rows(), **FEW)


def test_it_is_said_what_each_model_did_not_read(folder):
    whole = TextClassifier.from_pretrained(folder / "labels-a", device="cpu")
    cutting = TextClassifier.from_pretrained(folder / "labels-b", device="cpu", max_length=5, on_overflow="truncate")
    first, second = compare(whole, cutting, DATA, **FEW).tokens_read
    # Of two to seven words, a window of five tokens has room for three.
    over = [max(0, len(row["text"].split()) - 3) for row in DATA]
    assert (first.cut, first.dropped_tokens) == (0, 0)
    assert (second.cut, second.dropped_tokens) == (sum(each > 0 for each in over), sum(over))
    agrees(whole, cutting, DATA)


def test_what_is_neither_right_nor_wrong_is_not_compared(folder):
    masks = FillMask.from_pretrained(folder / "a", device="cpu")
    with pytest.raises(InvalidInput, match="got a FillMask"):
        compare(masks, masks, rows(), **FEW)
