#!/usr/bin/env python3
"""bench_host.py on CPU ranks, with jobs that succeed, fail, hang or do not fit; what it would start on eight GPUs."""
import argparse
import json
import os
import re
import shlex
import stat
import subprocess
import sys
import tempfile
import time
import unittest

HERE = os.path.dirname(os.path.abspath(__file__))
TRAINER = ""


def bench_host(*arguments, trainer=None):
    command = [sys.executable, os.path.join(HERE, "bench_host.py"), "--trainer", trainer or TRAINER, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=240)


def tables_of(text):
    """Title -> rows, each a dictionary by column."""
    tables = {}
    for part in text.split("\n## ")[1:]:
        lines = part.splitlines()
        rows = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines if line.startswith("|")]
        tables[lines[0]] = [dict(zip(rows[0], row)) for row in rows[2:]]
    return tables


def settings_of(command):
    words = shlex.split(command)
    return dict(words[i + 1].split("=", 1) for i, word in enumerate(words) if word == "--set")


def ranks_of(command):
    words = shlex.split(command)
    return int(words[words.index("-np") + 1])


class BenchHost(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.out = os.path.join(folder.name, "out")

    def run_on_cpu(self, *arguments, trainer=None):
        return bench_host("--cpu", "--out", self.out, "--steps", "1", *arguments, trainer=trainer)

    def processes(self):
        """Command lines that name the folder of this test."""
        found = []
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline") as file:
                    found += [text for text in [file.read()] if self.out in text]
            except OSError:  # it has ended meanwhile
                pass
        return found

    def test_tables_hold_what_the_runs_gave(self):
        result = self.run_on_cpu("--parts", "comm", "scaling", "14b")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        with open(os.path.join(self.out, "tables.md")) as file:
            text = file.read()
        self.assertIn(text, result.stdout)
        tables = tables_of(text)
        self.assertEqual([(row["group"], row["ranks"], row["operation"]) for row in tables["Communication"]],
                         [("world", "2", name) for name in ("all_reduce", "all_gather", "reduce_scatter")])
        for model in ("1b", "7b"):
            one, two = tables["Scaling of " + model]
            figures = []
            for row in (one, two):
                self.assertEqual(row["result"], "ok")
                with open(os.path.join(self.out, f"scaling-{model}-{row['GPUs']}.json")) as file:
                    figures.append(json.load(file))
                self.assertEqual(row["tokens/s"], f"{figures[-1]['tokens_per_second']:,.0f}")
            self.assertEqual(one["efficiency"], "100.0 %")
            share = figures[1]["tokens_per_second"] / (2 * figures[0]["tokens_per_second"])
            self.assertEqual(two["efficiency"], f"{100 * share:.1f} %")
            self.assertEqual(figures[1]["global_batch_size"], 2 * figures[0]["global_batch_size"])
        self.assertEqual([(row["layout"], row["micro-batch"], row["result"]) for row in tables["14B"]],
                         [("DP 2, ZeRO 1", "2", "ok"), ("DP 2, ZeRO 2", "2", "ok"), ("DP 2, ZeRO 3", "2", "ok"),
                          ("TP 2, sequence parallel", "4", "ok")])
        with open(os.path.join(self.out, "14b-dp-2-zero-3.log")) as file:
            self.assertIn("share of the floor", file.read())

    def test_a_run_that_fails_is_a_row_and_the_rest_goes_on(self):
        broken = os.path.join(os.path.dirname(self.out), "broken")
        with open(broken, "w") as file:
            file.write('#!/bin/sh\ncase "$1 $*" in bench*zero_stage=2*) echo link down >&2; exit 7 ;; esac\n'
                       f'exec {shlex.quote(TRAINER)} "$@"\n')
        os.chmod(broken, stat.S_IRWXU)
        result = self.run_on_cpu("--parts", "14b", trainer=broken)
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual([row["result"] for row in tables_of(result.stdout)["14B"]],
                         ["ok", "exit code 7: link down", "ok", "ok"])

    def test_a_run_past_its_time_is_ended_whole(self):
        result = self.run_on_cpu("--parts", "comm", "--time-limit-per-run", "0.2")
        self.assertEqual(result.returncode, 1, result.stdout + result.stderr)
        self.assertEqual(tables_of(result.stdout)["Communication"], [{"ranks": "2", "result": "timed out after 0.2 s"}])
        end = time.monotonic() + 10
        while self.processes() and time.monotonic() < end:
            time.sleep(0.05)
        self.assertEqual(self.processes(), [])

    def test_what_does_not_fit_is_not_started(self):
        result = self.run_on_cpu("--parts", "scaling", "14b", "--card", "0.0001")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        rows = [row for table in tables_of(result.stdout).values() for row in table]
        self.assertEqual(len(rows), 8)
        for row in rows:
            self.assertRegex(row["result"], r"^does not fit: \d.* MiB$")

    def test_eight_gpus(self):
        result = bench_host("--dry-run", "--gpus", "8", "--card", "h200", "--ranks-test", "ranks_test", "--out",
                            self.out)
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertFalse(os.path.exists(self.out))
        test, comm, *rest = result.stdout.splitlines()
        self.assertRegex(test, r"launch/mpirun\.sh -np 8 \S*/ranks_test --gtest_color=no$")
        self.assertRegex(comm, r"launch/mpirun\.sh -np 8 \S* bench --comm --set parallelism\.tensor_parallel_size=2 ")
        for config, samples in (("configs/bench/llama-1b.yaml", 4), ("configs/bench/qwen-7b.yaml", 32)):
            runs = [line for line in rest if config in line]
            self.assertEqual([ranks_of(run) for run in runs], [1, 2, 4, 8])
            for run in runs:
                self.assertEqual(int(settings_of(run)["train.global_batch_size"]), samples * ranks_of(run))
                self.assertEqual(settings_of(run)["parallelism.zero_stage"], "0" if ranks_of(run) == 1 else "1")
            self.assertEqual(len({settings_of(run)["train.micro_batch_size"] for run in runs}), 1)
        layouts = [line for line in rest if re.search(r"trainer bench --config configs/14b\.yaml", line)]
        self.assertEqual({ranks_of(layout) for layout in layouts}, {8})
        keys = ("tensor_parallel_size", "sequence_parallel", "zero_stage")
        self.assertEqual([tuple(settings_of(layout)["parallelism." + key] for key in keys) for layout in layouts],
                         [("1", "false", "1"), ("1", "false", "2"), ("1", "false", "3"), ("2", "true", "1"),
                          ("8", "true", "0")])
        self.assertEqual({settings_of(layout)["train.global_batch_size"] for layout in layouts}, {"64"})
        self.assertNotIn("bench", shlex.split(rest[-1]))
        self.assertIn("--config configs/14b.yaml", rest[-1])

    def test_layouts_that_do_not_fit_are_named(self):
        result = bench_host("--dry-run", "--gpus", "8", "--card", "h100", "--parts", "14b")
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)
        self.assertRegex(result.stdout, r"# 14B, DP 8, ZeRO 1: does not fit: \d+ GiB\n")
        self.assertIn("tensor_parallel_size=8", result.stdout)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trainer", required=True, help="the program")
    options, rest = parser.parse_known_args()
    TRAINER = os.path.abspath(options.trainer)
    unittest.main(argv=[sys.argv[0], *rest])
