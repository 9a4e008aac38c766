"""`ModelProvenanceChecker`: the files of a model, checked without torch and without running anything in them."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bothways.audit.context import Context, Need, Undecided
from bothways.audit.finding import FAILING, Finding
from bothways.audit.provenance.claims import check_claims
from bothways.audit.provenance.contents import inspect, suffix_of
from bothways.audit.provenance.known import KNOWN_RELEASES
from bothways.audit.provenance.lineage import compare
from bothways.audit.provenance.manifest import MANIFEST, check_manifest
from bothways.audit.provenance.pickles import Check
from bothways.audit.provenance.rules import DETECTOR, RULES, Fault
from bothways.audit.provenance.settings import SHARD_LISTS, read_settings
from bothways.audit.provenance.signing import check_signature
from bothways.audit.provenance.streams import CHUNK, FilePart, sha256
from bothways.audit.provenance.tensors import BadHeader, HeaderTensor, read_header
from bothways.audit.provenance.walking import File, walk

# Findings of one kind that are listed; the rest are counted.
_MOST_OF_A_KIND = 50


class ModelProvenanceChecker:
    """Finds code, bombs, lies and escapes in the files of a model, and says what is known of where it comes from."""

    name: ClassVar[str] = DETECTOR
    title: ClassVar[str] = "unsafe or altered files, settings that do not fit the weights, signature and lineage"
    needs: ClassVar[tuple[Need, ...]] = ("files",)
    gains: ClassVar[tuple[Need, ...]] = ("reference",)
    cost: ClassVar[str] = "as long as reading all files takes"

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield what the files of the model are, and what is wrong with them.

        Raises:
            Undecided: There is no file at all.
        """
        counted: dict[str, int] = {}
        key = context.settings.get("public_key")
        for fault in self._faults(context, None if key is None else Path(str(key))):
            counted[fault.rule] = counted.get(fault.rule, 0) + 1
            if counted[fault.rule] <= _MOST_OF_A_KIND:
                yield fault.finding()
        if counted.get("inventory") and not any(entry.is_file() for entry in context.folder.rglob("*")):
            raise Undecided(f"{str(context.folder)!r} has no files: give the folder of a model.")

    def _faults(self, context: Context, public_key: Path | None) -> Iterator[Fault]:
        yield from audit_files(context.folder, context.check_time)
        yield from check_signature(context.folder, public_key)
        if context.reference_folder is not None:
            yield from compare(
                context.folder, context.reference_folder, str(context.reference_name), context.check_time
            )


def audit_files(folder: Path, check: Check) -> Iterator[Fault]:
    """Yield the faults of a folder, then the list of its files and what differs from its manifest."""
    files: list[File] = []
    faulty: set[str] = set()
    for found in walk(folder, check):
        if isinstance(found, Fault):
            yield found
            continue
        files.append(found)
        for fault in _looked_into(found, check):
            if RULES[fault.rule].severity >= FAILING:
                faulty.add(found.name)
            yield fault
    yield from _python(files)
    yield from _missing(files)
    yield from _claims(files)
    yield from _inventory(folder, files, faulty, check)


def _looked_into(file: File, check: Check) -> Iterator[Fault]:
    try:
        with file.path.open("rb") as stream:
            yield from inspect(FilePart(stream, 0, file.size), file.name, check)
    except OSError as error:
        yield Fault("unreadable", f"a file that cannot be read: {error.strerror}", file.name)


def _python(files: Sequence[File]) -> Iterator[Fault]:
    named = " ".join(_read_text(file) for file in files if file.name.endswith("config.json"))
    for file in files:
        if file.name.endswith(".py"):
            used = f"{Path(file.name).stem}." in named and "auto_map" in named
            rule = "remote-code" if used else "python-file"
            yield Fault(rule, "Python code beside a model", file.name, {"named in auto_map": used})


def _read_text(file: File) -> str:
    return file.path.read_bytes()[:CHUNK].decode("utf-8", "replace") if file.size <= CHUNK else ""


def _json(files: Sequence[File], name: str) -> Any:  # noqa: ANN401 (JSON, or None)
    for file in files:
        if file.name == name:
            try:
                with file.path.open("rb") as stream:
                    return read_settings(FilePart(stream, 0, file.size))
            except (ValueError, OSError):
                return None
    return None


def _missing(files: Sequence[File]) -> Iterator[Fault]:
    """Yield shards that a list names and the folder has not."""
    there = {file.name for file in files}
    for name in sorted(name for name in there if name.endswith(SHARD_LISTS)):
        index = _json(files, name)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if isinstance(shards, dict):
            lacking = sorted({str(shard) for shard in shards.values()} - there)
            if lacking and "/" not in name:
                yield Fault("missing-file", f"a list of shards with {lacking[0][:200]!r}, which is missing", name)


def _claims(files: Sequence[File]) -> Iterator[Fault]:
    config, tokenizer = _json(files, "config.json"), _json(files, "tokenizer.json")
    if isinstance(config, dict) or isinstance(tokenizer, dict):
        settings = config if isinstance(config, dict) else {}
        vocabulary = tokenizer if isinstance(tokenizer, dict) else None
        yield from check_claims(settings, vocabulary, headers(files), "config.json")


def headers(files: Sequence[File]) -> Mapping[str, HeaderTensor]:
    """Return the tensors of the weight files of a model by name; those of broken files are left out."""
    found: dict[str, HeaderTensor] = {}
    for file in files:
        if "/" not in file.name and suffix_of(file.name) == ".safetensors":
            try:
                with file.path.open("rb") as stream:
                    found.update(read_header(FilePart(stream, 0, file.size)))
            except BadHeader:
                continue  # reported where the file was looked into
    return found


def _inventory(folder: Path, files: Sequence[File], faulty: Collection[str], check: Check) -> Iterator[Fault]:
    """List the files; those with a fault are not read again, since one may claim to be of any size."""
    listed: dict[str, dict[str, Any]] = {}
    for file in files:
        digest = None if file.name in faulty else sha256(file.path, check)
        listed[file.name] = {"bytes": file.size, "sha256": digest}
        if digest is not None and digest in KNOWN_RELEASES:
            yield Fault("known-release", f"the weights of {KNOWN_RELEASES[digest]}, as they were released", file.name)
    size = sum(file.size for file in files)
    yield Fault(
        "inventory",
        f"{len(files)} files of {size:,} bytes",
        details={"statistic": "bytes", "files": listed},
        value=size,
        n=len(files),
    )
    if MANIFEST in listed:
        yield from check_manifest(folder, {name: entry["sha256"] for name, entry in listed.items()})
