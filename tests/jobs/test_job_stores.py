"""Jobs whose files lie in an object store: the interface of S3, as a server of moto speaks it."""

import contextlib
import functools
import http.server
import json
import socket
import threading
import time
import urllib.request

import pytest
from job_cases import lines_in, texts

from bothways import jobs
from bothways.errors import InvalidInput, OutputExists
from bothways.jobs import files, locking
from bothways.jobs.locking import BEAT, held_by_one
from forking import free_port

moto = pytest.importorskip("moto.server")
s3fs = pytest.importorskip("s3fs")

SECRET = "a-very-secret-word"


@pytest.fixture(scope="module")
def server():
    """The address of a server."""
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield host, port
    running.stop()


@pytest.fixture
def reached(server, monkeypatch):
    """Lets s3:// reach this port of this machine, with credentials."""

    def at(port=server[1], key="known", **settings):
        for name, value in {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": key,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_EC2_METADATA_DISABLED": "true",
            **settings,
        }.items():
            monkeypatch.setenv(name, value) if value is not None else monkeypatch.delenv(name, raising=False)
        s3fs.S3FileSystem.clear_instance_cache()

    at()
    yield at
    s3fs.S3FileSystem.clear_instance_cache()


@pytest.fixture
def bucket(server, reached, request):
    """The URL of a bucket with two files of 40 rows."""
    name = f"bucket-{abs(hash(request.node.name))}"
    s3fs.S3FileSystem().mkdir(name)
    for number, file in enumerate(("in/a.jsonl", "in/deep/b.jsonl")):
        content = "".join(json.dumps(row) + "\n" for row in texts(20, 20 * number))
        files.write(f"s3://{name}/{file}", content.encode())
    files.write(f"s3://{name}/in/notes.md", b"no rows")
    return f"s3://{name}"


def contents(folder):
    return {name: files.read(f"{folder}/{name}") for name in files.sizes(folder)}


def test_a_job_in_a_store_gives_what_one_on_a_disk_gives(bucket, embed, tmp_path, here):
    for name, file in (("a", "in/a.jsonl"), ("deep/b", "in/deep/b.jsonl")):
        path = tmp_path / "in" / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(files.read(f"{bucket}/{file}"))
    local = jobs.run(embed, [tmp_path / "in" / "a.jsonl", tmp_path / "in" / "deep"], tmp_path / "out", block_bytes=300)
    for number, data in enumerate(
        ([f"{bucket}/in"], [f"{bucket}/in/"], [f"{bucket}/in/a.jsonl", f"{bucket}/in/*/*.jsonl"])
    ):
        done = jobs.run(embed, data, f"{bucket}/out{number}", block_bytes=300)
        assert done.checksum == local.checksum
        assert jobs.status(f"{bucket}/out{number}") == done
        assert contents(f"{bucket}/out{number}/parts") == contents(str(tmp_path / "out" / "parts"))
        assert BEAT not in files.sizes(f"{bucket}/out{number}")
    assert jobs.run(embed, f"{bucket}/in", str(tmp_path / "fetched"), block_bytes=300).checksum == local.checksum


def test_worker_processes_reach_the_store(bucket, embed):
    done = jobs.run(embed, f"{bucket}/in", f"{bucket}/out", block_bytes=2000, workers=1)
    assert (done.state, done.rows) == ("complete", 40)


def test_lines_and_tables_of_a_store_are_cut(bucket, embed, tmp_path, here):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    rows = texts(30)
    table = "id,text\n" + "".join(f'"{row["id"]}","{row["text"]}"\n' for row in rows)
    pq.write_table(pa.table({"text": [row["text"] for row in rows]}), tmp_path / "a.parquet", row_group_size=7)
    for name, content in (
        ("a.csv", table.encode()),
        ("b.parquet", (tmp_path / "a.parquet").read_bytes()),
        ("c.json", json.dumps(rows).encode()),
        ("d.jsonl", b"\n".join([b'{"text": "w5"}', b"{", b'{"text": "w6"}'])),
        ("e.txt", b"w5 w6\nw7\n"),
    ):
        files.write(f"{bucket}/mixed/{name}", content)
    done = jobs.run(embed, f"{bucket}/mixed", tmp_path / "out", block_bytes=100)
    assert (done.rows, done.rejected) == (94, 1)
    assert [(each["file"], each["line"]) for each in lines_in(tmp_path / "out" / "rejected.jsonl")] == [
        (f"{bucket}/mixed/d.jsonl", 2)
    ]


