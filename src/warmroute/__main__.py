"""`python -m warmroute`."""

from .cli import main

main()
