"""What a software stack does: the part of a profile that is read in its sources, not fitted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Traits:
    """What a software stack does, as its sources say: not numbers to fit.

    `nccl`: version family of the tuner's tables; `generation`: GPU generation of its caps, and of fp8 products
    (Hopper's need transposes). The others are fields of `model.operators.Block`, see there.
    `overlap_dp_in_pipeline`: gradient buckets may reduce during backward with more than one stage (SC21's scripts use
    the overlapping DDP with one only). `launch_blocking`: the host waits for every kernel before it issues the next one
    (CUDA_LAUNCH_BLOCKING=1), so that nothing overlaps and each call's host time adds to its kernel's.
    `keeps_half_gradients`: half-precision gradients stay beside single-precision ones for the whole step (DeepSpeed's
    bf16 optimiser). `nvls`: NVLink SHARP is used where the hardware and this version of NCCL have it
    (NCCL_NVLS_ENABLE=0 turns it off). `cp_by_block`: gathered keys and values, as `model.block.Context` has it.
    `early_stop`: recomputation ends with the last tensor that the backward pass reads (`lower.recompute`).
    `copies_gathered`: gathered parameters are copied out of a buffer (FSDP2, DeepSpeed), not used in place (FSDP1).
    `autocast`: FSDP without a type for parameters (its MixedPrecision.param_dtype) gathers them in single precision,
    and torch.autocast casts at each product, as in `model.operators.Block`.
    `fp8_scaling`: how an fp8 run scales tensors where nobody says (`model.casts`).
    `fused_casts`: casts to fp8 are part of the kernels in front of them (XLA), as in `model.operators.Block`.
    `reduces_amax`: largest magnitudes of delayed scaling are reduced over all ranks behind each pass (`lower.scales`).
    `fp8_params`: an fp8 run gathers the parameters of its layers in fp8 (NeMo's fp8_params).
    `one_connection`: kernels of all streams begin in the order of their launches (CUDA_DEVICE_MAX_CONNECTIONS=1).
    `gpt_dropout`: models with learned positions, GPT-3 and its kin, train with dropout, others of this stack do not.
    `untied`: published GPT models of this stack have an output matrix of their own. `owners`: a rank of ZeRO-1 updates
    and broadcasts whole matrices.
    `fused_loss`: one kernel reads the half-precision logits, and one writes their gradient; in memory 4 bytes a logit,
    else `footprint.logit`.
    `softmax_keys`: most keys of the fused softmax of unfused attention where that is bound to shapes (Megatron-LM from
    late 2021 on, `model.attention`); 0: it takes them all.
    `pads_vocabulary`: the vocabulary has a multiple of 128 words on each tensor-parallel rank (Megatron-LM).
    `shards_master`: what ZeRO-3 shards is the single-precision master copy itself, cast as it is gathered (FSDP), not a
    half-precision copy beside it (DeepSpeed). `flat_gradients`: an optimiser that nothing shards (ZeRO-0) makes one
    flat single-precision tensor of all gradients, beside such a copy of each (DeepSpeed's FP16_Optimizer).
    `peak_kind`: what its logs call peak memory: all that the `device` shows as used (nvidia-smi), what PyTorch's
    allocator `reserved`, or what tensors took of it (`allocated`); in `peak_unit`, of the fullest GPU or, as
    `peak_stage` may say, of the `first` stage (where the log is rank 0's).
    """

    nccl: str = "2.8"
    generation: str = "ampere"
    fused_accumulation: bool = False
    overlap_tp: bool = False
    dropout: bool = True
    overlap_dp_in_pipeline: bool = True
    launch_blocking: bool = False
    keeps_half_gradients: bool = False
    nvls: bool = True
    cp_by_block: bool = False
    early_stop: bool = False
    copies_gathered: bool = True
    fused_loss: bool = False
    softmax_keys: int = 0
    pads_vocabulary: bool = True
    fp8_params: bool = False
    reduces_amax: bool = False
    fused_casts: bool = False
    autocast: bool = False
    fp8_scaling: str = "delayed"
    copies_sequence: bool = False
    complex_rotary: bool = False
    unfused_rotary: bool = False
    shards_master: bool = False
    flat_gradients: bool = False
    peak_kind: str = "device"
    peak_unit: str = "GB"
    peak_stage: str = "fullest"
    one_connection: bool = False
    untied: bool = False
    gpt_dropout: bool = False
    owners: bool = False

    def drops(self, positions: str) -> bool:
        """Whether a model with such positions trains with dropout."""
        return self.dropout or (self.gpt_dropout and positions == "learned")
