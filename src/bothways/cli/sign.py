"""``bothways sign`` and ``bothways verify``: checksums and a signature of a model's files."""

import shlex
from pathlib import Path

from bothways.cli.options import Flag
from bothways.cli.terminal import note

SIGN_EXAMPLE = """\
Examples:
  openssl ecparam -name prime256v1 -genkey -noout -out key.pem
  openssl ec -in key.pem -pubout -out public.pem
  bothways sign runs/news --key key.pem
  bothways verify runs/news --public-key public.pem

Without --key only the checksums are written. Everything works offline."""

VERIFY_EXAMPLE = """\
Example:
  bothways verify runs/news --public-key public.pem

Exit code: 0 where everything holds; 1 where a file was changed, added or
removed, a signature does not hold, or there is nothing to verify."""

_FAILED = 1


def sign(run: Path, /, *, key: Path | None = None) -> None:
    """Write the checksums of a model's files, and sign them.

    Args:
        run: Folder of the model.
        key: Private key on an elliptic curve, as PEM.
    """
    from bothways.audit.provenance import sign as sign_folder
    from bothways.audit.provenance import write_manifest

    print(f"manifest     {write_manifest(run)}")
    if key is not None:
        print(f"signature    {sign_folder(run, key)}")
        note(f"next: bothways verify {shlex.quote(str(run))} --public-key public.pem")


def verify(run: Path, /, *, public_key: Path | None = None, quiet: Flag = False) -> int:
    """Verify a model's files against their checksums and signature.

    Args:
        run: Folder of the model.
        public_key: Key of the signer, as PEM; without it the checksums alone are compared.
        quiet: Print nothing; the exit code says it.
    """
    from bothways.audit.finding import FAILING
    from bothways.audit.provenance.signing import verified

    findings = list(verified(run, public_key))
    if not quiet:
        for finding in findings:
            place = f"{finding.location}: " if finding.location else ""
            print(f"{'FAIL' if finding.severity >= FAILING else 'ok':<5} {place}{finding.title}")
    return _FAILED if any(finding.severity >= FAILING for finding in findings) else 0
