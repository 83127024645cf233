"""The secret of the shared store: from the configuration, or out of a file at start."""

from .load import ConfigError
from .schema import StoreConfig

_SHORTEST = 16


def read_secret(store: StoreConfig) -> bytes | None:
    """`secret` before the content of `secret_file`; None where neither is given. Raises ConfigError."""
    if store.secret is not None:
        return store.secret.get_secret_value().encode()
    if store.secret_file is None:
        return None
    try:
        secret = store.secret_file.read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"store.secret_file {store.secret_file}: {error.strerror}") from None
    if len(secret) < _SHORTEST:
        raise ConfigError(
            f"store.secret_file {store.secret_file}: too short; put at least {_SHORTEST} characters there"
        )
    return secret
