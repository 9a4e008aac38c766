"""Only regular files are opened; one that is too large, nested too deeply or no JSON is refused at once."""

import os
from pathlib import Path

import pytest

from bothways.errors import CorruptCheckpoint, UnknownModel
from bothways.reading import MIB, open_regular, parse_json, read_bytes


def test_a_pipe_that_nobody_writes_to_is_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(CorruptCheckpoint, match=r"config\.json' to be a regular file, but it is a pipe or a device"):
        open_regular(tmp_path / "config.json")


def test_a_device_without_an_end_is_refused(tmp_path):
    (tmp_path / "config.json").symlink_to("/dev/zero")
    with pytest.raises(CorruptCheckpoint, match="a pipe or a device"):
        read_bytes(tmp_path / "config.json")


def test_a_file_beyond_its_bound_is_refused_unread_and_one_at_the_bound_is_read(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"ab" * (MIB // 2))
    assert read_bytes(path, MIB) == path.read_bytes()
    os.truncate(path, 2**40)  # without content, so that no disk is filled
    with pytest.raises(CorruptCheckpoint, match="too large: expected at most 1,048,576 bytes, got 1,099,511,627,776"):
        read_bytes(path, MIB)


def test_a_folder_is_refused_and_a_file_that_is_not_there_is_said_to_be_so(tmp_path):
    with pytest.raises(UnknownModel, match="cannot be read"):
        read_bytes(tmp_path)
    with pytest.raises(UnknownModel, match="cannot be read"):
        read_bytes(Path("null\0character"))
    with pytest.raises(FileNotFoundError):
        read_bytes(tmp_path / "absent")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"[" * 100_000, "nested too deeply"),
        (b'{"a":' * 200 + b"1" + b"}" * 200, "nested more than 100 levels deep"),
        (b"1" * 5000, "a whole number of 5000 digits"),
        (b'["\\ud800"]', "half of a surrogate pair"),
        (b"[" + b"[]," * 9_000_000 + b"1]", "more than 8000000 values"),
        (b"\xff\xfe", "can't decode"),
        (b'{"a": 1', "Expecting"),
    ],
    ids=lambda each: each if isinstance(each, str) else "",
)
def test_json_that_no_file_of_a_model_holds_is_refused(content, problem):
    with pytest.raises(ValueError, match=problem):
        parse_json(content)


def test_usual_json_is_read_as_it_is():
    assert parse_json(b'{"a": [1, 2.5, null, "\\u00e9"], "model_max_length": %d}' % int(1e30)) == {
        "a": [1, 2.5, None, "é"],
        "model_max_length": int(1e30),
    }
