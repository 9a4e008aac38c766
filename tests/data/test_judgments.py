"""Files of relevance judgments."""

import gzip

import pytest

from bothways.data import read_judgments
from bothways.errors import InvalidInput

EXPECTED = {"1": {"184": 3, "d 2": -1}, "2": {"184": 0}}


@pytest.mark.parametrize(
    "content",
    [
        "query_id\tdoc_id\trelevance\n1\t184\t3\n1\td 2\t-1\n\n2\t184\t0\n",
        "\ufeffquery_id\tdoc_id\trelevance\r\n1\t184\t3\r\n1\td 2\t-1\r\n2\t184\t0\r\n",
        '"query_id"\t"doc_id"\t"relevance"\n"1"\t"184"\t3\n"1"\t"d 2"\t-1\n"2"\t"184"\t"0"\n',
        "query-id\tcorpus-id\tscore\n1\t184\t3\n1\td 2\t-1\n2\t184\t0",
    ],
)
@pytest.mark.parametrize("packed", [False, True])
def test_three_columns_under_a_header_are_read(tmp_path, content, packed):
    path = tmp_path / ("qrels.tsv.gz" if packed else "qrels.tsv")
    path.write_bytes(gzip.compress(content.encode()) if packed else content.encode())
    assert read_judgments(path) == EXPECTED


@pytest.mark.parametrize("gap", [" ", "\t", "   "])
def test_the_layout_of_trec_is_read(tmp_path, gap):
    rows = [("1", "0", "184", "3"), ("1", "Q0", "d2", "-1"), ("2", "0", "184", "0")]
    (tmp_path / "qrels").write_text("".join(gap.join(row) + "\n" for row in rows))
    assert read_judgments(tmp_path / "qrels") == {"1": {"184": 3, "d2": -1}, "2": {"184": 0}}


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        ("query_id\tdoc_id\trelevance\n", "is empty"),
        ("1\t184\t3\n", "line 1 .* has 3 columns. Expected 3 .* with the header"),
        ("1 0 184 3\n1 184 3\n", "line 2 .* has 3 columns"),
        ("query_id\tdoc_id\trelevance\n1 184 3\n", "line 2 .* has 1 columns"),
        ("1 0 184 good\n", "line 1 .* whole number, got 'good'"),
        ("1 0 184 0.5\n", "line 1 .* whole number, got '0.5'"),
        ("1 0 184 1\n1 0 185 2147483647\n", "line 2 .* between -1000 and 1000, got 2147483647. Check the order"),
        ("1 0 184 -1001\n", "line 1 .* got -1001"),
        ("1 0 184 " + "9" * 5000 + "\n", "line 1 .* got 9{30}. Check"),
        ("1 0 184 1\n1 0 184 2\n", "line 2 .*document '184' was judged for query '1' before"),
    ],
)
def test_what_is_no_judgment_is_refused_with_its_line(tmp_path, content, problem):
    (tmp_path / "qrels").write_text(content)
    with pytest.raises(InvalidInput, match=problem):
        read_judgments(tmp_path / "qrels")


def test_the_judgments_of_cranfield_are_read(shared_data):
    judgments = read_judgments(shared_data / "cranfield" / "qrels.tsv")
    assert len(judgments) == 225
    assert sum(map(len, judgments.values())) == 1836
