"""Checkpoints of other systems, by the names of their files: for the line that refuses them."""

import os
from fnmatch import fnmatch
from glob import escape, glob

from minidist.system.files import open_regular

HUGGING_FACE, PYTORCH, DEEPSPEED = "Hugging Face's model", "PyTorch's distributed checkpoint", "DeepSpeed's checkpoint"
FOLDERS = {  # what a folder is, by files in it; Megatron's may also be in PyTorch's form
    "Megatron's checkpoint": ("latest_checkpointed_iteration.txt", "mp_rank_*/*.pt", "iter_*/mp_rank_*", "common.pt"),
    DEEPSPEED: ("*_states.pt", "global_step*/*_states.pt"),
    PYTORCH: (".metadata", "*.distcp", "step-*/.metadata"),
    HUGGING_FACE: ("config.json", "*.index.json", "pytorch_model*.bin", "checkpoint-*/config.json"),
}
FILES = {"*.index.json": HUGGING_FACE, "*.distcp": PYTORCH, "*_states.pt": DEEPSPEED}
OF_TORCH = b"PK\x03\x04", b"\x80\x02\x8a\nl"  # a zip file, or a pickle of a long number


def name_other(path: str) -> str:
    """What a file or a folder of another system is, and what can be read; "" if it may be minidist's."""
    if os.path.isdir(path):
        patterns = FOLDERS.items()
        found = [what for what, files in patterns if any(glob(os.path.join(escape(path), each)) for each in files)]
    else:
        found = [what for name, what in FILES.items() if fnmatch(os.path.basename(path), name)]
        if not found and _begins_as(path, OF_TORCH):
            found = ["a file of torch.save"]
    return f"{found[0]}: only what minidist's --save or --export wrote can be read" if found else ""


def _begins_as(path: str, marks: tuple[bytes, ...]) -> bool:
    try:
        with open_regular(path) as file:
            return file.read(5).startswith(marks)
    except OSError:
        return False
