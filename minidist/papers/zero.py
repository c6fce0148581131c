"""ZeRO: Rajbhandari et al., SC 2020, arXiv 1910.02054."""

from dataclasses import dataclass


@dataclass(frozen=True)
class ModelStates:
    """Bytes on one rank."""

    parameters: float
    gradients: float
    optimizer: float

    @property
    def total(self) -> float:
        return self.parameters + self.gradients + self.optimizer


def model_states(psi: float, n: int, stage: int, p: int = 2, g: int = 2, k: int = 12) -> ModelStates:
    """Bytes of model states on each of n ranks (section 5, figure 1). Stage 0 is data parallelism.

    p, g, k: bytes a parameter of parameters, gradients and optimizer state: 2, 2, 12 in the paper, with mixed-precision
    Adam.
    Stage 1 divides the optimizer state by n (P_os), stage 2 gradients too (P_os+g), stage 3 parameters too (P_os+g+p).
    """
    return ModelStates(
        parameters=p * psi / (n if stage >= 3 else 1),
        gradients=g * psi / (n if stage >= 2 else 1),
        optimizer=k * psi / (n if stage >= 1 else 1),
    )


def volume(psi: float, n: int, stage: int, accumulate: int = 1, kept: float = 0) -> dict[str, float]:
    """Elements that each of n ranks sends in one step of `accumulate` micro-batches, by what they are (section 7).

    The paper's 2Ψ, 2Ψ, 2Ψ and 3Ψ, times (N-1)/N, are accumulate = 1. Stages 2 and 3 hold no full gradient, so they
    reduce after every micro-batch: (a+1)Ψ and 3aΨ. In stage 3, `kept` parameters that stay gathered from the forward to
    the backward are not gathered again: 3Ψ - ψ_kept (as FSDP does it, Zhao et al. 2023, section 3.3.1).
    """
    once = psi * (n - 1) / n
    again = (psi - kept) * (n - 1) / n
    if stage == 0:
        return {"all-reduce gradients": 2 * once}
    if stage == 1:
        return {"reduce-scatter gradients": once, "all-gather parameters": once}
    if stage == 2:
        return {"reduce-scatter gradients": accumulate * once, "all-gather parameters": once}
    return {
        "all-gather forward": accumulate * once,
        "all-gather backward": accumulate * again,
        "reduce-scatter gradients": accumulate * once,
    }


# Table 1, in GB, for mixed-precision Adam: {Ψ: {ranks: (P_os, P_os+g, P_os+g+p)}}, as printed.
TABLE_1: dict[float, dict[int, tuple[str, str, str]]] = {
    7.5e9: {
        1: ("120", "120", "120"),
        4: ("52.5", "41.3", "30"),
        16: ("35.6", "21.6", "7.5"),
        64: ("31.4", "16.6", "1.88"),
        256: ("30.4", "15.4", "0.47"),
        1024: ("30.1", "15.1", "0.12"),
    },
    128e9: {
        1: ("2048", "2048", "2048"),
        4: ("896", "704", "512"),
        16: ("608", "368", "128"),
        64: ("536", "284", "32"),
        256: ("518", "263", "8"),
        1024: ("513", "257", "2"),
    },
    1e12: {
        1: ("16000", "16000", "16000"),
        4: ("7000", "5500", "4000"),
        16: ("4750", "2875", "1000"),
        64: ("4187", "2218", "250"),
        256: ("4046", "2054", "62.5"),
        1024: ("4011", "2013", "15.6"),
    },
}


def table_1_cell(psi: float, n: int, stage: int) -> str:
    """One cell of Table 1 as the paper rounds it: half up to three digits, but cut off to whole GB from 128 B on."""
    gigabytes = model_states(psi, n, stage).total / 1e9
    if psi >= 128e9 and gigabytes > 100:
        return str(int(gigabytes))
    digits = 0 if gigabytes >= 100 else 1 if gigabytes >= 10 else 2
    rounded = int(gigabytes * 10**digits + 0.5) / 10**digits
    return f"{rounded:g}"


def short(psi: float) -> str:
    """7.5e9 as 7.5B."""
    return f"{psi / 1e12:g}T" if psi >= 1e12 else f"{psi / 1e9:g}B"


# Figure 1: model states of 7.5 B parameters on 64 ranks, GB, for stage 0 to 3, as printed.
FIGURE_1 = ("120", "31.4", "16.6", "1.9")
