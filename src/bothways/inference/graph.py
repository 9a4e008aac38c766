"""Inference with an exported graph, in onnxruntime and NumPy: the same results as with `Runner`, without torch.

A batch is padded to its longest window. Windows of similar length share a batch, whose tokens, padding included, stay
within the budget.

Shapes: B windows of a batch, S longest window, n tokens of one window, K outputs of the graph for each window, or for
each token, V vocabulary.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Protocol
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from bothways.errors import MissingDependency
from bothways.inference.queries import (
    MOST_LOGITS,
    Among,
    Best,
    Named,
    Query,
    RankedTokens,
    refused_tokens,
)
from bothways.inference.texts import SCHEDULE, Row, TokenBudget, TokenIds, by_padded_budget
from bothways.text import TextTokenizer
from bothways.threads import compute_threads, cores_are_shared

OUTPUT = "rows"
# Larger batches pad more and exceed the caches: with 2,048 tokens, sentences take 17 % longer, passages a little.
GRAPH_TOKENS = 512
# Value of attention_mask at the token that a masked language model predicts.
ASKED = 2


class _Port(Protocol):
    name: str
    shape: Sequence[object]


class _Session(Protocol):
    """A session of onnxruntime, which has no types."""

    def run(self, outputs: list[str], feeds: Mapping[str, NDArray[np.int64]]) -> list[NDArray[np.float32]]: ...

    def get_inputs(self) -> list[_Port]: ...


class Graph:
    """An exported graph, opened on its first run; a forked or spawned process opens it anew.

    Several threads may run it at once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._lock = Lock()
        self._session: _Session | None = None
        self._inputs: tuple[str, ...] = ()
        self._grouped = False

    def __reduce__(self) -> tuple[type["Graph"], tuple[Path]]:
        return Graph, (self.path,)

    def rows(self, windows: Sequence[TokenIds], places: Sequence[int] | None = None) -> NDArray[np.float32]:
        """Return the outputs for a batch of windows: (B, K), or (B, S, K) for a graph with outputs for each token.

        Windows are padded on the right; for a masked language model, ``places`` are the positions to predict.
        """
        longest = max(len(window.ids) for window in windows)
        ids, mask, types = (np.zeros((len(windows), longest), dtype=np.int64) for _ in range(3))
        for row, window in enumerate(windows):
            length = len(window.ids)
            ids[row, :length], types[row, :length], mask[row, :length] = window.ids, window.types, 1
        if places is not None:
            mask[np.arange(len(windows)), list(places)] = ASKED
        session = self._opened()
        made = {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}
        # A graph for multiple choice has one more dimension; here each window is a single choice.
        feeds = {name: made[name][:, None] if self._grouped else made[name] for name in self._inputs}
        found: NDArray[np.float32] = session.run([OUTPUT], feeds)[0]
        return found[:, 0] if self._grouped else found

    def _opened(self) -> _Session:
        with self._lock:
            if self._session is None:
                self._session = _session(self.path)
                ports = self._session.get_inputs()
                self._inputs, self._grouped = tuple(port.name for port in ports), len(ports[0].shape) == 3
                _opened_here.add(self)
            return self._session


def _session(path: Path) -> _Session:
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingDependency.of("onnxruntime", extra="light", purpose="running an exported model") from error
    options, threads = onnxruntime.SessionOptions(), compute_threads()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    if cores_are_shared(threads):
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    session: _Session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    return session


_opened_here: WeakSet[Graph] = WeakSet()
# Sessions of the parent process. A fork does not copy their threads, and deleting a session waits for them.
_inherited: list[_Session | None] = []


def _leave_inherited_sessions() -> None:
    for graph in _opened_here:
        _inherited.append(graph._session)
        graph._session, graph._lock = None, Lock()
    _opened_here.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_inherited_sessions)


class GraphRunner:
    """Computes the outputs of windows with an exported graph, as `Runner` does with a torch model.

    Padding counts towards the token budget.
    """

    def __init__(self, graph: Graph, *, per_token: bool, budget: TokenBudget) -> None:
        self._graph = graph
        self._per_token = per_token
        self.budget = budget

    def run(self, windows: Sequence[TokenIds]) -> list[Row]:
        if (schedule := SCHEDULE.get()) is not None:
            return schedule.run(self, windows)
        found: dict[int, Row] = {}
        for batch in by_padded_budget([len(window.ids) for window in windows], self.budget.tokens):
            rows = self._graph.rows([windows[index] for index in batch])
            for index, row in zip(batch, rows, strict=True):
                found[index] = row[: len(windows[index].ids)] if self._per_token else row
        return [found[index] for index in range(len(windows))]


class GraphScorer:
    """Answers `Query` objects with the exported graph of a masked language model; several threads may call it.

    The graph gives the log-probability of every vocabulary entry at the queried position.
    """

    def __init__(self, graph: Graph, tokenizer: TextTokenizer, vocabulary: int, budget: TokenBudget) -> None:
        self._graph = graph
        self._tokenizer = tokenizer
        self._vocabulary = vocabulary
        self._budget = budget
        self._refused: dict[Among, NDArray[np.bool_]] = {}

    @property
    def budget(self) -> TokenBudget:
        """Maximum tokens of a batch, padding included."""
        return self._budget

    def answers(self, queries: Sequence[Query]) -> list[RankedTokens]:
        return self.run(queries)

    def run(self, queries: Sequence[Query]) -> list[RankedTokens]:
        """Return the answer of each query, in order."""
        if (schedule := SCHEDULE.get()) is not None:
            return schedule.run(self, queries)
        found = {index: self._answer(queries[index].wanted, logs_V) for index, logs_V in self.logs(queries)}
        return [found[index] for index in range(len(queries))]

    def logs(self, queries: Sequence[Query]) -> Iterator[tuple[int, NDArray[np.float32]]]:
        """Yield the index of each query, and the log-probability of every vocabulary entry at its position (V)."""
        for batch in self._batches([len(query.ids) for query in queries]):
            asked = [queries[index] for index in batch]
            yield from zip(batch, self._graph.rows(asked, [query.place for query in asked]), strict=True)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        most = max(1, MOST_LOGITS // self._vocabulary)
        for batch in by_padded_budget(lengths, self._budget.tokens):
            yield from (batch[start : start + most] for start in range(0, len(batch), most))

    def _answer(self, wanted: Best | Named, logs_V: NDArray[np.float32]) -> RankedTokens:
        if isinstance(wanted, Named):
            return RankedTokens(wanted.ids, tuple(logs_V[list(wanted.ids)].tolist()))
        refused_V = self._refused_among(wanted.among)
        count = min(wanted.count, int((~refused_V).sum()))
        allowed_V = np.where(refused_V, -np.inf, logs_V)
        best = np.argsort(-allowed_V, kind="stable")[:count]
        return RankedTokens(tuple(best.tolist()), tuple(allowed_V[best].tolist()))

    def _refused_among(self, among: Among) -> NDArray[np.bool_]:
        if among not in self._refused:
            self._refused[among] = refused_tokens(self._tokenizer, self._vocabulary, among)
        return self._refused[among]
