"""Labels are read by the same rules in every task: declared labels, numbers that stand for them, and look-alikes."""

import json
import shutil
from dataclasses import dataclass, field

import pytest

from bothways import (
    Ensemble,
    MultiTask,
    PairClassifier,
    SentenceEmbedder,
    TaggingData,
    TaskData,
    TextClassifier,
    TextTagger,
)
from bothways.cli.program import main
from bothways.data import labelled_rows, read_examples, read_tagged
from bothways.data.labels import label_set, placed, reading_numbers
from bothways.errors import InvalidInput, LabelsAmbiguous
from bothways.judging.triples import label_of
from bothways.pretraining import TaskDistiller
from bothways.retrieval import CandidateRanking

NAMES, TAGS = ("sun", "rain", "air"), ("O", "I-PER", "B-PER", "B-LOC", "I-LOC")
PLACES = [number % 3 for number in range(12)]
QUICK = {"epochs": 1, "batch_size": 12}
MEASURED = {"resamples": 5, "baseline": False}


@dataclass(frozen=True)
class Kind:
    """A kind of labels: the places of the labels of each row, and the values that stand for them."""

    task: type
    places: list
    names: tuple = NAMES
    vectors: bool = False
    options: dict = field(default_factory=dict)
    columns: tuple = ("text", "label")

    def value(self, places, names):
        match places:
            case list() if names is not None:
                return [names[place] for place in places]
            case list() if self.vectors:
                return [int(place in places) for place in range(len(self.names))]
            case int() if self.vectors and names is None:
                return [int(place == places) for place in range(len(self.names))]
            case int() if names is not None:
                return names[places]
        return places

    def rows(self, names=None, written=lambda value: value):
        """Rows with the labels by ``names``, or by numbers."""
        *texts, label = self.columns
        words = {
            "text": lambda at: f"w{5 + at % 3} w20",
            "text_a": lambda at: f"w{5 + at % 3}",
            "text_b": lambda _: "w9",
        }
        words["tokens"] = lambda at: [f"w{5 + at % 3}", "w20"]
        return [
            {**{name: words[name](at) for name in texts}, label: written(self.value(places, names))}
            for at, places in enumerate(self.places)
        ]


SETS = [[place, (place + 1) % 3] if at % 4 else [place] for at, place in enumerate(PLACES)]
TAGGED = [[[2, 1], [3, 0], [0, 2]][place] for place in PLACES]
KINDS = {
    "one label": Kind(TextClassifier, PLACES),
    "one-hot": Kind(TextClassifier, PLACES, vectors=True),
    "pairs": Kind(PairClassifier, PLACES, columns=("text_a", "text_b", "label")),
    "multi-hot": Kind(TextClassifier, SETS, vectors=True, options={"target": "multi"}),
    "several": Kind(TextClassifier, SETS, options={"target": "multi"}),
    "spans": Kind(TextTagger, TAGGED, TAGS, columns=("tokens", "tags")),
    "parts of speech": Kind(TextTagger, [[place, 2] for place in PLACES], columns=("tokens", "tags")),
}
LABELLED, SPANS = KINDS["one label"], KINDS["spans"]


def opened(tiny_bert, kind, **options):
    return kind.task.from_pretrained(tiny_bert, device="cpu", **kind.options, **options)


def fitted(tiny_bert, kind, train, validation, labels=None, **options):
    model = opened(tiny_bert, kind, **({} if labels is None else {"labels": labels}))
    model.fit(train, validation=validation, **options, **QUICK)
    return model


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_declared_labels_have_an_order_and_numbers_stand_for_them(tiny_bert, tmp_path, kind):
    by_name, by_number = kind.rows(kind.names), kind.rows()
    declared = fitted(tiny_bert, kind, by_number, by_name, ",".join(kind.names))
    assert declared.labels == kind.names
    report = declared.evaluate(by_name, **MEASURED).to_dict()
    declared.save(tmp_path / "saved")
    again = kind.task.from_pretrained(tmp_path / "saved", device="cpu")
    for model, rows in ((declared, by_number), (again, by_number), (again, kind.rows(written=str))):
        assert model.evaluate(rows, **MEASURED).to_dict() == report
    # Another order is that of the data: the model keeps its own.
    turned = kind.names[::-1]
    rows = Kind(kind.task, kind.places, turned, kind.vectors, columns=kind.columns)
    other = [
        {**row, kind.columns[-1]: value}
        for row, value in zip(
            by_name, (rows.value(_turned(places, kind.names), None) for places in kind.places), strict=True
        )
    ]
    assert again.evaluate(other, labels=turned, **MEASURED).to_dict() == report
    again = kind.task.from_pretrained(tmp_path / "saved", device="cpu", labels=turned)
    assert again.labels == kind.names
    assert again.evaluate(other, **MEASURED).to_dict() == report


