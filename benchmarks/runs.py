"""Trained runs: kept in a file with their origin, averaged over seeds, and compared seed by seed.

Long benchmarks keep each run in one JSON file, go on from there when they are started again, and can repeat what
another commit measured. A run without a commit is not used: nobody could say what was measured.
"""

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, commit, environment, say
from benchmarks.workers import AbsentPeerError, in_a_process
from bothways.storage import new_file

Run = Mapping[str, Any]
# By the key of a run its side, what is kept with it, and the function that trains it, with arguments.
Plan = Mapping[str, tuple[str, Mapping[str, Any], tuple[Any, ...]]]
OURS = "bothways", "ours"  # the sides of both benchmarks that begin so


class Kept:
    """The runs of a file by their keys; the file need not exist."""

    def __init__(self, path: Path) -> None:
        self.path = path
        stored: dict[str, dict[str, Any]] = json.loads(path.read_text()) if path.exists() else {}
        self.entries = {key: entry for key, entry in stored.items() if entry.get("commit")}
        if len(stored) > len(self.entries):
            say(f"{path.name}: ignoring {len(stored) - len(self.entries)} results without a commit")

    def add(self, key: str, entry: dict[str, Any]) -> None:
        """Add a run and write the file."""
        self.entries[key] = entry
        with new_file(self.path) as stream:
            stream.write(json.dumps(self.entries, indent=1) + "\n")

    def fill(self, plan: Plan, options: Options, absent: dict[str, str]) -> None:
        """Make the runs of a plan that are missing, each in a process; peers not installed go to ``absent``."""
        now = commit()
        for number, (key, (side, facts, call)) in enumerate(plan.items(), start=1):
            progress = f"{number} of {len(plan)}: {key}"
            if not is_due(self.entries.get(key), ours=side.startswith(OURS), renew=options.renew, now=now):
                say(f"{progress}: kept from before")
                continue
            say(f"{progress}: training")
            try:
                found = in_a_process(*call)
            except AbsentPeerError as error:
                absent[side] = str(error)
                say(f"{progress}: left out, {error}")
                continue
            self.add(key, {**facts, **found, **origin(options)})
            say(f"{progress}: " + ", ".join(f"{name} {value:.4f}" for name, value in found["figures"].items()))


def is_due(entry: Run | None, *, ours: bool, renew: bool, now: str | None) -> bool:
    """Tell whether to run something: it has no result, or it is ours, from another commit, and to be renewed."""
    return entry is None or (renew and ours and entry["commit"] != now)


def origin(options: Options) -> dict[str, Any]:
    """Return the commit, machine, date and versions of a run."""
    about = environment(options)
    versions = {name: version for name, version in about["versions"].items() if version}
    return {**{name: about[name] for name in ("commit", "date", "cpu", "cores", "threads")}, "versions": versions}


def stated_origin(ours: Sequence[Run], others: Sequence[Run] = ()) -> str:
    """Return a sentence with the commits and machines of runs."""
    runs = [*ours, *others]
    machines = sorted({f"{run['cpu']}, {run['cores']} cores, {run['threads']} thread(s)" for run in runs})
    peers = f", peers run at {_commits(others)}" if others else ""
    return f"Ours at {_commits(ours)}{peers}; measured on {'; '.join(machines)}."


def _commits(runs: Sequence[Run]) -> str:
    return ", ".join(sorted({str(run["commit"]) for run in runs})) or "no commit"


def spread(values: Sequence[float], form: str = ".4f") -> str:
    """Return ``mean ± standard deviation``; for one value, the value."""
    if not values:
        return ""
    deviation = f" ± {statistics.stdev(values):.4f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):{form}}{deviation}"


def differences(ours: Mapping[int, float], peer: Mapping[int, float]) -> list[float]:
    """Return ours minus the peer's figure for each seed that both have."""
    return [ours[seed] - peer[seed] for seed in sorted(ours) if seed in peer]


def verdict(found: Sequence[float]) -> str:
    """Return ``"ahead"``, ``"behind"``, or ``"tie"`` for a mean within one standard deviation of 0."""
    if len(found) < 2:
        return "one seed"
    mean = statistics.mean(found)
    if abs(mean) <= statistics.stdev(found):
        return "tie"
    return "ahead" if mean > 0 else "behind"


def lead(ours: Mapping[int, float], peer: Mapping[int, float]) -> str:
    """Return the difference with its spread and its verdict; empty without a common seed."""
    found = differences(ours, peer)
    return f"{spread(found, '+.4f')}, {verdict(found)}" if found else ""
