"""Settings of a server."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bothways.errors import InvalidInput
from bothways.tasks.opening import OpenArguments

LOOPBACK = ("127.0.0.1", "localhost", "::1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a server, so that no caller can take all of it.

    Attributes:
        body_bytes: Bytes of the body of a request.
        items: Inputs in a request.
        characters: Characters of one text; longer ones would take seconds to tokenise.
        tokens: Tokens of a request, all windows of its texts together.
        waiting_seconds: Seconds of computing that may wait; further requests are refused with 429.
        waiting_bytes: Bytes of the bodies of all requests that are being answered.
        requests: Requests that are being answered.
        connections: Open connections.
        header_seconds: Seconds in which a client must send the head of a request.
    """

    body_bytes: int = 16_000_000
    items: int = 2048
    characters: int = 1_000_000
    tokens: int = 300_000
    waiting_seconds: float = 10.0
    waiting_bytes: int = 256_000_000
    requests: int = 256
    connections: int = 1024
    header_seconds: float = 10.0

    @property
    def body_seconds(self) -> float:
        """Seconds in which a client must send the body of a request: those for the head, and one for each megabyte."""
        return self.header_seconds + self.body_bytes / 1e6

    def __post_init__(self) -> None:
        for name in self.__slots__:
            if getattr(self, name) <= 0:
                raise InvalidInput(f"{name} must be above 0, got {getattr(self, name)}.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Options for opening the models, see `bothways.tasks.backend.OpenOptions`.

    Attributes:
        device: Device to compute on.
        dtype: Precision of the weights.
        max_length: The most tokens of a window.
        revision: Commit of a model on the hub.
        download: Whether models may be downloaded from the hub.
        allow_pickle: Whether ``.bin`` files may be read, after a scan.
        tasks: Tasks to open models for, by their names in requests, see `bothways.compose.open_trained`.
    """

    device: str = "auto"
    dtype: str | None = None
    max_length: int | None = None
    revision: str | None = None
    download: bool = False
    allow_pickle: bool = False
    tasks: Mapping[str, str] = field(default_factory=dict)

    def arguments(self) -> OpenArguments:
        """Return the options as keyword arguments of the functions that open a model."""
        return {
            "device": self.device,
            "dtype": self.dtype,
            "max_length": self.max_length,
            "revision": self.revision,
            "download": self.download,
            "allow_pickle": self.allow_pickle,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """Settings of a server.

    Attributes:
        models: Names or folders of models; ``name=folder`` gives a model another name.
        indexes: Folders or tables of search indexes, also as ``name=folder``.
        host: Address to listen on.
        port: Port to listen on; 0 takes a free one.
        workers: Processes that answer requests, each with its own models.
        threads: CPU threads of each process; None shares the cores among the processes.
        api_keys: File of API keys, a ``name:key`` in each line; None without keys.
        anonymous: Whether requests without a key are answered on an address that others can reach.
        hosts: Names that the ``Host`` header may have; empty for those of the address.
        cors_origins: Web pages (origins) that may call the server from a browser; ``*`` for all.
        drain_seconds: Seconds for what is running when the server is told to end.
        log_texts: Whether the log has the bodies of requests.
        limits: Limits of requests.
        opening: How the models are opened.

    Raises:
        InvalidInput: There is no model, or others can reach the address and there are no keys.
    """

    models: Sequence[str]
    indexes: Sequence[str] = ()
    host: str = "127.0.0.1"
    port: int = 8080
    workers: int = 1
    threads: int | None = None
    api_keys: Path | None = None
    anonymous: bool = False
    hosts: Sequence[str] = ()
    cors_origins: Sequence[str] = ()
    drain_seconds: float = 30.0
    log_texts: bool = False
    limits: Limits = field(default_factory=Limits)
    opening: Opening = field(default_factory=Opening)

    def __post_init__(self) -> None:
        if not self.models and not self.indexes:
            raise InvalidInput("expected at least one model or index to serve: name one.")
        if self.opening.revision is not None and len(self.models) > 1:
            raise InvalidInput(f"a revision is that of one model, got {len(self.models)} models: serve one.")
        if self.workers < 1:
            raise InvalidInput(f"workers must be at least 1, got {self.workers}.")
        if not self.is_local and self.api_keys is None and not self.anonymous:
            raise InvalidInput(
                f"others can reach {self.host}: give a file of API keys (--api-keys FILE, a name:key in each line), or "
                "say that anybody may use the server (--anonymous)."
            )

    @property
    def is_local(self) -> bool:
        """True if only this machine can reach the server."""
        return self.host in LOOPBACK

    @property
    def allowed_hosts(self) -> Sequence[str]:
        """Names that the ``Host`` header may have; empty for any."""
        return [name.lower() for name in self.hosts] or (LOOPBACK if self.is_local else ())
