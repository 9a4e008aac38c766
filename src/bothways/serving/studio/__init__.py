"""The studio: a page on which a person can try the models of a server."""

from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; img-src data:"


def studio_route() -> Route:
    """Return the route of the page, which needs no key: it asks for one itself."""
    page = (files(__package__) / "index.html").read_text(encoding="utf-8")

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers={"content-security-policy": _POLICY, "x-content-type-options": "nosniff"})

    return Route("/", show, methods=["GET"])
