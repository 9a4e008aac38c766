"""An index as a folder: whole or not at all, verified, refused where it is not what it should be."""

import errno
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from index_samples import ENCODER, built, random_vectors

from bothways.errors import CorruptCheckpoint, OutOfDisk, OutputExists, UnknownModel
from bothways.retrieval import SearchIndex, index_files
from bothways.retrieval.contents import IndexTextOptions, IndexVectorOptions, SearchPrompts

DATA_FILES = [
    "lexical/data.csc.index.npy",
    "lexical/indices.csc.index.npy",
    "lexical/indptr.csc.index.npy",
    "lexical/params.index.json",
    "lexical/vocab.index.json",
    "records.jsonl",
    "vectors.npy",
]


@pytest.fixture
def folder(tmp_path):
    """A saved index of three rows; its data are in data-1."""
    built(3).save(tmp_path / "index")
    return tmp_path / "index"


def header_of(folder):
    return json.loads((folder / "index.json").read_bytes())


def rewritten(folder, **changes):
    """Change header fields as a program would that knows the checksum."""
    fields = {**header_of(folder), **changes}
    fields.pop("checksum")
    (folder / "index.json").write_text(json.dumps({**fields, "checksum": index_files.header_checksum(fields)}))


def resealed(folder):
    """Give the header the checksums of the files as they are now."""
    data = folder / "data-1"
    rewritten(folder, files={name: index_files.sha256_of(data / name) for name in DATA_FILES if (data / name).exists()})


# What is written


def test_an_opened_index_is_the_one_that_was_saved(tmp_path):
    texts = ["plain", "line\nbreak \u2028 and 🚲", ""]
    fields = [{"year": year, "ü": "x", "free": None} for year in (1.5, 2, True)]
    index = SearchIndex.build(random_vectors(3), texts=texts, ids=["ü", "b", "c"], fields=fields, encoder=ENCODER)
    index.save(tmp_path / "index")
    opened = SearchIndex.open(tmp_path / "index")
    assert (opened.ids, opened.texts, opened.encoder) == (index.ids, index.texts, ENCODER)
    assert opened.field_names == ("year", "ü", "free")
    np.testing.assert_array_equal(opened.vectors_ND, index.vectors_ND)
    queries = random_vectors(4, seed=1)
    assert opened.search(queries, 3) == index.search(queries, 3)
    assert opened.search_lexical(["plain break"], 3) == index.search_lexical(["plain break"], 3)
    assert {hit.id: dict(hit.fields) for hit in opened.search(queries, 3)[0]} == dict(zip("übc", fields, strict=True))


def test_opened_vectors_are_mapped_and_not_read_into_memory(folder):
    vectors = SearchIndex.open(folder).vectors_ND
    assert isinstance(vectors, np.memmap)
    assert not vectors.flags.writeable


def test_the_files_are_those_of_format_version_6(tmp_path):
    encoder = replace(
        ENCODER,
        dimensions=2,
        reading=IndexTextOptions(16, "truncate", None),
        prompts=SearchPrompts("query: ", ""),
        vectors=IndexVectorOptions(True, None),
    )
    index = SearchIndex.build(np.array([[0.0, 2.0]]), texts=["é"], fields=[{"n": 1}], encoder=encoder)
    index.save(tmp_path / "index")
    data = tmp_path / "index" / "data-1"
    assert sorted(path.name for path in (tmp_path / "index").iterdir()) == ["data-1", "index.json"]
    assert sorted(path.relative_to(data).as_posix() for path in data.rglob("*.*")) == DATA_FILES
    assert (data / "records.jsonl").read_bytes() == '{"id": "0", "text": "é", "fields": {"n": 1}}\n'.encode()
    assert (data / "vectors.npy").read_bytes()[-8:] == np.array([0, 1], dtype="<f4").tobytes()
    header = header_of(tmp_path / "index")
    assert header.pop("encoder") == {
        "name": "some/model",
        "fingerprint": "ab" * 32,
        "pooling": "mean",
        "dimensions": 2,
        "vocabulary": None,
        "reading": {"max_length": 16, "on_overflow": "truncate", "stride": None},
        "precision": None,
        "similarity": "cosine",
        "vectors": {"unit_length": True, "leading": None},
        "prompts": {"query": "query: ", "document": ""},
        "model_prompts": None,
    }
    assert sorted(header.pop("files")) == DATA_FILES
    header.pop("checksum")
    assert header == {
        "format": "bothways search index",
        "format_version": 6,
        "metric": "cosine",
        "count": 1,
        "dimensions": 2,
        "fields": ["n"],
        "language": "english",
        "data": "data-1",
        "notes": [],
    }


