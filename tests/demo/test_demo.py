"""The demo from end to end on a few rows, and the sentences that it works out."""

import json
import re
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import bothways.demo
from bothways import SearchIndex, TextClassifier, load
from bothways.checkpoints import MINILM
from bothways.cli.program import main
from bothways.demo import story
from bothways.demo.files import (
    PRONOUN,
    QUERIES,
    SENTENCE,
    SPLITS,
    DemoSettings,
    check_replaceable,
    copy_news,
    headlines,
    read_rows,
)
from bothways.demo.script import mistakes, nll_change, produce
from bothways.errors import InvalidInput, MissingDependency, OutputExists
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.temperature import Temperature
from bothways.explain import attention_of, causal, illustrative_head
from bothways.report import Paragraph
from bothways.tasks.heads import contrastive
from bothways.tasks.heads import training as head_training
from bothways.tasks.heads.targets import Classification
from bothways.tasks.scores import TokensRead
from bothways.training.state import EpochValidation
from html_document import Document

ROWS = 24
SECTIONS = (
    "In short",
    "Training",
    "Test results",
    "Calibration",
    "Most confident mistakes",
    "Unseen headlines",
    "Two labels from one encoder",
    "A few texts of each category",
    "Reading both ways",
    "Search by meaning",
    "What to run next",
)


def words_of(report):
    return "".join(report.words)


def news_rows(folder, split):
    return read_rows(folder / f"news.{split}.jsonl")


def words(macro, *values):
    return "\n".join(paragraph.text for paragraph in story.tell(macro, *values))


@pytest.fixture(scope="module")
def made(minilm_folder, tmp_path_factory):
    """A demo on the first rows of each file: its folder, and what it showed."""
    for package in ("faiss", "altair", "vl_convert"):
        pytest.importorskip(package)
    output, lines = tmp_path_factory.mktemp("made") / "demo run", []
    settings = DemoSettings(epochs=1, epochs_of_two_labels=1, rows=ROWS, resamples=50, shots=2)
    with pytest.MonkeyPatch.context() as patch:  # nor need the classifier of a few texts be good
        patch.setattr(contrastive, "_UPDATES_OF_FEW", 1)
        patch.setattr(head_training, "_AFTER_CONTRAST", 1)
        path = produce(output, settings, lines.append)
    assert path == output / "report.html"
    return output, lines


@pytest.fixture(scope="module")
def report(made):
    return Document((made[0] / "report.html").read_text(encoding="utf-8"))


# --- the report ---


def test_the_report_has_every_section_and_chart_and_refers_to_nothing_outside_of_itself(made, report):
    assert tuple(report.headings) == SECTIONS
    # Two panels each for the course of training, the reliability and the attention.
    assert (report.tags.count("figure"), report.tags.count("svg")) == (6, 9)
    assert set(report.tags).isdisjoint({"script", "link", "img", "iframe", "object", "use"})
    references = [value for name in ("href", "src", "xlink:href", "action") for value in report.values(name)]
    assert references
    assert all(value.startswith("#") for value in references)
    page = (made[0] / "report.html").read_text(encoding="utf-8")
    assert "://" not in page
    assert re.findall(r"url\((?!#)", page) == []


def test_the_report_names_settings_texts_and_versions(report):
    settings = (MINILM, f"{ROWS} train", "50 resamples", f"torch {version('torch')}", bothways.__version__)
    for said in (*settings, *(row["text"] for row in headlines()), *QUERIES, SENTENCE):
        assert said in words_of(report)


def test_the_report_gives_the_figures_of_the_saved_model_on_the_saved_data(made, report):
    output, _ = made
    classifier = TextClassifier.from_pretrained(output / "model")
    again = classifier.evaluate(output / "data" / "news.test.jsonl", label="category", resamples=50)
    figures = json.loads((output / "demo.json").read_text(encoding="utf-8"))
    assert figures["category"]["test"]["accuracy"] == pytest.approx(again.accuracy.value)
    assert figures["category"]["test"]["nll"] == pytest.approx(again.nll.value, rel=1e-4)
    assert f"{again.accuracy.value:.3f} ({again.accuracy.low:.3f} to {again.accuracy.high:.3f})" in words_of(report)


# --- what is left beside it ---


def test_the_folder_holds_what_the_commands_name_and_nothing_else_is_left(made):
    output, _ = made
    assert [path.name for path in output.parent.iterdir()] == ["demo run"]
    assert {path.name for path in output.iterdir()} == {"report.html", "demo.json", "model", "index", "data"}
    assert [len(news_rows(output / "data", split)) for split in SPLITS] == [ROWS] * 3
    index = SearchIndex.open(output / "index")
    assert (len(index), index.encoder.name) == (3 * ROWS, MINILM)


def test_every_stage_is_shown_as_it_begins(made):
    assert [line[:5] for line in made[1] if line.startswith("[")] == [f"[{at}/7]" for at in range(1, 8)]


