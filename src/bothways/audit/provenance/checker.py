"""`ModelProvenanceChecker`: checks the files of a model without torch, and without running anything in them.

Checksums have the format of ``sha256sum --check``; signatures are by OpenSSF model signing, verified offline.
"""

import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import ClassVar

from bothways.audit.context import Context, Need, Undecided
from bothways.audit.finding import FAILING, Checked, Finding
from bothways.audit.provenance.contents import inspect, suffix_of
from bothways.audit.provenance.files import CHUNK, Check, File, FilePart, bad_path, sha256, walk
from bothways.audit.provenance.rules import RULES, fault
from bothways.audit.provenance.settings import SHARD_LISTS, Json, check_claims, read_settings
from bothways.audit.provenance.weights import lineage, stored_tensors
from bothways.errors import InvalidInput, MissingDependency
from bothways.reading import MIB, read_bytes
from bothways.storage import check_file_free, new_file

MANIFEST = "SHA256SUMS"
SIGNATURE = "model.sig"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^\n]+)")
_MAX_MANIFEST = 16 * MIB
_MAKE_KEY = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"


def write_manifest(folder: Path, *, overwrite: bool = False) -> Path:
    """Write the checksums of all files in a folder into its ``SHA256SUMS``, and return that file's path.

    Raises:
        OutputExists: The folder has other checksums, and ``overwrite`` is false.
    """
    path, digests = folder / MANIFEST, _digests(folder)
    content = "".join(f"{digest}  {name}\n" for name, digest in digests.items())
    if not (path.is_file() and path.read_bytes() == content.encode()):
        with new_file(path, overwrite=overwrite) as file:
            file.write(content)
    return path


def _digests(folder: Path) -> Mapping[str, str]:
    """Return the SHA-256 of every file except the manifest and the signature, without a time limit."""
    if not folder.is_dir():
        raise InvalidInput(f"expected the folder of a model, got {str(folder)!r}.")
    digests: dict[str, str] = {}
    for entry in walk(folder, lambda: None):
        if not isinstance(entry, File):
            place = entry.location or str(folder)
            raise InvalidInput(f"{place!r}: {entry.title}. Remove it before you sign the folder.")
        if "\n" in entry.name:
            raise InvalidInput(f"expected file names without line breaks, got {entry.name!r}. Rename it.")
        if entry.name not in (MANIFEST, SIGNATURE):
            digests[entry.name] = sha256(entry.path, lambda: None)
    if not digests:
        raise InvalidInput(f"expected the folder of a model, but {str(folder)!r} has no files. Give another folder.")
    return dict(sorted(digests.items()))


def check_manifest(folder: Path, digests: Mapping[str, str | None]) -> Iterator[Finding]:
    """Yield the differences between a folder and its manifest; the digest of a file that was not read is None."""
    listed: dict[str, str] = {}
    for line in read_bytes(folder / MANIFEST, max_bytes=_MAX_MANIFEST).decode("utf-8", "replace").splitlines():
        match = _LINE.fullmatch(line)
        if match is None or bad_path(match[2]):
            yield fault("manifest-differs", MANIFEST, f"an invalid line of the manifest: {line[:80]!r}")
            return
        listed[match[2]] = match[1]
    faults = 0
    for name, digest in listed.items():
        if digests.get(name) != digest:
            faults += 1
            here = digests.get(name) or ("not read" if name in digests else "missing")
            what = "a file that is missing" if name not in digests else "a file that was changed"
            yield fault("manifest-differs", name, what, details={"listed": digest, "found": here}, n=len(listed))
    for name in digests:
        if name not in listed and name not in (MANIFEST, SIGNATURE):
            faults += 1
            yield fault("manifest-differs", name, "a file that the manifest does not list", n=len(listed))
    if not faults:
        yield fault("manifest-holds", MANIFEST, f"all {len(listed)} files match {MANIFEST}", n=len(listed))


def sign(folder: Path, private_key: Path, *, overwrite: bool = False) -> Path:
    """Sign all files in a folder with an elliptic-curve key (PEM, no password); return the path of ``model.sig``.

    Raises:
        OutputExists: The folder is signed, and ``overwrite`` is false.
        InvalidInput: The key or the folder cannot be used.
    """
    check_file_free(folder / SIGNATURE, overwrite=overwrite)
    library = _library()
    # The library ignores paths of the folder only if both are absolute.
    whole = folder.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        try:
            hashing = library.hashing.Config().set_ignored_paths(paths=[whole / SIGNATURE])
            signer = library.signing.Config().use_elliptic_key_signer(private_key=private_key)
            signer.set_hashing_config(hashing).sign(whole, Path(temporary) / SIGNATURE)
        except (ValueError, TypeError, OSError) as error:
            raise InvalidInput(
                f"cannot sign {str(folder)!r} with the key {str(private_key)!r}: {error}. The key must be a "
                f"private elliptic-curve key, and the folder must hold no links. Make a key with: {_MAKE_KEY}"
            ) from error
        content = (Path(temporary) / SIGNATURE).read_bytes()
    with new_file(folder / SIGNATURE, binary=True) as file:
        file.write(content)
    return folder / SIGNATURE


