"""What `import oomplan` costs: the median start of Python with it, less the median without.

python benchmarks/speed/import_time.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time


def milliseconds(code: str, runs: int) -> float:
    taken = []
    for _ in range(runs):
        start = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(1e3 * (time.perf_counter() - start))
    return statistics.median(taken)


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 31
    bare, with_it = milliseconds("pass", runs), milliseconds("import oomplan", runs)
    print(f"python {bare:.1f} ms, with oomplan {with_it:.1f} ms: import oomplan takes {with_it - bare:.1f} ms (median of {runs})")


if __name__ == "__main__":
    main()
