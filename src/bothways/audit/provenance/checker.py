"""`ModelProvenanceChecker`: the files of a model, checked without torch and without running anything in them."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import ClassVar

from bothways.audit.context import Context, Need, Undecided
from bothways.audit.finding import FAILING, Finding
from bothways.audit.provenance.contents import inspect, suffix_of
from bothways.audit.provenance.files import CHUNK, Check, File, FilePart, sha256, walk
from bothways.audit.provenance.rules import RULES, fault
from bothways.audit.provenance.settings import SHARD_LISTS, Json, check_claims, read_settings
from bothways.audit.provenance.signing import MANIFEST, check_manifest, check_signature
from bothways.audit.provenance.weights import lineage, stored_tensors

# Further findings of one rule are not listed.
_MAX_PER_RULE = 50
# SHA-256 of released weights.
KNOWN_RELEASES: Mapping[str, str] = {
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db": "sentence-transformers/all-MiniLM-L6-v2"
}


class ModelProvenanceChecker:
    """Finds code, bombs, false claims and path escapes in the files of a model, and checks its origin."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("files",)

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield the faults of the model's files, an inventory, and findings on signature and lineage."""
        counts: Counter[str] = Counter()
        key, reference = context.settings.get("public_key"), context.reference_folder
        findings = [
            _file_findings(context.folder, context.check_time),
            check_signature(context.folder, None if key is None else Path(key)),
        ]
        if reference is not None:
            findings.append(lineage(context.folder, reference, str(context.reference_name), context.check_time))
        for finding in chain.from_iterable(findings):
            counts[finding.rule] += 1
            if counts[finding.rule] <= _MAX_PER_RULE:
                yield finding
        if counts["inventory"] and not any(entry.is_file() for entry in context.folder.rglob("*")):
            raise Undecided(f"{str(context.folder)!r} has no files: give the folder of a model.")


def _file_findings(folder: Path, check: Check) -> Iterator[Finding]:
    files: list[File] = []
    faulty: set[str] = set()
    for entry in walk(folder, check):
        if not isinstance(entry, File):
            yield entry
            continue
        files.append(entry)
        try:
            with entry.path.open("rb") as stream:
                for finding in inspect(FilePart(stream, 0, entry.size), entry.name, check):
                    if finding.severity >= FAILING:
                        faulty.add(entry.name)
                    yield finding
        except OSError as error:
            faulty.add(entry.name)
            yield fault("unreadable", entry.name, f"a file that cannot be read: {error.strerror}")
    yield from _python(files)
    yield from _missing(files)
    config, tokenizer = _json(files, "config.json"), _json(files, "tokenizer.json")
    weights = (file.path for file in files if "/" not in file.name and suffix_of(file.name) == ".safetensors")
    tensors = {name: stored.tensor for name, stored in stored_tensors(weights).items()}
    yield from check_claims(config, tokenizer, tensors)
    yield from _inventory(folder, files, faulty, check)


def _python(files: Sequence[File]) -> Iterator[Finding]:
    configs = (file for file in files if file.name.endswith("config.json") and file.size <= CHUNK)
    named = " ".join(file.path.read_bytes()[:CHUNK].decode("utf-8", "replace") for file in configs)
    for file in files:
        if file.name.endswith(".py"):
            used = f"{Path(file.name).stem}." in named and "auto_map" in named
            rule, details = "remote-code" if used else "python-file", {"named in auto_map": used}
            yield fault(rule, file.name, "Python code beside a model", details=details)


def _json(files: Sequence[File], name: str) -> Json:
    for file in files:
        if file.name == name:
            try:
                with file.path.open("rb") as stream:
                    return read_settings(FilePart(stream, 0, file.size))
            except (ValueError, OSError):
                return None  # reported with the content of the file
    return None


def _missing(files: Sequence[File]) -> Iterator[Finding]:
    """Yield the shards that an index names and the folder lacks."""
    there = {file.name for file in files}
    for name in sorted(name for name in there if name.endswith(SHARD_LISTS)):
        index = _json(files, name)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if isinstance(shards, dict):
            lacking = sorted({str(shard) for shard in shards.values()} - there)
            if lacking and "/" not in name:
                yield fault("missing-file", name, repr(lacking[0][:200]))


def _inventory(folder: Path, files: Sequence[File], faulty: Collection[str], check: Check) -> Iterator[Finding]:
    """List the files, and compare them with the manifest. Faulty files may claim any size, and are not read again."""
    digests: dict[str, str | None] = {}
    for file in files:
        digest = None if file.name in faulty else sha256(file.path, check)
        digests[file.name] = digest
        if digest is not None and digest in KNOWN_RELEASES:
            yield fault("known-release", file.name, KNOWN_RELEASES[digest])
    size = sum(file.size for file in files)
    listed = {file.name: {"bytes": file.size, "sha256": digests[file.name]} for file in files}
    what = f"{len(files)} files of {size:,} bytes"
    yield fault("inventory", "", what, details={"files": listed}, statistic="bytes", value=size, n=len(files))
    if MANIFEST in digests:
        yield from check_manifest(folder, digests)
