"""An index in a PostgreSQL table: the graph of its vectors, faults of the database, and what is never shown."""

import gzip
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from index_samples import ENCODER, random_vectors

from bothways.errors import (
    BothwaysError,
    CorruptCheckpoint,
    InvalidInput,
    MissingDependency,
    OutputExists,
    StoreUnavailable,
    UnknownModel,
)
from bothways.retrieval import (
    Among,
    Between,
    PostgresIndex,
    RowBatch,
    SearchIndex,
    open_index,
    shown_address,
)
from bothways.retrieval.address import TableAddress
from bothways.retrieval.lexical import terms_of
from bothways.retrieval.postgres.database import CONNECTIONS, Database

ROWS = RowBatch(random_vectors(20), [f"text {row}" for row in range(20)])
QUERIES = random_vectors(4, seed=5)


def build(address, rows=ROWS, *, encoder=ENCODER, **options):
    return PostgresIndex.build_from_batches(address, [rows], encoder=encoder, **options)


def tables(server, url):
    query = "select relname from pg_class where relnamespace = 'public'::regnamespace and relkind = 'r' order by 1"
    return [name for (name,) in server.execute(query, url.rpartition("/")[2])]


def recall(found, expected):
    pairs = zip(found, expected, strict=True)
    return np.mean([len({hit.id for hit in a} & {hit.id for hit in b}) / len(b) for a, b in pairs])


# The graph of the vectors, beside the index in files


@pytest.fixture
def graph(postgres):
    """The URL of a database that searches the graph even where a scan of all rows is faster."""
    url = postgres.new_database()
    postgres.execute(f"alter database {url.rpartition('/')[2]} set enable_seqscan = off")
    return url


