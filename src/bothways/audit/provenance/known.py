"""SHA-256 of weights as they were released, by which a copy is known for what it is."""

from collections.abc import Mapping

KNOWN_RELEASES: Mapping[str, str] = {
    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db": "sentence-transformers/all-MiniLM-L6-v2",
}
