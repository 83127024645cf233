"""Words that prompts of the checks are made of: each is a token or two in most vocabularies."""

WORDS = (
    "river",
    "stone",
    "cloud",
    "lamp",
    "garden",
    "window",
    "paper",
    "bridge",
    "copper",
    "winter",
    "market",
    "letter",
    "engine",
    "forest",
    "silver",
    "harbor",
)
