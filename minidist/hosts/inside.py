"""A process that makes hosts, runs a job on them, and takes all of it with it when it ends, however it ends.

It forks the first process of a new PID namespace. When that one ends, the kernel kills all others in there: hosts,
mpirun and ranks. Nothing has a name outside, so namespaces and interfaces go with their last process.

    namespaces of the first process   the switch: a bridge for each rack, on which hosts' links end; mpirun
    namespaces of a host              eth0: its link, for the ranks' messages; ctl: mpirun's, which no rank uses
"""

import ctypes
import json
import os
import select
import signal
import socket
import stat
import subprocess
import sys
from contextlib import suppress
from typing import Any, NoReturn

from minidist.system import processes

# Of Linux's unshare, mount and SIOCETHTOOL.
MOUNTS, UTS, IPC, USER, PROCESSES, NET = 0x20000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000
PRIVATE = 1 << 18 | 1 << 14
SIOCETHTOOL, SEGMENTATION = 0x8946, (0x1F, 0x24)  # ETHTOOL_STSO, ETHTOOL_SGSO

FOLDER = "/dev/shm"  # each host has its own: else MPI would cross hosts unseen
AGENT = f"""#!/bin/sh
host=$1
shift
exec nsenter -t "$(cat {FOLDER}/$host)" -n -u -i -m -- sh -c "exec $*"
"""
MTU = 9000  # of links, as clusters have it
QUEUE = "burst 64k limit 64m"  # longer than TCP's windows: no packet is dropped and sent twice

_libc: Any = ctypes.CDLL(None, use_errno=True)


class Refused(Exception):
    """What is missing, in a line."""


def call(name: str, *arguments: Any) -> None:
    """A call of the C library."""
    if getattr(_libc, name)(*arguments):
        raise Refused(f"{name}: {os.strerror(ctypes.get_errno())}")


def mount(kind: str, where: str) -> None:
    call("mount", kind.encode(), where.encode(), kind.encode(), 0, None)


def leave_users_namespace() -> None:
    """Become root of a user namespace, where the system allows that."""
    user, group = os.geteuid(), os.getegid()
    call("unshare", USER)
    with suppress(OSError):
        write("/proc/self/setgroups", "deny")
    write("/proc/self/uid_map", f"0 {user} 1")
    write("/proc/self/gid_map", f"0 {group} 1")


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def perform(program: str, lines: list[str], host: int | None = None) -> None:
    """Let ip or tc perform lines, in the namespace of a host's process or here."""
    where = [] if host is None else ["nsenter", "-t", str(host), "-n", "--"]
    done = subprocess.run([*where, program, "-batch", "-"], input="\n".join(lines), text=True, capture_output=True)
    if done.returncode:
        raise Refused(f"{program}: {' '.join(done.stderr.split())}")