def test_a_job_in_a_store_goes_on(bucket, embed, here):
    files.write(f"{bucket}/in/a.jsonl", files.read(f"{bucket}/in/a.jsonl") + b"{\n")
    with pytest.raises(InvalidInput, match=r"in/a\.jsonl', line 21: .*JSON"):
        jobs.run(embed, f"{bucket}/in", f"{bucket}/out", block_bytes=300, on_error="stop")
    before, here[:] = [*here[:-1]], []
    assert jobs.status(f"{bucket}/out").state == "interrupted"
    done = jobs.run(embed, f"{bucket}/in", f"{bucket}/out", block_bytes=300)
    assert not {*before} & {*here}
    assert (done.rows, done.rejected) == (40, 1)
    assert b"JSON" in files.read(f"{bucket}/out/rejected.jsonl")
    files.remove(f"{bucket}/out/parts/part-0000001.npy")
    here.clear()
    assert jobs.run(embed, f"{bucket}/in", f"{bucket}/out", block_bytes=300).checksum == done.checksum
    assert here == [1]
    files.write(f"{bucket}/in/a.jsonl", b'{"text": "w5"}\n')
    with pytest.raises(InvalidInput, match=r"the data 's3://.*/in/a\.jsonl' has changed"):
        jobs.run(embed, f"{bucket}/in", f"{bucket}/out", block_bytes=300)


def test_a_second_driver_is_refused_while_the_first_one_lives(bucket, embed, here, monkeypatch):
    monkeypatch.setattr(locking, "_SECONDS", 0.1)
    with held_by_one(f"{bucket}/out"):
        time.sleep(0.5)
        with pytest.raises(InvalidInput, match=r"another process is running the job .* within 40 seconds"):
            jobs.run(embed, f"{bucket}/in", f"{bucket}/out")
    for left in (b"{", json.dumps({"mark": "x", "time": time.time() - 60}).encode()):  # of a killed process
        files.write(f"{bucket}/out/{BEAT}", left)
        assert jobs.run(embed, f"{bucket}/in", f"{bucket}/out").rows == 40


def test_other_files_in_a_store_are_refused(bucket, embed, here):
    with pytest.raises(OutputExists, match="and no job"):
        jobs.run(embed, f"{bucket}/in", f"{bucket}/in")


def test_files_and_buckets_that_are_not_there_are_named(bucket, embed, tmp_path, here):
    for data in (
        "s3://absent-bucket/in",
        f"{bucket}/absent",
        f"{bucket}/*.csv",
        [f"{bucket}/in", f"{bucket}/in/typo.jsonl"],
    ):
        with pytest.raises(InvalidInput, match="there is no file") as error:
            jobs.run(embed, data, tmp_path / "out")
        assert "absent" in str(error.value) or "*.csv" in str(error.value) or "typo" in str(error.value)
    with pytest.raises(InvalidInput, match="no such bucket"):
        jobs.run(embed, f"{bucket}/in", "s3://absent-bucket/out")
    with pytest.raises(InvalidInput, match="holds no job"):
        jobs.status(f"{bucket}/in")


