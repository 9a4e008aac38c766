"""Scan a zoo of clean and poisoned classifiers, and rank poisoned rows: ``python -m benchmarks.audit.scans FOLDER``.

Each model that counts is scanned ``alone``, with 200 labelled clean rows for ``validation``, and with the rows of its
``training``; these are also ranked without a model. Results are kept in each model's ``audit.json``, so the scans can
be made over several runs; delete these files after a change of the scanner.
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

from benchmarks.audit.sets import HALVES, LEXICAL
from benchmarks.audit.zoo import Recipe, Trigger, recipes, training_rows, validation_rows, word_set
from benchmarks.harness import RESULTS, Options, say, table, write_results

SETTINGS = ("alone", "validation", "training")
_RESAMPLES = 2000
Scan = Mapping[str, Any]


def scanned(folder: Path, rows: Sequence[Mapping[str, Any]] | None) -> dict[str, Any]:
    """Return the triggers that the scanner reports, whether the model fails, a statistic, and the processor's seconds.

    A model that fails ranks above all others; within both groups the best trigger of the search decides.
    """
    from bothways.audit import Severity, scan

    begun = time.process_time()
    report = scan(folder, rows, detectors=["BackdoorTriggerScanner"], time_limit=3600, show_progress=False)
    result = report.detectors[0]
    if not result.ran or result.verdict == "error":
        raise RuntimeError(f"{folder.name}: {result.reason}")
    found = [
        {"severity": each.severity.label, "rule": each.rule, **each.evidence.details}
        for each in report.findings
        if each.rule in ("backdoor-trigger", "backdoor-rows") and each.severity > Severity.INFO
    ]
    reach = [each.evidence.value or 0.0 for each in report.findings if each.rule == "backdoor-search"]
    failed = result.verdict == "fail"
    statistic = failed + 1 / (1 + math.exp(-max([*reach, -20.0])))
    return {"statistic": statistic, "failed": failed, "found": found, "seconds": time.process_time() - begun}


def ranked(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return measures of separating poisoned rows from the others without a model."""
    from bothways.audit import audit_data

    scores_N = np.zeros(len(rows))
    audit = audit_data([{"text": row["text"], "label": row["label"]} for row in rows], show_progress=False)
    for each in audit.rows:
        scores_N[int(str(each["row"])) - 1] = each["score"]
    bad_N, flagged_N = np.array([row["poisoned"] for row in rows]), scores_N > 0.5
    counts = {"poisoned": int(bad_N.sum()), "flagged": int(flagged_N.sum()), "right": int((flagged_N & bad_N).sum())}
    return {"auroc": auroc(scores_N[~bad_N], scores_N[bad_N]) if bad_N.any() else None, **counts}


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
            of_label = [each["trigger"] for each in made[name]["found"] if each["label"] == facts["label"]]
            made[name]["named"] = any(is_planted(each, recipe.trigger) for each in of_label)
        yield {"name": recipe.name, "half": recipe.half, "data": recipe.data, "kind": recipe.trigger.kind, **made}


def _scan(name: str, folder: Path, recipe: Recipe) -> dict[str, Any]:
    if name == "ranked":
        return ranked(training_rows(recipe))
    rows = {"alone": lambda _: None, "validation": validation_rows, "training": training_rows}[name](recipe)
    return scanned(folder, rows and [{"text": row["text"], "label": row["label"]} for row in rows])


def is_planted(found: str, trigger: Trigger) -> bool:
    """Tell whether half of the words of a reported trigger are those of the planted one."""
    planted = word_set(trigger.kind, trigger.content)
    words = re.findall(r"\w+|[^\w\s]", found.lower().replace("##", ""))
    parts = [word in planted or (len(word) > 2 and any(word in each for each in planted)) for word in words]
    return 2 * sum(parts) >= max(1, len(words))


def auroc(clean_N: Sequence[float], poisoned_M: Sequence[float]) -> float:
    """Return the share of pairs in which the poisoned one stands higher; ties count half."""
    clean, bad = np.array(clean_N)[:, None], np.array(poisoned_M)[None]
    return float(((bad > clean) + 0.5 * (bad == clean)).mean())


def area(clean_N: Sequence[float], poisoned_M: Sequence[float]) -> str:
    """Return the AUROC with its interval over resamples of both kinds of models."""
    draw = np.random.default_rng(1)
    drawn = [auroc(*(draw.choice(each, len(each)) for each in (clean_N, poisoned_M))) for _ in range(_RESAMPLES)]
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{auroc(clean_N, poisoned_M):.3f} ({low:.2f} to {high:.2f})"


def _bound(clean: Sequence[Scan], setting: str) -> str:
    """Return how many fail, with the upper 95 % bound of their share (Clopper and Pearson 1934)."""
    from scipy.stats import binomtest

    failed = sum(each[setting]["failed"] for each in clean)
    high = binomtest(failed, len(clean), alternative="less").proportion_ci().high if clean else 1.0
    return f"{failed} of {len(clean)}, below {high:.1%}"


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
            lexical = [each for each in clean if each["data"] in LEXICAL]
            seconds = np.median([each[setting]["seconds"] for each in done])
            parts.append(
                f"Clean models that fail, {setting}: {_bound(clean, setting)}; of lexical data "
                f"{_bound(lexical, setting)}. A scan takes {seconds:.0f} s of processor time, median."
            )
            values = [each[setting]["statistic"] for each in clean]
            for kind in ("all", *dict.fromkeys(each["kind"] for each in bad)):
                chosen = [each[setting] for each in bad if kind in ("all", each["kind"])]
                told = [str(sum(each[name] for each in chosen)) for name in ("failed", "named")]
                of_kind = area(values, [each["statistic"] for each in chosen])
                rows.append([setting, kind, str(len(chosen)), of_kind, *told])
        parts.append(table(("setting", "trigger", "models", "AUROC (95 % interval)", "fail", "named"), rows))
        ranks = [each["ranked"] for each in found if each["half"] == half and "ranked" in each]
        if areas := [each["auroc"] for each in ranks if each["auroc"] is not None]:
            sums = {name: sum(each[name] for each in ranks) for name in ("right", "flagged", "poisoned")}
            note = "{right} of {flagged} flagged rows are among the {poisoned} poisoned ones.".format_map(sums)
            found_in = f"AUROC {np.median(areas):.3f}, median of {len(areas)} poisoned sets (lowest {min(areas):.3f})"
            parts.append(f"Rows without a model: {found_in}; {note}")
    return "\n\n".join(parts)


def main() -> None:
    """Make the scans that are missing, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.scans", description=__doc__)
    parser.add_argument("folder", type=Path, help="a zoo by benchmarks.audit.zoo")
    parser.add_argument("--most", type=int, default=1000, help="scans to make in this run")
    parser.add_argument("--settings", nargs="+", default=[*SETTINGS, "ranked"], choices=[*SETTINGS, "ranked"])
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = list(scans(arguments.folder, arguments.settings, arguments.most))
    if not found:
        raise SystemExit(f"no model of the zoo in {arguments.folder}: make some with python -m benchmarks.audit.zoo")
    write_results("audit", Options(output=arguments.output, rounds=0), {"models": found}, page(found))


if __name__ == "__main__":
    main()
