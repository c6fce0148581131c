"""GPT-2 (Radford et al. 2019) and GPT-3 (Brown et al. 2020): their sizes. One head, tied to the embedding.

v: vocabulary, s: positions, h: width, a: heads.
"""

from minidist.papers.decoder import DENSE, Decoder


def gpt(h: int, layers: int, a: int, s: int = 1024, v: int = 50_257, tied: bool = True) -> Decoder:
    """A GPT as the papers' tables describe it: (v + s)h, 12h² + 13h for each layer, and 2h parameters."""
    return Decoder(
        v=v, s=s, h=h, a=a, kv=a, d=h // a, f=4 * h, kinds=(DENSE,) * layers, gated=False, tied=tied, learned=True,
        qkv_bias=True, out_bias=True, mlp_bias=True, norm_bias=True,
    )  # fmt: skip


MODELS = {
    "gpt2": gpt(768, 12, 12),
    "gpt2-medium": gpt(1024, 24, 16),
    "gpt2-large": gpt(1280, 36, 20),
    "gpt2-xl": gpt(1600, 48, 25),
    "gpt3-175b": gpt(12_288, 96, 96, s=2048),
}
