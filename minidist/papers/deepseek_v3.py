"""DeepSeek-V3: DeepSeek-AI 2024, arXiv 2412.19437. A limit of hosts.

Each token chooses k of E experts, which are divided among `hosts` nodes. (Its training run is in `runs`.)
"""

import math

from minidist.papers.figure import Figure
from minidist.papers.mixtral import mixture

EXPERTS, CHOSEN, HOSTS, LIMIT = 256, 8, 8, 4  # section 4.2: expert parallelism of 64 ranks on 8 nodes
NVLINK, INFINIBAND = 160, 50  # GB/s, section 3.2.2

# Its sizes (section 4.2), as far as a Llama with experts has them. The shared expert is one more that a token chooses.
# The first three layers count as mixtures: their MLP is as wide as the nine experts of a token. The 62nd layer is that
# of multi-token prediction. Attention has 128 heads, 56 wide, in place of latent ones: 205 M parameters, not 187 M.
LIKE = mixture(7168, 62, 128, 128, 2048, EXPERTS, CHOSEN + 1, 129_280, 4096)


def copies_to_experts(k: int, hosts: int) -> float:
    """Copies of a token that leave its host, if each chosen expert gets its own; choices are uniform."""
    return k * (hosts - 1) / hosts


def hosts_reached(experts: int, k: int, hosts: int) -> float:
    """The number of hosts on which a token's experts are, on average over all choices of k."""
    elsewhere = math.comb(experts - experts // hosts, k) / math.comb(experts, k)
    return hosts * (1 - elsewhere)


def copies_to_hosts(experts: int, k: int, hosts: int) -> float:
    """Copies that leave its host, if each host gets one for all its experts."""
    return hosts_reached(experts, k, hosts) * (hosts - 1) / hosts


def most_copies(limit: int, hosts: int) -> float:
    """The most copies that leave its host with a limit of hosts, on average over tokens."""
    return limit * (hosts - 1) / hosts


DEEPEP = {2: 90, 4: 61}  # hosts of 8 ranks -> GB/s of dispatch, in the README of DeepEP, version 2 (SM90, 50 GB/s NICs)


def physical(logical: float, hosts: int) -> float:
    """The part of DeepEP's "logical bandwidth" that crosses between hosts. A token goes once to each host that has one
    of its experts, and its own host counts, too; choices are uniform."""
    return logical * (hosts - 1) / hosts


# ---- what it prints --------------------------------------------------------------------------------------------------

MOST_HOSTS = Figure("DeepSeek-V3 §3.2.2", "nodes of a token, at most", "4", "", "the limit", LIMIT)
FREE_EXPERTS = Figure("DeepSeek-V3 §3.2.2", "experts at the cost of 8", "13", "", "4·3.2", LIMIT * NVLINK / INFINIBAND)
FIGURES = [
    MOST_HOSTS,
    Figure("DeepSeek-V3 §3.2.2", "NVLink / InfiniBand", "3.2", "times", "160 / 50 GB/s", NVLINK / INFINIBAND),
    FREE_EXPERTS,
]