def test_the_printed_commands_are_those_of_the_report_and_name_real_paths(made, report):
    output, lines = made
    commands = [line.strip() for line in lines[lines.index("What to run next:") + 1 :]]
    assert len(commands) == 5
    for command in commands:
        assert command in words_of(report)
        quoted = re.findall(rf"'({re.escape(str(output))}[^']*)'", command)
        assert quoted
        assert all(Path(path).exists() for path in quoted)


def test_shipped_files_are_copied_as_they_are(tmp_path):
    copy_news(tmp_path / "data", None)
    shipped = Path(bothways.demo.__file__).parent / "data"
    for name in ("README.md", *(f"news.{split}.jsonl" for split in SPLITS)):
        assert (tmp_path / "data" / name).read_bytes() == (shipped / name).read_bytes()


# --- the folder that may be replaced ---


def silent(_line):
    """Show nothing."""


def demo_folder(path):
    path.mkdir()
    (path / "demo.json").write_text(json.dumps({"made_by": "bothways demo"}))
    (path / "report.html").write_text("an earlier report")
    return path


@pytest.mark.parametrize("kind", ["nothing", "empty folder", "earlier demo"])
def test_where_nothing_is_lost_the_demo_may_write(tmp_path, kind):
    if kind == "empty folder":
        (tmp_path / "demo").mkdir()
    elif kind == "earlier demo":
        demo_folder(tmp_path / "demo")
    check_replaceable(tmp_path / "demo", overwrite=kind == "earlier demo")


def test_an_earlier_demo_is_replaced_only_on_request(tmp_path, monkeypatch, capsys):
    demo_folder(tmp_path / "bothways-demo")
    with pytest.raises(OutputExists, match="already exists"):
        bothways.demo.run(tmp_path / "bothways-demo", show=silent)
    written = []
    monkeypatch.setattr(bothways.demo, "run", lambda output, **given: written.append((str(output), given["overwrite"])))
    monkeypatch.chdir(tmp_path)
    assert main(["demo"]) == 0
    said = capsys.readouterr().err
    assert "bothways-demo exists already: this demo is written to bothways-demo-2. --overwrite replaces" in said
    assert main(["demo", "--overwrite"]) == main(["demo", "--output", "bothways-demo"]) == 0
    assert written == [("bothways-demo-2", False), ("bothways-demo", True), ("bothways-demo", False)]


@pytest.mark.parametrize("content", [None, "not JSON", "[]", '{"made_by": "another"}', "a demo", "a file"])
def test_what_is_something_else_is_refused_and_left(tmp_path, content):
    output, said = tmp_path / "demo", "not written by the demo"
    if content == "a file":
        output.write_text(content)
        said = "is a file"
    else:
        demo_folder(output)
        (output / "thesis.txt").write_text("years of work")
        if content is None:
            (output / "demo.json").unlink()
        elif content == "a demo":
            said = r"not written by the demo: thesis\.txt"
        else:
            (output / "demo.json").write_text(content)
    with pytest.raises(OutputExists, match=said):
        bothways.demo.run(output, show=silent)
    assert output.is_file() or (output / "thesis.txt").read_text() == "years of work"


def test_the_current_folder_is_no_place_for_the_demo(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidInput, match="would replace the folder"):
        check_replaceable(Path(), overwrite=True)


