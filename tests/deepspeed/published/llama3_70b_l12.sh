#!/bin/bash
# The flags of a run whose peak is measured: Llama-3 70B cut to 12 layers, sequences of 4,096, on 8 B200.
# Source: MooreThreads/SimuMax docs/b200/b200_release_v1.2_summary.json, simu_tools/megatron_scripts
export TP=${TP:-8} PP=${PP:-"1"}
GPUS_PER_NODE=8
NNODES=${SLURM_NNODES:-"1"}
WORLD_SIZE=$(($GPUS_PER_NODE*$NNODES))
MODEL_ARGS=(
    --num-layers 12 --hidden-size 8192 --ffn-hidden-size 28672 --num-attention-heads 64
    --group-query-attention --num-query-groups 8 --seq-length 4096 --max-position-embeddings 4096
    --position-embedding-type rope --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer --vocab-size 128256
    --attention-dropout 0.0 --hidden-dropout 0.0 # --num-experts 8
)
TRAINING_ARGS="--micro-batch-size 1 --global-batch-size 4 \
    --bf16 --use-flash-attn --use-distributed-optimizer --recompute-granularity full --recompute-num-layers 0 \
    --cross-entropy-loss-fusion --cross-entropy-fusion-impl te --some-new-flag 7"
MODEL_PARALLEL_ARGS=(
    --tensor-model-parallel-size $TP
    --pipeline-model-parallel-size ${PP}
    --sequence-parallel
)
torchrun --nproc_per_node $GPUS_PER_NODE --nnodes=$NNODES pretrain_gpt.py ${MODEL_ARGS[@]} $TRAINING_ARGS \
    "${MODEL_PARALLEL_ARGS[@]}" --save $1
