"""Output appears whole or not at all."""

import errno
import os
import signal
import socket
import stat
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path

import pytest

from bothways import storage
from bothways.errors import InvalidInput, OutOfDisk, OutputExists
from bothways.storage import (
    check_file_writable,
    check_folder_free,
    check_folder_place,
    held,
    new_file,
    new_folder,
    remove_leftovers,
)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def full(*_, code=errno.ENOSPC, **__):
    raise OSError(code, os.strerror(code))


def test_a_file_is_there_only_after_the_block(tmp_path):
    with new_file(tmp_path / "deep" / "a.txt") as stream:
        stream.write("naïve\n")
        assert not (tmp_path / "deep" / "a.txt").exists()
    assert (tmp_path / "deep" / "a.txt").read_text(encoding="utf-8") == "naïve\n"
    assert names(tmp_path / "deep") == ["a.txt"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_a_block_that_fails_leaves_the_old_file_or_folder(tmp_path, error):
    (tmp_path / "a.txt").write_text("old")
    with pytest.raises(error), new_file(tmp_path / "a.txt") as stream:
        stream.write("new")
        raise error
    assert (tmp_path / "a.txt").read_text() == "old"
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    with pytest.raises(error), new_folder(tmp_path / "run", overwrite=True) as new:
        (new / "new").touch()
        raise error
    assert names(tmp_path / "run") == ["old"]
    assert names(tmp_path) == ["a.txt", "run"]


def test_bytes_are_written_as_they_are(tmp_path):
    with new_file(tmp_path / "a.bin", binary=True) as stream:
        stream.write(b"\r\n\x00")
    assert (tmp_path / "a.bin").read_bytes() == b"\r\n\x00"


def test_new_output_has_the_usual_permissions(tmp_path):
    before = os.umask(0o027)
    try:
        with new_file(tmp_path / "a"):
            pass
        with new_folder(tmp_path / "b"):
            pass
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640
    assert stat.S_IMODE((tmp_path / "b").stat().st_mode) == 0o750


def test_a_file_is_not_replaced_unless_asked(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(OutputExists, match="already exists"), new_file(tmp_path / "a", overwrite=False):
        pass
    with pytest.raises(OutputExists), new_file(tmp_path):
        pass


def test_what_is_never_replaced_is_not_offered_to_be(tmp_path):
    (tmp_path / "a").write_text("old")
    with pytest.raises(OutputExists, match=r"to be a file or not to exist, but it is a folder\. .* path\.$"):
        check_file_writable(tmp_path)
    for overwrite in (False, True):
        with pytest.raises(OutputExists, match=r"to be a folder or not to exist, but it is a file\. .* path\.$"):
            check_folder_free(tmp_path / "a", overwrite=overwrite)


def test_whether_a_file_can_be_written_is_known_before(tmp_path, monkeypatch):
    (tmp_path / "a").write_text("old")
    check_file_writable(tmp_path / "a")
    check_file_writable(tmp_path / "deep" / "deeper" / "b")
    with pytest.raises(InvalidInput, match=r"'.*a' is a file, where a folder was expected"):
        check_file_writable(tmp_path / "a" / "deep" / "b")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(InvalidInput, match="cannot be written: Permission denied"):
        check_file_writable(tmp_path / "deep" / "b")
    assert names(tmp_path) == ["a"]


def test_a_full_disk_is_said_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OutOfDisk, match="no space left"), new_file(tmp_path / "a") as stream:
        stream.write("x")
    with pytest.raises(OutOfDisk), new_folder(tmp_path / "b"):
        full()
    with pytest.raises(OutOfDisk, match="File too large"), new_file(tmp_path / "a"):
        full(code=errno.EFBIG)
    assert names(tmp_path) == []


def test_a_folder_that_may_not_be_written_to_is_said(tmp_path, monkeypatch):
    def refuse(*_, dir, **__):  # noqa: A002
        raise PermissionError(errno.EACCES, "Permission denied", str(dir / "x"))

    monkeypatch.setattr(storage.tempfile, "mkstemp", refuse)
    with pytest.raises(InvalidInput, match="cannot be written: Permission denied"), new_file(tmp_path / "a"):
        pass


def test_another_file_that_may_not_be_read_is_not_blamed_on_the_output(tmp_path):
    with pytest.raises(PermissionError), new_file(tmp_path / "out" / "a"):
        raise PermissionError(errno.EACCES, "Permission denied", "/elsewhere/data.csv")


@pytest.mark.parametrize("exchanged", [True, False])
def test_a_folder_takes_the_place_of_an_older_one_at_once(tmp_path, monkeypatch, exchanged):
    if not exchanged:
        monkeypatch.setattr(storage, "_exchange", lambda *_: False)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    with new_folder(tmp_path / "run", overwrite=True) as new:
        (new / "new").touch()
        assert names(tmp_path / "run") == ["old"]
    assert names(tmp_path / "run") == ["new"]
    assert names(tmp_path) == ["run"]


def test_an_empty_folder_counts_as_absent_and_a_full_one_does_not(tmp_path):
    (tmp_path / "empty").mkdir()
    with new_folder(tmp_path / "empty") as new:
        (new / "x").touch()
    with pytest.raises(OutputExists), new_folder(tmp_path / "empty"):
        pass
    check_folder_free(tmp_path / "empty", overwrite=True)
    with pytest.raises(OutputExists):
        check_folder_free(tmp_path / "empty", overwrite=False)
    with pytest.raises(OutputExists):
        check_folder_free(tmp_path / "empty" / "x", overwrite=True)


def test_a_folder_that_appears_while_the_new_one_is_filled_is_not_replaced(tmp_path):
    with pytest.raises(OutputExists, match="already exists"), new_folder(tmp_path / "run") as new:
        (new / "new").touch()
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "mine").touch()
    assert names(tmp_path / "run") == ["mine"]
    assert names(tmp_path) == ["run"]


