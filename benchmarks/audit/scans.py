"""Scan a zoo of clean and poisoned classifiers, and rank poisoned rows: ``python -m benchmarks.audit.scans FOLDER``.

Each model is scanned without data, with the zoo's triggers taken off the list of known ones, and with the rows that it
was trained on (rule ``backdoor-rows``). The training rows of each trigger are ranked without a model. Results are kept
in each model's ``audit.json``, so the scans can be made over several runs. Figures of the half on which no threshold
was chosen come first; those of the other half are optimistic.
"""

import argparse
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from benchmarks.audit.zoo import HALVES, poisoned, recipes, word_set
from benchmarks.harness import RESULTS, Options, say, table, write_results

POISONED = 0.9  # attack success from which a model counts as poisoned
DETECTOR = "BackdoorTriggerScanner"
Scan = Mapping[str, Any]


def unlisted(known: Sequence[str]) -> tuple[str, ...]:
    """Return known triggers without those of the zoo, be they its words, parts of its templates or its characters."""
    contents = [_letters(each.trigger.content) for each in recipes() if each.rate]
    return tuple(
        each
        for each in known
        if not any(_letters(each) in content or content in _letters(each) for content in contents)
    )


def _letters(text: str) -> str:
    """Return a text in lower case without spaces and punctuation, unless nothing would be left."""
    return "".join(character for character in text.lower() if character.isalnum()) or text