def test_an_index_of_version_5_has_no_prompts_and_the_cosine(folder):
    queries, header = random_vectors(4, seed=1), header_of(folder)
    answers = SearchIndex.open(folder).search(queries, 3)
    newer = ("similarity", "vectors", "prompts", "model_prompts")
    del header["notes"]
    encoder = {name: value for name, value in header["encoder"].items() if name not in newer}
    fields = {**header, "encoder": encoder, "format_version": 5}
    fields.pop("checksum")
    (folder / "index.json").write_text(json.dumps({**fields, "checksum": index_files.header_checksum(fields)}))
    opened = SearchIndex.open(folder)
    assert opened.encoder == ENCODER
    assert (opened.encoder.prompts, opened.encoder.similarity) == (SearchPrompts("", ""), "cosine")
    assert opened.search(queries, 3) == answers
    opened.save(folder, overwrite=True)
    assert header_of(folder)["format_version"] == 6


def test_the_same_rows_give_the_same_bytes(tmp_path):
    for name in ("one", "two"):
        built(5).save(tmp_path / name)
    assert header_of(tmp_path / "one") == header_of(tmp_path / "two")  # with the checksum of every file


def test_an_update_removes_what_the_index_was_and_nothing_else_in_its_folder(folder):
    (folder / "data-2024.csv").write_text("mine")
    (folder / "records.jsonl").write_text("mine")
    (folder / "vectors.npy").write_text("mine")
    (folder / "data-7 notes").mkdir()
    (folder / "data-5").mkdir()
    (folder / "data-5" / "notes.txt").write_text("mine")
    (folder / ".index.json.swp").write_text("mine")
    (folder / "data-9").mkdir()
    (folder / "data-9" / "records.jsonl").write_text("of an update that was killed")
    opened = SearchIndex.open(folder)
    opened.delete(["0"])
    opened.save(folder, overwrite=True)
    mine = [".index.json.swp", "data-2024.csv", "data-5", "data-7 notes", "records.jsonl", "vectors.npy"]
    assert sorted(path.name for path in folder.iterdir()) == sorted([*mine, "data-10", "index.json"])


# What is refused


@pytest.mark.parametrize("name", ["../index.json", *DATA_FILES])
def test_a_flipped_bit_in_any_byte_of_a_file_is_noticed(tmp_path, name):
    built(1).save(tmp_path / "index")
    path = tmp_path / "index" / "data-1" / name
    good = path.read_bytes()
    # The line break at the end of the header means nothing.
    places = range(0, len(good) - 1, 3 if name == "../index.json" else 7)
    for place in places:
        bad = bytearray(good)
        bad[place] ^= 1 << place % 8
        path.write_bytes(bad)
        with pytest.raises(CorruptCheckpoint, match=name.removeprefix("../").replace(".", r"\.")):
            SearchIndex.open(tmp_path / "index")