def _turned(places, names):
    last = len(names) - 1
    return [last - place for place in places] if isinstance(places, list) else last - places


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_numbers_need_names_in_an_evaluation_too(tiny_bert, kind):
    by_name, by_number = kind.rows(kind.names), kind.rows()
    named = fitted(tiny_bert, kind, by_name, by_name)
    report = named.evaluate(by_name, **MEASURED).to_dict()
    assert named.evaluate(by_number, labels=kind.names, **MEASURED).to_dict() == report
    assert named.evaluate(by_name, labels=kind.names, **MEASURED).to_dict() == report
    with pytest.raises(InvalidInput, match=r"labels=\[\.\.\.\].*\(?--labels"):
        named.evaluate(by_number)
    with pytest.raises(InvalidInput):
        named.evaluate(by_number, labels=("fog", *kind.names))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_other_labels_than_the_declared_ones_are_refused(tiny_bert, kind):
    names = kind.names[:3] if kind is SPANS else kind.names[:2]
    with pytest.raises(InvalidInput, match=r"row \d .*does not know"):
        fitted(tiny_bert, kind, kind.rows(kind.names), kind.rows(kind.names), names)
    with pytest.raises(InvalidInput, match="twice"):
        fitted(tiny_bert, kind, kind.rows(kind.names), None, [*kind.names, kind.names[0]])


@pytest.mark.parametrize("name", [name for name, kind in KINDS.items() if not kind.vectors])
def test_labels_that_look_alike_are_read_as_one(tiny_bert, tmp_path, name):
    kind = KINDS[name]
    plain = kind.rows(kind.names)
    alike = kind.rows([f"{name}\u200b" if name == "rain" else name.title() for name in kind.names])
    model = fitted(tiny_bert, kind, [*plain, *alike[:2]], alike, normalise_labels=True)
    assert set(model.labels) == set(kind.names)
    report = model.evaluate(plain, **MEASURED).to_dict()
    assert model.evaluate(alike, **MEASURED).to_dict() == report
    model.save(tmp_path / "saved")
    again = kind.task.from_pretrained(tmp_path / "saved", device="cpu")
    assert again.evaluate(alike, **MEASURED).to_dict() == report
    with pytest.raises(InvalidInput, match="looks like"):
        again.evaluate(alike, normalise_labels=False)
    declared = fitted(tiny_bert, kind, alike, plain, kind.names, normalise_labels=True)
    assert declared.labels == kind.names


# --- models of several tasks, ensembles, students ---


def test_tasks_on_one_encoder_have_labels_of_their_own(tiny_bert, tmp_path):
    both = MultiTask.from_pretrained(tiny_bert, device="cpu")
    data = {
        "sky": TaskData(LABELLED.rows(), LABELLED.rows(NAMES), labels=NAMES),
        "names": TaggingData(SPANS.rows(), SPANS.rows(TAGS), labels=TAGS),
    }
    both.fit(data, **QUICK)
    both.save(tmp_path / "both")
    for model in (both, MultiTask.from_pretrained(tmp_path / "both", device="cpu")):
        for name, kind in (("sky", LABELLED), ("names", SPANS)):
            part = model.part(name)
            assert part.labels == kind.names
            report = part.evaluate(kind.rows(kind.names), **MEASURED).to_dict()
            assert part.evaluate(kind.rows(), **MEASURED).to_dict() == report
        joint = [{**row, "tags": tags["tags"]} for row, tags in zip(LABELLED.rows(), SPANS.rows(), strict=True)]
        joint = [{**row, "tokens": row["text"].split(), "label": f"{NAMES[row['label']].title()} "} for row in joint]
        assert model.evaluate(joint, normalise_labels=True, **MEASURED)["sky"].n == 12
        with pytest.raises(InvalidInput, match="looks like 'sun'"):
            model.evaluate(joint)


