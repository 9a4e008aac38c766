"""Results that outlive a benchmark: one JSON file that is written after every run, each with its origin.

Long benchmarks keep what they measured, go on from there when they are started again, and can run what another commit
measured once more. A result without a commit is not used: nobody could say what was measured.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import Options, environment, say
from bothways.storage import new_file

Entry = dict[str, Any]


class Kept:
    """The results of a file, by their keys.

    Args:
        path: The file; it need not exist.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        found: dict[str, Entry] = json.loads(path.read_text()) if path.exists() else {}
        self.entries = {key: entry for key, entry in found.items() if entry.get("commit")}
        if len(found) > len(self.entries):
            say(f"{path.name}: ignoring {len(found) - len(self.entries)} results without a commit")

    def add(self, key: str, entry: Entry) -> None:
        """Add a result and write the file."""
        self.entries[key] = entry
        with new_file(self.path) as stream:
            stream.write(json.dumps(self.entries, indent=1) + "\n")


def wanted(entry: Mapping[str, Any] | None, *, ours: bool, renew: bool, now: str | None) -> bool:
    """Return whether to run something: it has no result, or it is ours, of another commit, and to be renewed."""
    return entry is None or (renew and ours and entry["commit"] != now)


def origin(options: Options) -> Entry:
    """Return where and when a result was measured."""
    about = environment(options)
    versions = {name: version for name, version in about["versions"].items() if version}
    return {**{name: about[name] for name in ("commit", "date", "cpu", "cores", "threads")}, "versions": versions}


def stated_origin(ours: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]] = ()) -> str:
    """Return a sentence with the commits and machines of results."""
    runs = [*ours, *others]
    machines = sorted({f"{run['cpu']}, {run['cores']} cores, {run['threads']} thread(s)" for run in runs})
    peers = f", peers run at {_commits(others)}" if others else ""
    return f"Ours at {_commits(ours)}{peers}; measured on {'; '.join(machines)}."


def _commits(runs: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(sorted({str(run["commit"]) for run in runs})) or "no commit"