def test_a_held_folder_is_refused_and_one_that_was_removed_holds_nobody_out(tmp_path, monkeypatch):
    with held(tmp_path, "busy"), pytest.raises(InvalidInput, match="busy"), held(tmp_path, "busy"):
        pass
    (tmp_path / "gone").mkdir()
    monkeypatch.setattr("fcntl.flock", lambda *_: (tmp_path / "gone").rmdir())
    with pytest.raises(InvalidInput, match="busy"), held(tmp_path / "gone", "busy"):
        pass


def test_what_a_link_points_to_is_replaced_and_the_link_stays(tmp_path):
    for name in ("big", "new"):
        (tmp_path / name).mkdir()
        (tmp_path / f"{name} link").symlink_to(tmp_path / name)
    (tmp_path / "big" / "old").touch()
    with new_folder(tmp_path / "big link", overwrite=True) as new:
        (new / "x").touch()
    assert names(tmp_path / "big") == ["x"]

    (tmp_path / "new link" / "file link").symlink_to("file")
    with new_file(tmp_path / "new link" / "file link") as stream:
        stream.write("one")
    with new_file(tmp_path / "new link" / "file link") as stream:
        stream.write("two")
    assert (tmp_path / "new" / "file").read_text() == "two"
    assert (tmp_path / "new" / "file link").is_symlink()
    assert names(tmp_path) == ["big", "big link", "new", "new link"]
    assert (tmp_path / "big link").is_symlink()


