"""lessons/15_planning_a_run"""

from classroom.mutants.mutant import Mutant

MADE = "        accumulate = batch // (micro * ranks) if batch and micro else 1\n"
AGREE = "    if micro * accumulate * ranks != batch:\n        raise ValueError(batch)\n"
ASKED = "        if size is not None and (type(size) is not int or size < 1):\n"
WAITS = "        waits.append(micro * (given if recompute and given is not None else keeps))\n"
AGAIN = "        peak = max(peak, sum(waits) + micro * keeps + gathered)\n"
THEN = "        peak = max(peak, sum(waits) + gathered + gradient)\n"
LINK = "        link = reduces * 2 * psi / ranks + 2 * psi / ranks\n"
FITS = "                    if on_device <= device and on_host <= host and seconds(*plan) < least:\n"
LATER = "                    if not (stage or best):\n                        continue\n"

MUTANTS = [
    Mutant(
        "always_one_micro_batch",
        "read_sizes: accumulate follows from batch and micro",
        ("read_sizes",),
        [(MADE, "        accumulate = 1\n")],
        r"is wanted; it was a ValueError",
    ),
    Mutant(
        "forgets_the_ranks",
        "read_sizes: ranks have a part in the product",
        ("read_sizes",),
        [("        batch = micro * accumulate * ranks\n", "        return micro * accumulate, micro, accumulate\n")],
        r"On {train_micro_batch_size_per_gpu: \d, gradient_accumulation_steps: \d}, \d ranks: .* is wanted",
    ),
    Mutant(
        "believes_what_it_is_told",
        "read_sizes: three that do not agree are refused",
        ("read_sizes_refuses",),
        [(AGREE, "    if not micro or not accumulate:\n        raise ValueError(batch)\n")],
        r"raise ValueError, for \d+ is not 2 · 3 · \d; it was",
    ),
    Mutant(
        "takes_a_batch_of_nothing",
        "read_sizes: sizes are whole numbers from 1 on",
        ("read_sizes_refuses",),
        [(ASKED, "        if isinstance(size, str):\n")],
        r"raise ValueError, for a micro-batch of 0; it was \[0",
    ),
    Mutant(
        "a_batch_of_one",
        "read_sizes: a batch is needed, or a micro-batch",
        ("read_sizes_refuses",),
        [('        raise ValueError("no size")\n', "        micro = 1\n")],
        r"raise ValueError, for neither the batch nor the micro-batch is there",
    ),
    Mutant(
        "divides_one_too_many",
        "model_states: stage 1 divides states alone",
        ("model_states",),
        [("    gradients = 2 * shard if stage >= 2", "    gradients = 2 * shard if stage >= 1")],
        r"stage 1: [\d,.e+]+ bytes are on a device; it was",
    ),
    Mutant(
        "never_divides_parameters",
        "model_states: stage 3 divides parameters",
        ("model_states",),
        [("2 * shard if stage >= 3 else", "2 * shard if stage > 3 else")],
        r"stage 3: [\d,.e+]+ bytes are on a device",
    ),
    Mutant(
        "moves_the_states_alone",
        "model_states: gradients are on the host too",
        ("model_states_offload",),
        [("2 * shard + optimizer\n", "optimizer\n")],
        r"stage 1 with offload: the host has [\d,.e+]+ bytes, a rank's shards of states and gradients",
    ),
    Mutant(
        "keeps_the_gradients_here",
        "model_states: from stage 2 on a device keeps no gradients",
        ("model_states_offload",),
        [("gradients if stage == 1 else 0", "gradients")],
        r"stage 2 with offload: the device has [\d,.e+]+ bytes less than without",
    ),
    Mutant(
        "whole_on_the_host",
        "model_states: a rank has its part of the host",
        ("model_states_offload",),
        [("parameters + on_device, 2 * shard + optimizer", "parameters + on_device, 14 * psi")],
        r"stage 1 with offload: the host has [\d,.e+]+ bytes",
    ),
    Mutant(
        "never_runs_again",
        "passing_peak: a unit runs again, and keeps what it keeps",
        ("passing_peak_kept",),
        [(AGAIN, AGAIN.replace("micro * keeps", "(0 if recompute else micro * keeps)"))],
        r"recompute True, micro \d: most is held when the backward of unit \d begins",
    ),
    Mutant(
        "all_run_again",
        "passing_peak: only units with a `given` run again",
        ("passing_peak_kept",),
        [(WAITS, "        waits.append(micro * ((given or 0) if recompute else keeps))\n")],
        r"stage 0, recompute True",
    ),
    Mutant(
        "keeps_all_the_same",
        "passing_peak: a unit that runs again keeps its input alone",
        ("passing_peak_kept",),
        [(WAITS, "        waits.append(micro * keeps)\n")],
        r"stage 0, recompute True",
    ),
    Mutant(
        "two_gradients",
        "passing_peak: a gradient has 2 bytes for each parameter",
        ("passing_peak_units",),
        [
            (
                "        gradient = 2 * size if stage >= 2 else 0\n",
                "        gradient = 2 * size if stage >= 2 else 0\n        gradient += gradient if stage == 2 else 0\n",
            )
        ],
        r"stage 2, recompute False, micro 2: most is held when the gradient of unit 0 is there",
    ),
    Mutant(
        "forgets_the_gathered",
        "passing_peak: parameters are here while the gradient is made",
        ("passing_peak_units",),
        [(THEN, "        peak = max(peak, sum(waits) + gradient)\n")],
        r"stage 3, recompute False, micro 2: most is held when the gradient of unit 0 is there",
    ),
    Mutant(
        "first_gradient_then_free",
        "passing_peak: what was kept goes before the gradient is there",
        ("passing_peak_moment",),
        [(THEN, "        peak = max(peak, sum(waits) + micro * keeps + gathered + gradient)\n")],
        r"stage 2, recompute False, micro 1: most is held .*, [\d,.e+]+ bytes; it was",
    ),
    Mutant(
        "sends_twice_in_stage_0",
        "traffic: an all-reduce is a reduce-scatter and an all-gather",
        ("traffic",),
        [("    once = 2 * psi", "    once = (2 if stage else 4) * psi")],
        r"stage 0, one micro-batch: a rank sends [\d,.e+]+ bytes; it was",
    ),
    Mutant(
        "round_figures",
        "traffic: (ranks-1)/ranks",
        ("traffic",),
        [("2 * psi * (ranks - 1) / ranks\n", "2 * psi\n")],
        r"stage 0, one micro-batch: a rank sends",
    ),
    Mutant(
        "reduces_once",
        "traffic: stages 2 and 3 reduce in every micro-batch",
        ("traffic_accumulate",),
        [("return once * (reduces + gathers)", "return once * (1 + gathers)")],
        r"stage 2, \d micro-batches: [\d.]+ times what one micro-batch sends is wanted",
    ),
    Mutant(
        "gathers_twice_a_step",
        "traffic: stage 3 gathers in every micro-batch",
        ("traffic_accumulate",),
        [("2 * accumulate if stage == 3", "2 if stage == 3")],
        r"stage 3, \d micro-batches",
    ),
    Mutant(
        "one_way",
        "traffic: down and up",
        ("traffic_link",),
        [(LINK, "        link = reduces * 2 * psi / ranks\n")],
        r"stage 1 with offload, 1 micro-batches: [\d,.e+]+ bytes go over the link",
    ),
    Mutant(
        "down_once",
        "traffic: gradients go down whenever they have been reduced",
        ("traffic_link",),
        [(LINK, "        link = 4 * psi / ranks\n")],
        r"stage 2 with offload, 4 micro-batches",
    ),
    Mutant(
        "never_asks_the_host",
        "choose: both memories",
        ("choose_fits",),
        [(FITS, FITS.replace(" and on_host <= host", "").replace("on_device <=", "min(on_device, on_host) <="))],
        r"needs [\d.]+ of the device and [\d.]+ of the host",
    ),
    Mutant(
        "the_slowest",
        "choose: the least time",
        ("choose_fastest",),
        [
            (FITS, FITS.replace("seconds(*plan) < least", "-seconds(*plan) < least")),
            ("best, least = plan, seconds", "best, least = plan, -seconds"),
        ],
        r"all of which fit: .* takes [\d.]+; .* takes [\d.]+",
    ),
    Mutant(
        "never_stage_0",
        "choose: all stages",
        ("choose_none",),
        [
            ("    for stage in range(4):\n", "    for stage in (1, 2, 3, 0):\n"),
            ("                    plan = stage", LATER + "                    plan = stage"),
        ],
        r"\(0, False, False, 1\) fits, of \d ranks with a batch of \d+: None was returned",
    ),
    Mutant(
        "always_something",
        "choose: None if none fits",
        ("choose_none",),
        [("    return best\n", "    return best or (3, True, True, 1)\n")],
        r"Nothing fits: return None; it was \[3, 1, 1, 1\]",
    ),
]
