"""The APIs that the server speaks: tables of routes."""
