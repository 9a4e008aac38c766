"""Labels that look alike are noted, or read as one, in every task with labels; messages say what differs."""

import json
import warnings

import pytest

from bothways import MultiTask, PairClassifier, TaggingData, TaskData, TextClassifier, TextTagger
from bothways.cli.program import main
from bothways.data import labelled_rows, read_examples
from bothways.data.label_rows import look, near_label, normalised, one_spelling, spelled
from bothways.errors import InvalidInput, LabelsAmbiguous
from bothways.tasks.embedding.outputs import read_embedding_rows
from bothways.tasks.embedding.spec import LabelledTexts

NFC, NFD = "caf\u00e9", "cafe\u0301"
ALIKE = ["sport", "sport ", " sport", "SPORT", "sport\u00a0", "spo\u200brt", "\uff33port", "sport\u3000", "\ufeffsport"]
TEXTS = [f"w{5 + number % 2} w20" for number in range(12)]
LABELS = [(NFC, "sport")[number % 2] for number in range(10)] + [NFD, "Sport "]
QUICK = {"epochs": 1, "batch_size": 12}


def opened(tiny_bert, kind=TextClassifier, **options):
    return kind.from_pretrained(tiny_bert, device="cpu", **options)


def rows(labels=LABELS, several=False):
    return [{"text": text, "label": [label] if several else label} for text, label in zip(TEXTS, labels, strict=True)]


def tagged(tags=LABELS):
    return [{"tokens": text.split(), "tags": [f"B-{tag}", "O"]} for text, tag in zip(TEXTS, tags, strict=True)]


def noted(action):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        action()
    return [str(each.message) for each in caught if each.category is LabelsAmbiguous]


@pytest.mark.parametrize("label", ALIKE)
def test_looks_ignore_case_spaces_and_forms(label):
    assert look(label) == "sport"
    assert normalised(label).casefold() in ("sport", "\uff53port")


@pytest.mark.parametrize("label", ["spor t", "sports", "sp\u00f6rt", "", "\u200b"])
def test_other_labels_look_different(label):
    assert look(label) != "sport"
    assert normalised(label) or not label


def test_messages_show_what_differs():
    assert spelled(NFD) == f"'{NFC}' (NFD)"
    assert spelled(NFC) == f"'{NFC}'"
    assert spelled(NFC, [NFD]) == f"'{NFC}' (NFC)"
    assert spelled("sport\u00a0") == r"'sport\xa0'"
    assert spelled("\uff33port") == "'\uff33port' (full-width)"
    assert near_label("Sport", ["art", "sport"]).startswith(" It looks like 'sport': normalise_labels=True")
    assert near_label("sport", ["art", "sports"]) == " Did you mean 'sports'?"


def test_the_most_frequent_spelling_is_the_name():
    labels = [["SPORT"], ["sport "], ["sport "], ["b", "B"], ["b"]]
    assert one_spelling(labels) == {"SPORT": "sport", "sport ": "sport", "b": "b", "B": "b"}
    assert one_spelling(labels, ["Sport", "x"]) == {"SPORT": "Sport", "sport ": "Sport", "b": "b", "B": "b"}
    # A model whose own labels look alike tells them apart.
    assert one_spelling([["b"], ["B"], ["b "]], ["b", "B"]) == {"b": "b", "B": "B", "b ": "b "}


SAID = (
    f"labels in 'label' look alike and are taken as different: '{NFC}' (NFC) (5), '{NFC}' (NFD) (1); 'sport' (5), "
    "'Sport ' (1)."
)


def test_labels_that_look_alike_are_noted_in_every_task(tiny_bert):
    pairs = [{"text_a": row["text"], "text_b": "w9", "label": row["label"]} for row in rows()]
    both = {"a": TaskData(rows(), rows()), "b": TaggingData(tagged(), tagged())}
    for model, data in (
        (opened(tiny_bert), rows()),
        (opened(tiny_bert, target="multi"), rows(several=True)),
        (opened(tiny_bert, PairClassifier), pairs),
    ):
        assert noted(lambda model=model, data=data: model.fit(data, validation=data, **QUICK)) == [
            f"{SAID} Write each in one way, or take them as one: normalise_labels=True (--normalise-labels)."
        ]
    (said,) = noted(lambda: opened(tiny_bert, TextTagger).fit(tagged(), validation=tagged(), **QUICK))
    assert "labels in 'tags' look alike" in said
    assert f"'B-{NFC}' (NFD) (1)" in said
    assert len(noted(lambda: opened(tiny_bert, MultiTask).fit(both, **QUICK))) == 2
    (said,) = noted(lambda: read_embedding_rows(rows(), LabelledTexts()))
    assert said.startswith(f"{SAID} Write each in one way, or take them as one: normalise_labels=True")
    assert (
        noted(lambda: opened(tiny_bert).fit(rows([NFC, "sport"] * 6), validation=rows([NFC, "sport"] * 6), **QUICK))
        == []
    )


