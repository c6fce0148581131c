"""System calls that a graded rank must not make, because processes could use them to communicate past the wire.
They make locks on a file that both can read, watch files that the other opens, and make keys, shared memory and
sockets. Others make new namespaces, in which a rank would be root and could mount memory that is not counted. Or they
let the kernel hold memory that counts for no process: in sockets, in pipes, in mappings that are shared but of no file.
All processes have some files in common, such as libraries: their times, hints and pages in memory, and queues of those
who wait at an address in them (a futex), would tell, too.

The kernel refuses such a call with EPERM, so the program sees a PermissionError. This works on Linux on x86-64 and
ARM64. A filter cannot be removed, and also holds for all processes that a process starts.

Source: Linux, Documentation/userspace-api/seccomp_filter.rst; a filter is a program for the classic BPF machine.
"""

import ctypes
import errno
import fcntl
import functools
import os
import struct
import sys

PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS = 22, 38
FILTER_MODE = 2
ALLOW, REFUSE = 0x7FFF0000, 0x00050000  # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column below, and the kernel's number for it
OTHER_ABI = 0x40000000  # this and above: x86-64's numbers for 32-bit pointers

REFUSED = {  # numbers on x86-64 and on ARM64; -1: it has none
    **{"flock": (73, 32), "inotify_init": (253, -1), "inotify_init1": (294, 26), "fanotify_init": (300, 262)},
    **{"add_key": (248, 217), "request_key": (249, 218), "keyctl": (250, 219)},
    **{"shmget": (29, 194), "semget": (64, 190), "msgget": (68, 186), "mq_open": (240, 180), "socket": (41, 198)},
    **{"ptrace": (101, 117), "process_vm_readv": (310, 270), "process_vm_writev": (311, 271)},
    **{
        "pidfd_getfd": (438, 438),
        "getpriority": (140, 141),
        "sysinfo": (99, 179),  # how much memory is free, how many processes there are
        "io_uring_setup": (425, 425),
        "perf_event_open": (298, 241),
    },
    **{"memfd_create": (319, 279), "memfd_secret": (447, 447)},  # memory that counts for no process
    **{"unshare": (272, 97), "setns": (308, 268), "mount": (165, 40), "bpf": (321, 280)},
    **{"socketpair": (53, 199), "vmsplice": (278, 75), "epoll_create": (213, -1), "epoll_create1": (291, 20)},
    **{"setxattr": (188, 5), "lsetxattr": (189, 6), "fsetxattr": (190, 7), "setxattrat": (463, 463)},
    "landlock_create_ruleset": (444, 444),
    **{"utime": (132, -1), "utimes": (235, -1), "futimesat": (261, -1), "utimensat": (280, 88)},  # of /dev/null, say
    **{"fadvise64": (221, 223), "readahead": (187, 213), "mincore": (27, 232), "cachestat": (451, 451)},
    **{"preadv2": (327, 286), "pwritev2": (328, 287)},  # they can tell which pages of a file are in memory
    **{"setpriority": (141, 140), "ioprio_set": (251, 30), "ioprio_get": (252, 31)},  # of all processes of a user
    **{"syslog": (103, 116), "kcmp": (312, 272), "futex_waitv": (449, 449), "futex_wake": (454, 454)},
    **{"futex_wait": (455, 455), "futex_requeue": (456, 456)},
    "setsid": (112, 157),  # the kernel gives each session a share of the processors
}
OF_ITSELF = {  # allowed only on itself: what one process sets, another one could read
    **{"getpgid": (121, 155), "getsid": (124, 156), "sched_getaffinity": (204, 123), "prlimit64": (302, 261)},
    **{"sched_getscheduler": (145, 120), "sched_getparam": (143, 121), "sched_getattr": (315, 275)},
}
FCNTL, CLONE, CLONE3, MMAP, SIGACTION = (72, 25), (56, 220), (435, 435), (9, 222), (13, 134)
FUTEX, FUTEX_PRIVATE = (202, 98), 128
F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_NOTIFY = 36, 37, 38, 1024, 1026
LOCKS = (fcntl.F_GETLK, fcntl.F_SETLK, fcntl.F_SETLKW, F_OFD_GETLK, F_OFD_SETLK, F_OFD_SETLKW, F_SETLEASE, F_NOTIFY)
OTHERS = (1031, 1036, 1038)  # F_SETPIPE_SZ; F_SET_RW_HINT and F_SET_FILE_RW_HINT, which stay with a file
NAMESPACES = 0x7E020000  # the flags of clone that make any
MAP_SHARED, MAP_ANONYMOUS, PROT_WRITE = 1, 32, 2
SIGCHLD = 17

