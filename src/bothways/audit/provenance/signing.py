"""Signatures of whole folders by OpenSSF model signing, with a key of one's own and without a network."""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from bothways.audit.provenance.manifest import MANIFEST, SIGNATURE, check_manifest, digests_of
from bothways.audit.provenance.rules import Fault
from bothways.errors import InvalidInput, MissingDependency
from bothways.storage import new_file

_MAKE_KEY = "openssl ecparam -name prime256v1 -genkey -noout -out key.pem"


def sign(folder: Path, private_key: Path) -> Path:
    """Sign all files of a folder, write the signature into its ``model.sig``, and return where that is.

    Args:
        folder: The folder.
        private_key: A key on an elliptic curve, as PEM, without a password.

    Raises:
        InvalidInput: The key cannot be read, or the folder has links in it.
        MissingDependency: The extra ``signing`` is not installed.
        OutOfDisk: The disk is full.
    """
    library = _library()
    # The library takes ignored paths to be of the folder only where both are absolute.
    whole = folder.resolve()
    with tempfile.TemporaryDirectory() as made:
        try:
            hashing = library.hashing.Config().set_ignored_paths(paths=[whole / SIGNATURE])
            signer = library.signing.Config().use_elliptic_key_signer(private_key=private_key)
            signer.set_hashing_config(hashing).sign(whole, Path(made) / SIGNATURE)
        except (ValueError, TypeError, OSError) as error:
            raise InvalidInput(
                f"expected a private key on an elliptic curve and a folder without links, got {str(private_key)!r} and "
                f"{str(folder)!r}: {error}. Make a key with: {_MAKE_KEY}"
            ) from error
        content = (Path(made) / SIGNATURE).read_bytes()
    with new_file(folder / SIGNATURE, binary=True) as file:
        file.write(content)
    return folder / SIGNATURE


def check_signature(folder: Path, public_key: Path | None) -> Iterator[Fault]:
    """Yield whether a folder is signed, and, where a key is given, by its owner.

    Raises:
        InvalidInput: The key cannot be read.
        MissingDependency: A key is given, and the extra ``signing`` is not installed.
    """
    signature = folder / SIGNATURE
    signed = signature.is_file() and not signature.is_symlink()
    if public_key is None:
        title = "signed, but nobody gave a key to check it by" if signed else "not signed"
        yield Fault("signed-unchecked" if signed else "unsigned", title, SIGNATURE if signed else "")
        return
    if not signed:
        yield Fault("signature-fails", f"no signature ({SIGNATURE}), though a public key was given")
        return
    library = _library()
    try:
        verifier = library.verifying.Config().use_elliptic_key_verifier(public_key=public_key)
    except (ValueError, TypeError, OSError) as error:
        raise InvalidInput(f"expected a public key as PEM, got {str(public_key)!r}: {error}.") from error
    try:
        verifier.verify(folder.resolve(), signature.resolve())
    # Whatever the library stumbles over in a signature that somebody else wrote, the signature does not hold.
    except Exception as error:
        reason = f"{type(error).__name__}: {error}".strip()[:2000]
        title = f"the signature does not hold: {reason[:200]}"
        yield Fault("signature-fails", title, SIGNATURE, {"reason": reason})
    else:
        yield Fault("signature-holds", f"signed by the owner of {public_key}", SIGNATURE)


def verified(folder: Path, public_key: Path | None) -> Iterator[Fault]:
    """Yield what holds and what does not of a folder's manifest and signature; that there is neither is a fault too.

    Raises:
        InvalidInput: The folder is none or has links in it, or the key cannot be read.
        MissingDependency: A key is given, and the extra ``signing`` is not installed.
    """
    digests = digests_of(folder, lambda: None)
    listed = (folder / MANIFEST).is_file()
    if listed:
        yield from check_manifest(folder, digests)
    if public_key is not None or (folder / SIGNATURE).is_file():
        yield from check_signature(folder, public_key)
    elif not listed:
        yield Fault("manifest-differs", f"neither {MANIFEST} nor {SIGNATURE}: nothing to verify")


def _library() -> ModuleType:
    try:
        import model_signing
        import model_signing.hashing
        import model_signing.signing
        import model_signing.verifying
    except ImportError as error:
        raise MissingDependency.of("model-signing", extra="signing", purpose="a signature of a model") from error
    library: ModuleType = model_signing
    return library
