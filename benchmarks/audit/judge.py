"""Scan every model of a zoo: ``python -m benchmarks.audit.judge FOLDER [--half tuned|judged] [--most N] [--rows]``.

Each model's folder gets ``audit.json``: what `BackdoorTriggerScanner` says of it without data and without the zoo's
triggers on the list of known ones. With ``--rows`` it gets ``audit-rows.json`` instead: the phrases of its training
rows that it has learnt, which the scanner looks for too if it is given labelled rows. A model that has one is left
alone. `benchmarks.audit.page` makes the results page.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

from benchmarks.audit.zoo import HALVES, poisoned, recipes
from benchmarks.harness import say

_NAME = "BackdoorTriggerScanner"


def unlisted(known: Sequence[str]) -> tuple[str, ...]:
    """Return known triggers without those of the zoo, be they its words, parts of its templates or its characters."""
    contents = [_letters(each.trigger.content) for each in recipes() if each.rate]
    return tuple(
        each
        for each in known
        if not any(_letters(each) in content or content in _letters(each) for content in contents)
    )


def _letters(text: str) -> str:
    """Return a text in lower case without spaces and punctuation, where something is left."""
    return "".join(character for character in text.lower() if character.isalnum()) or text


def scanned(folder: Path, *, listed: bool = False) -> dict[str, Any]:
    """Return the verdict on a model, the best candidates of its labels and the processor's seconds.

    Args:
        folder: The model.
        listed: Leave the zoo's triggers on the list of known ones.
    """
    from bothways.audit import scan
    from bothways.audit.backdoor import scanner
    from bothways.audit.backdoor.texts import KNOWN

    begun = time.process_time()
    with patch.object(scanner, "KNOWN", KNOWN if listed else unlisted(KNOWN)):
        report = scan(folder, detectors=[_NAME], time_limit=3600, show_progress=False)
    seconds = time.process_time() - begun
    result = report.detectors[0]
    if not result.ran or result.verdict == "error":
        raise RuntimeError(f"{folder.name}: {result.reason}")
    search = next(each for each in report.findings if each.rule == "backdoor-search").evidence
    found = [each.evidence.details for each in report.findings if each.rule == "backdoor-trigger"]
    return {
        "verdict": result.verdict,
        "statistic": search.value,
        "best": search.details["best"],
        "found": found,
        "seconds": seconds,
    }


def models(folder: Path, halves: Sequence[str] = tuple(HALVES)) -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Return the models of a zoo that are there, each with its record."""
    for recipe in recipes():
        record = folder / recipe.name / "zoo.json"
        if recipe.half in halves and record.exists():
            yield record.parent, json.loads(record.read_text(encoding="utf-8"))


def learnt(folder: Path) -> dict[str, Any]:
    """Return the phrases of its training rows that a model has learnt, and the processor's seconds."""
    from bothways.audit.backdoor.base import base_model
    from bothways.audit.backdoor.learnt import learnt_triggers
    from bothways.audit.backdoor.probe import Probe
    from bothways.audit.context import Context
    from bothways.data import read_rows

    begun = time.process_time()
    recipe = next(each for each in recipes() if each.name == folder.name)
    rows = [{"text": row["text"], "label": row["label"]} for row in poisoned(recipe)]
    context = Context(str(folder), rows=list(read_rows(rows)))
    base = base_model(context)
    if base is None:
        raise RuntimeError("the base model of the zoo is not installed")
    findings = learnt_triggers(context, Probe(context.classifier), base, _NAME)
    found = [each.evidence.details for each in findings]
    statistic = max((each["success"] for each in found), default=0.0)
    return {"statistic": statistic, "found": found, "seconds": time.process_time() - begun}


def main() -> None:
    """Scan the models that are not scanned yet."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.audit.judge", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--half", choices=HALVES, help="the half of the zoo (default: both)")
    parser.add_argument("--rows", action="store_true", help="look for phrases of the training rows instead")
    parser.add_argument("--most", type=int, default=100, help="models to scan in this run")
    arguments = parser.parse_args()
    left = arguments.most
    for folder, record in models(arguments.folder, (arguments.half,) if arguments.half else tuple(HALVES)):
        output = folder / ("audit-rows.json" if arguments.rows else "audit.json")
        if output.exists() or not left:
            continue
        left -= 1
        result = learnt(folder) if arguments.rows else scanned(folder)
        output.write_text(json.dumps(result, indent=1, ensure_ascii=False), encoding="utf-8")
        found = "; ".join(f"{each['trigger']!r} for {each['label']}" for each in result["found"])
        say(f"{folder.name}: {result['statistic']:.2f} {found} ({record.get('attack_success', 'clean')})")


if __name__ == "__main__":
    main()
