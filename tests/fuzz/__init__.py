"""Fuzzing of everything that reads what strangers wrote: `python -m tests.fuzz --cases N`, and a little in every test run.

Each target takes bytes cut into pieces. Cases that were worth keeping are in `corpus/`, one file a target, and always tried.
"""
