"""Checksums and signatures of folders: what was changed, added or removed is found, offline, with one's own key."""

import subprocess
import sys
from pathlib import Path

import pytest
from hostile_samples import PLAIN

from bothways.audit import scan
from bothways.audit.provenance import sign, write_manifest
from bothways.audit.provenance.checker import verified
from bothways.cli import main
from bothways.errors import InvalidInput, MissingDependency
from tiny_models import write_checkpoint


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    folder, paths = tmp_path_factory.mktemp("keys"), []
    for name in ("ours", "theirs"):
        key = ec.generate_private_key(ec.SECP256R1())
        private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
        private.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        public.write_bytes(
            key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        )
        paths += [private, public]
    return paths


@pytest.fixture
def folder(tmp_path):
    write_checkpoint(tmp_path / "model", "bert")
    return tmp_path / "model"


def rules(folder, public_key=None):
    settings = {} if public_key is None else {"public_key": str(public_key)}
    report = scan(folder, detectors=["ModelProvenanceChecker"], settings=settings)
    assert report.verdict != "error", report.detectors
    return {finding.rule for finding in report.findings}


def add(folder):
    (folder / "added.pkl").write_bytes(PLAIN)


def remove(folder):
    (folder / "tokenizer.json").unlink()


def change(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"\x7f")


@pytest.mark.parametrize("change", [add, remove, change], ids=lambda change: change.__name__)
def test_a_manifest_and_a_signature_find_every_change(change, folder, keys):
    path = write_manifest(folder)
    sign(folder, keys[0])
    assert {"manifest-holds", "signature-holds"} <= rules(folder, keys[1])
    command = ["sha256sum", "--check", "--strict", path.name]
    assert subprocess.run(command, cwd=folder, capture_output=True).returncode == 0
    change(folder)
    assert {"manifest-differs", "signature-fails"} <= rules(folder, keys[1])


def test_a_signature_of_somebody_else_does_not_hold(folder, keys):
    private, _, _, theirs = keys
    sign(folder, private)
    assert "signature-fails" in rules(folder, theirs)
    assert "signed-unchecked" in rules(folder)


def test_a_folder_without_a_signature_is_no_fault_unless_a_key_is_given(folder, keys):
    assert "unsigned" in rules(folder)
    assert "signature-fails" in rules(folder, keys[1])


@pytest.mark.parametrize(
    ("name", "content", "rule"),
    [
        *(("model.sig", each, "signature-fails") for each in (b"", b"{}", b"\xff" * 100, b'{"mediaType": 1}')),
        ("SHA256SUMS", b"x", "manifest-differs"),
        ("SHA256SUMS", b"0" * 64 + b"  ../../etc/passwd\n", "manifest-differs"),
        ("SHA256SUMS", b"\xff\xfe", "manifest-differs"),
    ],
)
def test_a_damaged_signature_or_manifest_does_not_hold(name, content, rule, folder, keys):
    (folder / name).write_bytes(content)
    assert rule in rules(folder, keys[1])


def test_links_are_not_signed(folder, keys):
    (folder / "link").symlink_to("/etc/hostname")
    with pytest.raises(InvalidInput, match="leads out of the folder"):
        write_manifest(folder)


def test_a_key_that_is_none_is_refused(folder, keys, tmp_path):
    (tmp_path / "key.pem").write_text("no key")
    with pytest.raises(InvalidInput, match="private elliptic-curve key"):
        sign(folder, tmp_path / "key.pem")
    sign(folder, keys[0])
    with pytest.raises(InvalidInput, match="public key"):
        list(verified(folder, tmp_path / "key.pem"))


def test_without_the_extra_it_says_how_to_install_it(folder, keys, monkeypatch):
    monkeypatch.setitem(sys.modules, "model_signing", None)
    with pytest.raises(MissingDependency, match=r"bothways\[signing\]"):
        sign(folder, keys[0])


def test_a_relative_path_is_the_same_folder(folder, keys, monkeypatch):
    monkeypatch.chdir(folder.parent)
    sign(Path("model"), keys[0])
    assert "signature-holds" in rules(Path("model"), keys[1])
    assert "signature-holds" in rules(folder, keys[1])


def test_the_commands_sign_and_verify(folder, keys, capsys):
    private, public, _, _ = keys
    assert main(["verify", str(folder)]) == 1
    assert "nothing to verify" in capsys.readouterr().out
    assert main(["sign", str(folder), "--key", str(private)]) == 0
    assert main(["verify", str(folder), "--public-key", str(public)]) == 0
    out = capsys.readouterr().out
    assert "ok    model.sig: the signature matches the public key" in out
    before = (folder / "model.sig").read_bytes()
    assert main(["sign", str(folder), "--key", str(private)]) == 1
    assert "replace it with --overwrite." in capsys.readouterr().err
    assert (folder / "model.sig").read_bytes() == before
    assert main(["sign", str(folder), "--key", str(private), "--overwrite"]) == 0
    assert main(["verify", str(folder), "--public-key", str(public)]) == 0
    change(folder)
    assert main(["verify", str(folder)]) == 1
    assert "FAIL  model.safetensors: a file that was changed" in capsys.readouterr().out
