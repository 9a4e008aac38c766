"""Retrieval: how well dense, lexical and hybrid search find on a judged collection, beside plain programs for each.

Cranfield: 1,398 abstracts, 225 queries. None of its queries chose a default: those of the fusion and of BM25 were
chosen on other collections (docs/LOG.md). The peers are sentence-transformers' vectors with its own search, and bm25s
as its documentation uses it. Every side is judged by ir-measures; intervals are over queries.
"""

import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, MODEL, Options, minilm_folder, say, table, write_results
from benchmarks.texts import read_rows
from bothways import SearchIndex, SemanticSearch, SentenceEmbedder
from bothways.data import read_judgements
from bothways.evaluation import RANKING_MEASURES, Estimate, Outcomes, Report, ranking_differences, ranking_outcomes
from bothways.retrieval import Dense, Hybrid, Lexical, Mode, ReciprocalRank

HITS, RESAMPLES = 1000, 10_000
OURS: dict[str, Mode] = {
    "dense": Dense(),
    "lexical": Lexical(),
    "hybrid (weighted)": Hybrid(),
    "hybrid (reciprocal ranks)": Hybrid(ReciprocalRank()),
}
SENTENCE_TRANSFORMERS, BM25S = "sentence-transformers", "bm25s"
SHOWN = "hybrid (weighted)"

Texts = dict[str, str]
Rankings = dict[str, list[str]]


def run(options: Options) -> Path:
    """Search with every side and write the table."""
    folder = DATA / "cranfield"
    if not folder.exists():
        raise SystemExit("the retrieval benchmark needs ../shared/data/cranfield, which is not there")
    corpus: Texts = {row["id"]: row["text"] for row in read_rows(folder / "corpus.jsonl.gz")}
    queries: Texts = {row["id"]: row["text"] for row in read_rows(folder / "queries.jsonl.gz")}
    if options.quick:
        corpus, queries = dict(list(corpus.items())[:200]), dict(list(queries.items())[:20])
    judgements = read_judgements(folder / "qrels.tsv")
    sides: dict[str, Callable[[Texts, Texts], Rankings]] = {
        SENTENCE_TRANSFORMERS: _sentence_transformers,
        BM25S: _bm25s,
    }
    found: dict[str, Outcomes] = {}
    for name, rankings in _ours(corpus, queries, options).items():
        found[name] = ranking_outcomes(rankings, judgements)
    for name in options.chosen(list(sides)):
        say(f"searching: {name}")
        found[name] = ranking_outcomes(sides[name](corpus, queries), judgements)
    reports = {name: each.report(resamples=RESAMPLES) for name, each in found.items()}
    differences = {
        name: ranking_differences(found[SHOWN], each, resamples=RESAMPLES)
        for name, each in found.items()
        if name != SHOWN and SHOWN in found
    }
    figures: dict[str, Any] = {
        "queries": len(queries),
        "documents": len(corpus),
        "measures": {name: report.to_dict() for name, report in reports.items()},
        f"{SHOWN} minus": {
            name: {measure: estimate.named(measure) for measure, estimate in each.items()}
            for name, each in differences.items()
        },
    }
    return write_results("retrieval", replace(options, rounds=0), figures, _tables(reports, differences))


def _ours(corpus: Texts, queries: Texts, options: Options) -> dict[str, Rankings]:
    names = options.chosen(list(OURS))
    if not names:
        return {}
    say("building our index")
    embedder = SentenceEmbedder.from_pretrained(MODEL, device="cpu")
    with tempfile.TemporaryDirectory(prefix="bothways-benchmark-") as folder:
        SemanticSearch.build(embedder, corpus.values(), ids=corpus.keys(), show_progress=False).save(
            Path(folder) / "index"
        )
        search = SemanticSearch(embedder, SearchIndex.open(Path(folder) / "index"))
        rankings = {}
        for name in names:
            say(f"searching: {name}")
            answers = search.search(list(queries.values()), HITS, mode=OURS[name])
            rankings[name] = {query: [hit.id for hit in hits] for query, hits in zip(queries, answers, strict=True)}
    return rankings


def _sentence_transformers(corpus: Texts, queries: Texts) -> Rankings:
    from sentence_transformers import SentenceTransformer, util

    model = SentenceTransformer(str(minilm_folder()), device="cpu")
    model.max_seq_length = 512  # as everybody else: its own file says 256
    encode = partial(model.encode, convert_to_tensor=True, show_progress_bar=False)
    answers = util.semantic_search(encode(list(queries.values())), encode(list(corpus.values())), top_k=HITS)
    ids = list(corpus)
    return {query: [ids[hit["corpus_id"]] for hit in hits] for query, hits in zip(queries, answers, strict=True)}


def _bm25s(corpus: Texts, queries: Texts) -> Rankings:
    import bm25s
    import Stemmer

    tokens = partial(bm25s.tokenize, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)
    retriever = bm25s.BM25()
    retriever.index(tokens(list(corpus.values())), show_progress=False)
    rows, _ = retriever.retrieve(tokens(list(queries.values())), k=min(HITS, len(corpus)), show_progress=False)
    ids = list(corpus)
    return {query: [ids[row] for row in found] for query, found in zip(queries, rows, strict=True)}


def _tables(reports: dict[str, Report], differences: dict[str, dict[str, Estimate]]) -> str:
    header = ["", *RANKING_MEASURES]
    values = [[name, *map(_cell, report.estimates.values())] for name, report in reports.items()]
    text = f"Cranfield, MiniLM, 95 % intervals over queries.\n\n{table(header, values)}"
    if not differences:
        return text
    less = [[f"- {name}", *map(_cell, each.values())] for name, each in differences.items()]
    return f"{text}\n\n{SHOWN} minus each of the others, paired by query:\n\n{table(header, less)}"


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"
