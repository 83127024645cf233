"""The configuration: `schema` says what can be told, `load` reads it from flags, environment and one YAML file.

`certificates` reads what is needed for TLS, `secret` the store's secret. `restart` says which keys a running router cannot
take anew, `extras` which packages a configuration wants.
"""

from .backends import BackendConfig
from .certificates import Certificates, read_certificates, unverified, with_certificates
from .discovery import nameserver, query
from .extras import require_extras
from .load import ConfigError, load
from .restart import needs_restart
from .schema import Config, StoreConfig
from .secret import read_secret

__all__ = [
    "BackendConfig",
    "Certificates",
    "Config",
    "ConfigError",
    "StoreConfig",
    "load",
    "nameserver",
    "needs_restart",
    "query",
    "read_certificates",
    "read_secret",
    "require_extras",
    "unverified",
    "with_certificates",
]
