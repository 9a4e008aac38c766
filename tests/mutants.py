"""Change one thing at a time in the code, and see whether a test notices: ``make mutants``.

A sample of the possible changes (mutants) is drawn with a seed, as many for each area. Each mutant runs in a process
of its own, with the test files of its area alone. It is killed where they fail, and survives where they pass. The exit
code is 1 where fewer than 90 % are killed.

mutmut and cosmic-ray do not do here: cosmic-ray starts Python and imports torch anew for each mutant, and has one
command of tests for all; mutmut forks after the package was imported, and finds the tests of a function by running all
of them, which for code that every model runs through are all tests of all models. Here torch is imported once, and a
forked process then imports the package with one changed module.

Not changed: annotations, docstrings, messages and ``raise``, constants of a module (sizes of blocks, limits),
allowances for rounding below 1e-6, ``strict=`` and the like, and what runs on a GPU alone (`LEFT_OUT`).
"""

import argparse
import ast
import copy
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
SOURCE = REPOSITORY / "src"
LEAST = 0.9
# A mutant may loop for ever. Processor time, so that a busy machine kills nothing; seconds for one that only waits.
LIMIT_CPU, LIMIT_SECONDS = 150, 900

# For each area its modules and their tests, those that look most closely first: a mutant ends at the first failure.
EVALUATION = {
    "calibration temperature": "calibration_methods calibration many_classes conformal",
    "intervals outcomes report": "intervals flawless reports report_json reliability metrics",
    "metrics/classification inputs": "metrics flawless reports comparing calibration",
    "comparison": "comparing report_json",
    "detectors out_of_domain": "out_of_domain",
    "metrics/regression": "embedding_reports regression_metrics reports comparing",
    "metrics/ranking": "rankings embedding_reports",
    "metrics/question_answering": "answers",
    "metrics/tagging": "tagging_reports comparing",
}
ENCODER = "backends forward relative padded_rows heads"
AREAS = {
    "evaluation": {
        f"bothways/evaluation/{module}.py": [f"tests/evaluation/test_{test}.py" for test in tests.split()]
        for modules, tests in EVALUATION.items()
        for module in modules.split()
    },
    "confidence": {
        f"bothways/confidence/{module}.py": [
            "tests/confidence/test_learning_confidence.py",
            "tests/confidence/test_stored_confidence.py",
            "tests/confidence/test_classifier_confidence.py",
            "tests/frozen/test_frozen_models.py",
        ]
        for module in ("confidence", "fitting")
    },
    "packing": {
        "bothways/packing.py": [
            "tests/test_packing.py",
            "tests/encoder/test_encoder_padded_rows.py",
            "tests/encoder/test_encoder_forward.py",
        ]
    },
    "attention": {
        f"bothways/encoder/{module}.py": [f"tests/encoder/test_encoder_{test}.py" for test in ENCODER.split()]
        for module in ("attention", "backends/basic", "backends/masked", "backends/relative")
    },
    "windows": {
        "bothways/text/windows.py": ["tests/text/test_text_words.py", "tests/text/test_text_tokenizer.py"],
        "bothways/data/windows.py": [
            "tests/data/test_window_store.py",
            "tests/tasks/test_text_classifier.py",
            "tests/training/test_golden_losses.py",
        ],
        "bothways/tasks/tagging/learner.py": ["tests/text/test_text_words.py", "tests/tasks/test_text_tagger.py"],
    },
    "tag decoding": {
        "bothways/evaluation/tag_schemes.py": ["tests/evaluation/test_tag_schemes.py", "tests/tasks/test_tag_set.py"],
        "bothways/tasks/tagging/tag_set.py": ["tests/tasks/test_tag_set.py", "tests/tasks/test_text_tagger.py"],
        "bothways/tasks/tagging/outputs.py": ["tests/tasks/test_text_tagger.py", "tests/tasks/test_window_merging.py"],
    },
    "weight fusion": {
        "bothways/families/layout.py": [
            "tests/families/test_weight_map.py",
            "tests/checkpoints/test_checkpoint_tensors.py",
            "tests/checkpoints/test_checkpoint_numbers.py",
            "tests/parity/test_parity_saving.py",
            "tests/families/test_known_settings.py",
            "tests/parity/test_parity_settings.py",
        ]
    },
    "settings": {
        "bothways/families/family.py": [
            "tests/families/test_known_settings.py",
            "tests/families/test_weight_map.py",
            "tests/checkpoints/test_checkpoint_settings.py",
            "tests/checkpoints/test_checkpoint_heads.py",
            "tests/checkpoints/test_checkpoint_tensors.py",
        ],
        "bothways/families/others.py": ["tests/families/test_known_settings.py"],
    },
}
LEFT_OUT = {"VarLen", "flash_attn_kernel"}

