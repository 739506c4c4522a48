#!/usr/bin/env python3
"""Measures a host with N GPUs in one call: its links, how training scales over them, which layout trains 14B best.

    python3 tests/tools/bench_host.py --trainer build/release/launch/trainer \\
        --ranks-test build/release/tests/gpu/test_gpu_ranks --out runs/bench-host

Parts, all of them unless --parts names some:
  tests    the tests of several ranks: any layout is the same function as one GPU (with --ranks-test only)
  comm     all-reduce, all-gather and reduce-scatter over all ranks; from four ranks on also over pairs and across them
  scaling  1, 2, 4, ... N GPUs, 1b and 7b of configs/bench: each GPU has the work that the file gives to one GPU
  14b      configs/14b.yaml in each layout, ZeRO 1 to 3 and tensor parallel, all with the same batch a step; a layout
           takes the largest micro-batch that `trainer plan` says to fit, up to 8192 tokens a GPU
  data     training itself, on text: the fastest layout of part 14b, or the first that fits

Every run has a time limit and leaves its whole output in --out; one that fails is a row with its exit code and last
line. Tables of Markdown go to --out/tables.md after each run, and to the standard output at the end. Exit code: 0, 1
when something failed, 2 for a wrong command line. Variables such as NCCL_NVLS_ENABLE=0 reach the ranks.

    python3 tests/tools/bench_host.py --cpu           # tries the script, with small models on CPU ranks
    python3 tests/tools/bench_host.py --dry-run       # prints the commands; only `trainer plan` is run
"""
import argparse
import dataclasses
import json
import os
import re
import shutil
import signal
import statistics
import sys

from host_jobs import Host, Obstacle, nvidia_smi, read

PARTS = ["tests", "comm", "scaling", "14b", "data"]
GIB = 1 << 30
CPU_SEQ_LENGTH = 32  # of 14b


# ---- figures of a result ---------------------------------------------------------------------------------------------
def percent(share):
    return "n/a" if share is None else f"{100 * share:.1f} %"


def gib(size):
    return f"{size / GIB:.3g}" if size else "n/a"


def size_text(size):
    """A power of two that may have been rounded down to a multiple of the ranks."""
    mib = size / (1 << 20)
    return f"{round(mib)} MiB" if mib > 0.9 else f"{round(1024 * mib)} KiB"


def exposed(result):
    """Step less the step that communicates nothing: milliseconds and share of the step; one rank has none."""
    alone = result["step_ms_without_communication"]
    if alone is None:
        return "0"
    return f"{result['step_ms'] - alone:.1f} ms, {percent(1 - alone / result['step_ms'])}"


def speed(result):
    """Micro-batch, milliseconds of a step, tokens/s of the job, MFU."""
    return [result["micro_batch_size"], f"{result['step_ms']:.1f}", f"{result['tokens_per_second']:,.0f}",
            percent(result["mfu"])]


def clocks(result):
    now = result["clocks"]
    return f"{now['sm_mhz']:.0f} MHz, {now['watts']:.0f} W" if now else "n/a"


def share_of_floor(result):
    return percent(result["floor_ms"] / result["step_ms"] if result["floor_ms"] else None)


# ---- parts -----------------------------------------------------------------------------------------------------------
def measure_tests(host):
    ranks = host.options.gpus
    table = host.table("Tests of several ranks", "test_gpu_ranks: collectives, and layouts against one GPU.",
                       ["ranks", "passed", "skipped", "failed", "result"])
    run = host.run("tests", [host.options.ranks_test, "--gtest_color=no"], ranks)
    if run is None:
        return

    def count(word):
        match = re.search(rf"\[  {word} +\] (\d+) test", run.output)
        return int(match[1]) if match else 0

    counts = [count(word) for word in ("PASSED", "SKIPPED", "FAILED")]
    verdict = "no test ran" if not run.failed and counts[0] == 0 and not host.options.cpu else run.verdict()
    host.add(table, [ranks, *counts, verdict], verdict != "ok")


