"""`python -m tests.fuzz --cases 1000000`: exit code 1, and the smallest case that fails, if one does."""

import argparse
import logging
import sys
import time
import traceback

from .run import TARGETS, fuzz, kept


def main() -> int:
    """Run the chosen targets one after the other."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="of all targets together (default: %(default)s)")
    parser.add_argument("--target", choices=TARGETS, action="append", help="one of some (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="the first one; the same seed tries the same cases")
    wanted = parser.parse_args()
    logging.disable(logging.CRITICAL)
    names = wanted.target or list(TARGETS)
    targets = [TARGETS[name]() for name in names]
    whole = sum(target.share for target in targets)
    failed = tried = 0
    for target in targets:
        begun = time.monotonic()
        try:
            for _, case in kept(target.name):
                target.check(case)
            done = fuzz(
                target, round(wanted.cases * target.share / whole), wanted.seed, lambda text: print(text, flush=True)
            )
        except Exception:  # noqa: BLE001  # whatever a case raises is what this looks for
            failed += 1
            traceback.print_exc()
            print(f"{target.name}: FAILED", flush=True)
            continue
        finally:
            target.close()
        tried += done
        print(f"{target.name}: {done} cases, none failed, {time.monotonic() - begun:.0f} s", flush=True)
    print(f"{tried} cases; {failed} targets failed")
    return 1 if failed else 0


sys.exit(main())
