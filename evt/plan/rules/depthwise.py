"""The rules of the depthwise kernel."""

from __future__ import annotations

from evt.ir.dtype import BF16, F16, F32
from evt.plan.problem import Problem
from evt.plan.rules import own
from evt.plan.rules.gemm import moved
from evt.plan.rules.rule import rule
from evt.plan.verdict import HOLDS, Refusal, Verdict, refused_for


@rule("the target is the one that the kernel is made for: sm90")
def on_sm90(problem: Problem) -> Verdict:
    if problem.target.family("3x") == "3x":
        return HOLDS
    return Refusal(f"depthwise convolutions have a kernel on sm90 only, and the target is {problem.target.name}")


@rule("each channel has a separate filter of at most 128 taps, and it is a fprop of images, or a dgrad of stride 1")
def depthwise(problem: Problem) -> Verdict:
    return refused_for(problem.depthwise.reason)


@rule("A and B are f16, bf16 or f32, both the same")
def operand_types(problem: Problem) -> Verdict:
    return own.one_type(problem, (F16, BF16, F32))


@rule("A can be moved by TMA: 16-byte aligned address, strides and channels")
def tma(problem: Problem) -> Verdict:
    return moved("A", problem.signature.a, problem.operand_bytes)
