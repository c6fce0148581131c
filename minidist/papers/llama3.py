"""Llama 3 (Grattafiori et al. 2024, arXiv 2407.21783): its sizes, of table 3 and the released models."""

from minidist.papers.llama import Model

MODELS = {
    "llama3-8b": Model(4096, 32, 32, 8, 14_336, 8192, v=128_256),
    "llama3-70b": Model(8192, 80, 64, 8, 28_672, 8192, v=128_256),
    "llama3-405b": Model(16_384, 126, 128, 8, 53_248, 8192, v=128_256),
}