def measure_comm(host):
    ranks = host.options.gpus
    note = "Bus bandwidth in GB/s, float32; in brackets the time of the smallest size, in us."
    if ranks == 1:
        host.add(host.table("Communication", note, ["ranks", "result"]), [1, "one GPU has no one to talk to"])
        return
    arguments = ["--comm"]
    if host.options.cpu:
        arguments += ["--comm-max-mib", "1", "--set", "train.device=cpu"]
    if ranks >= 4 and ranks % 2 == 0:  # pairs (tp), and those across them (dp), besides all (world)
        arguments += ["--set", "parallelism.tensor_parallel_size=2"]
    run, result = host.bench("comm", arguments, ranks)
    if run is None:
        return
    if result is None:
        host.add(host.table("Communication", note, ["ranks", "result"]), [ranks, run.verdict()], True)
        return
    rows = {}
    for point in result["communication"]:
        rows.setdefault((point["group"], point["ranks"], point["operation"]), []).append(point)
    sizes = [size_text(point["bytes"]) for point in next(iter(rows.values()))]
    table = host.table("Communication", note, ["group", "ranks", "operation", *sizes])
    for key, points in rows.items():
        rates = [f"{point['busbw_gb_s']:.3g}" for point in points]
        host.add(table, [*key, f"{rates[0]} ({1000 * points[0]['ms']:.0f})", *rates[1:]])


@dataclasses.dataclass
class ScalingModel:
    name: str
    config: str
    micro_batch: int  # of one GPU, where it fits
    batch: int        # samples a step of one GPU
    patience: int     # steps in place of one of --steps: a step of 1b is that much shorter

    def sets(self, ranks, micro_batch):
        return [f"train.micro_batch_size={micro_batch}", f"train.global_batch_size={self.batch * ranks}",
                f"parallelism.zero_stage={int(ranks > 1)}"]


SCALING = [ScalingModel("1b", "configs/bench/llama-1b.yaml", 4, 4, 8),
           ScalingModel("7b", "configs/bench/qwen-7b.yaml", 8, 32, 1)]


def gpu_counts(gpus):
    """1, 2, 4, ... and all."""
    return sorted({2**k for k in range(gpus.bit_length()) if 2**k <= gpus} | {gpus})