@pytest.mark.parametrize("held", ["the older", "the new"])
def test_a_folder_that_the_system_holds_in_its_place_is_said_and_left(tmp_path, monkeypatch, held):
    def busy(self, target):
        if self.name == "run" if held == "the older" else self.name.startswith(".run."):
            raise OSError(errno.EBUSY, "Device or resource busy", str(self), None, str(target))
        return usual(self, target)

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "old").touch()
    usual = Path.rename
    monkeypatch.setattr(storage, "_exchange", lambda *_: False)
    monkeypatch.setattr(Path, "rename", busy)
    said = pytest.raises(InvalidInput, match="cannot be written: Device or resource busy")
    with said, new_folder(tmp_path / "run", overwrite=True) as new:
        (new / "new").touch()
    assert names(tmp_path / "run") == ["old"]
    assert names(tmp_path) == ["run"]


def test_a_folder_is_not_put_where_none_can_be_replaced(tmp_path, monkeypatch):
    (tmp_path / "above" / "here").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "above" / "here")
    (tmp_path / "link").symlink_to(tmp_path / "above")
    for place in (".", "..", "", "new/..", tmp_path / "above", tmp_path / "link", tmp_path / "above" / "here"):
        with pytest.raises(InvalidInput, match="would replace the folder"):
            check_folder_free(place, overwrite=True)
        with pytest.raises(InvalidInput, match="would replace the folder"), new_folder(place, overwrite=True):
            pass
    with pytest.raises(InvalidInput, match="a mount point"):
        check_folder_free("/proc", overwrite=True)
    check_folder_place("new")
    check_folder_place(tmp_path / "above" / "beside")
    assert names(tmp_path / "above") == ["here"]


def test_a_device_is_written_to_and_never_replaced(terminal):
    device, received = terminal
    check_file_writable(device)
    with new_file(device) as stream:
        stream.write("x")
    with new_file(device, binary=True, overwrite=False) as raw:
        raw.write(b"y")
    assert received(2) == b"xy"
    assert Path(device).is_char_device()
    with pytest.raises(OutputExists, match="to be a folder or not to exist"):
        check_folder_free(device, overwrite=True)


def test_a_pipe_takes_what_is_written_and_a_socket_is_refused(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    with new_file(tmp_path / "pipe") as stream:
        stream.write("row")
    reader.join()
    assert read == ["row"]
    assert names(tmp_path) == ["pipe"]

    monkeypatch.chdir(tmp_path)  # the name of a socket has to be short
    with socket.socket(socket.AF_UNIX) as here:
        here.bind("socket")
        with pytest.raises(InvalidInput, match="is a disk or a socket"):
            check_file_writable("socket")


def test_a_process_killed_while_replacing_a_folder_leaves_one_of_the_two_whole(tmp_path):
    program = textwrap.dedent("""
        import pathlib, sys
        from bothways.storage import new_folder
        target = pathlib.Path(sys.argv[1])
        for number in range(100_000):
            with new_folder(target, overwrite=True) as new:
                (new / "one").write_text(str(number))
                (new / "two").write_text(str(number))
            if number == 20:
                print("ready", flush=True)
    """)
    process = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "run")], stdout=subprocess.PIPE)
    process.stdout.readline()
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    assert (tmp_path / "run" / "one").read_text() == (tmp_path / "run" / "two").read_text() != ""


# Leftovers of processes that were killed


def killed_while_writing(target, kind):
    """A process that is killed while it writes a new file or folder there."""
    program = textwrap.dedent("""
        import pathlib, sys, time
        from bothways.storage import new_file, new_folder
        with (new_folder if sys.argv[2] == "folder" else new_file)(sys.argv[1]) as new:
            if sys.argv[2] == "folder":
                (new / "half").write_text("x")
            print("ready", flush=True)
            time.sleep(60)
    """)
    process = subprocess.Popen([sys.executable, "-c", program, str(target), kind], stdout=subprocess.PIPE)
    process.stdout.readline()
    return process


