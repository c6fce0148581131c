"""The same GPT in PyTorch, written in the usual way: the benchmark compares minidist's with it."""

import re
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from minidist.nn.gpt import GPTConfig


class TorchBlock(nn.Module):
    """Attention by PyTorch's fused kernel, and the MLP."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        width, bias, self.heads = config.width, config.bias, config.heads
        self.norm1, self.norm2 = nn.LayerNorm(width, bias=bias), nn.LayerNorm(width, bias=bias)
        self.qkv, self.projection = nn.Linear(width, 3 * width, bias), nn.Linear(width, width, bias)
        self.up, self.down = nn.Linear(width, 4 * width, bias), nn.Linear(4 * width, width, bias)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(*qkv.unbind(0), is_causal=True)  # (B, H, T, D)
        x = x + self.projection(a.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """minidist.nn.gpt.gpt, with a tied head."""

    def __init__(self, config: GPTConfig) -> None:
        super().__init__()
        self.wte = nn.Embedding(config.vocabulary, config.width)
        self.wpe = nn.Embedding(config.context, config.width)
        self.blocks = nn.ModuleList(TorchBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, bias=config.bias)

    def start_from(self, named: dict[str, np.ndarray]) -> "GPT":
        """Take over the parameters of a minidist model."""
        ours = {re.sub(r"^block(\d+)", r"blocks.\1", name.removeprefix("head.")): a for name, a in named.items()}
        self.load_state_dict({name: torch.from_numpy(array) for name, array in ours.items()})
        return self

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.wte(x) + self.wpe.weight[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        logits = self.norm(h) @ self.wte.weight.T
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), y.reshape(-1))


def one_thread() -> None:
    """Let PyTorch use one thread, like each of minidist's ranks."""
    torch.set_num_threads(1)


class TorchStep:
    """One training step of a model, wrapped for data parallelism or not: forward, backward, clipping, AdamW."""

    def __init__(self, model: nn.Module, beta2: float = 0.95) -> None:
        self.model = model
        matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
        vectors = [parameter for parameter in model.parameters() if parameter.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        self.optimizer = torch.optim.AdamW(groups, lr=1e-3, betas=(0.9, beta2))

    def __call__(self, x: np.ndarray, y: np.ndarray, lr: float = 1e-3) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = lr
        self.optimizer.zero_grad(set_to_none=True)
        self.loss(x, y).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()

    def loss(self, x: np.ndarray, y: np.ndarray) -> Tensor:
        """The mean loss of tokens x and targets y, integers (B, T)."""
        loss: Tensor = self.model(torch.from_numpy(x).long(), torch.from_numpy(y).long())
        return loss


def compiled_step(config: GPTConfig, x: np.ndarray, y: np.ndarray) -> TorchStep | None:
    """A step of the model, compiled by torch.compile; None if it finds no C++ compiler that works."""
    from torch._dynamo.exc import BackendCompilerFailed

    compiled: Any = torch.compile(GPT(config))
    step = TorchStep(compiled)
    try:
        step(x, y)
    except BackendCompilerFailed:
        return None
    return step


def join(rank: int, size: int, store: str) -> None:
    """Make a gloo process group from the ranks of a job; `store` is a file that they share."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)


def data_parallel(model: nn.Module) -> nn.Module:
    """The model in PyTorch DDP."""
    return nn.parallel.DistributedDataParallel(model)


def fully_sharded(model: GPT) -> nn.Module:
    """The model in PyTorch FSDP2, each block a unit, as in ZeRO-3."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh: Any = init_device_mesh("cpu", (torch.distributed.get_world_size(),))
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    return fully_shard(model, mesh=mesh)
