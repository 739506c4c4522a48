#!/usr/bin/env python3
"""Reads event files of ours with TensorBoard's own reader. Exits with 77 (skipped) where the package is missing."""

import argparse
import subprocess
import sys
import tempfile

SKIPPED = 77


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--writer", required=True, help="the write_tensorboard program")
    arguments = parser.parse_args()
    try:
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    except ImportError:
        print("SKIPPED: the Python package 'tensorboard' is not installed")
        return SKIPPED

    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([arguments.writer, folder], check=True)
        events = EventAccumulator(folder)
        events.Reload()
        losses = {e.step: (e.value, e.wall_time) for e in events.Scalars("train/loss")}
        # Steps 1 to 10 of the first file; 11 to 15 of the second, which replaced what the first had from 11 to 20.
        expected = {step: (100.0 - step, 1.7e9 + step) for step in range(1, 11)}
        expected |= {step: (200.0 - step, 1.7e9 + step) for step in range(11, 16)}
        assert losses == expected, (losses, expected)
        rates = [e.value for e in events.Scalars("perf/tokens_per_sec")]
        assert rates == [1000.0] * 15, rates
        assert events.file_version == 2.0, events.file_version
    print("TensorBoard read the files back")
    return 0


if __name__ == "__main__":
    sys.exit(main())