@pytest.mark.parametrize("name", ["../index.json", *DATA_FILES])
def test_a_file_that_is_truncated_or_missing_is_noticed(folder, name):
    path = folder / "data-1" / name
    good = path.read_bytes()
    for kept in (0, 1, len(good) // 2, len(good) - 2):
        path.write_bytes(good[:kept])
        with pytest.raises(CorruptCheckpoint):
            SearchIndex.open(folder)
    path.unlink()
    missing = UnknownModel if name == "../index.json" else CorruptCheckpoint
    with pytest.raises(missing, match=name.removeprefix("../")):
        SearchIndex.open(folder)


def test_what_is_no_index_is_refused(tmp_path):
    with pytest.raises(UnknownModel, match="there is no search index folder"):
        SearchIndex.open(tmp_path / "absent")
    with pytest.raises(UnknownModel, match=r"has no 'index\.json'"):
        SearchIndex.open(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(UnknownModel, match="there is no search index folder"):
        SearchIndex.open(tmp_path / "file")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"format": "something else"}, "its format is not"),
        ({"format_version": 4}, "has format version 4; this release reads the versions 5 and 6"),
        ({"format_version": 7}, "has format version 7; this release reads the versions 5 and 6. Build the index again"),
        ({"count": 4}, r"vectors\.npy.*expected float32 of shape \(4, 8\), got float32 of shape \(3, 8\)"),
        ({"count": "3"}, "not those of format version 6"),
        ({"surplus": 1}, "not those of format version 6"),
        ({"metric": "euclidean"}, "its metric is not cosine or dot"),
        ({"metric": "dot"}, "metric and dimensions are not the encoder's"),
        ({"dimensions": 9}, "contradict"),
        ({"files": {}}, "SHA-256"),
        ({"fields": ["absent"]}, r"records\.jsonl.*line 1 is not a record"),
        ({"data": "../elsewhere"}, "outside of the index"),
        ({"files": {"/etc/hostname": "0"}}, "outside of the index"),
        ({"count": 0}, "damaged"),
        ({"count": -1}, "damaged"),
        ({"count": 10**18}, "damaged"),
        ({"dimensions": 10**18}, "damaged"),
        ({"fields": ["a", "a"]}, "damaged"),
    ],
)
def test_a_header_that_contradicts_the_files_is_refused(folder, changes, problem):
    rewritten(folder, **changes)
    with pytest.raises(CorruptCheckpoint, match=problem):
        SearchIndex.open(folder)


def test_a_lexical_part_of_other_rows_is_refused(folder, tmp_path):
    built(4).save(tmp_path / "four")
    shutil.rmtree(folder / "data-1" / "lexical")
    shutil.copytree(tmp_path / "four" / "data-1" / "lexical", folder / "data-1" / "lexical")
    resealed(folder)
    with pytest.raises(CorruptCheckpoint, match="expected 3 rows, got 4"):
        SearchIndex.open(folder)


@pytest.mark.parametrize("name", ["vectors.npy", "lexical/data.csc.index.npy"])
def test_a_pickled_array_is_never_loaded(folder, name):
    np.save(folder / "data-1" / name, np.array([print], dtype=object), allow_pickle=True)
    resealed(folder)
    with pytest.raises(CorruptCheckpoint, match=r"not an array file|does not read"):
        SearchIndex.open(folder)


# Replacing


def test_an_existing_index_is_replaced_only_when_asked(folder):
    with pytest.raises(OutputExists):
        built(4).save(folder)
    assert len(SearchIndex.open(folder)) == 3
    built(4).save(folder, overwrite=True)
    assert len(SearchIndex.open(folder)) == 4


def test_an_index_can_be_saved_over_the_folder_that_it_was_opened_from(folder):
    opened = SearchIndex.open(folder)
    opened.save(folder, overwrite=True)
    np.testing.assert_array_equal(SearchIndex.open(folder).vectors_ND, built(3).vectors_ND)
    np.testing.assert_array_equal(opened.vectors_ND, built(3).vectors_ND)
    assert sorted(path.name for path in folder.iterdir()) == ["data-2", "index.json"]


def test_a_folder_of_other_things_is_never_replaced(tmp_path):
    (tmp_path / "thesis.txt").write_text("years of work")
    with pytest.raises(OutputExists, match="is not a search index"):
        built(3).save(tmp_path, overwrite=True)
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_an_index_may_be_replaced_where_no_folder_can_be(folder, monkeypatch):
    monkeypatch.chdir(folder)
    with pytest.raises(OutputExists, match=r"the search index '\.' already exists"):
        built(4).save(".")
    built(4).save(".", overwrite=True)
    assert len(SearchIndex.open(folder)) == 4


