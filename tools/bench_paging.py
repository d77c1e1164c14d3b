#!/usr/bin/env python3
"""Speed of a model that is larger than the memory it may use, beside the disk's and on request beside llama.cpp's.

    python tools/bench_paging.py MODEL [--cap SIZE ...] [--peer LLAMA_BENCH] [--tokens N] [--prefill N] [--json]
                                 [--read-ahead KIB ...] [--load-mode MODE ...] [--ram SIZE] [--rounds N] [--record]

Needs root, for it makes a memory control group, version 1 or 2, whichever the machine has, and runs each program in it.
By hand that is

    v1  mkdir /sys/fs/cgroup/memory/bench
        echo 12884901888 > /sys/fs/cgroup/memory/bench/memory.limit_in_bytes
        sh -c 'echo $$ > /sys/fs/cgroup/memory/bench/cgroup.procs; exec expertree bench ...'
    v2  echo +memory > /sys/fs/cgroup/cgroup.subtree_control; mkdir /sys/fs/cgroup/bench
        echo 12884901888 > /sys/fs/cgroup/bench/memory.max; echo 0 > /sys/fs/cgroup/bench/memory.swap.max
        sh -c 'echo $$ > /sys/fs/cgroup/bench/cgroup.procs; exec expertree bench ...'

Before each program the model leaves the page cache (posix_fadvise DONTNEED; fincore says what stayed), since cached
pages are charged to the group that read them first. Tokens are random ids for the prompt and then drawn at temperature
1 from the whole vocabulary, so that routing does not repeat itself; llama-bench's tokens are random, too.

cold: the first tokens after the start, with no expert in memory. warm: the next ones, once all slots are full.
prefill: a prompt with no expert in memory; again: another one, with what the first has left there. The disk is probed
in the same run before and after each of our programs: direct reads of whole projections of random experts, as many at
a time as the pager has under way. missed: bytes of experts that were not in memory when a step first wanted them, per
token; share: missed bytes over the time, of the probe's rate. bound: tokens/s if the disk were busy with missed bytes
alone. With --peer each of its configurations runs in turn under the same cap: a read-ahead of the block device (where
it may be set; it is put back) and --load-mode mmap or none. Its bytes per token include loading. With --record what
`expertree inspect MODEL --ram SIZE` foretells can be compared with what the next run measures.
"""

import argparse
import contextlib
import functools
import json
import mmap
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from pathlib import Path

SCHEMA = "expertree.bench_paging/1"
ROOT = Path("/sys/fs/cgroup")
PROBE_SECONDS = 2.0
PROBE_DEPTH = 12  # projections: four experts of the sizes measured here
SECTOR = 4096
COUNTS = (
    *("uses", "hits", "late", "misses", "reads", "bytes_read", "read_seconds", "wait_seconds", "hint_reads"),
    *("hints_in_time", "hints_late", "hints_wasted"),
)


class MemoryGroup:
    """A control group with a memory limit; None: no group, no limit."""

    def __init__(self, limit_bytes):
        self.folder = None
        if limit_bytes is None:
            return
        controllers = ROOT / "cgroup.controllers"
        self.is_v2 = controllers.exists() and "memory" in controllers.read_text().split()
        parent = ROOT if self.is_v2 else ROOT / "memory"
        if not parent.is_dir():
            raise SystemExit("no memory controller below /sys/fs/cgroup")
        self.folder = parent / f"bench_paging_{os.getpid()}"
        if self.is_v2:
            (ROOT / "cgroup.subtree_control").write_text("+memory")
        self.folder.mkdir()
        self._write("memory.max" if self.is_v2 else "memory.limit_in_bytes", limit_bytes)
        if self.is_v2 and (self.folder / "memory.swap.max").exists():
            self._write("memory.swap.max", 0)

    def _write(self, name, value):
        (self.folder / name).write_text(str(value))

    def enter(self):
        if self.folder is not None:
            self._write("cgroup.procs", os.getpid())

    def peak_bytes(self):
        if self.folder is None:
            return None
        name = self.folder / ("memory.peak" if self.is_v2 else "memory.max_usage_in_bytes")
        return int(name.read_text()) if name.exists() else None

    def remove(self):
        for _ in range(100 if self.folder is not None else 0):  # a group is busy for a moment after its last process
            try:
                self.folder.rmdir()
            except OSError:
                time.sleep(0.05)
            else:
                return


