"""What the papers promise: their formulas as functions, with section and equation, and the figures that they print.

One module a paper; `collectives` and `pipelines` hold what several papers are compared by. Ψ is the number of
parameters, N the number of ranks, S a number of elements. Where a round figure of a paper leaves out (N-1)/N, the
function has it: "2Ψ" is what a ring sends at N = infinity, at N = 2 it sends 1Ψ. Padding enters through Ψ: pass the
padded count. Nothing in here looks at a run.
"""