def check_signature(folder: Path, public_key: Path | None) -> Iterator[Finding]:
    """Report whether a folder is signed and, given a public key, verify the signature."""
    signature = folder / SIGNATURE
    signed = signature.is_file() and not signature.is_symlink()
    if public_key is None:
        yield fault("signed-unchecked", SIGNATURE) if signed else fault("unsigned", "")
        return
    if not signed:
        yield fault("signature-fails", "", f"no signature ({SIGNATURE}), though a public key was given")
        return
    library = _library()
    try:
        verifier = library.verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    except (ValueError, TypeError, OSError) as error:
        raise InvalidInput(f"expected a public key as PEM, got {str(public_key)!r}: {error}.") from error
    try:
        verifier.verify(folder.resolve(), signature.resolve())
    # The signature is untrusted: any exception of the library means that it is invalid.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip()[:2000]
        what = f"the signature is invalid: {reason[:200]}"
        yield fault("signature-fails", SIGNATURE, what, details={"reason": reason})
    else:
        yield fault("signature-holds", SIGNATURE, str(public_key))


def verified(folder: Path, public_key: Path | None) -> Iterator[Finding]:
    """Yield findings on a folder's manifest and signature; a folder without both is a fault too."""
    digests = _digests(folder)
    listed = (folder / MANIFEST).is_file()
    if listed:
        yield from check_manifest(folder, digests)
    if public_key is not None or (folder / SIGNATURE).is_file():
        yield from check_signature(folder, public_key)
    elif not listed:
        yield fault("manifest-differs", "", f"neither {MANIFEST} nor {SIGNATURE}: nothing to verify")


def _library() -> ModuleType:
    try:
        import model_signing
    except ImportError as error:
        raise MissingDependency.of("model-signing", extra="signing", purpose="a signature of a model") from error
    library: ModuleType = model_signing
    return library


# Maximum number of findings to list per rule.
_MAX_PER_RULE = 50
# SHA-256 of released weights.
KNOWN_RELEASES: Mapping[str, str] = {
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db": "sentence-transformers/all-MiniLM-L6-v2"
}


class ModelProvenanceChecker:
    """Finds code, bombs, false claims and path escapes in the files of a model, and checks its origin."""

    name: ClassVar[str] = RULES.detector
    needs: ClassVar[tuple[Need, ...]] = ("files",)
    rule: ClassVar[str] = (
        "fails if a file has a fault of severity medium or higher; each kind of fault has its severity"
    )

    def analyze(self, context: Context) -> Iterator[Finding]:
        """Yield the faults of the model's files, an inventory, and findings on signature and lineage."""
        counts: Counter[str] = Counter()
        key, reference = context.settings.get("public_key"), context.reference_folder
        findings = [
            _file_findings(context.folder, context.check_time),
            check_signature(context.folder, None if key is None else Path(key)),
        ]
        for missing, what in ((key, "the signature (no --public-key)"), (reference, "the lineage (no --reference)")):
            context.run.not_checked += [] if missing is not None else [what]
        if reference is not None:
            findings.append(lineage(context.folder, reference, str(context.reference_name), context.check_time))
        for finding in chain.from_iterable(findings):
            counts[finding.rule] += 1
            if finding.rule == "inventory":
                untold = "poisoned weights and faults of unknown formats do not show in files"
                context.run.checks.append(
                    Checked("content, settings and claims", finding.evidence.n, "files", untold=untold)
                )
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
    """Yield a fault for each shard index that names files which the folder lacks."""
    there = {file.name for file in files}
    for name in sorted(name for name in there if name.endswith(SHARD_LISTS)):
        index = _json(files, name)
        shards = index.get("weight_map") if isinstance(index, dict) else None
        if isinstance(shards, dict):
            lacking = sorted({str(shard) for shard in shards.values()} - there)
            if lacking and "/" not in name:
                yield fault("missing-file", name, repr(lacking[0][:200]))


def _inventory(folder: Path, files: Sequence[File], faulty: Collection[str], check: Check) -> Iterator[Finding]:
    """List the files, and compare them with the manifest. Faulty files may claim any size, so they are not hashed."""
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