def test_unknown_labels_that_look_like_known_ones_say_what_differs(tiny_bert):
    model = opened(tiny_bert)
    model.fit(rows([NFC, "sport"] * 6), validation=rows([NFC, "sport"] * 6), **QUICK)
    with pytest.raises(
        InvalidInput, match=rf"labelled '{NFC}' \(NFD\).* knows '{NFC}' \(NFC\), 'sport'\. It looks like"
    ):
        model.evaluate(rows())
    with pytest.raises(InvalidInput, match=r"labelled 'SPORT', .*It looks like 'sport': normalise_labels=True"):
        model.evaluate(rows([NFC, "SPORT"] * 6))
    assert model.evaluate(rows(), normalise_labels=True, resamples=5).n == 12
    assert model.evaluate(rows(["CAFE\u0301", "SPORT"] * 6), normalise_labels=True, resamples=5).n == 12


@pytest.mark.parametrize(("target", "several"), [("single", False), ("multi", True)])
def test_a_model_that_learnt_labels_as_one_reads_others_so(tiny_bert, tmp_path, target, several):
    model, data = opened(tiny_bert, target=target), rows(several=several)
    other = rows([NFD, "SPORT"] * 6, several)
    assert noted(lambda: model.fit(data, validation=other, normalise_labels=True, **QUICK)) == []
    assert model.labels == (NFC, "sport")
    model.save(tmp_path / "saved")
    again = opened(tmp_path / "saved")
    for each in (model, again):
        assert each.evaluate(other, resamples=5).n == 12
    with pytest.raises(InvalidInput, match="It looks like"):
        again.evaluate(other, normalise_labels=False)
    again.fit(other, validation=data, target=target, **QUICK)
    assert again.labels == (NFC, "sport")


def test_taggers_read_tags_that_look_alike_as_one(tiny_bert, tmp_path):
    data, other = tagged(), tagged(["CAF\u00c9", "SPORT"] * 6)
    pieces = [{**row, "tags": ["S-Sport ", "O"]} for row in data]
    tagger = opened(tiny_bert, TextTagger)
    tagger.fit(data, validation=other, normalise_labels=True, **QUICK)
    assert tagger.labels == ("O", *(f"{kind}-{name}" for name in (NFC, "sport") for kind in "BI"))
    tagger.save(tmp_path / "saved")
    again = opened(tmp_path / "saved", TextTagger)
    assert again.evaluate(other, resamples=5).n
    assert again.evaluate(pieces, scheme="BIOES", resamples=5).n
    with pytest.raises(InvalidInput, match=r"has the tag .* at word 1.*It looks like 'B-caf"):
        again.evaluate(other, normalise_labels=False)


def test_the_command_line_reads_labels_as_one(tiny_bert, tmp_path, capsys):
    data, test = tmp_path / "rows.jsonl", tmp_path / "test.jsonl"
    data.write_text("\n".join(json.dumps(row) for row in rows()))
    test.write_text("\n".join(json.dumps(row) for row in rows([NFC, "sport\u200b"] * 6)))
    words = ["--model", str(tiny_bert), "--device", "cpu", "--epochs", "1", "--train", str(data)]
    words = ["train", "classification", *words, "--validation", str(test), "--output", str(tmp_path / "run")]
    assert main(words) == 1
    assert r"is labelled 'sport\u200b'" in (said := capsys.readouterr().err)
    assert f"'{NFC}' (NFD) (1)" in said
    assert main([*words, "--normalise-labels"]) == 0
    assert "look alike" not in capsys.readouterr().err
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(test), "--resamples", "5"]) == 0
    assert main(["evaluate", str(tmp_path / "run"), "--data", str(test), "--no-normalise-labels"]) == 1
    task = ["train", "multitask", "--model", str(tiny_bert), "--device", "cpu", "--epochs", "1", "--normalise-labels"]
    task += ["--task", f"a={data}", "--task", f"b={data}", "--validation", f"a={test}", "--validation", f"b={test}"]
    assert main([*task, "--output", str(tmp_path / "both")]) == 0


def test_labels_of_other_columns_are_read_alike():
    data = labelled_rows(["w5", "w6", "w7"], ["a", "A ", "a"])
    assert [each.label for each in read_examples(data, normalise=True)] == ["a", "a", "a"]
    assert [each.label for each in read_examples(data, normalise=True, known=["A"])] == ["A", "A", "A"]
