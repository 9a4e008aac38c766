"""`scan`: a detector that did not run or failed never passes, and nothing that it stumbles over hides the others."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from sarif_schema import violations

import bothways
from bothways.audit import Evidence, Finding, Severity, scan, scanning
from bothways.audit.context import Context, NeedUnmet, Undecided
from bothways.audit.finding import DECISION, Checked
from bothways.audit.formats import as_sarif, as_text
from bothways.data import Example
from bothways.data.known_rows import KnownRows, TrainingRows
from bothways.errors import InvalidInput, UnknownModel
from bothways.report import render
from bothways.report.audit import audit_page

MODEL = Path(__file__).parents[1] / "frozen" / "models" / "classifier"


def finding(severity, title="a title"):
    return Finding("Toy", severity, title, Evidence("share", 0.5, 0.1, "chance", 7), "toy-rule", "row 3", "mend it")


class Toy:
    name, needs, rule = "Toy", (), "fails if a toy is broken"

    def __init__(self, result=()):
        self.result = result

    def analyze(self, context):
        for each in self.result:
            if isinstance(each, Exception):
                raise each
            if callable(each):
                each(context)
            else:
                yield each


@pytest.fixture
def detectors(monkeypatch):
    """Put toys in place of all detectors; each is told what it gives, in order."""

    def install(*toys):
        made = {}
        for number, toy in enumerate(toys):
            toy.name = f"Toy{number}"
            made[toy.name] = toy
        monkeypatch.setattr(scanning, "_HOMES", dict.fromkeys(made, ("", "playing")))
        monkeypatch.setattr(scanning, "DETECTORS", tuple(made))
        monkeypatch.setattr(scanning, "detector_named", lambda name: made[name])

    return install


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        ([[], []], "pass"),
        ([[finding(Severity.LOW)], []], "pass"),
        ([[finding(Severity.MEDIUM)], []], "fail"),
        ([[], [ValueError("broken")]], "error"),
        ([[finding(Severity.HIGH), ValueError("broken")], []], "error"),
        ([[finding(Severity.HIGH)], [ValueError("broken")]], "fail"),
        ([[], [Undecided("too few rows")]], "inconclusive"),
        ([[finding(Severity.HIGH), Undecided("too few rows")]], "fail"),
        ([[NeedUnmet("texts: give rows with --data.")]], "error"),
        ([[NeedUnmet("texts: give rows with --data.")], []], "pass"),
    ],
)
def test_the_verdict_is_the_worst_of_the_detectors_that_count(detectors, given, verdict):
    detectors(*map(Toy, given))
    report = scan("nowhere")
    assert report.verdict == report.to_dict()["verdict"] == verdict
    assert verdict.upper() in as_text(report)


def test_a_pass_needs_rows_that_could_show_a_fault_and_says_what_was_checked(detectors):
    enough, few = Checked("words", 90, statistic="share", smallest=0.214), Checked("typos", 3, "rows", "share")

    def checks(*given):
        return lambda context: context.run.checks.extend(given) or context.run.not_checked.append("names (no text)")

    detectors(Toy([checks(enough)]), Toy([checks(enough, few)]), Toy([checks(few), finding(Severity.HIGH)]))
    report = scan("nowhere")
    passed, blind, failed = report.detectors
    assert [each.verdict for each in report.detectors] == ["pass", "inconclusive", "fail"]
    assert passed.statements == {
        "checked": "words on 90 texts: a share of 0.21 or more is found (power 80%)",
        "not checked": "names (no text)",
        "rule": "fails if a toy is broken",
    }
    assert blind.reason == "typos on 3 rows: too few to find any share. Give more rows with --data."
    assert failed.statements["checked"] == "typos on 3 rows: too few to find any share"
    stored = report.to_dict()
    assert stored["rule"] == DECISION
    assert stored["detectors"]["Toy0"]["checked"][0].items() >= {"what": "words", "n": 90, "smallest": 0.214}.items()
    assert [each["enough"] for each in stored["detectors"]["Toy1"]["checked"]] == [True, False]
    log = as_sarif(report)
    assert not violations(log)
    said = [each["message"]["text"] for each in log["runs"][0]["invocations"][0]["toolExecutionNotifications"]]
    assert (
        f"Toy0: pass; checked: {passed.statements['checked']}; not checked: names (no text); rule: {passed.rule}"
        in said
    )
    page = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", render(audit_page(report, "bothways audit"))))
    for text in (page, " ".join(as_text(report).split())):
        assert DECISION in text
        assert all(words in text for each in report.detectors for words in each.statements.values())


def test_findings_come_by_severity_and_then_by_how_far_they_are_beyond_the_threshold(detectors):
    def measured(severity, value, threshold, title, *, fault_below=False):
        return replace(finding(severity, title), evidence=Evidence("x", value, threshold, fault_below=fault_below))

    fact, plain = (
        Evidence("seen in the file"),
        replace(finding(Severity.INFO, "a plain fact"), evidence=Evidence("n", 3.0)),
    )
    given = [
        plain,
        measured(Severity.INFO, 0.1, 0.5, "far below"),
        measured(Severity.INFO, 0.4, 0.5, "near"),
        measured(Severity.LOW, 0.3, 0.2, "half beyond"),
        measured(Severity.LOW, 0.2, 0.5, "below, which is a fault", fault_below=True),
        replace(finding(Severity.LOW, "a fact"), evidence=fact),
        measured(Severity.MEDIUM, 0.11, 0.1, "medium"),
    ]
    detectors(Toy(given))
    titles = [each.title for each in scan("nowhere").findings]
    low = ["a fact", "below, which is a fault", "half beyond"]
    assert titles == ["medium", *low, "near", "far below", "a plain fact"]


@pytest.mark.parametrize("rows", [[{"sentence": "w5 w6"}], [{"text": " "}]])
def test_data_that_cannot_be_read_do_not_pass(rows, monkeypatch):
    monkeypatch.setattr(scanning, "DETECTORS", ("ModelProvenanceChecker", "BehaviorConsistencyValidator"))
    report = scan(MODEL, rows, show_progress=False, columns={"text": "text"})
    assert report.verdict == "inconclusive"
    assert [(each.ran, each.counts) for each in report.detectors] == [(True, True), (False, True)]


def test_a_detector_that_was_named_and_cannot_run_does_not_pass(detectors):
    detectors(Toy([NeedUnmet("texts: give rows with --data.")]), Toy())
    report = scan("nowhere", detectors=["Toy0"])
    assert report.verdict == "error"
    assert scan("nowhere", detectors=["Toy0", "Toy1"]).verdict == "inconclusive"
    assert report.detectors[0].reason == "not run: needs texts: give rows with --data."


def test_findings_before_a_crash_are_kept_and_the_worst_stands_first(detectors):
    low, high = finding(Severity.LOW, "low"), finding(Severity.CRITICAL, "high")
    detectors(Toy([low, RuntimeError("broken")]), Toy([high]))
    report = scan("nowhere")
    assert report.findings == (high, low)
    assert report.worst == Severity.CRITICAL
    assert report.detectors[0].reason == "RuntimeError: broken"


def test_a_time_limit_makes_a_detector_inconclusive(detectors):
    detectors(Toy([lambda context: context.check_time() or __import__("time").sleep(0.02)] * 50))
    report = scan("nowhere", time_limit=0.01)
    assert report.verdict == "inconclusive"
    assert "time limit of 0.01 s" in report.detectors[0].reason


def test_needs_are_looked_at_before_a_detector_runs(detectors):
    toy = Toy([finding(Severity.HIGH)])
    toy.needs = ("labels",)
    detectors(toy)
    report = scan("sentence-transformers/all-MiniLM-L6-v2", [{"text": "a", "label": "b"}])
    assert not report.findings
    assert not report.detectors[0].ran
    assert "a model that was trained for a task" in report.detectors[0].reason


def test_a_model_that_cannot_be_opened_is_an_error_and_no_crash(detectors, tmp_path):
    toy = Toy()
    toy.needs = ("encoder",)
    detectors(toy)
    (tmp_path / "config.json").write_text("{")
    report = scan(tmp_path)
    assert report.verdict == "error"
    assert "CorruptCheckpoint" in report.detectors[0].reason


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"detectors": []}, "at least one of the detectors"),
        ({"time_limit": 0}, "above 0 seconds"),
        ({"detectors": ["BackdoorScaner"]}, "expected one of the detectors"),
    ],
)
def test_bad_arguments_are_refused(options, said):
    with pytest.raises(InvalidInput, match=said):
        scan("nowhere", **options)


def test_a_reference_that_is_not_there_is_refused(detectors):
    detectors(Toy())
    with pytest.raises(UnknownModel, match="nowhere"):
        scan(MODEL, reference="/nowhere/model")


def test_a_revision_is_a_commit_of_the_model_and_of_no_other(monkeypatch):
    seen = {}

    def opened(name, *, revision=None, **_):
        seen[name] = revision
        raise UnknownModel(name)

    monkeypatch.setattr("bothways.compose.open_trained", opened)
    monkeypatch.setattr("bothways.tasks.TextClassifier.from_pretrained", opened)
    monkeypatch.setattr("bothways.tasks.SentenceEmbedder.from_pretrained", opened)
    context = Context("model", reference_name="reference", open_options={"revision": "a" * 40})
    for given in ("model", "reference"):
        with pytest.raises(UnknownModel, match=given):
            getattr(context, given)
    rows = [{"text": f"w{at}", "label": str(at % 2)} for at in range(100)]
    with pytest.raises(UnknownModel, match="embedder"):
        bothways.audit.audit_data(rows, None, embedder="embedder", open_options={"revision": "a" * 40})
    assert seen == {"model": "a" * 40, "reference": None, "embedder": None}


def test_labels_that_the_model_does_not_know_are_noted():
    rows = [{"text": f"w5 w2{at}", "label": "dragon"} for at in range(10)]
    options = {"detectors": ["ClassifierConfidenceAnalyzer"], "columns": {"text": "text", "label": "label"}}
    report = scan(MODEL, rows, show_progress=False, **options)
    assert report.detectors[0].ran
    (note,) = report.notes
    assert "labels of the data were not used" in note
    assert "dragon" in note
    assert note in report.to_dict()["notes"]
    assert "note: labels of the data" in as_text(report)
    log = as_sarif(report)
    assert not violations(log)
    assert note in [each["message"]["text"] for each in log["runs"][0]["invocations"][0]["toolExecutionNotifications"]]
    unlabelled = [{"text": row["text"]} for row in rows]
    assert not scan(MODEL, unlabelled, show_progress=False, **options).notes


def test_labelled_rows_that_the_model_was_trained_on_are_noted():
    model = bothways.open_trained(MODEL, device="cpu")
    first, second = model.labels[:2]
    known = KnownRows.of([Example("w5 w20", first, 1), Example("w5 w21", first, 2)])
    trained = type(model)(model.backend, replace(model.fitted, known=TrainingRows(known)))
    rows = [{"text": f"w5 W2{at}", "label": second} for at in range(10)] + [{"text": "w5 w20", "label": first}]
    options = {"detectors": ["ClassifierConfidenceAnalyzer"], "columns": {"text": "text", "label": "label"}}
    (note,) = scan(trained, rows, show_progress=False, **options).notes
    assert note.startswith("3 of 11 labelled rows are training rows, 2 of them with another label: accuracy and cal")
    assert not scan(trained, rows[2:10], show_progress=False, **options).notes


def test_rows_without_a_label_are_left_out_on_request():
    labels = bothways.open_trained(MODEL, device="cpu").labels
    rows = [{"text": f"w5 w2{at}", "label": labels[at % 2]} for at in range(10)] + [{"text": "w5", "label": "-"}]
    options = {"detectors": ["ClassifierConfidenceAnalyzer"], "columns": {"text": "text", "label": "label"}}
    (note,) = scan(MODEL, rows, show_progress=False, **options).notes
    assert "labels of the data were not used: row 11" in note
    assert "--unlabelled drop" in note
    assert not scan(MODEL, rows, unlabelled="drop", show_progress=False, **options).notes


def test_reports_are_plain_json_and_sarif_names_every_finding(detectors):
    detectors(Toy([finding(Severity.HIGH), finding(Severity.LOW, "another")]), Toy([ValueError("broken")]))
    report = scan("a folder/with a space")
    stored = json.loads(json.dumps(report.to_dict()))
    assert set(stored) >= {"verdict", "findings", "detectors"}
    assert set(stored["findings"][0]) >= {"detector", "severity", "title", "evidence", "location", "remedy"}
    (run,) = as_sarif(report)["runs"]
    assert [each["level"] for each in run["results"]] == ["error", "note"]
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"] == "Toy1: ValueError: broken"
    assert (
        run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"]
        == "a%20folder/with%20a%20space"
    )
    assert len({each["partialFingerprints"]["bothwaysAudit/v1"] for each in run["results"]}) == 2


@pytest.mark.parametrize(
    "name", ["runs/x", "/abs/x", "//host/x", "C:\\runs\\x", "é ü%", "a:b", "", "bad \udcff bytes\n"]
)
def test_sarif_validates_against_its_schema(name, detectors):
    detectors(
        Toy([finding(severity) for severity in Severity]),
        Toy([ValueError("broken \udcff")]),
        Toy([NeedUnmet("texts: --data.")]),
    )
    log = as_sarif(scan(name))
    assert not violations(log)
    assert len(violations({**log, "version": "2", "runs": [{}]})) == 2  # the check itself sees what breaks the schema
    json.dumps(log, ensure_ascii=False).encode()
    (run,) = log["runs"]
    # Beyond the schema: GitHub sorts by the severity, and rules are found by their place.
    rules = run["tool"]["driver"]["rules"]
    assert len({rule["id"] for rule in rules}) == len(rules)
    assert all(0 <= float(rule["properties"]["security-severity"]) <= 10 for rule in rules)
    assert all(rules[result["ruleIndex"]]["id"] == result["ruleId"] for result in run["results"])
