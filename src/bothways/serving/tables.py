"""All routes of the server."""

from bothways.serving.api import explanations, huggingface, native, openai, ranking, tei
from bothways.serving.routes import Route

_TABLES = (native, explanations, openai, ranking, tei, huggingface)
ROUTES: tuple[Route, ...] = tuple(each for table in _TABLES for each in table.ROUTES)
