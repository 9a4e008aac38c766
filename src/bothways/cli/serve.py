"""``bothways serve``."""

import json
from dataclasses import asdict, dataclass
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
    from bothways.serving.models import Models
    from bothways.serving.settings import ServerSettings

_EXAMPLE = """\
Examples:
  bothways serve runs/news sentence-transformers/all-MiniLM-L6-v2
  bothways serve runs/news runs/ner --index index/ --port 9000
  bothways serve news=runs/2026-11-news --host 0.0.0.0 --api-keys keys.txt"""


@Parameter(name="*", group="Address")
@dataclass(frozen=True, slots=True)
class AddressOptions:
    """Options for the address, its processes, and who may call it."""

    host: str = "127.0.0.1"
    """Address to listen on; 0.0.0.0 for all. Another address than this machine's own needs --api-keys or
    --anonymous."""
    port: Annotated[int, Parameter(validator=Number(gte=0, lte=65535))] = 8080
    """Port to listen on; 0 takes a free one."""
    workers: opt.PositiveInt = 1
    """Number of processes. One is right for most machines, as it uses all cores."""
    api_keys: Path | None = None
    """File with a line name:key for each caller. It is read again on SIGHUP."""
    anonymous: opt.Flag = False
    """Answer requests without a key on an address that others can reach."""
    allowed_hosts: opt.Names = ()
    """Names that the Host header of a request may have. Default: those of this machine, if only it can reach the
    server; else any."""
    cors_origins: opt.Names = ()
    """Origins of web pages that may call the server from a browser, such as https://example.org."""
    drain: opt.PositiveFloat = 30.0
    """Seconds in which what is running may finish when the server is told to end."""
    log_texts: opt.Flag = False
    """Write the bodies of requests into the log, which otherwise has no texts."""

    def settings(self) -> dict[str, object]:
        """Return the options by the names of `ServerSettings`."""
        names = {"allowed_hosts": "hosts", "drain": "drain_seconds"}
        return {names.get(name, name): value for name, value in asdict(self).items()}


@Parameter(name="*", group="Limits of requests")
@dataclass(frozen=True, slots=True)
class LimitOptions:
    """Options for the limits of requests."""

    max_body: opt.TokenCount = 16_000_000
    """Bytes of a request, such as 16M."""
    max_items: opt.PositiveInt = 2048
    """Inputs of a request."""
    max_tokens: opt.TokenCount = 300_000
    """Tokens of a request, such as 300k."""
    max_wait: opt.PositiveFloat = 10.0
    """Seconds of computing that may wait; further requests are refused with 429."""
    max_requests: opt.PositiveInt = 256
    """Requests that are answered at once."""
    max_connections: opt.PositiveInt = 1024
    """Open connections."""

    def settings(self) -> dict[str, object]:
        """Return the options by the names of `Limits`."""
        return {
            "body_bytes": self.max_body,
            "items": self.max_items,
            "tokens": self.max_tokens,
            "waiting_seconds": self.max_wait,
            "requests": self.max_requests,
            "connections": self.max_connections,
        }


_ADDRESS, _LIMITS = AddressOptions(), LimitOptions()


@opt.command(_EXAMPLE)
def serve(
    *models: str,
    index: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    task: Annotated[tuple[str, ...], Parameter(negative=(), show_default=False)] = (),
    max_length: opt.PositiveInt | None = None,
    address: AddressOptions = _ADDRESS,
    limits: LimitOptions = _LIMITS,
    opening: opt.ModelOptions = opt.ANY_MODEL,
) -> None:
    """Serve models over HTTP, with a page to try them.

    Answers for every task at /v1/predict, and speaks the APIs of OpenAI (/v1/embeddings), Cohere and Jina (/v1/rerank),
    text-embeddings-inference and others; /openapi.json lists all of them. Only this machine can reach the server,
    unless another --host is given.

    Args:
        models: Folders or names of models. A model's name in requests is the last part of its path; name=folder gives
            it another one.
        index: Folder of a search index, or its table postgresql://host/database#table, also as name=folder; repeat the
            option for several.
        task: Task of a model as name=task, such as reranker=pairs for a classifier of another program whose files do
            not say that it reads pairs of texts; repeat the option for several.
        max_length: Maximum tokens per window of a text. Default: as in training, else the model's limit.
    """
    _check_installed()
    own = opening.arguments()
    with opt.as_usage_error():
        settings: ServerSettings = imported("bothways.serving.settings:ServerSettings")(
            models=models,
            indexes=index,
            threads=opening.threads,
            limits=imported("bothways.serving.settings:Limits")(**limits.settings()),
            opening=imported("bothways.serving.settings:Opening")(
                device=own["device"],
                dtype=own["dtype"],
                max_length=max_length,
                revision=own["revision"],
                download=own["download"],
                allow_pickle=own["allow_pickle"],
                tasks=_tasks(task),
            ),
            **address.settings(),
        )

    def started(where: str) -> None:
        note(f"serving at {where}, a page to try the models; Ctrl-C ends it", always=True)

    def ready(where: str, opened: "Models") -> None:
        note(f"ready. A request:\n  {_curl(settings, where, opened)}", always=True)

    imported("bothways.serving.running:serve")(settings, started, ready)


def _tasks(given: tuple[str, ...]) -> dict[str, str]:
    """Return the tasks by the names of models."""
    wrong = [each for each in given if not all(each.partition("="))]
    if wrong:
        raise opt.usage_error(f"--task: expected name=task, such as reranker=pairs, got {wrong[0]!r}.")
    return {name: task for name, _, task in (each.partition("=") for each in given)}


def _check_installed() -> None:
    """Raise `MissingDependency` if the extra of the server is not installed."""
    for package in ("msgspec", "orjson", "prometheus_client", "starlette", "uvicorn", "uvloop", "httptools"):
        if find_spec(package) is None:
            raise MissingDependency.of(package, extra="serve", purpose="serving models")


def _curl(settings: "ServerSettings", where: str, opened: "Models") -> str:
    """Return a command that asks the first model, or index, for an answer."""
    key = " -H 'authorization: Bearer KEY'" if settings.api_keys else ""
    path = "v1/search"
    body: dict[str, object] = {"query": "some words"}
    for each in opened:
        path, body = each.example()
        break
    text = json.dumps(body, ensure_ascii=False).replace("'", "\\u0027")
    return f"curl -s {where}/{path} -H 'content-type: application/json'{key} -d '{text}'"
