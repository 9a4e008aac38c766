"""Serving models over HTTP; the only package that imports a web framework.

The names are imported when they are first used (PEP 562).
"""

from typing import TYPE_CHECKING

from bothways.lazy import loader

if TYPE_CHECKING:
    from bothways.serving.application import Server, application
    from bothways.serving.running import make_server, serve
    from bothways.serving.settings import Limits, Opening, ServerSettings

__all__ = ["Limits", "Opening", "Server", "ServerSettings", "application", "make_server", "serve"]

_MODULES = {
    "application": ("Server", "application"),
    "running": ("make_server", "serve"),
    "settings": ("Limits", "Opening", "ServerSettings"),
}
__getattr__ = loader(__name__, _MODULES)
