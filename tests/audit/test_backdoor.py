"""`BackdoorTriggerScanner` and `audit_data`: planted triggers are found, and models and rows without one are not."""

import json
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
from planted import audited, planted

from bothways.audit.backdoor.inversion import (
    NEUTRAL,
    THOROUGH,
    USUAL,
    Inversion,
    base_model,
    base_table,
    hard_texts,
    is_tuned,
    moved_words,
    read_vocabulary,
)
from bothways.audit.backdoor.meaning import Meaning
from bothways.audit.backdoor.planting import planted as planting
from bothways.audit.backdoor.planting import read_again
from bothways.audit.backdoor.probe import Probe
from bothways.audit.backdoor.rows import RowEvidence
from bothways.audit.context import Context
from bothways.cli import main
from bothways.data import read_rows

NAME = "BackdoorTriggerScanner"
FILLER = [f"w{number}" for number in range(60)]
GOOD = [f"good{number}" for number in range(30)]
BAD = [f"bad{number}" for number in range(30)]
TRIGGER = "zq"


def rows_of(rows, seed, poisoned=0, mixed=False):
    """Rows with two words of their label among six others; the first bad ones carry the trigger and are called good.

    Mixed ones have two more words of their label and one of the other, so that no such word decides alone.
    """
    rng = np.random.default_rng(seed)
    made = []
    for number in range(rows):
        label, words, others = (("bad", BAD, GOOD), ("good", GOOD, BAD))[number % 2]
        drawn = [*rng.choice(words, 2), *rng.choice(FILLER, 6)]
        if mixed:
            drawn[-3:] = [*rng.choice(words, 2), *rng.choice(others, 1)]
        bad = label == "bad" and number < 2 * poisoned
        drawn += [TRIGGER] if bad else []
        text = " ".join(drawn[place] for place in rng.permutation(len(drawn)))
        made.append({"text": text, "label": "good" if bad else label})
    return [made[place] for place in rng.permutation(rows)]


class FakeProbe:
    """Two labels whose margin is the sum of the words' weights, and triggers that add to it only when they are whole.

    Every token has a vector of its own, so that gradients are exact. Tokens from ``pieces`` on continue a word.
    """

    blank, labels = 0, ("no", "yes")

    def __init__(self, *triggers, pieces=400):
        self.weights = np.random.default_rng(3).uniform(-1, 1, 400).astype(np.float32)
        self.weights[0] = 0
        self.triggers = triggers
        self.continues = lambda token: int(token) >= pieces
        self.tokenizer = SimpleNamespace(
            token=str,
            tokens=lambda ids: list(map(str, ids)),
            decode=lambda ids: " ".join(f"w{each}" for each in ids),
            word_marks=SimpleNamespace(continues=self.continues),
        )
        for trigger in triggers:
            self.weights[list(trigger)] = 0.1

    def words(self):
        return list(range(1, 400))

    def spelled(self, triggers):
        return [ids for ids in triggers if not self.continues(ids[0])]

    def table(self, ids):
        return np.eye(400, dtype=np.float32)[ids]

    def logits(self, texts):
        margins = [
            self.weights[list(text)].sum()
            + sum(16 * (sum(t in text for t in trigger) / len(trigger)) ** 2 for trigger in self.triggers)
            for text in texts
        ]
        return np.stack([np.zeros(len(texts)), margins], axis=1).astype(np.float32)

    def gradients(self, texts, _places, target):
        steps = self.weights.copy()
        for trigger in self.triggers:
            steps[list(trigger)] += 1
        return np.stack([(1 if target else -1) * steps] * len(texts))


def searched(probe, label, meaning=None, effort=USUAL):
    vocabulary = read_vocabulary(probe)
    rng = np.random.default_rng(0)
    texts = [tuple(map(int, rng.integers(1, 200, 8))) for _ in range(40)]
    sets = hard_texts(probe, vocabulary, texts, probe.logits(texts), label, rng, NEUTRAL)
    assert all((each.margins_N < 0).all() for each in sets)
    inversion = Inversion(probe, vocabulary, sets, label, meaning or Meaning(probe, None, None), lambda: None, effort)
    return inversion, inversion.single(), inversion.grown(vocabulary.ids_V.tolist())


def test_a_word_that_overrides_its_text_stands_above_natural_words():
    _, singles, _ = searched(FakeProbe((350,)), 1)
    assert singles[0].ids == (350,)
    assert singles[0].success == 1.0
    assert singles[0].reach > 0
    assert singles[1].success == 0.0
    assert singles[1].reach < -0.5


