"""All routes of the server."""

from bothways.serving import native, openai, ranking
from bothways.serving.routes import Route

ROUTES: tuple[Route, ...] = (*native.ROUTES, *openai.ROUTES, *ranking.ROUTES)
