"""Retrieval: how well dense, lexical and hybrid search find on a judged collection, beside plain programs for each.

Cranfield: 1,398 abstracts, 225 queries. None of its queries chose a default: those of the fusion and of BM25 were
chosen on other collections (docs/LOG.md). README.md has the peers. Every side is judged by ir-measures.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from benchmarks.harness import DATA, MODEL, Options, minilm_folder, say, table, write_results
from benchmarks.texts import read_rows
from bothways import SemanticSearch, SentenceEmbedder
from bothways.data import read_judgments
from bothways.evaluation.intervals import Estimate
from bothways.evaluation.metrics.ranking import RANKING_MEASURES, ranking_differences, ranking_outcomes
from bothways.evaluation.outcomes import Outcomes
from bothways.evaluation.report import Report
from bothways.retrieval import Dense, Hybrid, Lexical, Mode, ReciprocalRank

HITS, RESAMPLES = 1000, 10_000
OURS: dict[str, Mode] = {
    "dense": Dense(),
    "lexical": Lexical(),
    "hybrid (weighted)": Hybrid(),
    "hybrid (reciprocal ranks)": Hybrid(ReciprocalRank()),
}
SENTENCE_TRANSFORMERS, BM25S = "sentence-transformers", "bm25s"
PEERS_WEIGHTED, PEERS_RANKS = "peers' hybrid (weighted)", "peers' hybrid (reciprocal ranks)"
SHOWN = "hybrid (weighted)"
ALIKE = dict(zip(OURS, (SENTENCE_TRANSFORMERS, BM25S, PEERS_WEIGHTED, PEERS_RANKS), strict=True))
RANK_CONSTANT = 60

Texts = dict[str, str]
Rankings = dict[str, list[str]]
# By query, the scores of its documents, best first.
Scored = dict[str, dict[str, float]]
Differences = dict[str, dict[str, Estimate]]


def run(options: Options) -> Path:
    """Search with every side and write the table."""
    folder = DATA / "cranfield"
    if not folder.exists():
        raise SystemExit("the retrieval benchmark needs ../shared/data/cranfield, which is not there")
    corpus: Texts = {row["id"]: row["text"] for row in read_rows(folder / "corpus.jsonl.gz")}
    queries: Texts = {row["id"]: row["text"] for row in read_rows(folder / "queries.jsonl.gz")}
    if options.quick:
        corpus, queries = dict(list(corpus.items())[:200]), dict(list(queries.items())[:20])
    judgments = read_judgments(folder / "qrels.tsv")
    found: dict[str, Outcomes] = {}
    for name, rankings in {**_ours(corpus, queries, options), **_peers(corpus, queries, options)}.items():
        found[name] = ranking_outcomes(rankings, judgments)
    reports = {name: each.report(resamples=RESAMPLES) for name, each in found.items()}

    def less(pairs: Iterable[tuple[str, str]]) -> Differences:
        """Subtract each second from its first, where both were run."""
        return {
            f"{ours} - {other}": ranking_differences(found[ours], found[other], resamples=RESAMPLES)
            for ours, other in pairs
            if ours in found and other in found
        }

    differences = less((SHOWN, name) for name in found if name != SHOWN)
    alike = less(ALIKE.items())
    figures: dict[str, Any] = {
        "queries": len(queries),
        "documents": len(corpus),
        "measures": {name: report.to_dict() for name, report in reports.items()},
        "differences": {
            name: {measure: estimate.named(measure) for measure, estimate in each.items()}
            for name, each in {**differences, **alike}.items()
        },
    }
    return write_results("retrieval", replace(options, rounds=0), figures, _tables(reports, differences, alike))


def _ours(corpus: Texts, queries: Texts, options: Options) -> dict[str, Rankings]:
    names = options.chosen(list(OURS))
    if not names:
        return {}
    say("building our index")
    embedder = SentenceEmbedder.from_pretrained(MODEL, device="cpu")
    search = SemanticSearch.build(embedder, corpus.values(), ids=corpus.keys(), show_progress=False)
    rankings = {}
    for name in names:
        say(f"searching: {name}")
        answers = search.search(list(queries.values()), HITS, mode=OURS[name])
        rankings[name] = {query: [hit.id for hit in hits] for query, hits in zip(queries, answers, strict=True)}
    return rankings


def _peers(corpus: Texts, queries: Texts, options: Options) -> dict[str, Rankings]:
    """Search with each peer, and fuse both."""
    dense, lexical = (cache(partial(each, corpus, queries)) for each in (_sentence_transformers, _bm25s))
    sides: dict[str, Callable[[], Scored]] = {
        SENTENCE_TRANSFORMERS: dense,
        BM25S: lexical,
        PEERS_WEIGHTED: lambda: fused(dense(), lexical(), zero_to_one),
        PEERS_RANKS: lambda: fused(dense(), lexical(), reciprocal_ranks),
    }
    return {
        name: {query: list(scores) for query, scores in sides[name]().items()} for name in options.chosen(list(sides))
    }


def _sentence_transformers(corpus: Texts, queries: Texts) -> Scored:
    from sentence_transformers import SentenceTransformer, util

    say(f"searching: {SENTENCE_TRANSFORMERS}")
    model = SentenceTransformer(str(minilm_folder()), device="cpu")
    model.max_seq_length = 512  # as everybody else: its own file says 256
    encode = partial(model.encode, convert_to_tensor=True, show_progress_bar=False)
    answers = util.semantic_search(encode(list(queries.values())), encode(list(corpus.values())), top_k=HITS)
    ids = list(corpus)
    return {
        query: {ids[hit["corpus_id"]]: hit["score"] for hit in hits}
        for query, hits in zip(queries, answers, strict=True)
    }


def _bm25s(corpus: Texts, queries: Texts) -> Scored:
    import bm25s
    import Stemmer

    say(f"searching: {BM25S}")
    tokens = partial(bm25s.tokenize, stopwords="en", stemmer=Stemmer.Stemmer("english"), show_progress=False)
    retriever = bm25s.BM25()
    retriever.index(tokens(list(corpus.values())), show_progress=False)
    rows, scores = retriever.retrieve(tokens(list(queries.values())), k=min(HITS, len(corpus)), show_progress=False)
    ids = list(corpus)
    return {
        query: {ids[row]: float(score) for row, score in zip(*each, strict=True)}
        for query, *each in zip(queries, rows, scores, strict=True)
    }


def reciprocal_ranks(scores: dict[str, float]) -> dict[str, float]:
    """Return 1 / (60 + rank) of each document of a ranking."""
    return {document: 1 / (RANK_CONSTANT + rank) for rank, document in enumerate(scores, 1)}


def zero_to_one(scores: dict[str, float]) -> dict[str, float]:
    """Scale scores from 0 to 1."""
    low, high = min(scores.values(), default=0), max(scores.values(), default=0)
    return {document: (score - low) / (high - low or 1) for document, score in scores.items()}


def fused(dense: Scored, lexical: Scored, points: Callable[[dict[str, float]], dict[str, float]]) -> Scored:
    """Merge two rankings by the sum of their ``points``, which are 0 for a document that was not found.

    bm25s fills its list with documents that share no word with the query; these count as not found.
    """
    answers: Scored = {}
    for query, by_meaning in dense.items():
        by_words = {document: score for document, score in lexical[query].items() if score > 0}
        total: dict[str, float] = {}
        for each in (points(by_meaning), points(by_words)):
            for document, found in each.items():
                total[document] = total.get(document, 0.0) + found
        answers[query] = dict(sorted(total.items(), key=lambda each: -each[1])[:HITS])
    return answers


def _tables(reports: dict[str, Report], differences: Differences, alike: Differences) -> str:
    values = [[name, *map(_cell, report.estimates.values())] for name, report in reports.items()]
    parts = [
        f"Cranfield, MiniLM, 95 % intervals over queries. Peers' hybrid: of {SENTENCE_TRANSFORMERS}' and {BM25S}' "
        f"first {HITS:,}, by the sum of scores brought to 0 to 1, or of 1 / ({RANK_CONSTANT} + rank).",
        table(["", *RANKING_MEASURES], values),
    ]
    for title, found in ((f"{SHOWN} minus each of the others", differences), ("Each minus its peer", alike)):
        if found:
            rows = [[name, *map(_difference, each.values())] for name, each in found.items()]
            parts += [
                f"{title}, paired by query; a tie where the interval includes 0:",
                table(["", *RANKING_MEASURES], rows),
            ]
    return "\n\n".join(parts)


def _difference(estimate: Estimate) -> str:
    return _cell(estimate) + (", tie" if estimate.low <= 0 <= estimate.high else "")


def _cell(estimate: Estimate) -> str:
    return f"{estimate.value:.4f} ({estimate.low:.4f} to {estimate.high:.4f})"
