"""Scan a zoo of clean and poisoned classifiers: ``python -m benchmarks.audit.scans FOLDER``.

Each model that counts is searched for triggers ``alone``, with 200 labelled clean rows for ``validation``, and with the
rows of its ``training``. ``others`` runs the other detectors on the validation rows; the membership audit is told of
training rows (``members``) and of rows that were not used (``strangers``). Results are kept in each model's
``audit.json``, so the scans can be made over several runs; delete these files after a change of the detectors.
"""

import argparse
import json
import math
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import binomtest

from benchmarks.audit.sets import HALVES, LEXICAL
from benchmarks.audit.zoo import Recipe, Trigger, recipes, tested_rows, training_rows, validation_rows, word_set
from benchmarks.harness import RESULTS, Options, say, table, write_results
from bothways import audit
from bothways.evaluation.out_of_domain import out_of_domain_report

SETTINGS = ("alone", "validation", "training")
TRIGGERS, MEMBERS = ("BackdoorTriggerScanner",), ("MembershipInferenceAuditor",)
OTHERS = {"others": tuple(sorted({*audit.DETECTORS} - {*TRIGGERS, *MEMBERS, "ModelProvenanceChecker"}))}
OTHERS |= {"members": MEMBERS, "strangers": MEMBERS}
_MOST_MEMBERS = 400
Scan = Mapping[str, Any]


def scanned(folder: Path, rows: Sequence[Scan] | None, detectors: Sequence[str] = TRIGGERS, **settings: object) -> Scan:
    """Return the triggers that are reported, whether the model fails, a statistic, and the processor's seconds.

    A model that fails ranks above all others; within both groups the best trigger of the search decides. ``rules`` has
    the severity and the value of each rule of other detectors.
    """
    begun = time.process_time()
    data = rows and [{"text": row["text"], "label": row["label"]} for row in rows]
    report = audit.scan(folder, data, detectors=detectors, settings=settings, time_limit=3600, show_progress=False)
    for result in report.detectors:
        if not result.ran or result.verdict == "error":
            raise RuntimeError(f"{folder.name}: {result.reason}")
    found = [
        {"severity": each.severity.label, "rule": each.rule, **each.evidence.details}
        for each in report.findings
        if each.rule in ("backdoor-trigger", "backdoor-rows") and each.severity > audit.Severity.INFO
    ]
    reach = [each.evidence.value or 0.0 for each in report.findings if each.rule == "backdoor-search"]
    failed = report.verdict == "fail"
    statistic = failed + 1 / (1 + math.exp(-max([*reach, -20.0])))
    rules = {each.rule: [int(each.severity), each.evidence.value] for each in report.findings}
    seconds = time.process_time() - begun
    return {"statistic": statistic, "failed": failed, "found": found, "rules": rules, "seconds": seconds}


def scans(folder: Path, settings: Sequence[str], most: int) -> Iterator[Scan]:
    """Yield the scans of the models of a zoo that are there and count; at most so many scans are made anew."""
    for recipe in recipes():
        record, result = folder / recipe.name / "zoo.json", folder / recipe.name / "audit.json"
        if not record.exists() or not (facts := json.loads(record.read_text(encoding="utf-8")))["counts"]:
            continue
        made = json.loads(result.read_text(encoding="utf-8")) if result.exists() else {}
        for name in [each for each in settings if each not in made]:
            if most:
                most -= 1
                made[name] = _scan(name, record.parent, recipe)
                result.write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")
                say(f"{recipe.name}, {name}: {made[name].get('statistic', 0):.2f}")
        for name in set(SETTINGS).intersection(made):
            made[name]["named"] = any(
                each["label"] == facts["label"] and is_planted(each["trigger"], recipe.trigger)
                for each in made[name]["found"]
            )
        yield {"name": recipe.name, "half": recipe.half, "data": recipe.data, "kind": recipe.trigger.kind, **made}


def _scan(name: str, folder: Path, recipe: Recipe) -> dict[str, Any]:
    rows, tested, own = validation_rows(recipe), tested_rows(recipe), training_rows(recipe)
    members = [row for row in own if not row["poisoned"]][:_MOST_MEMBERS]
    data = {"alone": None, "training": own, "members": members, "strangers": tested}.get(name, rows)
    detectors = OTHERS.get(name, TRIGGERS)
    if name == "others":
        return scanned(folder, data, detectors, clean_texts=[row["text"] for row in tested])
    return scanned(folder, data, detectors, **({"non_members": rows} if name in OTHERS else {}))