COMPARISONS = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
OPERATORS = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
TWINS = (
    "min max",
    "argmin argmax",
    "minimum maximum",
    "any all",
    "floor ceil",
    "sum mean",
    "first last",
    "rows columns",
)
NAMES = {one: other for pair in TWINS for one, other in (pair.split(), pair.split()[::-1])}


@dataclass(frozen=True)
class Mutant:
    """One change to one module."""

    area: str
    module: str
    tests: tuple[str, ...]
    site: int
    line: int
    before: str
    after: str

    def told(self):
        return f"{self.module}:{self.line}: {self.before}  ->  {self.after}"


def sites_of(tree):
    """The nodes that may be changed, in the order of the file, each with what to put in its place."""
    found = []

    def visit(node, parents):
        if _left_out(node, parents):
            return
        found.extend((node, new) for new in _changed(node))
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "type_params"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    visit(child, (*parents, node))

    visit(tree, ())
    return found


def _left_out(node, parents):
    if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name in LEFT_OUT:
        return True
    if isinstance(node, ast.Assign | ast.AnnAssign) and len(parents) == 1:  # constants, and names of types
        return True
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return True
    if isinstance(node, ast.keyword) and node.arg in ("strict", "dtype", "optimize", "stacklevel", "non_blocking"):
        return True
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("isinstance", "TypeVar"):
        return True
    return isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom)


def _changed(node):
    """The nodes that may stand in a node's place."""
    match node:
        case ast.Compare(ops=[operator, *_]):
            yield _with(node, ops=[COMPARISONS[type(operator)](), *node.ops[1:]])
        case ast.BinOp() | ast.AugAssign() if type(node.op) in OPERATORS:
            yield _with(node, op=OPERATORS[type(node.op)]())
        case ast.BoolOp():
            yield _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
        case ast.UnaryOp(op=ast.Not() | ast.USub()) if not isinstance(node.operand, ast.Constant):
            yield node.operand
        case ast.Constant(value=bool()):
            yield _with(node, value=not node.value)
        case ast.Constant(value=int()):
            yield _with(node, value=node.value + 1)
        case ast.Constant(value=float()) if abs(node.value) >= 1e-6 or node.value == 0:
            yield _with(node, value=node.value * 2 or 1.0)
        case ast.If() | ast.IfExp() if isinstance(node.test, ast.Name | ast.Attribute | ast.Call):
            yield _with(node, test=ast.UnaryOp(op=ast.Not(), operand=node.test))
        case ast.Attribute(attr=name) if name in NAMES:
            yield _with(node, attr=NAMES[name])
        case ast.Call(func=ast.Name(id=name)) if name in NAMES:
            yield _with(node, func=ast.Name(id=NAMES[name], ctx=ast.Load()))
        case ast.Expr(value=ast.Call()) | ast.Continue() | ast.Break():
            yield ast.Pass()


def _with(node, **changes):
    new = copy.copy(node)
    for name, value in changes.items():
        setattr(new, name, value)
    return new


class _Replace(ast.NodeTransformer):
    def __init__(self, old, new):
        self.old, self.new = old, new

    def visit(self, node):
        return ast.copy_location(self.new, node) if node is self.old else self.generic_visit(node)


def mutants_of(area, module, tests):
    """All mutants of a module."""
    tree = ast.parse((SOURCE / module).read_text(encoding="utf-8"))
    for site, (old, new) in enumerate(sites_of(tree)):
        before, after = (ast.unparse(ast.fix_missing_locations(each)).splitlines()[0] for each in (old, new))
        yield Mutant(area, module, tuple(tests), site, old.lineno, before, after)