def switch_off_segmentation(interface: str) -> None:
    """Let TCP make packets of the link's size, so that the kernel counts packets that could be on a wire."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        for command in SEGMENTATION:
            value = ctypes.create_string_buffer(command.to_bytes(4, sys.byteorder) + bytes(4), 8)
            request = interface.encode().ljust(16, b"\0") + ctypes.addressof(value).to_bytes(8, sys.byteorder)
            call("ioctl", control.fileno(), ctypes.c_ulong(SIOCETHTOOL), request.ljust(40, b"\0"))


def make_host(number: int) -> int:
    """Fork a process with namespaces of its own; returns when it has them."""
    heard, says = os.pipe()
    if child := os.fork():
        os.close(says)
        with open(heard) as pipe:
            if said := pipe.read():
                raise Refused(said)
        return child
    try:
        call("unshare", NET | UTS | IPC | MOUNTS)
        mount("tmpfs", FOLDER)
        socket.sethostname(f"host{number}")
        with suppress(OSError):  # a kernel without IPv6
            write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1")  # it would send packets of its own
    except (Refused, OSError) as error:
        os.write(says, str(error).encode())
    os.close(says)
    while True:
        signal.pause()


def join(hosts: list[int], spec: dict[str, Any]) -> None:
    """Join the hosts by links with a rate in each direction, and the racks, if there are several, by slower ones."""
    racks, apart = spec["racks"], range(spec["racks"] if spec["racks"] > 1 else 0)
    links = [(f"eth{number}", f"port{number}", spec["rate"]) for number in range(len(hosts))]
    links += [(f"up{rack}", f"down{rack}", spec["between"]) for rack in apart]
    perform("ip", [f"link add {one} mtu {MTU} type veth peer name {other} mtu {MTU}" for one, other, _ in links])
    for interface in (end for link in links for end in link[:2]):
        switch_off_segmentation(interface)
    bridges = ["ctl", "spine", *(f"rack{rack}" for rack in apart)]
    lines = [f"link add name {name} type bridge\nlink set {name} up" for name in bridges]
    lines += ["link set lo up", "address add 10.1.0.1/16 dev ctl"]
    lines += [f"link set up{rack} master rack{rack} up\nlink set down{rack} master spine up" for rack in apart]
    for number, host in enumerate(hosts):
        bridge = f"rack{number * racks // len(hosts)}" if racks > 1 else "spine"
        lines.append(f"link set port{number} master {bridge} up\nlink set eth{number} netns {host} name eth0")
        lines.append(f"link add ctl{number} type veth peer name ctl netns {host}\nlink set ctl{number} master ctl up")
    perform("ip", lines)
    shaped = "qdisc add dev {} root handle 1: tbf rate {} " + QUEUE
    later = "\nqdisc add dev {} parent 1: netem limit 100000 delay " + spec["delay"] if spec["delay"] else ""
    for number, host in enumerate(hosts):
        own = [f"address add 10.{network}.1.{number + 1}/16 dev {dev}" for network, dev in enumerate(("eth0", "ctl"))]
        perform("ip", [*own, "link set lo up", "link set eth0 up", "link set ctl up"], host)
        perform("tc", [(shaped + later).format("eth0", spec["rate"], "eth0")], host)
    ends = [(end, rate) for one, other, rate in links for end in (one, other) if not end.startswith("eth")]
    perform("tc", [shaped.format(*end) for end in ends])


def address(number: int) -> str:
    """Where mpirun reaches a host."""
    return f"10.1.1.{number + 1}"


def run(spec: dict[str, Any]) -> int:
    """Make the hosts, and run the job on them; returns its exit status."""
    try:
        call("mount", None, b"/", None, PRIVATE, None)
        mount("proc", "/proc")
        mount("tmpfs", FOLDER)
        if spec["delay"]:
            try:
                perform("tc", ["qdisc add dev lo root netem delay 1ms"])
            except Refused:
                raise Refused("this kernel has no netem, which --delay needs") from None
        hosts = [make_host(number) for number in range(spec["hosts"])]
        join(hosts, spec)
    except FileNotFoundError as error:
        raise Refused(f"there is no {error.filename}") from None
    for number, host in enumerate(hosts):
        write(f"{FOLDER}/{address(number)}", str(host))
    write(f"{FOLDER}/agent", AGENT)
    os.chmod(f"{FOLDER}/agent", stat.S_IRWXU)
    launch = ["-launcher", "rsh", "-launcher-exec", f"{FOLDER}/agent", "-iface", "ctl"]
    each = spec["ranks_per_host"]
    where = ["-hosts", ",".join(map(address, range(len(hosts)))), "-ppn", str(1 if spec["spread"] else each)]
    ranks = ["-n", str(len(hosts) * each)]
    environment = {**os.environ, "UCX_NET_DEVICES": "eth0"}
    return subprocess.call([spec["mpirun"], *launch, *where, *ranks, *spec["command"]], env=environment)


def main(spec: dict[str, Any]) -> int:
    """Make the namespaces, and wait for the process in them. SIGTERM ends it; returns when all of it has ended."""
    if os.geteuid():
        leave_users_namespace()
    call("unshare", PROCESSES | MOUNTS | UTS | IPC | NET)
    alive, _ = os.pipe()  # closes when this process ends
    if not (first := os.fork()):
        begin_first(alive, _, spec)

    def end(*_: object) -> None:
        with suppress(ProcessLookupError):
            os.kill(first, signal.SIGKILL)

    signal.signal(signal.SIGTERM, end)
    processes.follow(spec["parent"])  # again: becoming another user ends it
    return os.waitstatus_to_exitcode(os.waitpid(first, 0)[1])


def begin_first(alive: int, other: int, spec: dict[str, Any]) -> NoReturn:
    """What the first process of the PID namespace does. The kernel ends it with its parent."""
    os.close(other)
    _libc.prctl(processes.PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)
    status = 2
    try:
        status = run(spec)
    except Refused as refused:
        sys.stderr.write(f"minidist: error: no hosts on this system: {refused}\n")
    finally:
        os._exit(status)


if __name__ == "__main__":
    try:
        sys.exit(main(json.loads(sys.argv[1])))
    except Refused as refused:
        sys.exit(f"minidist: error: no hosts on this system: {refused}")
