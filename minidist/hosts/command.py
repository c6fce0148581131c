"""Several hosts on this machine, with links of a given rate: a job runs on them over TCP.

    python -m minidist hosts 4 --rate 200mbit --ranks-per-host 2 -- python -m minidist.zero3 --steps 20
    python -m minidist hosts 4 --racks 2 --between 50mbit -- python -m minidist.data_parallel
    python -m minidist hosts --compare

Below the chapter's own table: what each host's interface sent, as the kernel counts it, next to what minidist counted.
"""

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass

from minidist import UsageError
from minidist.cli.fields import flag, operand, option, output, read, whole
from minidist.cli.options import tool
from minidist.cli.paths import check_writable
from minidist.cli.tables import make_table, mark, number, say, show
from minidist.hosts import compare
from minidist.hosts.network import Network, Record, account, step_of
from minidist.memory.plot import check as check_picture


def rate_of_link(text: str) -> str:
    """An argument type: a rate as tc writes it."""
    if not re.fullmatch(r"[1-9]\d*(\.\d+)?[kmg]bit", text):
        raise argparse.ArgumentTypeError(f"must be a rate such as 200mbit or 1gbit, not {text!r}")
    return text


def time_of_packet(text: str) -> str:
    """An argument type: a time as tc writes it."""
    if not re.fullmatch(r"[1-9]\d*(\.\d+)?[mu]s", text):
        raise argparse.ArgumentTypeError(f"must be a time such as 2ms or 500us, not {text!r}")
    return text


@dataclass(frozen=True, kw_only=True)
class HostsOptions:
    hosts: tuple[str, ...] = operand("HOSTS", "how many, and after -- the command that all ranks run", nargs="*")
    ranks_per_host: int = whole("R", "ranks of each host", 1)
    rate: str = option("1gbit", rate_of_link, "RATE", "of each host's link, in each direction")
    racks: int = whole("R", "groups of hosts with a slower link between them", 1)
    between: str = option("50mbit", rate_of_link, "RATE", "of each rack's link to the others")
    delay: str | None = option(None, time_of_packet, "TIME", "of each packet on a host's link (needs netem)")
    compare: bool = flag("the table of layouts: which parallelism across which link")
    plot: str | None = output("with --compare: draw it: .pdf, .png, .svg")


def main(arguments: Sequence[str]) -> int:
    """Run a job on hosts, and print both accounts; returns the job's exit status, or 1 if the accounts differ."""
    cut = [*arguments, "--"].index("--")
    command = arguments[cut + 1 :]
    options = read(tool("hosts", __doc__), HostsOptions, arguments[:cut])
    if options.plot is not None:
        check_picture("--plot", options.plot)
        check_writable("--plot", options.plot)
        if not options.compare:
            raise UsageError("--plot draws what --compare measures: give both")
    if options.compare:
        return compare.run(options.plot)
    if len(options.hosts) != 1 or not options.hosts[0].isdecimal() or not 1 <= int(options.hosts[0]) <= 64:
        raise UsageError("say how many hosts, 1 to 64: python -m minidist hosts 2 -- python -m minidist.zero3")
    if not command:
        raise UsageError("say after -- what all ranks run: python -m minidist hosts 2 -- python -m minidist.zero3")
    hosts = int(options.hosts[0])
    if options.racks > hosts:
        raise UsageError(f"{hosts} hosts cannot be in {options.racks} racks: --racks {hosts} at most")
    links = options.rate, options.racks, options.between, options.delay
    network = Network(hosts, options.ranks_per_host, *links)
    status, _, records = network.run(command)
    if not records:
        return status
    agree = print_accounts(network, records)
    return status or (0 if agree else 1)


def print_accounts(network: Network, records: Sequence[Record]) -> bool:
    """Both accounts of each host; returns whether they agree."""
    rows = [account(network, host, records) for host in range(network.hosts)]
    counted = ("received", "sent", "payload", "control", "envelopes", "headers", "rest")
    table = make_table(("host",), counted, narrow=True)
    table.add_column("", no_wrap=True)
    for row in rows:
        counts = row.received, row.kernel, row.payload, row.control, row.envelopes, row.headers
        share = f"{100 * row.rest / max(row.kernel, 1):.1f} %"
        table.add_row(f"host{row.host}", *(number(round(each)) for each in counts), share, mark(row.agrees))
    print()
    show(f"Bytes at each host's interface ({network.rate}) in the whole run, by the kernel, and what they are", table)
    say(
        "received, sent: the kernel's counters. payload, control: to other hosts, as minidist counts them. envelopes:"
        " what MPI adds to a message, from empty ones. headers: of packets, 66 bytes each."
    )
    took, waited = step_of(records)
    if took:
        parts = f"{1e3 * (took - waited):.1f} of computing, {1e3 * waited:.1f} of waiting"
        say(f"A step takes {1e3 * took:.1f} ms on the rank that waits least: {parts} (means).")
    return all(row.agrees for row in rows)
