"""The records of real epilogues: each is a sample, or is refused by a diagnostic that names the missing feature."""

from __future__ import annotations

import pytest
import torch

import evt
from evt.diagnostics import page
from evt.request import typed_graph
from tests.support.record_calls import make_call
from tests.support.records import IN_PLACE, RECORDS, SAMPLES, Refusal

#: The ids of the collection, which is not in the repository.
IDS = """
ait-conv-bias-add-act bn-stat-dgrad cudnn-gemm-amax cudnn-gemm-dsrelu cudnn-gemm-srelu cudnn-gemm-swiglu-quant
cutlass-47-streamk-bias-2residual cutlass-dag-evt-auxstore-max cutlass-lincomb cutlass-lincomb-blockscale
cutlass-lincomb-perrow-reduce cutlass-percol-resadd-percolbias-eltact cutlass-percolbias-eltact
cutlass-perrowbias-eltact-aux cutlass-planar-complex cutlass-py-batched-broadcasts cutlass-relu-aux-bitmask
cutlass-topk-softmax-col evtae-bias-reuse-after-tanh evtae-tanh-backward-colsum fbgemm-f8f8bf16-conv3d
fbgemm-grouped-wgrad-accum flashinfer-ptrarray-per-token-scale flashinfer-svdquant-nvfp4 fmms-rowmax
inductor-evt-mixed-dtypes inductor-return-acc-and-intermediates int-swiglu-store-sm80 layernorm-two-reductions
mixdq-linear modiff-conv-requant-inplace nunchaku-rmsnorm-rope-pack qqq-w4a8 quack-dgated-moe quack-linear-bias2
quack-ln-bwd-apply quack-symmetric qutlass-mx-absmax qutlass-mx-quartet-std scalar-broadcast-count2 sgl-fp8-sm89-bias
sgl-int8-sm90-bias splittree-residual-rms-producer torch-rowwise-scaled-mm-sm90 torch-sparse24-colvec-C
torchint-a8w8-bfp32-ofp32 torchint-a8w8-relu-o8 trtllm-lincomb-allreduce trtllm-moe-finalize-2x two-phase-fp8-add
vllm-azp-token
"""
REFUSED = [
    pytest.param(refusal, id=f"{record}-{refusal.code}") for record, row in RECORDS.items() for refusal in row.refused
]


def test_every_record_has_a_row() -> None:
    assert list(RECORDS) == IDS.split()


@pytest.mark.parametrize("record", RECORDS)
def test_is_a_sample_or_refused(record: str) -> None:
    row = RECORDS[record]
    if row.tier <= 2:
        assert row.samples
        assert not row.refused
    elif row.tier == 3:
        assert row.samples or row.refused
    else:
        assert row.refused
        assert not row.samples


@pytest.mark.parametrize("refusal", REFUSED)
def test_says_what_is_missing(refusal: Refusal) -> None:
    with pytest.raises(evt.EvtError) as raised:
        typed_graph(evt.gemm(refusal.program).request)
    found = [(each.code, each.message) for each in raised.value.diagnostics]
    assert any(code == refusal.code and message.startswith(refusal.message) for code, message in found), found
    assert all(each.help for each in raised.value.diagnostics if each.code == refusal.code)
    assert page(refusal.code)


@pytest.mark.parametrize("name", IN_PLACE)
def test_may_overwrite_its_input(name: str) -> None:
    """The buffer of an output may be an input: the result equals a call without a buffer."""
    program = evt.load(SAMPLES / f"{name}.evt")
    call = make_call(name, program, {"m": 13, "n": 24, "k": 16})
    output, read = IN_PLACE[name]
    answers = program(call.a, call.b, **call.inputs)
    fresh = answers if len(program.outputs) == 1 else getattr(answers, output)
    buffer = call.inputs[read]
    program(call.a, call.b, **call.inputs, **{output: buffer})
    assert torch.equal(buffer, fresh)
