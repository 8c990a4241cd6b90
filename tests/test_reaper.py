"""Orphans are collected, and the exit codes of the server's own children are not."""

import subprocess
import sys
from pathlib import Path

import pytest

import swe_rollout

ROOT = Path(swe_rollout.__file__).parents[1]
PROGRAM = """
import os, subprocess, sys, threading
from concurrent.futures import ThreadPoolExecutor
from swe_rollout.reaper import Reaper

janitor = subprocess.Popen(["sh", "-c", "read line; exit 9"], stdin=subprocess.PIPE)
reaper = Reaper()
over, reaped = threading.Event(), []

def reap():
    while not over.is_set():
        reaped.extend(reaper.reap())

def orphan(_):
    # Its parent ends at once; what it leaves says its id and is ours then.
    command = ["sh", "-c", "(exec sh -c 'echo $$; exec >&-; sleep 0.1; exit 5') &"]
    return int(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)

def command(number):
    return subprocess.run(["sh", "-c", f"exit {number % 200}"]).returncode == number % 200

def late(number):
    # It has ended long before anybody asks.
    process = subprocess.Popen(["sh", "-c", f"exit {number % 200}"])
    while "Z" not in open(f"/proc/{process.pid}/stat").read().rsplit(")")[1].split()[0]:
        threading.Event().wait(0.01)
    threading.Event().wait(0.05)
    return process.wait() == number % 200

reapers = [threading.Thread(target=reap, daemon=True) for _ in range(2)]
for thread in reapers:
    thread.start()
with ThreadPoolExecutor(60) as threads:
    orphans = threads.map(orphan, range(40))
    kept = [*threads.map(command, range(1, 601)), *threads.map(late, range(1, 121))]
    orphans = set(orphans)
while orphans - set(reaped):
    threading.Event().wait(0.01)
over.set()
for thread in reapers:
    thread.join()
janitor.communicate(b"\\n")
print(len(orphans), len(kept), all(kept), len(reaped) - len(set(reaped)), set(reaped) == orphans, janitor.returncode)
"""


@pytest.mark.timeout(200)
def test_no_exit_code_is_lost_to_the_reaper_and_no_orphan_stays() -> None:
    result = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, capture_output=True, text=True, timeout=180, check=False
    )
    assert (result.stdout, result.stderr) == ("40 720 True 0 True 9\n", "")
