"""Ring Attention: Liu, Zaharia, Abbeel 2023, arXiv 2310.01889. When blocks that go around are hidden by work."""

from minidist.papers.figure import Figure


def least_block(flops: float, bandwidth: float) -> float:
    """The fewest tokens c of a block whose work, 4dc², hides the sending of its keys and values, 4cd bytes: F/B."""
    return flops / bandwidth


def tokens_held(block: float) -> float:
    """Tokens whose activations a device has room for with six blocks of c: queries, keys, values, two that come, and
    the output. Table 2 calls it the least length of a sequence."""
    return 6 * block


# ---- what it prints --------------------------------------------------------------------------------------------------


DEVICES = {  # TFLOP/s and GB/s
    "A100, NVLink": (312, 300),
    "A100, InfiniBand": (312, 12.5),
    "TPU v3": (123, 112),
    "TPU v4": (275, 268),
    "TPU v5e": (196, 186),
}


def _row(device: str, block: str, length: str, differs: bool = False) -> list[Figure]:
    """A row of table 2: c and 6c, in thousands of tokens."""
    teraflops, gigabytes = DEVICES[device]
    c = least_block(teraflops * 1e12, gigabytes * 1e9)
    cells = (("block", block, "F/B", c), ("sequence", length, "6F/B", tokens_held(c)))
    return [
        Figure(
            "Ring Attention Table 2", f"{device}, {cell}", printed, "thousand tokens", formula, tokens / 1e3,
            differs=f"{teraflops}/{gigabytes:g} gives {tokens / 1e3:.1f}" * differs,
        )
        for cell, printed, formula, tokens in cells
    ]  # fmt: skip


BLOCK_BYTES = Figure(
    "Ring Attention §3", "keys and values of a block, in two bytes each", "4", "cd bytes", "sent / (N-1)cd"
)
# Table 3, "ours vs SOTA": how many times longer a sequence can be than on one device, by hardware and model.
TABLE_3 = {
    (hardware, size): Figure(
        "Ring Attention Table 3", f"{hardware}, {size}, longer", printed, "times", "tokens / kept, to one rank's"
    )
    for hardware, sizes in {
        "8x A100": {"3B": "8", "7B": "8", "13B": "8"},
        "32x A100": {"7B": "32", "13B": "32"},
        "TPUv3-512": {"7B": "256", "13B": "128"},
        "TPUv4-1024": {"3B": "512", "7B": "512", "13B": "256", "30B": "256"},
        "TPUv5e-256": {"3B": "128", "7B": "128"},
    }.items()
    for size, printed in sizes.items()
}
FIGURES = [
    BLOCK_BYTES,
    *TABLE_3.values(),
    *_row("A100, NVLink", "1.0", "6.2"),
    *_row("A100, InfiniBand", "24.5", "149.5", differs=True),
    *_row("TPU v3", "1.1", "6.6"),
    *_row("TPU v4", "1.0", "6.2"),
    *_row("TPU v5e", "1.1", "6.3"),
]