def end(process):
    process.kill()
    process.wait()
    process.stdout.close()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_what_a_killed_process_left_is_removed_and_what_a_living_one_writes_stays(tmp_path, kind):
    def write():
        with (new_folder if kind == "folder" else new_file)(tmp_path / "a", overwrite=True) as new:
            if kind == "folder":
                (new / "x").touch()

    mine = [".a.12345678", ".a.example.unfinished", ".ab.12345678.unfinished", ".a.notes"]
    for name in mine:
        (tmp_path / name).touch()
    (tmp_path / ".a.1234567_.unfinished").symlink_to(tmp_path / ".a.notes")
    living = killed_while_writing(tmp_path / "a", kind)
    (temporary,) = [name for name in names(tmp_path) if name not in mine and "1234567_" not in name]
    write()
    assert temporary in names(tmp_path)
    end(living)
    write()
    assert names(tmp_path) == sorted([*mine, ".a.1234567_.unfinished", "a"])


def test_a_folder_that_was_moved_aside_by_a_killed_process_is_put_back(tmp_path):
    (tmp_path / ".run.abcd1234.replaced" / "old").mkdir(parents=True)
    (tmp_path / ".run.abcd1234.replaced" / "old" / "mine").touch()
    remove_leftovers(tmp_path, "run")
    assert names(tmp_path) == ["run"]
    assert names(tmp_path / "run") == ["mine"]
    (tmp_path / ".run.abcd1234.replaced" / "old").mkdir(parents=True)
    remove_leftovers(tmp_path, "run")
    assert names(tmp_path) == ["run"]


def test_where_there_are_no_locks_or_others_own_it_nothing_is_removed(tmp_path, monkeypatch):
    left = tmp_path / ".a.abcd1234.unfinished"
    left.touch()

    with monkeypatch.context() as patch:
        patch.setattr("fcntl.flock", partial(full, code=errno.EBADF))  # as NFS says of a folder
        remove_leftovers(tmp_path, "a")
        with new_folder(tmp_path / "b"), held(tmp_path, "busy"):
            pass
        patch.setattr("fcntl.flock", partial(full, code=errno.EIO))
        with pytest.raises(OSError, match="Input/output error"), held(tmp_path, "busy"):
            pass
    with monkeypatch.context() as patch:
        patch.setattr(os, "geteuid", lambda: left.stat().st_uid + 1)
        remove_leftovers(tmp_path, "a")
    assert names(tmp_path) == [left.name, "b"]
    remove_leftovers(tmp_path, "a")
    remove_leftovers(tmp_path / "absent", "a")
    assert names(tmp_path) == ["b"]


def test_a_temporary_that_another_takes_for_a_leftover_is_made_anew(tmp_path, monkeypatch):
    usual, taken = storage.tempfile.mkstemp, []

    def make(*given, **more):
        handle, name = usual(*given, **more)
        if not taken:
            taken.append(name)
            Path(name).unlink()
        return handle, name

    monkeypatch.setattr(storage.tempfile, "mkstemp", make)
    with new_file(tmp_path / "a") as stream:
        stream.write("x")
    assert taken
    assert (tmp_path / "a").read_text() == "x"
    assert names(tmp_path) == ["a"]


# Folders above the output


@pytest.mark.parametrize("make", [new_file, new_folder])
def test_folders_that_were_made_for_an_output_that_fails_go_again(tmp_path, make):
    (tmp_path / "there").mkdir()
    for target in ("deep/deeper/a", "there/a"):
        with pytest.raises(ValueError, match="no"), make(tmp_path / target):
            raise ValueError("no")
    assert names(tmp_path) == ["there"]
    with pytest.raises(ValueError, match="no"), make(tmp_path / "deep" / "a"):
        (tmp_path / "deep" / "mine").touch()
        raise ValueError("no")
    assert names(tmp_path / "deep") == ["mine"]


def test_an_output_within_an_output_is_said_by_the_name_of_the_outer_one(tmp_path):
    with pytest.raises(OutOfDisk) as caught, new_folder(tmp_path / "run") as new, new_file(new / "a"):
        full()
    assert f"no space left for {tmp_path / 'run'} (" in str(caught.value)
    assert names(tmp_path) == []