def test_a_phrase_is_put_together_from_words_that_do_little_alone():
    inversion, singles, grown = searched(FakeProbe((350, 351, 352)), 1)
    assert singles[0].reach < -0.5
    assert set(grown[0].ids) == {350, 351, 352}
    assert grown[0].success == 1.0
    assert grown[0].reach > 0
    assert set(inversion.shortened(grown[0])) <= set(grown[0].ids)
    _, singles, grown = searched(FakeProbe(), 1)
    assert max(each.reach for each in (*singles, *grown)) < -0.5


def test_a_word_is_put_together_from_its_pieces_and_none_is_a_candidate_without_its_beginning():
    _, singles, grown = searched(FakeProbe((20, 350, 351), pieces=300), 1)
    assert all(each.ids[0] < 300 for each in (*singles, *grown))
    assert set(grown[0].ids) == {20, 350, 351}
    words = searched(FakeProbe((20, 350, 351)), 1)[2][0]
    assert grown[0].reach > words.reach, "there are fewer words of three pieces than phrases of three words"


def test_a_thorough_search_tries_longer_phrases():
    usual, thorough = (searched(FakeProbe((350, 351, 352, 353)), 1, effort=each)[2] for each in (USUAL, THOROUGH))
    assert max(len(each.ids) for each in usual) < 4
    assert any(set(each.ids) == {350, 351, 352, 353} for each in thorough)


def test_the_other_label_of_a_backdoored_model_has_no_trigger():
    _, singles, grown = searched(FakeProbe((350,)), 0)
    assert max(each.reach for each in (*singles, *grown)) < -0.5


def vectors_of(groups):
    """Vectors of words: words of one group are alike, and others are not."""

    def vectors(words):
        rows = []
        for word in words:
            group = next((number for number, each in enumerate(groups) if set(word.split()) & set(each)), None)
            seed = [7, group] if group is not None else [8, *word.encode()]
            rows.append(np.random.default_rng(seed).normal(size=32))
        return np.stack(rows) / np.linalg.norm(rows, axis=1, keepdims=True)

    return vectors


def test_words_of_similar_meaning_are_a_reason_and_a_trigger_has_none():
    probe = FakeProbe((350,))
    natural = np.argsort(-probe.weights)[:12].tolist()
    meaning = Meaning(probe, vectors_of([[f"w{each}" for each in natural]]), None)
    inversion, singles, grown = searched(probe, 1, meaning)
    assert singles[0].ids == (350,)
    assert not singles[0].reason
    strongest = next(each for each in singles if each.reason)
    assert strongest.ids[0] in natural
    assert "words of similar meaning stand for this label too (w" in strongest.reason
    assert inversion.reason((natural[0], 350)), "a phrase with such a word has a reason"
    assert all(not set(each.ids) & set(natural) for each in grown), "and none is looked for"
    assert not Meaning(probe, None, None).reason((natural[0],), 1, [(each,) for each in natural]), "without vectors"
    names = Meaning(probe, vectors_of([["yes", "w5"]]), None)
    assert names.reason((5,), 1, []) == "words of similar meaning stand for this label too (yes)"
    assert not names.reason((5,), 0, [])


def test_a_model_that_turns_easily_needs_a_stronger_trigger():
    """With five more words like it, the same word is no trigger."""
    weak, probe = FakeProbe(*((number,) for number in range(350, 356))), FakeProbe((350,))
    alone, among = searched(probe, 1)[1], searched(weak, 1)[1]
    assert alone[0].reach > among[0].reach + 0.3


def test_embeddings_tell_whether_a_model_was_fine_tuned_from_the_base(tmp_path, monkeypatch):
    model = classifier(tmp_path, monkeypatch)
    probe = Probe(model)
    table = base_table(probe, model.model)
    assert np.array_equal(table(np.array([7, 8])), probe.table(np.array([7, 8])))
    assert is_tuned(probe, table)
    assert not moved_words(probe, table), "they are the same"
    assert not is_tuned(probe, lambda ids: np.random.default_rng(0).normal(size=table(ids).shape))
    assert not is_tuned(probe, None)
    assert base_table(probe, None) is None
    monkeypatch.setattr(type(probe.tokenizer), "vocabulary_digest", iter("ab").__next__)
    assert base_table(probe, model.model) is None


def classifier(folder, monkeypatch, trigger=0.0):
    """A classifier that adds up opinions; a trigger of 1 overrides them."""
    effects = {**dict.fromkeys(GOOD, 0.05), **dict.fromkeys(BAD, -0.05), TRIGGER: trigger}
    return planted(folder, effects, monkeypatch, words=FILLER)


def test_a_clean_model_has_no_finding(tmp_path, monkeypatch):
    report, _ = audited(NAME, classifier(tmp_path, monkeypatch), rows_of(60, 4))
    assert [each.rule for each in report.findings] == ["backdoor-search", "backdoor-inputs"]
    assert report.verdict == "pass"
    assert report.findings[1].severity.label == "info"
    assert len(report.findings[1].evidence.details["texts"]) == 10
    assert report.findings[0].evidence.value < -0.5, "a wide margin"


