"""A Megatron-LM launch script: its flags, and the model, the ranks and the step that they describe.

The script is read, never run: its variables are filled in as far as it sets them (NAME=value, ${NAME:-value},
$((A*B))), and every --flag counts, wherever it stands; the last one of a name wins. `megatron.toml` is the table.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from minidist import UsageError
from minidist.cli.read import text_of
from minidist.deepspeed.config import note_of
from minidist.deepspeed.keys import Key, key, table
from minidist.formulas.profile import MEGATRON, Profile, usual
from minidist.papers.decoder import DENSE, MIXTURE, Decoder, Latent, Mixture
from minidist.papers.models import Model
from minidist.plan.choice import Choice, Wanted

TABLE = table("megatron.toml")
FLAGS: dict[str, Key] = {name: key(row, TABLE["texts"]) for name, row in TABLE["flags"].items()}
OTHERS: list[str] = TABLE["lists"]["others"]
SIGN = re.compile(r"--tensor[-_]model[-_]parallel[-_]size\b|\bpretrain_\w+\.py\b")  # that a file is such a script
WORD = r"(?:\$\(\([^)]*\)\)|\$\{[^}]*\}|[^\s\"'()|;&])+"  # of the shell, with sums and variables in braces
GPT2_VOCABULARY = 50_257
SCHEMES = {"p2p": "ring", "a2a": "ulysses", "allgather": "all-gather", "a2a+p2p": "ring"}
STRATEGIES = ("no_shard", "optim", "optim_grads", "optim_grads_params")  # by ZeRO's stage


class Script(NamedTuple):
    """What a launch script says."""

    path: str
    stated: dict[str, str | None]  # flags as they stand, in the order of the script; None: without a value
    values: dict[str, Any]  # of every flag: as stated, or its default
    notes: dict[str, str]  # by flag, why it has no effect here


# ---- the shell's words -----------------------------------------------------------------------------------------------


def is_script(path: str) -> bool:
    """Whether a file is a launch script: no JSON, YAML or TOML."""
    return not path.lower().endswith((".json", ".yaml", ".yml", ".toml")) and bool(SIGN.search(text_of(path)))


def filled(text: str, names: dict[str, str]) -> str:
    """A text with its variables and sums filled in, as far as they are known."""
    for _ in range(10):  # variables of variables
        before = text
        text = re.sub(r"\$\{(\w+):?-\"?([^}\"]*)\"?\}", lambda found: names.get(found[1]) or found[2], text)
        text = re.sub(r"\$\{?(\w+)\}?", lambda found: names.get(found[1], found[0]), text)
        if text == before:
            break
    return re.sub(r"\$\(\(([\w\s*/]+)\)\)", lambda found: computed(found[1], names), text)


def computed(text: str, names: dict[str, str]) -> str:
    """A sum of the shell: products and quotients of whole numbers, as scripts count ranks."""
    total, sign = 1, "*"
    for word in re.findall(r"\w+|[*/]", text):
        number = names.get(word, word)
        if not number.isdecimal():
            sign = word
        elif sign == "*" or int(number):
            total = total * int(number) if sign == "*" else total // int(number)
    return str(total)


def flags_in(text: str) -> dict[str, str | None]:
    """The flags of a script, each with its value; those of several words have them all."""
    text = re.sub(r"(^|\s)#.*$", r"\1", text, flags=re.MULTILINE).replace("\\\n", " ")
    names: dict[str, str] = {}
    for name, quoted, plain in re.findall(rf"\b([A-Za-z_]\w*)=(?:\"([^\"]*)\"|({WORD}))", text):
        names[name] = filled(quoted or plain, names)
    found: dict[str, str | None] = {}
    for name, rest in re.findall(rf"(?<![\w-])--([A-Za-z][\w-]*)((?:[ \t=]+(?!--)(?:{WORD}|'[^']*'))*)", text):
        words = filled(rest.strip(" \t="), names).partition(" --")[0]  # a variable may go on with other flags
        found[name.replace("_", "-")] = words.strip("'\" ") or None
    return found


def read(path: str) -> Script:
    """Read a launch script. Raises UsageError for a value that cannot be read."""
    stated, values, notes = flags_in(text_of(path)), {name: of.default for name, of in FLAGS.items()}, {}
    for name, text in stated.items():
        if name not in FLAGS:
            if name not in OTHERS:
                notes[name] = "is not known here, and so not planned"
            continue
        values[name] = value_of(path, name, FLAGS[name], text)
        if note := note_of(name, FLAGS[name], values[name]):
            notes[name] = note.removeprefix(name).strip()
    return Script(path, stated, values, notes)


def value_of(path: str, name: str, of: Key, text: str | None) -> Any:
    """A flag's value, read as the table says: its first word, because a program's name may follow."""
    if of.default is False:
        return True
    text = text.split()[0] if text else None
    value: Any = text
    if text and re.fullmatch(r"[\d_]+(\.\d*)?(e[+-]?\d+)?|\.\d+", text, re.IGNORECASE):
        value = float(text) if re.search(r"[.e]", text, re.IGNORECASE) else int(text.replace("_", ""))
    try:
        return of.read(value)
    except ValueError as error:
        unknown = ": the script does not set this variable" * ("$" in (text or ""))
        raise UsageError(f"{path}: --{name} should be {error}, not {text or 'nothing'}{unknown}") from None


# ---- what it describes -----------------------------------------------------------------------------------------------


def decoder_of(script: Script) -> Decoder:
    """The model. Raises UsageError if its sizes do not stand in the script."""
    of = script.values
    for name in ("num-layers", "hidden-size", "num-attention-heads", "seq-length"):
        if of[name] is None:
            raise UsageError(f"{script.path}: --{name} is missing, so the model is not known")
    h, a, biases = of["hidden-size"], of["num-attention-heads"], not of["disable-bias-linear"]
    gated, experts = of["swiglu"], of["num-experts"]
    f = of["ffn-hidden-size"] or (int(4 * h * 2 / 3 / 64) * 64 if gated else 4 * h)  # Megatron's default
    mixture = latent = None
    if experts:
        width, shared = of["moe-ffn-hidden-size"] or f, of["moe-shared-expert-intermediate-size"] or 0
        mixture = Mixture(experts, of["moe-router-topk"], width, shared)
    if of["multi-latent-attention"]:
        widths = of["kv-lora-rank"], of["qk-pos-emb-head-dim"], of["qk-head-dim"], of["v-head-dim"]
        latent = Latent(*widths, of["q-lora-rank"] or 0)
    learned = of["position-embedding-type"] == "learned_absolute"
    return Decoder(
        v=of["pad-vocab-size-to"] or of["vocab-size"] or GPT2_VOCABULARY,
        s=of["max-position-embeddings"] or of["seq-length"],
        h=h,
        a=a,
        kv=(of["num-query-groups"] or a) if of["group-query-attention"] else a,
        d=of["kv-channels"] or h // a,
        f=f,
        kinds=(MIXTURE if experts else DENSE,) * of["num-layers"],
        gated=gated,
        tied=not of["untie-embeddings-and-output-weights"],
        learned=learned,
        qkv_bias=biases or of["add-qkv-bias"],
        out_bias=biases,
        mlp_bias=biases,
        norm_bias=of["normalization"] == "LayerNorm",
        qk_norm="head" if of["qk-layernorm"] else "",
        mixture=mixture,
        latent=latent,
    )


def profile_of(script: Script, precision: str) -> Profile:
    """The profile megatron, with what the flags say."""
    of = script.values
    if usual(precision) is not MEGATRON:
        return usual(precision)
    older = of["deepspeed"] and not of["use-flash-attn"]  # Megatron-DeepSpeed's attention is whole unless it is asked
    in_full = of["accumulate-allreduce-grads-in-fp32"] or (precision == "bf16" and not of["grad-reduce-in-bf16"])
    return replace(
        MEGATRON,
        grad_dtype="fp32" if in_full else "stored",
        attention="whole" if of["attention-backend"] in ("unfused", "local") or older else "tiled",
        loss="fused" if of["cross-entropy-loss-fusion"] else "whole",
        stand_ins="none" if of["no-gradient-accumulation-fusion"] else MEGATRON.stand_ins,
        vocabulary="exact" if of["pad-vocab-size-to"] else MEGATRON.vocabulary,
    )


def ranks_of(script: Script) -> int | None:
    """The ranks that the script starts; None: it does not say."""
    per_host: int | None = script.values["nproc-per-node"]
    return per_host * int(script.values["nnodes"]) if per_host else None


def question(script: Script, ranks: int) -> tuple[Wanted, Choice]:
    """The script as the planner asks about a row. Raises UsageError for ranks or batches that cannot be divided so."""
    of = script.values
    tp, pp, ep = (of[f"{axis}-model-parallel-size"] for axis in ("tensor", "pipeline", "expert"))
    ulysses = of["ds-sequence-parallel-size"]
    cp = max(of["context-parallel-size"], ulysses)
    each = tp * pp * cp
    if ranks % each:
        raise UsageError(f"{script.path}: {ranks:,} ranks are no multiple of {tp} x {pp} x {cp}: use --ranks {each}")
    dp, rows = ranks // each, of["micro-batch-size"]
    batch = of["global-batch-size"] or rows * dp
    if batch % (rows * dp):
        raise UsageError(
            f"{script.path}: --global-batch-size {batch} is no multiple of {rows} sequences on {dp} data ranks: use"
            " another --ranks"
        )
    if dp * cp % ep:
        raise UsageError(
            f"{script.path}: --expert-model-parallel-size {ep} does not divide {dp * cp} data and context ranks: use"
            f" --ranks {ep * tp * pp}"
        )
    precision = "bf16" if of["bf16"] else "mixed" if of["fp16"] else "fp32"
    model, layers = Model.like(decoder_of(script)), of["num-layers"]
    scheme = "ulysses" if ulysses > 1 else SCHEMES[of["cp-comm-type"]]
    chunks = of["num-virtual-stages-per-pipeline-rank"] or 1
    if of["num-layers-per-virtual-pipeline-stage"]:
        chunks = max(1, layers // pp // of["num-layers-per-virtual-pipeline-stage"])
    at = Choice(
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        ep=ep,
        schedule="interleaved" if chunks > 1 and pp > 1 else "1f1b",
        chunks=chunks if pp > 1 else 1,
        zero=zero_of(script) if dp * cp > 1 else 0,
        recompute=recompute_of(script),
        rows=rows,
        first=of["decoder-first-pipeline-num-layers"],
        last=of["decoder-last-pipeline-num-layers"],
    )
    sequence, context = of["sequence-parallel"] and tp > 1, of["seq-length"]
    profile = profile_of(script, precision)
    return Wanted(script.path, model, batch, context, precision, sequence, scheme, profile=profile), at


def zero_of(script: Script) -> int:
    """ZeRO's stage of the data ranks."""
    of = script.values
    if of["use-megatron-fsdp"]:
        return STRATEGIES.index(of["data-parallel-sharding-strategy"])
    if of["deepspeed"]:
        return max(of["zero-stage"], int(of["bf16"]))  # DeepSpeed's bf16_optimizer.py divides what stage 1 does
    return int(of["use-distributed-optimizer"])


