"""What a configuration means: each key, the memory and the traffic of a rank by formula, the chapter, the command line.

    python -m minidist explain ds_config.json --model llama2-7b --ranks 64
    python -m minidist explain ds_config.json --model llama2-7b --sequence 2048 --device-memory 80GB
    python -m minidist explain ds_config.json --parameters 7.5e9 --device-memory 80GB
    python -m minidist explain pretrain_gpt.sh --ranks 1024 --device-memory 80GB

It only computes and starts no ranks: any model on any number of ranks. Runs are checked by the same formulas, and
next to them stand DeepSpeed's own estimates (`minidist/papers/deepspeed.py`).
"""

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from minidist import UsageError, command
from minidist.cli.fields import choice, fill, first_given, operand, option, parse, path_to, whole
from minidist.cli.models import MODELS, Count, model_of, parameter_count
from minidist.cli.options import at_least, memory_size, path_name, tool
from minidist.cli.shared import TrainingOptions, recomputation
from minidist.deepspeed import accelerate, explain_script, megatron
from minidist.deepspeed import plan as planning
from minidist.deepspeed.config import shown_path
from minidist.deepspeed.lines import line, shown, wrapped
from minidist.deepspeed.memory_rows import memory, room
from minidist.deepspeed.moments import question
from minidist.deepspeed.plan import ConfigPlan
from minidist.deepspeed.sizes import again, bytes_each, persistent
from minidist.nn.optim import AdamW
from minidist.nn.precision import NAMES
from minidist.papers import compression, deepspeed, fsdp, zero, zero_infinity, zero_offload, zeropp
from minidist.papers.decoder import Decoder
from minidist.papers.mixed_precision import BYTES
from minidist.plan.show import sent_along
from minidist.programs.zeropp import ZeROppOptions

SENT = {
    "all-reduce gradients": "2Ψ(N-1)/N",
    "all-gather parameters": "Ψ(N-1)/N",
    "all-gather forward": "aΨ(N-1)/N",
    "all-gather backward": "aΨ(N-1)/N",
    "all-gather again": "aΨ_again(N-1)/N",
    "all-gather persistent": "Ψ_p(N-1)/N",
}


@dataclass(frozen=True, kw_only=True)
class ExplainOptions:
    config: str = operand("FILE", "ds_config.json, Accelerate's .yaml, or Megatron-LM's .sh", path_name)
    model: str | None = path_to(
        "NAME", f"one of {', '.join(MODELS)}; or a config.json of Hugging Face's; default: gpt2"
    )
    parameters: int | None = option(None, parameter_count, "N", "instead of a model, a number alone, such as 7.5e9")
    sequence: int | None = option(None, at_least(1, at_most=10**9), "N", "tokens; default: the model's positions")
    device_memory: int | None = option(None, memory_size, "SIZE", "of a GPU, such as 80GB: does it fit?")
    ranks: int | None = option(None, at_least(1, at_most=10**7), "N", "default: what the file says, or 8")
    ranks_per_host: int | None = whole("G", "default: 8, or all", also="--ranks-per-node")
    batch: int = option(16, at_least(1, at_most=10**9), "N", 'sequences in a step, for "auto"')
    accumulate: int = whole("N", 'micro-batches in a step, for "auto"', 1)
    precision: str = choice(NAMES, "mixed", 'for "auto": mixed (fp16), bf16, fp32, fp64')
    recompute: str = option("none", recomputation, "WHAT", "as in every chapter")


def asked_model(options: ExplainOptions) -> tuple[Decoder | Count, str]:
    """The model, and what to call it. Raises UsageError for options that do not go together."""
    if options.parameters:
        if also := first_given(options, "model", "sequence"):
            raise UsageError(f"--parameters is all that is known of a model: leave out {also}")
        return Count(options.parameters), "a model"
    name = options.model or "gpt2"
    model = model_of(name)
    if model.family == "gpt" and (options.sequence or 0) > model.s:
        raise UsageError(f"--sequence {options.sequence}: {name} has {model.s:,} positions")
    return model, name


def explain(arguments: Sequence[str]) -> str:
    """The explanation as text. Raises UsageError for a file that cannot be read or planned."""
    made = tool("explain", __doc__)
    fill(made, ExplainOptions)
    parsed = parse(made, arguments)
    options, given, recompute = parsed.of(ExplainOptions), parsed.given, parsed.of(ExplainOptions).recompute
    if megatron.is_script(options.config):
        if also := first_given(options, "model", "parameters", "sequence"):
            raise UsageError(f"{options.config} is a launch script, which says its model: leave out {also}")
        per_host = options.ranks_per_host or 8
        return "\n".join(explain_script.explain(options.config, options.ranks, per_host, options.device_memory))
    translated, n = accelerate.load(options.config, options.ranks)
    if options.ranks is None and n == 1:
        n = 8
    if translated.recompute and "recompute" not in given:
        recompute = translated.recompute
    if "model_type" in translated.config:
        raise UsageError(f"{options.config} is a model's configuration: give it with --model, after that of DeepSpeed")
    model, name = asked_model(options)
    s = options.sequence
    if not isinstance(model, Count):
        command.check_interval(recompute, model.layers)
    batch, accumulate, precision = options.batch, options.accumulate, options.precision
    shared = TrainingOptions(batch=batch, accumulate=accumulate, precision=precision, recompute=recompute)
    sizes = {"shard": translated.shard} | (
        {} if isinstance(model, Count) else {"width": model.h, "layers": model.layers}
    )
    plan = planning.make(translated.config, n, shared, given, **sizes, fsdp=translated.fsdp, axes=translated.axes)
    plan.notes += translated.notes
    per_node = min(options.ranks_per_host or 8, n)
    return "\n".join(
        [
            *wrapped(f"{options.config}: {name}, Ψ = {model.parameters:,} parameters, N = {n} ranks", ""),
            *keys(plan, model, translated.stated),
            *memory(plan, model, s),
            *(room(plan, model, s, options.device_memory) if options.device_memory else ()),
            *estimates(plan, model, per_node),
            *traffic(plan, model, per_node, s),
            *command_line(plan, model),
        ]
    )