def test_ensembles_and_students_read_labels_so(tiny_bert, tmp_path):
    model = fitted(tiny_bert, LABELLED, LABELLED.rows(NAMES), LABELLED.rows(NAMES))
    for name in ("a", "b"):
        model.save(tmp_path / name)
    alike = LABELLED.rows([name.title() for name in NAMES])
    folders = [tmp_path / "a", tmp_path / "b"]
    for rows, options in ((alike, {"normalise_labels": True}), (LABELLED.rows(), {"labels": NAMES})):
        with pytest.raises(InvalidInput, match="does not know"):
            Ensemble.of(folders, calibrate=rows, device="cpu")
        ensemble = Ensemble.of(folders, calibrate=rows, device="cpu", **options)
        assert ensemble.evaluate(rows, **options, **MEASURED).n == 12
        student = TaskDistiller.from_pretrained(tmp_path / "a", device="cpu")
        student.fit(LABELLED.rows(NAMES), validation=rows, updates=1, **options)
        assert student.model.evaluate(rows, **options, **MEASURED).n == 12


# --- labels of embedders, rankings and judges ---


def test_embedders_of_labelled_texts_read_labels_as_one(tiny_bert):
    rows = [{"text": f"w{5 + at} w20", "label": ("sun", "rain")[at % 2]} for at in range(24)]
    alike = [{**row, "label": row["label"].title() + "\u00a0" * (at % 2)} for at, row in enumerate(rows)]
    reports = []
    for train, options in ((rows, {}), ([*rows[:12], *alike[12:]], {"normalise_labels": True})):
        model = SentenceEmbedder.from_pretrained(tiny_bert, device="cpu")
        model.fit(train, validation=train, text="text", label="label", **options, **QUICK)
        reports.append(model.evaluate(train, **options, **MEASURED).to_dict())
    assert reports[0] == reports[1]
    with pytest.warns(LabelsAmbiguous, match=r"look alike.*normalise_labels=True \(--normalise-labels\)"):
        assert model.evaluate([*rows[:12], *alike[12:]], **MEASURED).to_dict() != reports[0]
    pairs = [{"anchor": f"w{at}", "positive": f"w{at + 1}"} for at in range(5, 15)]
    with pytest.raises(InvalidInput, match=r"normalise_labels needs rows with labels .* got pairs: leave it out"):
        model.fit(pairs, anchor="anchor", positive="positive", normalise_labels=True, **QUICK)


def test_rankings_read_labels_so(tiny_bert):
    rows = [{"text_a": "w5", "text_b": f"w{at}", "label": ("Yes ", "no", "NO")[at % 3]} for at in range(6, 12)]
    ranking = CandidateRanking.open(tiny_bert, device="cpu", relevant="yes")
    with pytest.warns(LabelsAmbiguous), pytest.raises(InvalidInput, match="no passage has the label 'yes'"):
        ranking.evaluate(rows)
    report = ranking.evaluate(rows, normalise_labels=True, resamples=5).to_dict()
    numbers = [{**row, "label": int(row["label"] == "Yes ")} for row in rows]
    assert ranking.evaluate(numbers, labels="no,yes", resamples=5).to_dict() == report


def test_labels_of_judges_are_read_in_any_spelling():
    given = ("YES", "yes\u00a0", "\u200bno", "\uff11", "True ", " ")
    assert [label_of(each) for each in given] == [1, 1, 0, 1, 1, None]


# --- the rules themselves ---


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([[1, 0, 0], [0, 1, 1]], [("sun",), ("rain", "air")]),
        ([[0], [0, 2], [1]], [("sun",), ("sun", "air"), ("rain",)]),
        (["0|2", "1", "[1 2]"], [("sun", "air"), ("rain",), ("rain", "air")]),
        ([["sun"], [2]], [("sun",), ("air",)]),
        ([[], [1]], [(), ("rain",)]),
    ],
)
def test_a_column_has_vectors_or_places(values, expected):
    found = read_examples(labelled_rows(["w5"] * len(values), values), convert=label_set, names=NAMES)
    assert [each.label for each in found] == expected


@pytest.mark.parametrize("values", [[[1, 0, 0], [2]], [[1, 0, 0], [1]], [[0, 3]], ["[1 0]", "[0 0 1]"]])
def test_columns_with_vectors_and_other_numbers_are_refused(tiny_bert, values):
    rows = labelled_rows([f"w{5 + at % 3}" for at in range(12)], (values * 12)[:12])
    with pytest.raises(InvalidInput, match=r"expected a (multi-hot|label or its place, from 0 to 2)|does not know"):
        fitted(tiny_bert, KINDS["several"], rows, None, NAMES)