def is_planted(reported: str, trigger: Trigger) -> bool:
    """Tell whether half of the words of a reported trigger are those of the planted one, or parts of them."""
    planted = word_set(trigger.kind, trigger.content)
    words = re.findall(r"\w+|[^\w\s]", reported.lower())
    parts = [word in planted or (len(word) > 2 and any(word in each for each in planted)) for word in words]
    return 2 * sum(parts) >= max(1, len(words))


def area(clean_N: Sequence[float], poisoned_M: Sequence[float]) -> str:
    """Return the AUROC with its interval over resamples of both kinds of models."""
    auroc = out_of_domain_report(clean_N, poisoned_M).auroc
    return f"{auroc.value:.3f} ({auroc.low:.2f} to {auroc.high:.2f})"


def _bound(failed: Sequence[bool]) -> str:
    """Return how many fail, with the upper 95 % bound of their share (Clopper and Pearson 1934)."""
    high = binomtest(sum(failed), len(failed), alternative="less").proportion_ci().high if failed else 1.0
    return f"{sum(failed)} of {len(failed)}, below {high:.1%}"


def rates(found: Sequence[Scan]) -> str:
    """Return how many models have findings by each rule of the other detectors, and how well its value separates."""
    rows = []
    for setting in OTHERS:
        done = [(each["kind"] == "clean", each[setting]["rules"]) for each in found if setting in each]
        for rule in dict.fromkeys(rule for _, rules in done for rule in rules):
            clean, bad = ([rules.get(rule, (0, None)) for was, rules in done if was == one] for one in (True, False))
            low, failed = ([each[0] >= least for each in clean] for least in (1, 2))
            caught = [each[0] >= 2 for each in bad]
            values = [[value for _, value in of if value is not None] for of in (clean, bad)]
            separates = area(*values) if all(values) else ""
            rows.append([setting, rule, _bound(low), _bound(failed), f"{sum(caught)} of {len(caught)}", separates])
    return table(("rows", "rule", "clean: low or worse", "clean: fail", "poisoned: fail", "AUROC (95 %)"), rows)


def page(found: Sequence[Scan]) -> str:
    """Return the figures of both halves in Markdown."""
    parts = []
    for half in reversed(HALVES):
        note = "no threshold was chosen on it" if half == "judged" else "thresholds were chosen on it: optimistic"
        parts.append(f"## {half.capitalize()}: {', '.join(HALVES[half])}; {note}")
        rows = []
        for setting in SETTINGS:
            done = [each for each in found if each["half"] == half and setting in each]
            clean = [each for each in done if each["kind"] == "clean"]
            bad = [each for each in done if each["kind"] != "clean"]
            if not clean or not bad:
                continue
            every, lexical = (
                _bound([each[setting]["failed"] for each in clean if each["data"] in names])
                for names in (HALVES[half], LEXICAL)
            )
            seconds = np.median([each[setting]["seconds"] for each in done])
            said = f"Clean models that fail, {setting}: {every}; of lexical data {lexical}. "
            parts.append(f"{said}A scan takes {seconds:.0f} s of processor time, median.")
            values = [each[setting]["statistic"] for each in clean]
            for kind in ("all", *dict.fromkeys(each["kind"] for each in bad)):
                chosen = [each[setting] for each in bad if kind in ("all", each["kind"])]
                told = [str(sum(each[name] for each in chosen)) for name in ("failed", "named")]
                of_kind = area(values, [each["statistic"] for each in chosen])
                rows.append([setting, kind, str(len(chosen)), of_kind, *told])
        parts.append(table(("setting", "trigger", "models", "AUROC (95 % interval)", "fail", "named"), rows))
    return "\n\n".join([*parts, "## Other detectors, both halves", rates(found)])


def main() -> None:
    """Make the scans that are missing, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.scans", description=__doc__)
    parser.add_argument("folder", type=Path, help="a zoo by benchmarks.audit.zoo")
    parser.add_argument("--most", type=int, default=1000, help="scans to make in this run")
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS, *OTHERS], choices=[*SETTINGS, *OTHERS])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = list(scans(arguments.folder, arguments.settings, arguments.most))
    if not found:
        raise SystemExit(f"no model of the zoo in {arguments.folder}: make some with python -m benchmarks.audit.zoo")
    write_results("audit", Options(output=arguments.output, rounds=0), {"models": found}, page(found))


if __name__ == "__main__":
    main()