def keys(plan: ConfigPlan, model: Decoder | Count, outer: dict[str, Any]) -> Iterator[str]:
    """Each key in the file: its value, what it means in DeepSpeed, and what it does here. outer: Accelerate's keys."""
    yield "\nWhat it says"
    notes = list(plan.notes)

    def about(path: str) -> Iterator[str]:
        for note in [note for note in notes if note.split()[0] == path]:
            notes.remove(note)
            yield from wrapped(note.removeprefix(path).strip(), "      ")

    for path, value in outer.items():
        if path in accelerate.STARTING:
            continue
        key = accelerate.meaning(path)
        yield from wrapped(f"{shown_path(path)} = {shown(value)}{f': {key.means}' if key else ''}")
        yield from about(shown_path(path))
    if starting := [path for path in outer if path in accelerate.STARTING]:
        yield from wrapped(f"About starting processes, which mpirun does here: {', '.join(starting)}.")
    if outer:
        yield "\nIn DeepSpeed's words"
    for path, stated in plan.config.stated.items():
        value = shown(plan.config[path])
        filled = ' ("auto")' if isinstance(stated, str) and stated == "auto" else ""
        if filled and path in planning.OF_WIDTH and isinstance(model, Count):
            value, filled = '"auto"', ", of h, which --parameters does not say"
        yield from wrapped(f"{path} = {value}{filled}: {plan.config.table[path].means}")
        yield from about(path)
    for note in notes:
        yield from wrapped(note)


