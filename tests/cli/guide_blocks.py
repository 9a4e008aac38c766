"""Code blocks of the README and of the guides, run in a folder of files that tiny models can read.

A block of Python is executed, and what it prints is held against the block ``text`` behind it. Of a block ``console``,
each command ``$ bothways ...`` is run in this process, and what it prints is held against the lines below it; ``$ cd``
changes the working directory. Numbers
are those of real models and real texts, and are not compared: the names at the beginning of a line are. Blocks of
``bash`` are for several GPUs: only their options are checked.
"""

import io
import os
import re
import shlex
import subprocess
from contextlib import redirect_stdout
from dataclasses import dataclass

from command_line import call

PRETRAINED = "sentence-transformers/all-MiniLM-L6-v2"
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
# A name before two spaces or a colon, as in the summary of a training.
_NAME = re.compile(r"^([a-z][\w@ -]*?)(?:  +|: )")
# A row of a table of classes, whose names are those of the data.
_CLASS = re.compile(r"\d\.\d{4} \d\.\d{4} ")
# What a page says for real models is too much, or too long, for tiny ones.
_SHORTENED = {"--updates": "2", "--epochs": "2", "--max-length": "16", "--layers": "1", "--vocabulary": "80"}
_OF_TRAININGS = ("distill", "adapt", "train", "judge train")
# Commands, and calls in Python, that take seconds whatever the model.
_SLOW = ("compare-models", "recommend", "audit-data")
_SLOW_WORDS = ("here", "heads", "requests-onnx")  # the page on light installations exports every day
_SLOW_CALL = "recommend("
# They would reach for the network: it is only checked that their options exist.
_ONLINE = ("--download",)
_OTHERS = ("cd", "openssl")  # programs, beside bothways and torchrun


@dataclass(frozen=True)
class Block:
    """A block of a page: its language, its content, and the number of its first line."""

    language: str
    content: str
    line: int


@dataclass(frozen=True)
class Command:
    """The words of a command, without ``bothways``, and the output that the page shows."""

    words: tuple[str, ...]
    shown: str

    @property
    def slow(self):
        opens_model = self.words[0] == "audit" and "ModelProvenanceChecker" not in self.words
        return self.words[0] in _SLOW or opens_model or any(word in self.words for word in _SLOW_WORDS)

    def __str__(self):
        return shlex.join(("bothways", *self.words))


def blocks(page):
    """Return the fenced blocks of a page in order."""
    text = page.read_text(encoding="utf-8")
    return [Block(found[1], found[2], text.count("\n", 0, found.start()) + 1) for found in _FENCE.finditer(text)]


def commands(block):
    """Return the commands ``bothways ...`` of a console block, and those of torchrun as one process."""
    made, lines = [], block.content.replace("\\\n", " ").splitlines()
    starts = [place for place, line in enumerate(lines) if line.startswith("$ ")]
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        program, *words = shlex.split(lines[start][2:], comments=True)
        if program == "torchrun":
            words = words[words.index("bothways") + 1 :]
        elif program in _OTHERS:
            words = [program, *words]
        if program in ("bothways", "torchrun", *_OTHERS):
            made.append(Command(tuple(words), "\n".join(lines[start + 1 : end])))
    return made


def commands_of(page):
    """Return all commands of a page."""
    return [command for block in blocks(page) if block.language == "console" for command in commands(block)]


def run_page(page, tiny, *, slow):
    """Run the blocks of a page one after the other, in the working directory.

    Args:
        page: The Markdown file.
        tiny: Folder of the model that takes the place of the pretrained one.
        slow: Also run the slow commands.

    Returns:
        The names that its Python blocks leave, and everything that they printed.
    """
    names, printed, found = {}, "", blocks(page)
    for block, behind in zip(found, [*found[1:], None], strict=True):
        where = f"{page.name}:{block.line}"
        if block.language == "python" and (slow or _SLOW_CALL not in block.content):
            out = _execute(block, page, tiny, names)
            if behind is not None and behind.language == "text":
                _hold(behind.content, out, where)
            printed += out
        elif block.language == "console":
            for command in commands(block):
                if slow or not command.slow:
                    run_command(command, tiny, f"{where}: {command}")
        elif block.language == "bash":
            for line in block.content.replace("\\\n", " ").splitlines():
                if "-m bothways " in line:
                    _check_options(shlex.split(line.partition("-m bothways ")[2]), where)
    return names, printed


def run_command(command, tiny, where):
    """Run a command with a tiny model, and hold its output against what is shown of it."""
    if command.words[0] == "cd":
        os.chdir(command.words[1])
        return
    if command.words[0] in _OTHERS:
        subprocess.run(command.words, check=True, capture_output=True)
        return
    if any(option in command.words for option in _ONLINE):
        _check_options(command.words, where)
        return
    words = [word.replace(PRETRAINED, str(tiny)) for word in command.words]
    for place, word in enumerate(words[:-1]):
        words[place + 1] = _SHORTENED.get(word, words[place + 1])
    if " ".join(words).startswith(_OF_TRAININGS) and "--updates" not in words:
        words += ["--updates", "2"]
    if words[:2] == ["search", "mine"]:
        words += ["--share", "1"]  # random vectors are all alike
    outcome = call(*words)
    by_findings = words[0] == "audit" and outcome.code == 1 and "error:" not in outcome.err
    assert outcome.code == 0 or by_findings, f"{where}\n{outcome.err}"
    _hold(command.shown, outcome.out + outcome.err, where)


def _check_options(words, where):
    known = call(words[0], "--help").out
    for word in words:
        assert not word.startswith("--") or word in known, f"{where}: no option {word}"


def _execute(block, page, tiny, names):
    code = block.content.replace(PRETRAINED, str(tiny))
    with redirect_stdout(io.StringIO()) as out:
        exec(compile("\n" * block.line + code, str(page), "exec"), names)
    return out.getvalue()


def _hold(shown, out, where):
    wanted, came = _names(shown), _names(out)
    assert wanted <= came, f"{where}: {sorted(wanted - came)} not in\n{out}"


def _names(text):
    lines = (line for line in text.splitlines() if not _CLASS.search(line))
    return {re.sub(r"\d+", "N", found[1]) for line in lines if (found := _NAME.match(line))}
