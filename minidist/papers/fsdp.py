"""Hybrid sharding: Zhao et al., "PyTorch FSDP", VLDB 2023, section 3.2.2."""


def across_hosts(m: float, w: int, g: int) -> float:
    """What each of w ranks on hosts of g sends to other hosts: the all-reduce of an m/g shard among w/g replicas."""
    return 2 * m * (w - g) / (g * w)


def across_hosts_as_printed(m: float, w: int, g: int) -> float:
    """The paper's figure for it: 0.2344 m instead of 0.1250 m for w = 16 and g = 8."""
    return 2 * m * (w - 1) / (g * w)