def test_an_earlier_demo_stays_if_the_new_one_fails(tmp_path, monkeypatch):
    def fail(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr(TextClassifier, "fit", fail)
    earlier = demo_folder(tmp_path / "demo")
    with pytest.raises(KeyboardInterrupt):
        produce(earlier, DemoSettings(rows=2), silent)
    assert (earlier / "report.html").read_text() == "an earlier report"
    assert [path.name for path in tmp_path.iterdir()] == ["demo"]


@pytest.mark.parametrize(("module", "package"), bothways.demo.PACKAGES)
def test_a_missing_package_is_named_with_the_extra_that_has_it(tmp_path, monkeypatch, module, package):
    monkeypatch.setattr(bothways.demo, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(MissingDependency, match=rf"'{package}'.*bothways\[demo\]"):
        bothways.demo.run(tmp_path / "demo", show=silent)
    assert not (tmp_path / "demo").exists()


# --- the numbers and sentences ---


def classified(labels, probabilities):
    ranked = (dict(sorted(zip(labels, row, strict=True), key=lambda pair: -pair[1])) for row in probabilities)
    return [Classification(next(iter(each)), max(each.values()), each, TokensRead(1, 0)) for each in ranked]


def test_mistakes_are_those_with_the_wrong_label_and_the_most_confident_come_first():
    predictions = classified(["left", "right"], [[0.6, 0.4], [0.9, 0.1], [0.3, 0.7], [0.8, 0.2]])
    found = mistakes(["a", "b", "c", "d"], ["right", "right", "right", "left"], predictions)
    assert [(text, truth, each.label) for text, truth, each in found] == [
        ("b", "right", "left"),
        ("a", "right", "left"),
    ]
    assert (found[0][2].probability, found[0][2].probabilities["right"]) == (0.9, 0.1)


def test_the_change_by_calibration_is_the_difference_of_the_likelihoods():
    labels = ["left", "right"]
    before, after = classified(labels, [[0.5, 0.5], [0.5, 0.5]]), classified(labels, [[0.8, 0.2], [0.6, 0.4]])
    change = nll_change(before, after, labels, resamples=200)
    assert change.value == pytest.approx((np.log(0.5 / 0.8) + np.log(0.5 / 0.4)) / 2)
    assert change.low == pytest.approx(np.log(0.5 / 0.8))
    assert change.high == pytest.approx(np.log(0.5 / 0.4))


def calibrated(temperature, *change):
    figures = SimpleNamespace(n=9, ece=Estimate(0.1, 0.0, 0.2))
    (changed,) = change or (Estimate(-0.1, -0.2, -0.05),)
    tested = SimpleNamespace(temperature=Temperature(*temperature), before=figures, after=figures, nll_change=changed)
    return words("calibration", tested, 84)


def mistaken(shown, *probabilities):
    wrong = [("text", "b", SimpleNamespace(label="a", probability=each)) for each in probabilities]
    return words("mistakes", SimpleNamespace(mistakes=wrong, after=SimpleNamespace(n=9)), shown)


def confused(*confusion):
    return story.most_confused(SimpleNamespace(labels=("a", "b"), confusion=confusion))


@pytest.mark.parametrize(
    ("tell", "figures", "said"),
    [
        (calibrated, [(0.85,)], "validation texts: 0.85, below 1, so confidence rises. The predicted"),
        (calibrated, [(1.0,)], "validation texts: 1.00, so nothing changes. The predicted"),
        (calibrated, [(1.5,)], "validation texts: 1.50, above 1, so confidence falls. The predicted"),
        (calibrated, [(1.5, 0.25)], "less for the others (times the normalised entropy to the power 0.25). The"),
        (calibrated, [(1.5,)], "calibration helped on texts that it was not fitted on"),
        (calibrated, [(1.5,), Estimate(-0.1, -0.2, 0.05)], "helped a little here, but this may be chance"),
        (calibrated, [(1.5,), Estimate(0.1, -0.05, 0.2)], "did not help on these test texts"),
        (calibrated, [(1.5,), Estimate(0.1, 0.05, 0.2)], "made the probabilities of the test texts worse"),
        (mistaken, [0], "There were none: all 9 test texts"),
        (mistaken, [1, 0.95], "The only mistake on the test texts, by calibrated probability. The model gave"),
        (mistaken, [2, 0.95, 0.5], "All 2 mistakes on the test texts"),
        (mistaken, [1, 0.95, 0.5], "The 1 most confident of 2 mistakes on the test texts"),
        (mistaken, [2, 0.8, 0.5], "or more in none of them"),
        (mistaken, [2, 0.95, 0.5], "or more in one of them"),
        (mistaken, [2, 0.95, 0.9], "or more in 2 of them"),
        (confused, [(3, 0), (0, 2)], "No test text got a wrong label."),
        (confused, [(3, 1), (2, 2)], "2 texts of b labelled a"),
        (confused, [(3, 1), (1, 2)], "One of the most frequent"),
    ],
)
def test_the_words_follow_the_figures(tell, figures, said):
    assert said in tell(*figures)


def test_the_words_on_training_name_a_higher_epoch_that_was_not_kept():
    epochs = tuple(EpochValidation(at, at, score, {"accuracy": score}, 0.03) for at, score in ((1, 0.92), (2, 0.9)))
    said = words("training", SimpleNamespace(kept_epoch=2, validations=epochs))
    assert "epoch 2 were kept; their validation accuracy is 0.900. Epoch 1 reached 0.920, but" in said
    assert "within one standard error (0.030)" in said
    assert "Epoch" not in words("training", SimpleNamespace(kept_epoch=1, validations=epochs))


def test_the_attention_example_reads_to_the_right_only_without_the_mask(minilm_folder):
    attention = attention_of(load(MINILM), SENTENCE)
    encoder_SS = attention.head(illustrative_head(attention))
    pronoun, noun = attention.tokens.index(PRONOUN), attention.tokens.index("cat")
    assert pronoun < noun
    assert encoder_SS[pronoun].argmax() == noun
    assert not np.triu(causal(encoder_SS), 1).any()
    said = " ".join(block.text for block in story.attention_blocks(attention) if isinstance(block, Paragraph))
    assert f"“it” attends mostly to “cat” ({encoder_SS[pronoun, noun]:.2f})" in said


def test_the_headlines_hold_one_that_fits_no_category_and_are_in_no_file():
    texts = {row["text"] for split in SPLITS for row in news_rows(Path(bothways.demo.__file__).parent / "data", split)}
    assert [row["category"] for row in headlines()].count(None) == 1
    assert texts.isdisjoint(row["text"] for row in headlines())