def test_places_are_of_names_that_are_words():
    assert placed("1.0", NAMES) == "rain"
    assert [placed(name, ("2", "1")) for name in ("0", "1")] == ["0", "1"]
    assert placed("-1", NAMES) == "-1"
    for number in ("3", "9" * 5000):
        with pytest.raises(InvalidInput, match="expected a label or its place, from 0 to 2, among sun, rain, air, got"):
            placed(number, NAMES)
    assert reading_numbers(str, NAMES)(2) == "air"


@pytest.mark.parametrize("tags", [[2, 0], (2, 0), "[2, 0]", "[2 0]", "2 0", "(2, 0)", "array([2, 0])", ["2", "0"]])
def test_tags_may_be_numbers(tags):
    rows = [{"tokens": "Li left", "tags": tags}]
    assert [row.label for row in read_tagged(rows, names=TAGS)] == [("B-PER", "O")]
    with pytest.raises(InvalidInput, match=r"row 1 .* tag 1 in 'tags': expected a label or its place, from 0 to 1"):
        list(read_tagged(rows, names=("O", "B-PER")))


# --- the command line ---


def test_commands_take_labels(tiny_bert, tmp_path, capsys):
    files = {}
    for name, kind in (("sky", LABELLED), ("spans", SPANS)):
        for ending, rows in (("names", kind.rows(kind.names)), ("numbers", kind.rows())):
            files[name, ending] = str(tmp_path / f"{name}.{ending}.jsonl")
            (tmp_path / f"{name}.{ending}.jsonl").write_text("\n".join(map(json.dumps, rows)))
    files["sky", "turned"] = str(tmp_path / "turned.jsonl")
    turned = [{**row, "label": 2 - row["label"]} for row in LABELLED.rows()]
    (tmp_path / "turned.jsonl").write_text("\n".join(map(json.dumps, turned)))
    common = ["--model", str(tiny_bert), "--device", "cpu", "--epochs", "1", "--quiet"]

    def evaluated(model, data, *words):
        capsys.readouterr()
        code = main(["evaluate", model, "--data", files[data], "--resamples", "5", "--json", "--quiet", *words])
        return json.loads(capsys.readouterr().out) if code == 0 else code

    tagger = str(tmp_path / "tagger")
    train = ["--train", files["spans", "numbers"], "--validation", files["spans", "names"]]
    assert main(["train", "tagging", *common, *train, "--labels", ",".join(TAGS), "--output", tagger]) == 0
    assert evaluated(tagger, ("spans", "numbers")) == evaluated(tagger, ("spans", "names"))
    both, tasks = str(tmp_path / "both"), []
    for name, columns, labels in (("sky", "text:label:single", NAMES), ("spans", "tokens:tags:tagging", TAGS)):
        tasks += ["--task", f"{name}={files[name, 'numbers']}:{columns}:{','.join(labels)}"]
        tasks += ["--validation", f"{name}={files[name, 'names']}"]
    assert main(["train", "multitask", *common, *tasks, "--output", both]) == 0
    for name in ("spans", "sky"):
        expected = evaluated(both, (name, "names"), "--task", name)
        assert evaluated(both, (name, "numbers"), "--task", name) == expected
    turned = ",".join(NAMES[::-1])
    assert evaluated(both, ("sky", "turned"), "--task", "sky", "--labels", turned) == expected
    assert evaluated(both, ("sky", "numbers"), "--labels", turned) == 2
    assert "--labels can be given for models that" in capsys.readouterr().err
    single = str(tmp_path / "single")
    train = ["--train", files["sky", "names"], "--validation", files["sky", "names"]]
    assert main(["train", "classification", *common, *train, "--output", single]) == 0
    expected = evaluated(single, ("sky", "names"))
    assert evaluated(single, ("sky", "numbers"), "--labels", ",".join(NAMES)) == expected
    shutil.copytree(single, tmp_path / "other")
    ensemble = ["ensemble", single, str(tmp_path / "other"), "--calibrate", files["sky", "numbers"], "--device", "cpu"]
    assert main([*ensemble, "--output", str(tmp_path / "none")]) == 1
    assert main([*ensemble, "--labels", ",".join(NAMES), "--output", str(tmp_path / "ensemble")]) == 0
    assert evaluated(str(tmp_path / "ensemble"), ("sky", "numbers"), "--labels", ",".join(NAMES))["n"] == 12
