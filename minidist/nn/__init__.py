"""The model: a tape autograd on NumPy, the transformer's operations, GPT and Llama as lists of units, optimizers."""
