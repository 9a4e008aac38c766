"""The studio: a page on which a person can try the models of a server.

Its parts are files beside each other; they go out as one page that asks for nothing else but the server's API.
"""

import base64
import hashlib
import re
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route

_STYLE = re.compile(r'<link rel="stylesheet" href="([^"]+)">')
_SCRIPTS = re.compile(r'(?:<script src="[^"]+"></script>\s*)+')
_SOURCE = re.compile(r'src="([^"]+)"')


def studio_route() -> Route:
    """Return the route of the page, which needs no key: it asks for one itself."""
    page, policy = studio_page()
    headers = {"content-security-policy": policy, "x-content-type-options": "nosniff", "cache-control": "no-cache"}

    async def show(_: Request) -> Response:
        return HTMLResponse(page, headers=headers)

    return Route("/", show, methods=["GET"])


def studio_page() -> tuple[str, str]:
    """Return the page with its style and its scripts in it, and the policy that lets a browser use nothing else."""
    folder = files(__package__)

    def read(name: str) -> str:
        return (folder / name).read_text(encoding="utf-8")

    page = read("index.html")
    styles, scripts = _STYLE.findall(page), _SOURCE.findall("".join(_SCRIPTS.findall(page)))
    style, script = ("\n".join(map(read, names)) for names in (styles, scripts))
    page = _STYLE.sub(lambda _: f"<style>{style}</style>", page)
    page = _SCRIPTS.sub(lambda _: f"<script>{script}</script>\n", page)
    policy = {
        "default-src": "'none'",
        "style-src": _hash(style),
        "script-src": _hash(script),
        "connect-src": "'self'",
        "img-src": "data:",
        "base-uri": "'none'",
        "form-action": "'none'",
        "frame-ancestors": "'none'",
    }
    return page, "; ".join(f"{name} {value}" for name, value in policy.items())


def _hash(content: str) -> str:
    digest = base64.b64encode(hashlib.sha256(content.encode()).digest())
    return f"'sha256-{digest.decode()}'"
