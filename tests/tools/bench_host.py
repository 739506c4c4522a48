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

Every run has a time limit and leaves its whole output in --out; one that fails is a row with its exit code and last line.
Tables of Markdown go to --out/tables.md after each run, and to the standard output at the end. Exit code: 0, 1 when
something failed, 2 for a wrong command line. Variables such as NCCL_NVLS_ENABLE=0 reach the ranks.

    python3 tests/tools/bench_host.py --cpu           # tries the script, with small models on CPU ranks
    python3 tests/tools/bench_host.py --dry-run       # prints the commands; only `trainer plan` is run
"""
import argparse
import contextlib
import dataclasses
import glob
import json
import os
import platform
import re
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MPIRUN = os.path.join(REPOSITORY, "launch", "mpirun.sh")
PARTS = ["tests", "comm", "scaling", "14b", "data"]
GIB = 1 << 30
GRACE_SECONDS = 10  # for a job to end after a signal

# Each model as something that a CPU trains in milliseconds and that eight ranks can split.
CPU_SETS = ["train.device=cpu", "precision.dtype=float32", "model.hidden_size=64", "model.num_layers=2",
            "model.num_attention_heads=8", "model.num_key_value_heads=8", "model.intermediate_size=128",
            "model.vocab_size=264", "train.seq_length=32"]
CPU_SEQ_LENGTH = 32


# ---- jobs ------------------------------------------------------------------------------------------------------------
@dataclasses.dataclass
class Run:
    """One job that has ended."""
    exit_code: int
    time_limit: float  # seconds; 0: it has kept to it
    output: str
    last_line: str  # of what it complained about

    @property
    def failed(self):
        return self.time_limit > 0 or self.exit_code != 0

    def verdict(self):
        if self.time_limit > 0:
            return f"timed out after {self.time_limit:g} s"
        return f"exit code {self.exit_code}: {self.last_line or 'no message'}" if self.exit_code else "ok"


def children(parent):
    """Processes whose parent is `parent`."""
    found = []
    for path in glob.glob("/proc/[0-9]*/stat"):
        with contextlib.suppress(OSError):  # it has ended meanwhile
            with open(path) as file:
                pid, rest = file.read().split(" ", 1)
            if int(rest.rpartition(")")[2].split()[1]) == parent:
                found.append(int(pid))
    return found


def kill_tree(pid):
    for child in children(pid):
        kill_tree(child)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def end_job(job):
    """launch/mpirun.sh ends its job in order at the first signal and at once at the second."""
    for _ in range(2):
        if job.poll() is not None:
            return
        job.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            job.wait(GRACE_SECONDS)
    if job.poll() is None:
        kill_tree(job.pid)
        job.wait()


def last_line(*texts):
    """Last line of the first text that has any."""
    for text in texts:
        lines = [line for line in text.splitlines() if line.strip()]
        if lines:
            return lines[-1].strip()
    return ""


def read(path):
    with open(path, errors="replace") as file:
        return file.read()


class Host:
    """Where jobs run, and the files that they leave."""

    def __init__(self, options):
        self.options = options
        self.tables = []
        self.failures = 0
        self.head = "" if options.dry_run else describe(options)
        self.fastest = None  # layout of part 14b

    def sets(self, more):
        """Settings of a job as arguments; those of --set win."""
        words = []
        for setting in [*(CPU_SETS if self.options.cpu else []), *more, *self.options.set]:
            words += ["--set", setting]
        return words

    def path(self, name):
        return os.path.join(self.options.out, name)

    def run(self, name, command, ranks=None):
        """Runs the command, on `ranks` ranks where given. Returns nothing in a dry run."""
        if ranks is not None:
            command = [MPIRUN, "-np", str(ranks), *command]
        if self.options.dry_run:
            print(shlex.join(command))
            return None
        print(f"{time.strftime('%H:%M:%S')} {name} ... ", end="", flush=True)
        start, time_limit = time.monotonic(), 0
        with open(self.path(name + ".log"), "w") as log, open(self.path(name + ".err"), "w") as errors:
            # A session of its own: Ctrl-C comes here only, and ends the job in order.
            job = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=errors, cwd=REPOSITORY,
                                   start_new_session=True)
            try:
                job.wait(self.options.time_limit_per_run)
            except subprocess.TimeoutExpired:
                time_limit = self.options.time_limit_per_run
            finally:
                end_job(job)
        output = read(self.path(name + ".log"))
        run = Run(job.returncode, time_limit, output, last_line(read(self.path(name + ".err")), output))
        print(f"{run.verdict()}; {time.monotonic() - start:.0f} s", flush=True)
        return run

    def bench(self, name, arguments, ranks):
        """`trainer bench`: the run, and its figures where it has succeeded."""
        result = self.path(name + ".json")
        if os.path.exists(result):  # it is appended to
            os.remove(result)
        run = self.run(name, [self.options.trainer, "bench", *arguments, "--json", result], ranks)
        if run is None or run.failed:
            return run, None
        return run, json.loads(read(result))

    def plan(self, config, ranks, sets):
        """Asks `trainer plan`: "" when the job fits, why not otherwise, and whether that is an error."""
        command = [self.options.trainer, "plan", "--config", config, "--ranks", str(ranks), "--card", self.options.card,
                   *self.sets(sets)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        if not self.options.dry_run:
            with open(self.path("plans.log"), "a") as log:
                log.write(f"{shlex.join(command)}\n{result.stdout}{result.stderr}exit code {result.returncode}\n\n")
        if result.returncode == 0:
            return "", False
        needed = re.search(r"^ +sum +(.+)$", result.stdout, re.MULTILINE)
        if result.returncode == 5 and needed:
            return f"does not fit: {needed[1].strip()}", False
        return f"trainer plan, exit code {result.returncode}: {last_line(result.stderr, result.stdout)}", True

    def table(self, title, note, columns):
        self.tables.append(Table(title, note, columns))
        return self.tables[-1]

    def add(self, table, cells, failed):
        """A row, kept in the file at once: a script that is killed has written what it knows."""
        table.rows.append(cells)
        self.failures += failed
        if self.options.dry_run:
            return
        with open(self.path("tables.md"), "w") as file:
            file.write(self.text())

    def text(self):
        return "\n".join([self.head, *(table.text() for table in self.tables if table.rows)])


@dataclasses.dataclass
class Table:
    title: str
    note: str
    columns: list
    rows: list = dataclasses.field(default_factory=list)  # a short one ends with its last cell in the last column

    def text(self):
        def line(cells):
            gap = [""] * (len(self.columns) - len(cells))
            return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in [*cells[:-1], *gap, cells[-1]]) + " |\n"

        return (f"## {self.title}\n\n{self.note}\n\n" + line(self.columns) + "|" + "---|" * len(self.columns) + "\n"
                + "".join(line(row) for row in self.rows))


def describe(options):
    """What was measured on what."""
    version = subprocess.run([options.trainer, "--version"], capture_output=True, text=True)
    lines = [f"{platform.node()}, {time.strftime('%Y-%m-%d %H:%M')}, "
             + (f"{options.gpus} CPU ranks, small models: these figures mean nothing" if options.cpu
                else f"{options.gpus} of these GPUs, --card {options.card}"),
             *nvidia_smi("--query-gpu=index,name,driver_version,memory.total,power.limit", "--format=csv,noheader"),
             *version.stdout.splitlines()]
    lines += [f"{name}={value}" for name, value in sorted(os.environ.items()) if name.startswith(("NCCL_", "TRAINER_"))]
    lines += [f"--set {setting}" for setting in options.set]
    return "# One host\n\n```\n" + "\n".join(lines) + "\n```\n"


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

    passed, skipped, failed = (count(word) for word in ("PASSED", "SKIPPED", "FAILED"))
    nothing = not run.failed and passed == 0
    host.add(table, [ranks, passed, skipped, failed, "no test ran" if nothing else run.verdict()], run.failed or nothing)


def measure_comm(host):
    ranks = host.options.gpus
    note = "Bus bandwidth in GB/s, float32; in brackets the time of the smallest size, in us."
    if ranks == 1:
        host.add(host.table("Communication", note, ["ranks", "result"]), [1, "one GPU has no one to talk to"], False)
        return
    sets = ["train.device=cpu"] if host.options.cpu else []
    if ranks >= 4 and ranks % 2 == 0:
        sets.append("parallelism.tensor_parallel_size=2")  # pairs (tp), and those across them (dp), besides all (world)
    arguments = ["--comm", *(["--comm-max-mib", "1"] if host.options.cpu else [])]
    for setting in sets:
        arguments += ["--set", setting]
    run, result = host.bench("comm", arguments, ranks)
    if run is None:
        return
    if result is None:
        host.add(host.table("Communication", note, ["ranks", "result"]), [ranks, run.verdict()], True)
        return
    rows = {}
    for time_of in result["communication"]:
        rows.setdefault((time_of["group"], time_of["ranks"], time_of["operation"]), []).append(time_of)
    sizes = [size_text(time_of["bytes"]) for time_of in next(iter(rows.values()))]
    table = host.table("Communication", note, ["group", "ranks", "operation", *sizes])
    for key, times in rows.items():
        rates = [f"{time_of['busbw_gb_s']:.3g}" for time_of in times]
        host.add(table, [*key, f"{rates[0]} ({1000 * times[0]['ms']:.0f})", *rates[1:]], False)


@dataclasses.dataclass
class ScalingModel:
    name: str
    config: str
    micro_batch: int  # of one GPU, where it fits
    batch: int        # samples a step of one GPU
    patience: int     # steps in place of one of --steps: a step of 1b is that much shorter


SCALING = [ScalingModel("1b", "configs/bench/llama-1b.yaml", 4, 4, 8),
           ScalingModel("7b", "configs/bench/qwen-7b.yaml", 8, 32, 1)]


def gpu_counts(gpus):
    """1, 2, 4, ... and all."""
    return sorted({2**k for k in range(gpus.bit_length()) if 2**k <= gpus} | {gpus})


def step_arguments(steps, floor_seconds):
    return ["--steps", str(steps), "--warmup-steps", str(steps // 2 + 1), "--profiled-steps", "1", "--floor-seconds",
            f"{floor_seconds:g}"]


def largest_micro_batch(host, config, ranks, micro_batch, sets_of):
    """Halves the micro-batch until the job fits: the micro-batch, or 0; why 1 does not fit; whether that is an error."""
    while True:
        problem, is_error = host.plan(config, ranks, sets_of(micro_batch))
        if not problem:
            return micro_batch, "", False
        if is_error or micro_batch == 1:
            return 0, problem, is_error
        micro_batch //= 2


def measure_scaling(host):
    for model in SCALING:
        table = host.table(
            f"Scaling of {model.name}",
            f"{model.config}, {model.batch} samples a step and GPU; one GPU as it is, several with ZeRO 1. Efficiency is "
            "tokens/s and GPU against the first row that was measured.",
            ["GPUs", "micro-batch", "step ms", "tokens/s", "MFU", "exposed communication", "efficiency", "clock, power",
             "result"])
        scale_model(host, model, table)


def scale_model(host, model, table):
    micro_batch, fixed = model.micro_batch, False
    base = None  # tokens/s of a GPU in the first row that was measured
    for ranks in gpu_counts(host.options.gpus):
        def sets_of(micro):
            return [f"train.micro_batch_size={micro}", f"train.global_batch_size={model.batch * ranks}",
                    f"parallelism.zero_stage={int(ranks > 1)}"]

        if fixed:  # the work of a GPU stays what it was
            problem, is_error = host.plan(model.config, ranks, sets_of(micro_batch))
        else:
            found, problem, is_error = largest_micro_batch(host, model.config, ranks, micro_batch, sets_of)
            micro_batch, fixed = found or micro_batch, found > 0
        if problem:
            report_problem(host, table, f"{model.name} on {ranks}", [ranks], problem, is_error)
            continue
        arguments = ["--config", model.config, *host.sets(sets_of(micro_batch)),
                     *step_arguments(host.options.steps * model.patience, 0)]
        run, result = host.bench(f"scaling-{model.name}-{ranks}", arguments, ranks)
        if run is None:
            continue
        if result is None:
            host.add(table, [ranks, micro_batch, run.verdict()], True)
            continue
        rate = result["tokens_per_second"] / ranks
        base = base or rate
        host.add(table, [ranks, *speed(result), exposed(result), percent(rate / base), clocks(result), "ok"], False)


def report_problem(host, table, name, cells, problem, is_error):
    """A job that `trainer plan` does not let start."""
    print(f"# {name}: {problem}")
    host.add(table, [*cells, problem], is_error)


@dataclasses.dataclass
class Layout:
    name: str
    tensor_parallel: int
    zero: int
    micro_batch: int = 0

    def sets(self, options, micro_batch, accumulation):
        """`accumulation` counts micro-batches of 8192 tokens a GPU: the batch of a step is the same in each layout."""
        tp = self.tensor_parallel
        batch = options.gpus * samples_of_gpu(options) * accumulation
        return [f"train.seq_length={options.seq_length}", f"train.micro_batch_size={micro_batch}",
                f"train.global_batch_size={batch}", f"parallelism.tensor_parallel_size={tp}",
                f"parallelism.sequence_parallel={'true' if tp > 1 else 'false'}", f"parallelism.zero_stage={self.zero}"]


CONFIG_14B = "configs/14b.yaml"


def samples_of_gpu(options):
    """Samples of 8192 tokens; two on the CPU."""
    return 2 if options.cpu else max(1, 8192 // options.seq_length)


def layouts(gpus):
    if gpus == 1:
        return [Layout("one GPU", 1, 0)]
    found = [Layout(f"DP {gpus}, ZeRO {zero}", 1, zero) for zero in (1, 2, 3)]
    if gpus > 2 and gpus % 2 == 0:
        found.append(Layout(f"TP 2 x DP {gpus // 2}, sequence parallel, ZeRO 1", 2, 1))
    return [*found, Layout(f"TP {gpus}, sequence parallel", gpus, 0)]


def fitting_layouts(host, table, accumulation):
    """Layouts that fit, each with its largest micro-batch; the others become rows."""
    options = host.options
    for layout in layouts(options.gpus):
        most = layout.tensor_parallel * samples_of_gpu(options)
        layout.micro_batch, problem, is_error = largest_micro_batch(
            host, CONFIG_14B, options.gpus, most, lambda micro: layout.sets(options, micro, accumulation))
        if "does not divide by tensor_parallel_size" in problem:
            problem, is_error = "heads do not divide", False
        if problem:
            if table:
                report_problem(host, table, layout.name, [layout.name], problem, is_error)
            continue
        yield layout


def measure_14b(host):
    options = host.options
    batch = options.gpus * samples_of_gpu(options) * options.accumulation
    table = host.table("14B", f"{CONFIG_14B} on {options.gpus} ranks, {batch} samples of {options.seq_length} tokens a "
                       "step; memory in GiB a rank.",
                       ["layout", "micro-batch", "step ms", "tokens/s", "MFU", "share of the floor",
                        "exposed communication", "planned", "taken", "clock, power", "result"])
    best = 0
    for layout in fitting_layouts(host, table, options.accumulation):
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
            best, host.fastest = result["tokens_per_second"], layout
        host.add(table, [layout.name, *speed(result), share_of_floor(result), exposed(result),
                         gib(result["planned_bytes"]), gib(result["device_bytes"]), clocks(result), "ok"], False)


def text_shards(host):
    """Patterns of token shards: those of --data, or the documents and sources of this repository as bytes."""
    if host.options.data:
        return [os.path.abspath(pattern) for pattern in host.options.data]
    folder = host.path("data")
    run = host.run("data-prepare", [host.options.trainer, "data", "prepare", "--overwrite", "--output-dir", folder,
                                    "--input", "docs/*.md", "core/*/*.cc", "core/*/*.h", "kernels/*/*.cc"])
    return None if run is not None and run.failed else [os.path.join(folder, "train-*.h5")]


def measure_data(host):
    options, steps = host.options, 6 * host.options.steps
    table = host.table("Training", f"`trainer --config {CONFIG_14B}` on text, {steps} steps; nothing is saved.",
                       ["layout", "micro-batch", "loss, first 3 steps", "last 3", "tokens/s", "MFU", "data wait ms",
                        "result"])
    layout = host.fastest or next(fitting_layouts(host, None, 1), None)
    if layout is None:
        host.add(table, ["no layout fits"], False)
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

    first, last = (statistics.mean(r["loss"] for r in part) for part in (records[:3], records[-3:]))
    host.add(table, [layout.name, layout.micro_batch, f"{first:.3f}", f"{last:.3f}",
                     f"{median('tokens_per_second') or 0:,.0f}", percent(median("mfu")),
                     f"{median('data_wait_ms') or 0:.2f}", "ok" if last < first else "the loss does not fall"],
             not last < first)


# ---- the command line ------------------------------------------------------------------------------------------------
def nvidia_smi(*arguments):
    """Lines of its answer; none where there is no driver."""
    with contextlib.suppress(OSError):
        result = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.splitlines()
    return []


def free_gib():
    """What every GPU has free, in GiB; empty where there is none."""
    free = nvidia_smi("--query-gpu=memory.free", "--format=csv,noheader,nounits")
    return f"{min(float(line) for line in free) / 1024:.1f}" if free else ""


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
    parser.add_argument("--out", default="runs/bench-host", help="folder for outputs and tables.md; default: %(default)s")
    parser.add_argument("--steps", type=positive, default=5, help="timed steps of a 7B or 14B run (1b: 8 times as many, "
                        "part data: 6 times); default: %(default)s")
    parser.add_argument("--accumulation", type=positive, default=4,
                        help="14b: tokens a step and GPU, in units of 8192; default: %(default)s")
    parser.add_argument("--seq-length", type=positive, help="14b: tokens of a sample; default: 4096")
    parser.add_argument("--time-limit-per-run", type=float, default=600, metavar="SECONDS", help="default: %(default)s")
    parser.add_argument("--card", help="as for trainer plan; default: the memory that is free on every GPU")
    parser.add_argument("--set", action="append", default=[], help="section.key=value for scaling, 14b and data")
    parser.add_argument("--data", action="append", help="token shards for part data; default: text of this repository")
    parser.add_argument("--cpu", action="store_true", help="small models on CPU ranks, two unless --gpus says otherwise")
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
    host = Host(options)
    measure = {"tests": measure_tests, "comm": measure_comm, "scaling": measure_scaling, "14b": measure_14b,
               "data": measure_data}
    for part in PARTS:
        if part in options.parts:
            measure[part](host)
    if not options.dry_run:
        print(f"\n{host.text()}\n{host.failures} failed; {host.path('tables.md')}")
    sys.exit(1 if host.failures else 0)


if __name__ == "__main__":
    main()
