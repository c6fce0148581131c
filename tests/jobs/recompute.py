"""What tests/test_recompute.py runs: every engine, keeping its activations and recomputing them."""

from typing import Any

from jobs import engines


def train(make: Any, model: str, precision: str, mode: str, *comm: Any) -> dict[str, Any]:
    """Some steps on a model with dropout; losses, gradients and parameters."""
    settings = engines.settings(precision, "adamw", accumulate=1, clip=0.5)
    settings.recompute = mode
    return engines.train(make(engines.model(model), settings, *comm), batch=6)


def train_all(comm: Any) -> dict[str, Any]:
    """{"engine, mode": results of this rank}, in float64."""
    return {
        f"{name}, {mode}": train(make, "llama" if name == "zero2" else "gpt", "fp64", mode, comm)
        for name, make in engines.ENGINES.items()
        for mode in ("none", "selective", "full")
    }
