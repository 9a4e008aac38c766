"""What the guide on serving shows: its options exist, and its requests are answered."""

import json
import re
import shlex
from pathlib import Path

import pytest
from serving_cases import running

from bothways.cli.program import build_app

GUIDE = (Path(__file__).parents[2] / "docs/guides/serve.md").read_text(encoding="utf-8")
LINES = [
    line
    for block in re.findall(r"^```sh\n(.*?)^```$", GUIDE, re.DOTALL | re.MULTILINE)
    for line in block.replace("\\\n", " ").splitlines()
]
REQUESTS = [line for line in LINES if line.startswith("curl") and " -d " in line]


@pytest.mark.parametrize("line", [line for line in LINES if line.startswith("bothways ")])
def test_the_options_of_the_guide_exist(line):
    build_app().parse_args(shlex.split(line)[1:], exit_on_error=False, print_error=False)


def test_the_requests_of_the_guide_are_answered(folders):
    models = f"news={folders['classification']}", f"all-MiniLM-L6-v2={folders['embedding']}"
    with running(*models) as server:
        for line in REQUESTS:
            words = shlex.split(line)
            path, body = words[2].partition("8080")[2], words[words.index("-d") + 1]
            answer = server.post(path, json.loads(body))
            assert answer.status_code == 200, f"{line}: {answer.text}"
    assert len(REQUESTS) == 4
