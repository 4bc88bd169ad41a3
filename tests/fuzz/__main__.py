"""The long campaign over the readers of checkpoints: `python -m tests.fuzz --minutes 8 [--reader zip] [--from 5000]`.

Each case is a small sound checkpoint, made when the campaign begins, with damage by chance; it must end in a verdict,
within little time and memory. The number of a case is all that it takes to make it again: `--reader zip --only 1234`.
What fails is printed with its number and kept as files in `fuzz-failures` (`--keep`); mend it, and make a test of it.
`test_fuzz.py` runs a few cases of every reader with all other tests.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import sys
import tempfile
import time
import traceback
from pathlib import Path

from remoterun.payloads.check_ckpt.model import clean_text
from tests.fuzz.seeds import READERS
from tests.fuzz.trial import attempt, case
from tests.unit.payloads.check_ckpt.support import NothingError


def main() -> int:
    """Try cases until the time is over; the exit status is 1 when one failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="for each reader")
    parser.add_argument("--reader", choices=READERS, action="append")
    parser.add_argument("--from", type=int, default=0, dest="first", help="number of the first case")
    parser.add_argument("--only", type=int, help="number of the only case")
    parser.add_argument("--keep", type=Path, default=Path("fuzz-failures"), help="folder for what fails")
    options = parser.parse_args()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="remoterun-fuzz-") as folder:
        for reader in options.reader or READERS:
            deadline = time.monotonic() + 60 * options.minutes
            first = options.first if options.only is None else options.only
            failed += _campaign(reader, first, deadline, Path(folder) / "case", options)
    return 1 if failed else 0


def _campaign(reader: str, first: int, deadline: float, folder: Path, options: argparse.Namespace) -> int:
    verdicts: collections.Counter[str] = collections.Counter()
    number, failed = first, 0
    while time.monotonic() < deadline:
        said = _try(reader, number, folder)
        verdicts[said] += 1
        if said == "failed":
            failed += 1
            _keep(reader, number, options.keep)
        number += 1
        if options.only is not None:
            break
    print(f"{reader}: {number - first} cases from {first} on, {failed} failed: {dict(verdicts.most_common(8))}")
    return failed


def _try(reader: str, number: int, folder: Path) -> str:
    captured = io.StringIO()
    try:
        with contextlib.redirect_stderr(captured):
            return attempt(case(reader, number), folder)
    except NothingError:
        return "nothing to check"
    except Exception:
        print(f"--reader {reader} --only {number}\n{captured.getvalue()}{traceback.format_exc()}", file=sys.stderr)
        return "failed"


def _keep(reader: str, number: int, folder: Path) -> None:
    for name, data in case(reader, number).items():
        path = folder / f"{reader}-{number}" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    print(f"kept in {clean_text(str(folder))}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
