"""All routes of the server."""

from bothways.serving.api import huggingface, native, openai, ranking, tei
from bothways.serving.routes import Route

ROUTES: tuple[Route, ...] = (*native.ROUTES, *openai.ROUTES, *ranking.ROUTES, *tei.ROUTES, *huggingface.ROUTES)