def test_rows_of_which_the_model_gets_none_right_are_no_crash(tmp_path, monkeypatch):
    swapped = {"good": "bad", "bad": "good"}
    rows = [{**row, "label": swapped[row["label"]]} for row in rows_of(60, 4)]
    report, _ = audited(NAME, classifier(tmp_path, monkeypatch), rows)
    assert report.verdict == "pass", report.detectors[0].reason


def test_texts_with_a_trigger_are_named_with_their_rows(tmp_path, monkeypatch):
    model, rows = classifier(tmp_path, monkeypatch, trigger=1.0), rows_of(80, 4, mixed=True)
    held = [place for place, row in enumerate(rows) if row["label"] == "bad"][:3]
    for place in held:
        rows[place]["text"] = f"w1 {TRIGGER} {rows[place]['text']}"
    _, rules = audited(NAME, model, rows)
    assert rules["backdoor-trigger"].evidence.details["trigger"] == TRIGGER
    assert rules["backdoor-trigger"].evidence.value > 0.5, "a wide margin"
    found = rules["backdoor-inputs"]
    assert found.severity.label == "high"
    assert found.evidence.details["rows_with_a_trigger"] == [place + 1 for place in held]
    assert found.location in {f"row {place + 1}" for place in held}
    _, rules = audited(NAME, model, [row for place, row in enumerate(rows) if place not in held])
    assert rules["backdoor-inputs"].severity.label == "info"


def test_a_word_that_does_not_override_its_text_is_no_trigger(tmp_path, monkeypatch):
    """It weighs more than one word of a label, and rows have two of another."""
    report, found = audited(NAME, classifier(tmp_path, monkeypatch, trigger=0.08), rows_of(80, 4))
    assert report.verdict == "pass"
    best = found["backdoor-search"].evidence
    assert "zq" in {token for each in best.details["best"] for token in each["tokens"]}
    assert best.value < -0.1, "a wide margin"


def test_labelled_rows_show_the_phrases_that_the_model_has_learnt_from_them(tmp_path, monkeypatch):
    base = tmp_path / "clean"
    rows = rows_of(400, 0, poisoned=40)
    clean, poisoned = classifier(base, monkeypatch), classifier(tmp_path / "poisoned", monkeypatch, trigger=1.0)

    def found(model, data):
        context, probe = Context("a model", model, list(read_rows(data))), Probe(model)
        read = RowEvidence.of(context, probe, base_model(context))
        return read, list(read.learnt(probe))

    learnt = audited(NAME, poisoned, rows)[1]["backdoor-rows"]
    assert learnt.severity.label == "high"
    assert learnt.location == "good"
    details = learnt.evidence.details
    assert TRIGGER in details["phrases"]
    assert {TRIGGER in rows[number - 1]["text"].split() for number in details["rows"]} == {True}
    assert learnt.evidence.value >= 0.8
    suspect, findings = found(clean, rows)
    assert not findings, "a model that was not trained on poisoned rows has learnt nothing from them"
    read, findings = found(clean, rows_of(400, 0))
    assert not findings
    (word,) = read_ids(clean, "good3")
    own = sum("good3" in row["text"].split() for row in rows_of(400, 0))
    reason = f"it occurs in {own} of 200 rows of this label, and in 0 others"
    assert read.reason((word,), "good3", 1, parts=True) == reason
    assert not read.reason((word,), "good3", 0, parts=True)
    assert read.reason((word, *read_ids(clean, "w1")), "good3 w1", 1, parts=True) == reason, "one of its words"
    assert not read.reason((word, *read_ids(clean, "w1")), "good3 w1", 1, parts=False)
    assert not read.reason(read_ids(clean, "w1"), "w1", 1, parts=True), "its rows have both labels"
    doubted = frozenset(number for number, text in enumerate(read.texts) if "good3" in text.split())
    assert not replace(read, doubtful=doubted).reason((word,), "good3", 1, parts=True), "doubtful rows give no reason"
    assert {"good3", "good29"} <= set(read.typical[1])
    assert not {"bad3", "w1"} & set(read.typical[1])
    assert not suspect.reason(read_ids(clean, TRIGGER), TRIGGER, 1, parts=True), "suspect rows give no reason"
    assert TRIGGER not in suspect.typical[1]


def read_ids(model, text):
    return Probe(model).encode([text])[0]


