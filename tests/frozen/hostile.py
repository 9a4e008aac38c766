"""Saved folders with something in them that nobody saved, opened in a process of their own within bounds.

A case is a JSON object: the ``model`` (a folder in ``models``), the ``file`` in it, and either ``path`` and ``value``
(the new value of a field of a JSON file; without a value the field goes) or ``at``, ``cut`` and ``bytes`` (the change
of its bytes).
Checksums are made right again, as somebody would who means harm.
"""

import functools
import hashlib
import json
import math
import multiprocessing
import os
import resource
import shutil
import sys
import traceback
import warnings
from multiprocessing import forkserver
from pathlib import Path

from test_frozen_models import MODELS, answer_of, opened, stored

import bothways
from bothways.errors import BothwaysError
from bothways.retrieval import Dense, Hybrid, Lexical
from bothways.retrieval.index_files import header_checksum

# Seconds of a processor, and of the clock for what waits for ever; bytes beyond those of the libraries.
SECONDS, WAITING, BYTES = 10, 60, 2 * 2**30

_PROCESSES = multiprocessing.get_context("forkserver")


@functools.cache
def _start_server():
    """Start the process that every other is a copy of; it has imported what models are opened with."""
    from bothways.tasks.registry import SPECS

    homes = [spec.home.split(":")[0] for spec in SPECS.values()]
    _PROCESSES.set_forkserver_preload(["hostile", "bothways.compose.opening", "bothways.retrieval.search", *homes])
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)  # of which the server is told too late for this
    forkserver.ensure_running()
    first = _PROCESSES.Process(target=int)
    first.start()
    first.join()  # so that no case waits for the imports
    os.environ.pop("PYTHONPATH") if before is None else os.environ.update(PYTHONPATH=before)


def outcome(action, *arguments):
    """What came of an action within the bounds: ``opened``, ``refused: ...``, or what should not come of any."""
    _start_server()
    here, there = _PROCESSES.Pipe(duplex=False)
    process = _PROCESSES.Process(target=_attempt, args=(there, action, arguments))
    process.start()
    there.close()
    said = None
    if here.poll(WAITING):
        try:
            said = here.recv()
        except EOFError:
            process.join()
            said = f"ended with {process.exitcode}"
    process.kill()
    process.join()
    return said or f"took more than {WAITING} s"


def _attempt(pipe, action, arguments):
    warnings.simplefilter("ignore")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * os.sysconf("SC_PAGE_SIZE") + BYTES,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        action(*arguments)
        said = "opened"
    except BothwaysError as error:
        said = f"refused: {type(error).__name__}: {error}"
    except BaseException:  # a panic in Rust code is no Exception
        said = traceback.format_exc()
    pipe.send(said if len(said) < 4000 else f"{said[:2000]} ... {said[-2000:]}")
    pipe.close()


def use(root, name):
    """Open a folder and ask it for something; an answer has finite numbers."""
    case = stored(name)
    if "kind" in case:
        model = opened(Path(root), name, case)
        answers = [answer_of(model, call) for call in case["calls"][:1]]
        json.dumps(answers, allow_nan=False).encode()
        return
    search = bothways.SemanticSearch.open(Path(root) / name, model=Path(root) / "embedder", device="cpu")
    modes = {"dense": Dense(), "lexical": Lexical(), "hybrid": Hybrid()}
    for query in case["queries"]:
        for hit in search.search(query["query"], k=3, mode=modes[query["mode"]]):
            assert math.isfinite(hit.score)
            f"{hit.id}{hit.text}{hit.fields}".encode()


def spoilt(case, folder):
    """Write the models into a folder with one of them spoilt; the others are links."""
    name = case["model"]
    for path in MODELS.iterdir():
        if path.name != name:
            (folder / path.name).symlink_to(path)
    shutil.copytree(MODELS / name, folder / name)
    path = folder / name / case["file"]
    content = path.read_bytes()
    if "path" in case:
        path.write_bytes(json.dumps(_changed(json.loads(content), case)).encode())
    else:
        inserted = bytes.fromhex(case["bytes"])
        path.write_bytes(content[: case["at"]] + inserted + content[case["at"] + case["cut"] :])
    _sign(folder / name, path)
    return folder


def _changed(content, case):
    *above, last = case["path"]
    place = content
    for key in above:
        place = place[key]
    if "value" in case:
        place[last] = case["value"]
    else:
        del place[last]
    return content


def _sign(folder, path):
    """Make the checksums right that are known of a file."""
    ours, header = folder / "bothways.json", folder / "index.json"
    try:
        if ours.is_file() and path != ours:
            known = json.loads(ours.read_bytes())
            known.pop("checksums", None)
            ours.write_text(json.dumps(known))
        elif header.is_file():
            fields = json.loads(header.read_bytes())
            fields.pop("checksum", None)
            inside = path.relative_to(folder / fields["data"]).as_posix() if path != header else None
            if inside in fields["files"]:
                fields["files"][inside] = hashlib.sha256(path.read_bytes()).hexdigest()
            header.write_text(json.dumps({**fields, "checksum": header_checksum(fields)}))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass  # of what is no header any more there are no checksums
