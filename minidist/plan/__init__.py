"""The planner: which layout of ranks for this model on this cluster. It only computes, and needs neither NumPy nor MPI.

python -m minidist plan --model llama3-405b --ranks 16384 --device-memory 80GB --batch 16M --context 8192

choice.py     a row of its table: sizes of the axes, schedule, ZeRO's stage, recomputation, micro-batch
orders.py     the schedules of a pipeline that it tries, and how long each idles
memory.py     what the fullest rank holds, by the formulas that runs are checked by, or by a system's
traffic.py    what a rank sends along each axis, and how much of that leaves its host
time.py       how long a step takes, by a stated model
search.py     all rows that divide, the fastest first
one_row.py    one layout that is asked about, what must hold of it, and what the next better row changes
show.py       the table, and every term of a row
check.py      a row scaled down and run on ranks: formulas next to what was counted (needs NumPy)
published.py  what the model says of published runs, next to what was measured: SC 2021's, Llama 3's and others' tables
trained.py    the same for runs that trained a model: OPT, BLOOM, GPT-NeoX, PaLM, DeepSeek-V3
measured.py   peaks of memory that others measured, next to the formulas; measured_time.py: the steps of these runs
printed.py    a published run as data, and the devices
profiles.py   what a system holds, as options
write.py      a row as DeepSpeed's JSON or Accelerate's YAML
command.py    the command line
"""
