"""``bothways search``: build, change and query an index of texts."""

import itertools
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter
from cyclopts.validators import Number

import bothways.data
from bothways import checkpoints, compose, retrieval, tasks
from bothways.choices import Overflow, SimilarityName
from bothways.cli import inputs
from bothways.cli import options as opt
from bothways.cli.printing import counted, note, one_line, print_json, print_table, printable, six_digits
from bothways.errors import InvalidInput, PromptsDiffer
from bothways.progress import reporting
from bothways.tasks.embedding.spec import PromptOptions, QueryPromptOptions
from bothways.tasks.registry import stored_task
from bothways.text.characters import VISIBLE

if TYPE_CHECKING:
    from bothways.data import Row
    from bothways.retrieval import EncoderIdentity, Hit, Mode, Rerank, SearchIndex, SemanticSearch
    from bothways.retrieval.lexical import Passage
    from bothways.retrieval.ranking import Fields
    from bothways.tasks import SentenceEmbedder
    from bothways.tasks.embedding.representation import Role

_BUILD_EXAMPLE = """\
Example:
  bothways search build --model sentence-transformers/all-MiniLM-L6-v2 \\
    --data corpus.jsonl.gz --text text --id id --field year --output index/"""
_ADD_EXAMPLE = """\
Example:
  bothways search add index/ --data more.jsonl.gz --text text --id id"""
_DELETE_EXAMPLE = """\
Example:
  bothways search delete index/ doc-17 doc-18"""
_QUERY_EXAMPLE = """\
Examples:
  bothways search query index/ "some words" --top 5 --json
  bothways search query index/ "some words" --mode lexical --filter 'year>=2020'"""

ModeName = Literal["dense", "lexical", "bm25", "hybrid"]
SearchMode = Annotated[
    ModeName,
    Parameter(help="Search by meaning and words (hybrid), by meaning (dense), or by words (lexical or bm25)."),
]
IndexModel = Annotated[str | None, Parameter(help="Folder of the embedder that built the index, if it was moved.")]

_ID = "id"
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


_PROMPT_TITLE = "Vectors: prompt"
PROMPT = opt.group_of(_PROMPT_TITLE, opt.options_of(PromptOptions))
_BUILD_PROMPTS = opt.group_of(_PROMPT_TITLE, (*opt.options_of(PromptOptions), *opt.options_of(QueryPromptOptions)))
WEIGHTED = HybridOptions()
NO_RERANKER = RerankOptions()


