"""Jobs on the ranks of one host, for bench_host.py: a time limit, their output in files, their figures in tables."""
import contextlib
import dataclasses
import glob
import json
import os
import platform
import re
import shlex
import signal
import subprocess
import time

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MPIRUN = os.path.join(REPOSITORY, "launch", "mpirun.sh")
GRACE_SECONDS = 10  # for a job to end after a signal

# Each model as something that a CPU trains in milliseconds and that eight ranks can split.
CPU_SETS = ["train.device=cpu", "precision.dtype=float32", "model.hidden_size=64", "model.num_layers=2",
            "model.num_attention_heads=8", "model.num_key_value_heads=8", "model.intermediate_size=128",
            "model.vocab_size=264", "train.seq_length=32"]


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


@dataclasses.dataclass
class Obstacle:
    """Why a job is not started."""
    text: str
    is_error: bool  # not so when the job does not fit


class Host:
    """Where jobs run, and the files that they leave."""

    def __init__(self, options):
        self.options = options
        self.tables = []
        self.failures = 0
        self.head = "" if options.dry_run else describe(options)

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
        """Asks `trainer plan` what stands against the job: an obstacle, or None."""
        command = [self.options.trainer, "plan", "--config", config, "--ranks", str(ranks), "--card", self.options.card,
                   *self.sets(sets)]
        result = subprocess.run(command, capture_output=True, text=True, cwd=REPOSITORY)
        if not self.options.dry_run:
            with open(self.path("plans.log"), "a") as log:
                log.write(f"{shlex.join(command)}\n{result.stdout}{result.stderr}exit code {result.returncode}\n\n")
        if result.returncode == 0:
            return None
        needed = re.search(r"^ +sum +(.+)$", result.stdout, re.MULTILINE)
        if result.returncode == 5 and needed:
            return Obstacle(f"does not fit: {needed[1].strip()}", False)
        return Obstacle(f"trainer plan, exit code {result.returncode}: {last_line(result.stderr, result.stdout)}", True)

    def table(self, title, note, columns):
        self.tables.append(Table(title, note, columns))
        return self.tables[-1]

    def add(self, table, cells, failed=False):
        """A row, kept in the file at once: a script that is killed has written what it knows."""
        table.rows.append(cells)
        self.failures += failed
        if self.options.dry_run:
            return
        with open(self.path("tables.md"), "w") as file:
            file.write(self.text())

    def add_obstacle(self, table, cells, obstacle):
        """A row for a job that is not started."""
        print(f"# {table.title}, {cells[0]}: {obstacle.text}")
        self.add(table, [*cells, obstacle.text], obstacle.is_error)

    def text(self):
        return "\n".join([self.head, *(table.text() for table in self.tables if table.rows)])


def nvidia_smi(*arguments):
    """Lines of its answer; none where there is no driver."""
    with contextlib.suppress(OSError):
        result = subprocess.run(["nvidia-smi", *arguments], capture_output=True, text=True)
        if result.returncode == 0:
            return result.stdout.splitlines()
    return []


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
