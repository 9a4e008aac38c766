"""A list of the SHA-256 of a folder's files, in the form that ``sha256sum --check`` reads."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from bothways.audit.provenance.archives import bad_path
from bothways.audit.provenance.pickles import Check
from bothways.audit.provenance.rules import Fault
from bothways.audit.provenance.streams import sha256
from bothways.audit.provenance.walking import walk
from bothways.errors import InvalidInput
from bothways.reading import MIB, read_bytes
from bothways.storage import new_file

MANIFEST = "SHA256SUMS"
SIGNATURE = "model.sig"
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([^\n]+)")


def write_manifest(folder: Path, check: Check = lambda: None) -> Path:
    """Write the checksums of all files of a folder into its ``SHA256SUMS``, and return where that is.

    Raises:
        InvalidInput: The folder is none, has no files, or has links or special files, which nobody should vouch for.
        OutOfDisk: The disk is full.
    """
    digests = digests_of(folder, check)
    path = folder / MANIFEST
    with new_file(path) as file:
        file.write("".join(f"{digest}  {name}\n" for name, digest in digests.items()))
    return path


def digests_of(folder: Path, check: Check) -> Mapping[str, str]:
    """Return the SHA-256 of every file of a folder but the manifest and the signature.

    Raises:
        InvalidInput: The folder is none, has no files, or has links or special files in it.
    """
    if not folder.is_dir():
        raise InvalidInput(f"expected the folder of a model, got {str(folder)!r}.")
    digests: dict[str, str] = {}
    for found in walk(folder, check):
        if isinstance(found, Fault):
            raise InvalidInput(f"{found.place or str(folder)!r}: {found.title}. Remove it before you sign the folder.")
        if "\n" in found.name:
            raise InvalidInput(f"expected names of files in one line, got {found.name!r}. Rename it.")
        if found.name not in (MANIFEST, SIGNATURE):
            digests[found.name] = sha256(found.path, check)
    if not digests:
        raise InvalidInput(f"expected a folder with files of a model, got {str(folder)!r}, which has none.")
    return dict(sorted(digests.items()))


def check_manifest(folder: Path, digests: Mapping[str, str | None]) -> Iterator[Fault]:
    """Yield what differs from the manifest of a folder.

    Args:
        folder: The folder, with a manifest.
        digests: SHA-256 of its files by name, None for those that were not read.
    """
    listed: dict[str, str] = {}
    for line in read_bytes(folder / MANIFEST, most=MIB * 16).decode("utf-8", "replace").splitlines():
        found = _LINE.fullmatch(line)
        if found is None or bad_path(found[2]):
            yield Fault("manifest-differs", f"a line of the manifest that is none: {line[:80]!r}", MANIFEST)
            return
        listed[found[2]] = found[1]
    faults = 0
    for name, digest in listed.items():
        if digests.get(name) != digest:
            faults += 1
            found_here = digests.get(name) or ("not read" if name in digests else "missing")
            title = "a file that is missing" if name not in digests else "a file that was changed"
            yield Fault("manifest-differs", title, name, {"listed": digest, "found": found_here}, n=len(listed))
    for name in digests:
        if name not in listed and name not in (MANIFEST, SIGNATURE):
            faults += 1
            yield Fault("manifest-differs", "a file that the manifest does not have", name, n=len(listed))
    if not faults:
        yield Fault("manifest-holds", f"all {len(listed)} files are as {MANIFEST} has them", MANIFEST, n=len(listed))