class _Changed(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Imports one module with a change in it."""

    def __init__(self, mutant):
        self.mutant = mutant
        name = mutant.module.removesuffix(".py").replace("/", ".")
        importlib.machinery.SourceFileLoader.__init__(self, name, str(SOURCE / mutant.module))

    def find_spec(self, name, *_):
        return importlib.util.spec_from_loader(name, self) if name == self.name else None

    def get_code(self, _):
        tree = ast.parse(Path(self.path).read_text(encoding="utf-8"))
        old, new = sites_of(tree)[self.mutant.site]
        return compile(ast.fix_missing_locations(_Replace(old, new).visit(tree)), self.path, "exec")


def start(mutant, tests):
    """Fork a process that runs tests, with a mutant or with none."""
    child = os.fork()
    if child:
        return child
    os.setsid()
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    code = 99
    try:
        import pytest

        if mutant is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (LIMIT_CPU, LIMIT_CPU))
            sys.meta_path.insert(0, _Changed(mutant))
        code = int(pytest.main([*tests, "-x", "-q", "-p", "no:cacheprovider", "-m", "not slow and not gpu"]))
    finally:
        os._exit(code)


def run_all(todo, jobs, until):
    """Run mutants in turn, ``jobs`` at a time; yield each with its tests, exit code and seconds."""
    todo, running = list(todo)[::-1], {}
    while running or (todo and time.monotonic() < until):
        while todo and len(running) < jobs and time.monotonic() < until:
            mutant, tests = todo.pop()
            running[start(mutant, tests)] = (mutant, tests, time.monotonic())
        done, status = os.waitpid(-1, os.WNOHANG)
        if done:
            mutant, tests, began = running.pop(done)
            yield mutant, tests, os.waitstatus_to_exitcode(status), time.monotonic() - began
            continue
        for child, (_, _, began) in running.items():
            if time.monotonic() - began > LIMIT_SECONDS:
                os.killpg(child, signal.SIGKILL)
        time.sleep(0.02)


def drawn(areas, count, seed):
    """As many mutants of each area, by turns, so that those that are run first are of all areas."""
    chosen = []
    for area in areas:
        every = [mutant for module, tests in AREAS[area].items() for mutant in mutants_of(area, module, tests)]
        chosen.append(random.Random(f"{seed} {area}").sample(every, min(count, len(every))))
        print(f"{area}: {len(every)} mutants, {len(chosen[-1])} drawn", flush=True)
    return [each[turn] for turn in range(count) for each in chosen if turn < len(each)]


def main():
    """Run the sample, and print what survived and the share that was killed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("areas", nargs="*", choices=[*AREAS, []], help="all of them when left out")
    parser.add_argument("--each", type=int, default=30, help="mutants of each area")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=int(os.environ.get("JOBS", "2")))
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--unchecked", action="store_true", help="do not run the tests without any change before")
    parser.add_argument("--json", type=Path, help="also write what became of each mutant")
    options = parser.parse_args()
    prepare()
    areas = options.areas or list(AREAS)
    until = time.monotonic() + 60 * options.minutes
    first = [] if options.unchecked else [(None, tests) for tests in unchanged(areas)]
    for _, tests, code, seconds in run_all(first, options.jobs, until):
        if code:
            raise SystemExit(f"the tests fail without any change (exit code {code}): {' '.join(tests)}")
        print(f"unchanged: {seconds:.0f} s for {' '.join(tests)}", flush=True)
    found = []
    todo = ((mutant, mutant.tests) for mutant in drawn(areas, options.each, options.seed))
    for mutant, _, code, seconds in run_all(todo, options.jobs, until):
        found.append({"killed": code != 0, "code": code, "seconds": round(seconds, 1), **vars(mutant)})
        if not code:
            print(f"survived ({seconds:.0f} s) {mutant.told()}", flush=True)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    sys.exit(summary(found, areas))


def prepare():
    """Set what the tests set before they import torch, and import what takes long and is not ours."""
    os.chdir(REPOSITORY)
    os.environ.update(CI="1", HF_HUB_OFFLINE="1", OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false")
    # What the tests start themselves, and pytest's plugin for several workers has no place in a fork.
    os.environ.update(PYTHONPATH=str(SOURCE), PYTEST_ADDOPTS="-p no:xdist")
    sys.path[:0] = [str(SOURCE), str(REPOSITORY)]
    for name in ("torch", "numpy", "scipy.optimize", "scipy.stats", "sklearn.linear_model", "sklearn.metrics",
                 "transformers", "tokenizers", "safetensors.torch", "hypothesis", "pytest", "pydantic"):  # fmt: skip
        importlib.import_module(name)


def unchanged(areas):
    """The test files of each area."""
    return [tuple(dict.fromkeys(test for tests in AREAS[area].values() for test in tests)) for area in areas]


def summary(found, areas):
    """Print a line for each area, and return the exit code."""
    ran, killed = (Counter(each["area"] for each in found if each["killed"] or every) for every in (True, False))
    for area in areas:
        print(f"{area}: {killed[area]} of {ran[area]} killed")
    share = killed.total() / max(1, ran.total())
    print(f"together: {killed.total()} of {ran.total()} killed, {share:.1%}; at least {LEAST:.0%} are wanted")
    return int(share < LEAST)


if __name__ == "__main__":
    main()
