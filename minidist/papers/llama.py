"""Llama: Touvron et al. 2023, arXiv 2302.13971. Its sizes.

v: vocabulary, h: width, a: heads, kv: key/value heads, f: the MLP's width.
"""

from minidist.papers.decoder import DENSE, Decoder
from minidist.papers.figure import SECOND, Figure


def mlp_width(h: int, multiple: int = 8) -> int:
    """f: two thirds of GPT's 4h, for as many parameters in three matrices as in two (section 2.2), up to a multiple."""
    return -(-int(8 * h / 3) // multiple) * multiple


def llama(h: int, layers: int, a: int, kv: int, f: int, s: int, v: int = 32_000, tied: bool = False) -> Decoder:
    """A Llama as the papers' tables describe it; s: positions that it was trained on."""
    return Decoder(v=v, s=s, h=h, a=a, kv=kv, d=h // a, f=f, kinds=(DENSE,) * layers, tied=tied)


# Llama 2 (Touvron et al. 2023, arXiv 2307.09288) has the first one's sizes, except 70B, and twice the positions. There
# was no Llama 2 of 34B; Code Llama (Rozière et al. 2023) has one.
MODELS = {
    "llama-7b": llama(4096, 32, 32, 32, 11_008, 2048),
    "llama-13b": llama(5120, 40, 40, 40, 13_824, 2048),
    "llama-30b": llama(6656, 60, 52, 52, 17_920, 2048),
    "llama-65b": llama(8192, 80, 64, 64, 22_016, 2048),
    "llama2-7b": llama(4096, 32, 32, 32, 11_008, 4096),
    "llama2-13b": llama(5120, 40, 40, 40, 13_824, 4096),
    "llama2-70b": llama(8192, 80, 64, 8, 28_672, 4096),
    "codellama-7b": llama(4096, 32, 32, 32, 11_008, 16_384, v=32_016),
    "codellama-34b": llama(8192, 48, 64, 8, 22_016, 16_384),
}

PRINTED = {  # of the models above
    "llama-7b": ("7B", "6,738,415,616"),
    "llama-13b": ("13B", "13,015,864,320"),
    "llama-30b": ("30B", "32,528,943,616"),
    "llama2-70b": ("2, 70B", "68,976,648,192"),
    "codellama-34b": ("Code, 34B", "33,743,970,304"),
}
FIGURES = [
    Figure(
        "Llama's weights", name, printed, "parameters", "2vh + h + l(2h² + 2h²·kv/a + 3hf + 2h)",
        MODELS[model].parameters, evidence=SECOND,
    )
    for model, (name, printed) in PRINTED.items()
]  # fmt: skip
