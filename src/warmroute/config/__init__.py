"""The configuration: `schema` says what can be told, `load` reads it from flags, environment and one YAML file."""

from .load import ConfigError, load
from .schema import BackendConfig, Config, StoreConfig
from .secret import read_secret

__all__ = ["BackendConfig", "Config", "ConfigError", "StoreConfig", "load", "read_secret"]
