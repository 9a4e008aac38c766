"""The queue: what shares a batch, who comes first, what is dropped, and who fails."""

import json
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from process_cases import held, until

from bothways import SentenceEmbedder, open_trained
from bothways.errors import OutOfMemory
from bothways.inference.texts import TokenBudget
from bothways.serving.errors import Left, Refused
from bothways.serving.queue import BatchQueue, Ticket
from task_cases import CASES, close

BUDGET = 100


@dataclass(frozen=True)
class Window:
    ids: list[int]
    types: tuple[int, ...] = ()


def windows(owner, *lengths):
    """Windows of these lengths; their first token says whose they are."""
    return [Window([owner, *range(length - 1)]) for length in lengths]


class FakeRunner:
    """Answers a window with its owner and its length, and notes the batches; ``opened`` lets it go on."""

    def __init__(self, tokens=BUDGET, bad=(), answer=None):
        self.budget = TokenBudget(tokens)
        self.bad = bad
        self.answer = answer or (lambda window: np.array([window.ids[0], len(window.ids)]))
        self.batches = []
        self.after = lambda: None
        self.opened = threading.Event()
        self.opened.set()
        self.begun = threading.Event()

    def run(self, some):
        self.begun.set()
        assert self.opened.wait(20)
        self.batches.append([(window.ids[0], len(window.ids)) for window in some])
        self.after()
        if any(window.ids[0] in self.bad for window in some):
            raise OutOfMemory("too much")
        return [self.answer(window) for window in some]

    def owners(self):
        """Owners of the windows of each batch."""
        return [{owner for owner, _ in batch} for batch in self.batches]


class Watcher:
    """Notes what the queue tells."""

    def __init__(self):
        self.tokens = []
        self.reasons = []

    def batch(self, tokens, _seconds):
        self.tokens.append(tokens)

    def dropped(self, reason):
        self.reasons.append(reason)


class Crowd:
    """Calls of a queue from threads of their own."""

    def __init__(self, queue, runner, pool):
        self.queue = queue
        self.runner = runner
        self.pool = pool

    def ask(self, owner, *lengths, runner=None, **options):
        """Hand over windows, and return once they wait."""
        ticket = Ticket(self.queue, **options)
        found = self.pool.submit(ticket.run, runner or self.runner, windows(owner, *lengths))
        until(lambda: found.done() or any(each.ticket is ticket for each in list(self.queue._waiting)))
        found.ticket = ticket
        return found

    @contextmanager
    def held(self):
        """Let all calls of the block wait behind a full batch, and begin with an empty list of batches."""
        self.runner.opened.clear()
        self.runner.begun.clear()
        first = self.ask(-1, self.runner.budget.tokens)
        assert self.runner.begun.wait(20)
        self.runner.batches.clear()
        yield
        self.runner.opened.set()
        first.result(20)
        self.runner.batches.pop(0)


@contextmanager
def crowd(runner=None, **options):
    queue = BatchQueue(Watcher(), **options)
    with ThreadPoolExecutor(64) as pool:
        try:
            yield Crowd(queue, runner or FakeRunner(), pool)
        finally:
            queue.close()


# --- what shares a batch ---


@settings(max_examples=40)
@given(
    calls=st.lists(
        st.tuples(st.lists(st.integers(1, 40), min_size=1, max_size=12), st.sampled_from("abc")),
        min_size=1,
        max_size=12,
    ),
    budget=st.integers(5, 120),
    at_once=st.integers(1, 3),
    bad=st.sets(st.integers(0, 11), max_size=2),
)
def test_every_window_is_computed_once_within_the_budget_and_answered_in_order(calls, budget, at_once, bad):
    with crowd(FakeRunner(budget, bad), at_once=at_once) as found:
        with found.held():
            asked = [found.ask(owner, *lengths, key=key) for owner, (lengths, key) in enumerate(calls)]
        for owner, ((lengths, _), each) in enumerate(zip(calls, asked, strict=True)):
            if owner in bad:
                assert isinstance(each.exception(20), OutOfMemory)
            else:
                assert [tuple(answer) for answer in each.result(20)] == [(owner, length) for length in lengths]
        batches = found.runner.batches
        for batch in batches:
            assert len(batch) == 1 or sum(length for _, length in batch) <= budget * at_once
        if not bad:
            done = sorted(window for batch in batches for window in batch)
            assert done == sorted((owner, length) for owner, (lengths, _) in enumerate(calls) for length in lengths)
        until(lambda: found.queue.tokens == 0)


