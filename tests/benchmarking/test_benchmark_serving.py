"""The load generator of the serving benchmark: what it counts, and from when."""

from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread

import pytest
from benchmarks.serving.load import Answer, Load, closed_loop, loaded, open_loop, request
from benchmarks.serving.policies import TeiQueue

from bothways.serving.metrics import Metrics
from bothways.serving.queue import Ticket
from bothways.text.windows import Window


class Handler(BaseHTTPRequestHandler):
    """Holds answers back until the server has so many requests, and then answers with its status; 0 hangs up."""

    protocol_version = "HTTP/1.1"

    def do_POST(self):
        bodies, held, status = self.server.bodies, self.server.held, self.server.status
        bodies.append(self.rfile.read(int(self.headers["content-length"])))
        if len(bodies) >= held:
            self.server.enough.set()
        assert self.server.enough.wait(20)
        if not status:
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Length", "3")
        self.end_headers()
        self.wfile.write(b"abc")
        self.close_connection |= self.server.closes

    def log_message(self, *_):
        pass


@pytest.fixture
def serve():
    servers = []

    def started(held=1, status=200, closes=False):
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.held, server.status, server.closes, server.bodies, server.enough = held, status, closes, [], Event()
        server.daemon_threads, server.block_on_close, server.port = True, False, server.server_port
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        servers.append(server)
        return server

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_server_that_stalls_pays_for_all_requests_that_were_planned_meanwhile(serve):
    requests = [request("/", {"number": number}) for number in range(3)]
    load = loaded(serve(held=20).port, open_loop(requests, rate=100, seconds=0.2)).checked()
    planned = [answer.planned - load.answers[0].planned for answer in load.answers]
    assert planned == pytest.approx([number / 100 for number in range(20)])
    # The first one waited for the last one to come, 190 ms later; the last one did not wait.
    assert load.latency(1.0) >= 190
    assert load.latency(0.0) < load.latency(1.0) - 150
    assert load.done([1, 10, 100]) == 7 + 7 * 10 + 6 * 100


def test_a_closed_load_sends_every_request_once_and_another_one_runs_beside_it(serve):
    server = serve(held=4)
    requests = [request("/", number) for number in range(9)]
    load = loaded(server.port, closed_loop(requests, 2), closed_loop(requests[:3], 2)).checked()
    assert sorted(answer.place for answer in load.answers) == list(range(9))
    assert sorted(answer.place for answer in load.beside) == [0, 1, 2]
    assert sorted(map(int, server.bodies)) == sorted([*range(9), 0, 1, 2])


def test_a_connection_that_was_closed_meanwhile_is_opened_again(serve):
    load = loaded(serve(closes=True).port, closed_loop([request("/", 1)] * 5, 1))
    assert load.statuses() == {200: 5}


@pytest.mark.parametrize("status", [429, 0])
def test_refusals_and_broken_connections_are_counted_and_are_no_latencies_of_answers(serve, status):
    load = loaded(serve(status=status).port, closed_loop([request("/", 1)] * 3, 1))
    assert load.statuses() == {status: 3}
    assert load.latency(0.99) == load.done([5] * 3) == 0
    assert load.latency(0.99, status) > 0
    with pytest.raises(RuntimeError, match=f"got .{status}: 3"):
        load.checked()


def test_how_late_the_client_was_is_told():
    answers = [Answer(0, 1.0, 1.25, 2.0, 200), Answer(1, 2.0, 2.0, 2.0, 200)]
    assert Load(answers, (), 1, 1).late() == 250


def test_teis_policy_pads_batches_of_four_in_the_order_of_arrival():
    batches = []

    class Runner:
        def run(self, windows):
            batches.append([(window.ids[0], len(window.ids), len(window.types)) for window in windows])
            return [window.ids[0] for window in windows]

    queue = TeiQueue(Metrics(), most=4)
    lengths = (3, 1, 7, 2, 5, 2)
    windows = [Window([number] * length, [0] * length) for number, length in enumerate(lengths)]
    ticket = Ticket(queue)
    assert queue.run(ticket, Runner(), windows) == list(range(6))
    assert batches == [[(0, 7, 7), (1, 7, 7), (2, 7, 7), (3, 7, 7)], [(4, 5, 5), (5, 5, 5)]]
    assert ticket.tokens == sum(lengths)
    queue.close()
