"""Every command that lacks a column names the option that names it, or the column to rename; the advice works."""

import re
import shlex
import shutil
from collections import Counter
from pathlib import Path

import pytest
from command_line import call, read_jsonl, write_jsonl

from bothways.errors import InvalidInput
from bothways.text.tokenizer import TextTokenizer
from traced_paths import FROZEN

TEXTS = [f"w{number % 9 + 5} w{number % 7 + 5} w{number % 4 + 5}" for number in range(41)]
ROWS = range(40)
DATA = {
    "texts": [{"uid": f"x{at}", "review_body": TEXTS[at], "stars": ("ant", "bee", "cow")[at % 3]} for at in ROWS],
    "sentences": [
        {"premise": TEXTS[at], "hypothesis": TEXTS[at + 1], "gold": ("same", "other")[at % 2]} for at in ROWS
    ],
    "scored": [{"sentence1": TEXTS[at], "sentence2": TEXTS[at + 1], "similarity": at % 5} for at in ROWS],
    "triplets": [{"query": TEXTS[at], "pos": TEXTS[at + 1], "neg": TEXTS[at - 1]} for at in ROWS],
    "questions": [
        {"query": TEXTS[at], "paragraph": TEXTS[at + 1], "answer": {"text": ["w"], "answer_start": [0]}} for at in ROWS
    ],
    "words": [{"words": TEXTS[at].split(), "ner": ["B-PER", "O", "O"]} for at in ROWS],
    "choices": [{"startphrase": TEXTS[at], "endings": [TEXTS[at], TEXTS[at + 1]], "gold": at % 2} for at in ROWS],
    "triples": [
        {"question": TEXTS[at], "document": TEXTS[at + 1], "response": TEXTS[at - 1], "context_relevance": at % 2}
        for at in ROWS
    ],
    "others": [{"premise": TEXTS[at]} for at in ROWS],
    "usual": [{"text": TEXTS[at], "label": ("ant", "bee", "cow")[at % 3]} for at in ROWS],
    "indexed": [{"id": f"x{at}", "text": TEXTS[at], "year": at} for at in range(41)],
}
COMMANDS = [
    "train classification {tiny} --train texts --output out",
    "train classification {tiny} --train usual --validation texts --output out",
    "train classification {tiny} --train usual --out-of-domain others --output out",
    "train pairs {tiny} --train sentences --output out",
    "train question-answering {tiny} --train questions --output out",
    "train tagging {tiny} --train words --output out",
    "train multiple-choice {tiny} --train choices --output out",
    "train embedding {tiny} --train scored --output out",
    "train embedding {tiny} --train triplets --anchor text --output out",
    "train embedding {tiny} --train triplets --negative bad --output out",
    "train embedding {tiny} --train texts --label stars --output out",
    "train embedding {tiny} --train texts --teacher {tiny} --output out",
    "train multitask {tiny} --task one=texts --task two=words:tokens:tags:tagging --output out",
    "train multitask {tiny} --task one=usual --task two=usual --validation one=texts --output out",
    "adapt {tiny} --data texts --output out",
    "distill {frozen}/classifier --data texts --validation texts --layers 1 --output out",
    "distill {frozen}/tagger --data texts --layers 1 --output out",
    "distill {frozen}/tagger --data words --layers 1 --output out",
    "distill {tiny} --data texts --layers 1 --updates 1 --output out",
    "pretrain --recipe bert --tokenizer {tiny} --data texts --updates 1 --output out",
    "tokenizer train --data texts --vocabulary 64 --output out",
    "tokenize {tiny} --data texts",
    "tokenize {frozen}/tagger --data words",
    "tokenize {frozen}/answerer --data questions",
    "tokenize --compare {tiny} {frozen}/tagger --data texts",
    "embed {tiny} --data texts --output out.npy",
    "fill-mask {frozen}/masked_lm --data texts",
    *(
        f"{command} {{frozen}}/{model} --data {data}{more}"
        for command, more in (("predict", ""), ("evaluate", ""), ("check", " --record out.json"))
        for model, data in (
            ("classifier", "texts"),
            ("pairs", "sentences"),
            ("answerer", "questions"),
            ("tagger", "words"),
            ("chooser", "choices"),
            ("embedder", "scored"),
            ("ensemble_mean", "texts"),
            ("ensemble_tags", "words"),
        )
    ),
    "predict {frozen}/tagger --data texts",
    "predict {frozen}/multitask --data texts",
    "evaluate {tiny} --task ranking --relevant same --data sentences",
    "evaluate {tiny} --task similarity --data scored",
    "evaluate {frozen}/classifier --data usual --text text --label label --out-of-domain others",
    "compare {frozen}/tagger {frozen}/tagger_b --data words",
    "ensemble {frozen}/tagger {frozen}/tagger_b --calibrate words --output out",
    "quantize {frozen}/answerer --data questions --output out",
    "quantize {frozen}/tagger --data words --output out",
    "search build {tiny} --data texts --field year --id key --output out",
    "search add index --data texts",
    "search delete index --data texts",
    "search evaluate index --queries texts --qrels qrels.tsv",
    "search mine index --data triplets --output out.jsonl",
    "explain heads {tiny} --data texts",
    "audit-data texts --embedder {tiny}",
    "judge train {tiny} --train triples --dimension context_relevance --output out",
]