def test_a_failure_while_saving_leaves_the_old_index_and_nothing_else(folder, monkeypatch):
    def fail(path, contents):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(index_files, "_write_records", fail)
    with pytest.raises(OutOfDisk):
        built(4).save(folder, overwrite=True)
    assert sorted(path.name for path in folder.iterdir()) == ["data-1", "index.json"]
    assert [path.name for path in folder.parent.iterdir()] == ["index"]
    assert len(SearchIndex.open(folder)) == 3


def test_an_index_that_is_replaced_while_it_is_opened_is_opened_as_the_new_one(folder, monkeypatch):
    read = index_files._read_contents

    def replaced_meanwhile(folder, header):
        monkeypatch.setattr(index_files, "_read_contents", read)
        built(4).save(folder, overwrite=True)
        return read(folder, header)

    monkeypatch.setattr(index_files, "_read_contents", replaced_meanwhile)
    assert len(SearchIndex.open(folder)) == 4


# Re-signed: the checksums are right, and what they were taken of is no index


def array(name, change):
    def spoil(data):
        path = data / name
        np.save(path, change(np.load(path)))

    return spoil


def values(name, **changes):
    def spoil(data):
        path = data / "lexical" / f"{name}.index.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return spoil


def line(number, text):
    def spoil(data):
        lines = (data / "records.jsonl").read_text().splitlines()
        lines[number] = text
        (data / "records.jsonl").write_text("\n".join(lines) + "\n")

    return spoil


def records(content):
    return lambda data: (data / "records.jsonl").write_bytes(content)


def with_first(number):
    def change(array):
        array.reshape(-1)[0] = number
        return array

    return change


RESIGNED = {
    "a vector that is no number": array("vectors.npy", with_first(np.nan)),
    "rows beyond the texts": array("lexical/indices.csc.index.npy", with_first(10**6)),
    "rows before the first": array("lexical/indices.csc.index.npy", with_first(-1)),
    "starts beyond the end": array("lexical/indptr.csc.index.npy", lambda starts: starts * 1000),
    "falling starts": array("lexical/indptr.csc.index.npy", lambda starts: starts[::-1].copy()),
    "scores that are no numbers": array("lexical/data.csc.index.npy", with_first(np.inf)),
    "scores of another type": array("lexical/data.csc.index.npy", lambda data: data.astype(np.float64)),
    "a matrix": array("lexical/data.csc.index.npy", lambda data: data[None]),
    "terms beyond the vectors": values("vocab", w0=10**9),
    "terms that are no numbers": values("vocab", w0="x"),
    "a billion rows": values("params", num_docs=10**9),
    "another backend": values("params", backend="numba"),
    "another method": values("params", method="bm25l"),
    "a nested record": line(0, "[" * 100_000),
    "an id that is a number": line(0, '{"id": 1, "text": "x", "fields": {}}'),
    "half a character": line(0, '{"id": "a", "text": "\\ud800", "fields": {}}'),
    "fewer records": records(b'{"id": "0", "text": "a"}\n{"id": "1", "text": "b"}\n'),
    "an id twice": line(1, '{"id": "0", "text": "b"}'),
    "no text": line(0, '{"id": "0"}'),
    "lists as records": records(b"[]\n[]\n[]\n"),
    "records in another encoding": records(b"\xff\n"),
}


@pytest.mark.parametrize("spoil", RESIGNED.values(), ids=RESIGNED)
def test_a_resigned_index_with_values_out_of_range_is_refused(folder, spoil):
    spoil(folder / "data-1")
    resealed(folder)
    with pytest.raises(CorruptCheckpoint, match="damaged"):
        SearchIndex.open(folder)


@pytest.mark.parametrize("number", ["1e400", "9" * 400, "NaN", "[1]"])
def test_a_resigned_field_that_no_filter_can_compare_is_refused(folder, number):
    rewritten(folder, fields=["n"])
    data = folder / "data-1"
    records = [json.loads(each) for each in (data / "records.jsonl").read_text().splitlines()]
    lines = [json.dumps({**each, "fields": {"n": 0}}).replace('"n": 0', f'"n": {number}') for each in records]
    (data / "records.jsonl").write_text("\n".join(lines) + "\n")
    resealed(folder)
    with pytest.raises(CorruptCheckpoint, match="line 1 is not a record"):
        SearchIndex.open(folder)
