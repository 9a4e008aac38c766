"""``bothways search query``, and the options of every search: modes, prompts, rerankers."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways import checkpoints, retrieval, tasks
from bothways.choices import Overflow
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import note, one_line, print_json, print_table, printable
from bothways.progress import figure, six_digits
from bothways.tasks.embedding.spec import PromptOptions
from bothways.tasks.registry import stored_task
from bothways.text.characters import VISIBLE

if TYPE_CHECKING:
    from bothways.retrieval import EncoderIdentity, Hit, Mode, Rerank, SemanticSearch, VectorStore
    from bothways.retrieval.lexical import Passage
    from bothways.tasks.embedding.representation import Role

_QUERY_EXAMPLE = """\
Examples:
  bothways search query index/ "some words" --top 5 --json
  bothways search query index/ "some words" --mode lexical --filter 'year>=2020'
  bothways search query postgresql://localhost/demo#docs 'some words'"""

ModeName = Literal["dense", "lexical", "bm25", "hybrid"]
SearchMode = Annotated[
    ModeName,
    Parameter(help="Search by meaning and words (hybrid), by meaning (dense), or by words (lexical or bm25)."),
]
IndexAddress = Annotated[
    str, Parameter(help="Folder of the index, or its table in a database: postgresql://host/database#table.")
]
IndexModel = Annotated[str | None, Parameter(help="Folder of the embedder that built the index, if it was moved.")]
Exact = Annotated[
    bool,
    Parameter(
        show_default=False,
        help="Compare queries with all rows of a table. Default: follow its graph (HNSW), which may miss a few. An "
        "index in files always compares with all rows.",
    ),
]


_TITLE = "title"  # a field that is shown with each hit


@Parameter(name="*", group="Hybrid search")
@dataclass(frozen=True, slots=True)
class HybridOptions:
    """Options for combining dense and lexical scores."""

    fusion: Literal["weighted", "reciprocal"] = "weighted"
    """Score of hybrid search: a weighted mean of the dense and lexical scores, or the sum of their reciprocal ranks."""
    dense_weight: Annotated[float, Parameter(validator=Number(gte=0, lte=1))] = 0.5
    """Weight of the dense score in the weighted mean; the lexical score has the rest."""
    depth: opt.PositiveInt = 100
    """Number of candidates taken from each of the two rankings; at least the number of hits."""


@Parameter(name="*", group="Reranking")
@dataclass(frozen=True, slots=True)
class RerankOptions:
    """Options for reranking."""

    reranker: str | None = None
    """Folder of a trained pair model (query and passage) that reorders the first hits."""
    relevant: str | None = None
    """The reranker's label for relevant passages; leave it out if the reranker predicts scores or grades."""
    rerank_depth: opt.PositiveInt = 50
    """Number of hits to rerank."""


PROMPT_TITLE = "Vectors: prompt"
PROMPT = opt.group_of(PROMPT_TITLE, opt.options_of(PromptOptions))
WEIGHTED = HybridOptions()
NO_RERANKER = RerankOptions()