def recompute_of(script: Script) -> str:
    """The policy of recomputation."""
    of = script.values
    if of["checkpoint-activations"] or (of["recompute-granularity"] == "full" and of["recompute-num-layers"]):
        return "every:1"
    return "selective" if of["recompute-activations"] or of["recompute-granularity"] == "selective" else "none"


def arguments(wanted: Wanted, at: Choice) -> list[str]:
    """The options of `minidist.parallel3d` for the same grid."""
    words = ["--dp", at.dp, "--pp", at.pp, "--tp", at.tp, "--zero", at.zero, "--batch", wanted.batch]
    words += ["--cp", at.cp, "--scheme", wanted.scheme] if at.cp > 1 else []
    words += (
        ["--experts", wanted.model.experts, "--ep", at.ep, "--top", wanted.model.top] if wanted.model.experts else []
    )
    words += ["--schedule", at.schedule] if at.pp > 1 else []
    words += ["--chunks", at.chunks] if at.chunks > 1 else []
    words += ["-m", at.micro_batches(wanted.batch)]
    words += ["--sequence-parallel"] if wanted.sequence else []
    words += ["--precision", wanted.precision] if wanted.precision != "mixed" else []
    words += ["--recompute", at.recompute] if at.recompute != "none" else []
    words += ["--model", "gpt" if wanted.model.decoder.learned else "llama"]
    return [str(word) for word in words]