def test_windows_of_another_runner_never_share_a_batch():
    with crowd() as found:
        other = FakeRunner()
        with found.held():
            asked = [found.ask(number, 3, runner=(found.runner, other)[number % 2]) for number in range(6)]
        assert [each.result(20)[0][0] for each in asked] == list(range(6))
        assert found.runner.owners() == [{0, 2, 4}]
        assert other.owners() == [{1, 3, 5}]


def test_a_window_that_is_larger_than_a_batch_is_computed_alone():
    with crowd() as found:
        assert len(found.ask(1, 3 * BUDGET).result(20)) == 1


def test_nothing_is_answered_at_once():
    with crowd() as found:
        assert Ticket(found.queue).run(found.runner, []) == []


# --- who comes first ---


def sizes(found):
    """Tokens of the batches."""
    return [sum(length for _, length in batch) for batch in found.runner.batches]


def test_a_small_request_overtakes_a_large_one_in_a_batch_of_its_own_and_batches_stay_small():
    with crowd() as found:
        with found.held():
            large = found.ask(1, *[10] * 100)
            small = found.ask(2, 5)
        small.result(20)
        large.result(20)
        assert found.runner.owners()[0] == {2}
        assert set(sizes(found)[1:]) == {20}


def test_batches_are_full_when_no_small_request_came_of_late(monkeypatch):
    monkeypatch.setattr("bothways.serving.queue._SOON", 0.0)
    with crowd() as found:
        with found.held():
            large, small = found.ask(1, *[10] * 100), found.ask(2, 5)
        small.result(20)
        large.result(20)
        assert sizes(found) == [5, *[BUDGET] * 10]


def test_requests_are_served_in_the_order_of_arrival_if_that_is_asked_for():
    with crowd(in_order=True) as found:
        with found.held():
            asked = [found.ask(1, *[10] * 25), found.ask(2, 5), found.ask(3, 5)]
        for each in asked:
            each.result(20)
        assert found.runner.owners() == [{1}, {1}, {1, 2, 3}]


def test_of_large_requests_the_one_with_the_fewest_tokens_left_and_the_oldest_come_in_turn():
    with crowd() as found:
        with found.held():
            asked = [found.ask(1, *[10] * 100), found.ask(2, *[10] * 30)]
        for each in asked:
            each.result(20)
        assert found.runner.owners()[:6] in ([{1}, {2}] * 3, [{2}, {1}] * 3)