@opt.command(_BUILD_EXAMPLE, vectors=opt.vector_options(), prompting=_BUILD_PROMPTS)
def build(
    model: str,
    *,
    data: opt.File,
    output: Path,
    text: opt.TrainedTextColumns = None,
    id: str | None = None,  # noqa: A002 (the option's name)
    field: tuple[str, ...] = (),
    language: str = "english",
    file: opt.FileOptions = opt.ANY_FILE,
    overwrite: opt.Flag = False,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    vectors: object = None,
    prompting: object = None,
    reading: opt.WindowOptions = opt.ANY_WINDOWS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Build a search index from texts.

    The index keeps the texts, their vectors for dense search and their words for lexical search. It records the prompts
    of documents and queries, and every later search uses them.

    Args:
        model: A folder, or a name such as sentence-transformers/all-MiniLM-L6-v2.
        data: Rows: .jsonl, .csv, .tsv, .txt (also .gz), .parquet, or '-' for JSON Lines on standard input.
        output: Folder for the index.
        id: Column of the texts' unique ids. Default: 'id' if the first row has it, else numbers from 0.
        field: Column to store with each text, for filters; repeat the option for several columns.
        language: Language of the stemmer for lexical search: english, french, german, ...; 'none' for no stemming.
        overwrite: Replace an existing index.
    """
    stemmer = None if language == "none" else language
    with opt.as_usage_error():
        retrieval.check_available(stemmer)
    retrieval.check_index_free(output, overwrite=overwrite)
    # Lock an index that is being replaced: a simultaneous update would undo the new index, or be lost.
    with retrieval.locked(output) if output.is_dir() else nullcontext(), reporting(False if quiet else None):
        embedder = inputs.open_embedder(model, opt.given_of(vectors), reading, opening)
        prompt, asking = _build_prompts(embedder, opt.given_of(prompting))
        source = retrieval.SourceColumns(inputs.text_columns(text, inputs.trained_columns(model, opening)), id)
        source, texts, ids, fields = _columns(inputs.given_rows((), data, source.text, file), source, field)
        with fewer_warnings(quiet=quiet):
            search = retrieval.SemanticSearch.build(
                embedder, texts, ids=ids, fields=fields, language=stemmer, prompt=prompt, query_prompt=asking
            )
        search.index.source = source
        search.save(output, overwrite=overwrite)
    if json:
        print_json({"texts": len(search.index), "dimensions": embedder.dimensions, "output": str(output)})
    elif not quiet:
        next_step = f"bothways search query {shlex.quote(str(output))} 'some words'"
        note(f"{counted(len(search.index), 'text')} in {output}\nnext: {next_step}")


@opt.command(_ADD_EXAMPLE, prompting=PROMPT)
def add(
    index: Path,
    /,
    *,
    data: opt.File,
    text: opt.TrainedTextColumns = None,
    id: str | None = None,  # noqa: A002 (the option's name)
    file: opt.FileOptions = opt.ANY_FILE,
    max_length: opt.PositiveInt | None = None,
    on_overflow: Overflow | None = None,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
    model: IndexModel = None,
    prompting: object = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Add texts to a search index.

    The texts are embedded with the model of the index. If the command fails, the index stays unchanged.

    Args:
        index: Folder of the index.
        data: File of rows, as for search build, with a column for each field that the index stores.
        id: Column of the texts' ids, which must be new to the index. Default: as for search build.
        max_length: Maximum tokens per window. Default: as when the index was built.
        on_overflow: Split longer texts into windows, fail, or truncate them. Default: as when the index was built.
    """
    with retrieval.updating(index), reporting(False if quiet else None):
        search = open_search(
            *(index, model, opening, prompting), role="document", max_length=max_length, on_overflow=on_overflow
        )
        before, known = len(search.index), search.index.source
        usual = inputs.text_columns(text, search.embedder.columns) if known is None else text or known.text
        source = retrieval.SourceColumns(usual, id if known is None else id or known.id)
        rows = inputs.given_rows((), data, source.text, file)
        _, texts, ids, fields = _columns(rows, source, search.index.field_names)
        search.add(texts, ids=ids, fields=fields)
        search.save(index, overwrite=True)
    _report_change("added", len(search.index) - before, search.index, json=json, quiet=quiet)


@opt.command(_DELETE_EXAMPLE)
def delete(
    index: Path,
    /,
    *ids: str,
    data: opt.File | None = None,
    id: str | None = None,  # noqa: A002 (the option's name)
    file: opt.FileOptions = opt.ANY_FILE,
    json: opt.Json = False,
    quiet: opt.Quiet = False,
) -> None:
    """Delete texts from a search index by their ids.

    If the command fails, the index stays unchanged.

    Args:
        index: Folder of the index.
        ids: Ids of the texts to delete.
        data: Rows with the ids, instead of IDS: .jsonl, .csv, .txt and so on, or '-' for JSON Lines on standard input.
        id: Column of the ids in the data. Default: as for search build, else 'id'.
    """
    inputs.check_given(ids, data)
    with retrieval.updating(index), reporting(False if quiet else None):
        opened = retrieval.SearchIndex.open(index)
        before = len(opened)
        column = id or (opened.source and opened.source.id) or _ID
        rows = inputs.given_rows(ids, data, (column,), file)
        opened.delete(bothways.data.class_label(bothways.data.value_at(row, column, "id")) for row in rows)
        opened.save(index, overwrite=True)
    _report_change("deleted", before - len(opened), opened, json=json, quiet=quiet)


@opt.command(_QUERY_EXAMPLE, prompting=PROMPT)
def query(
    index: Path,
    /,
    *words: str,
    top: opt.PositiveInt = 5,
    mode: SearchMode = "hybrid",
    filter: tuple[str, ...] = (),  # noqa: A002 (the option's name)
    json: opt.Flag = False,
    model: IndexModel = None,
    hybrid: HybridOptions = WEIGHTED,
    reranking: RerankOptions = NO_RERANKER,
    prompting: object = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Search an index with a query.

    Prints the best texts first: for each, the passage with the most words of the query, and the title if the index was
    built with --field title. --json prints whole texts. Scores are similarities (dense: cosine or dot product),
    BM25 (lexical), a combination of both (hybrid), or those of the reranker. A note says when probably nothing fits.

    Args:
        index: Folder of the index.
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
    search = open_search(index, model, opening, prompting, modes=[mode])
    hits = search.search(text, top, mode=mode_of(mode, hybrid), filters=filters, rerank=rerank)
    score = _score_name(mode, hybrid, search.index.encoder.similarity, reranking)
    if json:
        print_json(
            [
                {
                    "rank": hit.rank,
                    "id": hit.id,
                    "score": six_digits(hit.score),
                    "score_is": score,
                    "text": hit.text,
                    "fields": dict(hit.fields),
                }
                for hit in hits
            ]
        )
    elif hits:
        _print_hits(hits, [search.index.passage(text, hit.text) for hit in hits], score)
    if not hits:
        note("nothing found: no text has a word of the query" + (" and passes the filters." if filters else "."))
    elif mode_name(mode) != "lexical" and (doubt := retrieval.evidence_of(search, text, filters).summary()):
        note(doubt)


def _score_name(mode: ModeName, hybrid: HybridOptions, similarity: SimilarityName, reranking: RerankOptions) -> str:
    """Return the meaning of the scores of hits, in words."""
    if reranking.reranker is not None:
        return "score of the reranker"
    if mode_name(mode) == "lexical":
        return "BM25"
    alike = "cosine" if similarity == "cosine" else "dot product"
    if mode == "dense":
        return alike
    if hybrid.fusion == "reciprocal":
        return "sum of reciprocal ranks"
    weight = hybrid.dense_weight
    return f"{weight:g} x {alike} + {1 - weight:g} x BM25, each scaled to 0..1 over the candidates of the query"


def _build_prompts(embedder: "SentenceEmbedder", given: dict[str, str]) -> tuple[str, str]:
    """Return the prompts of the texts and of the queries of a new index."""
    settings = embedder.fitted.settings
    with opt.as_usage_error():
        return (
            settings.prompt_of(given.get("prompt"), given.get("prompt_name"), role="document"),
            settings.prompt_of(given.get("query_prompt"), given.get("query_prompt_name"), role="query"),
        )


def open_search(
    index: Path,
    model: str | None,
    opening: opt.ModelOptions,
    prompting: object,
    *,
    role: "Role" = "query",
    modes: Sequence[ModeName] = ("hybrid",),
    max_length: int | None = None,
    on_overflow: Overflow | None = None,
) -> "SemanticSearch":
    """Open an index with its model, and check a given prompt for texts of this role; lexical search needs no model."""
    if set(map(mode_name, modes)) == {"lexical"}:
        search = retrieval.SemanticSearch(None, retrieval.SearchIndex.open(index))
    else:
        search = retrieval.SemanticSearch.open(
            index, model=model, max_length=max_length, on_overflow=on_overflow, **opening.arguments()
        )
    with opt.as_usage_error("prompt"):
        search.check_prompt(**opt.given_of(prompting), role=role)
    return search


def note_left_out(encoder: "EncoderIdentity", *, quiet: bool = False) -> None:
    """Note prompts that the model's card asks for and the index does not have."""
    for remark in () if quiet else encoder.notes():
        note(remark)


@contextmanager
def fewer_warnings(*, quiet: bool) -> Iterator[None]:
    """Leave out warnings about prompts if ``quiet``."""
    with warnings.catch_warnings():
        if quiet:
            warnings.simplefilter("ignore", PromptsDiffer)
        yield


def mode_name(mode: ModeName) -> ModeName:
    """Return ``lexical`` for ``bm25``, and other names unchanged."""
    return "lexical" if mode == "bm25" else mode


def mode_of(name: ModeName, hybrid: HybridOptions) -> "Mode":
    """Return the search mode with this name and these options."""
    if name == "dense":
        return retrieval.Dense()
    if mode_name(name) == "lexical":
        return retrieval.Lexical()
    weighted = hybrid.fusion == "weighted"
    fusion = retrieval.Weighted(hybrid.dense_weight) if weighted else retrieval.ReciprocalRank()
    return retrieval.Hybrid(fusion, hybrid.depth)


def rerank_of(options: RerankOptions, opening: opt.ModelOptions) -> "Rerank | None":
    """Open the reranker of the options, if they name one."""
    if options.reranker is None:
        if options.relevant is not None:
            raise opt.usage_error("--relevant needs --reranker: it names the label of relevant passages.")
        return None
    found = checkpoints.locate(options.reranker, download=opening.download, allow_pickle=opening.allow_pickle)
    task = stored_task(found.folder)
    if task not in (None, "pairs"):
        what = "an ensemble, which does not rerank" if task == compose.ENSEMBLE else f"a model for {task}"
        which = "one of its members, if they are pair models" if task == compose.ENSEMBLE else "one"
        raise opt.usage_error(
            f"--reranker must be a single pair model, which reads query and passage together, but "
            f"{options.reranker!r} is {what}. Name {which}, or train one with: bothways train pairs."
        )
    arguments = replace(opening, revision=None).arguments()  # the revision is the embedder's
    pairs = tasks.PairClassifier.from_pretrained(options.reranker, **arguments)
    with opt.as_usage_error():
        return retrieval.Rerank(retrieval.CrossEncoder(pairs, options.relevant), options.rerank_depth)


def _columns(
    rows: "Iterable[Row]", source: "retrieval.SourceColumns", fields: Sequence[str]
) -> "tuple[retrieval.SourceColumns, Iterator[str], Iterator[str] | None, Iterator[Fields] | None]":
    """Return the columns that are read of rows, with the column ``id`` if there is one, and three streams of them.

    The streams are the texts, the ids and the fields of the same rows.
    """
    rows = iter(rows)
    first = list(itertools.islice(rows, 1))
    if source.id is None and first and _ID in first[0].values:
        source = replace(source, id=_ID)
    for_text, for_id, for_fields = itertools.tee(itertools.chain(first, rows), 3)
    # The index checks the values of fields.
    kept: Iterator[Fields] = ({name: bothways.data.value_at(row, name) for name in fields} for row in for_fields)  # type: ignore[misc]
    ids = None if source.id is None else _different_ids(for_id, source.id)
    return source, inputs.texts_of(for_text, source.text), ids, kept if fields else None


def _different_ids(rows: "Iterable[Row]", column: str) -> Iterator[str]:
    """Yield the ids of texts; a repeated id is an error."""
    seen: dict[str, int] = {}
    for row in rows:
        name = bothways.data.class_label(bothways.data.value_at(row, column, "id"))
        before = seen.setdefault(name, row.number)
        if before != row.number:
            unit = "line" if "line" in row.where else "row"
            raise InvalidInput(
                f"{row.where}: the id {name!r} in {column!r} is also the id of {unit} {before}. "
                "Ids must be unique: drop one of the two."
            )
        yield name


def _report_change(verb: str, count: int, index: "SearchIndex", *, json: bool, quiet: bool) -> None:
    if json:
        print_json({verb: count, "texts": len(index)})
    elif not quiet:
        note(f"{counted(count, 'text')} {verb}, {len(index):,} in the index")


def _print_hits(hits: "list[Hit]", passages: "list[Passage]", score: str) -> None:
    """Print a table on a terminal, else lines of tab-separated score, id, title (if the index has it) and passage."""
    if not sys.stdout.isatty():
        for hit, passage in zip(hits, passages, strict=True):
            titles = [one_line(_title(hit))] if _TITLE in hit.fields else []
            print("\t".join([f"{hit.score:.4f}", one_line(hit.id), *titles, printable(passage.text)]))
        return
    from rich.text import Text

    rows = []
    for hit, passage in zip(hits, passages, strict=True):
        shown = Text(f"{one_line(title)}\n" if (title := _title(hit)) else "", "underline")
        for part, marked in passage.parts():
            shown.append(printable(part), "bold not underline" if marked else "not underline")
        rows.append((f"{hit.score:.3f}", one_line(hit.id), shown))
    print_table((">score", "~id", "~text"), rows)
    print(f"\nscore: {score}")


def _title(hit: "Hit") -> str:
    title = hit.fields.get(_TITLE)
    return "" if title is None else str(title)