@pytest.fixture
def here(files, tmp_path, monkeypatch):
    """A folder with the files, in which no text is tokenized: what has to be told is found before that."""
    monkeypatch.chdir(tmp_path)
    for name, rows in DATA.items():
        write_jsonl(tmp_path / f"{name}.jsonl", rows)
    (tmp_path / "qrels.tsv").write_text("query_id\tdoc_id\trelevance\nx1\tx1\t1\n")
    shutil.copytree(index_of(files), tmp_path / "index")

    def encode(self, texts, *given, **options):
        if "w5" in str(texts):
            raise InvalidInput("the rows were read")
        return usual(self, texts, *given, **options)  # the tokens around a text

    usual = TextTokenizer.encode
    monkeypatch.setattr(TextTokenizer, "encode", encode)
    return tmp_path


def index_of(files):
    """A search index with a field, which is built once."""
    folder = files / "index with years"
    if not folder.exists():
        rows = write_jsonl(files / "with years.jsonl", DATA["indexed"])
        built = call("search", "build", files / "tiny", "--data", rows, "--field", "year", "--output", folder)
        assert built.code == 0, built.err
    return folder


def follow(words, message):
    """Return the words of the command as the message advises, or rename a column in the file that it names."""
    if found := re.search(r"Did you mean (--[a-z-]+ .*)\?$", message, re.MULTILINE):
        option, *value = shlex.split(found[1])
        if option == "--task":
            name = value[0].partition("=")[0]
            return [
                value[0] if word.startswith(f"{name}=") and words[at - 1] == "--task" else word
                for at, word in enumerate(words)
            ]
        if option in words:
            place = words.index(option)
            return [*words[:place], option, *value, *words[place + 2 :]]
        return [*words, option, *value]
    renamed = re.search(r"Rename (.+) to '(\w+)'\.$", message, re.MULTILINE)
    assert renamed, message
    (old,), path = shlex.split(renamed[1]), Path(re.search(r"of '(\S+\.jsonl)'", message)[1])
    rows = read_jsonl(path)
    assert old in rows[0], message
    write_jsonl(path, [{renamed[2] if name == old else name: value for name, value in row.items()} for row in rows])
    return words


@pytest.mark.parametrize("line", COMMANDS)
def test_a_missing_column_is_named_and_the_advice_works(line, files, here):
    files_named = re.compile(rf"\b({'|'.join(DATA)})(?=[ :]|$)")
    words = files_named.sub(r"\1.jsonl", line).format(tiny=files / "tiny", frozen=FROZEN).split()
    advised = Counter()
    while "column" in (message := call(*words).err):
        advised[message] += 1
        assert advised[message] == 1, message  # the advice has changed something
        words = follow(words, message)
    assert advised, message
    read = ("the rows were read", "nothing to measure")
    assert not message.startswith("error") or any(each in message for each in read), message
