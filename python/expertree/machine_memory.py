"""How much memory this process may still use, control groups included (Linux)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class MachineMemory:
    """Bytes. `None`: the system does not say."""

    total_bytes: int | None  # of the machine
    available_bytes: int | None  # what this process may still take, limits considered
    limit_bytes: int | None  # the tightest control group's limit
    limit_source: str | None  # the file that says so


@dataclass(frozen=True)
class _Limit:
    limit_bytes: int
    left_bytes: int
    source: str


def read_machine_memory(root: Path = Path("/")) -> MachineMemory:
    """Reads /proc and /sys below `root`. Never raises: what cannot be read is `None`."""
    meminfo = _read_table(root / "proc/meminfo")
    total = meminfo.get("MemTotal:")
    available = meminfo.get("MemAvailable:")
    tightest: _Limit | None = None
    for limit in _limits(root):
        if tightest is None or limit.left_bytes < tightest.left_bytes:
            tightest = limit
    if tightest is None:
        return MachineMemory(total, available, None, None)
    left = tightest.left_bytes if available is None else min(available, tightest.left_bytes)
    return MachineMemory(total, left, tightest.limit_bytes, tightest.source)


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _read_int(path: Path) -> int | None:
    text = _read_text(path).strip()
    return int(text) if text.isascii() and text.isdigit() else None


def _read_table(path: Path) -> dict[str, int]:
    """Lines of a name, a number and perhaps the unit kB; values in bytes where there is a unit."""
    table = {}
    for line in _read_text(path).splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[1].isascii() and fields[1].isdigit():
            table[fields[0]] = int(fields[1]) * (1024 if fields[2:] == ["kB"] else 1)
    return table


def _limits(root: Path) -> list[_Limit]:
    """The limits of this process's control groups, their parents' included."""
    found = []
    for line in _read_text(root / "proc/self/cgroup").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        if hierarchy == "0" and controllers == "":
            version = 2
        elif "memory" in controllers.split(","):
            version = 1
        else:
            continue
        for mount, mount_group in _mounts(root, version):
            found += _limits_upwards(mount, _below(group, mount_group), version)
    return found


def _mounts(root: Path, version: int) -> list[tuple[Path, str]]:
    """Where the hierarchy is mounted, and which group of it the mount shows."""
    mounts = []
    for line in _read_text(root / "proc/self/mountinfo").splitlines():
        left, _, right = line.partition(" - ")
        fields, system = left.split(), right.split()
        if len(fields) < 5 or len(system) < 3:
            continue
        is_memory_v1 = system[0] == "cgroup" and "memory" in system[2].split(",")
        if (version == 2 and system[0] == "cgroup2") or (version == 1 and is_memory_v1):
            mounts.append((root / fields[4].replace("\\040", " ").lstrip("/"), fields[3]))
    return mounts


def _below(group: str, mount_group: str) -> str:
    """The group's path below the mount; "" when the mount shows another part of the tree (a container's own view)."""
    if mount_group == "/":
        return group.strip("/")
    if group == mount_group or group.startswith(mount_group + "/"):
        return group[len(mount_group) :].strip("/")
    return ""


def _limits_upwards(mount: Path, below: str, version: int) -> list[_Limit]:
    found = []
    folder = mount / below if ".." not in below.split("/") else mount
    while True:
        limit = _limit_of(folder, version)
        if limit is not None:
            found.append(limit)
        if folder == mount:
            return found
        folder = folder.parent


def _limit_of(folder: Path, version: int) -> _Limit | None:
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    limit, used = _read_int(folder / names[0]), _read_int(folder / names[1])
    if limit is None or used is None or limit >= 2**60:  # version 1 writes nearly 2**63 for "none", version 2 "max"
        return None
    stat = _read_table(folder / "memory.stat")
    # Cached file pages count as used, but are given up when a process needs the memory.
    given_up = stat.get("inactive_file" if version == 2 else "total_inactive_file", 0)
    left = max(0, min(limit, limit - used + given_up))
    return _Limit(limit, left, str(folder / names[0]))
