"""The runner of packed batches: order, budget, memory, threads."""

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from bothways import threads
from bothways.errors import OutOfMemory
from bothways.inference import Runner, TextOptions, TokenBudget, text_runner
from bothways.inference.runner import is_out_of_memory, row_answers
from bothways.packing import Packed
from tiny_models import FIRST_WORD, VOCABULARY

CPU = torch.device("cpu")
LIMIT = 18  # positions of the tiny BERT
PATIENCE = 30  # seconds

ids_of_window = st.lists(st.integers(FIRST_WORD, VOCABULARY - 1), min_size=1, max_size=LIMIT)
ragged_windows = st.lists(ids_of_window, max_size=30)


@dataclass(frozen=True)
class Given:
    """A window with a name, which tells it from others of the same tokens."""

    ids: list
    name: object = None

    @property
    def types(self):
        return [0] * len(self.ids)


def sums(packed, windows):
    """The sum of the ids of each window, its length and its name."""
    parts = packed.ids_T.split(list(packed.lengths))
    return [(int(part.sum()), len(part), window.name) for part, window in zip(parts, windows, strict=False)]


def expected(windows):
    return [(sum(window.ids), len(window.ids), window.name) for window in windows]


def named(sequences):
    return [Given(ids, name) for name, ids in enumerate(sequences)]


def failing_above(limit, tried):
    """Memory for so many tokens."""

    def compute(packed, windows):
        tokens = sum(len(window.ids) for window in windows)
        tried.append(tokens)
        if tokens > limit:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate ...")
        return sums(packed, windows)

    return compute


@given(ragged_windows, st.integers(1, 60))
@settings(max_examples=60)
def test_answers_stand_in_the_order_of_the_windows(sequences, tokens):
    windows = named(sequences)
    assert Runner(sums, CPU, tokens).run(windows) == expected(windows)


@given(ragged_windows, st.integers(1, 60))
@settings(max_examples=40)
def test_batches_keep_to_the_budget_and_each_window_is_computed_once(sequences, tokens):
    seen = []

    def compute(packed, windows):
        seen.append(windows)
        return sums(packed, windows)

    Runner(compute, CPU, tokens).run(named(sequences))
    assert sorted(window.name for batch in seen for window in batch) == list(range(len(sequences)))
    assert all(len(batch) == 1 or sum(len(window.ids) for window in batch) <= tokens for batch in seen)


def test_ids_may_be_lists_or_arrays():
    lists = named([[5] * 30] * 8)
    arrays = [Given(np.array(window.ids, dtype=np.int32), window.name) for window in lists]
    assert Runner(sums, CPU).run(arrays) == Runner(sums, CPU).run(lists)