def test_wrong_credentials_are_said_without_the_secret(server, bucket, embed, reached, tmp_path):
    def checked_after(count):
        url, kind = f"http://127.0.0.1:{server[1]}/moto-api/reset-auth", {"Content-Type": "text/plain"}
        urllib.request.urlopen(urllib.request.Request(url, count, kind)).close()

    checked_after(b"0")
    reached(key="unknown")
    try:
        for data, output in ((f"{bucket}/in", str(tmp_path / "out")), (str(tmp_path), f"{bucket}/out")):
            with pytest.raises(InvalidInput, match="with these credentials") as error:
                jobs.run(embed, data, output)
            assert SECRET not in str(error.value)
    finally:
        checked_after(b"inf")
    reached(AWS_ACCESS_KEY_ID=None, AWS_SECRET_ACCESS_KEY=None, AWS_SHARED_CREDENTIALS_FILE="/nowhere")
    with pytest.raises(InvalidInput, match="without credentials"):
        jobs.run(embed, f"{bucket}/in", tmp_path / "out")


def test_a_store_of_an_unknown_kind_is_refused(embed, tmp_path):
    with pytest.raises(InvalidInput, match="cannot be read or written"):
        jobs.run(embed, "odd://bucket/in", tmp_path / "out")
    for data, output in (("s3://", tmp_path / "out"), (tmp_path, "s3:///")):
        with pytest.raises(InvalidInput, match="names no bucket: write s3://BUCKET/FOLDER"):
            jobs.run(embed, data, output)


def test_files_of_a_server_of_the_web_are_read(embed, tmp_path, here):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_):
            pass

    content = "".join(json.dumps(row) + "\n" for row in texts(20))
    (tmp_path / "a.jsonl").write_text(content)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=tmp_path)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert jobs.run(embed, f"{url}/a.jsonl", tmp_path / "out").rows == 20
        with pytest.raises(InvalidInput, match="there is no file"):
            jobs.run(embed, f"{url}/b.jsonl", tmp_path / "other")
        server.shutdown()


def test_a_store_that_does_not_answer_is_said(bucket, embed, reached, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "TRIES", 1)
    reached(free_port(), AWS_MAX_ATTEMPTS="1")
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    for act in (lambda: jobs.run(embed, f"{bucket}/in", tmp_path / "out"), lambda: jobs.status(f"{bucket}/out")):
        with pytest.raises(InvalidInput, match=r"the store did not answer .* goes on after the blocks"):
            act()


class Proxy:
    """Passes connections on, slowly; every few of them are cut after so many bytes of the answer."""

    def __init__(self, port, every, after):
        self._target, self._every, self._after = port, every, after
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port, self.seen, self.cuts = self._listening.getsockname()[1], 0, 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                one, _ = self._listening.accept()
            except OSError:
                return
            self.seen += 1
            other = socket.create_connection(("127.0.0.1", self._target))
            left = self._after if self.seen % self._every == 0 else None
            threading.Thread(target=self._pass, args=(one, other, None), daemon=True).start()
            threading.Thread(target=self._pass, args=(other, one, left), daemon=True).start()

    def _pass(self, source, sink, left):
        with contextlib.suppress(OSError):
            while part := source.recv(4096):
                time.sleep(0.002)
                if left is not None and (left := left - len(part)) < 0:
                    self.cuts += 1
                    break
                sink.sendall(part)
        for each in (source, sink):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def close(self):
        self._listening.close()


@pytest.mark.parametrize("after", [0, 700])
def test_a_store_that_cuts_connections_now_and_then_is_asked_again(
    server, bucket, embed, reached, here, after, monkeypatch
):
    monkeypatch.setattr(files.time, "sleep", lambda _: None)
    whole = jobs.run(embed, f"{bucket}/in", f"{bucket}/whole", block_bytes=500)
    proxy = Proxy(server[1], 3, after)
    reached(proxy.port)
    done = None
    for _ in range(6):
        try:
            done = jobs.run(embed, f"{bucket}/in", f"{bucket}/out", block_bytes=500)
            break
        except (InvalidInput, ConnectionError):
            reached()
            files.remove(f"{bucket}/out/{BEAT}")
            reached(proxy.port)
    reached()
    proxy.close()
    assert proxy.cuts
    assert done is not None
    assert done.checksum == whole.checksum
