"""Fuzzes every door, or those that are named, each for its share of the time: run.py PROGRAM FOLDER SECONDS [DOOR...].

FOLDER keeps each door's texts from run to run. What is found is copied to FOLDER/found; a text that stays found goes to
tests/fuzz/found/DOOR with its mend. Exits with 1 where something was found.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import seeds

LIMITS = [
    "-rss_limit_mb=3072",
    "-malloc_limit_mb=2048",
    "-timeout=60",
    "-report_slow_units=1000",
    "-len_control=20",
    "-reload=0",
    "-print_final_stats=1",
]

# Half of the time went into remembering where memory was allocated; a find is run again with all of it.
QUICKLY = {**os.environ, "ASAN_OPTIONS": "malloc_context_size=2:detect_stack_use_after_return=0:quarantine_size_mb=16"}


def fuzz(program: Path, folder: Path, door: str, until: float) -> tuple[int, int]:
    """Executions and findings; goes on behind a finding."""
    executions = findings = 0
    found = folder / "found" / door
    found.mkdir(parents=True, exist_ok=True)
    before = set(found.iterdir())
    while (left := int(until - time.monotonic())) > 0:
        command = [program, f"--door={door}", f"--slow={found}", *LIMITS, f"-max_total_time={left}", f"-max_len={seeds.LONGEST}"]
        command += [f"-artifact_prefix={found}/", f"-dict={folder / 'words'}", folder / "texts" / door]
        with (folder / f"{door}.log").open("ab+") as log:
            at = log.seek(0, 2)
            status = subprocess.run(command, stdout=log, stderr=log, env=QUICKLY, check=False).returncode
            log.seek(at)
            text = log.read().decode("utf-8", "replace")
        told = re.findall(r"stat::number_of_executed_units: (\d+)", text) or re.findall(r"^#(\d+)\t", text, re.MULTILINE) or [0]
        executions += int(told[-1])
        if status == 0:
            break
        if not executions:
            sys.exit(f"{door}: the fuzzer did not start, see {folder / door}.log:\n{text[-500:]}")
    findings = len(set(found.iterdir()) - before)
    return executions, findings


def main() -> int:
    program, folder, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    every = subprocess.run([program], capture_output=True, text=True, check=True).stdout.split()
    doors = sys.argv[4:] or every
    if unknown := [door for door in doors if door not in every]:
        sys.exit(f"no door {unknown[0]}: there are {', '.join(every)}")
    seeds.write(folder)
    executions = findings = 0
    began = time.monotonic()
    print(f"{'door':12}{'executions':>12}{'findings':>10}", flush=True)
    for number, door in enumerate(doors, 1):
        ran, found = fuzz(program, folder, door, began + seconds * number / len(doors))
        print(f"{door:12}{ran:12,}{found:10}", flush=True)
        executions, findings = executions + ran, findings + found
    print(f"{'in all':12}{executions:12,}{findings:10}")
    if findings:
        print(f"what was found: {folder / 'found'}")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