def run(command, limit_bytes):
    """Runs a program in a group of its own: (stdout, its usage)."""
    group = MemoryGroup(limit_bytes)
    try:
        start = time.time()
        process = subprocess.Popen(
            [*map(str, command), *([str(start)] if command[0] == sys.executable else [])],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=group.enter,
        )
        try:
            out, error = process.communicate()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        usage = {"seconds": time.time() - start, "group_peak_bytes": group.peak_bytes(), "status": process.returncode}
        if process.returncode != 0:
            usage["error"] = (error.strip().splitlines() or ["no message"])[-1]
        return out, usage
    finally:
        group.remove()


def evict(path):
    """Drops the file from the page cache; returns the bytes that stayed, None where fincore is missing."""
    fd = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)
    if shutil.which("fincore") is None:
        return None
    said = subprocess.run(
        ["fincore", "--bytes", "--noheadings", "--output", "RES", path], capture_output=True, text=True, check=True
    )
    return int(said.stdout.split()[0])


# ---- The disk.


def expert_pieces(path):
    """(offset, bytes) of every expert's projections, as direct reads fetch them."""
    from expertree import _core
    from expertree.expert_plan import layer_slots

    reader = _core.GgufReader(str(path))
    if not layer_slots(reader.tensors, SECTOR):
        raise SystemExit(f"{path}: no experts of a form that is run")
    pieces = []
    for tensor in reader.tensors:
        if "_exps." not in tensor.name:
            continue
        n_experts = tensor.shape[-1]
        size = tensor.size_bytes // n_experts
        for e in range(n_experts):
            begin = (tensor.offset + e * size) // SECTOR * SECTOR
            end = tensor.offset + (e + 1) * size
            pieces.append((begin, (end - begin + SECTOR - 1) // SECTOR * SECTOR))
    return pieces


def probe_disk(path, pieces, seconds=PROBE_SECONDS, depth=PROBE_DEPTH):
    """Bytes per second of direct reads of random pieces, `depth` at a time."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    largest = max(size for _, size in pieces)
    done = [0] * depth
    stop = time.perf_counter() + seconds

    def read(i):
        rng = random.Random(time.time_ns() + i)
        buffer = mmap.mmap(-1, largest)
        view = memoryview(buffer)
        while time.perf_counter() < stop:
            offset, size = pieces[rng.randrange(len(pieces))]
            done[i] += os.preadv(fd, [view[:size]], offset)

    start = time.perf_counter()
    threads = [threading.Thread(target=read, args=(i,)) for i in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(fd)
    return sum(done) / (time.perf_counter() - start)


@contextlib.contextmanager
def read_ahead(path, kib):
    """Sets the read-ahead of the file's block device; yields whether that worked."""
    device = Path(path).stat().st_dev
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    if (folder / "partition").exists():
        folder = folder.parent
    setting = folder / "queue/read_ahead_kb"
    if kib is None or not setting.exists() or not os.access(setting, os.W_OK):
        yield kib is None
        return
    before = setting.read_text()
    setting.write_text(str(kib))
    try:
        yield True
    finally:
        setting.write_text(before)


# ---- Our programs, each in a process of its own.


def worker(arguments):
    """Runs inside the group and prints one JSON object."""
    import numpy as np
    from expertree import Model
    from expertree.expert_record import record_path

    model = Model(arguments.model, ram=arguments.ram, threads=arguments.threads, n_ctx=arguments.context)
    rng = np.random.default_rng(arguments.seed)
    phases = []

    def measure(name, n, body):
        before, wall = model.experts, time.perf_counter()
        body()
        seconds, after = time.perf_counter() - wall, model.experts
        counts = {key: after[key] - before[key] for key in COUNTS}
        phases.append({"phase": name, "n": n, "seconds": seconds, **counts, "policy": after["policy"]})

    session = model.session(temperature=1.0, seed=arguments.seed)

    def decode(n):
        for _ in range(n):
            session.step()

    result = {"load_seconds": time.time() - arguments.started}
    if arguments.worker == "decode":
        session.prefill(rng.integers(0, model.n_vocab, 4).tolist())
        session.step()
        result["first_token_seconds"] = time.time() - arguments.started
        measure("cold", arguments.tokens, lambda: decode(arguments.tokens))
        model.load_experts()
        decode(arguments.tokens // 2)  # slots hold what steps chose, not what lies first in the file
        measure("warm", arguments.tokens, lambda: decode(arguments.tokens))
        if arguments.record:
            model.save_record(record_path(arguments.model))
    else:
        for name in ("prefill", "prefill again"):
            prompt = rng.integers(0, model.n_vocab, arguments.prefill).tolist()
            measure(name, arguments.prefill, functools.partial(model.session().prefill, prompt))
    stats, memory = model.experts, model.memory(arguments.context)
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    print(
        json.dumps(
            {
                **result,
                "phases": phases,
                "memory": memory,
                "resident_share": stats["slots"] / model._core.experts.states.size,
                "peak_resident_bytes": int(status["VmHWM"].split()[0]) * 1024,
            }
        )
    )


def ours(arguments, cap, kind, probes):
    """Runs one of our programs under the cap; its phases with what is reckoned from them."""
    left = evict(arguments.model)
    probes.append(probe_disk(arguments.model, arguments.pieces))
    command = [sys.executable, __file__, arguments.model, "--worker", kind, "--ram", arguments.ram]
    command += ["--tokens", arguments.tokens, "--prefill", arguments.prefill, "--context", arguments.context]
    command += ["--record"] * arguments.record
    command += ["--threads", arguments.threads, "--seed", arguments.seed, "--started"]
    out, usage = run(command, cap)
    probes.append(probe_disk(arguments.model, arguments.pieces))
    if usage["status"] != 0:
        raise SystemExit(f"expertree under {cap} bytes: {usage['error']}")
    said = json.loads(out.splitlines()[-1])
    for phase in said["phases"]:
        expert_bytes = phase["bytes_read"] / max(1, phase["reads"])
        n_missed = phase["uses"] - phase["hits"] + phase["hints_in_time"]
        disk = statistics.mean(probes[-2:])
        phase["tokens_per_second"] = phase["n"] / phase["seconds"]
        phase["hit_rate"] = 1 - n_missed / max(1, phase["uses"])
        phase["bytes_read_per_token"] = phase["bytes_read"] / phase["n"]
        phase["missed_bytes_per_token"] = n_missed * expert_bytes / phase["n"]
        phase["disk_bytes_per_second"] = disk
        phase["share_of_disk"] = n_missed * expert_bytes / phase["seconds"] / disk
        phase["bound_tokens_per_second"] = phase["n"] * disk / max(1.0, n_missed * expert_bytes)
    return {**said, **usage, "cached_before": left}


def peer(arguments, cap, kind, kib, mode):
    """Runs llama-bench under the cap; tokens/s of each repetition (the first one is cold), or why there is none."""
    left = evict(arguments.model)
    n = ["-n", arguments.peer_tokens, "-p", 0] if kind == "decode" else ["-n", 0, "-p", arguments.prefill]
    command = [arguments.peer, "-m", arguments.model, *n, "-r", arguments.peer_repeats, "--no-warmup", "-o", "jsonl"]
    command += ["-t", arguments.threads or os.cpu_count(), "-lm", mode, "--repack", "0"]
    with read_ahead(arguments.model, kib) as is_set:
        if not is_set:
            return {"status": 1, "error": "the read-ahead cannot be set here"}
        before = disk_reads(arguments.model)
        out, usage = run(command, cap)
        bytes_read = disk_reads(arguments.model) - before
    result = {"read_ahead_kib": kib, "load_mode": mode, "kind": kind, **usage, "cached_before": left}
    if usage["status"] != 0:
        return result
    n_tokens = (arguments.peer_tokens if kind == "decode" else arguments.prefill) * arguments.peer_repeats
    rates = json.loads(out.splitlines()[-1])["samples_ts"]
    return {**result, "tokens_per_second": rates, "bytes_read_per_token": bytes_read / n_tokens}


def disk_reads(path):
    """Bytes that the file's block device has read so far, for anybody."""
    device = Path(path).stat().st_dev
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[:2] == [str(os.major(device)), str(os.minor(device))]:
            return int(fields[5]) * 512
    return 0


def show(arguments, row):
    print(json.dumps({"schema": SCHEMA, **row}) if arguments.json else text(row), flush=True)


def text(row):
    cap = "no cap" if row["cap_bytes"] is None else f"{row['cap_bytes'] / 2**30:.1f} GiB"
    if row["engine"] == "llama.cpp":
        how = f"{cap:>9}  llama.cpp {row['kind']}, {row['load_mode']}, read-ahead {row['read_ahead_kib'] or 'as set'}"
        if row["status"] != 0:
            return f"{how}: {row.get('error', row['status'])}"
        rates = ", ".join(f"{rate:.2f}" for rate in row["tokens_per_second"])
        return f"{how}: {rates} tokens/s, {row['bytes_read_per_token'] / 1e6:.0f} MB/token"
    lines = [
        f"{cap:>9}  expertree: {row['resident_share']:.0%} of the experts have room, "
        f"peak {row['peak_resident_bytes'] / 1e9:.2f} GB"
        + (f", first token after {row['first_token_seconds']:.2f} s" if "first_token_seconds" in row else "")
    ]
    lines += [
        f"{'':11}{p['phase']} {p['n']}: {p['tokens_per_second']:.2f} tokens/s "
        f"(bound {p['bound_tokens_per_second']:.2f}), hits {p['hit_rate']:.0%}, "
        f"read {p['bytes_read_per_token'] / 1e6:.0f} MB/token, missed "
        f"{p['missed_bytes_per_token'] / 1e6:.0f}, {p['share_of_disk']:.0%} of {p['disk_bytes_per_second'] / 1e9:.2f} "
        f"GB/s, waited {p['wait_seconds'] / p['seconds']:.0%}, disk busy {p['read_seconds'] / p['seconds']:.0%} "
        f"at {p['bytes_read'] / max(1e-6, p['read_seconds']) / 1e9:.2f} GB/s"
        + (f", {p['ratio']:.1f}x llama.cpp" if "ratio" in p else "")
        for p in row["phases"]
    ]
    return "\n".join(lines)


def compare(arguments):
    arguments.pieces = expert_pieces(arguments.model)
    caps = [None if cap == "none" else size(cap) for cap in arguments.cap or ["12GiB", "8GiB"]]
    for cap in caps:
        for kind in arguments.kind or ("decode", "prefill"):
            peers = []
            for kib in arguments.read_ahead or [None] if arguments.peer else []:
                for mode in arguments.load_mode or ["mmap"]:
                    peers.append({"engine": "llama.cpp", "cap_bytes": cap, **peer(arguments, cap, kind, kib, mode)})
                    show(arguments, peers[-1])
            rates = [p["tokens_per_second"] for p in peers if p["status"] == 0]
            for _ in range(arguments.rounds):
                row = {"engine": "expertree", "cap_bytes": cap, **ours(arguments, cap, kind, [])}
                for phase in row["phases"]:
                    if rates:
                        of_phase = -1 if phase["phase"] in ("warm", "prefill again") else 0
                        phase["ratio"] = phase["tokens_per_second"] / max(r[of_phase] for r in rates)
                show(arguments, row)


def size(text_of_size):
    from expertree.memory_size import parse_size

    parsed = parse_size(text_of_size)
    if parsed is None:
        raise SystemExit(f"{text_of_size!r} is no size; give for example 12GiB, or none")
    return parsed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--cap", action="append", metavar="SIZE", help="limit of the group, or none; 12GiB and 8GiB")
    parser.add_argument("--kind", action="append", choices=("decode", "prefill"))
    parser.add_argument("--ram", default="auto", help="what expertree is told (default auto)")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--prefill", type=int, default=512)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer", metavar="LLAMA_BENCH")
    parser.add_argument("--peer-tokens", type=int, default=64)
    parser.add_argument("--peer-repeats", type=int, default=1, help="2: the second one is warm")
    parser.add_argument("--read-ahead", action="append", type=int, metavar="KIB", help="default: as it is")
    parser.add_argument("--load-mode", action="append", choices=("mmap", "none"))
    parser.add_argument("--record", action="store_true", help="leave what decoding used to `expertree inspect`")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", choices=("decode", "prefill"), help=argparse.SUPPRESS)
    parser.add_argument("--started", type=float, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("stopped"))  # unwinds: the group goes, the read-ahead is put back
    (worker if arguments.worker else compare)(arguments)


if __name__ == "__main__":
    main()