@opt.command(_QUERY_EXAMPLE, prompting=PROMPT)
def query(
    index: IndexAddress,
    /,
    *words: str,
    top: opt.PositiveInt = 5,
    mode: SearchMode = "hybrid",
    filter: tuple[str, ...] = (),  # noqa: A002 (the option's name)
    exact: Exact = False,
    json: opt.Flag = False,
    model: IndexModel = None,
    hybrid: HybridOptions = WEIGHTED,
    reranking: RerankOptions = NO_RERANKER,
    prompting: object = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Search an index with a query.

    Prints the best texts first: for each, the passage with the most words of the query, and the title if the index was
    built with --field title. --json prints whole texts. Scores are similarities (dense: cosine or dot product), scores
    of words (lexical: BM25; in a database IDF x ts_rank), a combination of both (hybrid), or those of the reranker; the
    output names them. In a pipe or file, it is tab-separated values under a header such as 'score: cosine', id, text. A
    note says when probably nothing fits.

    Args:
        words: The query, in quotes to protect it from the shell.
        top: Number of texts to show.
        filter: Condition on a stored field: field=value, field>=number or field<=number. Repeat the option for more
            conditions; several values of one field are alternatives.
        json: Print a JSON list with the rank, id, score, text and fields of each hit.
    """
    text = " ".join(words)
    if not VISIBLE.search(text):
        raise opt.usage_error('the query is empty. Give some words: bothways search query INDEX "some words".')
    inputs.check_typed(words)
    if len(words) > 1:
        note(f'searching for "{text}"; put several words in quotes, to protect them from the shell.')
    with opt.as_usage_error():
        filters = retrieval.parse_filters(filter)
    rerank = rerank_of(reranking, opening)
    search = open_search(index, model, opening, prompting, modes=[mode], exact=exact)
    hits = search.search(text, top, mode=mode_of(mode, hybrid, exact), filters=filters, rerank=rerank)
    score = _score_name(mode, hybrid, search.index, reranking)
    if json:
        print_json([_as_json(hit, score) for hit in hits])
    else:
        _print_hits(hits, [search.index.passage(text, hit.text) for hit in hits], score)
    if not hits:
        note("nothing found: no text has a word of the query" + (" and passes the filters." if filters else "."))
    elif mode_name(mode) != "lexical" and (doubt := retrieval.evidence_of(search, text, filters, exact).summary()):
        note(doubt)


def _score_name(mode: ModeName, hybrid: HybridOptions, index: "VectorStore", reranking: RerankOptions) -> str:
    """Return the meaning of the scores of hits, in words."""
    if reranking.reranker is not None:
        return "score of the reranker"
    if mode_name(mode) == "lexical":
        return index.lexical_score
    alike = "cosine" if index.encoder.similarity == "cosine" else "dot product"
    if mode == "dense":
        return alike
    if hybrid.fusion == "reciprocal":
        return "sum of reciprocal ranks"
    weight = hybrid.dense_weight
    both = f"{weight:g} x {alike} + {1 - weight:g} x {index.lexical_score}"
    return f"{both}, each scaled to 0..1 over the candidates of the query"


def open_search(
    index: "str | VectorStore",
    model: str | None,
    opening: opt.ModelOptions,
    prompting: object,
    *,
    role: "Role" = "query",
    modes: Sequence[ModeName] = ("hybrid",),
    exact: bool = False,
    max_length: int | None = None,
    on_overflow: Overflow | None = None,
) -> "SemanticSearch":
    """Open an index with its model, and check a given prompt for texts of this role; lexical search needs no model."""
    lexical = set(map(mode_name, modes)) == {"lexical"}
    if exact and lexical:
        raise opt.usage_error("--exact is for searches by meaning (dense, hybrid), got only lexical: leave it out.")
    if exact and not retrieval.is_database(index):
        note("an index in files always compares all rows, so --exact changes nothing.")
    opened = retrieval.open_index(index) if isinstance(index, str) else index
    if lexical:
        search = retrieval.SemanticSearch(None, opened)
    else:
        search = retrieval.SemanticSearch.open(
            opened, model=model, max_length=max_length, on_overflow=on_overflow, **opening.arguments()
        )
    with opt.as_usage_error("prompt"):
        search.check_prompt(**opt.given_of(prompting), role=role)
    return search


def note_left_out(encoder: "EncoderIdentity") -> None:
    """Note prompts that the model's card asks for and the index does not have."""
    for remark in encoder.notes():
        note(remark)


def mode_name(mode: ModeName) -> ModeName:
    """Return ``lexical`` for ``bm25``, and other names unchanged."""
    return "lexical" if mode == "bm25" else mode


def mode_of(name: ModeName, hybrid: HybridOptions, exact: bool) -> "Mode":
    """Return the search mode with this name and these options."""
    if name == "dense":
        return retrieval.Dense(exact)
    if mode_name(name) == "lexical":
        return retrieval.Lexical()
    weighted = hybrid.fusion == "weighted"
    fusion = retrieval.Weighted(hybrid.dense_weight) if weighted else retrieval.ReciprocalRank()
    return retrieval.Hybrid(fusion, hybrid.depth, exact)


def rerank_of(options: RerankOptions, opening: opt.ModelOptions) -> "Rerank | None":
    """Open the reranker of the options, if they name one."""
    if options.reranker is None:
        if options.relevant is not None:
            raise opt.usage_error("--relevant needs --reranker: it names the label of relevant passages.")
        return None
    found = checkpoints.locate(options.reranker, download=opening.download, allow_pickle=opening.allow_pickle)
    task = stored_task(found.folder)
    if task not in (None, "pairs"):
        raise opt.usage_error(
            f"--reranker must be a single pair model, which reads query and passage together, but "
            f"{options.reranker!r} is of the kind {task!r}. Name another, such as one member of an ensemble, or train "
            "one with: bothways train pairs."
        )
    arguments = replace(opening, revision=None).arguments()  # the revision is the embedder's
    pairs = tasks.PairClassifier.from_pretrained(options.reranker, **arguments)
    with opt.as_usage_error():
        return retrieval.Rerank(retrieval.CrossEncoder(pairs, options.relevant), options.rerank_depth)


def _as_json(hit: "Hit", score: str) -> dict[str, object]:
    found = {"rank": hit.rank, "id": hit.id, "score": six_digits(hit.score), "score_is": score}
    return {**found, "text": hit.text, "fields": dict(hit.fields)}


def _print_hits(hits: "list[Hit]", passages: "list[Passage]", score: str) -> None:
    """Print a table on a terminal, else tab-separated values: score, id, title (if the index has it) and passage."""
    if not sys.stdout.isatty():
        titled = any(_TITLE in hit.fields for hit in hits)
        print("\t".join([f"score: {score}", "id", *[_TITLE] * titled, "text"]))
        for hit, passage in zip(hits, passages, strict=True):
            titles = [one_line(_title(hit))] * titled
            print("\t".join([figure(hit.score), one_line(hit.id), *titles, printable(passage.text)]))
    elif hits:
        _print_hits_as_table(hits, passages, score)


def _print_hits_as_table(hits: "list[Hit]", passages: "list[Passage]", score: str) -> None:
    from rich.text import Text

    rows = []
    for hit, passage in zip(hits, passages, strict=True):
        shown = Text(f"{one_line(title)}\n" if (title := _title(hit)) else "", "underline")
        for part, marked in passage.parts():
            shown.append(printable(part), "bold not underline" if marked else "not underline")
        rows.append((figure(hit.score, 3), one_line(hit.id), shown))
    print_table((">score", "~id", "~text"), rows)
    print(f"\nscore: {score}")


def _title(hit: "Hit") -> str:
    title = hit.fields.get(_TITLE)
    return "" if title is None else str(title)