def plan_arguments(wanted: Wanted, at: Choice) -> list[str]:
    """The options of `plan` that ask about the same row."""
    axes = [f"{name}={n}" for name in ("dp", "tp", "cp", "pp", "ep") if (n := getattr(at, name)) > 1]
    keys = [*axes, f"zero={at.zero}", f"recompute={'full' if at.recompute == 'every:1' else at.recompute}"]
    keys += [f"schedule={at.schedule}", f"chunks={at.chunks}"] if at.chunks > 1 else []
    keys += [f"{name}={n}" for name, n in (("first", at.first), ("last", at.last)) if n]
    keys += [f"scheme={wanted.scheme}"] if at.cp > 1 else []
    said = {"ranks": at.ranks, "batch": wanted.tokens, "context": wanted.context, "precision": wanted.precision}
    said |= {"layout": ",".join(keys), "micro-batch": at.rows}
    return [word for name, value in said.items() for word in (f"--{name}", str(value))]


def told(script: Script) -> Iterator[tuple[str, str]]:
    """Each flag that says something, and in the end those that do not: what stands there, and what it means."""
    for name, text in script.stated.items():
        if name not in OTHERS:
            alone = name in FLAGS and FLAGS[name].default is False
            value = "" if alone or not text else f" {text.split()[0] if name in FLAGS else text}"
            means = FLAGS[name].means if name in FLAGS else ""
            yield f"--{name}{value}{f': {means}' if means else ''}", script.notes.get(name, "")
    if script.values["vocab-size"] is None and script.values["pad-vocab-size-to"] is None:
        yield f"the vocabulary is not in the script: {GPT2_VOCABULARY:,}, GPT-2's, is planned", ""
    if others := [f"--{name}" for name in script.stated if name in OTHERS]:
        yield f"About text, logs, starting and ending a run: {', '.join(others)}.", ""