def scanned(folder: Path, rows: Sequence[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Return the triggers that the scanner reports, its statistic and the processor's seconds."""
    from bothways.audit import scan
    from bothways.audit.backdoor import scanner

    begun = time.process_time()
    with patch.object(scanner, "KNOWN", unlisted(scanner.KNOWN)):
        report = scan(folder, rows, detectors=[DETECTOR], time_limit=3600, show_progress=False)
    if not report.detectors[0].ran or report.detectors[0].verdict == "error":
        raise RuntimeError(f"{folder.name}: {report.detectors[0].reason}")
    rule = "backdoor-trigger" if rows is None else "backdoor-rows"
    found = [each.evidence.details for each in report.findings if each.rule == rule and each.evidence]
    if rows is None:
        statistic = next(each.evidence.value for each in report.findings if each.rule == "backdoor-search")
    else:
        statistic = max((each["success"] for each in found), default=0.0)
    return {"statistic": statistic, "found": found, "seconds": time.process_time() - begun}


def ranked(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return measures of separating poisoned rows from the others without a model."""
    from sklearn.metrics import roc_auc_score

    from bothways.audit.backdoor.poisoned import audit_data

    bad_N = np.array([row["poisoned"] for row in rows])
    scores_N = np.zeros(len(rows))
    audit = audit_data([{"text": row["text"], "label": row["label"]} for row in rows], show_progress=False)
    for each in audit.rows:
        scores_N[int(str(each["row"])) - 1] = each["score"]
    flagged_N = scores_N > 0.5
    area = float(roc_auc_score(bad_N, scores_N)) if bad_N.any() else None
    counts = {"poisoned": int(bad_N.sum()), "flagged": int(flagged_N.sum()), "right": int((flagged_N & bad_N).sum())}
    return {"auroc": area, **counts}


def scans(folder: Path, most: int) -> Iterator[Scan]:
    """Scan the models of a zoo that are there, at most so many anew; of poisoned ones those whose attack succeeds."""
    for recipe in recipes():
        record, result = folder / recipe.name / "zoo.json", folder / recipe.name / "audit.json"
        if not record.exists() or not (result.exists() or most):
            continue
        if not result.exists():
            most -= 1
            rows = poisoned(recipe)
            labelled = [{"text": row["text"], "label": row["label"]} for row in rows]
            made = {"model": scanned(record.parent), "rows": scanned(record.parent, labelled), "ranked": ranked(rows)}
            result.write_text(json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8")
            say(f"{recipe.name}: {made['model']['statistic']:.2f}, {made['rows']['statistic']:.2f}, {made['ranked']}")
        facts = json.loads(record.read_text(encoding="utf-8"))
        found = json.loads(result.read_text(encoding="utf-8"))
        if recipe.rate and facts["attack_success"] < POISONED:
            continue
        label = sorted(facts["labels"])[recipe.target]
        for name in ("model", "rows"):
            found[name]["recovered"] = any(
                each["label"] == label and is_planted(each["trigger"], recipe.trigger) for each in found[name]["found"]
            )
        kind = recipe.trigger.kind if recipe.rate else "clean"
        yield {"name": recipe.name, "half": recipe.half, "kind": kind, **found}


def is_planted(found: str, trigger: Any) -> bool:  # noqa: ANN401
    """Tell whether half of the words of a reported trigger are those of the planted one."""
    planted = word_set(trigger.kind, trigger.content)
    words = re.findall(r"\w+|[^\w\s]", found.lower().replace("##", ""))
    return 2 * sum(word in planted for word in words) >= max(1, len(words))


def auroc(clean_N: Sequence[float], poisoned_M: Sequence[float]) -> float:
    """Return the share of pairs in which the poisoned model stands higher; ties count half."""
    clean, bad = np.array(clean_N)[:, None], np.array(poisoned_M)[None]
    return float(((bad > clean) + 0.5 * (bad == clean)).mean())


def page(found: Sequence[Scan]) -> str:
    """Return the figures of both halves in Markdown."""
    parts = []
    for half in reversed(HALVES):
        rows = []
        clean = [each for each in found if each["half"] == half and each["kind"] == "clean"]
        for kind in ("clean", "word", "phrase", "character", "syntax", "style"):
            chosen = [each for each in found if each["half"] == half and each["kind"] == kind]
            if not chosen:
                continue
            line = [kind, str(len(chosen))]
            for name in ("model", "rows"):
                values = [each[name]["statistic"] for each in chosen]
                told = kind != "clean" and clean
                line += [
                    f"{auroc([each[name]['statistic'] for each in clean], values):.3f}" if told else "",
                    str(sum(bool(each[name]["found"]) for each in chosen)),
                    str(sum(each[name]["recovered"] for each in chosen)) if told else "",
                ]
            areas = [each["ranked"]["auroc"] for each in chosen if each["ranked"]["auroc"] is not None]
            counts = [sum(each["ranked"][name] for each in chosen) for name in ("right", "flagged", "poisoned")]
            rows.append([*line, f"{min(areas):.3f}" if areas else "", f"{counts[0]} of {counts[1]}", str(counts[2])])
        note = "no threshold was chosen on it" if half == "judged" else "the thresholds were chosen on it: optimistic"
        header = (
            "triggers", "models", "without data: AUROC", "flagged", "recovered", "with rows: AUROC", "flagged",
            "recovered", "rows without a model: smallest AUROC", "poisoned of flagged rows", "poisoned rows",
        )  # fmt: skip
        parts.append(f"## {half.capitalize()}: {', '.join(HALVES[half])}; {note}\n\n{table(header, rows)}")
    seconds = [each["model"]["seconds"] for each in found]
    parts.append(f"A scan without data takes {np.median(seconds):.0f} s of processor time, median.")
    return "\n\n".join(parts)


def main() -> None:
    """Scan the models that are not scanned yet, and write the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.scans", description=__doc__)
    parser.add_argument("folder", type=Path, help="a zoo by benchmarks.audit.zoo")
    parser.add_argument("--most", type=int, default=100, help="models to scan in this run")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    found = list(scans(arguments.folder, arguments.most))
    if not found:
        raise SystemExit(f"no model of the zoo in {arguments.folder}; make some with python -m benchmarks.audit.zoo")
    write_results("audit", Options(output=arguments.output, rounds=0), {"models": found}, page(found))


if __name__ == "__main__":
    main()
