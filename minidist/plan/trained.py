"""Published runs that trained a model, each by other people on other devices: OPT, BLOOM, GPT-NeoX, PaLM, DeepSeek-V3.

What a report does not print is said here. All have the ceiling of SC 2021's table: also the TPU v4, and
DeepSeek-V3, which multiplies in FP8, here compared with the peak of bfloat16.
"""

from collections.abc import Iterator
from dataclasses import replace

from minidist.papers import deepseek_v3, llama3, palm, ptd, runs
from minidist.papers.figure import plain
from minidist.papers.models import Model
from minidist.papers.runs import NeoX
from minidist.plan.choice import Choice, Wanted
from minidist.plan.printed import A100, H100, Published, gpt
from minidist.plan.show import GB

TPU_V4 = replace(A100, memory=32 * GB, per_host=3072, flops=275e12, within=100e9, across=81e12 / 8 / 6144)
H800 = replace(H100, within=deepseek_v3.NVLINK * 1e9, across=deepseek_v3.INFINIBAND * 1e9)

EARLY = (
    "GPT-NeoX trained 20B with PyTorch 1.10 and reached 117 teraFLOP/s, where PTD's table 1 has 135 for 18B: the"
    " ceiling is that of PTD's kernels"
)
ON_TPU = (
    "PaLM runs attention and MLP in parallel, which halves tensor messages; and by its own count of recomputation, a"
    " TPU does 57.8 % of its peak in a whole step, which is all that the ceiling allows"
)


def models() -> Iterator[Published]:
    yield bloom()
    yield opt()
    yield neox()
    yield of_palm()
    yield of_deepseek()


def bloom() -> Published:
    """176B on 384 A100: the embedding counts as a layer, or 12 stages could not share 70."""
    wanted = Wanted("", gpt(70, 14_336, 112, 250_880), 2048, 2048, "bf16", sequence=False)
    choice = Choice(8, 4, 1, 12, zero=1, recompute="every:1", rows=2)
    printed = runs.BLOOM_SECONDS
    return Published("BLOOM 176B, 384 GPUs", wanted, choice, replace(A100, ranks=384), plain(printed.printed), printed)


def opt() -> Published:
    """FSDP and tensor parallelism on 992 A100, in steps of 2 M tokens: 8 sequences for each of 124 data ranks. The
    number of tensor ranks is not printed: here 8, as in a host."""
    wanted = Wanted("", gpt(96, 12_288, 96, 50_272), 124 * 8, 2048, "mixed", sequence=False)
    choice = Choice(124, 8, zero=3, recompute="every:1", rows=8)
    work = ptd.flops(wanted.batch, 96, 12_288, 50_272)
    seconds = work / (plain(runs.OPT_RATE.printed) * 1e12 * 992)
    return Published("OPT-175B, 992 GPUs", wanted, choice, replace(A100, ranks=992), seconds, runs.OPT_RATE)


def neox() -> Published:
    """Tensor 2, stages 4, ZeRO-1, on 96 A100 of 40 GB. 1,538 contexts do not divide: 32 micro-batches of 4 for each of
    12 data ranks are 1,536. Its positions are rotary, and its head has a matrix: a Llama with a GPT's MLP, so wide that
    its three matrices have the parameters of two."""
    model = Model("llama", NeoX.V, NeoX.S, NeoX.H, NeoX.LAYERS, NeoX.HEADS, NeoX.HEADS, False, f=8 * NeoX.H // 3)
    wanted = Wanted("", model, 1536, NeoX.S, "mixed", sequence=False)
    choice = Choice(12, 2, 1, 4, zero=1, recompute="every:1", rows=4)
    seconds = ptd.flops(1536, NeoX.LAYERS, NeoX.H, NeoX.V) / (plain(runs.NEOX_RATE.printed) * 1e12 * 96)
    cluster = replace(A100, ranks=96, memory=40 * GB)
    return Published("GPT-NeoX-20B, 96 GPUs", wanted, choice, cluster, seconds, runs.NEOX_RATE, EARLY)


def of_palm() -> Published:
    """Two pods of TPU v4, each 12 tensor and 256 data ranks that divide everything (section 4). PaLM's heads share one
    key, which 12 ranks cannot divide. Here keys are as many as ranks, heads as wide as a Llama's, and the MLP is
    narrower, so that the model has its 540.35 billion parameters. A pod is a host: 100 GB/s between chips (assumed)."""
    h, layers = palm.H, palm.LAYERS
    attention = 2 * h * h + 2 * h * (h // palm.HEADS * 12)
    f = round(((palm.parameters() - palm.V * h) / layers - attention) / (3 * h))
    model = Model("llama", palm.V, palm.S, h, layers, palm.HEADS, 12, True, f=f)
    wanted = Wanted("", model, palm.BATCH, palm.S, "bf16", sequence=False)
    choice = Choice(512, 12, zero=3, hosts=2, recompute="every:1", rows=4)
    seconds = wanted.tokens / (plain(palm.TOKENS.printed) * 1e3)
    return Published("PaLM 540B, 6144 TPU", wanted, choice, replace(TPU_V4, ranks=6144), seconds, palm.TOKENS, ON_TPU)


def of_deepseek() -> Published:
    """Experts on 64 ranks, 16 stages, DualPipe, ZeRO-1 (section 3.2), in steps of 15,360 sequences (section 4.2). Its
    sizes are `deepseek_v3.LIKE`; the micro-batch is not printed: here one sequence."""
    wanted = Wanted("", Model.like(deepseek_v3.LIKE), 15_360, 4096, "bf16")
    choice = Choice(runs.GPUS // 16, 1, 1, 16, 64, "dualpipe", zero=1)
    a_trillion = plain(runs.THOUSAND_HOURS.printed) * 1e3 * 3600 / runs.GPUS  # seconds
    seconds = wanted.tokens / 1e12 * a_trillion
    cluster = replace(H800, ranks=runs.GPUS, flops=llama3.H100)
    return Published("DeepSeek-V3, 2048 GPUs", wanted, choice, cluster, seconds, runs.THOUSAND_HOURS)
