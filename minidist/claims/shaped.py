"""What the papers say about a pipeline that is folded or crossed: the part of `pipeline.py` in which these
differ from one that runs straight through."""

from collections.abc import Sequence

from minidist.claims.claim import Claim, on_each_rank
from minidist.layout import Layout
from minidist.papers import chimera, dualpipe, pipelines, v_shapes

# By schedule: whose figure it is, the most micro-batches in flight on a stage, and messages to each neighbor.
SOURCES = dict.fromkeys(("zb-v", "v-half", "v-min"), "ZB README") | {"chimera": "Chimera table 2"}
SOURCES |= dict.fromkeys(("dualpipe", "dualpipe-v"), "DSV3 table 2")
IN_FLIGHT = {"zb-v": "2p", "v-half": "p+3 or p+2", "v-min": "2⌊(p+4)/3⌋", "chimera": "D/2+1 to D; N>D: D"}
IN_FLIGHT |= dict.fromkeys(("dualpipe", "dualpipe-v"), "PP+1")
MESSAGES = dict.fromkeys(pipelines.FOLDED, "m") | dict.fromkeys(pipelines.CROSSED, "(m/2)")


def idle_claims(pipe: Layout, idle: float, own: Sequence[float], again: set[float]) -> list[Claim]:
    """How long stages idle in a step, in the times of a chunk if a stage has several. own: the same of each stage's own
    time, first to last work. again: the forwards that run once more. Most formulas assume that there are none."""
    schedule, p, m, v = pipe.schedule, pipe.pp, pipe.micro_batches, pipe.chunks
    if not pipelines.filled(schedule, p, m):
        return []
    if schedule == "chimera":
        expected = chimera.idle(p, m, 2.0 + max(again))
        if m == p or p == 2:
            return [Claim("Chimera", "idle, N = D", "(D-2)(B+W)", expected, idle, "T_F")]
        return [Claim("in addition", "idle, N > D", "(D-2)(B+W-F)N/D+D-3", expected, idle, "T_F")]
    if again != {0.0}:
        return []
    if schedule in ("dualpipe", "dualpipe-v"):
        expected = dualpipe.idle(p * v, f=1.0, b=2.0, w=1.0, both=3.0)
        return [Claim("DSV3 table 2", "idle, in T_F", "(PP/2-1)(F&B+B-3W)", expected, idle, "T_F")]
    if schedule == "zb-v":  # of each stage's own time: in a step there is also the way to the last stage
        return [on_each_rank("ZB README", "idle, in T_F", "0", 0.0, own, "T_F")]
    if schedule in ("v-half", "v-min"):
        formula = {"v-half": "3(p-1)-[2|p]", "v-min": "4(p-1)-[3∤p]"}[schedule]
        return [Claim("ZB README", "idle, in T_F", formula, v_shapes.idle(schedule, p), idle, "T_F")]
    return []
