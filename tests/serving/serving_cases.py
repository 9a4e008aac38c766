"""Servers for the tests: in this process, on a free port of this machine."""

import socket
import threading
import time
from contextlib import contextmanager

import httpx
import uvicorn

from bothways.serving.application import application
from bothways.serving.running import LimitedConfig, make_server
from bothways.serving.settings import ServerSettings


class Running:
    """A server that runs: its state, its address, and a client."""

    def __init__(self, server, url):
        self.server = server
        self.url = url
        self.client = httpx.Client(base_url=url, timeout=60)

    def post(self, path, body, **headers):
        return self.client.post(path, json=body, headers=headers)

    def get(self, path, **headers):
        return self.client.get(path, headers=headers)


@contextmanager
def running(*models, wait=True, **settings):
    """Serve models on a free port until the block ends; ``wait`` for them to be open."""
    options = ServerSettings(models=[str(each) for each in models], port=0, **settings)
    server = make_server(options)
    server.log.stream = None
    http = uvicorn.Server(LimitedConfig(application(server), options))
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        thread = threading.Thread(target=http.run, args=([listener],), daemon=True)
        thread.start()
        found = Running(server, f"http://127.0.0.1:{listener.getsockname()[1]}")
        try:
            while wait and server.models is None and server.failure is None and thread.is_alive():
                time.sleep(0.02)
            if server.failure is not None:
                raise server.failure
            yield found
        finally:
            http.should_exit = True
            thread.join(30)
            found.client.close()