def step_arguments(steps, floor_seconds):
    return ["--steps", str(steps), "--warmup-steps", str(steps // 2 + 1), "--profiled-steps", "1", "--floor-seconds",
            f"{floor_seconds:g}"]


def largest_micro_batch(host, config, ranks, micro_batch, sets_of):
    """Halves the micro-batch until the job fits: that micro-batch and None, or 1 and the obstacle."""
    while True:
        obstacle = host.plan(config, ranks, sets_of(micro_batch))
        if obstacle is None or obstacle.is_error or micro_batch == 1:
            return micro_batch, obstacle
        micro_batch //= 2


def measure_scaling(host):
    for model in SCALING:
        table = host.table(
            f"Scaling of {model.name}",
            f"{model.config}, {model.batch} samples a step and GPU; one GPU as it is, several with ZeRO 1. Efficiency: "
            "tokens/s and GPU against the first row that was measured.",
            ["GPUs", "micro-batch", "step ms", "tokens/s", "MFU", "exposed communication", "efficiency", "clock, power",
             "result"])
        scale_model(host, model, table)


def scale_model(host, model, table):
    fixed = None  # micro-batch: the work of a GPU stays what it was on the fewest that it fits on
    base = None   # tokens/s of a GPU in the first row that was measured
    for ranks in gpu_counts(host.options.gpus):
        if fixed:
            obstacle = host.plan(model.config, ranks, model.sets(ranks, fixed))
        else:
            micro_batch, obstacle = largest_micro_batch(host, model.config, ranks, model.micro_batch,
                                                        lambda micro: model.sets(ranks, micro))
            fixed = micro_batch if obstacle is None else None
        if obstacle:
            host.add_obstacle(table, [ranks], obstacle)
            continue
        arguments = ["--config", model.config, *host.sets(model.sets(ranks, fixed)),
                     *step_arguments(host.options.steps * model.patience, 0)]
        run, result = host.bench(f"scaling-{model.name}-{ranks}", arguments, ranks)
        if run is None:
            continue
        if result is None:
            host.add(table, [ranks, fixed, run.verdict()], True)
            continue
        rate = result["tokens_per_second"] / ranks
        base = base or rate
        host.add(table, [ranks, *speed(result), exposed(result), percent(rate / base), clocks(result), "ok"])


def samples_of_gpu(options):
    """Samples of 8192 tokens; two on the CPU."""
    return 2 if options.cpu else max(1, 8192 // options.seq_length)


@dataclasses.dataclass
class Layout:
    name: str
    tensor_parallel: int
    zero: int
    micro_batch: int = 0

    def sets(self, options, micro_batch, accumulation):
        """The batch of a step is the same in each layout: `accumulation` x 8192 tokens a GPU."""
        batch = options.gpus * samples_of_gpu(options) * accumulation
        return [f"train.seq_length={options.seq_length}", f"train.micro_batch_size={micro_batch}",
                f"train.global_batch_size={batch}", f"parallelism.tensor_parallel_size={self.tensor_parallel}",
                f"parallelism.sequence_parallel={'true' if self.tensor_parallel > 1 else 'false'}",
                f"parallelism.zero_stage={self.zero}"]


CONFIG_14B = "configs/14b.yaml"


def layouts(gpus):
    if gpus == 1:
        return [Layout("one GPU", 1, 0)]
    found = [Layout(f"DP {gpus}, ZeRO {zero}", 1, zero) for zero in (1, 2, 3)]
    if gpus > 2 and gpus % 2 == 0:
        found.append(Layout(f"TP 2 x DP {gpus // 2}, sequence parallel, ZeRO 1", 2, 1))
    return [*found, Layout(f"TP {gpus}, sequence parallel", gpus, 0)]


def choose_micro_batch(host, layout, accumulation):
    """Sets the layout's micro-batch; returns what stands against the layout, or None."""
    options = host.options
    layout.micro_batch, obstacle = largest_micro_batch(
        host, CONFIG_14B, options.gpus, layout.tensor_parallel * samples_of_gpu(options),
        lambda micro: layout.sets(options, micro, accumulation))
    if obstacle and "does not divide by tensor_parallel_size" in obstacle.text:
        return Obstacle("heads do not divide", False)
    return obstacle


def measure_14b(host):
    """Returns the fastest layout, None where none was measured."""
    options = host.options
    batch = options.gpus * samples_of_gpu(options) * options.accumulation
    table = host.table("14B", f"{CONFIG_14B} on {options.gpus} ranks, {batch} samples of {options.seq_length} tokens a "
                       "step; memory in GiB a rank.",
                       ["layout", "micro-batch", "step ms", "tokens/s", "MFU", "share of the floor",
                        "exposed communication", "planned", "taken", "clock, power", "result"])
    best, fastest = 0, None
    for layout in layouts(options.gpus):
        obstacle = choose_micro_batch(host, layout, options.accumulation)
        if obstacle:
            host.add_obstacle(table, [layout.name], obstacle)
            continue
        name = "14b-" + re.sub(r"[^a-z0-9]+", "-", layout.name.lower())
        arguments = ["--config", CONFIG_14B, *host.sets(layout.sets(options, layout.micro_batch, options.accumulation)),
                     *step_arguments(options.steps, 0.2 if options.cpu else 10)]
        run, result = host.bench(name, arguments, options.gpus)
        if run is None:
            continue
        if result is None:
            host.add(table, [layout.name, layout.micro_batch, run.verdict()], True)
            continue
        if result["tokens_per_second"] > best:
            best, fastest = result["tokens_per_second"], layout
        host.add(table, [layout.name, *speed(result), share_of_floor(result), exposed(result),
                         gib(result["planned_bytes"]), gib(result["device_bytes"]), clocks(result), "ok"])
    return fastest


def text_shards(host):
    """Patterns of token shards: --data, or documents and sources of this repository as bytes; None: that failed."""
    if host.options.data:
        return [os.path.abspath(pattern) for pattern in host.options.data]
    folder = host.path("data")
    run = host.run("data-prepare", [host.options.trainer, "data", "prepare", "--overwrite", "--output-dir", folder,
                                    "--input", "docs/*.md", "core/*/*.cc", "core/*/*.h", "kernels/*/*.cc"])
    return None if run is not None and run.failed else [os.path.join(folder, "train-*.h5")]


def measure_data(host, layout):
    """Trains in the layout; without one, in the first that fits."""
    options, steps = host.options, 6 * host.options.steps
    table = host.table("Training", f"`trainer --config {CONFIG_14B}` on text, {steps} steps; nothing is saved.",
                       ["layout", "micro-batch", "loss, first 3 steps", "last 3", "tokens/s", "MFU", "data wait ms",
                        "result"])
    layout = layout or next((one for one in layouts(options.gpus) if not choose_micro_batch(host, one, 1)), None)
    if layout is None:
        host.add(table, ["no layout fits"])
        return
    shards = text_shards(host)
    if shards is None:
        host.add(table, ["trainer data prepare failed: data-prepare.err"], True)
        return
    folder = host.path("data-run")
    if os.path.isdir(folder) and not options.dry_run:
        shutil.rmtree(folder)
    sets = [*layout.sets(options, layout.micro_batch, 1), "train.train_tokens=0", f"train.train_steps={steps}",
            f"train.output_dir={folder}", f"data.train=[{','.join(shards)}]", "optimizer.lr=1e-4",
            "lr_scheduler.warmup_steps=3", "checkpoint.load=none", "checkpoint.save_interval=0",
            "checkpoint.save_at_end=false", "checkpoint.save_on_signal=false", "logging.interval=1"]
    run = host.run("data-train", [options.trainer, "--config", CONFIG_14B, *host.sets(sets)], options.gpus)
    if run is None:
        return
    if run.failed:
        host.add(table, [layout.name, layout.micro_batch, run.verdict()], True)
        return
    records = [json.loads(line) for line in read(os.path.join(folder, "metrics.jsonl")).splitlines()]

    def median(key):  # of the second half
        values = [record[key] for record in records[len(records) // 2:] if record.get(key) is not None]
        return statistics.median(values) if values else None

    first, last = (statistics.mean(record["loss"] for record in part) for part in (records[:3], records[-3:]))
    host.add(table, [layout.name, layout.micro_batch, f"{first:.3f}", f"{last:.3f}",
                     f"{median('tokens_per_second') or 0:,.0f}", percent(median("mfu")),
                     f"{median('data_wait_ms') or 0:.2f}", "ok" if last < first else "the loss does not fall"],
             failed=not last < first)


# ---- the command line ------------------------------------------------------------------------------------------------
def free_gib():
    """What every GPU has free, in GiB; empty where there is none."""
    free = nvidia_smi("--query-gpu=memory.free", "--format=csv,noheader,nounits")
    return f"{min(float(line) for line in free) / 1024:.2f}" if free else ""


def positive(text):
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not 1 or more")
    return value


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trainer", default="trainer", help="the program; default: the one on the PATH")
    parser.add_argument("--ranks-test", help="test_gpu_ranks of the same build, for part tests")
    parser.add_argument("--gpus", type=positive, help="how many; default: all that nvidia-smi lists")
    parser.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART", help="of " + ", ".join(PARTS))
    parser.add_argument("--out", default="runs/bench-host",
                        help="folder for outputs and tables.md; default: %(default)s")
    parser.add_argument("--steps", type=positive, default=5, help="timed steps of a 7b or 14b run (1b: 8 times as "
                        "many, data: 6 times); default: %(default)s")
    parser.add_argument("--accumulation", type=positive, default=4,
                        help="14b: tokens a step and GPU, in units of 8192; default: %(default)s")
    parser.add_argument("--seq-length", type=positive, help="14b: tokens of a sample; default: 4096")
    parser.add_argument("--time-limit-per-run", type=float, default=600, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--card", help="as for trainer plan; default: the memory that is free on every GPU")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for scaling, 14b and data")
    parser.add_argument("--data", action="append", help="token shards for part data; default: text of this repository")
    parser.add_argument("--cpu", action="store_true", help="small models on CPU ranks: two, or --gpus")
    parser.add_argument("--dry-run", action="store_true", help="print the commands")
    return parser, parser.parse_args()


def complete(parser, options):
    """Fills in what was not given."""
    program = shutil.which(options.trainer)
    if program is None:
        parser.error(f"--trainer {options.trainer}: no such program")
    options.trainer, options.out = os.path.abspath(program), os.path.abspath(options.out)
    options.gpus = options.gpus or (2 if options.cpu else len(nvidia_smi("-L")))
    if options.gpus == 0:
        parser.error("nvidia-smi lists no GPU; right would be --gpus N with --dry-run, or --cpu")
    options.card = options.card or ("1" if options.cpu else free_gib())
    if not options.card:
        parser.error("nvidia-smi tells no memory; right would be --card, as for trainer plan")
    options.seq_length = options.seq_length or (CPU_SEQ_LENGTH if options.cpu else 4096)
    if options.ranks_test:
        options.ranks_test = os.path.abspath(options.ranks_test)
    elif options.parts and "tests" in options.parts:
        parser.error("part tests needs --ranks-test")
    options.parts = options.parts or [part for part in PARTS if part != "tests" or options.ranks_test]


def main():
    parser, options = parse_options()
    complete(parser, options)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, _: sys.exit(128 + number))  # past the `finally` that ends the job
    if not options.dry_run:
        os.makedirs(options.out, exist_ok=True)
    host, fastest = Host(options), None
    if "tests" in options.parts:
        measure_tests(host)
    if "comm" in options.parts:
        measure_comm(host)
    if "scaling" in options.parts:
        measure_scaling(host)
    if "14b" in options.parts:
        fastest = measure_14b(host)
    if "data" in options.parts:
        measure_data(host, fastest)
    if not options.dry_run:
        print(f"\n{host.text()}\n{host.failures} failed; {host.path('tables.md')}")
    sys.exit(1 if host.failures else 0)


if __name__ == "__main__":
    main()