def cranfield(shared_data):
    def texts(name):
        with gzip.open(shared_data / "cranfield" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as lines:
            return [json.loads(line)["text"] for line in lines]

    return texts("corpus"), texts("queries")


def assert_hits_of_both(url, texts, vectors, asked, encoder):
    """Compare the hits of a table with those of an index in files: exact ones are equal, and few others are missing."""
    rows = RowBatch(vectors, texts)
    files = SearchIndex.build_from_batches([rows], encoder=encoder)
    index = build(f"{url}#docs", rows, encoder=encoder)
    for k in (10, 100):
        expected = files.search(asked, k)
        assert index.search(asked, k, exact=True) == expected
        assert recall(index.search(asked, k), expected) >= 0.99


def test_hits_on_cranfield_are_those_of_an_index_in_files(graph, shared_data):
    texts, queries = cranfield(shared_data)
    drawn = {}

    def embedded(text):
        """Random directions of the words, the rarer the longer: similar for texts that share words."""
        total = np.zeros(64)
        for term in terms_of(text):
            direction = drawn.setdefault(term, np.random.default_rng(len(drawn)).standard_normal(64))
            total += direction / np.sqrt(counts.get(term, 1))
        return total

    counts = {}
    for text in texts:
        for term in set(terms_of(text)):
            counts[term] = counts.get(term, 0) + 1
    vectors, asked = (np.array([embedded(text) for text in each]) for each in (texts, queries))
    assert_hits_of_both(graph, texts, vectors, asked, replace(ENCODER, dimensions=64))


@pytest.mark.slow
def test_hits_of_a_real_model_on_cranfield_are_those_of_an_index_in_files(graph, shared_data, minilm_folder):
    from bothways import SentenceEmbedder

    texts, queries = cranfield(shared_data)
    embedder = SentenceEmbedder.from_pretrained(minilm_folder, device="cpu")
    vectors, asked = embedder.encode(texts), embedder.encode(queries)
    assert_hits_of_both(graph, texts, vectors, asked, replace(ENCODER, dimensions=384))


def test_the_graph_is_searched_until_enough_rows_pass_a_filter(graph, postgres):
    count = 1500
    rows = RowBatch(random_vectors(count), ["t"] * count, None, [{"row": row} for row in range(count)])
    index, files = build(f"{graph}#docs", rows), SearchIndex.build_from_batches([rows], encoder=ENCODER)
    plan = "explain select number from docs order by vector <#> '[1,1,1,1,1,1,1,1]' limit 5"
    assert any("docs" in line and "Index Scan" in line for (line,) in postgres.execute(plan, graph.rpartition("/")[2]))
    for filters in ([Between("row", 1480)], [Among("row", (3, 5))], [Among("row", ())]):
        assert index.search(QUERIES, 5, filters=filters) == files.search(QUERIES, 5, filters=filters)
    assert [len(hits) for hits in index.search(QUERIES, 1300)] == [1300] * 4
    assert recall(index.search(QUERIES, 1300), files.search(QUERIES, 1300)) > 0.99


def test_vectors_too_wide_for_a_graph_are_compared_one_by_one(postgres):
    encoder = replace(ENCODER, dimensions=2001)
    rows = RowBatch(random_vectors(5, dimensions=2001), ["t"] * 5)
    index = build(postgres.new_table(), rows, encoder=encoder)
    files = SearchIndex.build_from_batches([rows], encoder=encoder)
    assert index.search(rows.vectors_ND, 3) == files.search(rows.vectors_ND, 3)


# Filters

NUMBERS = (0, 1, 1.0, -2, 2.5, 10**20, 1e-7, "1", "1.0", " 2 ", "1,234", "12 345", "-0.5", "1e3", "1e999")
WORDS = ("a", "A", "n/a", "", "'; drop table docs; --", "é", "e\u0301", "日本", "\\", '"', "%s", "null", "true")
VALUES = st.sampled_from((None, True, False, *NUMBERS, *WORDS))
COLUMNS = {
    "any": [None, True, False, 0, 1, 1.0, -2, 2.5, 10**20, 1e-7, "a", "A", "n/a", "", "é", "e\u0301", "'; --", "\\"],
    "numbers": [
        1,
        2.5,
        "3",
        " 4 ",
        "1,234",
        "1 234",
        "-0.5",
        "1e3",
        "1e999",
        "-1e999",
        None,
        "n/a",
        10**20,
        7,
        8,
        True,
    ],
    "words": ["a", "b", None, "c"],
    "odd": [1, 2, "3 USD", "4"],
    "none": [None],
}


@pytest.fixture(scope="module")
def filtered(postgres):
    """A table with a row for each value of each column, and the same index in files."""
    count = max(map(len, COLUMNS.values()))
    fields = [{name: values[row % len(values)] for name, values in COLUMNS.items()} for row in range(count)]
    rows = RowBatch(random_vectors(count), ["t"] * count, None, fields)
    return build(postgres.new_table(), rows), SearchIndex.build_from_batches([rows], encoder=ENCODER)


ENDS = st.sampled_from([None, -np.inf, -3, -0.5, 0, 1, 1.0, 2.5, 3, 999.5, 1234, 1e20, np.inf])
RANGES = st.tuples(ENDS, ENDS).filter(lambda ends: None in ends or ends[0] <= ends[1])
FILTER = st.sampled_from(sorted(COLUMNS)).flatmap(
    lambda name: st.one_of(
        st.lists(VALUES, max_size=4).map(lambda values: Among(name, tuple(values))),
        RANGES.map(lambda ends: Between(name, *ends)),
    )
)


@settings(max_examples=60, deadline=None)
@given(st.lists(FILTER, min_size=1, max_size=2))
def test_filters_pass_the_same_rows_as_those_of_an_index_in_files(filtered, filters):
    def outcome(index):
        try:
            (hits,) = index.search(QUERIES[:1], 50, filters=filters)
        except InvalidInput as error:
            return str(error)
        return [(hit.id, dict(hit.fields)) for hit in hits]

    table, files = map(outcome, filtered)
    assert table == files


def test_values_that_no_row_can_have_pass_nothing(filtered):
    table, _ = filtered
    for value in ("\0", "\ud800", float("nan"), float("inf")):
        assert table.search(QUERIES, 3, filters=[Among("any", (value,))]) == [[]] * 4


# A database that is restarted


def test_a_restart_in_the_middle_of_a_build_leaves_nothing_behind(postgres):
    url = postgres.new_database()

    def restarting():
        yield ROWS
        postgres.restart()
        yield ROWS._replace(ids=[f"b{row}" for row in range(20)])

    for expected in ([], ["docs"]):
        with pytest.raises(StoreUnavailable, match=r"lost the connection to postgresql://.*rolled back as a whole"):
            PostgresIndex.build_from_batches(f"{url}#docs", restarting(), encoder=ENCODER, overwrite=True)
        assert tables(postgres, url) == expected
        if not expected:
            before = build(f"{url}#docs").search(QUERIES, 20)
    assert PostgresIndex.open(f"{url}#docs").search(QUERIES, 20) == before


def test_a_restart_in_the_middle_of_an_addition_leaves_the_index_as_it_was(postgres):
    index = build(postgres.new_table())

    def restarting():
        yield ROWS._replace(ids=[f"b{row}" for row in range(20)])
        postgres.restart()
        yield ROWS._replace(ids=[f"c{row}" for row in range(20)])

    with pytest.raises(StoreUnavailable, match="lost the connection"):
        index.add_batches(restarting())
    assert len(index) == 20
    index.add_batches([ROWS._replace(ids=[f"b{row}" for row in range(20)])])
    assert len(index) == 40


def test_a_search_is_done_again_after_a_restart_between_or_within_searches(postgres):
    address = postgres.new_table()
    index = build(address)
    before = index.search(QUERIES, 3)
    postgres.restart()
    assert index.search(QUERIES, 3) == before
    calls = []

    def restarting_once(cursor):
        calls.append(cursor)
        if len(calls) == 2:
            postgres.restart()
        return cursor.execute("select 7").fetchone()

    database = Database(TableAddress.parse(address))
    assert [database.read(restarting_once), database.read(restarting_once)] == [(7,), (7,)]
    assert len(calls) == 3
    postgres.stop()
    try:
        with pytest.raises(
            StoreUnavailable, match=r"cannot connect to postgresql://.*TCP/IP connections\. Check that the server runs"
        ):
            index.search(QUERIES, 3)
    finally:
        postgres.start()
    assert index.search(QUERIES, 3) == before


def test_searches_share_eight_connections_that_outlive_a_restart_and_are_closed(postgres):
    address = postgres.new_table()
    index = build(address)
    before, threads_before = index.search(QUERIES, 3), threading.active_count()
    database, inside = Database(TableAddress.parse(address)), threading.Barrier(CONNECTIONS, timeout=60)

    def together(cursor):
        inside.wait()
        return cursor.execute("select pg_backend_pid()").fetchone()

    def connections(pids):
        found = postgres.execute("select pid from pg_stat_activity")
        return pids & {pid for (pid,) in found}

    for restarted in (False, True):
        with ThreadPoolExecutor(2 * CONNECTIONS) as threads:
            pids = {pid for (pid,) in threads.map(database.read, [together] * 2 * CONNECTIONS)}
        assert len(pids) == CONNECTIONS
        assert connections(pids) == pids
        if not restarted:
            postgres.restart()
    assert index.search(QUERIES, 3) == before
    database.close()
    deadline = time.monotonic() + 60
    while connections(pids):  # the server ends a process a moment after its connection
        assert time.monotonic() < deadline
        time.sleep(0.01)
    assert threading.active_count() == threads_before
    assert database.read(lambda cursor: cursor.execute("select 7").fetchone()) == (7,)


def test_an_index_that_was_built_again_is_not_searched_as_if_it_were_the_same(postgres):
    address = postgres.new_table()
    index = build(address)
    build(address, RowBatch(random_vectors(3), ["x", "y", "z"]), overwrite=True)
    assert len(index.search(QUERIES, 9)[0]) == 3
    build(address, encoder=replace(ENCODER, fingerprint="cd" * 32), overwrite=True)
    for use in (lambda: index.search(QUERIES, 9), lambda: index.delete(["1"]), lambda: index.add_batches([ROWS])):
        with pytest.raises(InvalidInput, match="was built again since it was opened, with another model"):
            use()


# A client that is killed


def child_of(work):
    """The id of a child process that does some work and ends."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            code = 1
        os._exit(code)
    return child


def killed_before_statement(number, change):
    """Make a change in a child process that kills itself before its n-th statement or row; return whether it did."""
    left = itertools.count(number - 1, -1)

    def counted(function):
        def call(*given, **options):
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*given, **options)

        return call

    def work():
        import psycopg

        psycopg.Cursor.execute = counted(psycopg.Cursor.execute)
        psycopg.Copy.write_row = counted(psycopg.Copy.write_row)
        change()

    code = os.waitstatus_to_exitcode(os.waitpid(child_of(work), 0)[1])
    assert code in (0, -signal.SIGKILL)
    return code != 0


def wait_for_the_end(server, url):
    """Wait until the server has noticed that the clients of a database are gone."""
    query = f"select pid from pg_stat_activity where datname = '{url.rpartition('/')[2]}'"
    deadline = time.monotonic() + 120
    while server.execute(query):
        assert time.monotonic() < deadline
        time.sleep(0.005)


FEW = RowBatch(random_vectors(6, seed=2), [f"text {row}" for row in range(6)], list("uvwxyz"))
KILLS = {  # changes of an index, and the number of its rows afterwards
    "build": (lambda address: build(address, FEW), 6),
    "replace": (lambda address: build(address, FEW, overwrite=True), 6),
    "add": (lambda address: PostgresIndex.open(address).add_batches([FEW]), 26),
    "delete": (lambda address: PostgresIndex.open(address).delete(["1", "2"]), 18),
}


@pytest.mark.parametrize("name", KILLS)
def test_a_change_that_is_killed_at_any_moment_leaves_nothing_behind_and_works_again(postgres, name):
    url = postgres.new_database()
    address, (change, after) = f"{url}#docs", KILLS[name]
    before = [] if name == "build" else ["docs"]
    if before:
        build(address).close()

    def rows():
        wait_for_the_end(postgres, url)
        found = tables(postgres, url)
        return found, len(PostgresIndex.open(address)) if found else 0

    for number in itertools.count(1):
        if not killed_before_statement(number, lambda: change(address)):
            break
        # The last statements follow the commit.
        if (found := rows()) != (["docs"], after):
            assert found == (before, 20 if before else 0)
            last = number
        else:
            assert number > last
            postgres.execute("drop table docs", url.rpartition("/")[2])
            if before:
                build(address).close()
    assert last > 5
    assert rows() == (["docs"], after)


def test_the_server_ends_a_long_statement_of_a_client_that_was_killed(postgres):
    url = postgres.new_database()
    activity = f"select pid from pg_stat_activity where datname = '{url.rpartition('/')[2]}' and query ~ 'pg_sleep'"

    def work():
        with Database(TableAddress.parse(f"{url}#docs")).writing() as cursor:
            cursor.execute("select pg_sleep(3600)")

    child = child_of(work)
    try:
        deadline = time.monotonic() + 120
        while not postgres.execute(activity):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    wait_for_the_end(postgres, url)


# Passwords

SECRET = "s3cret:w/o@end"
QUOTED = "s3cret%3Aw%2Fo%40end"


@pytest.fixture(scope="module")
def reader(postgres):
    """The user ``reader``, who has a password and may change nothing."""
    postgres.execute(f"create role reader login password '{SECRET}'")
    return "reader"


def shown(error):
    """All that a log would have of an error: the message and those of its causes."""
    return " ".join(f"{each!r} {each}" for each in (error, error.__cause__, error.__context__) if each is not None)


def test_a_password_opens_an_index_and_is_stored_nowhere(postgres, reader):
    build(address := postgres.new_table())
    database, table = address.rpartition("/")[2].split("#")
    postgres.execute(f"grant select on {table} to reader", database)
    secret = postgres.url(f"{database}#{table}", reader).replace("reader@", f"reader:{QUOTED}@")
    index = PostgresIndex.open(secret)
    assert len(index.search(QUERIES, 2)[0]) == 2
    for text in (shown_address(secret), repr(TableAddress.parse(secret)), repr(vars(index)), repr(index.encoder)):
        assert "s3cret" not in text
    with pytest.raises(StoreUnavailable, match=r"refused a statement.*permission denied") as refused:
        index.delete(["1"])
    assert "s3cret" not in shown(refused.value)
    own = secret.replace(f"reader:{QUOTED}", "postgres:s3cret")  # this user needs none, and may give one
    build(own, overwrite=True)
    assert "s3cret" not in repr(postgres.execute("select description from pg_description", database))


def test_a_wrong_password_is_not_shown(postgres, reader):
    address = postgres.new_table().replace("postgres@", f"{reader}:wr0ng-s3cret@")
    with pytest.raises(StoreUnavailable, match="password authentication failed for user") as refused:
        PostgresIndex.open(address)
    assert "wr0ng" not in shown(refused.value)
    assert "PGPASSWORD" in str(refused.value)
    with pytest.raises(StoreUnavailable) as refused:
        build(address)
    assert "wr0ng" not in shown(refused.value)


@pytest.mark.parametrize(
    "address",
    [
        "postgresql://me:s3cret@localhost:port/db#t",
        "postgresql://me:s3cret@localhost/db",
        "postgresql://me:s3cret@localhost/db#",
        "postgresql://me:s3cret@localhost/db#a b;c",
        "postgresql://me:s3cret@localhost/db?nonsense=1#t",
        "postgressql://me:s3cret@localhost/db#t",
        "psql://me:s3cret@localhost/db#t",
        "postgresql://me:a/s3cret@localhost/db#t",
        "postgresql://me:a@s3cret@localhost/db#t",
        "postgresql://me:a#s3cret@localhost/db#t",
        "postgresql://me:1#s3cret@localhost/db",
        "postgresql://me:a?s3cret@localhost/db#t",
        "postgresql://localhost/db?user=me&password=s3cret&port=x#t",
    ],
)
def test_no_part_of_an_unusable_address_that_may_be_a_password_is_shown(address):
    with pytest.raises(BothwaysError) as refused:
        open_index(address)
    assert "s3cret" not in shown(refused.value)
    assert not isinstance(refused.value, MissingDependency)


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://localhost/demo#docs", "postgresql://localhost/demo#docs"),
        ("postgres://me:p%40w@h:5/demo?sslmode=require#s.docs", "postgres://me@h:5/demo?sslmode=require#s.docs"),
        ("postgresql://h/d?password=x&host=%2Frun&sslpassword=y#t-1", "postgresql://h/d?host=%2Frun#t-1"),
        ("postgresql:///demo#docs", "postgresql:///demo#docs"),
        ("index/", "index/"),
    ],
)
def test_an_address_is_shown_without_its_password(address, expected):
    assert shown_address(address) == expected


# Tables and databases that are not what they should be


def test_the_nearest_index_is_named_instead_of_one_that_there_is_not(postgres):
    url = postgres.new_database()
    with pytest.raises(UnknownModel, match=r"no table 'docs' in postgresql://.*; it has no search index\. Check"):
        PostgresIndex.open(f"{url}#docs")
    build(f"{url}#documents")
    with pytest.raises(UnknownModel, match=r"its indexes are 'documents'\. Did you mean 'documents'\?"):
        PostgresIndex.open(f"{url}#document")
    with pytest.raises(StoreUnavailable, match='database "absent" does not exist'):
        PostgresIndex.open(postgres.url("absent#documents"))


def test_a_table_of_a_schema_is_named_with_it(postgres):
    url = postgres.new_database()
    postgres.execute("create schema mine", url.rpartition("/")[2])
    build(f"{url}#mine.docs")
    assert len(PostgresIndex.open(f"{url}#mine.docs")) == 20

    def of_both_names():
        yield ROWS._replace(ids=[f"b{row}" for row in range(20)])
        with pytest.raises(InvalidInput, match="another process is updating the index"):
            PostgresIndex.open(address).delete(["1"])

    build(f"{url}#one")
    address = f"{url}#public.one"
    PostgresIndex.open(f"{url}#one").add_batches(of_both_names())
    postgres.execute("drop table one", url.rpartition("/")[2])
    with pytest.raises(UnknownModel, match=r"Did you mean 'mine.docs'"):
        PostgresIndex.open(f"{url}#docs")
    build(f"{url}#mine.docs", overwrite=True)
    assert tables(postgres, url) == []


def test_a_table_of_another_program_is_neither_searched_nor_replaced(postgres):
    url = postgres.new_database()
    name = url.rpartition("/")[2]
    for comment in ("null", "'some notes'", """'{"format": "another"}'""", "'[1]'"):
        postgres.execute("create table if not exists docs (id text)", name)
        postgres.execute(f"comment on table docs is {comment}", name)
        with pytest.raises(UnknownModel, match=r"the table 'docs' of .* is not a search index"):
            PostgresIndex.open(f"{url}#docs")
        with pytest.raises(OutputExists, match="is not a search index, so it is never replaced"):
            build(f"{url}#docs", overwrite=True)
    assert tables(postgres, url) == ["docs"]


def test_a_table_that_cannot_be_replaced_is_refused_before_texts_are_embedded(postgres):
    def never():
        raise AssertionError
        yield

    url = postgres.new_database()
    name, before = url.rpartition("/")[2], build(f"{url}#docs").search(QUERIES, 20)
    postgres.execute("create role writer login")
    postgres.execute("grant create on schema public to writer", name)
    postgres.execute("create view shown as select id from docs", name)
    for user, problem in (
        ("writer", r"must be owner of table docs\. Nothing was changed\. Use another user"),
        ("postgres", r"other objects depend on it\. view shown depends on table docs\. Nothing was changed\.$"),
    ):
        address = f"{url}#docs".replace("postgres@", f"{user}@")
        with pytest.raises(StoreUnavailable, match=problem):
            PostgresIndex.build_from_batches(address, never(), encoder=ENCODER, overwrite=True)
    postgres.execute("drop view shown", name)

    def searching():
        assert PostgresIndex.open(f"{url}#docs").search(QUERIES, 20) == before
        yield FEW

    PostgresIndex.build_from_batches(f"{url}#docs", searching(), encoder=ENCODER, overwrite=True)
    assert len(PostgresIndex.open(f"{url}#docs")) == len(FEW.texts)


def test_names_are_kept_as_they_are_written(postgres):
    url = postgres.new_database()
    names = ["docs", "Docs", "DOCS", "select", "übung", "文書", "a-b", "x" * 63, "ü" * 31]
    for count, name in enumerate(names, start=1):
        build(f"{url}#{name}", RowBatch(random_vectors(count), ["text"] * count))
    assert tables(postgres, url) == sorted(names)
    assert [len(PostgresIndex.open(f"{url}#{name}")) for name in names] == [*range(1, len(names) + 1)]
    for name, problem in (
        ("x" * 64, "at most 63 bytes in UTF-8, got 64"),
        ("ü" * 32, "at most 63 bytes in UTF-8, got 64"),
        (f"{'ü' * 32}.docs", "at most 63 bytes in UTF-8, got 64"),
        *((name, "in letters, digits, - and _, got") for name in ('a"b', "a'b", "a.b.c", "a b", "a;b", "1a")),
    ):
        with pytest.raises(InvalidInput, match=problem):
            build(f"{url}#{name}")
    with pytest.raises(StoreUnavailable, match=r'schema "absent" does not exist\. Nothing was changed\.$'):
        build(f"{url}#absent.docs")


def test_a_comment_that_was_altered_is_refused(postgres):
    build(address := postgres.new_table())
    database, table = address.rpartition("/")[2].split("#")
    ((comment,),) = postgres.execute(f"select obj_description('{table}'::regclass)", database)
    for altered, problem in (
        (comment.replace('"format_version": 1', '"format_version": 9'), "has format version 9; this release reads"),
        (comment.replace('"pooling"', '"polling"'), "is damaged: its fields"),
    ):
        assert altered != comment
        postgres.execute(f"comment on table {table} is '{altered}'", database)
        with pytest.raises(CorruptCheckpoint, match=problem):
            PostgresIndex.open(address)


def test_pgvector_is_created_or_asked_for(postgres, reader):
    url = postgres.new_database(pgvector=False)
    secret = url.replace("postgres@", f"{reader}:{QUOTED}@")
    with pytest.raises(StoreUnavailable, match=r"does not have the extension 'vector'.*run: create extension vector"):
        build(f"{secret}#docs")
    assert len(build(f"{url}#docs")) == 20
    with pytest.raises(
        StoreUnavailable, match=r"for schema public\. Nothing was changed\. Use another user, or let the owner"
    ):
        build(f"{secret}#other")


def test_a_nul_character_is_refused_with_its_row(postgres):
    address = postgres.new_table()
    for rows in (
        ROWS._replace(texts=["a\0b", *ROWS.texts[1:]]),
        ROWS._replace(ids=["\0", *map(str, range(19))]),
        ROWS._replace(fields=[{"x": "\0"}, *[{"x": "a"}] * 19]),
    ):
        with pytest.raises(InvalidInput, match=r"text 0 .* has a NUL character, which PostgreSQL cannot store"):
            build(address, rows)
        with pytest.raises(UnknownModel):
            PostgresIndex.open(address)
    index = build(address)
    with pytest.raises(InvalidInput, match="has a NUL character"):
        index.add_batches([ROWS._replace(ids=["\0", *map(str, range(100, 119))])])
    assert len(index) == 20


def test_a_database_of_another_encoding_keeps_texts_as_they_are(postgres):
    name = f"latin{postgres.port}"
    postgres.execute(f"create database {name} encoding 'latin1' template template0")
    rows = ROWS._replace(texts=["é", *ROWS.texts[1:]], fields=[{"x": "ü"}] * 20)
    index = build(postgres.url(f"{name}#docs"), rows)
    assert (index.texts_of(["0"]), index.search(QUERIES, 1)[0][0].fields) == ({"0": "é"}, {"x": "ü"})
    with pytest.raises(StoreUnavailable, match="has no equivalent in encoding"):
        index.add_batches([ROWS._replace(ids=[f"b{row}" for row in range(20)], texts=["語"] * 20, fields=rows.fields)])


def test_a_text_with_too_many_words_for_the_database_is_refused_as_a_whole(postgres):
    address = postgres.new_table()
    long = " ".join(f"word{number}" for number in range(200_000))
    with pytest.raises(StoreUnavailable, match=r"string is too long for tsvector.*Nothing was changed"):
        build(address, ROWS._replace(texts=[long, *ROWS.texts[1:]]))


def test_without_psycopg_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    for call in (PostgresIndex.open, build, lambda address: PostgresIndex.check_buildable(address, "english")):
        with pytest.raises(MissingDependency, match=re.escape("pip install 'bothways[postgres]'")):
            call("postgresql://localhost/demo#docs")