def estimates(plan: ConfigPlan, model: Decoder | Count, per_node: int) -> Iterator[str]:
    """DeepSpeed's own estimates, which cover stages 1 to 3, Adam, and 2-byte parameters."""
    nodes = -(-plan.ranks // per_node)
    offload = [plan.config[f"zero_optimization.offload_{what}.device"] != "none" for what in ("optimizer", "param")]
    yield f"\nDeepSpeed's estimate of model states, {nodes} node{'s' * (nodes > 1)} of {per_node}, in GB (2³⁰ bytes)"
    if plan.stage == 0 or not isinstance(plan.optimizer, AdamW):
        yield "  it has none for stage 0, or for another optimizer than Adam"
        return
    if plan.stage == 3:
        if isinstance(model, Count):
            yield "  for stage 3 it asks for the largest layer, which --parameters does not say"
            return
        estimate = deepspeed.zero3(model.parameters, model.largest_layer, per_node, nodes, *offload)
    else:
        estimate = deepspeed.zero2(model.parameters, per_node, nodes, offload[0])
    where = " and ".join(name for name, away in zip(("optimizer", "parameters"), offload, strict=True) if away)
    yield f"  GPU {estimate.gpu / 2**30:,.2f}, host {estimate.cpu / 2**30:,.2f}, {where or 'nothing'} offloaded"
    yield "  it counts gradients in float32: 18Ψ, where the paper has 16Ψ"


def traffic(plan: ConfigPlan, model: Decoder | Count, per_node: int, s: int | None = None) -> Iterator[str]:
    """What a rank sends in a step."""
    p, a = bytes_each(plan)[0], plan.accumulate
    yield f"\nTraffic of a rank in a step, a = {a} micro-batch{'es' * (a > 1)}, in GB (10⁹ bytes)"
    if plan.axes.used and not isinstance(model, Count):
        wanted, at = question(plan, model, s)
        for words, near, away in sent_along(at, wanted, per_node):
            yield line(words.what, words.formula, near + away)
        return
    if plan.second or plan.freeze:
        yield from fewer_bytes(plan, model)
        return
    group = plan.shard or plan.ranks
    elements = zero.volume(model.parameters, group, plan.stage, a, 0, again(plan, model), persistent(plan, model))
    if "shard_grad_op" in plan.fsdp:
        times = fsdp.collectives(reshard=False, accumulate=a)
        elements = {name: fsdp.volume(model.parameters, group, n) for name, n in times.items() if n}
    sent = {name: p * volume for name, volume in elements.items()}
    less = {f"all-gather {way}": "a(Ψ-Ψ_p)(N-1)/N" for way in ("forward", "backward") if persistent(plan, model)}
    formulas = SENT | less | {"reduce-scatter gradients": f"{'a' if plan.stage >= 2 else ''}Ψ(N-1)/N"}
    for name, nbytes in sent.items():
        yield line(name, f"{p}·{formulas[name].replace('N', 'G') if plan.shard else formulas[name]}", nbytes)
    if plan.shard:
        hosts = plan.ranks // plan.shard
        sent["across"] = p * 2 * model.parameters / plan.shard * (hosts - 1) / hosts
        yield line("all-reduce across hosts", f"{p}·2Ψ/G·(N-G)/N", sent["across"])
    yield line("total sent", "", sum(sent.values()))
    if plan.on_host and not isinstance(model, Count):
        kept = model.activations(plan.micro_batch, plan.recompute, p, s)
        yield line("activations to the host", f"a·l·{p}bsh, and back", a * kept)
    if plan.offload:
        below, passes = plan.below or (plan.nvme and plan.stage == 3), "2aΨ/N"
        if again(plan, model):
            passes = "a(2Ψ + Ψ_again)/N"
        gathered = a * (2 * model.parameters + again(plan, model)) if below else None
        moved = zero_offload.elements_moved(model.parameters, plan.ranks, plan.stage, a, gathered)
        yield line("gradients to the host", f"{p}·{'a' * (plan.stage > 1)}Ψ/N", p * moved["gradients"])
        yield line("parameters from the host", f"{p}·{passes if below else 'Ψ/N'}", p * moved["parameters"])
        yield from of_files(plan, model, passes) if plan.nvme else ()


def fewer_bytes(plan: ConfigPlan, model: Decoder | Count) -> Iterator[str]:
    """What ZeRO++ sends in place of ZeRO-3's three rings, or 1-bit Adam in place of gradients."""
    p, a, psi, n, g = bytes_each(plan)[0], plan.accumulate, model.parameters, plan.ranks, plan.second
    if plan.freeze:
        scales = 2 * BYTES[plan.precision].computed * (n - 1) * len(model.units)
        yield line("all-reduce gradients", f"{p}·2Ψ(N-1)/N, {plan.freeze:,} updates", p * 2 * psi * (n - 1) / n)
        yield line("signs of the momentum", "2(N-1)⌈Ψ/8N⌉, after these", compression.sign_bytes(psi, n))
        yield line("scales", "two a rank and unit, after these", scales)
        return
    c, h, block = -(-psi // n), n // g, ZeROppOptions().block
    sent = {
        "all-gather forward": ("aΨ(N-1)/N", zeropp.forward(c, n)),
        "all-gather backward": (f"{p}·aΨ(G-1)/G", zeropp.backward(psi, g, p)),
        "all-to-all within hosts": ("aΨ/2·(G-1)/G", zeropp.within(c, h, g)),
        "all-to-all across hosts": ("aΨ/2G·(H-1)/H", zeropp.across(c, h)),
        "scales": (f"a·4 bytes a block of {block}", zeropp.scales(c, n, g, block)),
    }
    for name, (formula, nbytes) in sent.items():
        yield line(name, formula, a * nbytes)
    yield line("total sent", f"ZeRO-3: {p}·3aΨ(N-1)/N", a * sum(nbytes for _, nbytes in sent.values()))
    yield line("leaves a host, of G ranks", f"G = {g}, H = {h}", a * zeropp.leaving(c, n, g, block))
    with_zero3 = a * p * psi * zeropp.leaves_a_host_with_zero3(n) * (h > 1)
    yield line("  with ZeRO-3's rings", f"{p}·3aΨ(N-1)/N", with_zero3)


def of_files(plan: ConfigPlan, model: Decoder | Count, passes: str) -> Iterator[str]:
    """What a rank reads and writes in a step. passes: the formula of parameters that forward and backward read."""
    p, k = bytes_each(plan)
    states = k + (0 if BYTES[plan.precision].master else p)
    moved = zero_infinity.elements_moved(model.parameters, plan.ranks, plan.stage, plan.accumulate, again(plan, model))
    read, written = states * moved["states"] + p * moved["parameters read"], states * moved["states"]
    both = plan.stage == 3
    yield line("read from files", f"{states}Ψ/N" + f" + {p}·{passes}" * both, read)
    yield line("written to files", f"{states}Ψ/N" + f" + {p}Ψ/N" * both, written + p * moved["parameters written"])


def command_line(plan: ConfigPlan, model: Decoder | Count) -> Iterator[str]:
    words = [*plan.arguments(), *(["--model", "llama"] if model.family == "llama" else [])]
    yield f"\nThe chapter: minidist/{plan.chapter}.py. Its model is small; this line trains it so:"
    yield f"  mpirun -n {plan.ranks} python -m minidist.{shlex.join([plan.chapter, *words])}"
    if plan.beyond:
        door = f"mpirun -n {plan.ranks} python -m minidist.deepspeed FILE"
        yield from wrapped(f"What no option says: {'; '.join(plan.beyond)}. {door} does.")


def main(arguments: Sequence[str]) -> int:
    print(explain(arguments))
    return 0
