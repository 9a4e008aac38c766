"""Search indexes in tables of PostgreSQL with pgvector. Needs the extra ``postgres`` (psycopg)."""
