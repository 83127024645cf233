"""`warmroute check`: asks running servers a few things of its own, and says whether their caches do what they are for."""

from .target import CheckError
from .turns import as_dict, as_text, run

__all__ = ["CheckError", "as_dict", "as_text", "run"]