@pytest.mark.parametrize(("limit", "failures"), [(100, 1), (45, 2), (25, 3)])
def test_the_budget_is_remembered_by_later_calls(limit, failures):
    tried = []
    runner, windows = Runner(failing_above(limit, tried), CPU, 160), named([[5] * 10] * 16)
    for _ in range(3):
        assert runner.run(windows) == expected(windows)
    assert limit / 2 < runner.budget.tokens <= limit
    assert sum(tokens > limit for tokens in tried[: len(tried) // 2]) == 2**failures - 1
    assert not any(tokens > limit for tokens in tried[len(tried) // 2 :])


def test_runners_that_share_a_budget_learn_from_each_other():
    budget, tried, windows = TokenBudget(160), [], named([[5] * 10] * 16)
    Runner(failing_above(50, []), CPU, budget).run(windows)
    Runner(failing_above(50, tried), CPU, budget).run(windows)
    assert tried
    assert max(tried) <= 50


def test_a_budget_is_only_ever_lowered_and_survives_pickling():
    budget = TokenBudget(100)
    budget.lower(40)
    budget.lower(70)
    assert (budget.tokens, pickle.loads(pickle.dumps(budget)).tokens) == (40, 40)


def test_threads_that_run_out_of_memory_at_once_lower_the_budget_together():
    runner, windows = Runner(failing_above(30, []), CPU, 10_000), named([[5] * 10] * 60)
    with ThreadPoolExecutor(8) as pool:
        for answers in pool.map(runner.run, [windows] * 16):
            assert answers == expected(windows)
    assert 15 < runner.budget.tokens <= 30


def test_a_window_that_does_not_fit_is_an_error_that_says_what_to_do():
    with pytest.raises(OutOfMemory, match=r"12 tokens does not fit .* smaller max_length"):
        Runner(failing_above(11, []), CPU).run(named([[5] * 3, [5] * 12, [5] * 5]))


def test_gradients_are_off_while_windows_are_computed():
    def compute(packed, windows):
        return [torch.is_inference_mode_enabled() for _ in windows]

    assert Runner(compute, CPU).run(named([[5], [6]])) == [True, True]


def test_eight_threads_that_read_at_once_get_what_one_gets(model):
    texts = [" ".join(f"w{FIRST_WORD + (7 * text + word) % 40}" for word in range(1 + text % 35)) for text in range(90)]

    def forward(packed):
        return model.encoder(packed)[packed.first_tokens_B]

    reading = TextOptions(LIMIT, block_texts=16)
    engine = text_runner(model.tokenizer, forward, CPU, reading, 100)

    def read(_):
        return [answer.rows_WK for answer in engine.run(texts)]

    one = read(0)
    with ThreadPoolExecutor(8) as pool:
        for several in pool.map(read, range(8)):
            for rows_WK, right_WK in zip(several, one, strict=True):
                np.testing.assert_array_equal(rows_WK, right_WK)


@pytest.fixture
def two_threads():
    number = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(number)


@pytest.mark.usefixtures("two_threads")
def test_a_cpu_with_two_threads_computes_two_batches_at_once_with_a_thread_for_each():
    both, seen = threading.Barrier(2), []

    def compute(_packed, windows):
        both.wait(timeout=PATIENCE)
        seen.append((threading.current_thread().name, torch.get_num_threads()))
        return [sum(window.ids) for window in windows]

    windows = [Given([number] * 64) for number in range(64)]
    assert Runner(compute, CPU, 8192).run(windows) == [64 * number for number in range(64)]
    assert [number for _, number in seen] == [1, 1]
    assert len({name for name, _ in seen}) == 2
    assert threading.current_thread().name not in {name for name, _ in seen}
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_batches_in_threads_give_what_batches_in_turn_give(model):
    rng = np.random.default_rng(0)
    windows = [Given(rng.integers(FIRST_WORD, VOCABULARY, length).tolist()) for length in rng.integers(1, LIMIT, 600)]
    runner = Runner(
        row_answers(lambda packed: model.encoder(packed)[packed.first_tokens_B], per_token=False), CPU, 1024
    )
    found = np.stack(runner.run(windows))
    with threads.calling_thread_alone():
        alone = np.stack(runner.run(windows))
    np.testing.assert_allclose(found, alone, rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_thread_is_that_of_the_call_and_what_waits_is_not_computed():
    computed = []

    def compute(_packed, windows):
        computed.append(len(windows))
        raise ValueError("the model says no")

    with pytest.raises(ValueError, match="the model says no"):
        Runner(compute, CPU, 1024).run([Given([1] * 128)] * 400)
    assert len(computed) < 50


@pytest.mark.usefixtures("two_threads")
def test_threads_halve_batches_that_do_not_fit_into_memory():
    tried = []
    runner = Runner(failing_above(700, tried), CPU, 2048)
    windows = [Given([number] * 100, number) for number in range(60)]
    assert runner.run(windows) == expected(windows)
    assert max(tried) > 700
    assert runner.budget.tokens < 1024


@pytest.mark.usefixtures("two_threads")
def test_few_tokens_are_one_batch_of_the_calling_thread():
    names = []

    def compute(_packed, windows):
        names.append(threading.current_thread().name)
        return [0] * len(windows)

    Runner(compute, CPU, 4096).run([Given([1] * 100)] * 20)
    assert names == [threading.current_thread().name]


def test_a_gpu_has_its_next_batch_before_the_last_one_is_read(monkeypatch):
    happened = []

    class Computing(list):
        """The answers of a batch, of which is noted when they are read."""

        def __iter__(self):
            happened.append(("read", self[0]))
            return super().__iter__()

    def compute(packed, windows):
        happened.append(("launched", windows[0].name))
        return Computing(window.name for window in windows)

    windows = [Given([7] * length, name) for name, length in enumerate((4, 4, 4, 2))]
    one_by_one = Runner(compute, CPU, 4)
    assert one_by_one.run(windows) == [0, 1, 2, 3]
    assert happened == [(what, name) for name in range(4) for what in ("launched", "read")]
    happened.clear()
    monkeypatch.setattr(Packed, "to", lambda packed, _: packed)
    ahead = Runner(compute, torch.device("cuda"), 4)
    assert ahead.run(windows) == [0, 1, 2, 3]
    assert happened == [
        *[("launched", 0), ("launched", 1), ("read", 0), ("launched", 2), ("read", 1), ("launched", 3), ("read", 2)],
        ("read", 3),
    ]


@pytest.mark.parametrize(
    "message",
    [
        "CUDA out of memory. Tried to allocate 20.00 MiB.",
        "CUDA error: out of memory",
        "CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "MPS backend out of memory (MPS allocated: 9.00 GB)",
        "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes.",
    ],
)
def test_every_device_says_in_its_own_words_that_memory_is_out(message):
    assert is_out_of_memory(RuntimeError(message))
    assert not is_out_of_memory(RuntimeError("CUDA error: an illegal memory access was encountered"))


@pytest.mark.gpu
def test_rows_of_a_gpu_are_copied_while_it_goes_on():
    def forward(packed):
        return packed.sums(packed.ids_T[:, None].double()).repeat(1, 64)

    windows = [Given([7 + number] * 5) for number in range(300)]
    found = Runner(row_answers(forward, per_token=False), torch.device("cuda"), 50).run(windows)
    assert [row.tolist() for row in found] == [[5.0 * (7 + number)] * 64 for number in range(300)]