# Offsets in the kernel's record of a call: its number, its architecture, and the lower half of an argument.
NUMBER, ARCHITECTURE, FIRST, SECOND, THIRD, FOURTH = 0, 4, 16, 24, 32, 40
UPPER = 4  # bytes from there to the upper half
LOAD, EQUALS, AT_LEAST, HAS, RETURN = 0x20, 0x15, 0x35, 0x45, 0x06  # instructions of the machine

INSTRUCTION = struct.Struct("=HBBI")
Instruction = tuple[int, int, int, int]  # operation, jump if true, jump if false, value


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


@functools.cache
def libc() -> ctypes.CDLL:
    """The C library. Ranks find it loaded: each new CDLL makes its own class, which takes longer than most calls."""
    return ctypes.CDLL(None, use_errno=True)


def refuse() -> str:
    """Refuse these calls to this process from now on. Returns why that is not possible, or ""."""
    if not FILTER:
        return "the kernel is asked for that on Linux, on x86-64 or ARM64, alone"
    buffer = ctypes.create_string_buffer(FILTER, len(FILTER))
    filtered = Filter(len(FILTER) // INSTRUCTION.size, ctypes.addressof(buffer))
    libc().prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)  # without it only root may filter
    if libc().prctl(PR_SET_SECCOMP, FILTER_MODE, ctypes.byref(filtered), 0, 0):
        return f"the kernel filters no calls ({os.strerror(ctypes.get_errno())})"
    return ""


def program(column: int, architecture: int) -> list[Instruction]:
    """A filter. It refuses calls by number, locks by the second argument of fcntl, namespaces by the first of clone, by
    the third and fourth of mmap shared memory without a file, or of one that is only read. A futex must be the
    process's own; else it is as if its value had changed: a C library that waits for its threads looks again. A process
    must not ignore SIGCHLD: then the kernel would forget what its children have used. clone3 seems not to exist,
    because a filter cannot see its arguments; callers then use clone."""
    no, missing = REFUSE | errno.EPERM, REFUSE | errno.ENOSYS
    code = [(LOAD, 0, 0, ARCHITECTURE), (EQUALS, 1, 0, architecture), (RETURN, 0, 0, no), (LOAD, 0, 0, NUMBER)]
    code += [(AT_LEAST, 0, 1, OTHER_ABI), (RETURN, 0, 0, no)]
    for numbers in REFUSED.values():
        if numbers[column] >= 0:
            code += [(EQUALS, 0, 1, numbers[column]), (RETURN, 0, 0, no)]
    for numbers in OF_ITSELF.values():  # their first argument is a process; 0 is the caller
        code += [(EQUALS, 0, 4, numbers[column]), (LOAD, 0, 0, FIRST), (EQUALS, 0, 1, 0), (RETURN, 0, 0, ALLOW)]
        code += [(RETURN, 0, 0, no)]
    code += [(EQUALS, 0, 1, CLONE3[column]), (RETURN, 0, 0, missing)]
    code += [(EQUALS, 0, 4, CLONE[column]), (LOAD, 0, 0, FIRST), (HAS, 0, 1, NAMESPACES), (RETURN, 0, 0, no)]
    code += [(RETURN, 0, 0, ALLOW), (EQUALS, 0, 7, MMAP[column]), (LOAD, 0, 0, FOURTH), (HAS, 0, 4, MAP_SHARED)]
    code += [(HAS, 2, 0, MAP_ANONYMOUS), (LOAD, 0, 0, THIRD), (HAS, 1, 0, PROT_WRITE), (RETURN, 0, 0, no)]
    code += [(RETURN, 0, 0, ALLOW)]
    code += [(EQUALS, 0, 4, FUTEX[column]), (LOAD, 0, 0, SECOND), (HAS, 1, 0, FUTEX_PRIVATE)]
    code += [(RETURN, 0, 0, REFUSE | errno.EAGAIN), (RETURN, 0, 0, ALLOW)]
    code += [(EQUALS, 0, 8, SIGACTION[column]), (LOAD, 0, 0, FIRST), (EQUALS, 0, 4, SIGCHLD), (LOAD, 0, 0, SECOND)]
    code += [(EQUALS, 0, 3, 0), (LOAD, 0, 0, SECOND + UPPER), (EQUALS, 0, 1, 0), (RETURN, 0, 0, ALLOW)]
    code += [(RETURN, 0, 0, no)]
    code += [(EQUALS, 1, 0, FCNTL[column]), (RETURN, 0, 0, ALLOW), (LOAD, 0, 0, SECOND)]
    for command in (*LOCKS, *OTHERS):
        code += [(EQUALS, 0, 1, command), (RETURN, 0, 0, no)]
    return [*code, (RETURN, 0, 0, ALLOW)]


MACHINE = os.uname().machine if sys.platform == "linux" else ""
CODE = program(*ARCHITECTURES[MACHINE]) if MACHINE in ARCHITECTURES else []
FILTER = b"".join(INSTRUCTION.pack(*instruction) for instruction in CODE)  # made once, for all ranks