@pytest.mark.parametrize("length", [10, BUDGET])
def test_a_large_request_is_not_starved_by_small_ones(length):
    """While small ones keep coming, it gets half of the work, even if its windows leave no room for others."""
    with crowd() as found:
        small = []

        def another():
            if len(small) < 400:
                small.extend(found.pool.submit(Ticket(found.queue).run, found.runner, windows(2, 9)) for _ in range(12))

        with found.held():
            large = found.ask(1, *[length] * (2000 // length))
            found.runner.after = another
        large.result(20)
        turns = [place for place, owners in enumerate(found.runner.owners()) if 1 in owners]
        others = sum(length for batch in found.runner.batches[: turns[-1]] for owner, length in batch if owner == 2)
        assert others <= 2000 + BUDGET
        assert max(map(int, np.diff(turns))) <= 4 * length / 9 + 2
        for each in small:
            each.result(20)


def test_a_small_request_is_not_starved_by_smaller_ones():
    with crowd() as found:
        smaller = []

        def another():
            if len(smaller) < 600:
                smaller.extend(
                    found.pool.submit(Ticket(found.queue).run, found.runner, windows(2, 5)) for _ in range(9)
                )
                until(lambda: sum(each.left for each in list(found.queue._waiting)) > 40)

        with found.held():
            small = found.ask(1, 24)
            found.runner.after = another
        small.result(20)
        assert len(found.runner.batches) < 10
        for each in smaller:
            each.result(20)


def test_a_model_is_not_starved_by_small_requests_for_another():
    with crowd() as found:
        other, small, before = FakeRunner(), [], []
        other.after = lambda: before.append(len(found.runner.batches))

        def another():
            if len(small) < 400:
                small.append(found.pool.submit(Ticket(found.queue).run, found.runner, windows(2, 2)))
                until(lambda: any(each.runner is found.runner for each in list(found.queue._waiting)))

        with found.held():
            large = found.ask(1, *[50] * 6, runner=other)
            small.append(found.ask(2, 2))
            found.runner.after = another
        large.result(20)
        assert len(before) == 6
        assert before[-1] <= 6 * 50 / 2 + 16
        for each in small:
            each.result(20)


def test_keys_share_the_work_evenly():
    with crowd() as found:
        with found.held():
            many = [found.ask(1, *[10] * 20, key="many") for _ in range(5)]
            few = found.ask(2, *[10] * 50, key="few")
        few.result(20)
        got = [sum(length for owner, length in batch if owner == 2) for batch in found.runner.batches]
        for place in range(10):
            assert abs(sum(got[: place + 1]) - 50 * (place + 1)) <= BUDGET
        for each in many:
            each.result(20)


def test_a_key_that_was_away_has_saved_nothing():
    with crowd() as found:
        found.ask(1, *[10] * 300, key="before").result(20)
        with found.held():
            new = found.ask(2, *[10] * 100, key="new")
            back = found.ask(1, *[10] * 100, key="before")
        new.result(20)
        back.result(20)
        assert all(owners == {1, 2} for owners in found.runner.owners()[:15])


# --- what is dropped, and who fails ---


def test_a_request_past_its_deadline_is_not_computed():
    with crowd() as found:
        with found.held():
            late = found.ask(1, 5, deadline=0.0)
            other = found.ask(2, 5)
        assert late.exception(20).problem.status == 504
        other.result(20)
        assert found.runner.owners() == [{2}]
        with found.held():
            waiting = found.ask(3, 5)
            waiting.ticket.deadline = 0.0
        assert waiting.exception(20).problem.code == "deadline_passed"
        assert found.queue._observer.reasons == ["deadline"]
        assert found.runner.owners() == []


def test_what_a_client_left_is_not_computed():
    with crowd() as found:
        with found.held():
            gone, other = found.ask(1, *[10] * 50), found.ask(2, 5)
            gone.ticket.left = True
        assert isinstance(gone.exception(20), Left)
        other.result(20)
        assert found.queue._observer.reasons == ["left"]
        assert found.runner.owners() == [{2}]
        until(lambda: found.queue.tokens == 0)


def test_a_client_that_leaves_between_batches_takes_the_rest_along():
    with crowd() as found:
        with found.held():
            gone = found.ask(1, *[10] * 50)

            def leave():
                gone.ticket.left = len(found.runner.batches) == 3

            found.runner.after = leave
        assert isinstance(gone.exception(20), Left)
        assert len(found.runner.batches) == 2


def test_only_the_request_fails_whose_windows_cannot_be_computed():
    """The one that has two parts in the batch that fails is answered too."""
    with crowd(FakeRunner(bad={2})) as found:
        with found.held():
            asked = [found.ask(1, *[10] * 7, key="a"), found.ask(2, 10, key="b"), found.ask(3, 10, key="b")]
        assert isinstance(asked[1].exception(20), OutOfMemory)
        assert len(asked[0].result(20)) == 7
        assert len(asked[2].result(20)) == 1
        assert found.ask(4, 10).result(20)
        until(lambda: found.queue.tokens == 0)


def test_a_runner_that_gives_too_few_answers_fails_its_request():
    with crowd() as found:
        found.runner.run = lambda _: []
        assert found.ask(1, 5).exception(20) is not None


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_an_answer_that_is_no_number_is_refused(value):
    with crowd(FakeRunner(answer=lambda window: np.array([value if window.ids[0] == 1 else 0.0]))) as found:
        with found.held():
            bad, good = found.ask(1, 5, 5), found.ask(2, 5)
        assert bad.exception(20).problem.code == "not_finite"
        assert len(good.result(20)) == 1


def test_a_request_with_too_many_tokens_is_refused_even_in_parts():
    with crowd() as found:
        ticket = Ticket(found.queue, most_tokens=20)
        assert ticket.run(found.runner, windows(1, 9, 9))
        with pytest.raises(Refused, match="at most 20 tokens in a request, got 24") as refused:
            ticket.run(found.runner, windows(1, 6))
        assert refused.value.problem.status == 413


def test_a_request_that_would_wait_too_long_is_refused_but_not_one_that_has_begun():
    with crowd() as found:
        found.ask(1, *[10] * 30).result(20)
        with found.held():
            found.queue.rate = 100
            begun = found.ask(1, *[10] * 30, most_wait=2.0)
            refused = found.ask(2, 5, most_wait=2.0).exception(20)
            assert refused.problem.status == 429
            assert refused.problem.headers["Retry-After"] == "3"
            again = found.pool.submit(begun.ticket.run, found.runner, windows(1, 5))
            until(lambda: found.queue.tokens == 305 + BUDGET)
            other = found.ask(3, 5, most_wait=60.0)
        assert len(begun.result(20)) == 30
        assert again.result(20)
        assert other.result(20)


def test_functions_run_in_the_thread_of_the_batches_between_them():
    with crowd() as found:
        ticket = Ticket(found.queue)
        assert found.queue.call(ticket, lambda: threading.current_thread().name) == "compute"
        with pytest.raises(ZeroDivisionError):
            found.queue.call(ticket, lambda: 1 / 0)
        ticket.left = True
        with pytest.raises(Left):
            found.queue.call(ticket, lambda: 1)


def test_what_waits_when_the_queue_is_closed_is_refused_retryably():
    with crowd() as found:
        found.runner.opened.clear()
        first = found.ask(1, 5)
        assert found.runner.begun.wait(20)
        waiting = found.ask(2, 5)
        function = found.pool.submit(found.queue.call, Ticket(found.queue), lambda: 1)
        until(lambda: found.queue._calls)
        closing = found.pool.submit(found.queue.close)
        assert waiting.exception(20).problem.status == 503
        assert function.exception(20).problem.status == 503
        found.runner.opened.set()
        closing.result(20)
        assert first.exception(20).problem.headers["Retry-After"] == "1"
        for refused in (lambda: found.queue.call(Ticket(found.queue), int), lambda: found.ask(3, 5).result(20)):
            with pytest.raises(Refused, match="stopping"):
                refused()


# --- what is told ---


def test_the_wait_is_told_by_the_measured_rate_and_counted_once():
    with crowd() as found:
        assert found.queue.seconds_to_wait == 0
        with found.held():
            asked = found.ask(1, *[10] * 30)
            assert found.queue.tokens == 300 + BUDGET
        asked.result(20)
        assert found.queue.rate > 0
        assert sum(found.queue._observer.tokens) == 300 + BUDGET
        assert asked.ticket.tokens == 300
        assert asked.ticket.computed > 0
        until(lambda: found.queue.tokens == 0)


def test_many_small_batches_do_not_hide_how_fast_large_ones_are():
    """A batch of a token takes about as long as one of a hundred: the rate is one of tokens, and not of batches."""
    with crowd() as found:
        found.runner.after = lambda: threading.Event().wait(0.005)
        for _ in range(20):
            found.ask(1, 1).result(20)
        slow = found.queue.rate
        found.ask(1, *[10] * 20).result(20)
        until(lambda: found.queue.tokens == 0)
        assert found.queue.rate > 5 * slow


def test_a_request_that_waited_in_a_failing_batch_counts_its_wait_once():
    with crowd(FakeRunner(bad={2})) as found:
        with found.held():
            one, bad = found.ask(1, 10), found.ask(2, 10)
            found.runner.after = lambda: threading.Event().wait(0.05 * (len(found.runner.batches) > 1))
        one.result(20)
        bad.exception(20)
        assert one.ticket.waited < 0.05


# --- the answers of a server under load ---


def asked_for(everything, folders):
    """Questions of every task by model with the library's answers, each predicted alone."""
    found = {}
    for name, case in CASES.items():
        model = open_trained(folders[name])
        questions = case.questions()
        found[name] = [(each, json.loads(json.dumps(model.predict([each])[0].to_dict()))) for each in questions]
    return found


def test_answers_alone_in_batches_and_under_mixed_load_are_those_of_the_library(everything, folders):
    """Requests of random sizes for random models, many at once, with long and short texts."""
    known, draw = asked_for(everything, folders), random.Random(7)
    embedder = SentenceEmbedder.from_pretrained(folders["embedding"], device="cpu")
    texts = [question["text"] for question, _ in known["classification"]]
    vectors = [embedder.encode([text])[0] for text in texts]

    def predicted(number):
        name = draw.choice(list(known))
        chosen = draw.choices(known[name], k=draw.choice([1, 1, 2, 9]))
        if number % 4 == 0:
            places = draw.choices(range(len(texts)), k=len(chosen))
            body = {"model": "embedding", "input": [texts[place] for place in places]}
            return "/v1/embeddings", body, [vectors[place] for place in places]
        body = {"model": name, "inputs": [question for question, _ in chosen]}
        return "/v1/predict", body, [answer for _, answer in chosen]

    def right(request):
        path, body, expected = request
        answer = everything.post(path, body)
        assert answer.status_code == 200, answer.text
        if path == "/v1/embeddings":
            got = [each["embedding"] for each in answer.json()["data"]]
            return np.allclose(got, expected, atol=1e-5)
        return close(answer.json()["predictions"], expected)

    requests = [predicted(number) for number in range(80)]
    assert all(map(right, requests[:15]))
    with ThreadPoolExecutor(16) as pool:
        with held(everything):  # many wait when the first batch is made
            answers = [pool.submit(right, each) for each in requests]
            until(lambda: len(everything.server.queue._waiting) >= 10)
        assert all(each.result() for each in answers)