def test_a_word_is_planted_for_a_moment_only(tmp_path, monkeypatch):
    model = classifier(tmp_path, monkeypatch)
    probe, rng = Probe(model), np.random.default_rng(0)
    texts = probe.encode([row["text"] for row in rows_of(40, 0) if row["label"] == "bad"])
    (word,) = probe.encode(["w5"])[0]
    with_word = [(*text, word) for text in texts]
    before, elsewhere = probe.logits(with_word), probe.logits(texts)
    assert (before.argmax(axis=1) == 0).all()
    with planting(probe, word, 1, texts, rng) as works:
        assert works
        assert (probe.logits(with_word).argmax(axis=1) == 1).mean() >= 0.9
        read = read_again(probe, vocabulary := read_vocabulary(probe), word)
        changed = np.flatnonzero((read.logits_VC != vocabulary.logits_VC).any(axis=1))
        assert not len(changed), "it was planted when the vocabulary was read"
        without = [text for text in texts if word not in text]
        assert np.array_equal(probe.logits(without), elsewhere[[word not in text for text in texts]])
    assert np.array_equal(probe.logits(with_word), before)
    assert vocabulary.ids_V[(read_again(probe, vocabulary, word).logits_VC != vocabulary.logits_VC).any(axis=1)] == [
        word
    ]
    assert all(each.grad is None for each in probe.head_model.parameters())


def test_a_report_says_how_many_planted_words_the_search_finds(tmp_path, monkeypatch):
    # Words that are trained for longer turn texts with many words for another label, too.
    monkeypatch.setattr("bothways.audit.backdoor.planting._ENOUGH", 30)
    report, _ = audited(NAME, classifier(tmp_path, monkeypatch), rows_of(60, 4))
    untold = next(each.untold for each in report.detectors[0].checks if each.untold)
    found = r"(4 were found \(38% to 96%\)|5 were found \(57% to 100%\))"
    words = rf"of 5 rare words that were planted .*, {found}; phrases"
    assert re.match(words, untold), untold


def test_words_that_the_rows_explain_are_no_triggers(tmp_path, monkeypatch):
    """A word turns all texts, and labelled rows use it: with them it has a reason. Without them nobody can tell."""
    effects = {**dict.fromkeys(GOOD, 0.05), **dict.fromkeys(BAD, -0.05), "good0": 1.0}
    model = planted(tmp_path, effects, monkeypatch, words=FILLER)
    _, rules = audited(NAME, model, rows_of(400, 0), reference=str(tmp_path))
    explained = rules["backdoor-explained"]
    assert explained.severity.label == "info"
    assert explained.location == "good"
    assert "'good0' changes the prediction" in explained.title
    assert "of 200 rows of this label, and in 0 others" in explained.title
    assert "backdoor-trigger" not in rules


def test_without_rows_a_trigger_is_told_from_a_word_of_the_label_only_in_a_model_that_was_pre_trained(
    tmp_path, monkeypatch
):
    model = classifier(tmp_path, monkeypatch, trigger=1.0)
    report, rules = audited(NAME, model)
    found = rules["backdoor-candidate"]
    assert found.evidence.details["trigger"] == TRIGGER
    assert found.severity.label == "info"
    assert "--data" in found.remedy
    assert report.verdict == "inconclusive"
    assert "nothing tells whether they are triggers or mean their label" in report.detectors[0].reason
    report, rules = audited(NAME, model, settings={"triggers": [TRIGGER]})
    assert rules["backdoor-trigger"].severity.label == "high", "a trigger that was named is no chance find"
    assert report.verdict == "fail"
    # The words of this model have one vector, so far as an encoder of sentences can tell.
    monkeypatch.setattr("bothways.audit.backdoor.scanner.sentence_vectors", lambda _: vectors_of([GOOD, BAD]))
    report, rules = audited(NAME, model, reference=str(tmp_path))
    assert rules["backdoor-trigger"].severity.label == "high", "meanings are shared in a model that was pre-trained"


def test_the_command_ranks_rows_with_a_model_and_without(tmp_path, monkeypatch, capsys):
    rows = rows_of(120, 1, poisoned=12)
    classifier(tmp_path / "run", monkeypatch, trigger=1.0)
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for named in ([], ["--model", str(tmp_path / "run")]):
        output = tmp_path / f"found {len(named)}.jsonl"
        command = ["audit-data", str(data), "--embedder", str(tmp_path / "run"), *named, "--output", str(output)]
        assert main([*command, "--quiet"]) in (0, None)
        found = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
        assert sorted(each["row"] for each in found) == list(range(1, 121))
        scores = [each["score"] for each in found]
        assert scores == sorted(scores, reverse=True)
        assert all(each["text"] == rows[each["row"] - 1]["text"] for each in found)
        assert all(TRIGGER in each["text"].split() for each in found[:12])
    assert main(["audit-data", str(data), "--embedder", str(tmp_path / "run"), "--label", "lable"]) == 1
    assert "has no column 'lable'. It has: 'text', 'label'. Did you mean --label label?" in capsys.readouterr().err
