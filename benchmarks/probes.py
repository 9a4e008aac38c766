"""Probes of encoders: what linear models find in their frozen states, and what fine-tuning makes of them.

``python -m benchmarks probes --contestants FOLDER...`` measures each folder, and beside it the same encoder with random
weights. SST-2 by logistic regression on mean states, UD EWT by logistic regression on the state of each
word's first piece, STS-B by the cosine of mean states without any training, and SST-2 by `TextClassifier.fit` at its
defaults. The strength of a probe is chosen on validation rows.

Shapes: N rows, W words, H hidden.
"""

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from scipy.stats import spearmanr
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.harness import DATA, Options, say, table, write_results
from benchmarks.texts import read_rows

STRENGTHS = (0.01, 0.1, 1.0)
SENTENCES = 2_000
"""Sentences of UD EWT that a probe learns from."""

PROBES = ("SST-2, probe", "UD EWT, probe", "STS-B, cosine", "SST-2, fine-tuned")


def run(options: Options) -> Path:
    """Measure and write the results."""
    if not options.contestants:
        raise SystemExit("expected the folders of encoders: python -m benchmarks probes --contestants FOLDER...")
    figures: dict[str, dict[str, float]] = {}
    for folder in options.contestants:
        for name, path in ((Path(folder).name, folder), (f"{Path(folder).name}, random weights", None)):
            say(f"probes: {name}")
            with TemporaryDirectory(prefix="bothways-benchmark-") as scratch:
                figures[name] = _probe(path or _random(folder, scratch), options)
    rows = [[name, *(f"{found[each]:.3f}" for each in PROBES)] for name, found in figures.items()]
    text = "Accuracy, and Spearman's correlation for STS-B, on the test rows; one run.\n\n"
    return write_results("probes", options, figures, text + table(("encoder", *PROBES), rows))


def _random(folder: str, scratch: str) -> str:
    """Write an encoder of the same configuration with weights as they are drawn, and return its folder."""
    from bothways import load
    from bothways.encoder.encoder import initialize

    model = load(folder)
    initialize(model.encoder, model.config.initializer_range)
    model.write(Path(scratch), {})
    return scratch


def _probe(folder: str, options: Options) -> dict[str, float]:
    from bothways import SentenceEmbedder, TextClassifier

    few = slice(100 if options.quick else None)
    sst2 = {part: read_rows(DATA / "sst2" / f"{part}.jsonl.gz")[few] for part in ("train", "validation", "test")}
    stsb = read_rows(DATA / "stsb" / "test.jsonl.gz")[few]
    embedder = SentenceEmbedder.from_pretrained(folder, pooling="mean")
    vectors = {part: embedder.encode([row["text"] for row in rows]) for part, rows in sst2.items()}
    labels = {part: [row["label"] for row in rows] for part, rows in sst2.items()}
    firsts, seconds = (embedder.encode([row[side] for row in stsb]) for side in ("text_a", "text_b"))
    classifier = TextClassifier.from_pretrained(folder)
    classifier.fit(sst2["train"], validation=sst2["validation"], seed=1, show_progress=False)
    found = dict(zip(PROBES, (_accuracy(vectors, labels), _tagging(folder, options)), strict=False))
    cosines = (firsts * seconds).sum(1)
    found[PROBES[2]] = float(spearmanr(cosines, [row["score"] for row in stsb]).statistic)
    predicted = classifier.predict([row["text"] for row in sst2["test"]])
    found[PROBES[3]] = float(
        np.mean([one.label == label for one, label in zip(predicted, labels["test"], strict=True)])
    )
    return found


def _tagging(folder: str, options: Options) -> float:
    few = slice(50 if options.quick else SENTENCES)
    rows = {part: read_rows(DATA / "ud_ewt_pos" / f"{part}.jsonl.gz")[few] for part in ("train", "validation", "test")}
    states = {part: _word_states(folder, [row["tokens"] for row in some]) for part, some in rows.items()}
    return _accuracy(states, {part: [tag for row in some for tag in row["tags"]] for part, some in rows.items()})


def _word_states(folder: str, sentences: Sequence[Sequence[str]]) -> np.ndarray:
    """Return the last state of each word's first piece (W, H); of a sentence that is cut, zeros for the rest."""
    import torch

    from bothways import load
    from bothways.packing import pack

    model = load(folder)
    limit = (model.config.max_length or 512) - 2
    found: list[np.ndarray] = []
    for words in sentences:
        pieces = model.tokenizer.encode_bare(list(words))
        starts = 1 + np.cumsum([0, *map(len, pieces[:-1])])
        ids = [model.tokenizer.cls_id, *[piece for word in pieces for piece in word][:limit], model.tokenizer.sep_id]
        with torch.inference_mode():
            states_TH = model.encoder(pack([ids], [[0] * len(ids)])).numpy()
        kept_WH = np.zeros((len(words), states_TH.shape[1]), dtype=np.float32)
        inside = starts < len(ids) - 1
        kept_WH[inside] = states_TH[starts[inside]]
        found.append(kept_WH)
    return np.concatenate(found)


def _accuracy(states: dict[str, np.ndarray], labels: dict[str, list[str]]) -> float:
    """Return the test accuracy of the probe that is best on the validation rows."""
    probes: list[Any] = [
        make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=300)).fit(
            states["train"], labels["train"]
        )
        for strength in STRENGTHS
    ]
    best = max(probes, key=lambda probe: probe.score(states["validation"], labels["validation"]))
    return float(best.score(states["test"], labels["test"]))
