#!/bin/bash
#SBATCH --nodes=48
GPUS_PER_NODE=8
NNODES=48
TP_SIZE=4
PP_SIZE=12
MICRO_BATCH_SIZE=2
SEQ_LEN=2048
GPT_ARGS=" \
    --num-layers 70 \
    --hidden-size 14336 \
    --num-attention-heads 112 \
    --seq-length $SEQ_LEN \
    --max-position-embeddings $SEQ_LEN \
    --micro-batch-size $MICRO_BATCH_SIZE \
    --global-batch-size 2048 \
    --embed-layernorm \
    --bf16 \
    --position-embedding-type alibi \
    --checkpoint-activations \
    --pad-vocab-size-to 250880 \
    --clip-grad 1.0 \
    "
export LAUNCHER="python -u -m torch.distributed.run --nproc_per_node $GPUS_PER_NODE --nnodes $NNODES"
export CMD="`pwd`/pretrain_gpt.py \
    --tensor-model-parallel-size $TP_SIZE \
    --pipeline-model-parallel-size $PP_SIZE \
    $GPT_ARGS \
    --deepspeed \
    --zero-stage 0 \
    "
srun bash -c "$LAUNCHER $CMD"  # bf16 with stage 0: its optimizer divides states as stage 1 does
