"""``bothways serve``."""

from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter
from cyclopts.validators import Number

from bothways.cli import options as opt
from bothways.cli.printing import note
from bothways.errors import MissingDependency
from bothways.lazy import imported

if TYPE_CHECKING:
    from bothways.serving import ServerSettings

_EXAMPLE = """\
Examples:
  bothways serve runs/news sentence-transformers/all-MiniLM-L6-v2
  bothways serve runs/news runs/ner --index index/ --port 9000
  bothways serve news=runs/2026-11-news --host 0.0.0.0 --api-keys keys.txt"""

_Port = Annotated[int, Parameter(validator=Number(gte=0, lte=65535))]


@opt.command(_EXAMPLE)
def serve(
    *models: str,
    index: Annotated[tuple[str, ...], Parameter(negative=())] = (),
    host: str = "127.0.0.1",
    port: _Port = 8080,
    workers: opt.PositiveInt = 1,
    api_keys: Path | None = None,
    anonymous: opt.Flag = False,
    allowed_hosts: opt.Names = (),
    cors: Annotated[opt.Names, Parameter(name="--cors-origins")] = (),
    drain: opt.PositiveFloat = 30.0,
    log_texts: opt.Flag = False,
    max_length: opt.PositiveInt | None = None,
    max_body: opt.TokenCount | None = None,
    max_items: opt.PositiveInt | None = None,
    max_tokens: opt.TokenCount | None = None,
    max_wait: opt.PositiveFloat | None = None,
    max_requests: opt.PositiveInt | None = None,
    max_connections: opt.PositiveInt | None = None,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Serve models over HTTP, with a page to try them.

    Answers for every task at /v1/predict, and speaks the APIs of OpenAI (/v1/embeddings), Cohere and Jina (/v1/rerank),
    text-embeddings-inference and others; /openapi.json lists all of them. Only this machine can reach the server,
    unless another --host is given, which needs --api-keys or --anonymous.

    Args:
        models: Folders or names of models. A model's name in requests is the last part of its path; name=folder gives
            it another one.
        index: Folder of a search index, also as name=folder; repeat the option for several.
        host: Address to listen on; 0.0.0.0 for all.
        port: Port to listen on; 0 takes a free one.
        workers: Number of processes. One is right for most machines, as it uses all cores.
        api_keys: File with a line name:key for each caller. It is read again on SIGHUP.
        anonymous: Answer requests without a key on an address that others can reach.
        allowed_hosts: Names that the Host header of a request may have. Default: those of this machine, if only it can
            reach the server; else any.
        cors: Origins of web pages that may call the server from a browser, such as https://example.org.
        drain: Seconds in which what is running may finish when the server is told to end.
        log_texts: Write the bodies of requests into the log, which else has no texts.
        max_length: Maximum tokens per window of a text. Default: as in training, else the model's limit.
        max_body: Maximum bytes of a request, such as 16M.
        max_items: Maximum inputs of a request. Default: 2048.
        max_tokens: Maximum tokens of a request, such as 300k.
        max_wait: Maximum seconds of computing that may wait; further requests are refused with 429. Default: 10.
        max_requests: Maximum requests that are answered at once. Default: 256.
        max_connections: Maximum open connections. Default: 1024.
    """
    _check_installed()
    limits = {
        "body_bytes": max_body,
        "items": max_items,
        "tokens": max_tokens,
        "waiting_seconds": max_wait,
        "requests": max_requests,
        "connections": max_connections,
    }
    with opt.as_usage_error():
        settings: ServerSettings = imported("bothways.serving.settings:ServerSettings")(
            models=models,
            indexes=index,
            host=host,
            port=port,
            workers=workers,
            threads=opening.threads,
            api_keys=api_keys,
            anonymous=anonymous,
            hosts=allowed_hosts,
            cors_origins=cors,
            drain_seconds=drain,
            log_texts=log_texts,
            limits=imported("bothways.serving.settings:Limits")(
                **{name: value for name, value in limits.items() if value is not None}
            ),
            opening=imported("bothways.serving.settings:Opening")(
                device=opening.device,
                dtype=opening.dtype,
                max_length=max_length,
                download=opening.download,
                allow_pickle=opening.allow_pickle,
            ),
        )

    def started(address: str) -> None:
        note(f"serving at {address} (the studio; Ctrl-C ends it). A request:", always=True)
        note(_curl(settings, address), always=True)

    imported("bothways.serving.running:serve")(settings, started)


def _check_installed() -> None:
    """Raise `MissingDependency` if the extra of the server is not installed."""
    for package in ("msgspec", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop", "httptools"):
        if find_spec(package) is None:
            raise MissingDependency.of(package, extra="serve", purpose="serving models")


def _curl(settings: "ServerSettings", address: str) -> str:
    """Return a command that asks the server for its models."""
    key = ' -H "authorization: Bearer $KEY"' if settings.api_keys else ""
    return f"  curl -s {address}/v1/models{key}"
